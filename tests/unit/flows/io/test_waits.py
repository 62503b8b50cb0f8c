# SPDX-License-Identifier: Apache-2.0
"""Waits of owners that leave, which go on in the row of the others."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from wptrace.analysis.waits import COUNT, LIMIT, MACHINE, WAITS
from wptrace.flows.io.parts import waits
from wptrace.flows.io.parts.owners import Owners
from wptrace.flows.io.parts.waits import Waits
from wptrace.kernel.cgroup_names import CgroupNames
from wptrace.model.kind import Comm, Group

_OWNERS = 1000


class Cells:
    """Cells in which each owner waited twice while the limit was 100 pages."""

    def __init__(self) -> None:
        self.counters: dict[Group, Counter[str]] = {}

    def follow(self, row: int, group: Group) -> int:
        self.counters[group] = Counter(waits=2, limit=200, rate=20)
        return row

    def leave(self, number: int) -> None:
        pass

    def fold(self, group: Group, into: Group) -> None:
        self.counters.setdefault(into, Counter()).update(self.counters.pop(group))


def test_limits_of_owners_that_left_are_those_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: Any = SimpleNamespace(cells={"op": SimpleNamespace(counters={})})
    part = Waits(0, counts, Owners("comm", CgroupNames(known={})), ticks=False)
    part._obj = SimpleNamespace(view=lambda name: memoryview(bytearray(8 * _OWNERS)))  # type: ignore[assignment]
    part._waits = cells = Cells()  # type: ignore[assignment]
    for number in range(_OWNERS):
        group = part.kinds[1].group("sda", "write", "dirty_limit", "dirty limit", Comm(f"a{number}"))
        part._rows[number] = waits._Row(cells.follow(number, group), group, (), number)
    monkeypatch.setattr(waits, "_machine_limit", lambda: 100)
    before: dict[Group, Counter[str]] = {}
    part.add_counters(before)
    monkeypatch.setattr(waits, "_machine_limit", lambda: 1)
    folded: dict[Group, int] = {}
    for number in range(_OWNERS):
        part.forget({number}, folded)
    after: dict[Group, Counter[str]] = {}
    part.add_counters(after)
    row = WAITS.group("sda", "write", "dirty_limit", "dirty limit")
    assert after[row] == before[row]
    assert (after[row][COUNT], after[row][MACHINE]) == (2 * _OWNERS, after[row][LIMIT])
    assert (len(folded), len(part._limits)) == (_OWNERS, 1)
