-- The tables of `ncclscope export --parquet FOLDER`, for Apache Spark 4. Run it, then views.sql, with
-- these settings of the session:
--
--   tables                                                   FOLDER, or any URL that Spark reads
--   spark.sql.legacy.parquet.nanosAsLong                     true: Spark has no timestamps of ns
--   spark.sql.sources.partitionColumnTypeInference.enabled   false: a job's name stays a text
--
-- Files of different schema versions are read together: a column that an older file lacks is NULL
-- there. Conditions on job, rank and begin keep other files and row groups from being read.

CREATE OR REPLACE TEMPORARY VIEW operations USING parquet OPTIONS (path '${tables}/operations', mergeSchema 'true');
CREATE OR REPLACE TEMPORARY VIEW kernels USING parquet OPTIONS (path '${tables}/kernels', mergeSchema 'true');
CREATE OR REPLACE TEMPORARY VIEW channel_times USING parquet OPTIONS (path '${tables}/channel_times', mergeSchema 'true');
CREATE OR REPLACE TEMPORARY VIEW proxy_steps USING parquet OPTIONS (path '${tables}/proxy_steps', mergeSchema 'true');
CREATE OR REPLACE TEMPORARY VIEW communicators USING parquet OPTIONS (path '${tables}/communicators', mergeSchema 'true');
CREATE OR REPLACE TEMPORARY VIEW environment USING parquet OPTIONS (path '${tables}/environment', mergeSchema 'true');
CREATE OR REPLACE TEMPORARY VIEW losses USING parquet OPTIONS (path '${tables}/losses', mergeSchema 'true');
CREATE OR REPLACE TEMPORARY VIEW clock_bounds USING parquet OPTIONS (path '${tables}/clock_bounds', mergeSchema 'true');
CREATE OR REPLACE TEMPORARY VIEW peers USING parquet OPTIONS (path '${tables}/peers', mergeSchema 'true');

-- Nanoseconds since 1970: what Spark reads already.
CREATE OR REPLACE TEMPORARY FUNCTION ns(instant BIGINT) RETURNS BIGINT RETURN instant;
