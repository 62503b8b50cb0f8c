# SPDX-License-Identifier: Apache-2.0
"""Two levels, one of which sees more of a request: compared between the points that both see."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from tests.unit.analysis.made_sides import SECOND, compared, seeded
from wptrace.analysis import measured
from wptrace.analysis.condition import judge, parse
from wptrace.analysis.diff import Side
from wptrace.analysis.measured import Stretch
from wptrace.analysis.points import narrowed, narrowing
from wptrace.analysis.split import Sums
from wptrace.flows.io import block, kinds
from wptrace.model.book import Book
from wptrace.model.distribution import Distribution
from wptrace.model.kind import REQUESTS, TOTAL, Kind
from wptrace.model.report import BYTES, Overhead, Report, Source, Start

PATH, BLOCK = kinds.REQUEST, block.REQUEST
_QUICK = {"throttle": 2_000, "queue": 3_000, "driver": 4_000, "device": 90_000, "complete": 1_000}


def side(
    kind: Kind, level: str, rand: random.Random, times: Mapping[str, int], mixed: Mapping[str, str] | None = None
) -> Side:
    """Requests over ten seconds with times around these. The level `block` only has stages of its own."""
    parts = {"device": ("driver", "device", "complete")} if kind is BLOCK else {}
    stretches, whole = [], Distributions(kind)
    for second in range(10):
        mine = Distributions(kind)
        for _ in range(200):
            drawn = {name: round(ns * rand.lognormvariate(0.0, 0.1)) for name, ns in times.items()}
            taken = {
                stage.name: sum(drawn.get(name, 0) for name in parts.get(stage.name, (stage.name,)))
                for stage in kind.stages
            }
            for into in (mine, whole):
                into.add({**taken, TOTAL: sum(taken.values())})
        classes = measured.classes(mine.cells, mine.counters, kind)
        stretches.append(Stretch((second + 1) * SECOND, SECOND, classes))
    report = Report(
        "summary", 10 * SECOND, 10 * SECOND, {REQUESTS: Book()}, whole.cells, whole.counters, Overhead(0, 0, 0, 0, 0, 0)
    )
    sources = [Source(stage.name, "tp") for stage in kind.stages if times.get(stage.name)]
    start = Start("io", level, "6.12.0", {"dev": ["sda"]}, sources, (kind,), [])
    found = measured.Measured(
        kind,
        measured.labels_of(kind),
        measured.columns_of(kind),
        measured.classes(whole.cells, whole.counters, kind),
        stretches,
    )
    return Side(f"{level}.wpt", start, report, SECOND, {kind.name: found}, mixed=mixed or {})


class Distributions:
    def __init__(self, kind: Kind) -> None:
        group = kind.group("sda", "read")
        self._found = {name: Distribution() for name in (*(stage.name for stage in kind.stages), TOTAL)}
        self.cells = {group: self._found}
        self.counters = {group: {BYTES: 0}}

    def add(self, times: dict[str, int]) -> None:
        for name, ns in times.items():
            self._found[name].add(ns)


def test_stages_of_one_level_cover_those_of_the_other() -> None:
    found = narrowing(PATH, BLOCK)
    assert found is not None
    assert found.parts == {"queue": ["queue"], "device": ["driver", "device", "complete"]}
    assert narrowing(BLOCK, PATH) is None
    # A kind with nothing in common.
    assert narrowing(BLOCK, kinds.LAYER) is None


def before_and_after(times: Mapping[str, int]) -> list[Sums]:
    """Return requests of the level `path` before and after what `block` does not see is left out."""
    way = narrowing(PATH, BLOCK)
    assert way is not None
    whole = side(PATH, "path", seeded(1), times).measured["request"]
    found = narrowed(whole, way)
    assert found.columns == ("queue", "device", "rest")
    return [sums for one in (whole, found) for sums in one.classes["read"].values()]


def test_times_before_the_first_common_point_are_left_out() -> None:
    before, after = before_and_after(_QUICK)
    assert after.times == [before.times[0] - before.times[1], before.times[2], sum(before.times[3:6]), 0]
    assert after.count == before.count
    # The spread of the total without one of its parts is unknown.
    assert not after.buckets
    assert before.buckets
    assert after.squares[1] == pytest.approx(before.squares[2])
    # At least the largest that it can be.
    assert after.squares[0] >= before.squares[4]
    assert after.squares[0] <= sum(ns**0.5 for ns in before.squares[2:6]) ** 2 * 1.001


def test_what_left_nothing_out_keeps_its_histogram() -> None:
    before, after = before_and_after({"queue": 3_000, "device": 90_000})
    assert (after.buckets, after.squares[0]) == (before.buckets, before.squares[0])


@pytest.mark.parametrize("swapped", [False, True])
def test_the_same_requests_of_two_levels_are_alike(swapped: bool) -> None:
    a, b = side(PATH, "path", seeded(1), _QUICK), side(BLOCK, "block", seeded(2), _QUICK)
    found = compared(*((b, a) if swapped else (a, b)))
    assert found.found == 0
    (change,) = found.changes
    assert set(change.figures) == {"mean", "rate", "queue", "device"}
    assert change.figures["mean"].a == pytest.approx(98_000, rel=0.02)
    assert change.figures["mean"].b == pytest.approx(98_000, rel=0.02)
    (said,) = [one for one in found.unlike if "request" in one.what]
    assert said.therefore == "compared from G to C, with driver and complete in device"
    outcome = judge(parse("request.read.p99 > +20%"), found)
    assert (outcome.figure, outcome.why) == (None, "only sums are known of one side, and no p99")
    # Rows that both have: none is new or gone.
    (pair,) = found.pairs
    assert pair.kind is BLOCK
    assert [None if cells is None else round(cells[TOTAL].mean, -4) for cells in (pair.a, pair.b)] == [100_000] * 2


def test_a_slower_device_is_found_across_levels() -> None:
    slow = {**_QUICK, "throttle": 900_000, "device": 120_000}
    found = compared(side(BLOCK, "block", seeded(1), _QUICK), side(PATH, "path", seeded(2), slow))
    (change,) = found.changes
    assert {name for name, figure in change.figures.items() if figure.real} == {"mean", "device"}
    assert change.figures["mean"].change == pytest.approx(30_000, rel=0.1)
    assert change.split.of("same") == change.split.b_ns - change.split.a_ns


def test_a_difference_of_the_tracer_itself_is_no_finding() -> None:
    """One level sees a point some hundred nanoseconds later than the other."""
    later = {**_QUICK, "queue": 3_700}
    found = compared(side(PATH, "path", seeded(1), _QUICK), side(BLOCK, "block", seeded(2), later))
    assert found.found == 0
    found = compared(side(PATH, "path", seeded(1), _QUICK), side(PATH, "path", seeded(2), later))
    assert found.changes[0].figures["queue"].real


def test_a_stage_with_one_stamp_for_many_requests_is_part_of_the_next() -> None:
    """The kernel's stamps (since 6.9) count the time in the plug as `device`."""
    stamped = {**_QUICK, "queue": 100, "device": 92_900}
    own = side(BLOCK, "block", seeded(1), _QUICK)
    found = compared(own, side(BLOCK, "block", seeded(2), stamped, mixed={"queue": "device"}))
    assert found.joined == {"queue": "device"}
    assert found.found == 0
    assert [(one.a, one.b) for one in found.unlike if one.what == "stage queue"] == [("observed", "partly in device")]
    # Without the note both stages have changed.
    found = compared(own, side(BLOCK, "block", seeded(2), stamped))
    assert found.changes[0].figures["queue"].real


def test_a_stage_that_has_the_time_of_another_one_on_one_kernel_is_compared_with_it() -> None:
    """Since 6.9 a short wait for a request is part of `queue`."""
    old, new = {**_QUICK, "throttle": 4_000}, {**_QUICK, "throttle": 400, "queue": 6_600}
    a, b = side(PATH, "path", seeded(1), old), side(PATH, "path", seeded(2), new, {"throttle": "queue"})
    found = compared(a, b)
    assert (found.joined, found.found) == ({"throttle": "queue"}, 0)
    assert [(one.what, one.a, one.b) for one in found.unlike] == [("stage throttle", "observed", "partly in queue")]
    # If both are on a new kernel, the longer wait is in both stages.
    found = compared(a._replace(mixed=b.mixed), b)
    assert found.joined == {}
    assert {name for name, one in found.changes[0].figures.items() if one.real} == {"throttle", "queue"}
    # If one level does not see the stage, there is nothing to join.
    assert compared(b, side(BLOCK, "block", seeded(3), _QUICK)).joined == {}
