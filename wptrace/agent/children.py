# SPDX-License-Identifier: Apache-2.0
"""Commands that the agent runs: one after another, without a shell, at the lowest priority, and each for a while."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Callable, NamedTuple

from wptrace.model.report import Event

# Where this package is.
_HOME = Path(__file__).parents[2]
_MOST_WAITING = 16
_PATIENCE_S = 600.0
_LOOKED_S = 0.5
# What systemd tells the service itself.
_OWN = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID")


class Command(NamedTuple):
    words: Sequence[str]
    variables: Mapping[str, str]
    what: str
    """What it is for, in a message."""


def itself(*arguments: str) -> list[str]:
    """The command line of this wptrace, without what lies in the current directory."""
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from wptrace.__main__ import run; run()"
    return [sys.executable, "-I", "-c", code, str(_HOME), *arguments]


class Children:
    """A consumer that looks after them."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._waiting: deque[Command] = deque()
        self._running: tuple[Command, subprocess.Popen[bytes], float] | None = None
        self.due = math.inf

    def add(self, *commands: Command) -> None:
        """One behind the other; where too many wait, none of these is run."""
        if len(self._waiting) + len(commands) > _MOST_WAITING:
            self._say(f"{commands[0].what} is left out: {len(self._waiting)} commands wait already")
            return
        self._waiting.extend(commands)
        self._next()

    def _next(self) -> None:
        while self._running is None and self._waiting:
            one = self._waiting.popleft()
            variables = {name: value for name, value in os.environ.items() if name not in _OWN}
            try:
                process = subprocess.Popen(
                    list(one.words), env={**variables, **one.variables}, stdin=subprocess.DEVNULL, stdout=sys.stderr
                )
            except (OSError, ValueError) as error:
                self._say(f"{one.what} cannot be run: {error}")
                continue
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, process.pid, 19)
            self._running = one, process, time.monotonic() + _PATIENCE_S
        self.due = time.monotonic() + _LOOKED_S if self._running else math.inf

    def events(self, events: Sequence[Event]) -> None:
        pass

    def turn(self, now: float) -> None:
        if self._running is not None:
            one, process, until = self._running
            code = process.poll()
            if code is None and now >= until:
                process.kill()
                code = process.wait()
                self._say(f"{one.what} took more than {_PATIENCE_S / 60:.0f} minutes and was ended")
            elif code:
                self._say(f"{one.what} failed with {code}")
            if code is not None:
                self._running = None
        self._next()

    def end(self) -> None:
        """What was begun may go on to its end, what waits does not begin."""
        self._waiting.clear()

    def close(self) -> None:
        if self._running is None:
            return
        one, process, _ = self._running
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            self._say(f"{one.what} was ended with the agent")
