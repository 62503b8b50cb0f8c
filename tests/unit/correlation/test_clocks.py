# SPDX-License-Identifier: Apache-2.0
"""The true offset of two clocks is within the computed bounds, however they drift."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wptrace.correlation.clocks import WANDER_PPM, Bound, Offset, agreed, elected

STEPS = st.integers(1, 10**9)
SLACK = st.integers(0, 10**7)


@st.composite
def clocks(draw: st.DrawFn, least: int = 1) -> list[tuple[int, int, int, int]]:
    """Draw times of the first clock, the true offset at each, and how far the bounds are below and above it."""
    at, offset, found = draw(st.integers(0, 10**12)), draw(st.integers(-(10**15), 10**15)), []
    for _ in range(draw(st.integers(least, 40))):
        step = draw(STEPS)
        at += step
        most = step * WANDER_PPM // 1_000_000
        offset += draw(st.integers(-most, most))
        found.append((at, offset, draw(SLACK), draw(SLACK)))
    return found


def bounds(true: Sequence[tuple[int, int, int, int]]) -> list[Bound]:
    return [Bound(at, offset - below, offset + above) for at, offset, below, above in true]


@given(clocks())
def test_the_true_offset_is_among_the_possible_ones(true: list[tuple[int, int, int, int]]) -> None:
    given_bounds = bounds(true)
    found = Offset(given_bounds)
    assert len(found) == len(true)
    for (at, offset, _, _), bound in zip(true, given_bounds):
        there = found.at(at)
        assert there.least <= offset <= there.most
        assert there.width <= bound.width


@given(clocks(least=2), st.data())
def test_so_it_is_between_two_that_are_known(true: list[tuple[int, int, int, int]], data: st.DataObject) -> None:
    place = data.draw(st.integers(1, len(true) - 1))
    at, offset, _, _ = true[place]
    found = Offset(bounds(true[:place] + true[place + 1 :]))
    assert found.at(at).least <= offset <= found.at(at).most


@given(clocks(least=2))
def test_the_drift_is_among_the_possible_ones(true: list[tuple[int, int, int, int]]) -> None:
    drift = Offset(bounds(true)).drift_ppm
    assert drift is not None
    real = (true[-1][1] - true[0][1]) * 1e6 / (true[-1][0] - true[0][0])
    assert drift[0] - 1e-6 <= real <= drift[1] + 1e-6


@given(clocks(), st.lists(st.tuples(st.integers(0, 10**12), st.integers(10**16, 10**17)), max_size=3))
def test_false_ones_that_are_fewer_are_found(
    true: list[tuple[int, int, int, int]], false: list[tuple[int, int]]
) -> None:
    right = bounds(true)
    # Each false one is alone, so two true ones outvote it.
    wrong = [
        Bound(true[0][0] + at, offset * (place + 1), offset * (place + 1)) for place, (at, offset) in enumerate(false)
    ]
    if len(right) < 2:
        return
    found, others = agreed(right + wrong)
    assert sorted(found) == sorted(right)
    assert others == len(wrong)


def test_what_cannot_be_is_no_voter() -> None:
    assert agreed([Bound(0, 5, 4), Bound(0, 1, 9)]) == ([Bound(0, 1, 9)], 1)
    most = [Bound(0, 100, 110)] * 3
    assert agreed([*most, *[Bound(0, 0, 10)] * 2, *[Bound(0, 200, 50)] * 2]) == (most, 4)


def test_neighbours_in_time_vote_and_no_others() -> None:
    """Of a moment four minutes away, all that is less than 120 ms off may be true."""
    second = 10**9
    right = [Bound(at * second, 0, 0) for at in (*range(0, 512, 2), *range(1, 512, 2))]
    found, others = agreed([*right, Bound(500 * second, second // 10, second // 10)])
    assert (sorted(found), others) == (sorted(right), 1)


@pytest.mark.parametrize(
    ("bounds", "common"),
    [
        ([(0, 10)], (0, 10)),
        ([(0, 10), (5, 20), (8, 9)], (8, 9)),
        ([(0, 10), (5, 20), (100, 101)], (5, 10)),
        ([(0, 10), (2, 3), (50, 90), (60, 61), (70, 75)], (2, 3)),
        ([(0, 10), (20, 29), (40, 43), (50, 60)], (40, 43)),
        ([(0, 0), (0, 0)], (0, 0)),
    ],
)
def test_most_of_them_elect(bounds: list[tuple[int, int]], common: tuple[int, int]) -> None:
    assert elected([Bound(7, *one) for one in bounds])[1:] == common


def test_two_clocks_of_one_moment_have_no_drift() -> None:
    assert Offset([Bound(5, 0, 9)]).drift_ppm is None


def test_an_offset_far_from_all_that_is_known_is_less_certain() -> None:
    found = Offset([Bound(0, -5, 5)])
    assert found.at(10**9) == Bound(10**9, -5 - WANDER_PPM * 1000, 5 + WANDER_PPM * 1000)
    found = Offset([Bound(0, -5, 5), Bound(4000, 2, 9)])
    assert found.at(-2000) == Bound(-2000, -1, 6)
    assert found.at(6000) == Bound(6000, 1, 8)
    assert found.widths == [5, 5]


def test_what_cannot_be_beside_the_one_before_is_left_out() -> None:
    found = Offset([Bound(0, 0, 5), Bound(10, 50, 60), Bound(20, 2, 90)])
    assert list(found.bounds) == [Bound(0, 1, 5), Bound(20, 2, 6)]
