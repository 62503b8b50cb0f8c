# SPDX-License-Identifier: Apache-2.0
"""A trace for Perfetto: events as slices with their stages inside, intervals as counters."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from wptrace import __version__
from wptrace.correlation.guests import BACK
from wptrace.model import segments
from wptrace.model.kind import TOTAL
from wptrace.model.report import Event, Report, Start
from wptrace.outputs.export import sums
from wptrace.outputs.export.extra import load
from wptrace.outputs.export.file import Export, ExportFile
from wptrace.outputs.export.lanes import DISK, Lanes, Segment, device, sides
from wptrace.outputs.registry import Wanted
from wptrace.outputs.text import header, words
from wptrace.outputs.text.words import printable

# All packets are of one writer.
_WRITER = 1
_REALTIME, _BOOTTIME = 1, 6
_LONGEST = 4096
# The largest number of overlapping events on a thread or a device; and of tracks: a capture may say anything.
_LANES, _TRACKS = 1024, 1 << 16
_GUEST, _HOST = _SIDES = "guest", "host"
"""Machines of one trace."""


class PerfettoExport(Export):
    def __init__(self, file: ExportFile) -> None:
        super().__init__(file)
        self._trace = load("perfetto.protos.perfetto.trace.perfetto_trace_pb2", "perfetto")
        # Each packet is written at once.
        self._builder = load("perfetto.trace_builder.proto_builder", "perfetto").StreamingTraceProtoBuilder(file)
        self._tracks: dict[Hashable, int] = {}
        self._lanes = Lanes()
        self._flows = 0
        self._clocks_written = 0
        self._left_out = 0

    def start(self, start: Start) -> None:
        self._start = start
        # Times of this machine's clock, so that other traces of the same time can be merged.
        self._offset_ns: int | None = (
            None if start.file else time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        )

    # --- Packets ------------------------------------------------------------------------------------------------------

    def _packet(self, wall_ns: int) -> Any:
        packet = self._builder.create_packet()
        packet.timestamp = self._time(wall_ns)
        packet.trusted_packet_sequence_id = _WRITER
        return packet

    def _time(self, wall_ns: int) -> int:
        if self._offset_ns is None:
            # The clock of another machine, or of another day, begins a second before the first event.
            self._offset_ns = wall_ns - 1_000_000_000
        if not self._clocks_written:
            self._clocks_written = 1
            snapshot = self._builder.create_packet()
            snapshot.trusted_packet_sequence_id = _WRITER
            snapshot.clock_snapshot.primary_trace_clock = _BOOTTIME
            for clock, ns in ((_BOOTTIME, wall_ns - self._offset_ns), (_REALTIME, wall_ns)):
                found = snapshot.clock_snapshot.clocks.add()
                found.clock_id, found.timestamp = clock, max(ns, 0)
            self._builder.write_packet(snapshot)
        return max(wall_ns - self._offset_ns, 0)

    def _track(self, key: Hashable, **described: Any) -> int:
        """Its number; it is described when it is first used."""
        if key not in self._tracks:
            self._tracks[key] = number = len(self._tracks) + 1
            packet = self._builder.create_packet()
            packet.trusted_packet_sequence_id = _WRITER
            track = packet.track_descriptor
            track.uuid = number
            for name, value in described.items():
                if isinstance(value, Mapping):
                    part = getattr(track, name)
                    part.SetInParent()
                    for field, one in value.items():
                        setattr(part, field, _sound(one))
                else:
                    setattr(track, name, _sound(value))
            self._builder.write_packet(packet)
        return self._tracks[key]

    def _begin(self, track: int, name: str, wall_ns: int, notes: Mapping[str, Any], flow: int = 0) -> None:
        packet = self._packet(wall_ns)
        event = packet.track_event
        event.type, event.track_uuid, event.name = event.TYPE_SLICE_BEGIN, track, printable(name)
        if flow:
            event.flow_ids.append(flow)
        for key, value in notes.items():
            note = event.debug_annotations.add()
            note.name = printable(key)
            _annotate(note, value)
        self._builder.write_packet(packet)

    def _end(self, track: int, wall_ns: int) -> None:
        packet = self._packet(wall_ns)
        packet.track_event.type, packet.track_event.track_uuid = packet.track_event.TYPE_SLICE_END, track
        self._builder.write_packet(packet)

    # --- What is written ----------------------------------------------------------------------------------------------

    def event(self, event: Event) -> None:
        if event.total_ns < 0:
            return
        kind, ours, there = event.group.kind, *sides(event)
        parent = self._owner(event.fields, _GUEST if "host" in event.fields else "")
        name = " ".join(filter(None, (words.group(event.group), kind.noun.one)))
        track = self._lane(parent, kind.name, kind.noun.plural, event.start_ns, event.end_ns)
        if not track:
            self._left_out += 1
            return
        on = "" if there else device(event)
        self._flows += bool(on or there)
        flow = self._flows if on or there else 0
        notes = {key: value for key, value in event.fields.items() if value not in (None, "", [], {})}
        if facts := segments.order(event):
            notes["stages"] = facts
        self._begin(track, name, event.start_ns, {**notes, "total_ns": event.total_ns}, flow)
        for segment in ours:
            self._begin(track, segment.stage, segment.begin_ns, {}, flow if segment.stage == BACK else 0)
            self._end(track, segment.end_ns)
            if on and segment.stage == DISK:
                self._on_device(on, f"{name}, in the device", segment.begin_ns, segment.end_ns, flow)
        self._end(track, event.end_ns)
        if not on:
            self._children(event, name)
        if there:
            self._on_host(event.fields["host"], there, flow)

    def _lane(self, parent: int, key: str, name: str, begin_ns: int, end_ns: int) -> int:
        """A track of the owner on which nothing else is meanwhile; 0 where there are too many."""
        lane = self._lanes.take((parent, key), begin_ns, end_ns, self._most_lanes)
        if lane is None:
            return 0
        return self._track(("lane", parent, key, lane), name=name, **({"parent_uuid": parent} if parent else {}))

    @property
    def _most_lanes(self) -> int:
        return _LANES if len(self._tracks) < _TRACKS else 0

    def _owner(self, fields: Mapping[str, Any], side: str = "") -> int:
        """The thread that it belongs to; none where nobody is known.

        Of several machines each is a process: numbers of theirs may be the same.
        """
        pid, tid, comm = fields.get("pid"), fields.get("tid"), printable(str(fields.get("comm") or ""))
        if not isinstance(pid, int) or not 0 < pid < 1 << 31:
            return 0
        if not isinstance(tid, int) or not 0 < tid < 1 << 31:
            tid = pid
        known = ("task", side, pid, tid) if side else ("thread", pid, tid)
        if len(self._tracks) >= _TRACKS and known not in self._tracks:
            return 0
        if side:
            machine = {"pid": _SIDES.index(side) + 1, "process_name": side}
            parent = self._track(("machine", side), process=machine)
            return self._track(known, name=f"{comm} {tid}", parent_uuid=parent)
        self._track(("process", pid), process={"pid": pid, "process_name": comm})
        return self._track(known, thread={"pid": pid, "tid": tid, "thread_name": comm})

    def _on_host(self, fields: Mapping[str, Any], found: Sequence[Segment], flow: int) -> None:
        """Draw the work of the host, by the guest's clock."""
        begin, end = found[0].begin_ns, found[-1].end_ns
        track = self._lane(self._owner(fields, _HOST), "host", "operations for the guest", begin, end)
        if not track:
            self._left_out += 1
            return
        self._begin(track, printable(str(fields.get("image") or "host")), begin, fields, flow)
        for segment in found:
            self._begin(track, segment.stage, segment.begin_ns, {})
            self._end(track, segment.end_ns)
        self._end(track, end)

    def _children(self, event: Event, name: str) -> None:
        """Requests in their devices. A name is known of the device of the last one."""
        fields = event.fields
        for one in event.children:
            place = one.fields["maj_min"]
            on = event.group.label("dev") if place == fields.get("maj_min") else place
            begin, end = event.start_ns + one.times["handed"], event.start_ns + one.times["seen"]
            self._on_device(str(on), f"{name}, sector {one.fields['sector']}", begin, end, 0)

    def _on_device(self, name: str, what: str, begin_ns: int, end_ns: int, flow: int) -> None:
        lane = self._lanes.take(("device", name), begin_ns, end_ns, self._most_lanes)
        if lane is None:
            self._left_out += 1
            return
        parent = self._track(("device", name), name=f"device {printable(name)}")
        track = self._track(("on", name, lane), name="requests in the device", parent_uuid=parent)
        self._begin(track, what, begin_ns, {}, flow)
        self._end(track, end_ns)

    def interval(self, report: Report) -> None:
        begin, seconds = report.ts_ns - report.duration_ns, report.duration_ns / 1e9
        for group, found in sums.wholes(report).items():
            of_all, unit = found[TOTAL], group.kind.total.unit
            name = sums.name(group)
            if seconds:
                self._count(f"{name} a second", "", begin, of_all.count / seconds)
            if of_all.count:
                self._count(f"{name}, p50", unit, begin, of_all.percentile(50))
                self._count(f"{name}, p99", unit, begin, of_all.percentile(99))
        for name, book in report.books.items():
            self._count(f"{name} in flight", "", report.ts_ns, book.in_flight)

    def _count(self, name: str, unit: str, wall_ns: int, value: float) -> None:
        parent = self._track("counters", name=f"wptrace {self._start.flow}")
        track = self._track(("counter", name), name=name, parent_uuid=parent, counter={"unit_name": unit})
        packet = self._packet(wall_ns)
        event = packet.track_event
        event.type, event.track_uuid, event.double_counter_value = event.TYPE_COUNTER, track, value
        self._builder.write_packet(packet)

    def finish(self, report: Report) -> None:
        """A slice over all of it says how it was measured, and what was lost."""
        start, begin = self._start, report.ts_ns - report.duration_ns
        facts: dict[str, Any] = {"version": __version__, "kernel": start.kernel, "level": start.level}
        facts.update({f"filter {name}": value for name, value in start.filters.items()})
        facts.update({f"hook of {source.stage}": source.how or "not seen on this kernel" for source in start.sources})
        facts.update({f"note {at}": note for at, note in enumerate(start.notes, 1)})
        facts.update(_by_name(header.law(report)))
        facts.update({f"loss {at}": line for at, line in enumerate(header.losses(report), 1)})
        if self._left_out:
            facts["left out"] = f"{self._left_out:,} slices: too many were under way at once"
        parent = self._track("counters", name=f"wptrace {start.flow}")
        track = self._track("trace", name="the trace", parent_uuid=parent)
        self._begin(track, f"wptrace {start.flow}", begin, facts)
        self._end(track, report.ts_ns)


def _sound(value: Any) -> Any:
    """Texts are UTF-8 in a file of Perfetto, which names of a capture may not be."""
    return printable(value) if isinstance(value, str) else value


def _annotate(note: Any, value: Any) -> None:
    """An argument as Perfetto has them: of what has parts each is one."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            part = note.dict_entries.add()
            part.name = printable(str(key))
            _annotate(part, one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            _annotate(note.array_values.add(), one)
    elif isinstance(value, bool):
        note.bool_value = value
    elif isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        note.int_value = value
    else:
        note.string_value = "" if value is None else printable(str(value))[:_LONGEST]


def _by_name(lines: Iterable[str]) -> Mapping[str, str]:
    """`requests: 5 started = ...` by what stands before the colon."""
    return {name: what.strip() for name, _, what in (line.partition(":") for line in lines)}


def create(file: ExportFile, view: str, wanted: Wanted) -> PerfettoExport:
    return PerfettoExport(file)
