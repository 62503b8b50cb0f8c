# SPDX-License-Identifier: Apache-2.0
"""ClickHouse inside this process (chdb), with the table that the OpenTelemetry collector's exporter writes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

# The columns of that table that contrib/clickhouse reads.
OTEL = """
CREATE TABLE otel_metrics_exponential_histogram (
    ResourceAttributes Map(LowCardinality(String), String), MetricName String,
    Attributes Map(LowCardinality(String), String), StartTimeUnix DateTime64(9), TimeUnix DateTime64(9),
    Count UInt64, Sum Float64, Scale Int32, ZeroCount UInt64, PositiveOffset Int32, PositiveBucketCounts Array(UInt64)
) ENGINE = MergeTree ORDER BY (MetricName, TimeUnix)
"""
_DDL = Path(__file__).resolve().parents[1] / "contrib" / "clickhouse" / "wptrace.sql"


class ClickHouse:
    def __init__(self, folder: Path) -> None:
        # The module has no types.
        chdb: Any = import_module("chdb.session")
        self._session = chdb.Session(str(folder))
        self.run("CREATE DATABASE IF NOT EXISTS fleet")
        self.run("USE fleet")
        # The times that tests give are in UTC.
        self.run("SET session_timezone = 'UTC'")

    def create(self) -> None:
        """Create the exporter's table, then those of contrib/clickhouse."""
        self.run(OTEL)
        for statement in _DDL.read_text().split(";\n"):
            if statement.strip():
                self.run(statement)

    def run(self, query: str) -> None:
        self._session.query(query)

    def rows(self, query: str) -> list[dict[str, Any]]:
        text = str(self._session.query(query, "JSONEachRow"))
        return [json.loads(line) for line in text.splitlines()]

    def close(self) -> None:
        self._session.close()


def otel_rows(messages: Iterable[bytes], host: str = "") -> list[dict[str, Any]]:
    """Convert messages as the exporter does: a row for each point of an exponential histogram."""
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    found = []
    for message in messages:
        for whole in ExportMetricsServiceRequest.FromString(message).resource_metrics:
            resource = _texts(whole.resource.attributes)
            for metric in (metric for scope in whole.scope_metrics for metric in scope.metrics):
                found += [
                    {
                        "ResourceAttributes": {**resource, **({"host.name": host} if host else {})},
                        "MetricName": metric.name,
                        "Attributes": _texts(point.attributes),
                        "StartTimeUnix": point.start_time_unix_nano / 1e9,
                        "TimeUnix": point.time_unix_nano / 1e9,
                        "Count": point.count,
                        "Sum": point.sum,
                        "Scale": point.scale,
                        "ZeroCount": point.zero_count,
                        "PositiveOffset": point.positive.offset,
                        "PositiveBucketCounts": list(point.positive.bucket_counts),
                    }
                    for point in metric.exponential_histogram.data_points
                ]
    return found


def insert(server: ClickHouse, rows: Sequence[dict[str, Any]]) -> None:
    lines = "\n".join(map(json.dumps, rows))
    server.run(f"INSERT INTO otel_metrics_exponential_histogram FORMAT JSONEachRow {lines}")


def _texts(attributes: Any) -> dict[str, str]:
    return {one.key: one.value.string_value for one in attributes}
