-- Histograms of wptrace agent in ClickHouse, as the OpenTelemetry collector sends them: its exporter `clickhouse` makes
-- and fills otel_metrics_exponential_histogram, of which a view takes what wptrace says of I/O. Run this once the
-- exporter has made its table. Agents need [otlp] with stages = "histogram".
--
-- All histograms have the same 344 buckets, so they are added without aligning: the upper edge of bucket k, counted
-- from 1, is 2^((k - 240) / 8) seconds. All figures are totals since `start`, when the agent began.

CREATE TABLE IF NOT EXISTS wptrace_io (
    host LowCardinality(String),
    device LowCardinality(String),
    operation LowCardinality(String),
    kind LowCardinality(String),
    stage LowCardinality(String),
    start DateTime CODEC(ZSTD(1)),
    time DateTime CODEC(DoubleDelta, ZSTD(1)),
    zeros UInt64 CODEC(ZSTD(1)),
    buckets Array(UInt64) CODEC(ZSTD(1))
)
ENGINE = MergeTree
PARTITION BY toDate(time)
ORDER BY (stage, kind, operation, host, device, time)
TTL time + INTERVAL 30 DAY
SETTINGS ttl_only_drop_parts = 1;

CREATE MATERIALIZED VIEW IF NOT EXISTS wptrace_io_from_otel TO wptrace_io AS
SELECT
    ResourceAttributes['host.name'] AS host,
    Attributes['device'] AS device,
    Attributes['operation'] AS operation,
    Attributes['kind'] AS kind,
    if(MetricName = 'wptrace.io.duration', 'total', Attributes['stage']) AS stage,
    toDateTime(StartTimeUnix) AS start,
    toDateTime(TimeUnix) AS time,
    ZeroCount AS zeros,
    PositiveBucketCounts AS buckets
FROM otel_metrics_exponential_histogram
WHERE MetricName IN ('wptrace.io.duration', 'wptrace.io.stage')
    AND Scale = 3 AND PositiveOffset = -240 AND length(PositiveBucketCounts) = 344;

-- p99 of each stage, device and host between two times, and a week before:
-- SELECT host, device, p99_s, before_s FROM wptrace_weeks(since = '2026-11-28 14:00:00', until = '2026-11-28 15:00:00')
-- WHERE stage = 'device' AND operation = 'read' AND p99_s > 1.5 * before_s ORDER BY p99_s / before_s DESC
CREATE VIEW IF NOT EXISTS wptrace_weeks AS
SELECT host, device, operation, kind, stage,
    sumIf(n, is_now) AS count, sumIf(n, NOT is_now) AS count_before,
    anyIf(p99, is_now) AS p99_s, anyIf(p99, NOT is_now) AS before_s
FROM (
    SELECT host, device, operation, kind, stage, is_now, sumForEach(grown) AS counts, arraySum(counts) AS n,
        -- The first bucket is that of zeros. A value is at most as large as the edge.
        exp2((arrayFirstIndex(upto -> upto >= 0.99 * n, arrayCumSum(counts)) - 241) / 8) AS p99
    FROM (
        SELECT host, device, operation, kind, stage, start, is_now,
            argMax(counted, time) AS last, argMaxIf(counted, time, time <= edge) AS before,
            -- What began without a message lately is new if its agent is; else there is a gap before its first one.
            multiIf(notEmpty(before), before, start >= any(edge) - INTERVAL 10 MINUTE, arrayMap(n -> 0, last),
                argMin(counted, time)) AS base,
            arrayMap((n, less) -> n - less, last, base) AS grown
        FROM (
            SELECT *, arrayPushFront(buckets, zeros) AS counted, time >= {since:DateTime} - INTERVAL 10 MINUTE AS is_now,
                {since:DateTime} - if(is_now, 0, 7 * 86400) AS edge
            FROM wptrace_io
            WHERE (time BETWEEN {since:DateTime} - INTERVAL 10 MINUTE AND {until:DateTime})
                OR (time BETWEEN {since:DateTime} - INTERVAL 10090 MINUTE AND {until:DateTime} - INTERVAL 1 WEEK)
        )
        GROUP BY host, device, operation, kind, stage, start, is_now
    )
    GROUP BY host, device, operation, kind, stage, is_now
    HAVING n > 0
)
GROUP BY host, device, operation, kind, stage;
