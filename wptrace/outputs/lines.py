# SPDX-License-Identifier: Apache-2.0
"""A line for each record. Nothing else is in the stream: everything else goes to standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Callable, NamedTuple, TextIO

from wptrace.kernel import blkstatus
from wptrace.kernel.clock import clock_seconds, clock_time
from wptrace.model import units
from wptrace.model.kind import OWNER, TEXTS, Kind
from wptrace.model.report import Event, InFlight, Output, QuietOutput, Report, Start
from wptrace.model.rows import Number, Rows, code_of
from wptrace.outputs import text
from wptrace.outputs.forms import Form, Forms, Texts, encoded
from wptrace.outputs.registry import Wanted
from wptrace.outputs.text.words import ends, group, padded, printable, task

# Names are cut to their columns; a task or a figure that is too wide for one makes its line wider.
_TIME, _DATED = 15, 26
_LARGEST, _TEXT = 13, 40
_NOTHING = "-"
_KNOWN = 4096
_DECIMALS = {"us": 1, "ms": 3}


class LineOutput(QuietOutput):
    """A subclass says what the lines are."""

    def __init__(self, stream: TextIO, rest: Output, wanted: Wanted) -> None:
        self._stream = stream
        self._rest = rest
        self._wanted = wanted
        self._forms = Forms(self.form, self.line, self.part, seconds=Texts(self.seconds))
        self.gone = False
        """Whether the reader of the lines has left; the rest is printed all the same."""

    def begin(self, start: Start) -> None:
        """Writes what stands above the lines."""
        raise NotImplementedError

    def line(self, event: Event) -> str:
        raise NotImplementedError

    def form(self, event: Event, form: Form) -> Form | None:
        """The form of such lines (wptrace/outputs/forms.py)."""
        raise NotImplementedError

    def part(self, name: str, value: Any) -> str:
        """The text of a field in these lines."""
        raise NotImplementedError

    def seconds(self, second: int) -> str:
        """A time of day to the second."""
        raise NotImplementedError

    def write(self, event: Event) -> None:
        self._stream.write(self.line(event))

    def start(self, start: Start) -> None:
        self._rest.start(start)
        with self._reader():
            self.begin(start)
            self._stream.flush()

    def event(self, event: Event) -> None:
        if not self.gone:
            with self._reader():
                self.write(event)

    def rows(self, rows: Rows) -> bool:
        written = True
        if not self.gone:
            with self._reader():
                written = self._forms.write(rows, self._stream)
        return written

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
    cell: Callable[[Event], str | int]
    right: bool = False
    whole: bool = False
    """Whether it is never cut."""
    fixed: bool = False
    """Whether it fills its column, with another value each time."""
    field: str = ""
    """The field that it shows, and that may be made of a part of a row."""
    form: Callable[[Event, Form], None] | None = None
    """How a column that is computed from numbers is shown."""


class TextLines(LineOutput):
    _columns: Sequence[Column] = ()
    _known: Sequence[dict[str, str]] = ()
    """Names as they are shown, of each column: there are few beside how many lines there are."""

    def begin(self, start: Start) -> None:
        self._columns = _columns(start, self._wanted)
        self._known = [{} for _ in self._columns]
        titles = (f"{one.title:>{one.width}}" if one.right else padded(one.title, one.width) for one in self._columns)
        self._stream.write(" ".join(titles).rstrip() + "\n")

    def line(self, event: Event) -> str:
        cells = []
        for one, known in zip(self._columns, self._known):
            text = str(one.cell(event))
            if one.right or one.fixed:
                cells.append(f"{text:>{one.width}}")
                continue
            cell = known.get(text)
            if cell is None:
                cell = _cell(text, one.width, one.whole)
                if len(known) >= _KNOWN:
                    known.clear()
                known[text] = cell
            cells.append(cell)
        line = " ".join(cells).rstrip()
        error = event.fields.get("error", 0)
        return (printable(f"{line}  failed ({blkstatus.name(error)})") if error else line) + "\n"

    def form(self, event: Event, form: Form) -> Form | None:
        if event.fields.get("error", 0):
            return None
        for place, one in enumerate(self._columns):
            form.text(" " if place else "")
            if one.form is not None:
                one.form(event, form)
            elif one.field in event.fields and (code := form.part(one.field)):
                form.add("%s", code)
            elif isinstance(text := one.cell(event), Number):
                form.add(f"%{one.width}d", text.code)
            else:
                form.text(f"{text:>{one.width}}" if one.right else _cell(str(text), one.width, one.whole))
        form.text("\n")
        return form

    def part(self, name: str, value: Any) -> str:
        # This is the last column, of which only trailing blanks are cut: a path begins with none.
        return _cell(value or _NOTHING, 0, True).rstrip()

    def seconds(self, second: int) -> str:
        dates = self._wanted.dates
        return f"{clock_seconds(second * 1_000_000_000, dates):>{(_DATED if dates else _TIME) - len('.000000')}}"


def _cell(text: str, width: int, whole: bool) -> str:
    cell = printable(text)
    return padded(cell if whole else ends(cell, width), width)


def add_time(event: Event, form: Form) -> None:
    end = code_of(event.end_ns)
    form.add("%s.%06d", f"seconds[{end} // 1000000000]", f"{end} % 1000000000 // 1000")


def is_io(kinds: Sequence[Kind]) -> bool:
    """Whether it has devices, operations and bytes: a flow by definition has labels of any names."""
    return bool(kinds) and not kinds[0].nested and {"dev", "op"} <= kinds[0].place.keys()


def largest(event: Event) -> tuple[str, int]:
    """The stage that took the most; none where there are none or all took nothing."""
    stages, kind = event.stages, event.group.kind
    name = max((name for name in stages if name in kind), key=lambda name: stages[name], default="")
    return (name, stages[name]) if name and stages[name] and kind.stages else ("", 0)


def largest_of(event: Event) -> tuple[tuple[str, ...], str]:
    """Return, for events like this one, the stages of which one may be the largest, and the code of their times."""
    kind = event.group.kind
    names = tuple(name for name in event.stages if name in kind) if kind.stages else ()
    return names, f"({''.join(f'{code_of(event.stages[name])}, ' for name in names)})"


def _columns(start: Start, wanted: Wanted) -> Sequence[Column]:
    dates, unit = wanted.dates, wanted.unit
    who = (
        Column(
            "TIME",
            _DATED if dates else _TIME,
            lambda event: clock_time(event.end_ns, dates),
            fixed=True,
            form=add_time,
        ),
        Column("TASK", 24, lambda event: task(event.fields) if "comm" in event.fields else "-", whole=True),
    )
    took = (
        Column(
            f"TOTAL({unit})",
            10,
            lambda event: f"{event.total_ns / units.NS_PER[unit]:.{_DECIMALS[unit]}f}",
            right=True,
            form=lambda event, form: form.add(
                f"%10.{_DECIMALS[unit]}f", f"{code_of(event.total_ns)} / {units.NS_PER[unit]}"
            ),
        ),
        Column("LARGEST", _LARGEST, _largest, form=_add_largest),
    )
    if not is_io(start.kinds):
        return (*who, *took, Column("WHAT", 24, lambda event: group(event.group)))
    what = (
        Column("T", 1, lambda event: event.group.kind.name[:1].upper()),
        Column("DEV", 9, lambda event: event.group.label("dev")),
        Column("OP", 9, lambda event: event.group.label("op")),
        Column("OFFSET/SECTOR", 13, _place, right=True),
        Column("BYTES", 8, size, right=True),
    )
    texts = (
        Column(field.name.upper(), _TEXT, lambda event: event.fields.get(OWNER) or _NOTHING)
        for field in start.fields
        if field.name in TEXTS
    )
    # Last, so that it need not be cut.
    return (
        *who,
        *what,
        *took,
        *texts,
        Column("FILE", 0, lambda event: event.fields.get("path") or _NOTHING, whole=True, field="path"),
    )


def _largest(event: Event) -> str:
    name, ns = largest(event)
    if not name:
        return "page cache" if event.group.kind.name == "hit" else _NOTHING
    return f"{name} {ns / event.total_ns:.0%}" if event.total_ns else name


def _add_largest(event: Event, form: Form) -> None:
    names, took = largest_of(event)
    if names:
        form.add("%s", f"{form.constant(_shares(names))}({took}, {code_of(event.total_ns)})")
    else:
        form.text(_cell(_largest(event), _LARGEST, False))


@lru_cache(_KNOWN)
def _shares(names: Sequence[str]) -> Callable[[tuple[int, ...], int], bytes]:
    """Return the same by what each stage took, and the total."""
    cells = Texts(lambda key: _cell(f"{names[key[0]]} {key[1]}%", _LARGEST, False))
    nothing = encoded(_cell(_NOTHING, _LARGEST, False))

    def largest(took: tuple[int, ...], total: int) -> bytes:
        most = max(took)
        if not most:
            return nothing
        at = took.index(most)
        if total <= 0:
            return encoded(_cell(f"{names[at]} {most / total:.0%}" if total else names[at], _LARGEST, False))
        # To the even one of two, as a format does.
        return cells[at, round(most / total * 100)]

    return largest


def _place(event: Event) -> str | int:
    """Return the offset in the file, or the sector for a request."""
    fields = event.fields
    place = fields.get("offset" if "length" in fields else "sector")
    return _NOTHING if place is None else place


def size(event: Event) -> int:
    """Return the bytes that an operation asks for, or that a request moves."""
    found: int = event.fields.get("length", event.fields.get("bytes", 0))
    return found


def create(stream: TextIO, view: str, wanted: Wanted) -> LineOutput:
    return TextLines(stream, rest(view, wanted), wanted)


def rest(view: str, wanted: Wanted) -> Output:
    """Reports and the summary."""
    return text.create(sys.stderr, view, wanted._replace(live=False))
