-- Single operations and requests of many hosts in DuckDB. The files are those of `wptrace io --export parquet=FILE`, or of
-- `wptrace replay FILE --to parquet` of captures, in a folder for each host and day: host=db1/day=2026-11-28/any.parquet.
-- Run duckdb in the folder that has them.

CREATE OR REPLACE VIEW wptrace AS
SELECT * FROM read_parquet('host=*/day=*/*.parquet', hive_partitioning = true, union_by_name = true);

-- p99 of each stage, device and host on some days:
-- SELECT * FROM wptrace_p99('2026-11-28', '2026-11-28') WHERE stage = 'device_ns'
CREATE OR REPLACE MACRO wptrace_p99(first, last) AS TABLE
SELECT host, kind, dev, op, stage, count(*) AS count, quantile_disc(ns, 0.99) / 1e9 AS p99_s
FROM (UNPIVOT (SELECT host, day, kind, dev, op, COLUMNS('_ns$') FROM wptrace) ON COLUMNS('_ns$') INTO NAME stage VALUE ns)
WHERE day BETWEEN CAST(first AS DATE) AND CAST(last AS DATE) AND stage <> 'ts_ns'
GROUP BY host, kind, dev, op, stage;

-- The same days and those a week before:
-- SELECT * FROM wptrace_weeks('2026-11-28', '2026-11-28') WHERE stage = 'device_ns' AND p99_s > 1.5 * before_s
CREATE OR REPLACE MACRO wptrace_weeks(first, last) AS TABLE
SELECT now.*, before.count AS count_before, before.p99_s AS before_s
FROM wptrace_p99(first, last) AS now
JOIN wptrace_p99(CAST(first AS DATE) - 7, CAST(last AS DATE) - 7) AS before USING (host, kind, dev, op, stage);
