# SPDX-License-Identifier: Apache-2.0
"""`wptrace replay`: read a capture once and pass the selected parts to an output."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import Any, Callable, NamedTuple

from wptrace.analysis import neighbours
from wptrace.analysis.incident import Incidents
from wptrace.analysis.overlap import Span
from wptrace.analysis.owners import folded
from wptrace.analysis.verdict import TIMED, Case, Rules, judge
from wptrace.capture import sums
from wptrace.capture.reader import Capture, Found, Head, NextTrace, Records
from wptrace.capture.recording import NoIntervalError, Window
from wptrace.capture.selection import Selection
from wptrace.errors import UsageError, WptraceError
from wptrace.flows import cpu
from wptrace.flows.io import kinds, options, rules
from wptrace.model.book import Book, Cause
from wptrace.model.kind import REQUESTS, Kind
from wptrace.model.report import Event, Output, Report, Start, arranged
from wptrace.model.rows import offer_rows
from wptrace.tools import owned
from wptrace.tools.owned import Owned
from wptrace.tools.pace import ReplayPace
from wptrace.tools.replayed_neighbours import COUNTED, EXACT, ReplayedNeighbours, with_owners
from wptrace.tools.singles import NONSENSE, NonsenseError, Singles, request

UNLISTED = Cause(
    "unlisted",
    "requests of an operation are in no row of requests: it made several, or shares one, and its record has their sum",
)
DAMAGED = Cause("damaged", "a frame of the capture is damaged, and what it had is missing")


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
    """One in this many of the quicker events is shown; 0: none."""
    neighbours: str = ""
    """The neighbours of the summary are computed from events, by such owners."""
    by: str = ""
    """Rows by such owners are computed from events."""
    counted: bool = False
    """They are asked for, and those that the kernel counted are all that there is."""
    top: int = 0
    """How many neighbours, the largest ones; 0: all."""
    owners: int = 0
    """The same of rows by owner, of those that there are."""


def replay(
    capture: Capture,
    output: Output,
    wanted: Wanted,
    over: Callable[[], bool] = lambda: False,
    pace: ReplayPace | None = None,
) -> None:
    """Replay until the end or until the user ends it; at a `pace`, or as fast as possible."""
    gc.freeze()
    try:
        _Replay(capture, output, wanted, pace).run(over)
    except NONSENSE as error:
        # Fields of events may be anything, so this is not always a fault of the output.
        raise WptraceError(
            f"{capture.head.start.file} cannot be shown: {_wrong(error)}",
            "if wptrace wrote the file itself, this is a bug in wptrace: please report it",
        ) from error


def _wrong(error: Exception) -> str:
    """Say what is wrong with the capture, as far as the error of who shows it tells."""
    if isinstance(error, KeyError):
        return f"something in it lacks {error}"
    words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"a value in it is not of the kind that wptrace writes ({words})"


class _Replay:
    def __init__(self, capture: Capture, output: Output, wanted: Wanted, pace: ReplayPace | None) -> None:
        self._capture, self._output, self._wanted, self._pace = capture, output, wanted, pace
        self._head = head = capture.head
        self._kinds = head.start.kinds
        self._owned = Owned(wanted.by) if wanted.by else None
        self._selection = selection = wanted.selection
        self._by_rows = not selection or self._answered(head)
        self._of_singles = head.of_events or not self._by_rows
        if self._of_singles and head.start.flow == "cpu":
            # Its events are no turns.
            self._kinds = cpu.KINDS.get(str(head.start.filters.get("by")), self._kinds)[-1:]
        self._answering = owned.answering(self._kinds, selection) if self._by_rows else {}
        # Rows by owner do not say in which stage the time was, and waits not what part of it they are.
        self._judged = () if self._answering or self._kinds != head.start.kinds else head.verdict_kinds
        self._window = Window(head, wanted.since_ns, wanted.until_ns)
        self._singles = sums.Singles(self._kinds)
        self._in_the_way = rules.InTheWay()
        self._lately = sums.Singles(self._kinds)
        self._decoded = Singles(capture, capture.head, wanted.singles)
        self._last_ns = self._skipped = self._unlisted = 0
        self._shown = False
        """An event was shown."""
        self._described: dict[str, Mapping[str, Any]] = {}
        """Properties of statements in the capture, by owner."""
        self._neighbours = ReplayedNeighbours(capture, selection, wanted.neighbours) if wanted.neighbours else None
        self._incidents: Incidents | None = None
        if head.of_events and head.start.flow == "io":
            on_device = [stage.name for stage in kinds.REQUEST.stages]
            self._incidents = Incidents((kinds.OPERATION.name, kinds.HIT.name), on_device)

    def _answered(self, head: Head) -> bool:
        """Whether rows answer the selection, and not events alone."""
        lacking = [name for one in self._kinds for name in self._selection.unanswered(one)]
        if not lacking:
            return True
        if not head.has_events:
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
        emits_records = wanted.singles or self._of_singles or self._owned is not None
        last: Report | None = None
        # The summary has all that intervals have, unless only some are wanted.
        intervals = self._window.bounded or not head.whole or wanted.intervals
        for item in self._capture.items(emits_records or self._neighbours is not None, intervals):
            if over():
                return
            if isinstance(item, Records):
                if self._neighbours is not None:
                    with self._read():
                        self._neighbours.take(item, self._window.has if self._window.bounded else None)
                if emits_records and not self._offer_all(item):
                    self._take(self._of(item))
            elif isinstance(item, list):
                self._take((event, None) for event in item)
            elif isinstance(item, Found):
                shown = wanted.singles and not self._selection and self._window.has(item.ts_ns)
                if shown and self._is_due(item.ts_ns):
                    self._output.in_flight(item.found, item.ts_ns)
            elif isinstance(item, NextTrace):
                self._end(last)
                self._window.begin()
                last = None
            elif item.kind == "interval":
                self._interval(item)
            else:
                last = item
            if self._pace is not None and self._pace.over:
                # The summary is of what was seen until then.
                last = None
                break
        self._end(last)
        with self._read():
            report = self._summary()
            if report is not None and self._owned is not None:
                report = self._with_rows(report, self._owned)
            if report is not None and self._neighbours is not None:
                report = self._with_neighbours(report, self._neighbours)
            if report is not None and self._incidents is not None:
                report = report._replace(incident=self._incidents.found())
            if report is not None and self._described:
                report = self._with_origins(report)
        if report is None and self._window.bounded and not self._shown and (self._pace is None or not self._pace.over):
            raise NoIntervalError(str(self._head.start.file), self._window)
        if report is not None:
            if self._capture.damaged:
                next(iter(report.books.values())).note(DAMAGED, self._capture.damaged)
            self._output.summary(self._largest(report))

    def _end(self, summary: Report | None) -> None:
        if summary is not None:
            with self._read():
                self._window.end(summary)
                self._described.update((str(one.get("owner")), one) for one in summary.lists.get("statements", ()))

    def _start(self) -> Start:
        start, wanted, notes = self._head.start, self._wanted, []
        if self._window.bounded:
            what = "events" if self._of_singles else "intervals"
            notes.append(f"figures are those of the {what} that end in the chosen time")
        if self._of_singles and not self._head.of_events:
            notes.append("figures are those of the events of the capture, and not of its rows")
            if not self._head.each:
                notes.append("the capture does not have every event: the others are in no figure")
        filters = {**start.filters, **wanted.selection.described}
        if self._owned is not None:
            notes.append(owned.NOTE.format(wanted.by))
            filters = {**filters, "by": wanted.by}
        if wanted.neighbours:
            notes.append(EXACT.format(wanted.neighbours))
            filters = {"by": wanted.neighbours, **filters, "neighbours": True}
        elif wanted.counted:
            notes.append(COUNTED)
        return start._replace(filters=filters, notes=[*start.notes, *notes], kinds=self._shown_kinds)

    @property
    def _shown_kinds(self) -> tuple[Kind, ...]:
        return tuple(self._kinds) if self._owned is None else self._owned.instead(self._kinds)

    # --- Single ones --------------------------------------------------------------------------------------------------

    @contextmanager
    def _read(self) -> Iterator[None]:
        """Turn errors of reading into damage; those of an output are none."""
        try:
            yield
        except NONSENSE as error:
            raise NonsenseError(self._head.start.file) from error

    def _of(self, found: Records) -> Iterator[tuple[Event, Span | None]]:
        """Generate events, with the request of an operation that made only one."""
        with self._read():
            if self._of_singles or self._owned is not None:
                yield from self._decoded.with_requests(found)
            else:
                yield from zip(self._decoded.of(found), repeat(None))

    def _batches(self, found: Records) -> Iterator[Sequence[Event]]:
        with self._read():
            yield from self._decoded.batches(found)

    def _each(self, rows: Sequence[Event]) -> Iterator[tuple[Event, None]]:
        with self._read():
            yield from zip(rows, repeat(None))

    def _offer_all(self, found: Records) -> bool:
        """Offer records to the output as rows: possible where all are shown and no figures are computed."""
        wanted, window = self._wanted, self._window
        if not wanted.singles or wanted.slow_ns or self._selection or self._owned is not None or window.bounded:
            return False
        if self._pace is not None or self._of_singles:
            return False
        for rows in self._batches(found):
            if not offer_rows(self._output, rows):
                self._take(self._each(rows))
        self._output.flush()
        return True

    def _take(self, events: Iterator[tuple[Event, Span | None]]) -> None:
        wanted = self._wanted
        for event, span in events:
            is_asked = self._window.has(event.end_ns) and self._is_selected(event)
            if self._incidents is not None:
                # Operations that were not asked for may have been under way as well.
                try:
                    self._incidents.add(event, span, is_asked)
                except NONSENSE as error:
                    raise NonsenseError(self._head.start.file) from error
            if not is_asked:
                continue
            if not self._is_due(event.end_ns):
                return
            if self._of_singles or self._owned is not None:
                try:
                    self._count(event, self._requests(event, span))
                except NONSENSE as error:
                    raise NonsenseError(self._head.start.file) from error
            if wanted.singles and (not wanted.slow_ns or event.total_ns >= wanted.slow_ns or self._is_sampled()):
                self._shown = True
                self._output.event(event)
        if self._shown:
            self._output.flush()

    def _is_selected(self, event: Event) -> bool:
        try:
            return not self._selection or self._selection.has(event)
        except LookupError as error:
            raise UsageError(f"--{error.args[0]} cannot be answered: events of this capture do not have it") from None

    def _count(self, event: Event, requests: Sequence[Event]) -> None:
        if self._owned is not None:
            self._owned.add(event, requests)
        if not self._of_singles:
            return
        self._last_ns = max(self._last_ns, event.end_ns)
        self._in_the_way.add(event)
        for one in (event, *requests):
            self._singles.add(one)
            if self._pace is not None:
                self._lately.add(one)

    def _requests(self, event: Event, span: Span | None) -> Sequence[Event]:
        """Return the request that an operation made, as an event of its own."""
        if event.group.kind is not kinds.OPERATION:
            return ()
        if span is not None:
            return (request(event, span),)
        fields = event.fields
        # In a recorder they have records of their own.
        if not self._head.of_events and fields.get("requests", 0) > fields.get("readahead", 0):
            self._unlisted += 1
        return ()

    def _is_due(self, ts_ns: int) -> bool:
        """Wait for the time of an event; False if the user wants to end before."""
        return self._pace is None or self._pace.until(ts_ns)

    def _is_sampled(self) -> bool:
        if not self._wanted.sample:
            return False
        self._skipped = (self._skipped + 1) % self._wanted.sample
        return not self._skipped

    # --- Reports ------------------------------------------------------------------------------------------------------

    def _interval(self, report: Report) -> None:
        if self._window.has(report.ts_ns) and not self._is_due(report.ts_ns):
            return
        with self._read():
            if not self._window.add(report):
                return
            part = self._of_lately(report) if self._of_singles and self._pace is not None else self._part(report)
        if self._owned is not None:
            part = owned.without(part)
        if self._wanted.intervals and (not self._of_singles or self._pace is not None):
            # The report is given as a live screen has it.
            self._output.interval(self._largest(part if self._pace is None else self._with_verdict(part)))

    def _of_lately(self, report: Report) -> Report:
        """The events of the interval."""
        found, self._lately = self._lately, sums.Singles(self._kinds)
        return found.report(report.ts_ns, report.duration_ns, report.books)._replace(kind="interval")

    def _part(self, report: Report) -> Report:
        if not self._selection:
            return report
        return sums.part(report, self._kinds, self._selection.keeps, self._answering)

    def _summary(self) -> Report | None:
        if self._of_singles:
            of_events = self._of_events()
            return None if of_events is None else self._with_verdict(of_events)
        found = self._window.report
        if found is None or (found is self._window.summary and not self._selection):
            return found
        return self._with_verdict(self._part(found))

    def _largest(self, report: Report) -> Report:
        """Return it with rows of the largest owners, and of the others."""
        if not self._wanted.owners or not any(group.kind.name in owned.NAMES for group in report.cells):
            return report
        cells, counters = folded(report.cells, report.counters, self._wanted.owners)
        return report._replace(cells=arranged(cells, self._shown_kinds), counters=counters)

    def _with_rows(self, report: Report, found: Owned) -> Report:
        report = found.added(report)
        if self._unlisted and UNLISTED not in report.book.noted:
            report.book.note(UNLISTED, self._unlisted)
        return self._with_owners(report)

    def _with_origins(self, report: Report) -> Report:
        """Return it with what the capture says of the statements in its rows."""
        whose = [group.values[at] for group in report.cells if (at := group.kind.owner_place) is not None]
        owners = dict.fromkeys(one for one in whose if isinstance(one, str))
        found = [self._described[one] for one in owners if one in self._described]
        return report._replace(lists={**report.lists, "statements": found}) if found else report

    def _with_neighbours(self, report: Report, replayed: ReplayedNeighbours) -> Report:
        """Replace the kernel's counts by those of events, with their findings."""
        counters, books = replayed.figures(self._window.report, report.books, self._wanted.top)
        plain = {group: counts for group, counts in report.counters.items() if group.kind not in neighbours.KINDS}
        report = report._replace(counters={**plain, **counters}, books=books)
        return self._with_owners(report)

    def _with_owners(self, report: Report) -> Report:
        """Return it with what a verdict says of owners now, and the rest of the one that it has."""
        verdict = self._with_verdict(report).verdict
        if report.verdict is not None and verdict is not None:
            verdict = with_owners(report.verdict, verdict)
        return report._replace(verdict=verdict)

    def _of_events(self) -> Report | None:
        last = self._window.everything
        books = {one.book: Book() for one in self._kinds if one.book} if last is None else last.books
        if last is not None and not self._window.bounded:
            ts_ns, duration_ns = last.ts_ns, last.duration_ns
        else:
            begin_ns, ts_ns = self._window.span(self._last_ns)
            duration_ns = ts_ns - begin_ns
            if duration_ns < 0:
                return None
        found = self._singles.report(ts_ns, duration_ns, books)
        if self._unlisted:
            found.books[REQUESTS].note(UNLISTED, self._unlisted)
        return found._replace(counters={**found.counters, **self._in_the_way.counters()})

    def _with_verdict(self, report: Report) -> Report:
        verdict = judge(Case(report, self._judged, [], 0), self._rules()) if self._judged else None
        return report._replace(verdict=verdict)

    def _rules(self) -> Rules:
        start = self._head.start
        if start.flow not in ("io", "host"):
            return TIMED
        return rules.path() if start.level in options.OWNED else rules.BLOCK
