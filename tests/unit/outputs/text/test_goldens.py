# SPDX-License-Identifier: Apache-2.0
"""Whole screens, to the letter. Other tests are about their parts.

WPTRACE_TESTS_GOLDEN=write before pytest rewrites them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from tests.unit.outputs import path, test_doctor
from tests.unit.outputs.samples import MS, NOON, Keys, Tty, written
from tests.unit.outputs.text import test_faults, test_periods, test_turns
from wptrace import __version__
from wptrace.analysis.verdict import TIMED, Case, judge
from wptrace.flows.cpu import KINDS, PROCESS
from wptrace.flows.iopf import FAULT
from wptrace.model.kind import Task
from wptrace.model.report import InFlight
from wptrace.outputs import doctor as diagnosis
from wptrace.outputs.registry import Wanted
from wptrace.outputs.text.faults import FaultsView
from wptrace.outputs.text.keyboard import Keyboard
from wptrace.outputs.text.output import TextOutput
from wptrace.outputs.text.periods import PeriodsView
from wptrace.outputs.text.stages import StagesView
from wptrace.outputs.text.turns import TurnsView


def io() -> list[str]:
    summary = path.report(path.cells(interference=True), "summary", lost=5)
    summary = summary._replace(verdict=judge(Case(summary, (path.OPERATION, path.REQUEST)), TIMED))
    story = path.operation(interference=[path.interference("irq_off", 5 * MS)])
    return written(
        StagesView(Wanted(hist="device", statistics=True)),
        path.start(),
        story,
        [path.waiting()],
        path.report(),
        summary,
    )


def io_live() -> list[str]:
    output = TextOutput(Tty(), StagesView(Wanted(live=True, statistics=True)))
    output.start(path.start())
    output.event(path.operation())
    output.event(path.request())
    output.in_flight([path.waiting()], NOON)
    output.interval(path.report(path.cells(interference=True), lost=5))
    try:
        return output._compose()
    finally:
        output.close()


def keyed(*keys: str) -> list[str]:
    """Return the smallest usual screen after these keys."""
    os.environ["COLUMNS"], os.environ["LINES"] = "80", "24"
    output = TextOutput(Tty(), StagesView(Wanted(live=True)))
    output.start(path.start())
    output._keyboard = cast("Keyboard", Keys())
    for count in range(3):
        output.event(path.operation(pid=4711 + count))
    output.interval(path.report(path.cells()))
    try:
        output._press([*keys])
        return output._compose()
    finally:
        output.close()


def keys_tables() -> list[str]:
    return keyed("b", "s", "s", "d")


def keys_rows() -> list[str]:
    return keyed("s", "p", "/", "r", "e", "enter", "down", "down", "down")


def keys_row() -> list[str]:
    return keyed("down", "enter", "left", "left", "left", "left", "left")


def keys_stories() -> list[str]:
    return keyed("tab")


def keys_help() -> list[str]:
    return keyed("?")


def cpu() -> list[str]:
    turn = KINDS[PROCESS][0]
    rows = {Task("fio", 12): test_turns.cell([MS, 9 * MS] * 5, [3 * MS] * 10, [MS] * 9)}
    rows[Task("dd", 7)] = test_turns.cell([MS] * 3, [30 * MS] * 3)
    summary = test_turns.report(rows, "summary", lost=2, by=PROCESS)
    summary = summary._replace(verdict=judge(Case(summary, (turn,)), TIMED))
    results = (test_turns.wait(), test_turns.report(rows, by=PROCESS), summary)
    return written(TurnsView(test_turns.BY), test_turns.start(PROCESS), *results)


def irqoff() -> list[str]:
    worst = {"comm": "dd", "function": "hold", "count": 3, "sum_ns": 80 * MS, "max_ns": 40 * MS}
    summary = test_periods.report({10: [20 * MS], 2: [20 * MS, 40 * MS]}, open_now=1, ring_full=4)
    return written(
        PeriodsView(Wanted()),
        test_periods.START,
        test_periods.period(),
        test_periods.period(40 * MS, stack=[], cpu=2),
        summary._replace(lists={"offenders": [worst]}),
    )


def iopf() -> list[str]:
    cells = {("0000:75:00.0", 5): test_faults.cell([MS, 3 * MS]), ("0000:75:00.0", None): test_faults.cell([MS])}
    stuck: list[InFlight] = [test_faults.open_fault()]
    summary = test_faults.report(cells, failed=1)._replace(lists=test_faults.unanswered(*stuck))
    summary = summary._replace(verdict=judge(Case(summary, (FAULT,)), TIMED))
    return written(
        FaultsView(Wanted(hist="total")), test_faults.START, test_faults.report(cells, "interval"), stuck, summary
    )


def doctor() -> list[str]:
    lines = diagnosis.lines(test_doctor.found(), verbose=True)
    return [line.replace(f"wptrace {__version__} on", "wptrace VERSION on") for line in lines]


SCREENS = (io, io_live, keys_tables, keys_rows, keys_row, keys_stories, keys_help, cpu, irqoff, iopf, doctor)


@pytest.mark.parametrize("screen", SCREENS, ids=lambda screen: screen.__name__)
def test_a_whole_screen_is_as_it_was(screen: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "110")
    monkeypatch.setenv("LINES", "80")
    golden = Path(__file__).with_name("golden") / f"{screen.__name__}.txt"
    text = "\n".join(screen()) + "\n"
    if os.environ.get("WPTRACE_TESTS_GOLDEN") == "write":
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text, encoding="utf-8")
    assert text.splitlines() == golden.read_text(encoding="utf-8").splitlines()
