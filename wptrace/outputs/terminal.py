# SPDX-License-Identifier: Apache-2.0
"""Text on a terminal, live where rich is installed and the output is one; plain lines everywhere else."""

from __future__ import annotations

import shutil
import textwrap
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple, TextIO

from wptrace.engine import histogram
from wptrace.engine.results import Report, Request, Row, Start, rows_of, without_device
from wptrace.engine.stages import StageTable
from wptrace.outputs import text

_LAST_REQUESTS = 5
# What bars are made of where the output's encoding has no blocks.
_BLOCKS = "▏▎▍▌▋▊▉█"
_WITHOUT_BLOCKS = str.maketrans(dict.fromkeys(_BLOCKS, "#"))


class View(NamedTuple):
    """How the user wants it."""

    live: bool
    per_device: bool
    dates: bool
    statistics: bool
    hist: str | None


class TerminalOutput:
    def __init__(self, stream: TextIO, view: View) -> None:
        self._stream = stream
        self._view = view
        self._table: StageTable | None = None
        self._recent: deque[Request] = deque(maxlen=_LAST_REQUESTS)
        self._characters = {} if _has_blocks(stream) else _WITHOUT_BLOCKS
        self._live: Any = _live(stream) if view.live else None

    @property
    def _width(self) -> int:
        # A serial console does not know its size, and Python before 3.10 hands that 0 on.
        return (shutil.get_terminal_size((100, 24)).columns or 100) if self._stream.isatty() else 100

    def _print(self, lines: Iterable[str]) -> None:
        for line in self._folded(lines):
            self._stream.write(line.translate(self._characters) + "\n")
        self._stream.flush()

    def _folded(self, lines: Iterable[str]) -> Iterable[str]:
        """Sentences fit the terminal; a pipe's reader wants each on one line."""
        for line in lines:
            if self._stream.isatty() and len(line) > self._width:
                yield from textwrap.wrap(line, self._width, subsequent_indent="  ", drop_whitespace=True)
            else:
                yield line

    def start(self, start: Start) -> None:
        self._table = start.stages
        self._print(text.introduction(start))
        if self._live is not None:
            self._live.start()

    def request(self, request: Request) -> None:
        if self._live is not None:
            self._recent.append(request)
        elif self._table is not None:
            self._print(text.request(request, self._table, self._width, self._view.dates))

    def interval(self, report: Report) -> None:
        lines = list(self._report(report))
        if self._live is None:
            self._print(["", *lines])
            return
        if self._recent and self._table is not None:
            lines += ["", "slow requests:"]
            for request in self._recent:
                lines += text.request(request, self._table, self._width, self._view.dates)
        from rich.text import Text

        shown = "\n".join(self._folded(lines)).translate(self._characters)
        self._live.update(Text(shown, no_wrap=True, overflow="ellipsis"), refresh=True)

    def _report(self, report: Report) -> Iterable[str]:
        yield from text.report(report._replace(rows=self._rows(report)), self._width, self._view.dates)
        if self._view.statistics:
            yield text.overhead(report.overhead, report.duration_ns)

    def _rows(self, report: Report) -> list[Row]:
        if self._view.per_device or self._table is None:
            return report.rows
        cells: dict[Any, dict[str, Any]] = {}
        for row in report.rows:
            cells.setdefault(row.group, {})[row.stage] = row.distribution
        return rows_of(without_device(cells.items()), self._table)

    def summary(self, report: Report) -> None:
        self._end_live()
        lines = ["", "Summary", *self._report(report)]
        if self._table is not None:
            lines += self._histograms(report)
            lines += ["", text.verdict(self._rows(report), self._table)]
        self._print(lines)

    def _histograms(self, report: Report) -> Iterable[str]:
        for row in self._rows(report):
            if row.stage == self._view.hist and row.distribution.count:
                yield ""
                yield f"{text.printable(row.group.dev)} {row.group.op} {row.stage}:".strip()
                yield from histogram.rows(row.distribution, self._width)

    def _end_live(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def close(self) -> None:
        self._end_live()


def _has_blocks(stream: TextIO) -> bool:
    try:
        _BLOCKS.encode(stream.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _live(stream: TextIO) -> Any:
    """A screen that redraws in place; None without a terminal or without rich."""
    if not stream.isatty():
        return None
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError:
        return None
    return Live(console=Console(file=stream, highlight=False), auto_refresh=False)
