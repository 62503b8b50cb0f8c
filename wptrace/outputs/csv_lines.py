# SPDX-License-Identifier: Apache-2.0
"""The lines as CSV: a row for each record, a title for each column, times in nanoseconds."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from wptrace.kernel.clock import clock_time
from wptrace.model.kind import NOBODY, UNATTRIBUTED, Kind, fields_of
from wptrace.model.report import Event, Output, Start
from wptrace.outputs import lines
from wptrace.outputs.registry import Wanted
from wptrace.outputs.text.words import is_nobody, printable

_FORMULAS = ("=", "+", "-", "@")


class CsvLines(lines.LineOutput):
    def __init__(self, stream: TextIO, rest: Output, wanted: Wanted) -> None:
        super().__init__(stream, rest, wanted)
        # Tools that read lines take the carriage return of RFC 4180 for a part of the last cell.
        self._rows = csv.writer(stream, lineterminator="\n")
        self._labels: Sequence[str] = ()
        self._fields: Sequence[str] = ()
        self._stages: Sequence[str] = ()

    def begin(self, start: Start) -> None:
        kinds = [kind for kind in start.kinds if kind.book]
        is_io = lines.is_io(kinds)
        self._labels = _labels(kinds)
        self._fields = [field.name for field in fields_of(kinds)]
        self._stages = [*dict.fromkeys(stage.name for kind in kinds for stage in kind.stages), UNATTRIBUTED]
        # A flow by definition may name its labels and stages as it likes.
        labels = self._labels if is_io else [f"label:{name}" for name in self._labels]
        stages = [f"{name}_ns" for name in self._stages]
        self._write(["ts_ns", "time", "kind", *labels, *self._fields, "total_ns", "largest", *stages])

    def write(self, event: Event) -> None:
        group, fields, stages = event.group, event.fields, event.stages
        place = group.kind.place
        cells: list[Any] = [event.end_ns, clock_time(event.end_ns, True), group.kind.name]
        cells += (
            group.kind.labels[place[name]].shown(group.label(name)) if name in place else "" for name in self._labels
        )
        cells += (NOBODY if name == "comm" and is_nobody(fields) else fields.get(name) for name in self._fields)
        cells += (event.total_ns, lines.largest(event)[0])
        cells += (stages.get(name) for name in self._stages)
        self._write(cells)

    def _write(self, cells: Iterable[Any]) -> None:
        self._rows.writerow([_text(one) if isinstance(one, str) else one for one in cells])


def _text(cell: str) -> str:
    """Spreadsheets take a text that begins so for a formula: the apostrophe says that it is none."""
    cell = printable(cell)
    return f"'{cell}" if cell.startswith(_FORMULAS) else cell


def _labels(kinds: Sequence[Kind]) -> list[str]:
    return list(dict.fromkeys(label.name for kind in kinds for label in kind.labels))


def create(stream: TextIO, view: str, wanted: Wanted) -> lines.LineOutput:
    return CsvLines(stream, lines.rest(view, wanted), wanted)
