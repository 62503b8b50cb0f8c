# SPDX-License-Identifier: Apache-2.0
"""Single events in a log that is kept within a size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Callable

from wptrace.model.book import Cause
from wptrace.model.report import Event, InFlight, Report, Start
from wptrace.outputs.logfile import LogFile

LOST = Cause("log_lost", "a period could not be written to the log")
UNROTATED = Cause("log_unrotated", "the log could not be rotated and grows beyond its size")


class LogOutput:
    def __init__(self, log: LogFile, lines: Callable[[Event], Iterable[str]]) -> None:
        self._log = log
        self._lines = lines

    def event(self, event: Event) -> None:
        self._log.write(self._lines(event))

    def losses(self) -> Mapping[Cause, int]:
        counts = {LOST: self._log.lost, UNROTATED: self._log.unrotated}
        return {
            cause._replace(description=f"{cause.description}: {self._log.problem}"): count
            for cause, count in counts.items()
            if count
        }

    def close(self) -> None:
        self._log.close()

    def start(self, start: Start) -> None:
        """Do nothing: the log has events alone."""

    def flush(self) -> None:
        """Do nothing: each event is written at once."""

    def in_flight(self, found: list[InFlight], at_ns: int) -> None:
        """Do nothing: a period is reported when it ends."""

    def interval(self, report: Report) -> None:
        """Do nothing: the log has events alone."""

    def summary(self, report: Report) -> None:
        """Do nothing: the log has events alone."""
