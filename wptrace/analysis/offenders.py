# SPDX-License-Identifier: Apache-2.0
"""Causes of delays, by the time that each took."""

from __future__ import annotations

import heapq
from typing import Any, NamedTuple

Key = tuple[str, ...]

# Once this many causes are known, all new ones share one entry.
_KNOWN = 10_000
OTHERS: Key = ()


class Offender(NamedTuple):
    key: Key
    """OTHERS for causes without an entry."""
    cases: int
    sum: int
    max: int

    def as_dict(self, *names: str) -> dict[str, Any]:
        """Return figures, with the parts of the key under these names."""
        key = (*self.key, *[""] * (len(names) - len(self.key)))
        return {**dict(zip(names, key)), "count": self.cases, "sum_ns": self.sum, "max_ns": self.max}


class Offenders:
    def __init__(self, known: int = _KNOWN) -> None:
        self._known = known
        self._found: dict[Key, tuple[int, int, int]] = {}

    def add(self, key: Key, value: int) -> None:
        place = key if key in self._found or len(self._found) < self._known else OTHERS
        count, total, worst = self._found.get(place, (0, 0, 0))
        self._found[place] = (count + 1, total + value, max(worst, value))

    def worst(self, limit: int) -> list[Offender]:
        """Return the offenders with the largest sums, largest first."""
        found = (Offender(key, *figures) for key, figures in self._found.items())
        return heapq.nlargest(limit, found, key=lambda one: (one.sum, one.max))

    def __len__(self) -> int:
        return len(self._found)
