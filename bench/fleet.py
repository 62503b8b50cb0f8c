# SPDX-License-Identifier: Apache-2.0
"""An hour of many hosts, this week and last, in ClickHouse (chdb) with contrib/clickhouse, and requests in DuckDB.

Distributions are those of a real disk, from `wptrace io --level block --export json=FILE`.
"""
# ruff: noqa: S608 - all names are our own

from __future__ import annotations

import json
import os
import random
import tempfile
import time
from collections.abc import Iterator
from importlib import import_module
from operator import add
from pathlib import Path
from typing import Any

from wptrace.model.distribution import Distribution, index
from wptrace.outputs.otlp import LENGTH, OFFSET_NS, SCALE, buckets

_ROOT = Path(__file__).resolve().parents[1]
_INTERVAL_S, _WEEK_S, _BATCH_S = 10, 7 * 86400, 60
# How many different intervals a series has, and of how many values each.
_DIFFERENT, _VALUES = 40, 400
# One in this many hosts has a device that takes twice as long as last week.
_RISEN, _TWICE = 20, 1 << SCALE
# The exporter of the OpenTelemetry collector writes this table; only the view reads it here.
_OTEL = """
CREATE TABLE otel_metrics_exponential_histogram (
    ResourceAttributes Map(LowCardinality(String), String), MetricName String,
    Attributes Map(LowCardinality(String), String), StartTimeUnix DateTime64(9), TimeUnix DateTime64(9),
    Scale Int32, ZeroCount UInt64, PositiveOffset Int32, PositiveBucketCounts Array(UInt64)
) ENGINE = Null
"""


class _Series:
    """The counts of a row of the file in an interval, as in OTLP: zeros, then the buckets."""

    def __init__(self, row: dict[str, Any], rng: random.Random) -> None:
        self.operation, self.stage = row["op"], row["stage"]
        slots, counts = zip(*((index(low), count) for low, count in row["buckets"]))
        self.intervals = []
        for _ in range(_DIFFERENT):
            found = Distribution()
            for slot in rng.choices(slots, counts, k=_VALUES):
                found.buckets[slot] += 1
            zeros, of_values = buckets(found, "ns")
            self.intervals.append([zeros, *of_values])

    @property
    def metric(self) -> str:
        return "wptrace.io.duration" if self.stage == "total" else "wptrace.io.stage"


def _slower(interval: list[int]) -> list[int]:
    return [interval[0], *[0] * _TWICE, *interval[1:-_TWICE]]


def _rows(file: Path, hosts: int, start_s: int, seconds: int, week: int, batch: Path) -> Iterator[int]:
    """Write the rows of each minute, and generate their numbers."""
    rng = random.Random(week)  # noqa: S311
    rows = json.loads(file.read_text().splitlines()[-1])["rows"]
    series = [_Series(row, rng) for row in rows if row["kind"] == "request"]
    risen = {one.stage: [list(map(_slower, one.intervals)) for one in series] for one in series}
    totals = {(host, at): [0] * (1 + LENGTH) for host in range(hosts) for at in range(len(series))}
    for minute in range(start_s, start_s + seconds, _BATCH_S):
        count = 0
        with batch.open("w") as out:
            for now in range(minute, minute + _BATCH_S, _INTERVAL_S):
                for (host, at), total in totals.items():
                    one = series[at]
                    is_slow = week and host % _RISEN == 0 and one.stage != "queue"
                    interval = rng.choice(risen[one.stage][at] if is_slow else one.intervals)
                    total = totals[host, at] = list(map(add, total, interval))
                    labels = f"'device':'nvme0n1','operation':'{one.operation}','kind':'request','stage':'{one.stage}'"
                    figures = start_s - 86400, now, SCALE, total[0], OFFSET_NS, f"[{','.join(map(str, total[1:]))}]"
                    texts = f"{{'host.name':'host{host:05}'}}", one.metric, f"{{{labels}}}", *map(str, figures)
                    out.write("\t".join(texts) + "\n")
                    count += 1
        yield count


def clickhouse(file: Path, hosts: int, seconds: int) -> None:
    # The module has no types.
    chdb: Any = import_module("chdb.session")
    with tempfile.TemporaryDirectory() as folder:
        session, batch = chdb.Session(folder), Path(folder, "batch.tsv")
        for statement in ("CREATE DATABASE fleet", "USE fleet", "SET session_timezone = 'UTC'", _OTEL):
            session.query(statement)
        for statement in (_ROOT / "contrib" / "clickhouse" / "wptrace.sql").read_text().split(";\n"):
            if statement.strip():
                session.query(statement)
        until = int(time.time()) // 3600 * 3600
        start, took, rows = until - seconds, 0.0, 0
        for week in (0, 1):
            for count in _rows(file, hosts, start - _WEEK_S * (1 - week), seconds, week, batch):
                before = time.monotonic()
                session.query(f"INSERT INTO otel_metrics_exponential_histogram SELECT * FROM file('{batch}', TSV)")
                took, rows = took + time.monotonic() - before, rows + count
        print(f"{hosts} hosts, {seconds} s of two weeks: {rows} rows inserted at {rows / took:.0f} a second")
        session.query("OPTIMIZE TABLE wptrace_io FINAL")
        size = int(
            str(
                session.query("SELECT sum(bytes_on_disk) FROM system.parts WHERE active AND table = 'wptrace_io'")
            ).strip()
        )
        day = size / 2 / seconds * 86400
        print(f"{size / rows:.0f} bytes a row, {day / 1e9:.2f} GB a day, {day / hosts / 1e6:.2f} MB a day and host")
        times = []
        query = (
            "SELECT host, p99_s, before_s FROM wptrace_weeks(since = "
            f"fromUnixTimestamp({start}), until = fromUnixTimestamp({until})) "
            "WHERE stage = 'device' AND operation = 'read' AND p99_s > 1.5 * before_s ORDER BY host"
        )
        found = []
        for _ in range(5):
            before = time.monotonic()
            found = str(session.query(query, "CSV")).split()
            times.append(time.monotonic() - before)
        risen = len(range(0, hosts, _RISEN))
        print(f"found {len(found)} of {risen} hosts that have risen, in {min(times):.2f} to {max(times):.2f} s")
        session.close()


def parquet(file: Path, hosts: int) -> None:
    """Write the same file for each host, this week and last."""
    import duckdb

    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        for host in range(hosts):
            for day in ("21", "28"):
                into = Path(folder, f"host=host{host:05}", f"day=2026-11-{day}")
                into.mkdir(parents=True)
                os.link(file, into / "a.parquet")
        os.chdir(folder)
        server = duckdb.connect()
        server.execute((_ROOT / "contrib" / "duckdb" / "wptrace.sql").read_text())
        count = server.sql("SELECT count(*) FROM wptrace").fetchall()[0][0]
        times = []
        for _ in range(3):
            before = time.monotonic()
            server.sql(
                "SELECT * FROM wptrace_weeks('2026-11-28', '2026-11-28') WHERE stage = 'device_ns' AND op = 'read'"
            ).fetchall()
            times.append(time.monotonic() - before)
        print(
            f"{hosts} hosts, {count} rows of requests, {file.stat().st_size * 2 * hosts / count:.0f} bytes a row: "
            f"compared in {min(times):.2f} to {max(times):.2f} s"
        )
        os.chdir(file.parent)
