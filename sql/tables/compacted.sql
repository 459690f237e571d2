-- The tables that compact.sql made, for DuckDB. Run it in FOLDER, then views.sql.

CREATE OR REPLACE TEMPORARY VIEW operations AS SELECT * FROM read_parquet('operations.parquet');
CREATE OR REPLACE TEMPORARY VIEW kernels AS SELECT * FROM read_parquet('kernels.parquet');
CREATE OR REPLACE TEMPORARY VIEW channel_times AS SELECT * FROM read_parquet('channel_times.parquet');
CREATE OR REPLACE TEMPORARY VIEW proxy_steps AS SELECT * FROM read_parquet('proxy_steps.parquet');
CREATE OR REPLACE TEMPORARY VIEW communicators AS SELECT * FROM read_parquet('communicators.parquet');
CREATE OR REPLACE TEMPORARY VIEW environment AS SELECT * FROM read_parquet('environment.parquet');
CREATE OR REPLACE TEMPORARY VIEW losses AS SELECT * FROM read_parquet('losses.parquet');
CREATE OR REPLACE TEMPORARY VIEW clock_bounds AS SELECT * FROM read_parquet('clock_bounds.parquet');
CREATE OR REPLACE TEMPORARY VIEW peers AS SELECT * FROM read_parquet('peers.parquet');

-- Nanoseconds since 1970.
CREATE OR REPLACE TEMPORARY MACRO ns(instant) AS epoch_ns(instant);
