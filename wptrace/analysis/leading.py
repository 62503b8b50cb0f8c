# SPDX-License-Identifier: Apache-2.0
"""Totals of the first owners and of all others, of which none ever goes back, whoever comes and goes.

An owner that becomes one of the first begins with nothing: what it had before is, and stays, among the others'. One
that leaves adds all that it had to the others', and its own totals end. So the sum of all is always that of all
owners, and each total only grows as long as it is there. Who leads is asked of the recent past, and a newcomer has to
have twice as much as the last of the first: owners that are alike do not take turns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Any, Callable

from wptrace.analysis import owners
from wptrace.model.distribution import Distribution, merge_stages
from wptrace.model.kind import OTHERS, TOTAL, Group, Kind
from wptrace.model.report import Snapshot, merged, since

_HALF_S = 600.0
"""The half-life of a score."""
_AHEAD = 2.0
_MOST_SCORES = 4096
_MOST_ROWS = 20_000

Who = Hashable


class Leading:
    def __init__(self, kinds: frozenset[Kind], top: int, who: Callable[[Any], Who]) -> None:
        """Several owners may be the same for `who`, or be among the others."""
        self._kinds, self._top, self._who = kinds, top, who
        self._last: Snapshot | None = None
        self._scores: dict[Who, float] = {}
        self._first: set[Who] = set()
        self.cells: dict[Group, dict[str, Distribution]] = {}
        """The owner of a group is what `who` says, or OTHERS."""
        self.counters: dict[Group, Counter[str]] = {}

    def keep(self, top: int) -> None:
        self._top = top
        while len(self._first) > top:
            self._leave(min(self._first, key=self._score))

    def add(self, now: Snapshot) -> None:
        """Add the counts since the last call."""
        cells = {group: found for group, found in now.cells.items() if group.kind in self._kinds}
        counters = {group: found for group, found in now.counters.items() if group.kind in self._kinds}
        snapshot = now._replace(cells=cells, counters=counters)
        last = self._last or snapshot._replace(cells={}, counters={})
        new, counted = since(snapshot, last)
        self._rank(new, (snapshot.at_ns - last.at_ns) / 1e9)
        self._last = snapshot
        for row, found in merged(new, self._row).items():
            merge_stages(self.cells, self._bounded(row), found)
        for group, counts in counted.items():
            self.counters.setdefault(self._bounded(self._row(group)), Counter()).update(counts)

    def _rank(self, new: dict[Group, dict[str, Distribution]], seconds: float) -> None:
        fade = 0.5 ** (seconds / _HALF_S)
        scores = {who: score * fade for who, score in self._scores.items() if score * fade >= 1}
        for group, found in new.items():
            owner = owners.owner(group)
            who = OTHERS if owner == OTHERS else self._who(owner)
            if who != OTHERS and TOTAL in found:
                scores[who] = scores.get(who, 0.0) + found[TOTAL].sum
        ranked = sorted(scores, key=scores.__getitem__, reverse=True)
        self._scores = {who: scores[who] for who in ranked[:_MOST_SCORES]}
        for who in ranked[: 2 * self._top]:
            if who in self._first:
                continue
            if len(self._first) >= self._top:
                last = min(self._first, key=self._score, default=None)
                if last is None or scores[who] < _AHEAD * self._score(last) or not scores[who]:
                    break
                self._leave(last)
            self._first.add(who)

    def _score(self, who: Who) -> float:
        return self._scores.get(who, 0.0)

    def _leave(self, who: Who) -> None:
        self._first.discard(who)
        for group in [group for group in self.cells if owners.owner(group) == who]:
            merge_stages(self.cells, group.of_others, self.cells.pop(group))
        for group in [group for group in self.counters if owners.owner(group) == who]:
            self.counters.setdefault(group.of_others, Counter()).update(self.counters.pop(group))

    def _row(self, group: Group) -> Group:
        at = group.kind.owner_place
        if at is not None and group.values[at] != OTHERS and (who := self._who(group.values[at])) in self._first:
            return Group(group.kind, (*group.values[:at], who, *group.values[at + 1 :]))
        return group.of_others

    def _bounded(self, row: Group) -> Group:
        known = row in self.cells or row in self.counters or len(self.cells) < _MOST_ROWS
        return row if known else row.others
