# SPDX-License-Identifier: Apache-2.0
"""Single events in a log that is kept within a size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Callable

from wptrace.model.book import Cause
from wptrace.model.report import Event, QuietOutput
from wptrace.outputs.logfile import LogFile

LOST = Cause("log_lost", "a period could not be written to the log")
UNROTATED = Cause("log_unrotated", "the log could not be rotated and grows beyond its size")


class LogOutput(QuietOutput):
    """Each event is written at once, and a period is reported when it ends."""

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
