# SPDX-License-Identifier: Apache-2.0
"""The intervals that a live screen has shown: to go back to, and as lines of how p50 and p99 went."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from wptrace.model import units
from wptrace.model.kind import TOTAL, Group, Kind
from wptrace.model.report import Report, everywhere
from wptrace.outputs.text import words
from wptrace.outputs.text.words import columns

# Some 400 bytes each, once their buckets are packed.
_CELLS = 100_000
# Points of a line, and the levels that one has.
_POINTS = 600
_LEVELS = "▁▂▃▄▅▆▇█"
_NONE = " "
_FEWEST = 10


class _Point(NamedTuple):
    median: float
    high: float


class Past:
    """Past intervals within a small memory, the newest last."""

    def __init__(self) -> None:
        self._reports: deque[Report] = deque()
        self._cells = 0
        self._points: dict[Group, deque[_Point | None]] = {}
        self._time: dict[Group, int] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._reports)

    def add(self, report: Report, kind: Kind | None) -> None:
        """`kind` is what the lines are of."""
        if self._reports:
            for found in self._reports[-1].cells.values():
                for one in found.values():
                    one.pack()
        self._reports.append(report)
        self._cells += _size(report)
        while self._cells > _CELLS and len(self._reports) > 1:
            self._cells -= _size(self._reports.popleft())
        if kind is not None:
            self._trace(report, kind)

    def at(self, back: int) -> Report:
        """The interval so many before the last one."""
        return self._reports[-1 - back]

    def _trace(self, report: Report, kind: Kind) -> None:
        mine = {group: found for group, found in report.cells.items() if group.kind is kind}
        whole = everywhere({group: {TOTAL: found[TOTAL]} for group, found in mine.items()})
        for group, found in whole.items():
            if group not in self._points:
                self._points[group] = deque([None] * min(self._count, _POINTS), maxlen=_POINTS)
            total = found[TOTAL]
            self._time[group] = self._time.get(group, 0) + total.sum
        for group, points in self._points.items():
            one = whole[group][TOTAL] if group in whole else None
            points.append(_Point(one.percentile(50), one.percentile(99)) if one is not None and one.count else None)
        self._count += 1

    def lines(self, width: int, back: int = 0) -> Iterator[str]:
        """Generate lines of p50 and p99 until `back` intervals ago, for groups with the most time first."""
        for group in sorted(self._points, key=lambda one: -self._time[one]):
            points = list(self._points[group])
            points = points[: len(points) - back]
            known = [point for point in points if point is not None]
            if len(points) < 2 or not known:
                continue
            name = f"{words.group(group) or group.kind.noun.plural:<6}"
            median, high = (units.duration(max(point[at] for point in known)) for at in range(2))
            room = (width - columns(name) - len(f"  p50  up to {median}  p99  up to {high}")) // 2
            if room < _FEWEST:
                continue
            shown = points[-room:]
            yield (
                f"{name}  p50 {_line([point and point.median for point in shown])} up to {median}"
                f"  p99 {_line([point and point.high for point in shown])} up to {high}"
            )


def _line(values: list[float | None]) -> str:
    most = max((value for value in values if value), default=0.0)
    return "".join(_NONE if value is None else _level(value, most) for value in values)


def _level(value: float, most: float) -> str:
    return _LEVELS[max(math.ceil(value / most * len(_LEVELS)) - 1, 0)] if most else _LEVELS[0]


def _size(report: Report) -> int:
    return sum(map(len, report.cells.values()))
