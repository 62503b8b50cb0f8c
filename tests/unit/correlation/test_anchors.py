# SPDX-License-Identifier: Apache-2.0
"""Bounds of the offset between the clocks of two machines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wptrace.correlation.anchors import bounds, narrowed
from wptrace.correlation.clocks import Bound, Offset
from wptrace.model.anchor import Anchor, Outer

DAY, AHEAD = 1_700_000_000 * 10**9, 5 * 10**12


@given(
    st.integers(0, 10**14),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.integers(-(10**12), 10**12),
    st.integers(0, 900_000),
    st.booleans(),
)
def test_the_clock_of_ptp_shows_the_true_offset(
    at: int, first: int, second: int, wrong: int, slewed: int, after: bool
) -> None:
    """However wrong the time of day of both is, and also while the host's is put right."""
    host = [Anchor(at + AHEAD, DAY + wrong), Anchor(at + AHEAD + 99, DAY + wrong + 99 + slewed)]
    outer = Outer(DAY + wrong + (slewed if after else 0), at - first, at + second)
    (found,) = bounds([Anchor(at, 1234, None, outer)], host)
    moved = found.after(at)
    assert moved.least <= AHEAD <= moved.most
    assert first + second + slewed <= found.width < first + second + slewed + 100_000


@given(st.integers(-(10**6), 10**6), st.integers(-(10**6), 10**6))
def test_times_of_day_that_are_kept_right(ours: int, theirs: int) -> None:
    host = [Anchor(AHEAD, DAY + theirs, 10**7), Anchor(AHEAD, DAY + theirs, 10**6), Anchor(AHEAD, DAY + theirs)]
    (found,) = bounds([Anchor(7, DAY + 7 + ours, 10**6)], host)
    assert found.least <= AHEAD <= found.most
    # Both errors, and a step of one of them that is no step yet, to both sides.
    assert found.width == 2 * (2 * 10**6 + 10**6)


def test_what_says_nothing() -> None:
    right, unknown = Anchor(7, DAY, 1000), Anchor(7, DAY)
    assert bounds([unknown], [right]) == bounds([right], [unknown]) == bounds([right], []) == bounds([], [right]) == []
    # The host's time of day was stepped meanwhile.
    assert bounds([right], [right, Anchor(8, DAY + 10**9, 1000)]) == []
    # An anchor with an error of a second tells nothing.
    assert bounds([right], [Anchor(7, DAY, 10**9)]) == []
    assert bounds([Anchor(7, DAY, None, Outer(DAY, 9, 7))], [right]) == []


def test_the_data_wins() -> None:
    known = Offset([Bound(100, 1000, 2000), Bound(200, 1100, 2100)])
    narrow, agree, contradict = narrowed(known, [Bound(150, 1400, 1500), Bound(150, 5000, 6000)])
    assert (agree, contradict) == (1, 1)
    assert 1400 <= narrow.at(150).least <= narrow.at(150).most <= 1500
    # Of two that contradict each other the data tells nothing.
    narrow, agree, contradict = narrowed(known, [Bound(150, 1400, 1450), Bound(150, 1500, 1550)])
    assert (agree, contradict, narrow.at(150)) == (2, 0, Bound(150, 1400, 1450))
    same, agree, contradict = narrowed(known, [Bound(150, 5000, 6000)])
    assert (same, agree, contradict) == (known, 0, 1)
