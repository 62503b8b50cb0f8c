# SPDX-License-Identifier: Apache-2.0
"""Owners that come, lead, are overtaken, leave and come back: no total shrinks, and their sum is that of all."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.unit.outputs.samples import OVERHEAD, SECOND, distribution
from wptrace.analysis import leading
from wptrace.analysis.leading import Leading
from wptrace.flows.io.parts.owners import KINDS
from wptrace.model.distribution import Distribution
from wptrace.model.kind import OTHERS, TOTAL, Group
from wptrace.model.report import Snapshot

OPERATION = KINDS["cgroup"][0]


class World:
    """Counts of owners so far, as a flow has them."""

    def __init__(self, top: int) -> None:
        self.leading = Leading(frozenset(KINDS["cgroup"]), top, lambda owner: (owner.partition(".")[0],))
        self.counts: dict[str, list[int]] = {}
        self.folded: dict[Group, int] = {}
        self.seconds = 0

    def pass_by(self, seconds: int, **took: list[int]) -> None:
        self.seconds += seconds
        for owner, values in took.items():
            self.counts.setdefault(owner, []).extend(values)
        cells = {OPERATION.group("sda", "read", owner): {TOTAL: distribution(of)} for owner, of in self.counts.items()}
        counters = {group: {"bytes": 512 * found[TOTAL].count} for group, found in cells.items()}
        current = Snapshot(self.seconds * SECOND, {}, cells, counters, OVERHEAD, dict(self.folded))
        self.leading.add(current)
        assert sum(self.totals().values()) == sum(map(len, self.counts.values()))
        assert sum(found["bytes"] for found in self.leading.counters.values()) == 512 * sum(self.totals().values())

    def fold(self, owner: str) -> None:
        """Fold an owner into the others, as the kernel does when it needs the room."""
        group = OPERATION.group("sda", "read", owner)
        self.counts.setdefault(OTHERS, []).extend(self.counts.pop(owner))
        self.folded[group] = self.folded.get(group, 0) + 1

    def totals(self) -> dict[Any, int]:
        return {group.values[2]: found[TOTAL].count for group, found in self.leading.cells.items()}


def test_the_first_have_totals_of_their_own() -> None:
    world = World(2)
    world.pass_by(1, a=[100] * 3, b=[50], c=[10] * 5)
    assert world.totals() == {("a",): 3, ("b",): 1, OTHERS: 5}
    # c is ahead, but by less than a factor of two.
    world.pass_by(1, c=[15])
    assert world.totals() == {("a",): 3, ("b",): 1, OTHERS: 6}
    world.pass_by(1, c=[100] * 2)
    # Its earlier counts are among the others, and so are those of the owner that it replaced.
    assert world.totals() == {("a",): 3, ("c",): 2, OTHERS: 7}


def test_who_comes_back_begins_with_nothing() -> None:
    world = World(1)
    world.pass_by(1, a=[10])
    world.pass_by(1, b=[1000])
    assert world.totals() == {("b",): 1, OTHERS: 1}
    world.pass_by(7200, a=[10_000] * 2)
    assert world.totals() == {("a",): 2, OTHERS: 2}


def test_several_owners_are_one_where_they_have_one_name() -> None:
    world = World(1)
    world.pass_by(1, **{"a.1": [10], "a.2": [10], "b.1": [15]})
    assert world.totals() == {("a",): 2, OTHERS: 1}


def test_one_that_the_kernel_counts_among_the_others_is_counted_once() -> None:
    world = World(2)
    world.pass_by(1, a=[100] * 3, b=[50])
    world.counts["a"].append(7)
    world.fold("a")
    world.pass_by(1, b=[50])
    assert world.totals() == {("a",): 3, ("b",): 2, OTHERS: 1}


def test_fewer_of_them_are_kept_when_that_is_asked() -> None:
    world = World(3)
    world.pass_by(1, a=[100], b=[50], c=[10])
    world.leading.keep(1)
    assert world.totals() == {("a",): 1, OTHERS: 2}


@pytest.mark.parametrize("seed", range(5))
def test_whatever_the_owners_do_no_total_goes_back(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leading, "_MOST_SCORES", 20)
    rng, world, before = random.Random(seed), World(4), dict[Any, int]()  # noqa: S311
    for _ in range(60):
        busy = rng.sample(range(30), 6)
        world.pass_by(rng.randrange(1, 900), **{f"o{one}.{rng.randrange(2)}": [rng.randrange(1, 5000)] for one in busy})
        now = world.totals()
        assert len(now) <= 5
        assert all(now[who] >= before[who] for who in now.keys() & before.keys())
        before = now
        if rng.random() < 0.3:
            world.fold(rng.choice([one for one in world.counts if one != OTHERS]))
    assert isinstance(next(iter(world.leading.cells.values()))[TOTAL], Distribution)
