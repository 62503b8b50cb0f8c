# SPDX-License-Identifier: Apache-2.0
"""Dumps of a flight recorder: when somebody asks, when something was slow, at the end."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Callable, NamedTuple

from wptrace.engine.flow import FlightRecorder
from wptrace.engine.session import Trace
from wptrace.errors import WptraceError
from wptrace.model.report import Event

_LOOKED_S = 0.25
# What follows something slow is of interest as well.
_BEHIND_NS = 1_000_000_000
_HOUR_S = 3600.0
_MOST_OF_A_NAME = 1000
# A page takes long to make, and what is traced is worth more.
_NICEST = 19
_MOST_WORDS = 4096


def _print(words: str) -> None:
    print(f"wptrace: {words}", file=sys.stderr, flush=True)


class DumpOptions(NamedTuple):
    folder: Path
    at_end: bool = False
    on_slow: bool = False
    hourly: int = 6
    """Of those for something slow, at most so many an hour."""
    asked: Callable[[], bool] = bool
    """Whether somebody asked for one since the last call, by a key."""
    say: Callable[[str], None] = _print
    page: Callable[[Path], Sequence[str]] | None = None
    """The command that makes the page of a dump; None: none is wanted."""


class Dumps:
    """A consumer that writes the recorder of a trace to files."""

    def __init__(self, trace: Trace, recorder: FlightRecorder, options: DumpOptions) -> None:
        self._trace, self._recorder, self._options, self._say = trace, recorder, options, options.say
        self._done_ns = 0
        """What was slow up to then is in a dump, or was left out."""
        self._made: deque[float] = deque(maxlen=options.hourly)
        self._pages = None if options.page is None else Pages(options.page, options.say)
        self._look = time.monotonic() + _LOOKED_S if options.on_slow else math.inf

    @property
    def due(self) -> float:
        return min(self._look, math.inf if self._pages is None else self._pages.due)

    def events(self, events: Sequence[Event]) -> None:
        pass

    def turn(self, now: float) -> None:
        if self._pages is not None:
            self._pages.turn(now)
        if now >= self._look:
            self._look = now + _LOOKED_S
            self._dump_slow(now)

    def _dump_slow(self, now: float) -> None:
        seen = self._recorder.slow_seen_ns
        if seen <= self._done_ns or time.monotonic_ns() < seen + _BEHIND_NS:
            return
        self._done_ns = seen
        if len(self._made) == self._options.hourly and now - self._made[0] < _HOUR_S:
            self._say(f"something was slow, and the recorder was written {self._options.hourly} times in the last hour")
            return
        self._made.append(now)
        self.dump()

    def dump(self) -> Path | None:
        """The file; a failure is said, and nothing is left of it."""
        try:
            path = _created(self._options.folder)
            try:
                made = self._recorder.dump(path, self._trace.start, self._trace.flow.view)
            except (WptraceError, OSError):
                path.unlink()
                raise
        except (WptraceError, OSError) as error:
            self._say(f"the recorder could not be written: {error}")
            return None
        seconds = (made.until_ns - made.since_ns) / 1e9
        # Writing it may have been slow itself.
        self._done_ns = max(self._done_ns, time.monotonic_ns())
        self._say(f"the recorder is in {made.path}: {made.records:,} records of {max(seconds, 0):.1f} s")
        if self._pages is not None:
            self._pages.add(made.path)
        return made.path

    def end(self) -> None:
        if self._options.at_end:
            self.dump()
        if self._pages is not None:
            self._pages.end()


class Pages:
    """Has pages made of dumps, one after another, each by a process of its own: the trace does not wait for them."""

    def __init__(self, command: Callable[[Path], Sequence[str]], say: Callable[[str], None]) -> None:
        self._command, self._say = command, say
        self._waiting: deque[Path] = deque()
        self._running: tuple[Path, subprocess.Popen[bytes]] | None = None
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - as long as there may be a process
        self.due = math.inf

    def add(self, dump: Path) -> None:
        self._waiting.append(dump)
        self.turn(time.monotonic())

    def turn(self, now: float) -> None:
        if self._running is not None and self._running[1].poll() is not None:
            self._ended(*self._running)
        if self._running is None and self._waiting:
            self._begin(self._waiting.popleft())
        self.due = math.inf if self._running is None else now + _LOOKED_S

    def _begin(self, dump: Path) -> None:
        self._complaints.truncate(0)
        try:
            # A signal from the terminal is for the trace.
            made = subprocess.Popen(
                self._command(dump),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._complaints,
                start_new_session=True,
            )
        except OSError as error:
            self._say(f"the page of {dump} could not be made: {error}")
            return
        self._running = dump, made
        with suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, made.pid, _NICEST)

    def _ended(self, dump: Path, made: subprocess.Popen[bytes]) -> None:
        self._running = None
        if made.returncode == 0:
            self._say(f"its page is {dump.with_suffix('.html')}")
            return
        self._complaints.seek(0)
        words = self._complaints.read(_MOST_WORDS).decode(errors="replace").strip().splitlines()
        why = words[0].removeprefix("wptrace: ") if words else f"it ended with {made.returncode}"
        self._say(f"the page of {dump} could not be made: {why}")

    def end(self) -> None:
        """All of them are there."""
        while self._running is not None or self._waiting:
            if self._running is not None:
                self._running[1].wait()
            self.turn(time.monotonic())
        self._complaints.close()


def _created(folder: Path) -> Path:
    """A file of a new name: another trace may write there at the same time."""
    stem = time.strftime("wptrace-%Y%m%d-%H%M%S")
    for number in range(_MOST_OF_A_NAME):
        path = folder / (f"{stem}-{number}.wpt" if number else f"{stem}.wpt")
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            return path
    raise WptraceError(f"{folder} has {_MOST_OF_A_NAME:,} dumps of this second", "remove some of them")
