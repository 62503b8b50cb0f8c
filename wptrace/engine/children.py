# SPDX-License-Identifier: Apache-2.0
"""Commands that run next to a trace: one at a time, without a shell, at the lowest priority, with a time limit."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Callable, NamedTuple

from wptrace.model.report import Event

_MOST_WAITING = 16
_PATIENCE_S = 600.0
_AT_CLOSE_S = 5.0
_LOOKED_S = 0.25
# Tracing takes precedence.
_NICEST = 19
_MOST_WORDS = 4096
# Variables of systemd for the service itself.
_OWN = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID")


class Command(NamedTuple):
    words: Sequence[str]
    what: str
    """Its purpose, for messages."""
    done: str = ""
    """The message on success. With it, the command's output is hidden, except for the first line of an error."""
    variables: Mapping[str, str] = {}


class _Running(NamedTuple):
    command: Command
    process: subprocess.Popen[bytes]
    until: float
    complaints: IO[bytes] | None
    is_killed: bool = False


def itself(*arguments: str) -> list[str]:
    """Run this installation of wptrace, and import nothing from elsewhere, such as the current directory."""
    code = "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); from wptrace.__main__ import run; run()"
    return [sys.executable, "-I", "-c", code, json.dumps(sys.path), *arguments]


def own_environment() -> dict[str, str]:
    """The variables of this process without those that systemd means for it alone."""
    return {name: value for name, value in os.environ.items() if name not in _OWN}


def complaints_file() -> IO[bytes]:
    """A file for the errors of a command. It is in memory: there may be no folder that can be written to."""
    return os.fdopen(os.memfd_create("complaints"), "w+b")


def complaint_of(written: IO[bytes]) -> str:
    """The error that a command wrote, or its first line; closes the file."""
    with written as file:
        file.seek(0)
        lines = file.read(_MOST_WORDS).decode(errors="replace").strip().splitlines()
    own = [line for line in lines if line.startswith("wptrace: ")]
    return next(iter(own or lines), "").removeprefix("wptrace: ")


class Children:
    """A consumer that runs commands; the trace never waits for them."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._waiting: deque[Command] = deque()
        self._running: _Running | None = None
        self.due = math.inf

    def add(self, *commands: Command) -> None:
        """Queue commands to run one after another; if the queue is full, drop them."""
        if len(self._waiting) + len(commands) > _MOST_WAITING:
            self._say(f"{commands[0].what} is left out: {len(self._waiting)} commands wait already")
            return
        self._waiting.extend(commands)
        self._next()

    def _next(self) -> None:
        while self._running is None and self._waiting:
            self._begin(self._waiting.popleft())
        self.due = time.monotonic() + _LOOKED_S if self._running else math.inf

    def _begin(self, one: Command) -> None:
        complaints = None
        try:
            complaints = complaints_file() if one.done else None
            process = subprocess.Popen(
                list(one.words),
                env={**own_environment(), **one.variables},
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr if complaints is None else subprocess.DEVNULL,
                stderr=complaints,
                # A signal of the terminal is for the trace.
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            self._say(f"{one.what} cannot be run: {error}")
            if complaints is not None:
                complaints.close()
            return
        with suppress(OSError):
            # The group, because the command may have started others by now.
            os.setpriority(os.PRIO_PGRP, process.pid, _NICEST)
        self._running = _Running(one, process, time.monotonic() + _PATIENCE_S, complaints)

    def events(self, events: Sequence[Event]) -> None:
        pass

    def turn(self, now: float) -> None:
        running = self._running
        if running is not None:
            if running.process.poll() is not None:
                self._ended(running)
            elif now >= running.until:
                self._kill(running, f"took more than {_PATIENCE_S / 60:.0f} minutes")
        self._next()

    def _ended(self, running: _Running) -> None:
        self._running = None
        one, code = running.command, running.process.returncode
        complaint = "" if running.complaints is None else complaint_of(running.complaints)
        if running.is_killed:
            return
        if code:
            self._say(f"{one.what} failed: {complaint or f'it ended with {code}'}")
        elif one.done:
            self._say(one.done)

    def _kill(self, running: _Running, why: str) -> None:
        done = "was ended"
        try:
            # Its session began with it, so this is the command and what it started.
            os.killpg(running.process.pid, signal.SIGKILL)
        except OSError as error:
            done = f"cannot be ended: {error.strerror}"
        self._say(f"{running.command.what} {why} and {done}")
        # Not for long: while a disk does not answer, a process that waits for the disk does not end either.
        with suppress(subprocess.TimeoutExpired):
            running.process.wait(_LOOKED_S)
        self._running = running._replace(until=math.inf, is_killed=True)
        if running.process.returncode is not None:
            self._ended(self._running)

    def end(self) -> None:
        """Drop commands that have not started; let running ones finish."""
        for one in self._waiting:
            self._say(f"{one.what} is left out: the trace has ended")
        self._waiting.clear()

    def finish(self) -> None:
        """Wait for all commands, but not for one that was killed."""
        while self._running is not None and not self._running.is_killed:
            with suppress(subprocess.TimeoutExpired):
                self._running.process.wait(_LOOKED_S)
            self.turn(time.monotonic())
        self.end()

    def close(self) -> None:
        running = self._running
        if running is None or running.is_killed:
            return
        try:
            running.process.wait(_AT_CLOSE_S)
        except subprocess.TimeoutExpired:
            self._kill(running, "outlasted the trace")
        else:
            self._ended(running)
