# SPDX-License-Identifier: Apache-2.0
"""The lines as CSV: a row for each record, a title for each column, times in nanoseconds."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Callable, TextIO

from wptrace.kernel.clock import clock_seconds, clock_time
from wptrace.model.kind import NOBODY, UNATTRIBUTED, Kind
from wptrace.model.report import Event, Output, Start
from wptrace.model.rows import Number
from wptrace.outputs import lines
from wptrace.outputs.forms import Form, encoded
from wptrace.outputs.registry import Wanted
from wptrace.outputs.text.words import is_nobody, printable

_FORMULAS = ("=", "+", "-", "@")
_NUMBER = re.compile("-[0-9]+")
"""A number is none, and labels of a definition are numbers as well."""
# The column of the time of day.
_TIME = 1
_KNOWN = 1024


class CsvLines(lines.LineOutput):
    def __init__(self, stream: TextIO, rest: Output, wanted: Wanted) -> None:
        super().__init__(stream, rest, wanted)
        # Line-based tools take the carriage return of RFC 4180 as part of the last cell.
        self._line = io.StringIO(newline="")
        self._rows = csv.writer(self._line, lineterminator="\n")
        self._labels: Sequence[str] = ()
        self._fields: Sequence[str] = ()
        self._stages: Sequence[str] = ()

    def begin(self, start: Start) -> None:
        kinds = [kind for kind in start.kinds if kind.book]
        is_io = lines.is_io(kinds)
        self._labels = _labels(kinds)
        self._fields = [field.name for field in start.event_fields]
        self._stages = [*dict.fromkeys(stage.name for kind in kinds for stage in kind.stages), UNATTRIBUTED]
        # A flow by definition may name its labels and stages as it likes.
        labels = self._labels if is_io else [f"label:{name}" for name in self._labels]
        stages = [f"{name}_ns" for name in self._stages]
        self._stream.write(self._row(["ts_ns", "time", "kind", *labels, *self._fields, "total_ns", "largest", *stages]))

    def line(self, event: Event) -> str:
        return self._row(self._cells(event))

    def _cells(self, event: Event) -> list[Any]:
        group, fields, stages = event.group, event.fields, event.stages
        place = group.kind.place
        cells: list[Any] = [event.end_ns, clock_time(event.end_ns, True), group.kind.name]
        cells += (
            group.kind.labels[place[name]].shown(group.label(name)) if name in place else "" for name in self._labels
        )
        cells += (NOBODY if name == "comm" and is_nobody(fields) else fields.get(name) for name in self._fields)
        cells += (event.total_ns, lines.largest(event)[0])
        cells += (stages.get(name) for name in self._stages)
        return cells

    def form(self, event: Event, form: Form) -> Form | None:
        first_field, largest = 3 + len(self._labels), 4 + len(self._labels) + len(self._fields)
        names, took = lines.largest_of(event)
        for place, cell in enumerate(self._cells(event)):
            form.text("," if place else "")
            field = self._fields[place - first_field] if first_field <= place < largest - 1 else ""
            if place == _TIME:
                lines.add_time(event, form)
            elif place == largest and names:
                form.add("%s", f"{form.constant(_largest(names))}({took})")
            elif field in event.fields and (code := form.part(field)):
                form.add("%s", code)
            elif isinstance(cell, Number):
                form.add("%d", cell.code)
            else:
                form.text(_quoted(cell))
        form.text("\n")
        return form

    def part(self, name: str, value: Any) -> str:
        return _quoted(value)

    def seconds(self, second: int) -> str:
        return clock_seconds(second * 1_000_000_000, True)

    def _row(self, cells: Iterable[Any]) -> str:
        self._rows.writerow([_text(one) if isinstance(one, str) else one for one in cells])
        line = self._line.getvalue()
        self._line.seek(0)
        self._line.truncate()
        return line


@lru_cache(_KNOWN)
def _largest(names: Sequence[str]) -> Callable[[tuple[int, ...]], bytes]:
    """Return the name of the largest stage, by what each took."""
    cells = [encoded(_quoted(name)) for name in names]

    def largest(took: tuple[int, ...]) -> bytes:
        most = max(took)
        return cells[took.index(most)] if most else b""

    return largest


def _quoted(cell: Any) -> str:
    """Return a cell among others."""
    row = io.StringIO()
    csv.writer(row, lineterminator="").writerow([_text(cell) if isinstance(cell, str) else cell, 0])
    return row.getvalue()[:-2]


def _text(cell: str) -> str:
    """Quote a text that spreadsheets would take for a formula, by an apostrophe."""
    cell = printable(cell)
    return f"'{cell}" if cell.startswith(_FORMULAS) and not _NUMBER.fullmatch(cell) else cell


def _labels(kinds: Sequence[Kind]) -> list[str]:
    return list(dict.fromkeys(label.name for kind in kinds for label in kind.labels))


def create(stream: TextIO, view: str, wanted: Wanted) -> lines.LineOutput:
    return CsvLines(stream, lines.rest(view, wanted), wanted)
