# SPDX-License-Identifier: Apache-2.0
"""A terminal for a command: its screen, keys, size and settings."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# Much longer than anything takes.
TIMEOUT = 60
KEYS = {
    "up": "\x1b[A", "down": "\x1b[B", "right": "\x1b[C", "left": "\x1b[D", "enter": "\r", "tab": "\t", "esc": "\x1b",
    "home": "\x1b[H", "end": "\x1b[F", "pgup": "\x1b[5~", "pgdn": "\x1b[6~", "backspace": "\x7f",
}  # fmt: skip

_SEQUENCE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|\x1b[^\[]|([\r\n\x08\x07])|([^\x1b\r\n\x08\x07]+)")


class Screen:
    """A terminal in memory, with as much as rich needs."""

    def __init__(self, columns: int, lines: int) -> None:
        self.resize(columns, lines)
        self.rows: list[list[str]] = [[] for _ in range(lines)]
        self.scrolled = 0
        self.cursor = True
        self.other: tuple[list[list[str]], int, int] | None = None
        """The screen that is not shown, while the alternate one is."""
        self._row = self._column = 0
        self._rest = ""

    def resize(self, columns: int, lines: int) -> None:
        """Change the size without rewrapping lines, because the program has to redraw."""
        self.columns, self.height = columns, lines

    @property
    def lines(self) -> list[str]:
        return ["".join(row).rstrip() for row in self.rows]

    def feed(self, text: str) -> None:
        text, at = self._rest + text, 0
        # An incomplete escape sequence.
        partial = re.search(r"\x1b(?:\[[?0-9;]*)?\Z", text)
        text, self._rest = (text[: partial.start()], partial[0]) if partial else (text, "")
        for found in _SEQUENCE.finditer(text):
            assert found.start() == at, f"unknown to this terminal: {text[at : at + 20]!r}"
            at = found.end()
            parameters, letter, control, plain = found.groups()
            if plain:
                self._write(plain)
            elif control:
                self._control(control)
            elif letter:
                self._escape(parameters, letter)
        assert at == len(text)

    def _write(self, text: str) -> None:
        for char in text:
            if self._column >= self.columns:
                self._column = 0
                self._down()
            row = self.rows[self._row]
            row += " " * (self._column + 1 - len(row))
            row[self._column] = char
            self._column += 1

    def _down(self) -> None:
        if self._row >= self.height - 1:
            del self.rows[0]
            self.scrolled += 1
        else:
            self._row += 1
        self.rows += [[] for _ in range(self._row + 1 - len(self.rows))]

    def _control(self, char: str) -> None:
        if char == "\n":
            self._down()
        elif char == "\r":
            self._column = 0
        elif char == "\x08":
            self._column = max(self._column - 1, 0)

    def _escape(self, parameters: str, letter: str) -> None:
        number = int(parameters) if parameters.isdigit() else 1
        if letter == "A":
            self._row = max(self._row - number, 0)
        elif letter == "K":
            del self.rows[self._row][0 if parameters == "2" else self._column :]
        elif letter == "H":
            self._row = self._column = 0
        elif letter == "J":
            self.rows = [[] for _ in range(self.height)]
        elif letter in "hl" and parameters == "?25":
            self.cursor = letter == "h"
        elif letter in "hl" and parameters == "?1049":
            self._alternate(letter == "h")
        else:
            assert letter in "mhl", f"unknown to this terminal: {parameters}{letter}"

    def _alternate(self, enters: bool) -> None:
        """Switch screens as xterm does: the alternate screen is empty at first, and the other one comes back."""
        if enters and self.other is None:
            self.other = (self.rows, self._row, self._column)
            self.rows = [[] for _ in range(self.height)]
        elif not enters and self.other is not None:
            (self.rows, self._row, self._column), self.other = self.other, None


class Terminal:
    def __init__(self, command: Sequence[str], columns: int = 80, lines: int = 24, **variables: str) -> None:
        self._master, self._slave = pty.openpty()
        self.screen = Screen(columns, lines)
        self.raw = ""
        self._size(columns, lines)
        self.before = self.settings
        kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**kept, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "TZ": "UTC", **variables},
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            # Including the processes that it started: they are in its session, in groups of their own.
            for pid in _session(self.process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait()
        self.hang_up()

    def hang_up(self) -> None:
        for fd in (self._slave, self._master):
            if fd >= 0:
                os.close(fd)
        self._slave = self._master = -1

    @property
    def settings(self) -> list[Any]:
        return termios.tcgetattr(self._slave)

    @property
    def echoes(self) -> bool:
        return bool(self.settings[3] & termios.ECHO)

    def _size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def resize(self, columns: int, lines: int) -> None:
        """Change the size; the kernel signals the foreground processes."""
        self.screen.resize(columns, lines)
        self._size(columns, lines)

    def send(self, *keys: str) -> None:
        os.write(self._master, "".join(KEYS.get(key, key) for key in keys).encode())

    def read(self, seconds: float = 0.05) -> None:
        if select.select([self._master], [], [], seconds)[0]:
            text = os.read(self._master, 1 << 16).decode("utf-8", "replace")
            self.raw += text
            self.screen.feed(text)

    def wait_until(self, true: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + TIMEOUT
        while not true():
            self.read()
            assert time.monotonic() < end, f"waited in vain for {what}; on the screen:\n" + "\n".join(self.screen.lines)

    def shows(self, text: str) -> bool:
        return any(text in line for line in self.screen.lines)

    def wait_for(self, text: str) -> None:
        self.wait_until(lambda: self.shows(text), repr(text))

    def wait_without(self, text: str) -> None:
        self.wait_until(lambda: not self.shows(text), f"{text!r} to vanish")

    def end(self) -> int:
        """Wait for the end, read all output and return the exit code."""
        self.wait_until(lambda: self.process.poll() is not None, "the end")
        while select.select([self._master], [], [], 0)[0]:
            self.read()
        return self.process.returncode


def _session(leader: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader:
                found.append(int(path.parent.name))
    return found
