# SPDX-License-Identifier: Apache-2.0
"""Captures without a trace, written by the code that writes those of traces."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.unit.flows.io.test_records import NAMES, packed
from tests.unit.outputs.samples import distribution
from wptrace.bpf.object import BpfObject
from wptrace.bpf.ring import DISCARD
from wptrace.capture.records import Raw
from wptrace.capture.writer import About, CaptureOutput
from wptrace.cli.main import main
from wptrace.flows.io.kinds import KINDS, OPERATION, REQUEST
from wptrace.flows.io.records import RECORDS
from wptrace.model.book import RING_FULL, Book
from wptrace.model.distribution import Distribution
from wptrace.model.kind import OPERATIONS, REQUESTS, TOTAL, Group
from wptrace.model.report import BYTES, Overhead, Report, Source, Start, arranged

START = Start("io", "path", "6.12.0", {"dev": ["sda"], "pid": 7}, [Source("fs", "fentry")], KINDS, ["a note"])
ABOUT = About("stages", (OPERATION, REQUEST), each=True)


def entry(obj: BpfObject, number: int, flag: int = 0, **values: int | bytes) -> bytes:
    """Make a ring entry: a header, and an operation that took `number` ns."""
    times = {"start_ns": 1000 * number, "end_ns": 1000 * number + number, "stages[0]": number}
    known = {"slot": 1, "tgid": 7, "tid": 8, "cgroup": 55, "comm": b"fio", **times, **values}
    payload = packed(obj.struct("io_record"), **known)
    return struct.pack("<II", len(payload) | flag, number & 0xFFFF) + payload + bytes(-len(payload) % 8)


def cells(numbers: Sequence[int]) -> dict[Group, dict[str, Distribution]]:
    found = distribution(numbers)
    return {OPERATION.group("sda", "read"): {"fs": found.copy(), TOTAL: found}}


def report(kind: str, numbers: Sequence[int], ts_ns: int, duration_ns: int = 1_000_000_000) -> Report:
    books = {REQUESTS: Book(), OPERATIONS: Book.read(len(numbers), len(numbers), {}, {RING_FULL: 0})}
    counters = {OPERATION.group("sda", "read"): {BYTES: 4096 * len(numbers)}}
    rows = arranged(cells(numbers), KINDS)
    return Report(kind, ts_ns, duration_ns, books, rows, counters, Overhead(1, 2, 3, 4, 5, 6))


def keep(
    obj: BpfObject,
    path: Path,
    entries: Iterable[bytes],
    summary: Report,
    *,
    start: Start = START,
    about: About = ABOUT,
    what: Raw = RECORDS,
    names: Sequence[str] = NAMES,
    cgroup_of: Callable[[int], str] | None = None,
) -> Path:
    """Write ring entries and a summary."""
    output = CaptureOutput(path, about)
    take = output.raw(obj, what, names, cgroup_of)
    output.start(start)
    for one in entries:
        take(memoryview(one))
    output.summary(summary)
    output.close()
    return path


def write(obj: BpfObject, path: Path, batches: Sequence[int] = (3, 1, 4), end: bool = True) -> Path:
    """Write operations in batches, with an interval for each batch and a summary; the first operation is number 0."""
    output = CaptureOutput(path, ABOUT)
    take = output.raw(obj, RECORDS, NAMES, lambda number: f"/cgroup{number}")
    output.start(START)
    first = 0
    for at, count in enumerate(batches):
        numbers = range(first, first + count)
        first += count
        data = b"".join(entry(obj, number) for number in numbers)
        take(memoryview(entry(obj, 99, DISCARD) + data))
        output.interval(report("interval", numbers, (at + 1) * 1_000_000_000))
    if end:
        whole = report("summary", range(first), len(batches) * 1_000_000_000, len(batches) * 1_000_000_000)
        output.summary(whole)
    output.close()
    return path


def replayed(path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> list[dict[str, Any]]:
    assert main(["replay", str(path), "--json", *options]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def totals(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of all stages."""
    return [row for row in summary["rows"] if row["stage"] == TOTAL]
