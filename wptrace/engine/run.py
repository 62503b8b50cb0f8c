# SPDX-License-Identifier: Apache-2.0
"""Runs a flow: attaches, reports every interval, ends on a signal, a count or a closed pipe, and sums up."""

from __future__ import annotations

import gc
import math
import os
import stat
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

from wptrace.analysis.history import History
from wptrace.analysis.verdict import Case, judge
from wptrace.bpf.programs import run_statistics
from wptrace.bpf.ring import Reader
from wptrace.engine.budget import Keeper
from wptrace.engine.flow import Flow
from wptrace.engine.signals import Stop
from wptrace.kernel.clock import wall_offset_ns
from wptrace.kernel.privileges import require_admin
from wptrace.model.book import INCONSISTENT
from wptrace.model.kind import REQUESTS
from wptrace.model.report import Controls, Output, Report, Snapshot, Start, rows_of, since

# The cells' 32-bit buckets are added up at least this often, far below what a CPU can count in.
_LONGEST_WAIT = 60.0
# Without an interval, stuck requests are looked for so often.
_STUCK_EVERY = 1.0
# So many objects more than before make Python look for garbage: those of some batches of records.
_COLLECTED = 100_000


class Looks:
    """When to look at the counters for the history: every second, unless a look costs more than a hundredth of that."""

    OFTEN = 1.0
    COST = 0.01

    def __init__(self, now: float, wanted: bool) -> None:
        self._pace = self.OFTEN if wanted else _LONGEST_WAIT
        self._last = now
        self._wanted = wanted

    @property
    def due(self) -> float:
        return self._last + self._pace

    def taken(self, now: float, cost: float) -> bool:
        """Whether a snapshot that was taken is such a look; one for a report may come somewhat early."""
        if now < self._last + self._pace / 2:
            return False
        self._last = now
        if self._wanted:
            self._pace = min(max(self.OFTEN, cost / self.COST), _LONGEST_WAIT)
        return True


class Terms(NamedTuple):
    """What is asked of a run, whichever flows it is of."""

    interval_s: float | None = None
    reports: int | None = None
    """It ends after so many."""
    statistics: bool = False
    watch_fd: int = -1
    """The output's descriptor: where it is a pipe, its reader's end is noticed without a write."""
    stuck_ns: int | None = None
    """What has been in flight that long is shown at each interval, or every second without one."""
    limit: float | None = None
    """The share of the busy CPU time that the tracing may cost; flows that cost more do less, they share it."""
    controls: Controls | None = None
    """Who may ask for something meanwhile."""


def run(pairs: Sequence[tuple[Flow, Output]], terms: Terms) -> None:
    """One or several at once, each with reports of its own."""
    with Stop() as stop, ExitStack() as cleanup:
        for _, output in pairs:
            cleanup.callback(output.close)
        if terms.statistics:
            require_admin("--stats")
            cleanup.enter_context(run_statistics())
        for flow, _ in pairs:
            cleanup.callback(flow.close)
        reader = Reader(stop.fd)
        if terms.watch_fd >= 0 and _is_pipe(terms.watch_fd):
            reader.watch_hangup(terms.watch_fd)
        if terms.controls is not None:
            stop.ending = terms.controls.leave
        share = None if terms.limit is None else terms.limit / len(pairs)
        traces = [_Trace(flow, output, terms.interval_s, terms.stuck_ns) for flow, output in pairs]
        for trace in traces:
            trace.start(reader, share, cleanup)
        collect_seldom()
        _run(traces, reader, stop, terms)


def _run(traces: Sequence[_Trace], reader: Reader, stop: Stop, terms: Terms) -> None:
    interval_s, count, controls = terms.interval_s, terms.reports, terms.controls
    done = 0
    due = time.monotonic() + interval_s if interval_s else math.inf
    for trace in traces:
        trace.begin()
    while not stop.asked and not reader.hung_up and (count is None or done < count):
        if controls is not None:
            reader.listen(controls.fd)
        reader.wait(min(due, *(trace.due for trace in traces)) - time.monotonic())
        reader.drain()
        for trace in traces:
            trace.tell()
        if controls is not None and reader.heard and not controls.take():
            controls.leave()
            break
        asked = stop.take_list()
        now = time.monotonic()
        for trace in traces:
            trace.look(now, asked, now >= due)
        if now >= due and interval_s is not None:
            done += 1
            due = _next(due, interval_s, now)
    for trace in traces:
        trace.flow.stop()
    reader.drain()
    for trace in traces:
        trace.tell()
        trace.sum_up()


class _Trace:
    """A flow while it runs, and what is made of it."""

    _first: Snapshot
    _latest: Snapshot
    _start: Start
    _looks: Looks

    def __init__(self, flow: Flow, output: Output, interval_s: float | None, stuck_ns: int | None) -> None:
        self.flow = flow
        self._output = output
        self._interval_s = interval_s
        self._stuck_ns = stuck_ns
        self._stuck_due = math.inf
        self._keeper: Keeper | None = None
        self._history = History()

    def start(self, reader: Reader, limit: float | None, cleanup: ExitStack) -> None:
        flow = self.flow
        start = flow.start(reader)
        self._first = self._latest = first = flow.snapshot()
        self._keeper = keeper = _keeper(flow, limit)
        if keeper is not None:
            cleanup.callback(keeper.close)
            start = start._replace(notes=[*start.notes, *keeper.notes()])
        self._start = start
        self._history.add(first.at_ns, first.cells)

    def begin(self) -> None:
        """Once all are attached, so that who reads of a start knows that nothing is missed."""
        self._output.start(self._start)
        now = time.monotonic()
        self._looks = Looks(now, bool(self.flow.judged))
        if self._stuck_ns is not None:
            self._stuck_due = now + (self._interval_s or _STUCK_EVERY)

    @property
    def due(self) -> float:
        return min(self._stuck_due, self._looks.due, self._keeper.due if self._keeper is not None else math.inf)

    def tell(self) -> None:
        _events(self.flow, self._output)

    def look(self, now: float, asked: bool, over: bool) -> None:
        """With `asked`, the user wants to see what is in flight; an interval may be `over`."""
        if asked:
            self._output.in_flight(self.flow.in_flight(0), time.time_ns())
        self._look_for_stuck(now)
        if self._keeper is not None and now >= self._keeper.due:
            self._keeper.look(now)
        if not over and now < self._looks.due:
            return
        before = time.process_time()
        if over:
            taken = self.flow.snapshot()
            at_ns, cells = taken.at_ns, taken.cells
        else:
            at_ns, cells = int(now * 1e9), self.flow.look()
        if self._looks.taken(now, time.process_time() - before):
            self._history.add(at_ns, cells)
        if over:
            self._output.interval(_report("interval", self.flow, taken, self._latest, self._keeper))
            self._latest = taken

    def _look_for_stuck(self, now: float) -> None:
        if self._stuck_ns is None or now < self._stuck_due:
            return
        self._stuck_due = _next(self._stuck_due, self._interval_s or _STUCK_EVERY, now)
        stuck = self.flow.in_flight(self._stuck_ns)
        if stuck:
            self._output.in_flight(stuck, time.time_ns())

    def sum_up(self) -> None:
        last = self.flow.snapshot()
        self._history.add(last.at_ns, last.cells)
        report = _report("summary", self.flow, last, self._first, self._keeper)
        for cause, count in self._output.losses().items():
            report.book.note(cause, count)
        self._output.summary(_with_verdict(report, self.flow, self._history)._replace(lists=self.flow.lists()))


def _keeper(flow: Flow, limit: float | None) -> Keeper | None:
    shedder = flow.shedder() if limit is not None else None
    return None if limit is None or shedder is None else Keeper(limit, shedder, time.monotonic())


def collect_seldom() -> None:
    """Records are many small objects without cycles: looking for some as often as Python does takes long."""
    gc.freeze()
    gc.set_threshold(_COLLECTED)


def _next(due: float, step: float, now: float) -> float:
    """After a stop (SIGSTOP, a suspended machine) it goes on from now, what was missed is not made up for."""
    return due + step if due + step > now else now + step


def _events(flow: Flow, output: Output) -> None:
    events = flow.events()
    for event in events:
        output.event(event)
    if events:
        output.flush()


def _report(kind: str, flow: Flow, now: Snapshot, earlier: Snapshot, keeper: Keeper | None) -> Report:
    cells, counters = flow.folded(*since(now, earlier))
    books = {name: book.interval(earlier.books[name]) for name, book in now.books.items()}
    shrunk = sum(found.shrunk for stages in cells.values() for found in stages.values())
    if shrunk:
        books[REQUESTS].note(INCONSISTENT, shrunk)
    return Report(
        kind,
        now.at_ns + wall_offset_ns(),
        now.at_ns - earlier.at_ns,
        books,
        rows_of(cells, flow.kinds),
        counters,
        now.overhead.since(earlier.overhead),
        budget=None if keeper is None else keeper.spending(earlier.at_ns, now.at_ns, kind == "summary"),
    )


def _with_verdict(summary: Report, flow: Flow, history: History) -> Report:
    if not flow.judged:
        return summary
    return summary._replace(verdict=judge(Case(summary, flow.judged, history.stretches, wall_offset_ns()), flow.rules))


def _is_pipe(fd: int) -> bool:
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
