# SPDX-License-Identifier: Apache-2.0
"""A trace in OTF2, a folder: events as regions of their threads, with their stages inside."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from wptrace import __version__
from wptrace.errors import WptraceError
from wptrace.model import segments
from wptrace.model.report import Event, Report, Start
from wptrace.outputs.export.extra import load
from wptrace.outputs.export.file import Export
from wptrace.outputs.export.folder import ExportFolder
from wptrace.outputs.export.lanes import Lanes
from wptrace.outputs.export.lanes import segments as placed
from wptrace.outputs.registry import Wanted
from wptrace.outputs.text import header, words
from wptrace.outputs.text.words import printable

TARGET = ExportFolder
_RESOLUTION = 1_000_000_000
# The least that the library takes: each location has a buffer of its own, and a file.
_CHUNK = 1 << 18
_LOCATIONS = 256
# The largest number of lanes of one thread, and of shared ones, which come on top.
_LANES, _SHARED = 128, 256
_LONGEST = 4096
# The fields that name a location.
_WHERE = {"comm", "pid", "tid"}


class Otf2Export(Export):
    def __init__(self, file: ExportFolder) -> None:
        super().__init__(file)
        self._folder = file
        self._library = load("otf2", "otf2")
        self._error: type[Exception] = load("_otf2", "otf2").Error
        self._writer: Any = None
        self._lanes = Lanes()
        self._locations: dict[Hashable, Any] = {}
        self._groups: dict[Hashable, Any] = {}
        self._left_out = 0

    def start(self, start: Start) -> None:
        self._start = start
        with self._written():
            folder = str(self._folder.folder())
            self._writer = self._library.writer.Writer(folder, timer_resolution=_RESOLUTION, chunk_size_events=_CHUNK)
            self._writer.creator = f"wptrace {__version__}"
            made = self._writer.definitions
            self._node = made.system_tree_node(printable(f"wptrace {start.flow} on {start.kernel}"), "machine")
            kinds = self._library.Type
            types = {str: kinds.STRING, int: kinds.INT64, bool: kinds.INT64}
            self._order = made.attribute("stages", "stages", kinds.STRING)
            self._fields = {
                field: made.attribute(name := printable(field.name), name, types[field.type])
                for field in start.event_fields
                if field.name not in _WHERE
            }

    @contextmanager
    def _written(self) -> Iterator[None]:
        """Turn errors of the library into errors about its files."""
        try:
            yield
        except (self._error, OSError) as error:
            raise WptraceError(f"{self._folder.path} cannot be written: {error}") from None

    def event(self, event: Event) -> None:
        if event.total_ns < 0 or event.start_ns < 0:
            return
        with self._written():
            to, made = self._location(event), self._writer.definitions
            if to is None:
                self._left_out += 1
                return
            name = " ".join(filter(None, (words.group(event.group), event.group.kind.noun.one)))
            whole = made.region(printable(name)[:_LONGEST])
            to.enter(event.start_ns, whole, self._attributes(event))
            for one in placed(event):
                stage = made.region(printable(one.stage))
                to.enter(one.begin_ns, stage)
                to.leave(one.end_ns, stage)
            to.leave(event.end_ns, whole)

    def _attributes(self, event: Event) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for field, attribute in self._fields.items():
            value = field.value(event.fields)
            if isinstance(value, str) and value:
                found[attribute] = printable(value)[:_LONGEST]
            elif isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
                found[attribute] = int(value)
        if note := segments.order(event):
            found[self._order] = note
        return found

    def _location(self, event: Event) -> Any:
        """Return a location of the event's thread that is free meanwhile; many threads share those of `nobody`.

        None if too many events are under way at once.
        """
        fields = event.fields
        pid, tid, comm = fields.get("pid"), fields.get("tid"), printable(str(fields.get("comm") or ""))[:_LONGEST]
        owner: tuple[Hashable, ...] = (pid, tid)
        process, thread = words.task({"comm": comm, "pid": pid}), words.task({"comm": comm, "pid": pid, "tid": tid})
        lane: int | None = None
        if isinstance(pid, int) and pid > 0:
            most = _LANES if len(self._locations) < _LOCATIONS else 0
            lane = self._lanes.take(owner, event.start_ns, event.end_ns, most)
        if lane is None:
            owner, process, thread = (), "others", "others"
            lane = self._lanes.take(owner, event.start_ns, event.end_ns, _SHARED)
        if lane is None:
            return None
        if (owner, lane) not in self._locations:
            group = self._groups.get(owner[:1])
            if group is None:
                group = self._groups[owner[:1]] = self._writer.definitions.location_group(
                    process, system_tree_parent=self._node
                )
            name = thread if not lane else f"{thread}, {lane + 1}"
            self._locations[owner, lane] = self._writer.event_writer(name, group=group)
        return self._locations[owner, lane]

    def finish(self, report: Report) -> None:
        lines = [*header.law(report), *header.losses(report), *self._start.notes]
        if self._left_out:
            lines.append(f"{self._left_out:,} events are left out: too many were under way at once")
        with self._written():
            self._writer.description = "\n".join(map(printable, lines))
            # The writer takes the time of its own first line, but traces may be replayed.
            first = self._writer._first_timestamp
            self._writer._realtime_timestamp = 0 if first is None else first / _RESOLUTION
            self._end()

    def _end(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def close(self) -> None:
        try:
            with self._written():
                self._end()
        finally:
            super().close()


def create(file: ExportFolder, view: str, wanted: Wanted) -> Otf2Export:
    return Otf2Export(file)
