# SPDX-License-Identifier: Apache-2.0
"""A line for each record. Nothing else is in the stream: everything else goes to standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Callable, NamedTuple, TextIO

from wptrace.kernel import blkstatus
from wptrace.kernel.clock import clock_time
from wptrace.model import units
from wptrace.model.book import Cause
from wptrace.model.kind import Kind
from wptrace.model.report import Event, InFlight, Output, Report, Start
from wptrace.outputs import text
from wptrace.outputs.registry import Wanted
from wptrace.outputs.text.words import ends, group, padded, printable, task

# Names are cut to their columns; a task or a figure that is too wide for one makes its line wider.
_TIME, _DATED = 15, 26
_KNOWN = 4096
_DECIMALS = {"us": 1, "ms": 3}


class LineOutput:
    """A subclass says what the lines are."""

    def __init__(self, stream: TextIO, rest: Output, wanted: Wanted) -> None:
        self._stream = stream
        self._rest = rest
        self._wanted = wanted
        self.gone = False
        """The lines have no reader any more: the rest is printed all the same."""

    def begin(self, start: Start) -> None:
        """Writes what stands above the lines."""
        raise NotImplementedError

    def write(self, event: Event) -> None:
        raise NotImplementedError

    def start(self, start: Start) -> None:
        self._rest.start(start)
        with self._reader():
            self.begin(start)
            self._stream.flush()

    def event(self, event: Event) -> None:
        if not self.gone:
            with self._reader():
                self.write(event)

    def flush(self) -> None:
        if not self.gone:
            with self._reader():
                self._stream.flush()

    @contextmanager
    def _reader(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            self.gone = True

    def in_flight(self, found: list[InFlight], at_ns: int) -> None:
        self._rest.in_flight(found, at_ns)

    def interval(self, report: Report) -> None:
        self._rest.interval(report)

    def losses(self) -> Mapping[Cause, int]:
        """A stream that takes no more ends the trace."""
        return {}

    def summary(self, report: Report) -> None:
        self.flush()
        self._rest.summary(report)

    def close(self) -> None:
        self.flush()
        self._rest.close()


class Column(NamedTuple):
    title: str
    width: int
    """Names are cut to it, figures stand at its right."""
    cell: Callable[[Event], str]
    right: bool = False
    whole: bool = False
    """It is not cut."""
    fixed: bool = False
    """It fills its column, and is another one each time."""


class TextLines(LineOutput):
    _columns: Sequence[Column] = ()
    _known: Sequence[dict[str, str]] = ()
    """Names as they are shown, of each column: there are few beside how many lines there are."""

    def begin(self, start: Start) -> None:
        self._columns = _columns(start.kinds, self._wanted)
        self._known = [{} for _ in self._columns]
        titles = (f"{one.title:>{one.width}}" if one.right else padded(one.title, one.width) for one in self._columns)
        self._stream.write(" ".join(titles).rstrip() + "\n")

    def write(self, event: Event) -> None:
        cells = []
        for one, known in zip(self._columns, self._known):
            text = one.cell(event)
            if one.right or one.fixed:
                cells.append(f"{text:>{one.width}}")
                continue
            cell = known.get(text)
            if cell is None:
                cell = printable(text)
                cell = padded(cell if one.whole else ends(cell, one.width), one.width)
                if len(known) >= _KNOWN:
                    known.clear()
                known[text] = cell
            cells.append(cell)
        line = " ".join(cells).rstrip()
        error = event.fields.get("error", 0)
        self._stream.write(printable(f"{line}  failed ({blkstatus.name(error)})" if error else line) + "\n")


def is_io(kinds: Sequence[Kind]) -> bool:
    """Whether it has devices, operations and bytes: a flow by definition has labels of any names."""
    return bool(kinds) and not kinds[0].nested and {"dev", "op"} <= kinds[0].place.keys()


def largest(event: Event) -> tuple[str, int]:
    """The stage that took the most; none where there are none or all took nothing."""
    stages, kind = event.stages, event.group.kind
    name = max((name for name in stages if name in kind), key=lambda name: stages[name], default="")
    return (name, stages[name]) if name and stages[name] and kind.stages else ("", 0)


def _columns(kinds: Sequence[Kind], wanted: Wanted) -> Sequence[Column]:
    dates, unit = wanted.dates, wanted.unit
    who = (
        Column("TIME", _DATED if dates else _TIME, lambda event: clock_time(event.end_ns, dates), fixed=True),
        Column("TASK", 24, lambda event: task(event.fields) if "comm" in event.fields else "-", whole=True),
    )
    took = (
        Column(
            f"TOTAL({unit})",
            10,
            lambda event: f"{event.total_ns / units.NS_PER[unit]:.{_DECIMALS[unit]}f}",
            right=True,
        ),
        Column("LARGEST", 13, _largest),
    )
    if not is_io(kinds):
        return (*who, *took, Column("WHAT", 24, lambda event: group(event.group)))
    what = (
        Column("T", 1, lambda event: event.group.kind.name[:1].upper()),
        Column("DEV", 9, lambda event: event.group.label("dev")),
        Column("OP", 9, lambda event: event.group.label("op")),
        Column("OFFSET/SECTOR", 13, _place, right=True),
        Column("BYTES", 8, lambda event: str(size(event)), right=True),
    )
    # Last, so that it need not be cut.
    return (*who, *what, *took, Column("FILE", 0, lambda event: event.fields.get("path") or "-", whole=True))


def _largest(event: Event) -> str:
    name, ns = largest(event)
    if not name:
        return "page cache" if event.group.kind.name == "hit" else "-"
    return f"{name} {ns / event.total_ns:.0%}" if event.total_ns else name


def _place(event: Event) -> str:
    """In the file for what is of one, on the disk for a request."""
    fields = event.fields
    place = fields.get("offset" if "length" in fields else "sector")
    return "-" if place is None else str(place)


def size(event: Event) -> int:
    """Return the bytes that an operation asks for, or that a request moves."""
    found: int = event.fields.get("length", event.fields.get("bytes", 0))
    return found


def create(stream: TextIO, view: str, wanted: Wanted) -> LineOutput:
    return TextLines(stream, rest(view, wanted), wanted)


def rest(view: str, wanted: Wanted) -> Output:
    """Reports and the summary."""
    return text.create(sys.stderr, view, wanted._replace(live=False))
