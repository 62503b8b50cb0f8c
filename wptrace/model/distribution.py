# SPDX-License-Identifier: Apache-2.0
"""Log-linear distribution of unsigned values, bucket for bucket what the BPF side keeps."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import compress
from operator import sub
from typing import TypeVar

_Key = TypeVar("_Key")

SLOTS = 320
BEYOND = 1 << 64
"""No value reaches it: the open end of the last bucket."""


def index(value: int) -> int:
    """The bucket of a value: 8 to each power of two, everything from 2**42 on in the last."""
    if value < 8:
        return value
    shift = value.bit_length() - 4
    slot = (shift << 3) + (value >> shift)
    return slot if slot < SLOTS else SLOTS - 1


def bounds(slot: int) -> tuple[int, int]:
    """The values low <= value < high of a bucket."""
    if slot < 8:
        return slot, slot + 1
    shift = (slot >> 3) - 1
    low = (8 | slot & 7) << shift
    return low, BEYOND if slot == SLOTS - 1 else low + (1 << shift)


_SLOTS = range(SLOTS)
_MIDDLES = [(sum(bounds(slot)) - 1) / 2 for slot in _SLOTS]
_NO_BUCKETS: list[int] = []


class Distribution:
    """Count, sum, sum of squares and extremes of the values, and how many fell into each bucket.

    An empty distribution answers 0 to everything: ask `count` first.
    `exact` is False where `min` and `max` are only bounds of the true extremes, see `delta`. `shrunk` is what a delta
    had to leave out.
    """

    __slots__ = ("_buckets", "_packed", "count", "exact", "max", "min", "shrunk", "sum", "sumsq")

    def __init__(self) -> None:
        self._buckets = [0] * SLOTS
        self._packed: bytes | None = None
        """The slots of buckets that hold values, in 16 bits each, and then in 64 bits each how many."""
        self.count = 0
        self.sum = 0
        self.sumsq = 0
        self.min = 0
        self.max = 0
        self.exact = True
        self.shrunk = 0

    @property
    def buckets(self) -> list[int]:
        if self._packed is not None:
            self._buckets = [0] * SLOTS
            filled = len(self._packed) // 10
            found = struct.unpack(f"={filled}H{filled}Q", self._packed)
            for slot, count in zip(found, found[filled:]):
                self._buckets[slot] = count
            self._packed = None
        return self._buckets

    @buckets.setter
    def buckets(self, buckets: list[int]) -> None:
        self._buckets, self._packed = buckets, None

    def pack(self) -> None:
        """Take little memory until somebody looks at the buckets."""
        if self._packed is None:
            slots, counts = list(compress(_SLOTS, self._buckets)), list(filter(None, self._buckets))
            self._packed = struct.pack(f"={len(slots)}H{len(slots)}Q", *slots, *counts)
            self._buckets = _NO_BUCKETS

    def add(self, value: int) -> None:
        if value < 8:
            if value < 0:
                raise ValueError(f"a distribution holds no negative value: {value}")
            slot = value
        else:
            shift = value.bit_length() - 4
            slot = (shift << 3) + (value >> shift)
            if slot >= SLOTS:
                slot = SLOTS - 1
        self.buckets[slot] += 1
        if value > self.max:
            self.max = value
        if value < self.min or not self.count:
            self.min = value
        self.count += 1
        self.sum += value
        self.sumsq += value * value

    def add_counts(
        self,
        buckets: Sequence[int],
        count: int,
        total: int,
        minimum: int,
        maximum: int,
        sumsq: int | None,
        among: tuple[bool, bool] = (True, True),
    ) -> None:
        """Merge what another keeper counted, such as one CPU's cell in the kernel.

        One without a count is ignored: the minimum of 0 in a cell that never saw a value means nothing. Without a sum
        of squares it is estimated from the buckets, and from those of the extremes that are `among` what is counted
        here: the others came before.
        """
        if not count:
            return
        if len(buckets) != SLOTS:
            raise ValueError(f"a distribution has {SLOTS} buckets, not {len(buckets)}")
        if sumsq is None:
            filled = {slot: buckets[slot] for slot in compress(_SLOTS, buckets)}
            sumsq = _squares(filled, count, total, minimum, maximum, among)
        if self.count:
            # Most distributions are narrow.
            mine = self.buckets
            for slot in compress(_SLOTS, buckets):
                mine[slot] += buckets[slot]
        else:
            self.buckets = list(buckets)
        self._add(count, total, minimum, maximum, sumsq)

    def add_slots(
        self,
        counts: Mapping[int, int],
        total: int,
        minimum: int,
        maximum: int,
        sumsq: int | None,
        among: tuple[bool, bool] = (True, True),
    ) -> None:
        """Do the same with the counts of a few buckets."""
        count = sum(counts.values())
        if not count:
            return
        if sumsq is None:
            sumsq = _squares(counts, count, total, minimum, maximum, among)
        buckets = self.buckets
        for slot, number in counts.items():
            buckets[slot] += number
        self._add(count, total, minimum, maximum, sumsq)

    def _add(self, count: int, total: int, minimum: int, maximum: int, sumsq: int) -> None:
        if minimum < self.min or not self.count:
            self.min = minimum
        if maximum > self.max:
            self.max = maximum
        self.count += count
        self.sum += total
        self.sumsq += sumsq

    def add_zeros(self, count: int) -> None:
        """Add zeros, which a keeper leaves out because there are so many."""
        if count > 0:
            self.add_counts([count, *[0] * (SLOTS - 1)], count, 0, 0, 0, 0)

    def merge(self, other: Distribution) -> None:
        self.add_counts(other.buckets, other.count, other.sum, other.min, other.max, other.sumsq)
        if other.count:
            self.exact = self.exact and other.exact

    def copy(self) -> Distribution:
        twin = Distribution()
        twin.merge(self)
        return twin

    def delta(self, earlier: Distribution) -> Distribution:
        """Return what was added since `earlier`, a copy of this distribution taken before.

        Counters subtract exactly. Extremes do not: a maximum is known only if it grew since, a minimum only
        if it fell. Otherwise each is the outer edge of the outermost bucket that got a value, brought inside
        the extremes of all time: `min` is never above the true one and `max` never below it, and they are
        off by an eighth at most. `exact` is True where both are known.

        A bucket that has less than it had adds nothing, and what it lacks is in `shrunk`: of figures that another
        writes meanwhile nobody may rely on more.
        """
        recent = Distribution()
        if self.buckets == earlier.buckets:
            return recent
        recent.buckets = list(map(sub, self.buckets, earlier.buckets))
        recent.count = self.count - earlier.count
        if min(recent.buckets) < 0:
            recent.shrunk = -sum(grown for grown in recent.buckets if grown < 0)
            recent.buckets = [max(0, grown) for grown in recent.buckets]
            recent.count = sum(recent.buckets)
            if not recent.count:
                return recent
        recent.sum = max(0, self.sum - earlier.sum)
        recent.sumsq = max(0, self.sumsq - earlier.sumsq)
        recent.min, recent.max = self.min, self.max
        first_values = not earlier.count
        min_known = first_values or self.min < earlier.min
        max_known = first_values or self.max > earlier.max
        edges = list(recent.filled())
        if not min_known:
            recent.min = max(self.min, edges[0][0])
        if not max_known:
            recent.max = min(self.max, edges[-1][1] - 1)
        recent.exact = self.exact and min_known and max_known
        return recent

    def scaled(self, count: int) -> Distribution:
        """Return a distribution of this many values with the same spread and extremes."""
        made = Distribution()
        if not self.count or not count:
            return made
        made.buckets = _apportioned(self.buckets, sum(self.buckets) * count // self.count)
        made.count = count
        made.sum = self.sum * count // self.count
        made.sumsq = self.sumsq * count // self.count
        made.min, made.max, made.exact = self.min, self.max, self.exact
        return made

    def filled(self) -> Iterator[tuple[int, int, int]]:
        """(low, high, count) of each bucket that holds a value, upwards."""
        buckets = self.buckets
        for slot in compress(_SLOTS, buckets):
            low, high = bounds(slot)
            yield low, high, buckets[slot]

    def percentile(self, percent: float) -> int:
        """The value that at least `percent` of all values do not exceed (nearest rank), within 6.25 %.

        It is the middle of the bucket that holds the rank, or of the part of it between `min` and `max`; the
        first and last ranks are the extremes themselves where those are exact. Values from 2**42 on share
        one bucket, so the bound does not hold among those.
        """
        if not 0 <= percent <= 100:
            raise ValueError(f"a percentile lies between 0 and 100, not at {percent}")
        if not self.count:
            return 0
        rank = rank_of(percent, self.count)
        if self.exact and rank == 1:
            return self.min
        if self.exact and rank == self.count:
            return self.max
        seen = 0
        for low, high, count in self.filled():
            seen += count
            if seen >= rank:
                return (max(low, self.min) + min(high - 1, self.max)) // 2
        return self.max

    @property
    def spread_known(self) -> bool:
        """Whether it has percentiles, which sums of separately counted values lack."""
        return any(self.buckets)

    @property
    def mean(self) -> float:
        return self.sum / self.count if self.count else 0.0

    @property
    def stddev(self) -> float:
        """Standard deviation of the population."""
        if not self.count:
            return 0.0
        # A cell read while its CPU writes it can have a sum newer than its squares.
        return math.sqrt(max(0, self.count * self.sumsq - self.sum * self.sum)) / self.count


def _squares(
    counts: Mapping[int, int], count: int, total: int, minimum: int, maximum: int, among: tuple[bool, bool]
) -> int:
    """The sum of squares as it would be if each value stood in the middle of its bucket, around the true mean.

    The extremes weigh most, as squares do, and stand where they are. One value is its own mean.
    """
    if count == 1:
        return total * total
    values: list[tuple[float, int]] = []
    left = dict(counts)
    for extreme, is_there in zip((minimum, maximum), among):
        # A cell that was read while its CPU wrote it may have one without the other.
        if is_there and left.get(index(extreme)):
            left[index(extreme)] -= 1
            values.append((extreme, 1))
    outer = index(minimum), index(maximum)
    for slot, number in left.items():
        if number:
            middle = _MIDDLES[slot]
            if slot in outer:
                low, high = bounds(slot)
                middle = (max(low, minimum) + min(high - 1, maximum)) / 2
            values.append((middle, number))
    mean = sum([value * number for value, number in values]) / count
    spread = sum([(value - mean) ** 2 * number for value, number in values])
    return total * total // count + int(spread)


def _apportioned(parts: Sequence[int], total: int) -> list[int]:
    """The total in shares like these, each rounded so that they add up to it."""
    whole = sum(parts)
    if not whole:
        return list(parts)
    shares = [divmod(part * total, whole) for part in parts]
    found = [share for share, _ in shares]
    largest = sorted(range(len(parts)), key=lambda place: -shares[place][1])
    for place in largest[: total - sum(found)]:
        found[place] += 1
    return found


def merge_stages(found: dict[_Key, dict[str, Distribution]], key: _Key, stages: Mapping[str, Distribution]) -> None:
    """Add stages to those of a key. A new one is a copy, which whoever counts in `stages` no longer changes."""
    into = found.setdefault(key, {})
    for name, one in stages.items():
        if name in into:
            into[name].merge(one)
        else:
            into[name] = one.copy()


def rank_of(percent: float, count: int) -> int:
    """The nearest rank, from 1, of a percentile among `count` values."""
    numerator, denominator = _ratio(percent)
    return max(1, -(-numerator * count // (100 * denominator)))


@lru_cache
def _ratio(percent: float) -> tuple[int, int]:
    """99.9 means 999 of 1000, not the binary fraction just above it, which would be one rank too high."""
    from decimal import Decimal

    return Decimal(repr(percent)).as_integer_ratio()
