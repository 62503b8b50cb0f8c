# SPDX-License-Identifier: Apache-2.0
"""Signals to a running trace: end, list what is in flight, dump the flight recorder, reload the configuration."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Any, Callable

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LIST, _DUMP, _RELOAD = signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP


def _nothing(number: int) -> None:
    """Ignore a signal."""


class Stop:
    """Knows when to end. Signals write to a pipe that the reader waits on, so they are never held up by a wait."""

    def __init__(self) -> None:
        self.asked = False
        self._requests: set[int] = set()
        self._asked_by: set[int] = set()
        self.ending: Callable[[int], None] = _nothing
        """Called once, with the first signal to end; a second one ends the process at once."""
        self.fd, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before: dict[int, Any] = {}
        self._woken = -1

    def __enter__(self) -> Stop:
        self._woken = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        # Under nohup a hang-up is ignored, and stays so. An ignored SIGINT is what a shell gives to its background
        # jobs; who sends one to us by hand means it.
        kept = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()
        self._before = {number: signal.signal(number, self._end) for number in _ENDS if number not in kept}
        self._before[_LIST] = signal.signal(_LIST, self._request)
        return self

    def expect_dumps(self) -> None:
        """Accept requests for a dump; without a recorder the signal ends the process, as usual."""
        self._before[_DUMP] = signal.signal(_DUMP, self._request)

    def expect_reloads(self) -> None:
        """Accept requests to reload: a hang-up does not end the process then. If ignored, it stays so."""
        if _RELOAD in self._before:
            signal.signal(_RELOAD, self._request)

    def _end(self, number: int, frame: FrameType | None) -> None:
        # A second signal skips the summary; it may come before this one is handled.
        again = number in self._asked_by
        self._asked_by.add(number)
        self.asked = True
        self.ending(number)
        signal.signal(number, signal.SIG_DFL)
        if again:
            os.kill(os.getpid(), number)

    def _request(self, number: int, frame: FrameType | None) -> None:
        self._requests.add(number)

    def take_reload(self) -> bool:
        """Whether a reload was requested since the last call."""
        return self._take(_RELOAD)

    def take_dump(self) -> bool:
        """Whether a dump was requested since the last call."""
        return self._take(_DUMP)

    def take_list(self) -> bool:
        """Whether a list of what is in flight was requested since the last call."""
        return self._take(_LIST)

    def _take(self, number: int) -> bool:
        # A signal may come at any point: one that comes after this look is for the next.
        found = number in self._requests
        if found:
            self._requests.remove(number)
        return found

    def __exit__(self, *error: object) -> None:
        signal.set_wakeup_fd(self._woken)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self.fd)
        os.close(self._write)
