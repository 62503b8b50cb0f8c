# SPDX-License-Identifier: Apache-2.0
"""Dumps of a flight recorder: on request, after a slow event, and at the end."""

from __future__ import annotations

import math
import os
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Callable, NamedTuple

from wptrace.engine.children import Children, Command, itself
from wptrace.engine.session import Trace
from wptrace.errors import WptraceError
from wptrace.model.report import Event

if TYPE_CHECKING:
    from wptrace.engine.recorder import Dump, Recorder

_LOOKED_S = 0.25
# The time after a slow event is of interest as well.
_BEHIND_NS = 1_000_000_000
_HOUR_S = 3600.0
_MOST_OF_A_NAME = 1000


def _print(words: str) -> None:
    print(f"wptrace: {words}", file=sys.stderr, flush=True)


class DumpOptions(NamedTuple):
    folder: Path
    at_end: bool = False
    on_slow: bool = False
    hourly: int = 6
    """The limit of dumps for slow events in an hour."""
    asked: Callable[[], bool] = bool
    """Whether a key requested a dump since the last call."""
    say: Callable[[str], None] = _print
    page: Callable[[Path], Command] | None = None
    """Makes the command that writes the page of a dump; None if no page is wanted."""


class Dumps:
    """A consumer that writes the recorder of a trace to files."""

    def __init__(self, trace: Trace, recorder: Recorder, options: DumpOptions) -> None:
        self._trace, self._recorder, self._options, self._say = trace, recorder, options, options.say
        self._done_ns = 0
        """The time up to which slow events are in a dump or were left out."""
        self._awaited_ns = 0
        """The time of the slow event whose dump is due; 0 if there is none."""
        self._next_ns = 0
        """The least time of the next dump for a slow event."""
        self._told: float | None = None
        """The first of the dumps of an hour of which it was said that they are all."""
        self._made: deque[float] = deque(maxlen=options.hourly)
        self._pages = Children(options.say)
        self._look = time.monotonic() + _LOOKED_S if options.on_slow else math.inf

    @property
    def due(self) -> float:
        return min(self._look, self._pages.due)

    def events(self, events: Sequence[Event]) -> None:
        pass

    def turn(self, now: float) -> None:
        self._pages.turn(now)
        if now >= self._look:
            self._look = now + _LOOKED_S
            # The first one counts: while a disk is slow, each is followed by the next within a second.
            if self._is_slow() and time.monotonic_ns() >= max(self._awaited_ns + _BEHIND_NS, self._next_ns):
                self._dump_slow(now)

    def _is_slow(self) -> bool:
        """Whether something was slow that no dump has."""
        seen = self._recorder.slow_seen_ns
        if not self._awaited_ns and seen > self._done_ns:
            self._awaited_ns = seen
        return self._awaited_ns > 0

    def _dump_slow(self, now: float) -> None:
        self._awaited_ns, self._done_ns = 0, self._recorder.slow_seen_ns
        if len(self._made) == self._options.hourly and now - self._made[0] < _HOUR_S:
            if self._told != self._made[0]:
                times = f"{self._options.hourly} times in the last hour"
                self._say(f"something was slow, but the recorder was written {times}: no more for now")
            self._told = self._made[0]
            return
        self._made.append(now)
        self.dump()

    def dump(self) -> Path | None:
        """Write a dump and return its path; on failure report it and leave no file behind."""
        try:
            made = self.copied()()
        except (WptraceError, OSError) as error:
            self.failed(error)
            return None
        return self.written(made)

    def copied(self) -> Callable[[], Dump]:
        """Copy the recorder; return what writes the copy to a file, in any thread."""
        write = self._recorder.copied(self._trace.start, self._trace.flow.view)

        def to_file() -> Dump:
            path = created(self._options.folder)
            try:
                return write(path)
            except (WptraceError, OSError):
                path.unlink()
                raise

        return to_file

    def failed(self, error: Exception) -> None:
        self._say(f"the recorder could not be written: {error}")

    def written(self, made: Dump) -> Path:
        """Tell of it; return its path."""
        span_ns = max(made.until_ns - made.since_ns, 0)
        # Half of the next one is new, and what was slow meanwhile is surely still there.
        self._next_ns = made.until_ns + span_ns // 2
        # Writing the dump may have caused slow events.
        self._awaited_ns, self._done_ns = 0, max(self._done_ns, time.monotonic_ns())
        self._say(f"the recorder is in {made.path}: {made.records:,} records of {span_ns / 1e9:.1f} s")
        if self._options.page is not None:
            self._pages.add(self._options.page(made.path))
        return made.path

    def end(self) -> None:
        if self._options.at_end:
            self.dump()
        elif self._options.on_slow and self._is_slow():
            self._dump_slow(time.monotonic())
        self._pages.finish()


def created(folder: Path) -> Path:
    """A file with a new name; other traces may write to the same folder."""
    stem = time.strftime("wptrace-%Y%m%d-%H%M%S")
    for number in range(_MOST_OF_A_NAME):
        path = folder / (f"{stem}-{number}.wpt" if number else f"{stem}.wpt")
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            return path
    raise WptraceError(f"{folder} already has {_MOST_OF_A_NAME:,} dumps for this second", "remove some of them")


def page(dump: Path) -> Command:
    """Return the command that writes the page of a dump."""
    made = dump.with_suffix(".html")
    return Command(itself("report", str(dump), "-o", str(made)), f"the page of {dump}", f"its page is {made}")
