# SPDX-License-Identifier: Apache-2.0
"""Exports of rows and stacks: CSV, JSON with buckets, Parquet, speedscope."""

from __future__ import annotations

import csv
import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.outputs import path
from tests.unit.outputs.export.events import some, sums
from tests.unit.outputs.export.test_html import stacks, summary
from tests.unit.outputs.samples import HOSTILE, LABELS, MS, play
from wptrace.errors import UsageError
from wptrace.model.kind import Kind, Label, Noun
from wptrace.outputs import export
from wptrace.outputs.registry import Wanted


def written(folder: Path, form: str, *results: Any, view: str = "stages") -> Path:
    place = folder / "out"
    play(export.make(form, place, view, Wanted(intervals=False)), *results)
    return place


def test_csv_has_each_one(tmp_path: Path) -> None:
    events = some(50)
    with written(tmp_path, "csv", path.start(), *events, summary()).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(events)
    assert sum(int(row["device_ns"]) for row in rows) == sums(events)[1]["device"]


def test_json_has_buckets_and_intervals(tmp_path: Path) -> None:
    place = written(tmp_path, "json", path.start(), path.operation(), path.report(), summary())
    lines = [json.loads(line) for line in place.read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["start", "operation", "interval", "summary"]
    for row in lines[-1]["rows"]:
        assert sum(count for _, count in row["buckets"]) == row["count"]


@pytest.mark.parametrize("label", ["cgroup", "comm"])
def test_parquet_has_no_two_columns_of_a_name(tmp_path: Path, label: str) -> None:
    """Rows may be by a label that events have as a field."""
    parquet = importlib.import_module("pyarrow.parquet")
    owned = Kind("owned", Noun("operation"), (*LABELS, Label(label, label, "owner")), book="", ranked=True)
    start = path.start()._replace(kinds=(*path.KINDS, owned))
    table = parquet.read_table(written(tmp_path, "parquet", start, *some(5), summary()))
    assert len(set(table.column_names)) == len(table.column_names)
    assert {label, f"label_{label}"} <= set(table.column_names)


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_parquet_has_each_one(tmp_path: Path, name: str) -> None:
    parquet = importlib.import_module("pyarrow.parquet")
    events = [*some(50), path.operation(comm=name, path=name, offset=None, bytes=1 << 70)]
    place = written(tmp_path, "parquet", path.start(), *events, summary(lost=3))
    table = parquet.read_table(place)
    assert table.num_rows == len(events)
    rows = table.to_pylist()
    assert [row["ts_ns"] for row in rows] == [event.end_ns for event in events]
    assert sum(row["device_ns"] or 0 for row in rows) == sums(events)[1]["device"]
    assert all((row["fs_ns"] is None) is (row["kind"] == "request") for row in rows)
    assert rows[-1]["comm"].isprintable()
    assert (rows[-1]["offset"], rows[-1]["bytes"]) == (None, None)
    assert "recursion" in json.loads(parquet.read_metadata(place).metadata[b"wptrace.loss"])["losses"][0]


def test_speedscope_has_each_stack(tmp_path: Path) -> None:
    found = json.loads(written(tmp_path, "speedscope", *stacks(["a", "b"]), view="stacks").read_text())
    names = [frame["name"] for frame in found["shared"]["frames"]]
    time, count, _ = found["profiles"]
    assert [[names[at] for at in sample] for sample in time["samples"]] == [
        ["vfs_read", "submit_bio", one] for one in "ab"
    ]
    assert (time["weights"], time["endValue"], count["weights"]) == ([MS, MS], 2 * MS, [1, 1])


def test_speedscope_is_of_stacks_alone(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="hold stacks"):
        export.make("speedscope", tmp_path / "out", "stages", Wanted())
