# SPDX-License-Identifier: Apache-2.0
"""Tasks that waited for a CPU, as text."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from tests.unit.outputs import samples
from tests.unit.outputs.samples import HOSTILE, MS, NOON, Tty, distribution, reported, written
from wptrace.flows.cpu import CPU, KINDS, PROCESS, THREAD
from wptrace.model.book import STATE_FULL, Book
from wptrace.model.distribution import Distribution
from wptrace.model.kind import Task
from wptrace.model.report import Event, InFlight, Report, Start
from wptrace.outputs.registry import Wanted
from wptrace.outputs.text.output import TextOutput
from wptrace.outputs.text.turns import TurnsView
from wptrace.outputs.text.words import columns

ALL = Wanted(top=20)
BY = ALL._replace(per_device=True)
TURN, WAIT = KINDS[CPU]


def cell(waits: Iterable[int], runs: Iterable[int], off: Iterable[int] = ()) -> dict[str, Distribution]:
    waits, runs = list(waits), list(runs)
    return {
        "wait": distribution(waits),
        "run": distribution(runs),
        "off": distribution(off),
        "total": distribution(map(sum, zip(waits, runs))),
    }


def report(
    cells: Mapping[Any, dict[str, Distribution]], kind: str = "interval", lost: int = 0, by: str = CPU
) -> Report:
    groups = {KINDS[by][0].group(row): stages for row, stages in cells.items()}
    return samples.report(groups, None, kind, Book.read(12 + lost, 10, {STATE_FULL: lost}, {}))


def wait(total: int = 5 * MS, comm: str = "fio", instead: tuple[str, int] | None = ("dd", 7), sleep: int = MS) -> Event:
    fields: dict[str, object] = {"comm": comm, "pid": 3, "tid": 4, "cpu": 1, "sleep_ns": sleep}
    if instead is not None:
        fields["instead"] = {"comm": instead[0], "pid": instead[1], "tid": instead[1], "run_ns": 4 * MS}
    return Event(WAIT.group(1), NOON, total, {"wait": total}, fields)


def start(by: str = CPU) -> Start:
    return Start("cpu", "", "6.12", {"by": by}, [], KINDS[by], [])


def shown(wanted: Wanted, *results: object, by: str = CPU) -> list[str]:
    return written(TurnsView(wanted), start(by), *results)


def test_a_live_screen_has_rows_in_one_line_each_and_all_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda *fallback: os.terminal_size((80, 40)))
    output = TextOutput(Tty(), TurnsView(BY._replace(live=True)))
    output.start(start())
    output.event(wait())
    output.interval(report({0: cell([MS], [MS])}, lost=4))
    lines = output._compose()
    output.close()
    title, *firsts = [line.split()[0] for line in lines if line]
    assert title == "Tracing"
    assert firsts == ["22:13:20", "stage", "wait", "run", "off", "total", "cpu", "cpu0", "22:13:20.000000", "lost:"]
    assert max(map(len, lines)) <= 80


def rows(lines: list[str]) -> list[str]:
    """Return the names of the rows."""
    first = next(number for number, line in enumerate(lines) if "has CPU" in line)
    return [line.split()[0] for line in lines[first + 1 :]]


def test_who_waited_most_comes_first() -> None:
    cells = {
        Task("idle", 1): cell([10], [10]),
        Task("busy", 2): cell([50 * MS] * 4, [100 * MS] * 4),
        Task("some", 3): cell([MS], [MS]),
    }
    lines = shown(BY._replace(top=2), report(cells, by=PROCESS), by=PROCESS)
    assert rows(lines) == ["busy[2]", "some[3]", "and"]
    assert lines[-1] == "  and 1 more"
    # In one second: 0.4 s on a CPU, 0.2 s waiting for one.
    assert lines[-3].split()[1:4] == ["4", "40.0%", "20.0%"]


@pytest.mark.parametrize(("width", "medians"), [(80, False), (105, False), (106, True), (200, True)])
def test_rows_fit_the_terminal(width: int, medians: bool) -> None:
    """Only a wide terminal has room for other medians than those of waits."""
    view = TurnsView(BY)
    list(view.begin(start(THREAD)))
    cells = {Task(name * 4, 4_194_304, 4_194_303): cell([MS] * 99, [MS] * 99) for name in ["kworker/u256:31", *HOSTILE]}
    lines = list(view.report(report(cells, by=THREAD), width))
    title = next(line for line in lines if "has CPU" in line)
    assert ("off p50" in title) == medians
    assert lines[-1].endswith("-") == medians
    assert max(map(columns, lines)) <= width


def test_cpus_have_their_order() -> None:
    cells = {number: cell([number * MS], [MS]) for number in (10, 2, 0)}
    assert rows(shown(BY, report(cells))) == ["cpu0", "cpu2", "cpu10"]


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (wait(), "fio[3/4] waited 5.00 ms for cpu1 after 1.00 ms of sleep; dd[7] had it for 4.00 ms"),
        (wait(sleep=0), "fio[3/4] waited 5.00 ms for cpu1; dd[7] had it for 4.00 ms"),
        (wait(sleep=0, instead=("swapper/1", 0)), "for cpu1, which was idle for 4.00 ms of that"),
        (wait(sleep=0, instead=None), "fio[3/4] waited 5.00 ms for cpu1"),
    ],
)
def test_a_wait_is_reported(one: Event, words: str) -> None:
    (line,) = shown(ALL, one)[1:]
    assert line.startswith("22:13:20.000000  fio")
    assert line.endswith(words)


def test_the_worst_waits_are_summed_up() -> None:
    waits = [wait(total=number * MS) for number in (3, 50, 7, *range(100, 130))]
    lines = shown(ALL, *waits, report({0: cell([MS], [MS])}, "summary"))
    worst = lines[lines.index("worst waits:") + 1 :][:10]
    assert [line.split("waited ")[1][:6] for line in worst[:2]] == ["129 ms", "128 ms"]
    assert all("waited" in line for line in worst)


def test_the_verdict_is_about_the_share_of_waits() -> None:
    calm = shown(ALL, report({0: cell([MS] * 10, [99 * MS] * 10)}, "summary"))[-1]
    assert calm == "verdict: of the time that tasks wanted a CPU, they waited 1.0% (mean 1.00 ms, p99 1.00 ms)"
    busy = shown(ALL, report({0: cell([MS] * 10, [MS] * 10)}, "summary"))[-1]
    assert "they waited 50.0%" in busy
    assert TURN["wait"].meaning in busy
    assert shown(ALL, report({}, "summary"))[-1] == "verdict: no task left a CPU"


def test_a_histogram() -> None:
    view = ALL._replace(hist="run")
    lines = shown(view, report({0: cell([1], [1000]), 1: cell([1], [1000])}, "summary"))
    assert lines[lines.index("run:") + 1].split()[:7] == ["512", "ns", "-", "1.02", "us", ":", "2"]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_cannot_move_the_cursor(name: str) -> None:
    one, row = wait(comm=name, instead=(name, 9)), {Task(name, 1): cell([1], [1])}
    for line in shown(BY, one, report(row, by=PROCESS), report({}, "summary"), by=PROCESS):
        assert line.isprintable()


def test_nothing_is_said_of_what_is_in_flight() -> None:
    waiting = InFlight(TURN.group(0), 5, "wait", {"pid": 1, "tid": 1, "comm": "dd"})
    assert shown(ALL, [waiting])[1:] == shown(ALL, [])[1:] == []


def test_json_has_what_a_row_is_about() -> None:
    one, waited = reported(report({1: cell([1], [1])}), wait())
    assert {(row["dev"], row["op"], row["cpu"]) for row in one["rows"]} == {("cpu1", "turn", 1)}
    assert (waited["kind"], waited["dev"], waited["op"], waited["cpu"]) == ("wait", "cpu1", "turn", 1)
    (line,) = reported(report({Task("dd", 7, 8): cell([1], [1])}, by=THREAD))
    assert {row["dev"] for row in line["rows"]} == {"dd[7/8]"}
    assert line["rows"][0]["task"] == {"comm": "dd", "pid": 7, "tid": 8}
