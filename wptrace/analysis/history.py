# SPDX-License-Identifier: Apache-2.0
"""The history of stages over a whole trace, in bounded memory.

Stretches are long while nothing changes, and short where something did.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from wptrace.model.distribution import Distribution
from wptrace.model.kind import Group

CAPACITY = 128

Key = Group
"""A group with its devices added up."""


class Sums(NamedTuple):
    """A distribution without its buckets, which can be added, subtracted and compared."""

    samples: int = 0
    sum: int = 0
    squares: int = 0

    def plus(self, other: Sums) -> Sums:
        return Sums(self.samples + other.samples, self.sum + other.sum, self.squares + other.squares)

    def minus(self, other: Sums) -> Sums:
        return Sums(self.samples - other.samples, self.sum - other.sum, self.squares - other.squares)

    @property
    def mean(self) -> float:
        return self.sum / self.samples if self.samples else 0.0

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        spread = self.samples * self.squares - self.sum * self.sum
        return math.sqrt(max(0, spread) / self.samples) / self.samples if self.samples > 0 else math.inf


Stages = dict[str, Sums]


class Stretch(NamedTuple):
    """All counts between two times of the monotonic clock."""

    start_ns: int
    end_ns: int
    sums: dict[Key, Stages]

    def of(self, key: Key, stage: str) -> Sums:
        return self.sums.get(key, {}).get(stage, Sums())


class History:
    """Keeps at most `capacity` stretches; when there are more, the two most alike neighbours become one."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self.stretches: list[Stretch] = []
        self._losses: list[tuple[float, int]] = []
        """Return the loss by merging each stretch with the next one."""
        self._at_ns: int | None = None
        self._so_far: dict[Key, Stages] = {}

    def add(self, at_ns: int, cells: Mapping[Group, Mapping[str, Distribution]]) -> None:
        """Everything counted so far, as a snapshot has it; the first one is what the trace began with."""
        now = _added_up(cells)
        if self._at_ns is not None:
            self._append(Stretch(self._at_ns, at_ns, _grown(now, self._so_far)))
        self._at_ns, self._so_far = at_ns, now

    def _append(self, stretch: Stretch) -> None:
        if self.stretches:
            self._losses.append(_loss(self.stretches[-1], stretch))
        self.stretches.append(stretch)
        if len(self.stretches) > self._capacity:
            self._merge(self._losses.index(min(self._losses)))

    def _merge(self, place: int) -> None:
        self.stretches[place : place + 2] = [_joined(self.stretches[place], self.stretches[place + 1])]
        del self._losses[place]
        for first in (place - 1, place):
            if 0 <= first < len(self._losses):
                self._losses[first] = _loss(self.stretches[first], self.stretches[first + 1])


def _added_up(cells: Mapping[Group, Mapping[str, Distribution]]) -> dict[Key, Stages]:
    found: dict[Key, Stages] = {}
    for group, stages in cells.items():
        if not group.kind.stages:
            continue
        into = found.setdefault(group.everywhere, {})
        for name, one in stages.items():
            into[name] = into.get(name, Sums()).plus(Sums(one.count, one.sum, one.sumsq))
    return found


def _grown(now: dict[Key, Stages], before: dict[Key, Stages]) -> dict[Key, Stages]:
    """The difference, without groups that did not change."""
    found: dict[Key, Stages] = {}
    for key, stages in now.items():
        earlier = before.get(key, {})
        grown = {name: sums.minus(earlier.get(name, Sums())) for name, sums in stages.items()}
        if any(sums.samples for sums in grown.values()):
            found[key] = grown
    return found


def _joined(first: Stretch, second: Stretch) -> Stretch:
    sums = {key: dict(stages) for key, stages in first.sums.items()}
    for key, stages in second.sums.items():
        into = sums.setdefault(key, {})
        for name, one in stages.items():
            into[name] = into.get(name, Sums()).plus(one)
    return Stretch(first.start_ns, second.end_ns, sums)


def _loss(first: Stretch, second: Stretch) -> tuple[float, int]:
    """Return how much time would go to the wrong stretch; of equal losses, the shortest stretch goes first."""
    moved = 0.0
    for key in first.sums.keys() & second.sums.keys():
        other = second.sums[key]
        for name, one in first.sums[key].items():
            two = other.get(name, Sums())
            samples = one.samples + two.samples
            moved += abs(one.sum * two.samples - two.sum * one.samples) / samples if samples else 0.0
    return moved, second.end_ns - first.start_ns
