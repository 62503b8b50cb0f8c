# SPDX-License-Identifier: Apache-2.0
"""Events as CSV, in the columns of --csv."""

from __future__ import annotations

from wptrace.model.report import Event, Report, Start
from wptrace.model.rows import Rows
from wptrace.outputs.csv_lines import CsvLines
from wptrace.outputs.export.file import Export, ExportFile, text
from wptrace.outputs.registry import Wanted


class CsvExport(Export):
    def __init__(self, file: ExportFile, wanted: Wanted) -> None:
        super().__init__(file)
        # Nothing else goes through it.
        self._lines = CsvLines(text(file), self, wanted)

    def start(self, start: Start) -> None:
        self._lines.begin(start)

    def event(self, event: Event) -> None:
        self._lines.write(event)

    def rows(self, rows: Rows) -> bool:
        return self._lines.rows(rows)

    def finish(self, report: Report) -> None:
        """Lines are whole at once."""


def create(file: ExportFile, view: str, wanted: Wanted) -> CsvExport:
    return CsvExport(file, wanted)
