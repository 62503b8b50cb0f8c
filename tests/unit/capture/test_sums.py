# SPDX-License-Identifier: Apache-2.0
"""Reports of a part of a capture equal those that a trace of that part would have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.capture.made import report
from wptrace.capture import sums
from wptrace.flows.io.kinds import KINDS, OPERATION
from wptrace.flows.io.options import COMM
from wptrace.flows.io.parts.owners import KINDS as OWNERS
from wptrace.model.book import Book
from wptrace.model.distribution import Distribution
from wptrace.model.kind import OPERATIONS, OTHERS, REQUESTS, TOTAL, Comm, Group
from wptrace.model.report import BYTES, Event, Report, arranged

times = st.lists(st.integers(0, 1 << 50) | st.integers(0, 40), min_size=1, max_size=60)
GROUP = OPERATION.group("sda", "read")


def figures(found: Distribution) -> list[object]:
    return [getattr(found, name) for name in ("count", "sum", "sumsq", "min", "max", "buckets", "exact")]


@given(times)
def test_singles_add_up_as_a_distribution_does(values: list[int]) -> None:
    found = sums.Singles(KINDS)
    expected = Distribution()
    for value in values:
        found.add(Event(GROUP, value, value, {"fs": value}, {"length": 1, "result": 4096}))
        expected.add(value)
    made = found.report(1, 1, {REQUESTS: Book(), OPERATIONS: Book()})
    stages = made.cells[GROUP]
    assert figures(stages["fs"]) == figures(stages["total"]) == figures(expected)
    assert (made.books[OPERATIONS].finished, made.bytes) == (len(values), 0)
    assert made.counters[GROUP]["bytes"] == 4096 * len(values)


@given(st.lists(times, min_size=2, max_size=5))
def test_intervals_add_up_to_the_whole_and_to_its_rest(parts: list[list[int]]) -> None:
    of_all, of_some = sums.Intervals(), sums.Intervals()
    for at, numbers in enumerate(parts):
        of_all.add(report("interval", numbers, at, 5))
        if at + 1 < len(parts):
            of_some.add(report("interval", numbers, at, 5))
    whole = report("summary", [one for numbers in parts for one in numbers], len(parts) - 1, 5 * len(parts))
    found = of_all.report(KINDS)
    assert figures(found.cells[GROUP]["total"]) == figures(whole.cells[GROUP]["total"])
    assert found.books[OPERATIONS].finished == whole.books[OPERATIONS].finished
    assert (found.duration_ns, found.counters) == (whole.duration_ns, whole.counters)
    rest = of_some.rest(whole, KINDS)
    last = rest.cells[GROUP]["total"]
    assert (last.count, last.sum, rest.duration_ns) == (len(parts[-1]), sum(parts[-1]), 5)
    assert rest.books[OPERATIONS].finished == len(parts[-1])


def test_lists_of_everything_are_not_of_a_part() -> None:
    whole = report("summary", [1, 2], 0, 5)._replace(lists={"unanswered": [{"dev": "another"}]})
    assert sums.part(whole, KINDS, lambda _: True, {}).lists == {}


OWNED = OWNERS[COMM][0]


def owned(kind: str, at: int, **times: int) -> Report:
    """Make a report with this many operations of 1000 ns for each owner."""

    def group(name: str) -> Group:
        return OWNED.group("sda", "read", OTHERS if name == "others" else Comm(name))

    def stages(count: int) -> dict[str, Distribution]:
        found = Distribution()
        for _ in range(count):
            found.add(1000)
        return {TOTAL: found}

    cells = {group(name): stages(count) for name, count in times.items()}
    counters = {group(name): {BYTES: 512 * count} for name, count in times.items()}
    return report(kind, [], at, 5)._replace(cells=arranged(cells, [OWNED]), counters=counters)


@pytest.mark.parametrize(
    ("intervals", "whole", "left"),
    [
        ([{"dd": 4, "others": 1}, {"dd": 2}], {"dd": 9, "others": 3}, {"dd": 3, "others": 2}),
        # dd left, and the others have its counts.
        ([{"dd": 4, "others": 1}, {"cp": 2}], {"cp": 2, "others": 8}, {"others": 3}),
        # dd left after the first interval, and came back in the second.
        ([{"dd": 4, "others": 1}, {"dd": 2}], {"dd": 2, "others": 8}, {"others": 3}),
    ],
)
def test_the_rest_of_owners_that_left(
    intervals: list[dict[str, int]], whole: dict[str, int], left: dict[str, int]
) -> None:
    found = sums.Intervals()
    for at, times in enumerate(intervals):
        found.add(owned("interval", at, **times))
    rest = found.rest(owned("summary", 9, **whole), [OWNED])
    cells = rest.cells
    assert {str(group.values[-1]): stages[TOTAL].count for group, stages in cells.items()} == left
    assert {str(group.values[-1]): counts[BYTES] // 512 for group, counts in rest.counters.items()} == left
    assert not any(stages[TOTAL].shrunk for stages in cells.values())
