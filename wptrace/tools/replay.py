# SPDX-License-Identifier: Apache-2.0
"""What `wptrace replay` does: goes through a capture once, and hands an output what is wanted of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Callable, NamedTuple

from wptrace.analysis import neighbours
from wptrace.analysis.verdict import TIMED, Case, Rules, judge
from wptrace.capture import sums
from wptrace.capture.reader import Capture, Found, Head, Records
from wptrace.capture.selection import Selection
from wptrace.engine.run import collect_seldom
from wptrace.errors import UsageError, WptraceError
from wptrace.flows.io import block, joined, kinds, rules
from wptrace.model.book import Book
from wptrace.model.report import Event, Output, Report, Start
from wptrace.tools.met import COUNTED, EXACT, Met, with_owners
from wptrace.tools.pace import Pace
from wptrace.tools.singles import NONSENSE, NonsenseError, Singles

KINDS = (*kinds.KINDS, block.REQUEST, joined.JOINED)
"""What flows have rules about."""


class Wanted(NamedTuple):
    selection: Selection
    slow_ns: int = 0
    """Events that took at least as long."""
    since_ns: int | None = None
    until_ns: int | None = None
    """Times of day."""
    singles: bool = True
    intervals: bool = False
    """Each of them is shown, unless figures are computed from events."""
    sample: int = 0
    """Of events that took less, one in so many is shown; 0: none."""
    neighbours: str = ""
    """The neighbours of the summary are computed from events, by such owners."""
    counted: bool = False
    """They are asked for, and those that the kernel counted are all that there is."""
    top: int = 0
    """Of so many of them, the largest; 0: all."""


def replay(
    capture: Capture,
    output: Output,
    wanted: Wanted,
    over: Callable[[], bool] = lambda: False,
    pace: Pace | None = None,
) -> None:
    """Until somebody says that it is over; at a `pace`, or as quickly as it goes."""
    collect_seldom()
    try:
        _Replay(capture, output, wanted, pace).run(over)
    except NONSENSE as error:
        # Fields of events may be anything, so this is not always a fault of the output.
        words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise WptraceError(
            f"{capture.head.start.file} has something that cannot be shown ({words})",
            "where wptrace itself wrote the file, this is a fault of wptrace: please report it",
        ) from error


class _Replay:
    def __init__(self, capture: Capture, output: Output, wanted: Wanted, pace: Pace | None) -> None:
        self._capture, self._output, self._wanted, self._pace = capture, output, wanted, pace
        self._head = head = capture.head
        self._kinds = head.start.kinds
        self._selection = selection = wanted.selection
        self._by_rows = not selection or self._answered(head)
        self._timed = wanted.since_ns is not None or wanted.until_ns is not None
        self._singles = sums.Singles(self._kinds)
        self._lately = sums.Singles(self._kinds)
        self._of_singles = bool(selection) and not self._by_rows
        self._all, self._some = sums.Intervals(), sums.Intervals()
        self._last: Report | None = None
        self._decoded = Singles(capture, capture.head, wanted.singles)
        self._first_ns = self._last_ns = self._untold = 0
        self._met = Met(capture, selection, wanted.neighbours) if wanted.neighbours else None

    def _answered(self, head: Head) -> bool:
        """Whether rows answer the selection, and not events alone."""
        lacking = [name for one in self._kinds for name in self._selection.unanswered(one)]
        if not lacking:
            return True
        if not head.told:
            if any(not self._selection.unanswered(one) for one in self._kinds):
                return True
            raise UsageError(
                f"--{lacking[0]} cannot be answered: rows of this capture do not have it, and there are no events",
                "capture with --each, --slow or --sample, where the command has them",
            )
        return False

    def run(self, over: Callable[[], bool]) -> None:
        wanted, head = self._wanted, self._head
        self._output.start(self._start())
        if self._pace is not None:
            self._pace.begin(wanted.since_ns or head.began_ns)
        telling = wanted.singles or self._of_singles
        # The summary has all that intervals have, unless only some are wanted.
        intervals = self._timed or not head.whole or wanted.intervals
        for item in self._capture.items(telling or self._met is not None, intervals):
            if over():
                return
            if isinstance(item, Records):
                if self._met is not None:
                    with self._read():
                        self._met.take(item, self._is_inside if self._timed else None)
                if telling:
                    self._take(self._of(item))
            elif isinstance(item, list):
                self._take(iter(item))
            elif isinstance(item, Found):
                if wanted.singles and not self._selection and self._is_inside(item.ts_ns) and self._is_due(item.ts_ns):
                    self._output.in_flight(item.found, item.ts_ns)
            elif item.kind == "interval":
                self._interval(item)
            else:
                self._last = item
            if self._pace is not None and self._pace.over:
                # What was seen until then is what is summed up.
                self._last = None
                break
        with self._read():
            report = self._summary()
            if report is not None and self._met is not None:
                report = self._with_neighbours(report, self._met)
        if report is not None:
            self._output.summary(report)

    def _start(self) -> Start:
        start, wanted, notes = self._head.start, self._wanted, []
        if self._timed:
            notes.append("figures are those of the intervals that end in the chosen time")
        if self._of_singles:
            notes.append("figures are those of the events of the capture, and not of its rows")
            if not self._head.each:
                notes.append("that is not each of them: the others are in no figure")
        filters = {**start.filters, **wanted.selection.told}
        if wanted.neighbours:
            notes.append(EXACT.format(wanted.neighbours))
            filters = {"by": wanted.neighbours, **filters, "neighbours": True}
        elif wanted.counted:
            notes.append(COUNTED)
        return start._replace(filters=filters, notes=[*start.notes, *notes])

    # --- Single ones --------------------------------------------------------------------------------------------------

    @contextmanager
    def _read(self) -> Iterator[None]:
        """What reading raises is damage; what an output raises is not."""
        try:
            yield
        except NONSENSE as error:
            raise NonsenseError(self._head.start.file) from error

    def _of(self, found: Records) -> Iterator[Event]:
        with self._read():
            yield from self._decoded.of(found)

    def _take(self, events: Iterator[Event]) -> None:
        wanted, selection = self._wanted, self._selection
        told = False
        for event in events:
            if self._timed and not self._is_inside(event.end_ns):
                continue
            if selection:
                try:
                    if not selection.has(event):
                        continue
                except LookupError as error:
                    raise UsageError(
                        f"--{error.args[0]} cannot be answered: events of this capture do not have it"
                    ) from None
            if not self._is_due(event.end_ns):
                return
            if self._of_singles:
                self._first_ns = self._first_ns or event.start_ns
                self._last_ns = event.end_ns
                try:
                    self._singles.add(event)
                    if self._pace is not None:
                        self._lately.add(event)
                except NONSENSE as error:
                    raise NonsenseError(self._head.start.file) from error
            if wanted.singles and (event.total_ns >= wanted.slow_ns or self._is_sampled()):
                told = True
                self._output.event(event)
        if told:
            self._output.flush()

    def _is_due(self, ts_ns: int) -> bool:
        """When it is time for it; False where the user wants to end before."""
        return self._pace is None or self._pace.until(ts_ns)

    def _is_sampled(self) -> bool:
        if not self._wanted.sample:
            return False
        self._untold = (self._untold + 1) % self._wanted.sample
        return not self._untold

    def _is_inside(self, ts_ns: int) -> bool:
        since, until = self._wanted.since_ns, self._wanted.until_ns
        return (since is None or ts_ns >= since) and (until is None or ts_ns <= until)

    # --- Reports ------------------------------------------------------------------------------------------------------

    def _interval(self, report: Report) -> None:
        if self._is_inside(report.ts_ns) and not self._is_due(report.ts_ns):
            return
        with self._read():
            self._all.add(report)
            if not self._is_inside(report.ts_ns):
                return
            if self._timed:
                self._some.add(report)
            part = self._of_lately(report) if self._of_singles and self._pace is not None else self._part(report)
        if self._wanted.intervals and (not self._of_singles or self._pace is not None):
            self._output.interval(part)

    def _of_lately(self, report: Report) -> Report:
        """The events of the interval."""
        found, self._lately = self._lately, sums.Singles(self._kinds)
        return found.report(report.ts_ns, report.duration_ns, report.books)._replace(kind="interval")

    def _part(self, report: Report) -> Report:
        return sums.part(report, self._kinds, self._selection.keeps) if self._selection else report

    def _summary(self) -> Report | None:
        last = self._last
        if self._of_singles:
            return self._judged(self._of_events())
        if self._timed:
            if last is not None and self._is_inside(last.ts_ns):
                rest = self._all.rest(last, self._kinds)
                if rest.duration_ns:
                    self._some.add(rest)
            found = self._some
        elif last is not None:
            return self._judged(self._part(last)) if self._selection else last
        else:
            found = self._all
        return self._judged(self._part(found.report(self._kinds))) if found.count else None

    def _with_neighbours(self, report: Report, met: Met) -> Report:
        """Those of events instead of those that the kernel counted, with what the verdict says of them."""
        counters, books = met.figures(self._whole(), report.books, self._wanted.top)
        plain = {group: counts for group, counts in report.counters.items() if group.kind not in neighbours.KINDS}
        report = report._replace(counters={**plain, **counters}, books=books)
        judged = self._judged(report).verdict
        if report.verdict is not None and judged is not None:
            judged = with_owners(report.verdict, judged)
        return report._replace(verdict=judged)

    def _whole(self) -> Report | None:
        """What the capture has in the time that is wanted, by any owner."""
        if self._timed:
            return self._some.report(self._kinds) if self._some.count else None
        return self._last if self._last is not None else self._all.report(self._kinds) if self._all.count else None

    def _of_events(self) -> Report:
        last = self._last if self._last is not None else self._all.report(self._kinds) if self._all.count else None
        books = {one.book: Book() for one in self._kinds if one.book} if last is None else last.books
        if last is not None and not self._timed:
            ts_ns, duration_ns = last.ts_ns, last.duration_ns
        else:
            ts_ns, duration_ns = self._last_ns, max(self._last_ns - self._first_ns, 0)
        return self._singles.report(ts_ns, duration_ns, books)

    def _judged(self, report: Report) -> Report:
        if not self._head.judged:
            return report
        return report._replace(verdict=judge(Case(report, self._head.judged, [], 0), self._rules()))

    def _rules(self) -> Rules:
        start = self._head.start
        if start.flow not in ("io", "host"):
            return TIMED
        return rules.path({}) if start.level == "path" else rules.BLOCK
