# SPDX-License-Identifier: Apache-2.0
"""Periods with interrupts off: each with its stack, and at the end the functions that kept them off."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from wptrace.kernel.clock import clock_seconds, clock_time
from wptrace.model import units
from wptrace.model.distribution import Distribution
from wptrace.model.kind import TOTAL
from wptrace.model.report import Event, InFlight, Report, Start
from wptrace.outputs.registry import Wanted
from wptrace.outputs.text import header, histogram
from wptrace.outputs.text.view import View
from wptrace.outputs.text.words import durations, printable


class Columns(NamedTuple):
    """TIME CPU COMM TID LAT(us), and the stack below."""

    dates: bool

    def header(self) -> str:
        return f"{'TIME':<{26 if self.dates else 15}} {'CPU':>4} {'COMM':<16} {'TID':>7} {'LAT(us)':>9}"

    def lines(self, event: Event) -> Iterator[str]:
        shown = event.fields
        line = f"{clock_time(shown['start_ns'], self.dates)} {shown['cpu']:>4} {printable(shown['comm']):<16}"
        yield f"{line} {shown['tid']:>7} {event.total_ns // 1000:>9}"
        for frame in shown["stack"] or ["(user space)"]:
            yield f"    {printable(frame)}"


class PeriodsView(View):
    spaced = False

    def __init__(self, wanted: Wanted) -> None:
        super().__init__(wanted)
        self._columns = Columns(wanted.dates)

    def begin(self, start: Start) -> Iterator[str]:
        yield from super().begin(start)
        least = units.duration(start.filters.get("min_ns", 0))
        yield from [f"Periods with interrupts off of {least} and more:", "", self._columns.header()]

    def event(self, event: Event, width: int, whole: bool) -> Iterator[str]:
        yield from self._columns.lines(event)

    def in_flight(self, found: list[InFlight], at_ns: int, width: int, most: int) -> list[str]:
        title = f"interrupts off at {clock_seconds(at_ns, self.wanted.dates)}:"
        return [title, *(f"  {line}" for line in map(_open, found))] if found else [f"{title} on no CPU"]

    def closing(self, report: Report, width: int) -> Iterator[str]:
        worst = report.lists.get("offenders")
        if worst:
            yield from ["", "worst offenders:", *map(_offender, worst)]

    def report(self, report: Report, width: int) -> Iterator[str]:
        yield header.one_book(report, self.style(width), self.kinds[0])
        if not report.cells:
            return
        (whole,) = (found[TOTAL] for found in report.everywhere().cells.values())
        found = [(group.shown, cell[TOTAL]) for group, cell in report.cells.items()]
        yield ""
        yield f"  {'cpu':<6} {'count':>9} {'mean':>8} {'p50':>8} {'p99':>8} {'max':>8} {'of time':>8}"
        for name, one in found:
            yield _row(name, one, report.duration_ns)
        if len(found) > 1:
            yield _row("all", whole, report.duration_ns)
        yield ""
        yield from histogram.rows(whole, width)


def _row(name: str, found: Distribution, duration_ns: int) -> str:
    figures = durations(found.mean, found.percentile(50), found.percentile(99), found.max)
    part = f"{found.sum / duration_ns:.2%}" if duration_ns else ""
    return f"  {name:<6} {found.count:>9,}{figures} {part:>8}"


def _offender(one: Mapping[str, Any]) -> str:
    comm, name = printable(one["comm"]), printable(one["function"])
    whole, most = units.duration(one["sum_ns"]), units.duration(one["max_ns"])
    figures = f"  {one['count']:>7,} x {whole:>8} in all, {most:>8} at most"
    return f"{figures}  {name} ({comm})" if name else f"{figures}  others"


def _open(one: InFlight) -> str:
    line = f"{one.group.shown} for {units.duration(one.age_ns)}"
    stack: Iterable[str] = one.fields.get("stack", ())
    if "comm" in one.fields:
        line += f": {printable(one.fields['comm'])} in {' < '.join(map(printable, stack))}"
    return line


VIEW = PeriodsView
