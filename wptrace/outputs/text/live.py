# SPDX-License-Identifier: Apache-2.0
"""A screen that is redrawn in place, with rich; it follows the terminal when that changes its size."""

from __future__ import annotations

import importlib.util
import signal
from types import FrameType
from typing import Any, Callable, TextIO

# Rows of stages that took no time, and of those that took half of it or more, as their figures and bars say as well.
_NOTHING = r"(?m)^  \w+ +[\d,]+(?: +0 ns)+ +0\.0%$"
_MOST = r"(?m)(?:^|(?<=  ))  (?!total )\w+ +[\d,]+(?: +[\d.]+ \w+)+ +(?:[5-9]\d\.\d|100\.0)%"
# The row that is chosen, which its first column says as well.
_CHOSEN = r"(?m)^> .*$"


def can_be_live(stream: TextIO) -> bool:
    return stream.isatty() and importlib.util.find_spec("rich") is not None


class Live:
    """`compose` gives the lines of the screen; `introduce` writes what stands above it, after it had to be cleared."""

    def __init__(self, stream: TextIO, compose: Callable[[], list[str]], introduce: Callable[[], None]) -> None:
        self._stream = stream
        self._compose = compose
        self._introduce = introduce
        self._screen: Any = None
        self._before: Any = None
        self._busy = False
        self._resized = False

    def start(self) -> None:
        self._screen = _screen(self._stream)
        self._screen.start()
        self._before = signal.signal(signal.SIGWINCH, self._on_resize)

    def draw(self) -> None:
        """Draws anew, and once more if the size changed meanwhile."""
        self._busy = True
        try:
            while True:
                resized, self._resized = self._resized, False
                if resized:
                    self._clear()
                self._draw()
                if not self._resized:
                    break
        finally:
            self._busy = False

    def _on_resize(self, number: int, frame: FrameType | None) -> None:
        self.redraw()

    def redraw(self) -> None:
        """On a screen that is cleared first. Signals come between any two instructions, also in the midst of a line."""
        self._resized = True
        if not self._busy:
            self.draw()

    def _draw(self) -> None:
        if self._screen is not None:
            from rich.text import Text

            shown = Text("\n".join(self._compose()), no_wrap=True, overflow="ellipsis")
            shown.highlight_regex(_NOTHING, "dim")
            shown.highlight_regex(_MOST, "yellow")
            shown.highlight_regex(_CHOSEN, "reverse")
            self._screen.update(shown, refresh=True)

    def _clear(self) -> None:
        """Terminals rewrap long lines when they get narrower, so it is not known any more where the screen begins."""
        if self._screen is None:
            return
        from rich.text import Text

        self._screen.update(Text(""))
        self._screen.stop()
        self._stream.write("\x1b[H\x1b[2J")
        self._introduce()
        self._screen = _screen(self._stream)
        self._screen.start()

    def stop(self) -> None:
        if self._screen is None:
            return
        signal.signal(signal.SIGWINCH, self._before)
        self._screen.stop()
        self._screen = None


def _screen(stream: TextIO) -> Any:
    from rich.console import Console
    from rich.live import Live as Screen

    return Screen(console=Console(file=stream, highlight=False), auto_refresh=False)
