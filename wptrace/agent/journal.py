# SPDX-License-Identifier: Apache-2.0
"""Lines for the journal. If nobody takes them, or a disk is full, the traces go on.

The journal writes to a disk as well: while that does not answer, a line would be waited for, just when there is most to
trace. So what is not taken at once is dropped.
"""

from __future__ import annotations

import select
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO

from wptrace.engine.run import Reports
from wptrace.model.report import Event
from wptrace.outputs.text.words import printable

# At the end nothing is traced any more, so that the summary may take a moment.
_AT_END_S = 5.0


def _takes(stream: TextIO, within_s: float = 0.0) -> bool:
    """Whether a line can be written without a longer wait."""
    poll = select.poll()
    try:
        poll.register(stream, select.POLLOUT)
    except (OSError, ValueError):
        return True
    return bool(poll.poll(within_s * 1000))


def say(words: str) -> None:
    """Print a line."""
    with suppress(OSError):
        if _takes(sys.stderr):
            print(f"wptrace: {printable(words)}", file=sys.stderr, flush=True)


class Lines(Reports):
    """Shows slow events and the summary."""

    _dropped = 0

    def events(self, events: Sequence[Event]) -> None:
        for event in events:
            try:
                if not _takes(sys.stdout):
                    raise BlockingIOError
                super().events([event])
            except OSError:
                self._dropped += 1
                continue
            if self._dropped:
                say(f"{self._dropped:,} slow events of {self._trace.flow.name} are not shown: nobody read their lines")
                self._dropped = 0

    def list_in_flight(self) -> None:
        with suppress(OSError):
            if _takes(sys.stdout):
                super().list_in_flight()

    def end(self) -> None:
        with suppress(OSError):
            if _takes(sys.stdout, _AT_END_S):
                super().end()
