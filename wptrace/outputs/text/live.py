# SPDX-License-Identifier: Apache-2.0
"""A screen of its own, with rich; it follows the terminal when that changes its size."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
from typing import Any, Callable, TextIO

# Rows of stages that took no time, and of those that took half of it or more, as their figures and bars say as well.
_NOTHING = r"(?m)^  \w+ +[\d,]+(?: +(?:0 ns|-))+ +(?:0\.0%|-)$"
_MOST = r"(?m)(?:^|(?<=  ))  (?!total )\w+ +[\d,]+(?: +[\d.]+ \w+)+ +(?:[5-9]\d\.\d|100\.0)%"
# The row that is chosen, which its first column says as well.
_CHOSEN = r"(?m)^> .*$"

ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?1049l\x1b[?25h"
"""Sequences for the alternate screen of a terminal without a cursor, and back."""
_CLEAR = "\x1b[H\x1b[2J"
# Terminals on which rich draws nothing, as in an editor.
_CANNOT_DRAW = ("dumb", "unknown")
# The size of a terminal that does not know its own, such as a serial console.
_COLUMNS, _LINES = 80, 24


def can_be_live(stream: TextIO) -> bool:
    draws = os.environ.get("TERM", "").lower() not in _CANNOT_DRAW
    return draws and stream.isatty() and importlib.util.find_spec("rich") is not None


def size() -> tuple[int, int]:
    """The columns and lines of the terminal. Python before 3.10 hands on the 0 of one that does not know its size."""
    found = shutil.get_terminal_size((_COLUMNS, _LINES))
    return found.columns or _COLUMNS, found.lines or _LINES


class Live:
    """The alternate screen of the terminal: what was on it before is there again at the end.

    `compose` gives the lines.
    """

    def __init__(self, stream: TextIO, compose: Callable[[], list[str]]) -> None:
        self._stream = stream
        self._compose = compose
        self._console: Any = None
        self._screen: Any = None
        self._before: Any = None
        self._busy = False
        self._resized = False

    def start(self) -> None:
        from rich.console import Console
        from rich.live import Live as Screen

        self._console = Console(file=self._stream, highlight=False)
        self._screen = Screen(console=self._console, auto_refresh=False, screen=True)
        self._screen.start()
        self._before = signal.signal(signal.SIGWINCH, lambda *_: self.redraw())

    def draw(self) -> None:
        """Draws anew, and once more if the size changed meanwhile."""
        self._busy = True
        try:
            while True:
                resized, self._resized = self._resized, False
                if resized:
                    self._stream.write(_CLEAR)
                self._draw()
                if not self._resized:
                    break
        finally:
            self._busy = False

    def resume(self) -> None:
        """After a stop, in which the shell had the other screen."""
        self._stream.write(ENTER)
        self.redraw()

    def redraw(self) -> None:
        """Clear and redraw the screen. Signals may come between any two instructions, even within a line."""
        self._resized = True
        if not self._busy:
            self.draw()

    def _draw(self) -> None:
        if self._screen is not None:
            from rich.console import ConsoleDimensions
            from rich.text import Text

            # Lines are made for this size, of which rich may think otherwise.
            self._console.size = ConsoleDimensions(*size())
            shown = Text("\n".join(self._compose()), no_wrap=True, overflow="crop")
            shown.highlight_regex(_NOTHING, "dim")
            shown.highlight_regex(_MOST, "yellow")
            shown.highlight_regex(_CHOSEN, "reverse")
            self._screen.update(shown, refresh=True)

    def stop(self) -> None:
        if self._screen is None:
            return
        signal.signal(signal.SIGWINCH, self._before)
        self._screen.stop()
        self._screen = None
