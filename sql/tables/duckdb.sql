-- The tables of `ncclscope export --parquet FOLDER`, for DuckDB. Run it in FOLDER, then views.sql.
--
-- Files of different schema versions are read together: a column that an older file lacks is NULL
-- there. Conditions on job, rank and begin keep other files and row groups from being read.

CREATE OR REPLACE TEMPORARY VIEW operations AS
SELECT * FROM read_parquet('operations/*/*/*.parquet', union_by_name = true, hive_types = {'job': VARCHAR, 'rank': INTEGER});

CREATE OR REPLACE TEMPORARY VIEW kernels AS
SELECT * FROM read_parquet('kernels/*/*/*.parquet', union_by_name = true, hive_types = {'job': VARCHAR, 'rank': INTEGER});

CREATE OR REPLACE TEMPORARY VIEW channel_times AS
SELECT * FROM read_parquet('channel_times/*/*/*.parquet', union_by_name = true, hive_types = {'job': VARCHAR, 'rank': INTEGER});

CREATE OR REPLACE TEMPORARY VIEW proxy_steps AS
SELECT * FROM read_parquet('proxy_steps/*/*/*.parquet', union_by_name = true, hive_types = {'job': VARCHAR, 'rank': INTEGER});

CREATE OR REPLACE TEMPORARY VIEW communicators AS
SELECT * FROM read_parquet('communicators/*/*/*.parquet', union_by_name = true, hive_types = {'job': VARCHAR, 'rank': INTEGER});

CREATE OR REPLACE TEMPORARY VIEW environment AS
SELECT * FROM read_parquet('environment/*/*/*.parquet', union_by_name = true, hive_types = {'job': VARCHAR, 'rank': INTEGER});

CREATE OR REPLACE TEMPORARY VIEW losses AS
SELECT * FROM read_parquet('losses/*/*/*.parquet', union_by_name = true, hive_types = {'job': VARCHAR, 'rank': INTEGER});

CREATE OR REPLACE TEMPORARY VIEW clock_bounds AS
SELECT * FROM read_parquet('clock_bounds/*/*/*.parquet', union_by_name = true, hive_types = {'job': VARCHAR, 'rank': INTEGER});

CREATE OR REPLACE TEMPORARY VIEW peers AS
SELECT * FROM read_parquet('peers/*/*/*.parquet', union_by_name = true, hive_types = {'job': VARCHAR, 'rank': INTEGER});

-- Nanoseconds since 1970.
CREATE OR REPLACE TEMPORARY MACRO ns(instant) AS epoch_ns(instant);
