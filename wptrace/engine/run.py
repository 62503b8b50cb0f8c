# SPDX-License-Identifier: Apache-2.0
"""A run: a session with an output, until a signal, a count or a closed pipe ends it with a summary."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Callable, NamedTuple

from wptrace.bpf.programs import run_statistics
from wptrace.engine.flow import Flow
from wptrace.engine.session import Session, Trace, next_due
from wptrace.engine.signals import Stop
from wptrace.kernel.privileges import require_admin
from wptrace.model.report import Controls, Event, Output
from wptrace.model.rows import offer_rows

if TYPE_CHECKING:
    from wptrace.engine.dumps import DumpOptions, Dumps
    from wptrace.engine.workload import Workload

# Without an interval, stuck requests are looked for this often.
_STUCK_EVERY = 1.0


class RunOptions(NamedTuple):
    """Options of a run of any flows."""

    interval_s: float | None = None
    reports: int | None = None
    """End after this many reports."""
    statistics: bool = False
    watch_fd: int = -1
    """The output's descriptor: if it is a pipe, the exit of its reader is noticed without a write."""
    stuck_ns: int | None = None
    """List what has been in flight for so long, in each interval or every second."""
    limit: float | None = None
    """The share of busy CPU time that all flows together may cost; they shed load above it."""
    controls: Controls | None = None
    """Sources of requests while it runs, such as keys."""
    live: bool = False
    """Each interval has a verdict as well."""
    workload: Workload | None = None
    """A command that begins once all is attached, and whose end ends the run."""
    dumps: DumpOptions | None = None
    """Options of flows with a flight recorder."""
    serve: Callable[[Session], Callable[[], None]] | None = None
    """Starts another consumer of the session; returns the function that ends it."""


class Stuck:
    """Lists what has been in flight for long."""

    def __init__(self, trace: Trace, output: Output, step_s: float, at_least_ns: int, now: float) -> None:
        self._trace, self._output = trace, output
        self._step_s, self._at_least_ns = step_s, at_least_ns
        self.due = now + step_s

    def events(self, events: Sequence[Event]) -> None:
        pass

    def turn(self, now: float) -> None:
        self.due = next_due(self.due, self._step_s, now)
        found = self._trace.flow.in_flight(self._at_least_ns)
        if found:
            self._output.in_flight(found, time.time_ns())

    def end(self) -> None:
        pass


class Reports:
    """Shows events, a report of each interval and the summary."""

    def __init__(self, trace: Trace, output: Output, options: RunOptions, now: float) -> None:
        self._trace, self._output = trace, output
        self._interval_s = options.interval_s or math.inf
        self._window = trace.window_with_verdict if options.live else trace.window
        self._shown = trace.first
        self.due = now + self._interval_s
        self.count = 0

    def events(self, events: Sequence[Event]) -> None:
        if not offer_rows(self._output, events):
            for event in events:
                self._output.event(event)
        self._output.flush()

    def list_in_flight(self) -> None:
        self._output.in_flight(self._trace.flow.in_flight(0), time.time_ns())

    def turn(self, now: float) -> None:
        self.due = next_due(self.due, self._interval_s, now)
        snapshot = self._trace.snapshot()
        self._output.interval(self._window(self._shown, snapshot, "interval"))
        self._shown = snapshot
        self.count += 1

    def end(self) -> None:
        trace = self._trace
        report = trace.window_with_verdict(trace.first, trace.snapshot(), "summary")
        for cause, count in self._output.losses().items():
            report.book.note(cause, count)
        self._output.summary(report._replace(lists=trace.flow.lists()))


class _End:
    """The end of a run: a signal, or the end of the workload, which gets a moment after a signal."""

    def __init__(self, stop: Stop, workload: Workload | None) -> None:
        self._stop, self._workload = stop, workload
        self.at_latest = math.inf

    def has_come(self) -> bool:
        if self._workload is None:
            return self._stop.asked
        now = time.monotonic()
        if self._stop.asked:
            self.at_latest = min(self.at_latest, now + self._workload.grace_s)
        return self._workload.ended or now >= self.at_latest


def run(pairs: Sequence[tuple[Flow, Output]], options: RunOptions) -> None:
    """Run one or several flows at once, each with its own reports."""
    with Stop() as stop, ExitStack() as cleanup:
        for _, output in pairs:
            cleanup.callback(output.close)
        if options.statistics:
            require_admin("--stats")
            cleanup.enter_context(run_statistics())
        session = Session([flow for flow, _ in pairs], stop.fd, options.limit)
        cleanup.callback(session.close)
        session.reader.watch_hangup(options.watch_fd)
        if options.controls is not None:
            controls = options.controls
            stop.ending = lambda number: controls.leave()
        elif options.workload is not None:
            stop.ending = options.workload.signal
        session.start()
        # What is there now stays.
        gc.freeze()
        if options.serve is not None:
            cleanup.callback(options.serve(session))
        _run(session, [output for _, output in pairs], stop, options)


def _run(session: Session, outputs: Sequence[Output], stop: Stop, options: RunOptions) -> None:
    controls, workload = options.controls, options.workload
    shown: list[Reports] = []
    dumps: list[Dumps] = []
    # Before the start is reported: whoever reads that may send a request at once.
    if options.dumps is not None and any(trace.flow.flight_recorder is not None for trace in session.traces):
        stop.expect_dumps()
    # After all are attached: whoever reads of a start knows that nothing is missed.
    for trace, output in zip(session.traces, outputs):
        output.start(trace.start)
    now = time.monotonic()
    for trace, output in zip(session.traces, outputs):
        if options.stuck_ns is not None:
            trace.subscribe(Stuck(trace, output, options.interval_s or _STUCK_EVERY, options.stuck_ns, now))
        shown.append(Reports(trace, output, options, now))
        trace.subscribe(shown[-1])
        recorder = trace.flow.flight_recorder
        if options.dumps is not None and recorder is not None:
            from wptrace.engine.dumps import Dumps

            dumps.append(Dumps(trace, recorder, options.dumps))
            trace.subscribe(dumps[-1])
    end = _End(stop, workload)
    if workload is not None:
        session.reader.listen(workload.fd)
        workload.begin()
    while not session.reader.hung_up and shown[0].count != options.reports and not end.has_come():
        if controls is not None:
            session.reader.listen(controls.fd)
        session.wait(end.at_latest)
        if controls is not None and session.reader.heard and not controls.take():
            controls.leave()
            break
        if stop.take_list():
            for reports in shown:
                reports.list_in_flight()
        if stop.take_dump() or (options.dumps is not None and options.dumps.asked()):
            for one in dumps:
                one.dump()
        session.turn()
    session.end()
