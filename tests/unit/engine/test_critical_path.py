# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from wptrace.engine.critical_path import CriticalPath
from wptrace.engine.intervals import clip, length
from wptrace.engine.span import Span

examples = settings(max_examples=60, deadline=None)
times = st.integers(0, 40)
names = st.sampled_from(["", "fs", "queue", "device", "wakeup"])


def make(start: int, end: int, stage: str, children: list[Span]) -> Span:
    return Span(stage, start, end, stage, children=children)


leaves = st.builds(make, times, times, names, st.just([]))
trees = st.recursive(
    leaves, lambda below: st.builds(make, times, times, names, st.lists(below, max_size=5)), max_leaves=25
)
operations = st.builds(make, st.integers(0, 15), st.integers(15, 40), names, st.lists(trees, max_size=6))


def path(*children: Span, end: int = 100) -> list[tuple[int, int, str]]:
    operation = Span("read", 0, end, children=children)
    return [(segment.start_ns, segment.end_ns, segment.stage) for segment in CriticalPath(operation).segments]


def stage(name: str, start: int, end: int, *children: Span) -> Span:
    return Span(name, start, end, name, children=children)


def box(start: int, end: int, *children: Span) -> Span:
    return Span("request", start, end, children=children)


@examples
@given(operations)
def test_every_nanosecond_is_charged_once(operation: Span) -> None:
    whole = CriticalPath(operation)
    assert sum(whole.charges.values()) + whole.unattributed == operation.duration_ns
    assert all(charge > 0 for charge in whole.charges.values())
    assert whole.unattributed >= 0
    now = operation.start_ns
    for segment in whole.segments:
        assert segment.start_ns == now < segment.end_ns
        assert segment.span.start_ns <= segment.start_ns
        assert segment.span.end_ns >= segment.end_ns
        now = segment.end_ns
    if whole.segments:
        assert now == operation.end_ns
    own = [segment for segment in whole.segments if segment.span is operation]
    assert [(segment.start_ns, segment.end_ns) for segment in own] == operation.uncovered()


@examples
@given(operations, st.randoms(use_true_random=False))
def test_the_order_of_children_does_not_matter(operation: Span, chance: random.Random) -> None:
    before = CriticalPath(operation)
    for span in operation.walk():
        chance.shuffle(span.children)
    after = CriticalPath(operation)
    assert (after.charges, after.unattributed) == (before.charges, before.unattributed)


def test_nor_does_that_of_twins() -> None:
    """They differ in what is below them alone."""
    twins = [make(1, 2, "device", []), make(1, 2, "device", [make(0, 2, "", [])])]
    found = [CriticalPath(make(0, 15, "", order)) for order in (twins, twins[::-1])]
    assert found[0].charges == found[1].charges


@examples
@given(operations, st.lists(st.tuples(times, times), max_size=5))
def test_interference_is_a_share_of_the_charges(operation: Span, taken: list[tuple[int, int]]) -> None:
    whole = CriticalPath(operation)
    inside = whole.inside(taken)
    assert sum(inside.values()) == length(clip(taken, operation.start_ns, operation.end_ns))
    assert all(0 < share <= whole.charges.get(name, whole.unattributed) for name, share in inside.items())


def test_nothing_below() -> None:
    assert path() == [(0, 100, "")]
    assert path(end=0) == []
    assert CriticalPath(Span("x", 0, 9, "fs")).charges == {"fs": 9}


def test_stages_in_a_row() -> None:
    assert path(stage("fs", 0, 10), stage("device", 10, 90), stage("return", 95, 100)) == [
        (0, 10, "fs"),
        (10, 90, "device"),
        (90, 95, ""),
        (95, 100, "return"),
    ]


def test_the_last_of_several_requests_is_what_was_waited_for() -> None:
    first = box(10, 40, stage("queue", 10, 15), stage("device", 15, 40))
    last = box(12, 90, stage("queue", 12, 60), stage("device", 60, 90))
    assert path(stage("fs", 0, 12), first, last, stage("wakeup", 90, 100)) == [
        (0, 12, "fs"),
        (12, 60, "queue"),
        (60, 90, "device"),
        (90, 100, "wakeup"),
    ]


def test_what_ended_just_before_made_the_rest_possible() -> None:
    # The other request runs at 30 too, but it was the file system that then submitted the last one.
    other = stage("device", 5, 35)
    assert path(other, stage("fs", 0, 30), stage("queue", 30, 100)) == [(0, 30, "fs"), (30, 100, "queue")]


def test_of_two_wakeups_the_one_of_the_last_request() -> None:
    assert path(stage("device", 0, 10), stage("wakeup", 10, 100), stage("device", 0, 90), stage("wakeup", 90, 100)) == [
        (0, 90, "device"),
        (90, 100, "wakeup"),
    ]


def test_a_request_that_still_runs_fills_a_gap() -> None:
    assert path(stage("device", 0, 60), stage("queue", 50, 100)) == [(0, 50, "device"), (50, 100, "queue")]


def test_a_stage_gives_way_to_its_children() -> None:
    assert path(stage("device", 0, 100, stage("hardirq", 30, 40))) == [
        (0, 30, "device"),
        (30, 40, "hardirq"),
        (40, 100, "device"),
    ]


def test_children_are_clipped_to_the_operation() -> None:
    assert path(stage("device", -50, 30), stage("writeback", 60, 500)) == [
        (0, 30, "device"),
        (30, 60, ""),
        (60, 100, "writeback"),
    ]


def test_spans_without_length_or_backwards_are_nothing() -> None:
    assert path(stage("fs", 50, 50), stage("queue", 60, 40)) == [(0, 100, "")]


def test_inside_names_the_stage() -> None:
    whole = CriticalPath(box(0, 100, stage("device", 0, 60), stage("wakeup", 80, 100)))
    assert whole.inside([(50, 70), (65, 90)]) == {"device": 10, "": 20, "wakeup": 10}
    assert whole.inside([]) == {}


def test_thousands_of_requests() -> None:
    children = [stage("device", start, start + 50) for start in range(5000)]
    assert CriticalPath(box(0, 5049, *children)).charges == {"device": 5049}
