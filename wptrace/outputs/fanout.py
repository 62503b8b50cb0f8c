# SPDX-License-Identifier: Apache-2.0
"""Several outputs at once. One whose reader has left is done; the others, such as files, go on to their ends."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Callable

from wptrace.model.book import Cause
from wptrace.model.report import Event, InFlight, Output, Report, Start


class FanOut:
    def __init__(self, *outputs: Output) -> None:
        self._outputs = outputs
        self.first = outputs[0]

    def _each(self, call: Callable[[Output], None]) -> None:
        for one in self._outputs:
            try:
                call(one)
            except BrokenPipeError:
                self._outputs = tuple(other for other in self._outputs if other is not one)

    def start(self, start: Start) -> None:
        self._each(lambda one: one.start(start))

    def event(self, event: Event) -> None:
        self._each(lambda one: one.event(event))

    def flush(self) -> None:
        self._each(lambda one: one.flush())

    def in_flight(self, found: list[InFlight], at_ns: int) -> None:
        self._each(lambda one: one.in_flight(found, at_ns))

    def interval(self, report: Report) -> None:
        self._each(lambda one: one.interval(report))

    def losses(self) -> Mapping[Cause, int]:
        return {cause: count for one in self._outputs for cause, count in one.losses().items()}

    def summary(self, report: Report) -> None:
        self._each(lambda one: one.summary(report))

    def close(self) -> None:
        """Close all of them, even if one fails."""
        with ExitStack() as stack:
            for one in self._outputs:
                stack.callback(one.close)
