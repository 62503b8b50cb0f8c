# SPDX-License-Identifier: Apache-2.0
"""Periods with interrupts off: one by one with their stacks, and at the end who kept them off."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TextIO

from wptrace.analysis.offenders import Offender, Offenders
from wptrace.kernel.clock import clock_time
from wptrace.model import units
from wptrace.model.book import Cause
from wptrace.model.distribution import Distribution
from wptrace.model.results import InFlight, Report, Request, Start
from wptrace.outputs.json_line import encoded
from wptrace.outputs.logfile import LogFile
from wptrace.outputs.ndjson import NdjsonOutput
from wptrace.outputs.text import histogram
from wptrace.outputs.text.plain import PlainOutput
from wptrace.outputs.text.words import printable

LOG_LOST = Cause("log_lost", "a period could not be written to the log")
LOG_UNROTATED = Cause("log_unrotated", "the log could not be rotated and grows beyond its size")

_WORST = 10
_WIDTH = 100
# What turns interrupts on again for others is on top of the stack at the end of a period; they are who to name.
_HELPERS = ("_raw_", "__raw_", "raw_", "__pv_", "pv_", "native_", "__local_", "local_", "ktime_get", "read_tsc")
_NOBODY = "(user space)"


class View(NamedTuple):
    """How the user wants it."""

    dates: bool
    statistics: bool
    intervals: bool
    """Whether intervals are reported: one that stands for the whole time is not."""


def function(stack: list[str]) -> str:
    """Who is to be named of a stack."""
    names = [frame.partition("+")[0] for frame in stack]
    return next((name for name in names if not name.startswith(_HELPERS)), names[0] if names else _NOBODY)


class Columns(NamedTuple):
    """TIME CPU COMM TID LAT(us), and the stack below."""

    dates: bool

    def header(self) -> str:
        return f"{'TIME':<{26 if self.dates else 15}} {'CPU':>4} {'COMM':<16} {'TID':>7} {'LAT(us)':>9}"

    def lines(self, request: Request) -> Iterator[str]:
        told = request.fields
        line = f"{clock_time(told['start_ns'], self.dates)} {told['cpu']:>4} {printable(told['comm']):<16}"
        yield f"{line} {told['tid']:>7} {request.total_ns // 1000:>9}"
        for frame in told["stack"] or [_NOBODY]:
            yield f"    {printable(frame)}"


class IrqoffText(PlainOutput):
    def __init__(self, stream: TextIO, view: View, log: LogFile | None = None) -> None:
        super().__init__(stream, view.statistics)
        self._view = view
        self._log = log
        self._columns = Columns(view.dates)
        self._offenders = Offenders()

    def start(self, start: Start) -> None:
        super().start(start)
        least = units.duration(start.filters["min_ns"])
        self._print([f"Periods with interrupts off of {least} and more:", "", self._columns.header()])

    def request(self, request: Request) -> None:
        self._offenders.add(_key(request), request.total_ns)
        lines = list(self._columns.lines(request))
        self._print(lines)
        if self._log is not None:
            # Whoever opens it next week wants to know which day it was.
            self._log.write(Columns(dates=True).lines(request))

    def in_flight(self, found: list[InFlight], at_ns: int) -> None:
        title = f"interrupts off at {clock_time(at_ns, self._view.dates).partition('.')[0]}:"
        self._print([title, *(f"  {line}" for line in map(_open, found))] if found else [f"{title} on no CPU"])

    def interval(self, report: Report) -> None:
        if self._view.intervals:
            super().interval(report)

    def summary(self, report: Report) -> None:
        _note(report, self._log)
        super().summary(report)
        worst = self._offenders.worst(_WORST)
        if worst:
            self._print(["", "worst offenders:", *map(_offender, worst)])

    def lines(self, report: Report) -> Iterator[str]:
        book = report.accounting
        time = clock_time(report.ts_ns, self._view.dates).partition(".")[0]
        count = f"{book.finished:,} period{'' if book.finished == 1 else 's'} with interrupts off"
        yield f"{time}  {count} in {units.duration(report.duration_ns)}, {book.in_flight:,} in flight"
        found = {row.group.dev: row.distribution for row in report.rows if row.stage == "total"}
        if not found:
            return
        whole = Distribution()
        for one in found.values():
            whole.merge(one)
        yield ""
        yield f"  {'cpu':<6} {'count':>9} {'mean':>8} {'p50':>8} {'p99':>8} {'max':>8} {'of time':>8}"
        for name in sorted(found, key=lambda name: int(name[len("cpu") :])):
            yield _row(name, found[name], report.duration_ns)
        if len(found) > 1:
            yield _row("all", whole, report.duration_ns * len(found))
        yield ""
        yield from histogram.rows(whole, _WIDTH)

    def close(self) -> None:
        super().close()
        if self._log is not None:
            self._log.close()


class IrqoffJson(NdjsonOutput):
    def __init__(self, stream: TextIO, view: View, log: LogFile | None = None) -> None:
        super().__init__(stream)
        self._view = view
        self._log = log
        self._offenders = Offenders()

    def _write(self, line: dict[str, Any]) -> None:
        if line["kind"] == "summary":
            # Its rules are about block I/O.
            line.pop("verdict", None)
            line["offenders"] = [_as_json(one) for one in self._offenders.worst(_WORST)]
        if line["kind"] == "irqoff" and self._log is not None:
            self._log.write([encoded(line)])
        super()._write(line)

    def request(self, request: Request) -> None:
        self._offenders.add(_key(request), request.total_ns)
        super().request(request)

    def interval(self, report: Report) -> None:
        if self._view.intervals:
            super().interval(report)

    def summary(self, report: Report) -> None:
        _note(report, self._log)
        super().summary(report)

    def close(self) -> None:
        super().close()
        if self._log is not None:
            self._log.close()


def _key(request: Request) -> tuple[str, str]:
    return request.fields["comm"], function(request.fields["stack"])


def _note(report: Report, log: LogFile | None) -> None:
    if log is not None:
        for cause, count in ((LOG_LOST, log.lost), (LOG_UNROTATED, log.unrotated)):
            if count:
                report.accounting.note(cause._replace(description=f"{cause.description}: {log.problem}"), count)


def _row(name: str, found: Distribution, duration_ns: int) -> str:
    figures = (found.mean, found.percentile(50), found.percentile(99), found.max)
    part = f"{found.sum / duration_ns:.2%}" if duration_ns else ""
    return f"  {name:<6} {found.count:>9,}" + "".join(f" {units.duration(one):>8}" for one in figures) + f" {part:>8}"


def _offender(one: Offender) -> str:
    comm, name = (*map(printable, one.key), "", "")[:2]
    figures = f"  {one.cases:>7,} x {units.duration(one.sum):>8} in all, {units.duration(one.max):>8} at most"
    return f"{figures}  {name} ({comm})" if name else f"{figures}  others"


def _as_json(one: Offender) -> dict[str, Any]:
    comm, name = (*one.key, "", "")[:2]
    return {"comm": comm, "function": name, "count": one.cases, "sum_ns": one.sum, "max_ns": one.max}


def _open(one: InFlight) -> str:
    line = f"{one.dev} for {units.duration(one.age_ns)}"
    stack: Iterable[str] = one.fields.get("stack", ())
    if "comm" in one.fields:
        line += f": {printable(one.fields['comm'])} in {' < '.join(map(printable, stack))}"
    return line
