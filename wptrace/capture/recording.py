# SPDX-License-Identifier: Apache-2.0
"""Reports of a capture: of the whole, or of any stretch of time by its intervals."""

from __future__ import annotations

from wptrace.capture.reader import Capture, Head, NextTrace
from wptrace.capture.sums import Intervals
from wptrace.errors import WptraceError
from wptrace.kernel.clock import clock_seconds
from wptrace.model.report import Report


class NoIntervalError(WptraceError):
    """There is nothing in a window."""

    def __init__(self, name: str, window: Window) -> None:
        begin, end = (clock_seconds(ns, True) for ns in window.covered())
        super().__init__(f"{name} has no interval in that time", f"it goes from {begin} to {end}")


class Window:
    """Times of day; without bounds it is the whole."""

    def __init__(self, head: Head, since_ns: int | None = None, until_ns: int | None = None) -> None:
        self._kinds, self._partial, self._began_ns = head.start.kinds, head.partial, head.began_ns
        self._since_ns, self._until_ns = since_ns, until_ns
        self.bounded = since_ns is not None or until_ns is not None
        self._before, self._trace, self._inside = Intervals(), Intervals(), Intervals()
        self._number = 0
        self.summary: Report | None = None
        """The summary of the current trace, if nothing of it is missing."""

    def has(self, ts_ns: int) -> bool:
        since, until = self._since_ns, self._until_ns
        return (since is None or ts_ns >= since) and (until is None or ts_ns <= until)

    def add(self, interval: Report) -> bool:
        """Take the next interval of the capture, and return whether it is in the window."""
        self._trace.add(interval)
        inside = self.has(interval.ts_ns)
        if inside and self.bounded:
            self._inside.add(interval)
        return inside

    def end(self, summary: Report) -> None:
        """Take the summary, which also has what came after the last interval."""
        if self._number in self._partial:
            # The summary has what is missing as well.
            return
        self.summary = summary
        if self.bounded and self.has(summary.ts_ns):
            rest = self._trace.rest(summary, self._kinds)
            if rest.duration_ns:
                self._inside.add(rest)

    def begin(self) -> None:
        """Begin another trace: later records belong to it."""
        whole = self._whole
        if whole is not None:
            self._before.add(whole)
        self._trace, self.summary = Intervals(), None
        self._number += 1

    @property
    def _whole(self) -> Report | None:
        """Return the report of the current trace."""
        if self.summary is not None:
            return self.summary
        return self._trace.report(self._kinds) if self._trace.count else None

    @property
    def everything(self) -> Report | None:
        """The report of the whole capture; None where it has none."""
        whole = self._whole
        if not self._before.count:
            return whole
        every = Intervals()
        for one in (self._before.report(self._kinds), whole):
            if one is not None:
                every.add(one)
        return every.report(self._kinds)

    @property
    def report(self) -> Report | None:
        """None where nothing is in the window."""
        if not self.bounded:
            return self.everything
        return self._inside.report(self._kinds) if self._inside.count else None

    def span(self, seen_ns: int) -> tuple[int, int]:
        """Return the part of the window that the recording covers; its end is before its begin if that is nothing.

        Without a report it goes to `seen_ns`, the end of the last event.
        """
        begin_ns, end_ns = self.covered(seen_ns)
        since_ns, until_ns = self._since_ns, self._until_ns
        return max(begin_ns, since_ns or 0), end_ns if until_ns is None else min(end_ns, until_ns)

    def covered(self, seen_ns: int = 0) -> tuple[int, int]:
        """Return from when to when the recording goes."""
        whole = self.everything
        if whole is None:
            return self._began_ns, max(self._began_ns, seen_ns)
        # The figures of a trace may begin before its file.
        return max(min(self._began_ns, whole.ts_ns - whole.duration_ns), 0), whole.ts_ns


def report(capture: Capture, since_ns: int | None = None, until_ns: int | None = None) -> Report | None:
    """Go through a capture once, for the report of a window."""
    window = Window(capture.head, since_ns, until_ns)
    for item in capture.items(records=False, intervals=window.bounded or not capture.head.whole):
        if isinstance(item, NextTrace):
            window.begin()
        if not isinstance(item, Report):
            continue
        if item.kind == "interval":
            window.add(item)
        else:
            window.end(item)
    return window.report
