# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
import statistics
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.outputs import path
from tests.unit.outputs.samples import KIND, group
from wptrace.analysis.history import CAPACITY, History, Sums, _loss
from wptrace.model.distribution import Distribution
from wptrace.model.kind import ALL, Group

SECOND = 1_000_000_000
SDA, SDB = group("sda"), group("sdb")
KEY = SDA.everywhere


class Counters:
    """Counters of a flow and their history, second by second."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.history = History(capacity)
        self.cells: dict[Group, dict[str, Distribution]] = {}
        self.at = 0
        self.history.add(0, {})

    def second(self, *values: int, group: Group = SDA) -> None:
        found = self.cells.setdefault(group, {"device": Distribution(), "total": Distribution()})
        for value in values:
            found["device"].add(value)
            found["total"].add(value)
        self.at += SECOND
        self.history.add(self.at, self.cells)

    @property
    def bounds(self) -> list[tuple[int, int]]:
        return [(one.start_ns // SECOND, one.end_ns // SECOND) for one in self.history.stretches]

    @property
    def sums(self) -> list[int]:
        return [one.of(KEY, "device").sum for one in self.history.stretches]


def test_each_second_holds_what_came_in_it() -> None:
    made = Counters()
    made.second(1, 2)
    made.second()
    made.second(10)
    assert made.bounds == [(0, 1), (1, 2), (2, 3)]
    assert made.sums == [3, 0, 10]
    assert made.history.stretches[0].of(KEY, "device") == Sums(2, 3, 5)
    assert made.history.stretches[1].sums == {}


def test_what_was_counted_before_the_trace_is_not_in_it() -> None:
    made = Counters()
    made.second(7)
    history = History()
    history.add(5, made.cells)
    made.second(8)
    history.add(6, made.cells)
    assert [one.of(KEY, "device").sum for one in history.stretches] == [8]


def test_devices_are_added_up_and_operations_are_not() -> None:
    made = Counters()
    made.second(1)
    made.second(2, group=SDB)
    made.second(4, group=group("sda", "write"))
    made.second(8, group=path.OPERATION.group("sda", "read"))
    assert made.sums == [1, 2, 0, 0]
    keys = [set(one.sums) for one in made.history.stretches]
    assert keys == [{KEY}, {KEY}, {KIND.group(ALL, "write")}, {path.OPERATION.group(ALL, "read")}]


def test_hits_have_no_stages_to_follow() -> None:
    made = Counters()
    made.second(1, group=path.HIT.group("sda", "read"))
    assert made.history.stretches[0].sums == {}


def test_neighbours_that_are_alike_become_one() -> None:
    made = Counters(capacity=3)
    for value in (5, 5, 90, 5, 5):
        made.second(*[value] * 10)
    assert made.bounds == [(0, 2), (2, 3), (3, 5)]
    assert made.sums == [100, 900, 100]


def test_a_short_change_is_kept_through_hours() -> None:
    made = Counters()
    for second in range(3 * 3600):
        slow = 4000 <= second < 4020
        made.second(*[(9_000 if slow else 1_000) + second % 7 * 10] * 3)
    inside = [one for one in made.history.stretches if one.of(KEY, "device").mean > 5_000]
    assert len(made.history.stretches) == CAPACITY
    assert (inside[0].start_ns, inside[-1].end_ns) == (4000 * SECOND, 4020 * SECOND)


def test_idle_hours_leave_one_stretch() -> None:
    made = Counters(capacity=4)
    made.second(5)
    for _ in range(1000):
        made.second()
    made.second(6)
    assert len(made.history.stretches) == 4
    assert sum(made.sums) == 11
    assert made.bounds[0][0] == 0
    assert made.bounds[-1][1] == 1002


def test_of_those_that_are_as_much_alike_the_shortest_become_one() -> None:
    made = Counters(capacity=4)
    for _ in range(16):
        made.second()
    assert max(end - start for start, end in made.bounds) <= 8


@given(st.lists(st.integers(0, 1 << 40), max_size=40), st.integers(1, 6))
def test_what_a_merge_would_lose_is_known_of_all_neighbours(values: list[int], capacity: int) -> None:
    made = Counters(capacity)
    for value in values:
        made.second(value, value // 2)
    found = made.history.stretches
    assert made.history._losses == [_loss(first, second) for first, second in zip(found, found[1:])]


@given(
    st.lists(st.lists(st.integers(0, 1 << 50), max_size=4), max_size=40),
    st.integers(1, 8),
)
def test_merging_loses_no_time_and_no_sample(seconds: list[list[int]], capacity: int) -> None:
    made = Counters(capacity)
    for values in seconds:
        made.second(*values)
    stretches = made.history.stretches
    assert len(stretches) == min(len(seconds), capacity)
    assert [one.end_ns for one in stretches[:-1]] == [one.start_ns for one in stretches[1:]]
    flat = [value for values in seconds for value in values]
    whole = Sums()
    for one in stretches:
        whole = whole.plus(one.of(KEY, "device"))
    assert whole == Sums(len(flat), sum(flat), sum(value * value for value in flat))


def size(value: Any) -> int:
    """Return the memory of nested containers."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return sys.getsizeof(value) + sum(map(size, inner))


def test_hours_take_no_more_memory_than_minutes() -> None:
    made = Counters()
    sizes = []
    for second in range(8 * 3600):
        made.second(second * 7919 % 10_000)
        if second in (600, 8 * 3600 - 1):
            sizes.append(size(made.history.stretches) + size(made.history._losses))
    assert sizes[1] < sizes[0] * 1.1


@pytest.mark.parametrize("values", [[5], [1, 2, 3, 4, 100], [7] * 10])
def test_the_error_is_that_of_the_mean(values: list[int]) -> None:
    sums = Sums(len(values), sum(values), sum(value * value for value in values))
    assert sums.mean == statistics.fmean(values)
    assert sums.error == pytest.approx(statistics.pstdev(values) / math.sqrt(len(values)))


def test_nothing_has_no_mean_and_no_certainty() -> None:
    assert Sums().mean == 0.0
    assert Sums().error == math.inf
