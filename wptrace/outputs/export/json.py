# SPDX-License-Identifier: Apache-2.0
"""The JSON lines, with the filled buckets of each distribution."""

from __future__ import annotations

from wptrace.model.report import Event, InFlight, Report, Start
from wptrace.model.rows import Rows
from wptrace.outputs.export.file import Export, ExportFile, text
from wptrace.outputs.ndjson import NdjsonOutput
from wptrace.outputs.registry import Wanted


class JsonExport(Export):
    def __init__(self, file: ExportFile, wanted: Wanted) -> None:
        super().__init__(file)
        self._lines = NdjsonOutput(text(file), wanted._replace(intervals=True, buckets=True, top=0))

    def start(self, start: Start) -> None:
        self._lines.start(start)

    def event(self, event: Event) -> None:
        self._lines.event(event)

    def rows(self, rows: Rows) -> bool:
        return self._lines.rows(rows)

    def in_flight(self, found: list[InFlight], at_ns: int) -> None:
        self._lines.in_flight(found, at_ns)

    def interval(self, report: Report) -> None:
        self._lines.interval(report)

    def finish(self, report: Report) -> None:
        self._lines.summary(report)


def create(file: ExportFile, view: str, wanted: Wanted) -> JsonExport:
    return JsonExport(file, wanted)
