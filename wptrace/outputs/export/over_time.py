# SPDX-License-Identifier: Apache-2.0
"""Data that a report draws over time: columns of intervals, finer ones of events, and places on the device."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, NamedTuple

from wptrace.model.distribution import Distribution, index, merge_stages
from wptrace.model.kind import TEXTS, TOTAL, Group, Kind, Task
from wptrace.model.report import Event, Report
from wptrace.outputs.export import sums
from wptrace.outputs.text.words import printable

COLUMNS = 256
"""The number of columns; two become one if there are more, or if they have more than BUCKETS filled buckets."""
BUCKETS = 200_000
# Columns of events are no shorter than that.
_SHORTEST_NS = 10_000_000
# The number of devices and owners with times of their own, chosen among so many that came first.
_APART, _CANDIDATES = 24, 400
# Points of a map, some 25 bytes each.
_PLACES = 16_000
# The most characters of a name.
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


_Stages = dict[Any, dict[str, _Sparse]]
"""Stages by group, and those of events also by owner."""
# The field of an event that names its owner, by the kind of owners.
_OWNERS = {"process": "pid", "thread": "tid", "comm": "comm", "cgroup": "cgroup", "file": "path"}
_OWNERS |= dict.fromkeys(TEXTS, "owner")


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
        self._so_far: dict[Group, dict[str, Distribution]] = {}
        self._bytes_so_far: Counter[Group] = Counter()
        self._candidates: set[Group] = set()
        self._last_ns = self._filled = 0

    def _apart(self, report: Report) -> dict[Group, Distribution]:
        found = {}
        for group, one in sums.apart(report).items():
            if group in self._candidates or len(self._candidates) < _CANDIDATES:
                self._candidates.add(group)
                found[group] = one
        return found

    def interval(self, report: Report) -> None:
        cells, moved = _cells(sums.wholes(report), self._apart(report)), sums.moved(report)
        self._bytes_so_far += moved
        for group, found in cells.items():
            merge_stages(self._so_far, group, found)
        self._add(report.ts_ns - report.duration_ns, report.ts_ns, cells, moved)

    def end(self, report: Report) -> tuple[dict[Group, dict[str, Distribution]], dict[Group, Distribution]]:
        """Add what came after the last interval; return the sums, and the devices and owners with the most time."""
        wholes, apart = sums.wholes(report), self._apart(report)
        rest: dict[Group, dict[str, Distribution]] = {}
        for group, found in _cells(wholes, apart).items():
            before = self._so_far.get(group, {})
            rest[group] = {name: one.delta(before[name]) if name in before else one for name, one in found.items()}
        begin_ns = self._last_ns or report.ts_ns - report.duration_ns
        self._add(begin_ns, report.ts_ns, rest, sums.moved(report) - self._bytes_so_far)
        if len(self._columns) > 1:
            *earlier, last, short = self._columns
            # The rest of a second at the end would be drawn as a fall.
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
            self._filled += _size(filled)
        while len(self._columns) > 1 and (len(self._columns) > COLUMNS or self._filled > BUCKETS):
            pairs = itertools.zip_longest(self._columns[::2], self._columns[1::2])
            self._columns = [one if other is None else _both(one, other) for one, other in pairs]
            self._filled = sum(_size(column.cells) for column in self._columns)

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


class Singles:
    """Columns made of events, finer than an interval, for kinds of which no event is missing."""

    owners = ""
    """The kind of owners with rows of their own."""

    def __init__(self) -> None:
        self._width_ns = _SHORTEST_NS
        self._columns: dict[int, _Stages] = {}
        self._filled = 0
        self._known: set[Hashable] = set()

    def add(self, event: Event) -> None:
        at = event.end_ns // self._width_ns
        if at not in self._columns:
            self._columns[at] = {}
            at = self._fitting(at)
        group = event.group
        self._count(at, group, group.kind, {**event.stages, TOTAL: event.total_ns})
        if self.owners in _OWNERS:
            owner = _owner(group, event.fields.get(_OWNERS[self.owners]))
            self._count(at, owner, group.kind, {TOTAL: event.total_ns})

    def _count(self, at: int, group: Hashable, kind: Kind, stages: Mapping[str, int]) -> None:
        if group not in self._known:
            if len(self._known) >= _CANDIDATES:
                return
            self._known.add(group)
        cells = self._columns[at].setdefault(group, {})
        for name, ns in stages.items():
            # A stage without time has no entry: as many are lacking as had no time.
            if ns > 0 or name == TOTAL:
                one = cells.get(name)
                if one is None:
                    # Names are those of a file, and may be any number.
                    if name not in kind:
                        continue
                    one = cells[name] = _Sparse()
                slot = index(max(ns, 0))
                self._filled += slot not in one.buckets
                one.count += 1
                one.sum += ns
                one.buckets[slot] += 1

    def _fitting(self, at: int) -> int:
        """Double the width of columns until there are few enough, and return the place of this one."""
        while max(self._columns) - min(self._columns) >= COLUMNS or (self._filled > BUCKETS and len(self._columns) > 1):
            columns: dict[int, _Stages] = {}
            for number, cells in self._columns.items():
                _merge(columns.setdefault(number // 2, {}), cells)
            self._columns, self._width_ns, at = columns, 2 * self._width_ns, at // 2
            self._filled = sum(map(_size, columns.values()))
        return at

    def plain(self, found: Cells, places: Mapping[Group, int], since_ns: int) -> dict[str, Any]:
        """The columns, in ms how wide one is, and which metrics of which places they tell: all of what was counted."""
        columns = [(at * self._width_ns - since_ns, _with_sums(cells)) for at, cells in sorted(self._columns.items())]
        summed: _Stages = {}
        for _, cells in columns:
            _merge(summed, cells)
        keys = {group: _key(group) for group in places}
        whole = {group: _complete(summed[key], found[group]) for group, key in keys.items() if key in summed}
        return {
            "width": ms(self._width_ns),
            "of": {places[group]: names for group, names in whole.items() if names},
            "columns": [
                [
                    ms(begin_ns),
                    ms(begin_ns + self._width_ns),
                    {
                        places[group]: {name: _padded(cells[keys[group]], name, found[group]).plain() for name in names}
                        for group, names in whole.items()
                        if names and keys[group] in cells
                    },
                ]
                for begin_ns, cells in columns
            ],
        }


class Places:
    """The place of each event on its device: of all events, or of one in N if there are too many."""

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
        devices = _numbered(dev for _, dev, _, _, _ in self._rows)
        ops = _numbered(op for _, _, op, _, _ in self._rows)
        return {
            "step": self.step,
            "devices": [printable(one)[:LONGEST] for one in devices],
            "ops": [printable(one)[:LONGEST] for one in ops],
            "rows": [
                [round((end_ns - since_ns) / 1e6, 1), devices[dev], ops[op], sector, size // 512]
                for end_ns, dev, op, sector, size in self._rows
            ],
        }


def _numbered(names: Iterable[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


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


def _with_sums(cells: _Stages) -> _Stages:
    """Add sums over devices to cells by device."""
    found: _Stages = {}
    for group, stages in cells.items():
        for one in {group, sums.whole(group)} if isinstance(group, Group) else {group}:
            _merge(found, {one: stages})
    return found


def _owner(group: Group, whose: Hashable) -> Hashable:
    """The key of an owner's cells on all devices."""
    return group.kind.noun, *group.values[1:], whose


def _key(group: Group) -> Hashable:
    at = group.kind.owner_place
    if at is None:
        return group
    value = group.values[at]
    whose = (value.tid or value.pid) if isinstance(value, Task) else str(value)
    return _owner(group._replace(values=(*group.values[:at], *group.values[at + 1 :])), whose)


def _complete(summed: Mapping[str, _Sparse], found: Mapping[str, Distribution]) -> list[str]:
    """The metrics of which nothing is missing."""
    count = found[TOTAL].count
    if summed[TOTAL].count != count:
        return []
    return [name for name, one in summed.items() if name in found and _agree(one, found[name], count)]


def _agree(one: _Sparse, other: Distribution, count: int) -> bool:
    # Some are counted only where they took time.
    return one.sum == other.sum and other.count in (one.count, count)


def _padded(stages: Mapping[str, _Sparse], name: str, found: Mapping[str, Distribution]) -> _Sparse:
    """Return a stage with zeros for objects that took no time, if they are counted."""
    made = _Sparse()
    if name in stages:
        made.merge(stages[name])
    if found[name].count == found[TOTAL].count and stages[TOTAL].count > made.count:
        made.buckets[0] += stages[TOTAL].count - made.count
        made.count = stages[TOTAL].count
    return made


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
