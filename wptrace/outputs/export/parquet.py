# SPDX-License-Identifier: Apache-2.0
"""Events as Parquet: a row for each, a column for each label, field and stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wptrace import __version__
from wptrace.model.kind import UNATTRIBUTED
from wptrace.model.report import Event, Report, Start
from wptrace.outputs.export.extra import load
from wptrace.outputs.export.file import Export, ExportFile, Sink
from wptrace.outputs.json_line import encoded
from wptrace.outputs.registry import Wanted
from wptrace.outputs.text import header
from wptrace.outputs.text.words import printable

# The number of rows that are written together.
_BATCH = 32768
_LARGEST = (1 << 63) - 1


class ParquetExport(Export):
    def __init__(self, file: ExportFile) -> None:
        super().__init__(file)
        self._arrow = load("pyarrow", "parquet")
        self._parquet = load("pyarrow.parquet", "parquet")
        self._rows: list[Event] = []
        self._writer: Any = None

    def start(self, start: Start) -> None:
        arrow = self._arrow
        self._labels = list(dict.fromkeys(label.name for kind in start.kinds for label in kind.labels))
        stages = (stage.name for kind in start.kinds for stage in kind.stages)
        self._stages = [*dict.fromkeys(stages), UNATTRIBUTED]
        self._fields = start.event_fields
        self._types = {field.name: field.type for field in self._fields}
        name, number = arrow.dictionary(arrow.int32(), arrow.string()), arrow.int64()
        types = {str: name, int: number, bool: arrow.bool_()}
        columns = [("time", arrow.timestamp("us", tz="UTC")), ("ts_ns", number), ("kind", name)]
        # An event has fields of its own that may be called so: two columns of a name are refused by who reads them.
        own = [(field.name, types[field.type]) for field in self._fields]
        others = {column for column, _ in (*columns, *own)} | {"total_ns", "more"}
        nested = start.kinds[0].nested
        columns += [(f"label_{one}" if nested or one in others else one, name) for one in self._labels]
        columns += [*own, ("total_ns", number)]
        columns += [*((f"{one}_ns", number) for one in self._stages), ("more", arrow.string())]
        shown: dict[str, Any] = {
            "version": __version__,
            "flow": start.flow,
            "level": start.level,
            "kernel": start.kernel,
        }
        shown.update(filters=dict(start.filters), notes=start.notes)
        self._schema = arrow.schema(columns, metadata={"wptrace.schema": "1", "wptrace.start": encoded(shown)})
        self._writer = self._parquet.ParquetWriter(Sink(self._file), self._schema, compression="zstd")

    def event(self, event: Event) -> None:
        self._rows.append(event)
        if len(self._rows) >= _BATCH:
            self._write()

    def _write(self) -> None:
        """A column after the other: rows are slow."""
        rows, self._rows = self._rows, []
        fields = [event.fields for event in rows]
        columns: list[Sequence[Any]] = [
            [event.end_ns // 1000 for event in rows],
            [event.end_ns for event in rows],
            [event.group.kind.name for event in rows],
            *([_label(event, name) for event in rows] for name in self._labels),
            *([self._cell(field.name, one.get(field.name)) for one in fields] for field in self._fields),
            [event.total_ns for event in rows],
            *([event.stages.get(name) for event in rows] for name in self._stages),
            [self._more(event) for event in rows],
        ]
        arrays = [self._arrow.array(column, field.type) for column, field in zip(columns, self._schema)]
        self._writer.write_table(self._arrow.Table.from_arrays(arrays, schema=self._schema))

    def _more(self, event: Event) -> str:
        """All that is in no column, such as what interfered."""
        return encoded({name: one for name, one in event.fields.items() if not self._has_column(name, one)})

    def _has_column(self, name: str, value: Any) -> bool:
        of = self._types.get(name)
        if of is None or value is None:
            return of is not None
        return type(value) is of and not (isinstance(value, int) and abs(value) > _LARGEST)

    def _cell(self, name: str, value: Any) -> Any:
        if not self._has_column(name, value):
            return None
        return printable(value) if isinstance(value, str) else value

    def finish(self, report: Report) -> None:
        if self._rows:
            self._write()
        lost = encoded({"law": list(header.law(report)), "losses": list(header.losses(report))})
        self._writer.add_key_value_metadata({"wptrace.loss": lost})
        self._writer.close()
        self._writer = None

    def close(self) -> None:
        super().close()
        if self._writer is not None:
            # Its end goes nowhere any more.
            self._writer.close()
            self._writer = None


def _label(event: Event, name: str) -> str | None:
    place = event.group.kind.place.get(name)
    return None if place is None else printable(event.group.kind.labels[place].shown(event.group.values[place]))


def create(file: ExportFile, view: str, wanted: Wanted) -> ParquetExport:
    return ParquetExport(file)
