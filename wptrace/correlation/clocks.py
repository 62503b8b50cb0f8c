# SPDX-License-Identifier: Apache-2.0
"""The offset of two clocks, bounded by what was seen of the same things by both.

What one machine hands over before the other takes it bounds the offset from above, and what it gets back after the
other is done bounds it from below. Nothing is assumed of either clock but that their rates differ by no more than
WANDER_PPM, so drift is followed whatever its course. All times are integer nanoseconds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

WANDER_PPM = 500
"""The largest drift of two clocks: a clock that is slewed may be made as fast as that."""

# The number of neighbours in time that vote on which of them is true.
_VOTERS = 256


class Bound(NamedTuple):
    """How far the second clock was ahead at a time of the first one, at least and at most."""

    at: int
    least: int
    most: int

    @property
    def width(self) -> int:
        return self.most - self.least

    @property
    def middle(self) -> int:
        return (self.least + self.most) // 2

    def after(self, at: int) -> Bound:
        """Return the bounds at another moment."""
        apart = _apart(self.at, at)
        return Bound(at, self.least - apart, self.most + apart)

    def both(self, other: Bound) -> Bound:
        """Return the intersection of two bounds of one moment; it is empty if `least` is above `most`."""
        return Bound(self.at, max(self.least, other.least), min(self.most, other.most))

    @property
    def holds(self) -> bool:
        return self.least <= self.most


def _apart(one: int, other: int) -> int:
    """Return how much the offset may have changed meanwhile, rounded up."""
    return -(-abs(one - other) * WANDER_PPM // 1_000_000)


class Offset:
    """Bounds of the offset at each moment."""

    def __init__(self, bounds: Iterable[Bound]) -> None:
        """`bounds` are true ones: all of them can hold together."""
        forth = list(_narrowed(sorted(bounds)))
        back = list(_narrowed(reversed(forth)))
        self._known: Sequence[Bound] = back[::-1]
        self._times = [bound.at for bound in self._known]

    def __len__(self) -> int:
        return len(self._known)

    def at(self, ns: int) -> Bound:
        """Return the bound at a time of the first clock."""
        place = bisect_right(self._times, ns)
        near = self._known[max(place - 1, 0) : place + 1]
        found = near[0].after(ns)
        for bound in near[1:]:
            found = found.both(bound.after(ns))
        return found

    @property
    def bounds(self) -> Sequence[Bound]:
        """All that it was made of, each with what the others say of it."""
        return self._known

    @property
    def first(self) -> Bound:
        return self._known[0]

    @property
    def last(self) -> Bound:
        return self._known[-1]

    @property
    def widths(self) -> list[int]:
        """The widths of all bounds, the smallest first."""
        return sorted(bound.width for bound in self._known)

    @property
    def drift_ppm(self) -> tuple[float, float] | None:
        """The mean drift of the second clock, at least and at most; None if it is unknown."""
        took = self.last.at - self.first.at
        if took <= 0:
            return None
        least, most = self.last.least - self.first.most, self.last.most - self.first.least
        return least * 1e6 / took, most * 1e6 / took


def _narrowed(bounds: Iterable[Bound]) -> Iterator[Bound]:
    """Each with what the one before says of it; what cannot hold with that is left out."""
    known: Bound | None = None
    for bound in bounds:
        found = bound if known is None else bound.both(known.after(bound.at))
        if found.holds:
            known = found
            yield found


def agreed(bounds: Iterable[Bound]) -> tuple[list[Bound], int]:
    """Return the bounds that agree with most of their neighbours in time, and the number of others.

    A true bound is among them, unless most bounds are false and agree.
    """
    every = list(bounds)
    voters = sorted(bound for bound in every if bound.holds)
    found: list[Bound] = []
    for place in range(0, len(voters), _VOTERS):
        found += _elected(voters[place : place + _VOTERS])
    return found, len(every) - len(found)


def _elected(voters: Sequence[Bound]) -> list[Bound]:
    """The largest set that has an offset in common at the moment in their middle."""
    moment = voters[len(voters) // 2].at
    moved = [bound.after(moment) for bound in voters]
    common = elected(moved)
    return [bound for bound, there in zip(voters, moved) if there.least <= common.least and common.most <= there.most]


def elected(bounds: Iterable[Bound]) -> Bound:
    """Return, from bounds of one moment, the offsets that most of them allow, by the narrowest of those."""
    edges = sorted(edge for bound in bounds for edge in ((bound.least, 0, bound.at), (bound.most, 1, bound.at)))
    best, open_now, found = 0, 0, Bound(0, 0, 0)
    for place, (value, closes, at) in enumerate(edges):
        if closes:
            open_now -= 1
            continue
        open_now += 1
        # The next edge that closes one ends what all of these allow.
        if open_now >= best and edges[place + 1][1]:
            least = Bound(at, value, edges[place + 1][0])
            if open_now > best or least.width < found.width:
                best, found = open_now, least
    return found
