# SPDX-License-Identifier: Apache-2.0
"""What the page of a report draws over time: columns of intervals, and places on the device."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from wptrace.model.distribution import Distribution
from wptrace.model.kind import TOTAL, Group
from wptrace.model.report import Event, Report
from wptrace.outputs.export import sums
from wptrace.outputs.text.words import printable

COLUMNS = 256
"""Of time; two become one where there are more, or where they hold more than so many filled buckets."""
BUCKETS = 200_000
# So many devices and owners have times of their own, of so many that came first.
_APART, _CANDIDATES = 24, 400
# Points of a map, some 25 bytes each.
_PLACES = 16_000
# Nobody reads more of a name.
LONGEST = 4096

Cells = Mapping[Group, Mapping[str, Distribution]]


class _Sparse:
    """A distribution as count, sum, and the filled buckets."""

    __slots__ = ("buckets", "count", "sum")

    def __init__(self, found: Distribution | None = None) -> None:
        self.count = self.sum = 0
        self.buckets: Counter[int] = Counter()
        if found is not None:
            self.count, self.sum = found.count, found.sum
            self.buckets.update({slot: count for slot, count in enumerate(found.buckets) if count})

    def merge(self, other: _Sparse) -> None:
        self.count += other.count
        self.sum += other.sum
        self.buckets.update(other.buckets)

    def plain(self) -> list[Any]:
        return [self.count, self.sum, flat(self.buckets)]


_Stages = dict[Group, dict[str, _Sparse]]


class _Column(NamedTuple):
    begin_ns: int
    end_ns: int
    cells: _Stages
    bytes: Counter[Group]


class Times:
    """Counts over time of each kind and operation, in columns whose sums are those of the summary.

    Of devices and of owners there are as many as have a row of their own here.
    """

    def __init__(self) -> None:
        self._columns: list[_Column] = []
        self._told: dict[Group, dict[str, Distribution]] = {}
        self._told_bytes: Counter[Group] = Counter()
        self._candidates: set[Group] = set()
        self._last_ns = 0

    def _apart(self, report: Report) -> dict[Group, Distribution]:
        found = {}
        for group, one in sums.apart(report).items():
            if group in self._candidates or len(self._candidates) < _CANDIDATES:
                self._candidates.add(group)
                found[group] = one
        return found

    def interval(self, report: Report) -> None:
        cells, moved = _cells(sums.wholes(report), self._apart(report)), sums.moved(report)
        self._told_bytes += moved
        for group, found in cells.items():
            into = self._told.setdefault(group, {})
            for name, one in found.items():
                if name in into:
                    into[name].merge(one)
                else:
                    into[name] = one.copy()
        self._add(report.ts_ns - report.duration_ns, report.ts_ns, cells, moved)

    def end(self, report: Report) -> tuple[dict[Group, dict[str, Distribution]], dict[Group, Distribution]]:
        """Add what came after the last interval; return the sums, and the devices and owners with the most time."""
        wholes, apart = sums.wholes(report), self._apart(report)
        rest: dict[Group, dict[str, Distribution]] = {}
        for group, found in _cells(wholes, apart).items():
            before = self._told.get(group, {})
            rest[group] = {name: one.delta(before[name]) if name in before else one for name, one in found.items()}
        begin_ns = self._last_ns or report.ts_ns - report.duration_ns
        self._add(begin_ns, report.ts_ns, rest, sums.moved(report) - self._told_bytes)
        if len(self._columns) > 1:
            *earlier, last, short = self._columns
            # What is left of a second at the end would be drawn as a fall.
            if short.end_ns - short.begin_ns < (last.end_ns - last.begin_ns) / 2:
                self._columns = [*earlier, _both(last, short)]
        ranked = sorted(apart, key=lambda group: -apart[group].sum)
        return wholes, {group: apart[group] for group in ranked[:_APART]}

    def _add(self, begin_ns: int, end_ns: int, cells: Cells, moved: Counter[Group]) -> None:
        self._last_ns = end_ns
        filled = {
            group: {name: _Sparse(one) for name, one in found.items() if one.count}
            for group, found in cells.items()
            if any(one.count for one in found.values())
        }
        # A column in which nothing happened is seen as a gap.
        if filled:
            self._columns.append(_Column(begin_ns, end_ns, filled, moved))
        while len(self._columns) > 1 and (
            len(self._columns) > COLUMNS or sum(_size(column.cells) for column in self._columns) > BUCKETS
        ):
            pairs = itertools.zip_longest(self._columns[::2], self._columns[1::2])
            self._columns = [one if other is None else _both(one, other) for one, other in pairs]

    def plain(self, places: Mapping[Group, int], since_ns: int) -> list[list[Any]]:
        return [
            [
                ms(column.begin_ns - since_ns),
                ms(column.end_ns - since_ns),
                _plain(column.cells, places),
                {places[group]: count for group, count in column.bytes.items() if group in places and count},
            ]
            for column in self._columns
        ]


class Places:
    """Where on its device each one was: of all of them, or one in so many where there are more."""

    def __init__(self) -> None:
        self.step = 1
        self._seen = 0
        self._rows: list[tuple[int, str, str, int, int]] = []

    def add(self, event: Event) -> None:
        sector, size = event.fields.get("sector"), event.fields.get("bytes")
        if not isinstance(sector, int) or not isinstance(size, int) or size <= 0 or "dev" not in event.group.kind.place:
            return
        self._seen += 1
        if self._seen % self.step:
            return
        self._rows.append((event.end_ns, str(event.group.label("dev")), str(event.group.label("op")), sector, size))
        if len(self._rows) > _PLACES:
            self._rows, self.step = self._rows[1::2], 2 * self.step

    def plain(self, since_ns: int) -> dict[str, Any]:
        devices = list(dict.fromkeys(dev for _, dev, _, _, _ in self._rows))
        ops = list(dict.fromkeys(op for _, _, op, _, _ in self._rows))
        return {
            "step": self.step,
            "devices": [printable(one)[:LONGEST] for one in devices],
            "ops": [printable(one)[:LONGEST] for one in ops],
            "rows": [
                [round((end_ns - since_ns) / 1e6, 1), devices.index(dev), ops.index(op), sector, size // 512]
                for end_ns, dev, op, sector, size in self._rows
            ],
        }


def _cells(wholes: Cells, apart: Mapping[Group, Distribution]) -> dict[Group, Mapping[str, Distribution]]:
    return {**wholes, **{group: {TOTAL: one} for group, one in apart.items()}}


def _size(cells: _Stages) -> int:
    return sum(len(found.buckets) for stages in cells.values() for found in stages.values())


def _merge(into: _Stages, cells: _Stages) -> None:
    for group, found in cells.items():
        stages = into.setdefault(group, {})
        for name, one in found.items():
            stages.setdefault(name, _Sparse()).merge(one)


def _both(one: _Column, other: _Column) -> _Column:
    one.bytes.update(other.bytes)
    _merge(one.cells, other.cells)
    return one._replace(end_ns=other.end_ns)


def _plain(cells: _Stages, places: Mapping[Group, int]) -> dict[int, dict[str, list[Any]]]:
    return {
        places[group]: {name: one.plain() for name, one in found.items()}
        for group, found in cells.items()
        if group in places
    }


def flat(buckets: Mapping[int, int]) -> list[int]:
    """Slot, count, slot, count ..."""
    return [number for slot in sorted(buckets) for number in (slot, buckets[slot])]


def ms(ns: int) -> float:
    return round(ns / 1e6, 6)
