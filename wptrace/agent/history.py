# SPDX-License-Identifier: Apache-2.0
"""A history of all intervals with their buckets, in captures of an hour each; the oldest are removed for new ones."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Callable

from wptrace.agent.disk import AT_END_S, Disk, Get
from wptrace.capture.writer import About, CaptureOutput
from wptrace.engine.session import QuietConsumer, Trace, next_due
from wptrace.errors import WptraceError
from wptrace.kernel.files import is_regular
from wptrace.model.report import Report, Snapshot

_FILE_S = 3600.0
_FILES = 16
"""One file takes at most this fraction of the space."""
_PAUSE_S = 60.0
"""The pause after a failure, such as a full disk."""
_MOST_OF_A_NAME = 100
_NAME = re.compile(r"[0-9]{8}-[0-9]{6}Z-[0-9]{2}\.wpt", re.ASCII)
"""Names that `_free` makes."""


class History(QuietConsumer):
    """A consumer that writes the history. A failure costs history, but neither figures nor the trace."""

    def __init__(
        self,
        trace: Trace,
        folder: Path,
        keep: int,
        interval_s: float,
        now: float,
        say: Callable[[str], None],
        traced: Collection[str],
        start: Snapshot | None = None,
    ) -> None:
        """Start at the first snapshot of the trace, or at a later one. `traced` are the names of all flows."""
        self._trace, self._folder, self._keep, self._say = trace, folder, keep, say
        self._interval_s, self._traced = interval_s, traced
        self._last = self._first = trace.first if start is None else start
        self._disk = Disk(f"intervals of the history of {trace.flow.name}", say)
        self._until = now
        """When to begin the next file."""
        self._output: CaptureOutput | None = None
        self.due = now + interval_s
        first = self._first
        self._do(lambda: self._begin(now, first))

    @property
    def last(self) -> Snapshot:
        """The last snapshot that is in the history."""
        return self._last

    def change(self, keep: int, interval_s: float, now: float) -> None:
        self._keep, self._interval_s = keep, interval_s
        self.due = min(self.due, now + interval_s)

    @property
    def waits_s(self) -> float:
        return self._disk.waits_s

    def turn(self, now: float) -> None:
        self._disk.deliver()
        if now < self.due:
            # There was a failure.
            return
        self.due = next_due(self.due, self._interval_s, now)
        if self._disk.is_busy:
            # This interval will be a part of the next one.
            return
        snapshot, last, output = self._trace.snapshot(), self._last, self._output
        self._last = snapshot
        report, summary = self._trace.window(last, snapshot, "interval"), None
        if output is not None and (now >= self._until or output.size > self._keep // _FILES):
            summary = self._trace.window(self._first, last, "summary")
        self._do(lambda: self._write(now, last, report, summary))

    # --- The thread that writes ---------------------------------------------------------------------------------------

    def _write(self, now: float, last: Snapshot, report: Report, summary: Report | None) -> None:
        """Write an interval; a summary ends the file before it."""
        if summary is not None:
            self._finish(summary)
        output = self._output or self._begin(now, last)
        output.interval(report)

    def _begin(self, now: float, first: Snapshot) -> CaptureOutput:
        """Begin a file, with the clock of the start of its first interval."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._make_room()
        flow = self._trace.flow
        path = _free(self._folder)
        self._output = CaptureOutput(path, About(flow.view, flow.verdict_kinds))
        try:
            self._output.start(self._trace.start)
        except WptraceError:
            # Nothing can be read of it, and while a disk is full there would be one more for each attempt.
            path.unlink()
            raise
        self._first, self._until = first, now + _FILE_S
        return self._output

    def _make_room(self) -> None:
        """Remove the oldest files. Those of flows that are no longer traced count for all that are, in equal parts."""
        sizes = dict(_files(self._folder))
        for other in self._folder.parent.iterdir():
            if other.name not in self._traced and not other.is_symlink():
                sizes.update((path, size / len(self._traced)) for path, size in _files(other))
        whole, now = sum(sizes.values()), _stem()
        # What a clock dated that was ahead would be the newest for long, and all that comes now the oldest.
        for path in sorted(sizes, key=lambda path: (path.name < f"{now}.", path.name)):
            # Leave room for the next file.
            if whole <= self._keep - self._keep // _FILES:
                return
            with suppress(OSError):
                path.unlink()
                whole -= sizes[path]

    def _finish(self, summary: Report) -> None:
        output, self._output = self._output, None
        if output is not None:
            try:
                output.summary(summary)
            finally:
                output.close()

    def _drop(self) -> None:
        output, self._output = self._output, None
        if output is not None:
            output.close()

    def _do(self, work: Callable[[], object]) -> None:
        def attempt() -> None:
            try:
                work()
            except (WptraceError, OSError):
                self._drop()
                raise

        self._disk.do(attempt, self._done)

    # --- The thread that traces ---------------------------------------------------------------------------------------

    def _done(self, get: Get[None]) -> None:
        try:
            get()
        except (WptraceError, OSError) as error:
            self._say(f"the history of {self._trace.flow.name} has a gap: {error}")
            self.due = time.monotonic() + _PAUSE_S

    def end(self) -> None:
        """Write what came since the last interval."""
        if self._disk.finish(AT_END_S):
            snapshot, last = self._trace.snapshot(), self._last
            first = last if self._output is None else self._first
            report = self._trace.window(last, snapshot, "interval")
            summary = self._trace.window(first, snapshot, "summary")
            self._last = snapshot
            self._do(lambda: self._write(time.monotonic(), last, report, None))
            self._disk.do(lambda: self._finish(summary), self._ended)
            self._disk.finish(AT_END_S)
        if self._disk.is_busy:
            self._say(f"the history of {self._trace.flow.name} has no end: its disk does not answer")

    def _ended(self, get: Get[None]) -> None:
        try:
            get()
        except (WptraceError, OSError) as error:
            self._say(f"the history of {self._trace.flow.name} has no end: {error}")

    def close(self) -> None:
        if not self._disk.is_busy:
            self._disk.do(self._drop, self._ended)
        self._disk.close()


def _files(folder: Path) -> Iterator[tuple[Path, float]]:
    """The files of a history with their sizes; whatever else is there belongs to somebody else."""
    with suppress(OSError):
        for path in folder.iterdir():
            if _NAME.fullmatch(path.name):
                with suppress(OSError):
                    found = path.lstat()
                    if is_regular(found):
                        yield path, found.st_size


def _stem() -> str:
    return time.strftime("%Y%m%d-%H%M%SZ", time.gmtime())


def _free(folder: Path) -> Path:
    """A path that sorts by time: UTC, and a number after the last file of this second."""
    stem = _stem()
    numbers = [one.stem.rpartition("-")[2] for one in folder.glob(f"{stem}-*.wpt")]
    number = max((int(one) + 1 for one in numbers if one.isdecimal()), default=0)
    if number >= _MOST_OF_A_NAME:
        raise WptraceError(f"{folder} already has {_MOST_OF_A_NAME} files for this second")
    return folder / f"{stem}-{number:02}.wpt"
