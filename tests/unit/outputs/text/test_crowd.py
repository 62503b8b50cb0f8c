# SPDX-License-Identifier: Apache-2.0
"""A live screen of 20 devices and 50 owners, at common sizes of terminals."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from typing import cast

import pytest

from tests.unit.outputs import path
from tests.unit.outputs.samples import MS, NOON, SECOND, Keys, Tty, distribution
from wptrace.analysis.load import BUSY_MS, LOAD, READS, STAMPED
from wptrace.analysis.verdict import TIMED, Case, judge
from wptrace.flows.io.options import PROCESS
from wptrace.flows.io.parts.owners import KINDS
from wptrace.model.kind import TOTAL, Task
from wptrace.model.report import Report, arranged
from wptrace.outputs.registry import Wanted
from wptrace.outputs.text.keyboard import Keyboard
from wptrace.outputs.text.output import TextOutput
from wptrace.outputs.text.stages import StagesView
from wptrace.outputs.text.words import columns

OPERATIONS, _, REQUESTS = KINDS[PROCESS][:3]
SHOWN = (*path.KINDS, OPERATIONS, REQUESTS)


@cache
def interval(at: int) -> Report:
    cells = {group: found for dev in range(20) for group, found in path.cells(f"nvme{dev}n1").items()}
    counters = {LOAD.group(f"nvme{dev}n1"): Counter({READS: 1, STAMPED: 1, BUSY_MS: 50 * dev}) for dev in range(20)}
    for owner in range(50):
        took, task = distribution([(owner + 1) * MS] * 3), Task(f"worker{owner}", 4000 + owner)
        cells[OPERATIONS.group("nvme0n1", "read", task)] = {TOTAL: took}
        cells[REQUESTS.group("nvme0n1", "read", task)] = {"under_way": took, TOTAL: took}
    made = path.report({})._replace(cells=arranged(cells, SHOWN), counters=counters, ts_ns=NOON + at * SECOND)
    return made._replace(verdict=judge(Case(made, (path.OPERATION, path.REQUEST)), TIMED))


def screen(monkeypatch: pytest.MonkeyPatch, wide: int, high: int) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(wide))
    monkeypatch.setenv("LINES", str(high))
    output = TextOutput(Tty(), StagesView(Wanted(live=True)))
    output.start(path.start()._replace(filters={"by": PROCESS}, kinds=SHOWN))
    output._keyboard = cast("Keyboard", Keys())
    try:
        for at in range(3):
            output.interval(interval(at))
        return output._compose()
    finally:
        output.close()


@pytest.mark.parametrize(("wide", "high", "owners"), [(80, 24, 2), (120, 40, 5), (200, 50, 5)])
def test_what_was_asked_for_is_there(monkeypatch: pytest.MonkeyPatch, wide: int, high: int, owners: int) -> None:
    lines = screen(monkeypatch, wide, high)
    assert len(lines) == high
    assert max(map(columns, lines)) <= wide
    assert any(line.startswith("devices: nvme19n1 95.0% busy") for line in lines)
    assert any(line.startswith("verdict: device takes 87%") for line in lines)
    assert any(line.startswith("read: 10,000 operations") for line in lines)
    # Owners that used the device most; rows without time make room for them.
    at = next(at for at, line in enumerate(lines) if line.startswith("block requests by process"))
    named = re.findall(r"^(worker\d+)\[", "\n".join(lines[at + 1 : at + 1 + owners]), re.M)
    assert named == [f"worker{number}" for number in range(49, 49 - owners, -1)]
    assert not any(line.startswith("  throttle ") for line in lines)
    # Keys are never cut.
    assert re.fullmatch(r"\S+:\S+(?: \S+:\S+)*", lines[-1])
    assert lines[-1].startswith("?:help q:quit ")


def test_a_wide_screen_has_two_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = screen(monkeypatch, 200, 50)
    (both,) = (line for line in lines if line.startswith("read: 10,000 operations"))
    assert "write: 2,400 operations" in both
