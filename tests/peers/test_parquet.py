# SPDX-License-Identifier: Apache-2.0
"""Parquet, queried by DuckDB."""

from __future__ import annotations

from pathlib import Path

import duckdb

from tests.unit.outputs import path
from tests.unit.outputs.export.events import some, sums
from tests.unit.outputs.export.test_rows import written


def rows(query: str) -> list[tuple[int, ...]]:
    relation = duckdb.sql(query)
    assert relation is not None
    return list(relation.fetchall())


def test_duckdb_has_our_counts_and_sums(tmp_path: Path) -> None:
    events = some(500)
    place = written(tmp_path, "parquet", path.start(), *events, path.report(kind="summary"))
    counts, times = sums(events)
    for name in path.NAMES:
        query = f"select count(*) filter ({name}_ns > 0), sum({name}_ns) from read_parquet('{place}')"  # noqa: S608 - our own names
        assert rows(query) == [(counts[name], times[name])]
    of = f"select count(*), sum(total_ns) from read_parquet('{place}') where kind = 'operation' and comm = 'task100'"  # noqa: S608
    mine = [event for event in events if event.group.kind is path.OPERATION and event.fields["comm"] == "task100"]
    assert rows(of) == [(len(mine), sum(event.total_ns for event in mine))]
