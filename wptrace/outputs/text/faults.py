# SPDX-License-Identifier: Apache-2.0
"""I/O page faults: a table for each device and address space, histograms, and what was never answered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from wptrace.kernel.clock import clock_seconds
from wptrace.model import units
from wptrace.model.kind import Group, Noun
from wptrace.model.report import BYTES, InFlight, Report, Row
from wptrace.outputs.registry import Wanted
from wptrace.outputs.text import header, histogram, words
from wptrace.outputs.text.view import View
from wptrace.outputs.text.words import printable

_PAGE, _FAULT = Noun("page"), Noun("fault answered", "faults answered")
_HEADER = (
    f"  {'stage':<7} {'count':>9} {'mean':>8} {'stddev':>8} {'p50':>8} {'p90':>8} {'p99':>8} {'p99.9':>8} {'max':>8}"
)
# Beyond this number of devices and address spaces, histograms would take too much room.
_DRAWN = 8
_LISTED = 50


class FaultsView(View):
    def __init__(self, wanted: Wanted) -> None:
        super().__init__(wanted)
        self._listed: set[tuple[Any, ...]] = set()
        self._listed_ns = 0

    def in_flight(self, found: list[InFlight], at_ns: int, width: int, most: int) -> list[str]:
        """Each once: what is not answered now may never be."""
        every = [one.plain for one in found]
        # A number is used again once its fault is answered: what is younger than the last list was not in it.
        since_ns = at_ns - self._listed_ns
        fresh = [one for one in every if one["age_ns"] < since_ns or _identity(one) not in self._listed]
        self._listed, self._listed_ns = set(map(_identity, every)), at_ns
        return list(self._list(fresh, at_ns)) if fresh else []

    def _list(self, found: Sequence[Mapping[str, Any]], at_ns: int) -> Iterator[str]:
        time = clock_seconds(at_ns, self.wanted.dates)
        yield f"{time}  unanswered: {len(found):,}, the oldest for {units.duration(found[0]['age_ns'])}"
        for one in found[:_LISTED]:
            where = self.kinds[0].group(one["dev"], one["pasid"]).shown
            line = f"  {units.duration(one['age_ns']):>8}  {one['stage']:<7} {printable(where)}"
            line += f", group {one['group']}, {_PAGE.of(one['faults'])}"
            yield line + (f" from {one['address']:#x}" if one["address"] else "")
        if len(found) > _LISTED:
            yield f"  and {len(found) - _LISTED:,} more"

    def report(self, report: Report, width: int) -> Iterator[str]:
        book, time = report.book, header.time(report, self.style(width))
        line = f"{time}  {_FAULT.of(book.finished)} in {units.duration(report.duration_ns)}"
        line += f", {units.size(report.bytes)} of pages, {book.in_flight:,} in flight"
        yield line + (f", {book.failed:,} failed" if book.failed else "")
        for group, rows in groupby(report.rows, key=lambda row: row.group):
            yield ""
            yield from self._group(group, list(rows), report)

    def _group(self, group: Group, rows: list[Row], report: Report) -> Iterator[str]:
        line = f"{words.group(group)}: {_FAULT.of(rows[-1].distribution.count)}"
        if report.duration_ns:
            line += f", {units.rate(rows[-1].distribution.count * 1e9 / report.duration_ns)}"
        yield f"{line}, {units.size(report.counter(group, BYTES))} of pages"
        yield _HEADER
        for row in rows:
            found = row.distribution
            figures = (found.mean, found.stddev, *map(found.percentile, (50, 90, 99, 99.9)), found.max)
            yield f"  {row.metric:<7} {found.count:>9,}{words.durations(*figures)}"

    def closing(self, report: Report, width: int) -> Iterator[str]:
        drawn = [row for row in report.rows if row.metric == self.wanted.hist and row.distribution.count]
        for row in sorted(drawn, key=lambda row: -row.distribution.count)[:_DRAWN]:
            yield from ["", f"{words.group(row.group)} {row.metric}:"]
            yield from histogram.rows(row.distribution, width, fine=True)
        unanswered = report.lists.get("unanswered")
        if unanswered:
            yield from ["", *self._list(unanswered, report.ts_ns)]


def _identity(one: Mapping[str, Any]) -> tuple[Any, ...]:
    return one["dev"], one["pasid"], one["group"], one["address"]


VIEW = FaultsView
