# SPDX-License-Identifier: Apache-2.0
"""Reports of a capture: of the whole, or of any stretch of time by its intervals."""

from __future__ import annotations

from collections.abc import Sequence

from wptrace.capture.reader import Capture
from wptrace.capture.sums import Intervals
from wptrace.model.kind import Kind
from wptrace.model.report import Report


class Window:
    """Times of day; without bounds it is the whole."""

    def __init__(self, kinds: Sequence[Kind], since_ns: int | None = None, until_ns: int | None = None) -> None:
        self._kinds = kinds
        self._since_ns, self._until_ns = since_ns, until_ns
        self.bounded = since_ns is not None or until_ns is not None
        self._all, self._inside = Intervals(), Intervals()
        self.summary: Report | None = None

    def has(self, ts_ns: int) -> bool:
        since, until = self._since_ns, self._until_ns
        return (since is None or ts_ns >= since) and (until is None or ts_ns <= until)

    def add(self, interval: Report) -> bool:
        """Take the next interval of the capture, and return whether it is in the window."""
        self._all.add(interval)
        inside = self.has(interval.ts_ns)
        if inside and self.bounded:
            self._inside.add(interval)
        return inside

    def end(self, summary: Report) -> None:
        """Take the summary, which also has what came after the last interval."""
        self.summary = summary
        if self.bounded and self.has(summary.ts_ns):
            rest = self._all.rest(summary, self._kinds)
            if rest.duration_ns:
                self._inside.add(rest)

    @property
    def everything(self) -> Report | None:
        """The report of the whole capture; None where it has none."""
        if self.summary is not None:
            return self.summary
        return self._all.report(self._kinds) if self._all.count else None

    @property
    def report(self) -> Report | None:
        """None where nothing is in the window."""
        if not self.bounded:
            return self.everything
        return self._inside.report(self._kinds) if self._inside.count else None


def report(capture: Capture, since_ns: int | None = None, until_ns: int | None = None) -> Report | None:
    """Go through a capture once, for the report of a window."""
    window = Window(capture.head.start.kinds, since_ns, until_ns)
    for item in capture.items(records=False, intervals=window.bounded or not capture.head.whole):
        if not isinstance(item, Report):
            continue
        if item.kind == "interval":
            window.add(item)
        else:
            window.end(item)
    return window.report
