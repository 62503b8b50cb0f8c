# SPDX-License-Identifier: Apache-2.0
"""A thread for files: while their disk does not answer, they wait, and nothing else does.

A disk that hangs is what an agent is there to show. Whoever writes to it then waits, for minutes or forever, and cannot
be interrupted.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from typing import Any, Callable, Generic, NamedTuple, TypeVar

from wptrace.engine.session import QuietConsumer
from wptrace.errors import WptraceError

T = TypeVar("T")
Get = Callable[[], T]
"""Returns what a job has returned, or raises what it has raised."""

# A disk that answers seldom takes longer, and the next turn is later.
_MOMENT_S = 0.1
_SAID_S = 30.0
LOOKED_S, AT_END_S = 0.25, 5.0
"""How often the end of a job is looked for, and how long a consumer waits for it at its own end."""


class _Job(NamedTuple, Generic[T]):
    work: Callable[[], T]
    then: Callable[[Get[T]], None]


class _End(NamedTuple, Generic[T]):
    """A job that has ended. What it had is gone, such as the copy of a recorder."""

    then: Callable[[Get[T]], None]
    value: T | None
    error: BaseException | None = None

    def get(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value


class Disk(QuietConsumer):
    """Runs jobs in a thread, one after another. Its methods are for the tracing thread, which learns how each ended.

    The queue has no limit of its own: callers leave out what would pile up while a disk does not answer.
    """

    def __init__(self, what: str, say: Callable[[str], None]) -> None:
        """`what` are the files, in words that `wait` may follow."""
        self.what, self._say = what, say
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._jobs: deque[_Job[Any]] = deque()
        """The first is under way."""
        self._since = 0.0
        """When it began."""
        self._ends: deque[_End[Any]] = deque()
        self._waited_since = 0.0
        """The begin of a wait that was reported; 0 if there is none."""
        self._is_closed = False

    @property
    def is_busy(self) -> bool:
        with self._changed:
            return bool(self._jobs or self._ends)

    @property
    def waits_s(self) -> float:
        """How long the job under way has taken; 0 if that is nothing unusual."""
        with self._changed:
            waits = time.monotonic() - self._since if self._jobs else 0.0
        return waits if waits >= 1.0 else 0.0

    def do(self, work: Callable[[], T], then: Callable[[Get[T]], None]) -> None:
        """Begin a job, and wait a moment for it. `then` is called here, or in a later turn."""
        with self._changed:
            is_first = not self._jobs
            if is_first:
                self._since = time.monotonic()
            self._jobs.append(_Job(work, then))
            self._changed.notify_all()
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=self.what, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                # There may be too many; the next job tries again.
                self._end(None, WptraceError(str(error)))
            else:
                self._thread = thread
        if is_first:
            self.finish(_MOMENT_S)
        if self.is_busy:
            self.due = time.monotonic() + LOOKED_S

    def turn(self, now: float) -> None:
        self.deliver()
        self.due = now + LOOKED_S if self.is_busy else math.inf

    def deliver(self) -> None:
        """Tell how jobs have ended."""
        while True:
            with self._changed:
                if not self._ends:
                    break
                end = self._ends.popleft()
            end.then(end.get)
        waits, now = self.waits_s, time.monotonic()
        if waits >= _SAID_S and not self._waited_since:
            self._waited_since = now - waits
            self._say(f"{self.what} wait for their disk, for {waits:.0f} s so far")
        elif not waits and self._waited_since:
            self._say(f"{self.what} go on: they have waited {now - self._waited_since:.0f} s for their disk")
            self._waited_since = 0.0

    def finish(self, within_s: float) -> bool:
        """Wait so long for all jobs, and tell how they have ended; whether there is none left."""
        while True:
            with self._changed:
                is_in_time = self._changed.wait_for(lambda: not self._jobs, within_s)
            self.deliver()
            # An end may have begun another job.
            if not is_in_time or not self.is_busy:
                return is_in_time

    def close(self) -> None:
        """Let the thread end. It is not waited for."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    # --- The thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while self._has_job():
            try:
                self._end(self._jobs[0].work())
            except BaseException as error:
                self._end(None, error)

    def _has_job(self) -> bool:
        """Wait for one; false at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._is_closed)
            return bool(self._jobs)

    def _end(self, value: object, error: BaseException | None = None) -> None:
        """The first job has ended."""
        with self._changed:
            self._ends.append(_End(self._jobs.popleft().then, value, error))
            self._since = time.monotonic()
            self._changed.notify_all()
