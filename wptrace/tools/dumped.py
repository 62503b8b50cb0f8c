# SPDX-License-Identifier: Apache-2.0
"""A dump of the flight recorder has events alone: the intervals that a trace would have had are summed up from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from wptrace.capture import sums
from wptrace.capture.reader import Capture, Records
from wptrace.flows.io import kinds
from wptrace.model.book import Book
from wptrace.model.report import Report, Start
from wptrace.tools.singles import Singles, request

_SECOND = 1_000_000_000
_IO = (kinds.OPERATION.name, kinds.REQUEST.name)


def start(found: Start) -> Start:
    """Return a start with what records have all of: no owners, no waits, and no hits that were quick."""
    if found.flow != "io":
        return found
    filters = {name: value for name, value in found.filters.items() if name != "by"}
    return found._replace(kinds=tuple(kind for kind in found.kinds if kind.name in _IO), filters=filters)


class Dumped:
    def __init__(self, capture: Capture) -> None:
        self._kinds = start(capture.head.start).kinds
        self._decoded = Singles(capture, capture.head, whole=False)
        self._begin(capture.head.began_ns)

    def _begin(self, began_ns: int | None) -> None:
        self._began_ns = began_ns
        self._since_ns: int | None = None
        self._reported_ns = 0
        self._events = sums.Singles(self._kinds)

    def next_trace(self) -> None:
        """Begin with the next event. What is left of a dump without a summary is dropped."""
        self._begin(None)

    def take(self, found: Records) -> Iterator[Report]:
        """Generate the intervals that are over. A second without any event is part of the interval before it."""
        for event, span in self._decoded.with_requests(found):
            if self._since_ns is None:
                # Where nothing says when a dump began, it is its first event.
                self._since_ns = event.end_ns if self._began_ns is None else min(self._began_ns, event.end_ns)
            seconds = (event.end_ns - self._since_ns) // _SECOND
            if seconds > 0:
                self._since_ns += seconds * _SECOND
                yield self._report(self._since_ns, seconds * _SECOND, {one.book: Book() for one in self._kinds})
            self._events.add(event)
            if span is not None and event.group.kind is kinds.OPERATION:
                self._events.add(request(event, span))

    def rest(self, summary: Report) -> Report:
        """Return what came after the last interval, with the losses of all."""
        return self._report(summary.ts_ns, max(summary.duration_ns - self._reported_ns, 0), summary.books)

    def _report(self, ts_ns: int, duration_ns: int, books: Mapping[str, Book]) -> Report:
        self._reported_ns += duration_ns
        found, self._events = self._events, sums.Singles(self._kinds)
        return found.report(ts_ns, duration_ns, books)._replace(kind="interval")
