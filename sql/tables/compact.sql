-- Puts the small files of many ranks together, with DuckDB: one file for each table, TABLE.parquet beside the folder TABLE.
-- Run duckdb.sql in FOLDER first. Then read compacted.sql instead of duckdb.sql.
--
-- Sorted by job and rank, so that a condition on them still keeps most row groups from being read. Ranks that are exported
-- later are not in it: run it again.

COPY (SELECT * FROM operations ORDER BY job, rank) TO 'operations.parquet' (FORMAT parquet, COMPRESSION zstd);
COPY (SELECT * FROM kernels ORDER BY job, rank) TO 'kernels.parquet' (FORMAT parquet, COMPRESSION zstd);
COPY (SELECT * FROM channel_times ORDER BY job, rank) TO 'channel_times.parquet' (FORMAT parquet, COMPRESSION zstd);
COPY (SELECT * FROM proxy_steps ORDER BY job, rank) TO 'proxy_steps.parquet' (FORMAT parquet, COMPRESSION zstd);
COPY (SELECT * FROM communicators ORDER BY job, rank) TO 'communicators.parquet' (FORMAT parquet, COMPRESSION zstd);
COPY (SELECT * FROM environment ORDER BY job, rank) TO 'environment.parquet' (FORMAT parquet, COMPRESSION zstd);
COPY (SELECT * FROM losses ORDER BY job, rank) TO 'losses.parquet' (FORMAT parquet, COMPRESSION zstd);
COPY (SELECT * FROM clock_bounds ORDER BY job, rank) TO 'clock_bounds.parquet' (FORMAT parquet, COMPRESSION zstd);
COPY (SELECT * FROM peers ORDER BY job, rank) TO 'peers.parquet' (FORMAT parquet, COMPRESSION zstd);
