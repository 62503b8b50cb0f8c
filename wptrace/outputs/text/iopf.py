# SPDX-License-Identifier: Apache-2.0
"""I/O page faults: a table for each device and address space, histograms, and what was never answered."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any, Callable, NamedTuple, TextIO

from wptrace.kernel.clock import clock_time
from wptrace.model import units
from wptrace.model.results import Group, InFlight, Report, Row
from wptrace.outputs.ndjson import NdjsonOutput
from wptrace.outputs.text import histogram
from wptrace.outputs.text.plain import PlainOutput
from wptrace.outputs.text.words import printable

_WIDTH = 100
_HEADER = (
    f"  {'stage':<7} {'count':>9} {'mean':>8} {'stddev':>8} {'p50':>8} {'p90':>8} {'p99':>8} {'p99.9':>8} {'max':>8}"
)
# Histograms of more devices and address spaces than this would bury the tables.
_DRAWN = 8
_LISTED = 50
_PASID = "pasid "

Unanswered = Callable[[], list[InFlight]]
"""What has no answer when it is called."""


class View(NamedTuple):
    """How the user wants it."""

    dates: bool
    statistics: bool
    hist: str


class IopfText(PlainOutput):
    def __init__(self, stream: TextIO, view: View, unanswered: Unanswered) -> None:
        super().__init__(stream, view.statistics)
        self._view = view
        self._unanswered = unanswered
        self._told: set[tuple[Any, ...]] = set()

    def in_flight(self, found: list[InFlight], at_ns: int) -> None:
        """Each once: what is not answered now may never be."""
        fresh = [one for one in found if _identity(one) not in self._told]
        self._told |= {_identity(one) for one in fresh}
        if fresh:
            self._print(["", *self._list(fresh, at_ns)])

    def _list(self, found: list[InFlight], at_ns: int) -> Iterator[str]:
        time = clock_time(at_ns, self._view.dates).partition(".")[0]
        yield f"{time}  unanswered: {len(found):,}, the oldest for {units.duration(found[0].age_ns)}"
        for one in found[:_LISTED]:
            told = one.fields
            line = f"  {units.duration(one.age_ns):>8}  {one.stage:<7} {printable(one.dev)} {one.op}"
            line += f", group {told['group']}, {told['faults']} page{'' if told['faults'] == 1 else 's'}"
            yield line + (f" from {told['address']:#x}" if told["address"] else "")
        if len(found) > _LISTED:
            yield f"  and {len(found) - _LISTED:,} more"

    def lines(self, report: Report) -> Iterator[str]:
        book = report.accounting
        time = clock_time(report.ts_ns, self._view.dates).partition(".")[0]
        line = f"{time}  {_faults(book.finished)} in {units.duration(report.duration_ns)}"
        line += f", {units.size(sum(report.bytes.values()))} of pages, {book.in_flight:,} in flight"
        yield line + (f", {report.failed:,} failed" if report.failed else "")
        for group, rows in groupby(report.rows, key=lambda row: row.group):
            yield ""
            yield from self._group(group, list(rows), report)

    def _group(self, group: Group, rows: list[Row], report: Report) -> Iterator[str]:
        line = f"{printable(group.dev)} {group.op}: {_faults(rows[-1].distribution.count)}"
        if report.duration_ns:
            line += f", {units.rate(rows[-1].distribution.count * 1e9 / report.duration_ns)}"
        yield f"{line}, {units.size(report.bytes.get(group, 0))} of pages"
        yield _HEADER
        for row in rows:
            found = row.distribution
            figures = (found.mean, found.stddev, *map(found.percentile, (50, 90, 99, 99.9)), found.max)
            yield f"  {row.stage:<7} {found.count:>9,}" + "".join(f" {units.duration(one):>8}" for one in figures)

    def summary(self, report: Report) -> None:
        super().summary(report)
        lines: list[str] = []
        drawn = [row for row in report.rows if row.stage == self._view.hist and row.distribution.count]
        for row in sorted(drawn, key=lambda row: -row.distribution.count)[:_DRAWN]:
            lines += ["", f"{printable(row.group.dev)} {row.group.op} {row.stage}:"]
            lines += histogram.rows(row.distribution, _WIDTH, fine=True)
        unanswered = self._unanswered()
        if unanswered:
            lines += ["", *self._list(unanswered, report.ts_ns)]
        self._print(lines)


class IopfJson(NdjsonOutput):
    """Address spaces are numbers here, and the summary has what was never answered."""

    def __init__(self, stream: TextIO, unanswered: Unanswered) -> None:
        super().__init__(stream)
        self._unanswered = unanswered
        self._last: list[InFlight] = []

    def summary(self, report: Report) -> None:
        self._last = self._unanswered()
        super().summary(report)

    def _write(self, line: dict[str, Any]) -> None:
        if line["kind"] == "summary":
            # Its rules are about block I/O.
            line.pop("verdict", None)
            line["unanswered"] = [
                {"dev": one.dev, "op": one.op, "age_ns": one.age_ns, "stage": one.stage, **one.fields}
                for one in self._last
            ]
        for told in (*line.get("rows", ()), *line.get("found", ()), *line.get("unanswered", ())):
            number = told["op"].partition(_PASID)[2]
            told["pasid"] = int(number) if number.isdecimal() else None
            told["op"] = "fault"
        super()._write(line)


def _identity(one: InFlight) -> tuple[Any, ...]:
    return one.dev, one.op, one.fields["group"], one.fields["address"]


def _faults(count: int) -> str:
    return f"{count:,} fault{'' if count == 1 else 's'} answered"
