# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from wptrace.engine.intervals import Interval, clip, gaps, length, subtract, union

examples = settings(max_examples=60, deadline=None)
times = st.integers(0, 30)
intervals = st.lists(st.tuples(times, times), max_size=8)


def instants(some: list[Interval]) -> set[int]:
    return {instant for low, high in some for instant in range(low, high)}


def is_tidy(some: list[Interval]) -> bool:
    """In order, none empty, none touching the next."""
    return all(low < high for low, high in some) and all(a[1] < b[0] for a, b in zip(some, some[1:]))


@examples
@given(intervals, intervals, times, times)
def test_against_sets_of_instants(some: list[Interval], others: list[Interval], start: int, end: int) -> None:
    assert instants(union(some)) == instants(some)
    assert is_tidy(union(some))
    assert length(some) == len(instants(some))
    assert instants(clip(some, start, end)) == instants(some) & set(range(start, end))
    assert all(low < high for low, high in clip(some, start, end))
    assert instants(subtract(some, others)) == instants(some) - instants(others)
    assert is_tidy(subtract(some, others))
    assert instants(gaps(some, start, end)) == set(range(start, end)) - instants(some)


def test_clip_keeps_intervals_apart() -> None:
    assert clip([(0, 5), (3, 9), (9, 12)], 2, 9) == [(2, 5), (3, 9)]
