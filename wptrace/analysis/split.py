# SPDX-License-Identifier: Apache-2.0
"""Splits the change of a mean, a total or a percentile: other work, or the same work done slower.

Objects are kept apart in classes by what they are: device, owner, size. Between two recordings the shares of classes
change, and the times within each. A mean is a sum of shares times times, so its change is exactly a sum of both: at
each step, of the change of shares at times half-way between both recordings, and of the change of times at shares
half-way. Devices come first, then owners of each device, then sizes of each owner.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from wptrace.model.distribution import SLOTS, bounds

Class = tuple[str, ...]
"""The values of the labels by which objects are kept apart."""

SAME = "same"
"""The reason of time that objects of the same class took longer."""
LONGER, MORE = "duration", "count"
"""Reasons of a total: one recording is longer, or more was done in the same time."""

# Shares and times are integers of so many binary digits behind the point, so that their products are exact to far
# below a nanosecond however many are added up.
_SHARE, _TIME = 64, 32
_ONE = 1 << (_SHARE + _TIME)


class Sums:
    """Sums of the objects of a class. Times are the total and the stages that add up to it."""

    __slots__ = ("buckets", "bytes", "count", "squares", "times")

    def __init__(self, columns: int) -> None:
        self.count = 0
        self.bytes = 0
        self.times = [0] * (columns + 1)
        """The total is the first."""
        self.squares = [0] * (columns + 1)
        self.buckets: dict[int, int] = {}
        """Buckets of the total with their counts."""

    def add(self, other: Sums) -> None:
        self.count += other.count
        self.bytes += other.bytes
        self.times = [one + two for one, two in zip(self.times, other.times)]
        self.squares = [one + two for one, two in zip(self.squares, other.squares)]
        for slot, count in other.buckets.items():
            self.buckets[slot] = self.buckets.get(slot, 0) + count

    def mean(self, column: int = 0) -> float:
        return self.times[column] / self.count if self.count else 0.0

    def variance(self, column: int = 0) -> float:
        """Return the variance of the mean if all objects were independent."""
        if self.count < 2:
            return 0.0
        mean = self.times[column] / self.count
        return max(self.squares[column] / self.count - mean * mean, 0.0) / (self.count - 1)

    def percentile(self, percent: float) -> float:
        return percentile(self.buckets, percent)


Classes = Mapping[Class, Sums]


def put(classes: dict[Class, Sums], key: Class, one: Sums) -> None:
    """Add it to what the class has; where that is nothing, it is taken as it is."""
    there = classes.get(key)
    if there is None:
        classes[key] = one
    else:
        there.add(one)


def merged(found: Iterable[Classes]) -> dict[Class, Sums]:
    made: dict[Class, Sums] = {}
    for classes in found:
        for key, one in classes.items():
            made.setdefault(key, Sums(len(one.times) - 1)).add(one)
    return made


def added(found: Iterable[Sums], columns: int) -> Sums:
    whole = Sums(columns)
    for one in found:
        whole.add(one)
    return whole


class Part(NamedTuple):
    """A part of the change of a mean."""

    reason: str
    """A label in which the mix is another one, or that it is the same work."""
    column: int
    ns: int


class Value(NamedTuple):
    """A value of a label, and by how much it moved the mean as its share changed."""

    label: str
    value: str
    ns: float
    before: float
    after: float
    """Its shares, of all objects."""


class Split(NamedTuple):
    a_ns: int
    b_ns: int
    """The means, rounded."""
    parts: tuple[Part, ...]
    """They add up to b_ns - a_ns, and those of a column to the change of its mean."""
    total: tuple[tuple[str, int], ...]
    """The change of the sum of all times, by reason; they add up to it."""
    values: tuple[Value, ...]
    places: Mapping[tuple[str, int], float]
    """By value of the first label and column: how much slower work of the same kind moved the mean."""
    unlike: tuple[str, ...]
    """Labels of which both have no value in common somewhere: they are not told apart there."""

    def of(self, reason: str) -> int:
        return sum(part.ns for part in self.parts if part.reason == reason)


class _Node:
    """Gathers parts, in units of 2^-96 ns."""

    def __init__(self, labels: Sequence[str], columns: int) -> None:
        self.labels, self.columns = labels, columns
        self.parts: dict[tuple[str, int], int] = {}
        self.values: dict[tuple[str, str], list[float]] = {}
        self.places: dict[tuple[str, int], int] = {}
        self.unlike: set[str] = set()

    def put(self, reason: str, times: Sequence[int], share: int) -> None:
        """`times` are those of columns without the total."""
        for column, ns in enumerate(times, 1):
            if ns:
                key = (reason, column)
                self.parts[key] = self.parts.get(key, 0) + ns * share

    def descend(self, level: int, a: Classes, b: Classes, share: int, shares: tuple[float, float]) -> None:
        """`share` is that of these classes, half-way between both recordings."""
        if level == len(self.labels):
            one, other = _means(a.values(), self.columns), _means(b.values(), self.columns)
            grown = [y - x for x, y in zip(one, other)]
            self.put(SAME, grown, share)
            if self.labels and self.labels[0] not in self.unlike:
                for column, ns in enumerate(grown, 1):
                    place = (next(iter(a))[0], column)
                    self.places[place] = self.places.get(place, 0) + ns * share
            return
        label, of_a, of_b = self.labels[level], _by(a, level), _by(b, level)
        if not of_a.keys() & of_b.keys():
            # The times of one class in the other recording are not known.
            self.unlike.add(label)
            self.descend(level + 1, a, b, share, shares)
            return
        many_a, many_b = _count(a.values()), _count(b.values())
        around = [(x + y) / 2 for x, y in zip(_means(a.values(), self.columns), _means(b.values(), self.columns))]
        for value in sorted(of_a.keys() | of_b.keys()):
            mine_a, mine_b = of_a.get(value, {}), of_b.get(value, {})
            had, has = _count(mine_a.values()), _count(mine_b.values())
            was, is_ = (had << _SHARE) // many_a, (has << _SHARE) // many_b
            there = [_means(found.values(), self.columns) for found in (mine_a, mine_b) if found]
            # A class that is new has no earlier times: its own are taken.
            times = [sum(column) // len(there) for column in zip(*there)]
            gained = (is_ - was) * share >> _SHARE
            self.put(label, times, gained)
            moved = sum(ns - mean for ns, mean in zip(times, around)) * gained / _ONE
            found = self.values.setdefault((label, value), [0.0, 0.0, 0.0])
            found[0] += moved
            found[1] += shares[0] * had / many_a
            found[2] += shares[1] * has / many_b
            if mine_a and mine_b:
                deeper = (was + is_) * share >> (_SHARE + 1)
                inner = (shares[0] * had / many_a, shares[1] * has / many_b)
                self.descend(level + 1, mine_a, mine_b, deeper, inner)


def split(a: Classes, b: Classes, labels: Sequence[str], seconds: tuple[int, int] = (1, 1)) -> Split:
    """Both have objects, of the same columns; `seconds` are how long the recordings are, in any unit."""
    columns = len(next(iter(a.values())).times) - 1
    node = _Node(labels, columns)
    node.descend(0, a, b, 1 << _SHARE, (1.0, 1.0))
    one, other = added(a.values(), columns), added(b.values(), columns)
    mean_a, mean_b = ((2 * of.times[0] + of.count) // (2 * of.count) for of in (one, other))
    by_column = apportioned(
        [_mean(other, column) - _mean(one, column) for column in range(1, columns + 1)], mean_b - mean_a
    )
    parts = []
    for column in range(1, columns + 1):
        mine = [(reason, ns) for (reason, at), ns in sorted(node.parts.items()) if at == column]
        if by_column[column - 1] and not mine:
            mine = [(SAME, _ONE)]
        for (reason, _), ns in zip(mine, apportioned([ns for _, ns in mine], by_column[column - 1])):
            parts.append(Part(reason, column, ns))
    return Split(
        mean_a,
        mean_b,
        tuple(part for part in parts if part.ns),
        _of_total(node, one, other, seconds),
        tuple(Value(label, value, *found) for (label, value), found in node.values.items()),
        {key: ns / _ONE for key, ns in node.places.items()},
        tuple(label for label in labels if label in node.unlike),
    )


def reasons(a: Classes, b: Classes, labels: Sequence[str]) -> dict[tuple[str, int], float]:
    """Return the same parts of the mean, not rounded."""
    node = _Node(labels, len(next(iter(a.values())).times) - 1)
    node.descend(0, a, b, 1 << _SHARE, (1.0, 1.0))
    return {key: ns / _ONE for key, ns in node.parts.items()}


def _of_total(node: _Node, a: Sums, b: Sums, seconds: tuple[int, int]) -> tuple[tuple[str, int], ...]:
    """A total is a duration times a rate times a mean: of each the change, at the others half-way."""
    between = _mean(a, 0) + _mean(b, 0)
    long_a, long_b = seconds
    both = a.count * long_b + b.count * long_a
    # The mean of both rates, times the difference of durations.
    longer = (both * (long_b - long_a) << _SHARE) // (2 * long_a * long_b) if long_a and long_b else 0
    more = (b.count - a.count << _SHARE) - longer
    found = {LONGER: longer * between >> (_SHARE + 1), MORE: more * between >> (_SHARE + 1)}
    for (reason, _), ns in sorted(node.parts.items()):
        found[reason] = found.get(reason, 0) + ns * (a.count + b.count) // 2
    return tuple(zip(found, apportioned(list(found.values()), b.times[0] - a.times[0])))


def apportioned(parts: Sequence[int], whole: int) -> list[int]:
    """Parts in units of 2^-96, rounded so that they add up to the whole."""
    if not parts:
        return []
    rounded = [(part + _ONE // 2) // _ONE for part in parts]
    missing = whole - sum(rounded)
    # The remainder goes to the parts with the largest rounding error.
    step = 1 if missing > 0 else -1
    order = sorted(range(len(parts)), key=lambda at: step * (rounded[at] * _ONE - parts[at]))
    many, left = divmod(abs(missing), len(parts))
    for place, at in enumerate(order):
        rounded[at] += step * (many + (place < left))
    return rounded


def _mean(of: Sums, column: int) -> int:
    """Return the mean in units of 2^-96 ns."""
    return (of.times[column] << (_SHARE + _TIME)) // of.count


def _means(found: Iterable[Sums], columns: int) -> list[int]:
    """Return the mean of each column in units of 2^-32 ns."""
    every = list(found)
    count = sum(one.count for one in every) or 1
    if len(every) == 1:
        return [(ns << _TIME) // count for ns in every[0].times[1:]]
    return [(sum(one.times[column] for one in every) << _TIME) // count for column in range(1, columns + 1)]


def _count(found: Iterable[Sums]) -> int:
    return sum(one.count for one in found)


def _by(found: Classes, level: int) -> dict[str, dict[Class, Sums]]:
    parted: dict[str, dict[Class, Sums]] = {}
    for key, sums in found.items():
        if sums.count:
            parted.setdefault(key[level], {})[key] = sums
    return parted


# --- Percentiles ------------------------------------------------------------------------------------------------------


class PercentileSplit(NamedTuple):
    a_ns: int
    b_ns: int
    mix_ns: int
    """The change that the mix of classes alone would have made."""
    same_ns: int
    """and so much by the times of the same classes: with the one before it is the whole change."""
    error_ns: int
    """The error of both, from the width of buckets and from the few values beyond the percentile."""


def percentile(buckets: Mapping[int, float], percent: float) -> float:
    """The middle of the bucket that has it."""
    return _at(buckets, percent / 100)


def _at(buckets: Mapping[int, float], part: float) -> float:
    slots = sorted(slot for slot, count in buckets.items() if count)
    if not slots:
        return 0.0
    below = list(accumulate(buckets[slot] for slot in slots))
    slot = slots[min(bisect_left(below, part * below[-1]), len(slots) - 1)]
    low, high = bounds(slot)
    return (low + (high - 1 if slot < SLOTS - 1 else low)) / 2


def split_percentile(a: Classes, b: Classes, percent: float = 99) -> PercentileSplit:
    """Split the change with weighted histograms: the times of one recording in the mix of the other."""
    whole_a, whole_b = _weighted(a, {}), _weighted(b, {})
    was, is_ = (percentile(found, percent) for found in (whole_a, whole_b))
    # The mix of B with the times of A, and the other way round; a class that one lacks has the times of the other.
    as_b = percentile(_weighted(a, b), percent)
    as_a = percentile(_weighted(b, a), percent)
    mix = round(((as_b - was) + (is_ - as_a)) / 2)
    error = max(_uncertain(found, percent) for found in (whole_a, whole_b))
    first, last = round(was), round(is_)
    return PercentileSplit(first, last, mix, last - first - mix, round(error))


def _weighted(times: Classes, mix: Classes) -> dict[int, float]:
    """The times of the first, with the counts of the second."""
    found: dict[int, float] = {}
    for key in {**times, **mix}:
        mine, wanted = times.get(key), mix.get(key) if mix else times.get(key)
        source = mine if mine is not None and mine.count else wanted
        if wanted is None or source is None or not source.count:
            continue
        weight = wanted.count / source.count
        for slot, count in source.buckets.items():
            found[slot] = found.get(slot, 0.0) + count * weight
    return found


def _uncertain(buckets: Mapping[int, float], percent: float) -> float:
    """Half of where it may be: two standard errors of the rank, to the edges of buckets."""
    count = sum(buckets.values())
    part = percent / 100
    if not count:
        return 0.0
    off = 2 * (part * (1 - part) / count) ** 0.5
    low, high = _at(buckets, max(part - off, 0.0)), _at(buckets, min(part + off, 1.0))
    return (high - low) / 2 + high / 16
