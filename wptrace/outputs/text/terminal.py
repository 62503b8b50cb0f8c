# SPDX-License-Identifier: Apache-2.0
"""Text on a terminal, live where rich is installed and the output is one; plain lines everywhere else."""

from __future__ import annotations

import shutil
import textwrap
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TextIO

from wptrace.model.distribution import Distribution
from wptrace.model.results import Group, InFlight, Report, Request, Start, rows_of, without_device
from wptrace.model.stages import StageTable
from wptrace.outputs.text import histogram, inflight, screen, story, tables, verdict
from wptrace.outputs.text import report as report_text
from wptrace.outputs.text import words as text
from wptrace.outputs.text.live import Live, can_be_live
from wptrace.outputs.text.tables import Style

_LAST_REQUESTS = 5
# What was found in flight stays on a live screen for so long, unless something newer takes its place.
_STUCK_SHOWN_NS = 5_000_000_000
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
        self._characters = {} if _has_blocks(stream) else _WITHOUT_BLOCKS
        self._introduction: list[str] = []
        self._report: Report | None = None
        self._recent: deque[Request] = deque(maxlen=_LAST_REQUESTS)
        self._stuck: tuple[list[InFlight], int] = ([], 0)
        self._live = Live(stream, self._compose, self._introduce) if view.live and can_be_live(stream) else None

    # --- Events -------------------------------------------------------------------------------------------------------

    def start(self, start: Start) -> None:
        self._table = start.stages
        self._introduction = list(text.introduction(start))
        self._introduce()
        if self._live is not None:
            self._live.start()

    def request(self, request: Request) -> None:
        if self._live is not None:
            self._recent.append(request)
        elif self._table is not None:
            self._print(self._single(request, self._table))

    def flush(self) -> None:
        """Each line is seen at once."""

    def in_flight(self, found: list[InFlight], at_ns: int) -> None:
        if self._live is not None:
            self._stuck = (found, at_ns)
            self._live.draw()
        else:
            self._print(["", *inflight.lines(found, at_ns, self._name_width, self._view.dates)])

    def interval(self, report: Report) -> None:
        self._report = report = self._as_wanted(report)
        if self._live is not None:
            self._live.draw()
        else:
            self._print(["", *self._lines(report)])

    def summary(self, report: Report) -> None:
        self.close()
        report = self._as_wanted(report)
        lines = ["", "Summary", *self._lines(report), *self._histograms(report)]
        if report.verdict is not None:
            lines += ["", *verdict.lines(report.verdict, self._view.dates)]
        self._print(lines)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    # --- Lines --------------------------------------------------------------------------------------------------------

    @property
    def _size(self) -> tuple[int, int]:
        if not self._stream.isatty():
            return 100, 0
        found = shutil.get_terminal_size((100, 24))
        # A serial console does not know its size, and Python before 3.10 hands that 0 on.
        return found.columns or 100, found.lines or 24

    @property
    def _style(self) -> Style:
        return Style(self._size[0], self._view.dates, self._table)

    @property
    def _name_width(self) -> int:
        """A pipe's reader wants names whole, and each thing on one line."""
        return self._size[0] if self._stream.isatty() else 1 << 16

    def _as_wanted(self, report: Report) -> Report:
        if self._view.per_device or self._table is None:
            return report
        cells: dict[Group, dict[str, Distribution]] = {}
        for row in report.rows:
            cells.setdefault(row.group, {})[row.stage] = row.distribution
        untimed: Counter[Group] = Counter()
        for group, count in report.untimed.items():
            untimed[group._replace(dev="")] += count
        events: dict[Group, Counter[str]] = {}
        for group, counts in report.events.items():
            events.setdefault(group._replace(dev=""), Counter()).update(counts)
        rows = rows_of(without_device(cells.items()), self._table)
        return report._replace(rows=rows, untimed=untimed, events=events)

    def _lines(self, report: Report) -> Iterator[str]:
        yield from report_text.lines(report, self._style)
        if self._view.statistics:
            yield text.overhead(report.overhead, report.duration_ns)

    def _single(self, request: Request, table: StageTable) -> Iterator[str]:
        width, dates = self._size[0], self._view.dates
        if story.is_one(request):
            return story.full(request, table, width, dates, whole_names=not self._stream.isatty())
        return text.request(request, table, width, dates)

    def _histograms(self, report: Report) -> Iterator[str]:
        for row in report.rows:
            if row.stage == self._view.hist and row.distribution.count:
                yield ""
                yield f"{tables.name(row.group, report)} {row.stage}:"
                yield from histogram.rows(row.distribution, self._size[0])

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
            if self._stream.isatty() and len(line) > width:
                yield from textwrap.wrap(line, width, subsequent_indent="  ", drop_whitespace=True)
            else:
                yield line

    # --- The live screen ----------------------------------------------------------------------------------------------

    def _compose(self) -> list[str]:
        width, height = self._size
        sections = {name: [list(self._folded(form)) for form in forms] for name, forms in self._sections(width).items()}
        return [text.head(line.translate(self._characters), width) for line in screen.fit(sections, height - 1)]

    def _sections(self, width: int) -> dict[str, screen.Forms]:
        sections: dict[str, screen.Forms] = {}
        report = self._report
        if report is not None:
            sections.update(report_text.sections(report, self._style))
            if self._view.statistics:
                sections["own cost"] = [[text.overhead(report.overhead, report.duration_ns)], []]
        found, at_ns = self._stuck
        if found and (report is None or report.ts_ns - at_ns < _STUCK_SHOWN_NS):
            sections["stuck"] = [inflight.lines(found, at_ns, width, self._view.dates, most) for most in (8, 3, 1)]
        if self._recent and self._table is not None:
            recent = list(self._recent)
            sections["slow ones"] = [
                *(self._slow(recent[-count:], self._table, width) for count in (_LAST_REQUESTS, 2, 1)),
                [],
            ]
        return sections

    def _slow(self, requests: list[Request], table: StageTable, width: int) -> list[str]:
        of_path = any(map(story.is_one, requests))
        lines = ["slow operations:" if of_path else "slow requests:"]
        for request in requests:
            if story.is_one(request):
                lines += story.short(request, table, width)
            else:
                lines += text.request(request, table, width, self._view.dates)
        return lines


def _has_blocks(stream: TextIO) -> bool:
    try:
        _BLOCKS.encode(stream.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True
