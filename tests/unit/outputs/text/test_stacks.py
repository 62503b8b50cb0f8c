# SPDX-License-Identifier: Apache-2.0
"""Stacks as text, folded, and as JSON."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping

import pytest

from tests.unit.outputs.samples import HOSTILE, MS, NOON, OVERHEAD, SECOND, distribution
from wptrace.flows.stacks import StacksFlow
from wptrace.model.book import STATE_FULL, UNMATCHED_END, Book
from wptrace.model.distribution import Distribution
from wptrace.model.results import Group, Output, Report, Start, rows_of
from wptrace.model.stack import Stack
from wptrace.outputs.text.stacks import COUNT, TIME, FoldedOutput, StacksJson, StacksOutput, View

TABLE = StacksFlow.stages
PLAIN = View(per_device=False, dates=False, statistics=False, top=10, min_ns=0)

SLOW = Stack(("submit", "write", "entry"))
QUICK = Stack(("submit", "read", "entry"))
OWN = Stack(("submit", "read", "entry"), ("pread", "main"), "fio[7]")

Cells = dict[Group, dict[str, Distribution]]


def group(dev: str, op: str, stack: Stack) -> Group:
    return Group(dev, op, key=stack)


def cell(values: Iterable[int]) -> dict[str, Distribution]:
    return {"total": distribution(values)}


CELLS: Cells = {
    group("sda", "read", QUICK): cell([MS, MS]),
    group("sda", "write", SLOW): cell([5 * MS]),
    group("sdb", "read", QUICK): cell([MS]),
}


def report(cells: Mapping[Group, Mapping[str, Distribution]], kind: str = "summary", lost: int = 0) -> Report:
    count = sum(stages["total"].count for stages in cells.values())
    sizes = {one: 4096 * stages["total"].count for one, stages in cells.items()}
    book = Book.read(count + lost + 1, count, {STATE_FULL: lost}, {UNMATCHED_END: lost})
    return Report(kind, NOON, SECOND, book, rows_of(cells, TABLE), sizes, 0, OVERHEAD)


def written(output: Output, stream: io.StringIO, *reports: Report) -> list[str]:
    output.start(Start("stacks", "", "6.12", {"dev": [], "min_ns": MS}, [], TABLE, []))
    for one in reports:
        (output.summary if one.kind == "summary" else output.interval)(one)
    output.close()
    return stream.getvalue().splitlines()


def shown(view: View, *reports: Report) -> list[str]:
    stream = io.StringIO()
    return written(StacksOutput(stream, view), stream, *reports)


def test_the_stack_with_the_most_time_comes_first() -> None:
    assert shown(PLAIN, report(CELLS)) == [
        "Tracing stacks on all disks, Linux 6.12. Ctrl-C ends.",
        "",
        "Summary",
        "22:13:20  4 I/Os in 1.00 s, 1 in flight",
        "",
        "write: 1 I/O, 4 KiB, 62.5% of the time; mean 5.00 ms, p50 5.00 ms, p99 5.00 ms, max 5.00 ms",
        "    submit",
        "    write",
        "    entry",
        "",
        "read: 3 I/Os, 12 KiB, 37.5% of the time; mean 1.00 ms, p50 1.00 ms, p99 1.00 ms, max 1.00 ms",
        "    submit",
        "    read",
        "    entry",
    ]


def test_devices_by_themselves_and_the_first_few() -> None:
    lines = shown(PLAIN._replace(per_device=True, top=2), report(CELLS, "interval"))
    assert [line.partition(",")[0] for line in lines if "of the time" in line] == [
        "sda write: 1 I/O",
        "sda read: 2 I/Os",
    ]
    assert lines[-1] == "and 1 more (--top 0 shows all)"
    everything = shown(PLAIN._replace(per_device=True, top=0), report(CELLS))
    assert sum("of the time" in line for line in everything) == 3


def test_what_was_too_quick_is_told() -> None:
    found = report(CELLS)
    found.accounting.start(100)
    found.accounting.finish(100)
    lines = shown(PLAIN._replace(min_ns=MS), found)
    assert lines[3] == "22:13:20  104 I/Os in 1.00 s, 1 in flight; 4 took 1.00 ms or more"


def test_a_process_stands_between_its_stack_and_the_kernels() -> None:
    lines = shown(PLAIN, report({group("sda", "read", OWN): cell([MS])}))
    assert lines[-6:] == ["    submit", "    read", "    entry", "    -- fio[7]", "    pread", "    main"]


def test_losses_and_costs_are_told() -> None:
    lines = shown(PLAIN._replace(statistics=True), report(CELLS, lost=3))
    assert [line.partition(":")[0] for line in lines[-3:]] == ["lost", "noted", "own cost"]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_move_no_cursor(name: str) -> None:
    hostile = report({group(name, "read", Stack((name,), (name,), name)): cell([MS])})
    lines = shown(PLAIN._replace(per_device=True), hostile)
    stream = io.StringIO()
    lines += written(FoldedOutput(stream, PLAIN._replace(per_device=True), COUNT, io.StringIO()), stream, hostile)
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize(("weight", "values"), [(TIME, [3 * MS, 5 * MS]), (COUNT, [3, 1])])
def test_folded_is_for_other_tools(weight: str, values: list[int]) -> None:
    stream, complaints = io.StringIO(), io.StringIO()
    output = FoldedOutput(stream, PLAIN, weight, complaints)
    lines = written(output, stream, report(CELLS, "interval"), report(CELLS, lost=2))
    assert lines == [f"entry;read;submit {values[0]}", f"entry;write;submit {values[1]}"]
    assert [line.split(" x ")[0] for line in complaints.getvalue().splitlines()] == ["lost: 2", "noted: 2"]


def test_folded_devices_are_outermost() -> None:
    stream = io.StringIO()
    output = FoldedOutput(stream, PLAIN._replace(per_device=True), COUNT)
    assert written(output, stream, report(CELLS)) == [
        "sda;entry;read;submit 2",
        "sda;entry;write;submit 1",
        "sdb;entry;read;submit 1",
    ]


def test_json_rows_have_their_stack() -> None:
    stream = io.StringIO()
    view = PLAIN._replace(top=2)
    cells = {**CELLS, group("sda", "read", OWN): cell([4 * MS])}
    lines = [json.loads(line) for line in written(StacksJson(stream, view), stream, report(cells))]
    first, second = lines[1]["rows"]
    assert (first["dev"], first["op"], first["count"], first["bytes"], first["sum_ns"]) == (
        "sda",
        "write",
        1,
        4096,
        5 * MS,
    )
    assert first["stack"] == {"kernel": ["submit", "write", "entry"], "user": [], "process": ""}
    assert second["stack"] == {"kernel": ["submit", "read", "entry"], "user": ["pread", "main"], "process": "fio[7]"}
    assert first["share"] == round(5 / 12, 4)
    assert "stddev_ns" not in first
