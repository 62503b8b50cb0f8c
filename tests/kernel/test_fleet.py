# SPDX-License-Identifier: Apache-2.0
"""contrib/clickhouse and contrib/duckdb, with figures of real disks: an agent's over OTLP, and Parquet exports."""
# ruff: noqa: S608 - all names are our own

from __future__ import annotations

import datetime
import shutil
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from tests.clickhouse import ClickHouse, insert, otel_rows
from tests.collector import collecting
from tests.kernel.disks import Disk, fio, total
from tests.kernel.test_agent import reads, running, sending
from tests.kernel.trace import BlockTrace, count, wait_until
from tests.unit.docs.pages import ROOT

WEEK_S = 7 * 86400
SLOWER = 16
"""Buckets from a time to four times as long."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ClickHouse]:
    pytest.importorskip("chdb", reason="chdb has no wheel for this Python or machine")
    found = ClickHouse(tmp_path / "clickhouse")
    found.create()
    yield found
    found.close()


@pytest.mark.one_kernel
def test_clickhouse_finds_the_host_whose_device_became_slower(disk: Disk, tmp_path: Path, server: ClickHouse) -> None:
    """An agent sends the reads of a disk. Copies of its figures, dated last week, are equal but for one host."""
    with collecting() as collector, running(tmp_path, sending(disk, collector.url, 'stages = "histogram"\n')) as agent:
        wait_until(lambda: collector.requests, "the first message")
        made = total(fio(disk.path, rw="randread", number_ios=400))
        wait_until(lambda: (of := reads(collector, disk)) and of[-1].count == made, "the reads")
        agent.stop()
        messages = [one.message for one in collector.requests if one.path == "/v1/metrics"]
    rows = otel_rows(messages)
    (host,) = {row["ResourceAttributes"]["host.name"] for row in rows}
    assert host
    insert(server, rows)
    last_week = [row | {name: row[name] - WEEK_S for name in ("TimeUnix", "StartTimeUnix")} for row in rows]
    insert(server, last_week)
    faster = [
        row
        | {
            "ResourceAttributes": {"host.name": "slower"},
            "PositiveBucketCounts": [*row["PositiveBucketCounts"][SLOWER:], *[0] * SLOWER],
        }
        for row in last_week
    ]
    insert(server, faster)
    insert(server, [row | {"ResourceAttributes": {"host.name": "slower"}} for row in rows])
    times = [row["TimeUnix"] for row in rows]
    since, until = (
        datetime.datetime.fromtimestamp(at, datetime.timezone.utc).strftime("%F %T")
        for at in (min(times) - 1, max(times) + 1)
    )
    weeks = f"wptrace_weeks(since = '{since}', until = '{until}')"
    found = server.rows(f"SELECT * FROM {weeks} WHERE operation = 'read' AND device = '{disk.name}'")
    stages = {(row["host"], row["stage"]): row for row in found}
    assert {stage for _, stage in stages} >= {"total", "queue", "device"}
    for (name, stage), row in stages.items():
        if stage in ("total", "device"):
            # JSON has counters of 64 bits as strings.
            assert int(row["count"]) == int(row["count_before"]) == made
            assert row["p99_s"] == pytest.approx(row["before_s"] * (4 if name == "slower" else 1))
    whole = stages[host, "total"]
    last = reads(collector, disk)[-1]
    edges = [2 ** ((at - 239) / 8) for at, counted in enumerate(last.positive.bucket_counts) if counted]
    assert min(edges) <= whole["p99_s"] <= max(edges)
    risen = server.rows(
        f"SELECT host FROM {weeks} WHERE stage = 'device' AND operation = 'read' AND p99_s > 1.5 * before_s"
    )
    assert risen == [{"host": "slower"}]


class Exported(BlockTrace):
    """A trace with every request in a file."""


@pytest.mark.one_kernel
def test_duckdb_finds_the_host_whose_device_became_slower(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "io.parquet"
    with Exported("--dev", disk.name, "--each", "--export", f"parquet={file}") as trace:
        made = total(fio(disk.path, rw="randread", number_ios=300))
    assert count(trace.summary, op="read", dev=disk.name) == made
    monkeypatch.chdir(tmp_path)
    slower = duckdb.connect()
    columns = [
        name
        for name, *_ in slower.sql(f"DESCRIBE SELECT * FROM '{file}'").fetchall()
        if name.endswith("_ns") and name != "ts_ns"
    ]
    times = ", ".join(f"{name} * 4 AS {name}" for name in columns)
    for host, day in (("same", "21"), ("same", "28"), ("slower", "21"), ("slower", "28")):
        folder = tmp_path / f"host={host}" / f"day=2026-11-{day}"
        folder.mkdir(parents=True)
        if (host, day) == ("slower", "28"):
            slower.sql(f"COPY (SELECT * REPLACE ({times}) FROM '{file}') TO '{folder / 'a.parquet'}' (FORMAT parquet)")
        else:
            shutil.copy(file, folder / "a.parquet")
    server = duckdb.connect()
    server.execute((ROOT / "contrib" / "duckdb" / "wptrace.sql").read_text())
    found = server.sql(
        "SELECT host, stage, count, count_before, p99_s, before_s FROM wptrace_weeks('2026-11-28', '2026-11-28') "
        f"WHERE op = 'read' AND dev = '{disk.name}'"
    ).fetchall()
    stages = {(host, stage): figures for host, stage, *figures in found}
    (exact,) = slower.sql(f"SELECT quantile_disc(device_ns, 0.99) FROM '{file}' WHERE op = 'read'").fetchall()[0]
    assert stages["same", "device_ns"] == [made, made, exact / 1e9, exact / 1e9]
    assert stages["slower", "device_ns"] == [made, made, pytest.approx(exact * 4 / 1e9), exact / 1e9]
    assert "ts_ns" not in {stage for _, stage in stages}
    risen = (
        "SELECT DISTINCT host FROM wptrace_weeks('2026-11-28', '2026-11-28') "
        "WHERE stage = 'device_ns' AND p99_s > 1.5 * before_s"
    )
    assert server.sql(risen).fetchall() == [("slower",)]
