# SPDX-License-Identifier: Apache-2.0
"""Stacks in speedscope's own pages, and against its schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.peers.conftest import SPEEDSCOPE
from tests.unit.outputs import path, samples
from wptrace.flows.stacks import IO
from wptrace.model.distribution import Distribution
from wptrace.model.kind import REQUESTS, TOTAL
from wptrace.model.report import BYTES, arranged
from wptrace.model.stack import Stack
from wptrace.outputs import export
from wptrace.outputs.registry import Wanted

pytestmark = pytest.mark.npm


def written(file: Path) -> Path:
    """Write three stacks: two of reads, and one of these with another caller."""
    stacks = {
        Stack(("submit_bio", "ext4_readpage", "vfs_read"), (), ""): [1_000_000, 2_000_000],
        Stack(("submit_bio", "xfs_readpage", "vfs_read"), (), ""): [4_000_000],
        Stack(("submit_bio", "<b>&", "vfs_write"), (), ""): [5_000_000],
    }
    groups = {IO.group("sda", "read", stack): times for stack, times in stacks.items()}
    cells: dict[Any, dict[str, Distribution]] = {
        group: {TOTAL: samples.distribution(times)} for group, times in groups.items()
    }
    counters = {group: {BYTES: 4096 * len(times)} for group, times in groups.items()}
    report = path.report(kind="summary")._replace(
        cells=arranged(cells, (IO,)), counters=counters, books={REQUESTS: samples.book()}
    )
    made = export.make("speedscope", file, "stacks", Wanted())
    samples.play(made, path.start()._replace(flow="stacks", kinds=(IO,), filters={}), report)
    return file


def table(page: Any) -> list[list[str]]:
    cells = (row.query_selector_all("td") for row in page.query_selector_all("tr"))
    return [[cell.inner_text().strip() for cell in row] for row in cells if row]


def test_speedscope_has_our_sums(speedscope: Callable[[Path], Any], tmp_path: Path) -> None:
    page = speedscope(written(tmp_path / "stacks.json"))
    rows = table(page)
    assert rows[:3] == [["1", "time", "12.00ms"], ["2", "I/Os", "4"], ["3", "bytes", "16.00 KB"]]
    functions = {name: (total.partition(" ")[0], own.partition(" ")[0]) for total, own, name in rows[3:]}
    assert functions == {
        "vfs_read": ("7.00ms", "0.00ns"),
        "vfs_write": ("5.00ms", "0.00ns"),
        "ext4_readpage": ("3.00ms", "0.00ns"),
        "xfs_readpage": ("4.00ms", "0.00ns"),
        "<b>&": ("5.00ms", "0.00ns"),
        "submit_bio": ("12.00ms", "12.00ms"),
    }


def test_the_file_keeps_to_speedscope_s_schema(tmp_path: Path) -> None:
    schema = json.loads((SPEEDSCOPE / "file-format-schema.json").read_text())
    jsonschema.Draft7Validator(schema).validate(json.loads(written(tmp_path / "stacks.json").read_text()))
