# SPDX-License-Identifier: Apache-2.0
"""Text on a terminal, live where rich is installed and the output is one; plain lines everywhere else."""

from __future__ import annotations

import sys
import textwrap
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple, TextIO

from wptrace.model.kind import Kind
from wptrace.model.report import Controls, Event, InFlight, QuietOutput, Report, Start
from wptrace.outputs.text import budget, header, inflight, keyboard, live, pages, screen, words
from wptrace.outputs.text.keyboard import Keyboard
from wptrace.outputs.text.live import Live, can_be_live
from wptrace.outputs.text.past import Past
from wptrace.outputs.text.screen_state import ROWS, STORIES, TABLES, ScreenState
from wptrace.outputs.text.view import Forms, View

# This many records are kept, and this many of them stand below the tables.
_LAST_STORIES = 50
_LAST_EVENTS = 5
# The number of operations with a line of how their times went.
_TRENDS = 3
# The time for which I/O in flight stays on a live screen, unless something newer takes its place.
_STUCK_SHOWN_NS = 5_000_000_000
# The characters of bars, and what they become where the output's encoding has no blocks.
_BLOCKS = "▏▎▍▌▋▊▉█"
_WITHOUT_BLOCKS = str.maketrans(dict.fromkeys(_BLOCKS, "#"))
_WIDTH = 100
# The part that goes first where lines are few.
_IDLE = "stages that took no time"


class _Seen(NamedTuple):
    """Parts of a live screen."""

    report: Report | None = None
    recent: Sequence[Event] = ()
    stuck: Sequence[InFlight] = ()
    stuck_ns: int = 0


class TextOutput(QuietOutput):
    def __init__(self, stream: TextIO, view: View) -> None:
        self._stream = stream
        self._view = view
        self._characters = {} if _has_blocks(stream) else _WITHOUT_BLOCKS
        self._introduction: list[str] = []
        self.said: set[str] = set()
        """Notes that were printed; outputs that share it print each once."""
        self._now = _Seen()
        self._shown = self._now
        self._recent: deque[Event] = deque(maxlen=_LAST_STORIES)
        self._past = Past()
        self._is_terse = False
        """Rows of stages that took no time were left out at the last time."""
        is_live = view.wanted.live and can_be_live(stream)
        self._live = Live(stream, self._compose) if is_live else None
        self._state = self._new_state(())
        self._keyboard: Keyboard | None = None
        if self._live is not None and keyboard.there_is_one(sys.stdin):
            self._keyboard = Keyboard(stream, self._press, self._live.resume)

    @property
    def controls(self) -> Controls | None:
        """Keys, on a live screen that has them."""
        return self._keyboard

    @property
    def live(self) -> bool:
        """Whether it draws in place."""
        return self._live is not None

    @property
    def next_owner(self) -> str:
        """The kind of owners that the user wants next; the trace has ended for that."""
        return self._state.next_owner

    def _new_state(self, kinds: Sequence[Kind]) -> ScreenState:
        wanted = self._view.wanted
        return ScreenState(kinds, wanted.per_device, self._view.arranges, wanted.owners, wanted.recorder)

    def take_dump(self) -> bool:
        """Whether the user asked, since the last call, for a dump of the flight recorder."""
        asked, self._state.dump_asked = self._state.dump_asked, False
        return asked

    def note(self, words: str) -> None:
        """Something that is no result: on the last line of a live screen, or on standard error."""
        if self._live is not None:
            self._state.message = words
            self._draw()
        else:
            print(f"wptrace: {words}", file=sys.stderr, flush=True)

    @property
    def paused(self) -> bool:
        """The user holds the screen."""
        return self._state.paused

    # --- Events -------------------------------------------------------------------------------------------------------

    def start(self, start: Start) -> None:
        self._introduction = list(self._view.begin(start))
        self._introduce()
        self._state = self._new_state(self._view.kinds)
        if self._live is not None:
            self._live.start()
        if self._keyboard is not None:
            self._keyboard.start()

    def event(self, event: Event) -> None:
        self._view.add(event)
        if self._live is not None:
            self._recent.append(event)
        else:
            self._print(self._titled(self._view.event(event, self._size[0], not self._stream.isatty())))

    def in_flight(self, found: list[InFlight], at_ns: int) -> None:
        if self._live is not None:
            self._now = self._now._replace(stuck=found, stuck_ns=at_ns)
            self._draw()
        else:
            lines = self._view.in_flight(found, at_ns, self._name_width, inflight.MOST)
            if lines:
                lines = list(self._titled(lines))
                self._print(["", *lines] if self._view.spaced else lines)

    def interval(self, report: Report) -> None:
        self._now = self._now._replace(report=report)
        if self._live is not None:
            self._past.add(report, next((kind for kind in self._view.kinds if kind.stages), None))
            self._state.add_interval(len(self._past))
            self._draw()
        elif self._view.wanted.intervals:
            title = self._view.wanted.title
            self._print(["", *([title] if title else []), *self._lines(report)])

    def summary(self, report: Report) -> None:
        self.close()
        if self.next_owner:
            return
        title = self._view.wanted.title
        lines = [*self._lines(report), *self._view.closing(report, self._size[0])]
        self._print(["", f"Summary of {title}" if title else "Summary", *lines])

    def close(self) -> None:
        if self._keyboard is not None:
            self._keyboard.close()
            self._keyboard = None
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._stream.flush()

    # --- Lines --------------------------------------------------------------------------------------------------------

    @property
    def _size(self) -> tuple[int, int]:
        return live.size() if self._stream.isatty() else (_WIDTH, 0)

    @property
    def _name_width(self) -> int:
        """A pipe's reader wants names whole, and each thing on one line."""
        return self._size[0] if self._stream.isatty() else 1 << 16

    def _lines(self, report: Report) -> Iterator[str]:
        yield from self._view.report(report, self._size[0])
        yield from header.losses(report, self._view.kinds)
        yield from budget.lines(report)
        if self._view.wanted.statistics:
            yield words.overhead(report.overhead, report.duration_ns)

    def _titled(self, lines: Iterable[str]) -> Iterator[str]:
        """Notes in between name their flow if there are several."""
        title = self._view.wanted.title
        for at, line in enumerate(lines):
            yield line if at or not title else f"{title}: {line}"

    def _introduce(self) -> None:
        """Notes are no results: who sends these to a pipe has them on the terminal all the same."""
        apart = self._stream is sys.stdout and self._live is None
        lines = [line for line in self._introduction if line not in self.said]
        notes = [line for line in lines if line.startswith(words.NOTE)]
        self.said.update(notes)
        self._print(line for line in lines if not apart or line not in notes)
        if apart:
            with suppress(OSError):
                self._print(notes, sys.stderr)

    def _print(self, lines: Iterable[str], stream: TextIO | None = None) -> None:
        stream = stream or self._stream
        for line in self._folded(lines):
            # Any part of it may come from a forged capture.
            stream.write(words.printable(line).translate(self._characters) + "\n")
        stream.flush()

    def _folded(self, lines: Iterable[str]) -> Iterator[str]:
        """Sentences fit the terminal; a pipe's reader wants each on one line."""
        width = self._size[0]
        for line in lines:
            if self._view.folds and self._stream.isatty() and words.columns(line) > width:
                yield from _wrapped(words.printable(line), width)
            else:
                yield line

    # --- The live screen ----------------------------------------------------------------------------------------------

    def _draw(self) -> None:
        """Show what came since; a screen that the user holds stands still."""
        if self._live is not None and not self._state.paused:
            self._live.draw()

    def _press(self, keys: list[str]) -> bool:
        """Answers all that came before it draws once."""
        state, report = self._state, self._drawn
        for key in keys:
            if state.stale and state.moves(key) and report is not None:
                state.arranged(report)
            if not state.press(key):
                return False
        if self._live is not None:
            if "redraw" in keys:
                self._live.redraw()
            else:
                self._live.draw()
        return True

    def _compose(self) -> list[str]:
        width, height = self._size
        if not self._state.paused:
            self._shown = self._now._replace(recent=list(self._recent))
        if self._keyboard is None:
            lines = self._tables(width, height)
        else:
            lines = self._page(width, max(height - 1, 1))
            if self._state.helping:
                lines = pages.help_over(lines, self._help(), self._state, width, max(height - 1, 1))
            lines += [""] * (height - 1 - len(lines))
            lines.append(pages.status(self._state, width))
        return [words.head(words.printable(line).translate(self._characters), width) for line in lines]

    @property
    def _drawn(self) -> Report | None:
        """The last interval, or the one to which the user went back."""
        return self._past.at(self._state.back) if self._state.back else self._shown.report

    def _help(self) -> list[str]:
        """Keys, what the stages are, and what could not be observed."""
        notes = [line for line in self._introduction if line.startswith(words.NOTE)]
        return [*pages.help_lines(self._view.kinds), *([""] if notes else []), *notes]

    def _page(self, width: int, height: int) -> list[str]:
        state, report, style = self._state, self._drawn, self._view.style(width)
        if state.page == STORIES:
            return pages.stories(self._shown.recent, self._view, state, width, height)
        if report is None or state.page == TABLES:
            return self._tables(width, height)
        first = header.time(report, style)
        of = state.arranged(report)
        if state.page == ROWS:
            return [first, *pages.rows(of, state, width, height - 1)]
        return [first, *pages.row(of, state, style, height - 1)]

    def _tables(self, width: int, height: int) -> list[str]:
        report = self._drawn
        # The report is arranged even if the tables stay as they are: for those who go on to the list of rows.
        of = None if report is None or self._keyboard is None else self._state.arranged(report)
        of = of if self._view.arranges else None
        if self._is_terse:
            sections = self._sections(width, of, terse=True)
            # The full form, with more lines, would not fit either, so it is not made.
            if not screen.fits(sections, height):
                return screen.fit(sections, height, [_IDLE])
        whole = self._sections(width, of)
        if screen.fits(whole, height):
            self._is_terse = False
            return screen.fit(whole, height)
        sections = self._sections(width, of, terse=True)
        self._is_terse = sections != whole
        return screen.fit(sections, height, [_IDLE] if self._is_terse else [])

    def _sections(self, width: int, of: Report | None, terse: bool = False) -> dict[str, Forms]:
        found = self._of_view(width, of, terse)
        return {name: [list(self._folded(form)) for form in forms] for name, forms in found.items()}

    def _of_view(self, width: int, of: Report | None, terse: bool) -> dict[str, Forms]:
        _, recent, found, at_ns = self._shown
        report, back = self._drawn, self._state.back
        if back:
            # The events that were shown then are on the page of stories.
            recent, found = (), ()
        sections = dict(self._view.sections(report, recent[-_LAST_EVENTS:], width, terse, of))
        if report is not None and self._introduction:
            sections["title"] = [self._introduction[:1], []]
        trend = list(self._past.lines(width, back)) if _has_blocks(self._stream) else []
        if trend and self._view.arranges:
            sections["past"] = [trend[:_TRENDS], trend[:1], []]
        if report is not None and self._view.wanted.statistics:
            sections["own cost"] = [[words.overhead(report.overhead, report.duration_ns)], []]
        if found and (report is None or report.ts_ns - at_ns < _STUCK_SHOWN_NS):
            sections["stuck"] = [self._view.in_flight(list(found), at_ns, width, most) for most in (8, 3, 1)]
        return sections


def _wrapped(line: str, width: int) -> list[str]:
    """Wrap a line by columns: textwrap counts characters, so that each wide one gets a second one meanwhile."""
    doubled = "".join(char if words.columns(char) < 2 else f"{char}\0" for char in line)
    # A word that is too long may be cut between the two.
    room = max(width - (doubled != line), 1)
    return [found.replace("\0", "") for found in textwrap.wrap(doubled, room, subsequent_indent="  ")]


def _has_blocks(stream: TextIO) -> bool:
    try:
        _BLOCKS.encode(stream.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True
