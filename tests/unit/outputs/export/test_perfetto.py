# SPDX-License-Identifier: Apache-2.0
"""Slices for Perfetto, decoded with its own protocol."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.unit.outputs import path
from tests.unit.outputs.export.events import some, sums
from tests.unit.outputs.samples import HOSTILE, NOON, play
from wptrace.model.kind import Kind, Noun, Point, Stage
from wptrace.model.report import Event
from wptrace.outputs import export
from wptrace.outputs.export import perfetto
from wptrace.outputs.export.lanes import Lanes
from wptrace.outputs.registry import Wanted

# The warning comes from upb-based protobuf, whose types have no __module__.
pytestmark = pytest.mark.filterwarnings("ignore:Type google._upb:DeprecationWarning")

LABELS = path.OPERATION.labels
POINTS = Point("a", "from"), Point("b", "to")
# The capture is from a day before this machine booted.
REPLAYED = path.start()._replace(file="capture")


def packets(folder: Path, *results: Any) -> list[Any]:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    place = folder / "trace.pftrace"
    play(export.make("perfetto", place, "stages", Wanted()), *results, path.report(kind="summary"))
    made = Trace()
    made.ParseFromString(place.read_bytes())
    return list(made.packet)


def slices(found: list[Any]) -> list[tuple[str, int, int, int, int]]:
    """Return name, track, depth, begin and end of each slice, which has to end inside its parent."""
    stacks: dict[int, list[tuple[str, int]]] = defaultdict(list)
    last: Counter[int] = Counter()
    made = []
    for packet in found:
        event = packet.track_event
        if event.type == event.TYPE_SLICE_BEGIN:
            assert packet.timestamp >= last[event.track_uuid]
            stacks[event.track_uuid].append((event.name, packet.timestamp))
        elif event.type == event.TYPE_SLICE_END:
            name, begin = stacks[event.track_uuid].pop()
            made.append((name, event.track_uuid, len(stacks[event.track_uuid]), begin, packet.timestamp))
        if event.track_uuid:
            last[event.track_uuid] = packet.timestamp
    assert not any(stacks.values())
    return made


def test_slices_have_the_times_of_the_stages_and_nest(tmp_path: Path) -> None:
    events = some()
    found = slices(packets(tmp_path, REPLAYED, *events))
    counts, times = sums(events)
    inner = [one for one in found if one[2] == 1]
    assert Counter(one[0] for one in inner) == counts
    for name, ns in times.items():
        assert sum(end - begin for what, _, _, begin, end in inner if what == name) == ns
    whole = [one for one in found if one[2] == 0 and one[0].endswith(("operation", "block request"))]
    once = [event for event in events if event.stages["device"] and event.fields.get("requests", 1) == 1]
    assert len(whole) == len(events)
    assert len([one for one in found if one[2] == 0 and one[0].endswith(", in the device")]) == len(once)


def test_a_flow_leads_to_the_device(tmp_path: Path) -> None:
    events = some()
    flows = Counter(number for packet in packets(tmp_path, REPLAYED, *events) for number in packet.track_event.flow_ids)
    once = [event for event in events if event.stages["device"] and event.fields.get("requests", 1) == 1]
    assert len(flows) == len(once)
    assert set(flows.values()) == {2}


def test_stretches_lie_where_they_were_and_each_request_in_its_device(tmp_path: Path) -> None:
    event = path.in_time()
    found = packets(tmp_path, REPLAYED, event)
    (_, track, _, begin, _), *_ = [one for one in slices(found) if one[0] == "nvme0n1 read operation"]
    inner = [
        (name, since - begin, until - begin) for name, at, depth, since, until in slices(found) if at == track and depth
    ]
    assert sorted(inner, key=lambda one: one[1]) == [tuple(one) for one in event.segments]
    there = sorted((since - begin, until - begin) for name, _, _, since, until in slices(found) if "sector 8" in name)
    assert there == [(one.times["handed"], one.times["seen"]) for one in event.children]
    notes = {note.name for packet in found for note in packet.track_event.debug_annotations}
    assert "stages" not in notes


def joined(to_host: int = 30, back: int = 20) -> Event:
    """Make an event whose guest and host have the same pids."""
    stages = {"fs": 100, "to_host": to_host, "host_fs": 40, "host_device": 400, "back": back, "wakeup": 10}
    kind = Kind("joined", Noun("request"), LABELS, [Stage(name, *POINTS, "", "") for name in stages])
    fields = {"pid": 7, "tid": 8, "comm": "db"}
    there = {"pid": 7, "tid": 9, "comm": "qemu", "image": "/srv/a.img"}
    total = sum(stages.values())
    return Event(kind.group("vda", "read"), NOON, total, stages, {**fields, "host": there})


@pytest.mark.parametrize("back", [20, 0])
def test_a_guest_and_its_host_are_two_processes_on_one_clock(tmp_path: Path, back: int) -> None:
    event = joined(back=back)
    found = packets(tmp_path, REPLAYED, event)
    tracks = {one.track_descriptor.uuid: one.track_descriptor for one in found if one.HasField("track_descriptor")}

    def owner(number: int) -> list[str]:
        one = tracks[number]
        above = owner(one.parent_uuid) if one.parent_uuid else []
        return [*above, one.process.process_name or one.name]

    made = {(owner(track)[0], name): (owner(track)[1], begin, end) for name, track, _, begin, end in slices(found)}
    begin = made["guest", "vda read request"][1]
    expected = {"fs": (0, 100), "to_host": (100, 130), "wakeup": (570 + back, 580 + back)}
    for name, (since, until) in {**expected, **({"back": (570, 590)} if back else {})}.items():
        assert made["guest", name] == ("db 8", begin + since, begin + until)
    for name, since in (("/srv/a.img", 130), ("device", 170)):
        assert made["host", name] == ("qemu 9", begin + since, begin + 570)
    assert len({one.process.pid for one in tracks.values() if one.HasField("process")}) == 2
    led = [one.track_event.name for one in found if one.track_event.flow_ids]
    assert sorted(led) == sorted(["vda read request", "/srv/a.img", *(["back"] if back else [])])
    assert len({number for one in found for number in one.track_event.flow_ids}) == 1


def test_times_are_those_of_the_clock_since_boot(tmp_path: Path) -> None:
    event = path.request()
    found = packets(tmp_path, REPLAYED, event)
    (snapshot,) = [packet.clock_snapshot for packet in found if packet.HasField("clock_snapshot")]
    boot, real = snapshot.clocks
    assert (boot.clock_id, real.clock_id, snapshot.primary_trace_clock) == (6, 1, 6)
    ends = [one[4] for one in slices(found) if one[0] == "nvme0n1 write block request"]
    assert {end - boot.timestamp + real.timestamp for end in ends} >= {NOON}


def test_intervals_are_counters(tmp_path: Path) -> None:
    found = packets(tmp_path, path.start(), path.report())
    names = {packet.track_descriptor.uuid: packet.track_descriptor.name for packet in found}
    values = {
        names[packet.track_event.track_uuid]: packet.track_event.double_counter_value
        for packet in found
        if packet.track_event.type == packet.track_event.TYPE_COUNTER
    }
    assert values["read operations a second"] == 500
    assert values["operations in flight"] == 3
    p99 = path.cells()[path.OPERATION.group("nvme0n1", "read")]["total"].percentile(99)
    assert values["read operations, p99"] == p99


def test_how_it_was_measured_and_what_was_lost(tmp_path: Path) -> None:
    place = tmp_path / "x"
    play(export.make("perfetto", place, "stages", Wanted()), path.start(), path.report(kind="summary", lost=3))
    text = place.read_bytes()
    for words in (b"complete is part of device on nvme", b"3 requests x recursion", b"700 finished + 4", b"hook of fs"):
        assert words in text


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_names_can_do_nothing(tmp_path: Path, name: str) -> None:
    start = path.start()._replace(flow=name, filters={name: name})
    event = path.operation(comm=name, path=name, dev=name)
    found = packets(tmp_path, start, event._replace(fields={**event.fields, name: {name: name}}))
    texts = [note.name for packet in found for note in packet.track_event.debug_annotations]
    texts += [packet.track_event.name for packet in found]
    texts += [note.string_value for packet in found for note in packet.track_event.debug_annotations]
    texts += [packet.track_descriptor.name for packet in found]
    texts += [packet.track_descriptor.process.process_name for packet in found]
    assert all(text.isprintable() for text in texts)


def test_lanes_hold_one_at_a_time() -> None:
    lanes = Lanes()
    spans_of: dict[int | None, list[tuple[int, int]]] = defaultdict(list)
    for event in some(300):
        spans_of[lanes.take("one", event.start_ns, event.end_ns)].append((event.start_ns, event.end_ns))
    assert len(spans_of) > 1
    for spans in spans_of.values():
        spans.sort()
        assert all(end <= begin for (_, end), (begin, _) in zip(spans, spans[1:]))


def test_of_owners_without_a_lane_nothing_is_kept() -> None:
    """There may be any number of threads."""
    lanes = Lanes()
    assert lanes.take("first", 0, 10) == 0
    assert {lanes.take(owner, 0, 10, 0) for owner in range(1000)} == {None}
    assert len(lanes._ends) == 1


def test_what_is_under_way_at_once_has_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events without a track are counted, from one thread or from many."""
    event = path.operation()
    monkeypatch.setattr(perfetto, "_LANES", 5)
    found = packets(tmp_path, REPLAYED, *[event] * 12)
    assert len([one for one in slices(found) if one[0].endswith("operation")]) == 5
    assert any("7 slices: too many" in note.string_value for one in found for note in one.track_event.debug_annotations)
    monkeypatch.setattr(perfetto, "_TRACKS", 20)
    many = [path.operation(pid=pid, tid=pid) for pid in range(1000, 1100)]
    found = packets(tmp_path, REPLAYED, *many)
    assert len({packet.track_descriptor.uuid for packet in found if packet.track_descriptor.uuid}) < 30
    kept = len([one for one in slices(found) if one[0].endswith("operation")])
    assert 0 < kept < 100
    words = " ".join(note.string_value for one in found for note in one.track_event.debug_annotations)
    # Slices of the device are missing as well.
    assert 100 - kept <= int(re.findall(r"(\d+) slices: too many", words)[0]) <= 200 - kept
