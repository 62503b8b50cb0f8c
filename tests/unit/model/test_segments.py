# SPDX-License-Identifier: Apache-2.0
"""When something was in each of its stages, and what is shown if only sums are known."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.unit.outputs import path
from wptrace.model.report import Event, Segment
from wptrace.model.segments import is_timed, order, segments


def sums(found: list[Segment]) -> Counter[str]:
    at = 0
    took: Counter[str] = Counter()
    for one in found:
        assert one.from_ns == at
        at = one.to_ns
        took[one.stage] += one.to_ns - one.from_ns
    return took


def test_known_ones_stand_where_they_were() -> None:
    event = path.in_time()
    found = list(segments(event))
    assert found == event.segments
    assert [one.stage for one in found].count("device") == 2
    assert sums(found) == +Counter(path.USUAL)
    assert (is_timed(event), order(event)) == (True, "")


def test_behind_them_is_what_is_left_of_each_stage() -> None:
    event = path.in_time()
    cut = event._replace(segments=event.segments[:5], more=len(event.segments) - 5)
    found = list(segments(cut))
    assert found[:5] == event.segments[:5]
    assert sums(found) == +Counter(path.USUAL)
    assert order(cut) == "the last 9 stretches of it in order of stages, not of time"


@pytest.mark.parametrize(
    ("event", "timed"),
    [
        (path.operation(), True),
        (path.operation(requests=3), False),
        (path.operation()._replace(stages={**path.USUAL, "journal": 5}), False),
        (path.operation(requests=0)._replace(stages={"fs": 5}), True),
        (path.request(), True),
    ],
)
def test_sums_are_in_order_of_stages(event: Event, timed: bool) -> None:
    known = {name: ns for name, ns in event.stages.items() if name in event.group.kind}
    assert sums(list(segments(event))) == +Counter(known)
    assert is_timed(event) == timed
    assert order(event) == ("" if timed else "in order of stages, not of time")
