# SPDX-License-Identifier: Apache-2.0
"""Several outputs at once."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

from wptrace.model.book import Cause
from wptrace.model.report import Event, InFlight, Output, Report, Start


class FanOut:
    def __init__(self, *outputs: Output) -> None:
        self._outputs = outputs

    @property
    def first(self) -> Output:
        return self._outputs[0]

    def start(self, start: Start) -> None:
        for one in self._outputs:
            one.start(start)

    def event(self, event: Event) -> None:
        for one in self._outputs:
            one.event(event)

    def flush(self) -> None:
        for one in self._outputs:
            one.flush()

    def in_flight(self, found: list[InFlight], at_ns: int) -> None:
        for one in self._outputs:
            one.in_flight(found, at_ns)

    def interval(self, report: Report) -> None:
        for one in self._outputs:
            one.interval(report)

    def losses(self) -> Mapping[Cause, int]:
        return {cause: count for one in self._outputs for cause, count in one.losses().items()}

    def summary(self, report: Report) -> None:
        for one in self._outputs:
            one.summary(report)

    def close(self) -> None:
        """Close all of them, even if one fails."""
        with ExitStack() as stack:
            for one in self._outputs:
                stack.callback(one.close)
