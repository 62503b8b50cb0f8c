# SPDX-License-Identifier: Apache-2.0
"""A distribution that knows each of its values: for what takes few different ones, such as the sizes of requests."""

from __future__ import annotations

from collections.abc import Mapping

from wptrace.model.distribution import Distribution, index, rank_of


class Tally(Distribution):
    """`counts` holds how often each value came; extremes and percentiles are exact, also those of an interval."""

    __slots__ = ("counts",)

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        super().__init__()
        self.counts: dict[int, int] = {}
        for value, count in (counts or {}).items():
            self.put(value, count)

    def add(self, value: int) -> None:
        self.put(value, 1)

    def put(self, value: int, count: int) -> None:
        """Adds a value so many times."""
        if not count:
            return
        self.min = value if not self.count else min(self.min, value)
        self.max = max(self.max, value)
        self.buckets[index(value)] += count
        self.count += count
        self.sum += value * count
        self.sumsq += value * value * count
        self.counts[value] = self.counts.get(value, 0) + count

    def merge(self, other: Distribution) -> None:
        if not isinstance(other, Tally):
            raise ValueError("a distribution that does not know its values cannot become part of one that does")
        for value, count in other.counts.items():
            self.put(value, count)

    def copy(self) -> Tally:
        return Tally(self.counts)

    def delta(self, earlier: Distribution) -> Tally:
        if not isinstance(earlier, Tally):
            raise ValueError("the other distribution is not an earlier copy of this one")
        grown = {value: count - earlier.counts.get(value, 0) for value, count in self.counts.items()}
        recent = Tally({value: count for value, count in grown.items() if count > 0})
        recent.shrunk = -sum(count for count in grown.values() if count < 0)
        return recent

    def percentile(self, percent: float) -> int:
        """The value that at least `percent` of all values do not exceed (nearest rank), exactly."""
        if not 0 <= percent <= 100:
            raise ValueError(f"a percentile lies between 0 and 100, not at {percent}")
        seen, rank = 0, rank_of(percent, self.count)
        for value in sorted(self.counts):
            seen += self.counts[value]
            if seen >= rank:
                return value
        return 0
