# SPDX-License-Identifier: Apache-2.0
"""Text on a terminal, live where rich is installed and the output is one; plain lines everywhere else."""

from __future__ import annotations

import shutil
import textwrap
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import TextIO

from wptrace.model.book import Cause
from wptrace.model.report import Event, InFlight, Report, Start
from wptrace.outputs.text import budget, header, inflight, screen, words
from wptrace.outputs.text.live import Live, can_be_live
from wptrace.outputs.text.view import Forms, View

_LAST_EVENTS = 5
# What was found in flight stays on a live screen for so long, unless something newer takes its place.
_STUCK_SHOWN_NS = 5_000_000_000
# What bars are made of where the output's encoding has no blocks.
_BLOCKS = "▏▎▍▌▋▊▉█"
_WITHOUT_BLOCKS = str.maketrans(dict.fromkeys(_BLOCKS, "#"))
_WIDTH = 100


class TextOutput:
    def __init__(self, stream: TextIO, view: View) -> None:
        self._stream = stream
        self._view = view
        self._characters = {} if _has_blocks(stream) else _WITHOUT_BLOCKS
        self._introduction: list[str] = []
        self._report: Report | None = None
        self._recent: deque[Event] = deque(maxlen=_LAST_EVENTS)
        self._stuck: tuple[list[InFlight], int] = ([], 0)
        live = view.wanted.live and can_be_live(stream)
        self._live = Live(stream, self._compose, self._introduce) if live else None

    # --- Events -------------------------------------------------------------------------------------------------------

    def start(self, start: Start) -> None:
        self._introduction = list(self._view.begin(start))
        self._introduce()
        if self._live is not None:
            self._live.start()

    def event(self, event: Event) -> None:
        self._view.meet(event)
        if self._live is not None:
            self._recent.append(event)
        else:
            self._print(self._view.event(event, self._size[0], not self._stream.isatty()))

    def flush(self) -> None:
        """Each line is seen at once."""

    def in_flight(self, found: list[InFlight], at_ns: int) -> None:
        if self._live is not None:
            self._stuck = (found, at_ns)
            self._live.draw()
        else:
            lines = self._view.in_flight(found, at_ns, self._name_width, inflight.MOST)
            if lines:
                self._print(["", *lines] if self._view.spaced else lines)

    def interval(self, report: Report) -> None:
        self._report = report
        if self._live is not None:
            self._live.draw()
        elif self._view.wanted.intervals:
            self._print(["", *self._lines(report)])

    def losses(self) -> Mapping[Cause, int]:
        """A stream that takes no more ends the trace."""
        return {}

    def summary(self, report: Report) -> None:
        self.close()
        self._print(["", "Summary", *self._lines(report), *self._view.closing(report, self._size[0])])

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._stream.flush()

    # --- Lines --------------------------------------------------------------------------------------------------------

    @property
    def _size(self) -> tuple[int, int]:
        if not self._stream.isatty():
            return _WIDTH, 0
        found = shutil.get_terminal_size((_WIDTH, 24))
        # A serial console does not know its size, and Python before 3.10 hands that 0 on.
        return found.columns or _WIDTH, found.lines or 24

    @property
    def _name_width(self) -> int:
        """A pipe's reader wants names whole, and each thing on one line."""
        return self._size[0] if self._stream.isatty() else 1 << 16

    def _lines(self, report: Report) -> Iterator[str]:
        yield from self._view.report(report, self._size[0])
        yield from header.losses(report)
        yield from budget.lines(report)
        if self._view.wanted.statistics:
            yield words.overhead(report.overhead, report.duration_ns)

    def _introduce(self) -> None:
        self._print(self._introduction)

    def _print(self, lines: Iterable[str]) -> None:
        for line in self._folded(lines):
            self._stream.write(line.translate(self._characters) + "\n")
        self._stream.flush()

    def _folded(self, lines: Iterable[str]) -> Iterator[str]:
        """Sentences fit the terminal; a pipe's reader wants each on one line."""
        width = self._size[0]
        for line in lines:
            if self._view.folds and self._stream.isatty() and len(line) > width:
                yield from textwrap.wrap(line, width, subsequent_indent="  ", drop_whitespace=True)
            else:
                yield line

    # --- The live screen ----------------------------------------------------------------------------------------------

    def _compose(self) -> list[str]:
        width, height = self._size
        sections = {name: [list(self._folded(form)) for form in forms] for name, forms in self._sections(width).items()}
        return [words.head(line.translate(self._characters), width) for line in screen.fit(sections, height - 1)]

    def _sections(self, width: int) -> dict[str, Forms]:
        report, recent = self._report, list(self._recent)
        sections = dict(self._view.sections(report, recent, width))
        if report is not None and self._view.wanted.statistics:
            sections["own cost"] = [[words.overhead(report.overhead, report.duration_ns)], []]
        found, at_ns = self._stuck
        if found and (report is None or report.ts_ns - at_ns < _STUCK_SHOWN_NS):
            sections["stuck"] = [self._view.in_flight(found, at_ns, width, most) for most in (8, 3, 1)]
        return sections


def _has_blocks(stream: TextIO) -> bool:
    try:
        _BLOCKS.encode(stream.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True
