# SPDX-License-Identifier: Apache-2.0
"""Stacks as text, folded, and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from tests.unit.outputs import samples
from tests.unit.outputs.samples import HOSTILE, MS, Tty, distribution, play, reported, written
from wptrace.flows.stacks import IO
from wptrace.model.book import STATE_FULL, UNMATCHED_END, Book
from wptrace.model.distribution import Distribution
from wptrace.model.kind import Group
from wptrace.model.report import Report, Start
from wptrace.model.stack import Stack
from wptrace.outputs.registry import Wanted
from wptrace.outputs.text.stacks import COUNT, TIME, FoldedOutput, StacksView

START = Start("stacks", "", "6.12", {"dev": []}, [], (IO,), [])
PLAIN = Wanted(top=10)
APART = PLAIN._replace(per_device=True)

SLOW = Stack(("submit", "write", "entry"))
QUICK = Stack(("submit", "read", "entry"))
OWN = Stack(("submit", "read", "entry"), ("pread", "main"), "fio[7]")

Cells = dict[Group, dict[str, Distribution]]


def cell(values: Iterable[int]) -> dict[str, Distribution]:
    return {"total": distribution(values)}


CELLS: Cells = {
    IO.group("sda", "read", QUICK): cell([MS, MS]),
    IO.group("sda", "write", SLOW): cell([5 * MS]),
    IO.group("sdb", "read", QUICK): cell([MS]),
}


def report(cells: Mapping[Group, Mapping[str, Distribution]], kind: str = "summary", lost: int = 0) -> Report:
    count = sum(stages["total"].count for stages in cells.values())
    sizes = {one: 4096 * stages["total"].count for one, stages in cells.items()}
    book = Book.read(count + lost + 1, count, {STATE_FULL: lost}, {UNMATCHED_END: lost})
    return samples.report(cells, sizes, kind, book)


def shown(wanted: Wanted, *results: object) -> list[str]:
    return written(StacksView(wanted), START, *results)


def folded(weight: str, *results: object, wanted: Wanted = PLAIN, start: Start = START) -> list[str]:
    stream = Tty()
    play(FoldedOutput(stream, StacksView(wanted), weight), start, *results)
    return stream.getvalue().splitlines()


def test_the_stack_with_the_most_time_comes_last() -> None:
    assert shown(PLAIN, report(CELLS)) == [
        "Tracing stacks on all disks, Linux 6.12. Ctrl-C ends.",
        "",
        "Summary",
        "22:13:20  4 I/Os in 1.00 s, 1 in flight",
        "",
        "read: 3 I/Os, 12 KiB, 37.5% of the time; mean 1.00 ms, p50 1.00 ms, p99 1.00 ms, max 1.00 ms",
        "    submit",
        "    read",
        "    entry",
        "",
        "write: 1 I/O, 4 KiB, 62.5% of the time; mean 5.00 ms, p50 5.00 ms, p99 5.00 ms, max 5.00 ms",
        "    submit",
        "    write",
        "    entry",
    ]


def test_devices_by_themselves_and_the_first_few() -> None:
    lines = shown(APART._replace(top=2), report(CELLS, "interval"))
    assert [line.partition(",")[0] for line in lines if "of the time" in line] == [
        "sda read: 2 I/Os",
        "sda write: 1 I/O",
    ]
    assert lines[4] == "and 1 more, with less time (--top 0 shows all)"
    everything = shown(APART._replace(top=0), report(CELLS))
    assert sum("of the time" in line for line in everything) == 3


def test_what_was_too_quick_is_reported() -> None:
    found = report(CELLS)
    found.book.start(100)
    found.book.finish(100)
    least = START._replace(filters={"dev": [], "min_ns": MS})
    lines = written(StacksView(PLAIN), least, found)
    assert lines[0] == "Tracing stacks on all disks, Linux 6.12. Ctrl-C ends."
    assert lines[3] == "22:13:20  104 I/Os in 1.00 s, 1 in flight; 4 took 1.00 ms or more"


def test_a_process_stands_between_its_stack_and_the_kernels() -> None:
    lines = shown(PLAIN, report({IO.group("sda", "read", OWN): cell([MS])}))
    assert lines[-6:] == ["    submit", "    read", "    entry", "    -- fio[7]", "    pread", "    main"]


def test_losses_and_costs_are_reported() -> None:
    lines = shown(PLAIN._replace(statistics=True), report(CELLS, lost=3))
    assert [line.partition(":")[0] for line in lines[-3:]] == ["lost", "noted", "own cost"]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_move_no_cursor(name: str) -> None:
    hostile = report({IO.group(name, "read", Stack((name,), (name,), name)): cell([MS])})
    assert all(line.isprintable() for line in [*shown(APART, hostile), *folded(COUNT, hostile, wanted=APART)])


@pytest.mark.parametrize(("weight", "values"), [(TIME, [3 * MS, 5 * MS]), (COUNT, [3, 1])])
def test_folded_is_for_other_tools(weight: str, values: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    lines = folded(weight, [], report(CELLS, "interval"), report(CELLS, lost=2))
    assert lines == [f"entry;read;submit {values[0]}", f"entry;write;submit {values[1]}"]
    assert [line.split(" x ")[0] for line in capsys.readouterr().err.splitlines()] == ["lost: 2", "noted: 2"]


def test_folded_stacks_are_limited_as_others() -> None:
    """Those with the most time stay."""
    assert folded(COUNT, report(CELLS), wanted=PLAIN._replace(top=1)) == ["entry;write;submit 1"]


def test_what_folded_stacks_lack_is_said_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(folded(COUNT, report(CELLS), start=START._replace(notes=["stacks have no names"]))) == 2
    assert capsys.readouterr().err == "note: stacks have no names\n"


def test_folded_devices_are_outermost() -> None:
    assert folded(COUNT, report(CELLS), wanted=APART) == [
        "sda;entry;read;submit 2",
        "sda;entry;write;submit 1",
        "sdb;entry;read;submit 1",
    ]


def test_a_folded_stack_is_one_line_on_any_terminal() -> None:
    long = Stack(("a frame",) * 50)
    assert folded(COUNT, report({IO.group("sda", "read", long): cell([MS])})) == ["a frame;" * 49 + "a frame 1"]


def test_nothing_is_said_of_single_ones_in_flight() -> None:
    """The flow does not know them."""
    assert len(shown(PLAIN, [])) == 1


def test_json_rows_have_their_stack() -> None:
    cells = {**CELLS, IO.group("sda", "read", OWN): cell([4 * MS])}
    (line,) = reported(report(cells), wanted=Wanted(top=2))
    first, second = line["rows"]
    found = [first[name] for name in ("dev", "op", "count", "bytes", "sum_ns")]
    assert found == ["sda", "write", 1, 4096, 5 * MS]
    assert first["stack"] == {"kernel": ["submit", "write", "entry"], "user": [], "process": ""}
    assert second["stack"] == {"kernel": ["submit", "read", "entry"], "user": ["pread", "main"], "process": "fio[7]"}
    assert first["share"] == round(5 / 12, 4)
    assert "stddev_ns" not in first
