# SPDX-License-Identifier: Apache-2.0
"""Keys of the terminal on standard input, which is restored whenever another process has it, and at the end."""

from __future__ import annotations

import codecs
import errno
import os
import re
import select
import signal
import sys
import termios
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType
from typing import Any, Callable, TextIO

from wptrace.outputs.text.live import LEAVE

# Signals that would end the process and leave the terminal as it is; those that end a trace are engine/signals.py's.
_FATAL = ("SIGQUIT", "SIGABRT", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGUSR2", "SIGXCPU")
# The rest of a key's bytes may come later, as on a slow line.
_REST_S = 0.05
_READ = 1024

# Keys by the last characters that terminals send; modifiers stand between and make no difference here.
_LETTERS = {"A": "up", "B": "down", "C": "right", "D": "left", "H": "home", "F": "end", "Z": "tab"}
_NUMBERS = {"1": "home", "4": "end", "5": "pgup", "6": "pgdn", "7": "home", "8": "end"}
_PLAIN = {
    "\r": "enter",
    "\n": "enter",
    "\t": "tab",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x0c": "redraw",
    "\x15": "clear",
    "\x1b": "esc",
}
_KEY = re.compile(r"\x1b\[([0-9;]*)[ -/]*([@-~])|\x1bO([@-~])|(.)", re.DOTALL)
_UNFINISHED = re.compile(r"\x1b(?:\[[0-9;]{0,16}[ -/]{0,4}|O)?\Z")


def keys(text: str) -> Iterator[str]:
    """Names of keys, and characters as they are; what is unknown is none."""
    for number, letter, application, plain in _KEY.findall(text):
        if plain in _PLAIN:
            yield _PLAIN[plain]
        elif plain:
            if plain.isprintable():
                yield plain
        elif letter == "~":
            if number.partition(";")[0] in _NUMBERS:
                yield _NUMBERS[number.partition(";")[0]]
        elif (letter or application) in _LETTERS:
            yield _LETTERS[letter or application]


def there_is_one(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


class Keyboard:
    """`press` gets the keys that came, and says whether to go on; `resumed` draws anew after the process was stopped.

    Ctrl-C and Ctrl-Z are signals as ever.
    """

    def __init__(self, screen: TextIO, press: Callable[[list[str]], bool], resumed: Callable[[], None]) -> None:
        self._fd = sys.stdin.fileno()
        self._screen = screen
        self._press = press
        self._resumed = resumed
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self._saved: list[Any] | None = None
        self._left = False
        self._ours = True
        """Whether this process was in the foreground at the last check."""
        self._before: dict[int, Any] = {}

    # --- The terminal -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        handlers = {getattr(signal, name): self._on_fatal for name in _FATAL}
        for number, handler in {**handlers, signal.SIGTSTP: self._on_stop, signal.SIGCONT: self._on_continue}.items():
            # A signal that a parent wants ignored stays so, as Ctrl-Z where there is no job control.
            if signal.getsignal(number) in (signal.SIG_DFL, None):
                self._before[number] = signal.signal(number, handler)
        self._take()

    def _take(self) -> None:
        """Keys come one by one and are not echoed, as long as the terminal is ours."""
        if self._left or not self._foreground():
            return
        with suppress(termios.error, OSError):
            saved = self._saved or termios.tcgetattr(self._fd)
            wanted = [*saved[:6], [*saved[6]]]
            wanted[3] &= ~(termios.ICANON | termios.ECHO)
            wanted[6][termios.VMIN], wanted[6][termios.VTIME] = 1, 0
            # First: a signal may come between the two.
            self._saved = saved
            termios.tcsetattr(self._fd, termios.TCSANOW, wanted)

    def _release(self) -> None:
        """Restore the terminal. A signal handler may come here at any point: nothing is written to buffers."""
        saved = self._saved
        # In the background the terminal belongs to another process, and a change would stop the caller.
        if saved is not None and self._foreground():
            with suppress(termios.error, OSError):
                termios.tcsetattr(self._fd, termios.TCSANOW, saved)
            with suppress(OSError, ValueError):
                os.write(self._screen.fileno(), LEAVE.encode())
        # Last: another signal may come meanwhile, and end it.
        self._saved = None

    def _foreground(self) -> bool:
        try:
            return os.tcgetpgrp(self._fd) == os.getpgrp()
        except OSError as error:
            # A terminal of another session knows no jobs of ours; one that hung up is none any more.
            return error.errno == errno.ENOTTY

    def leave(self) -> None:
        """Restore the terminal for good."""
        self._left = True
        self._release()

    def close(self) -> None:
        self.leave()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    # --- Signals ------------------------------------------------------------------------------------------------------

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        self._release()
        before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        # Here it is stopped until a SIGCONT; the kernel does not stop an orphaned process group.
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, before)
        self._on_continue(number, frame)

    def _on_continue(self, number: int, frame: FrameType | None) -> None:
        """Also after a SIGSTOP, which cannot be caught: a shell has made the terminal its own meanwhile."""
        if self._left:
            return
        self._take()
        self._resumed()

    def _on_fatal(self, number: int, frame: FrameType | None) -> None:
        self._release()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    # --- Keys ---------------------------------------------------------------------------------------------------------

    @property
    def fd(self) -> int:
        """Readable when a key came; negative while the terminal is not ours."""
        ours = not self._left and self._foreground()
        # A process that is brought to the foreground while it runs gets no signal.
        if ours and not self._ours:
            self._take()
        self._ours = ours
        return self._fd if ours and self._saved is not None else -1

    def take(self) -> bool:
        """Handle keys; return False if the user wants to end."""
        text = self._read()
        for _ in range(8):
            if not _UNFINISHED.search(text):
                break
            with suppress(OSError):
                if not select.select([self._fd], [], [], _REST_S)[0]:
                    break
            text += self._read()
        found = list(keys(text))
        return self._press(found) if found else True

    def _read(self) -> str:
        try:
            data = os.read(self._fd, _READ)
        except BlockingIOError:
            # Another process read what was there.
            return ""
        except OSError:
            data = b""
        if not data:
            # The terminal hung up: a descriptor that is always ready would keep a CPU busy.
            self.leave()
        return self._decoder.decode(data)
