# SPDX-License-Identifier: Apache-2.0
"""Records of the path flow as events, and its tables as what is in flight, with the layouts of the object."""

from __future__ import annotations

import errno
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from wptrace.bpf.object import BpfObject
from wptrace.flows.io import records as io_records
from wptrace.flows.io import state as io_state
from wptrace.flows.io.kinds import HIT, LAYER, OPERATION, REQUEST
from wptrace.flows.io.records import Stories, Trails
from wptrace.flows.io.state import in_use, path, started, waiting
from wptrace.kernel import blockdev
from wptrace.kernel.blockdev import kernel_dev

NAMES = ["other", "sda", "sdb1"]
NO_CPU = 0xFFFF


def packed(layout: Any, **values: Any) -> bytes:
    """Pack a struct with these fields, where `__` stands for a dot; all others are 0."""
    found = dict(zip(layout.fields, layout.struct.unpack(bytes(layout.size))))
    for name, value in values.items():
        assert name.replace("__", ".") in found, name
        found[name.replace("__", ".")] = value
    return bytes(layout.struct.pack(*found.values()))


# --- Paths ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "cut", "expected"),
    [
        (b"", False, ""),
        (b"file\0", False, "/file"),
        (b"file\0dir\0srv\0", False, "/srv/dir/file"),
        (b"file\0dir\0", True, ".../dir/file"),
        (b"", True, ".../"),
        (b"\xff\xfe\0srv\0", False, "/srv/\udcff\udcfe"),
        ("größe\0".encode(), False, "/größe"),
        (b"a\nb\x1b[31m\0", False, "/a\nb\x1b[31m"),
    ],
)
def test_paths_come_leaf_first(names: bytes, cut: bool, expected: str) -> None:
    assert path(names, cut) == expected


# --- Records --------------------------------------------------------------------------------------------------


@pytest.fixture
def stories(obj: BpfObject, monkeypatch: pytest.MonkeyPatch) -> Stories:
    monkeypatch.setattr(io_records, "wall_offset_ns", lambda: 1_000_000)
    made = Stories(obj, NAMES)
    made.cgroups = SimpleNamespace(of=lambda number: f"/cgroup{number}")  # type: ignore[assignment]
    return made


@pytest.fixture
def reported(obj: BpfObject, stories: Stories) -> Callable[..., Any]:
    """Decode a record with these fields."""
    layout = obj.struct("io_record")

    def decoded(**values: Any) -> Any:
        array = {name: values.pop(name) for name in list(values) if isinstance(values[name], (list, tuple))}
        for name, parts in array.items():
            values.update({f"{name}[{place}]": part for place, part in enumerate(parts)})
        (found,) = stories.decode([stories.layout.unpack(packed(layout, **values))])
        return found

    return decoded


POINTS = ("queued", "got", "issued", "handed", "seen", "completed")
CHAIN = {
    "cpus__submit": 1,
    "cpus__issue": 2,
    "cpus__irq": 3,
    "cpus__complete": 4,
    "cpus__wake": 5,
}


def test_an_operation(reported: Callable[..., Any]) -> None:
    found = reported(
        start_ns=100,
        handed_ns=210,
        seen_ns=480,
        end_ns=550,
        stages=[0, 10, 0, 0, 20, 30, 40, 50, 60, 70, 80, 90],
        kind=0,
        op=1,
        slot=2,
        tgid=7,
        tid=8,
        comm=b"db\0junk",
        cgroup=9,
        path=b"table\0srv\0junk",
        path_end=10,
        inode=11,
        offset=4096,
        length=8192,
        result=8192,
        requests=3,
        readahead=1,
        sector=2048,
        bytes=4096,
        dev=kernel_dev(8, 17),
        flags=0b1,
        request_op=1,
        **CHAIN,
    )
    assert (found.group, found.end_ns, found.total_ns) == (OPERATION.group("sdb1", "write"), 1_000_550, 450)
    # The operation is no asynchronous call, which would have time before E, and waited for no journal.
    names = [stage.name for stage in OPERATION.stages if stage.name not in ("submit", "journal", "dirty_limit")]
    assert found.stages == dict(zip(names, (10, 20, 30, 40, 50, 60, 70, 80, 90)))
    assert "interface" not in found.fields
    assert sum(found.stages.values()) == found.total_ns
    assert found.fields == {
        "pid": 7,
        "tid": 8,
        "comm": "db",
        "cgroup": "/cgroup9",
        "path": "/srv/table",
        "deleted": False,
        "inode": 11,
        "offset": 4096,
        "length": 8192,
        "result": 8192,
        "requests": 3,
        "readahead": 1,
        "error": 0,
        "sector": 2048,
        "bytes": 4096,
        "rwbs": "WS",
        "maj_min": "8:17",
        "clock": {"end_ns": 550, "handed_ns": 210, "seen_ns": 480},
        "cpus": {"submit": 1, "issue": 2, "irq": 3, "complete": 4, "wake": 5},
        "interference": [],
    }


def test_stretches_and_requests(obj: BpfObject, reported: Callable[..., Any]) -> None:
    stages = obj.enum("op_stage")
    words = [until << 8 | stages.index(name) for name, until in (("fs", 10), ("device", 25), ("fs", 30))]
    other = {f"trail__children[0].times.{name}": 90 + at for at, name in enumerate(POINTS)}
    own = {f"trail__children[3].times.{name}": 110 + at for at, name in enumerate(POINTS)}
    whole = {"trail__children[3].dev": kernel_dev(8, 17), "trail__children[3].bytes": 512, **other, **own}
    kept = {f"trail__segments[{at}]": word for at, word in enumerate(words)}
    found = reported(start_ns=100, end_ns=130, trail__more=2, **kept, **whole)
    assert found.segments == [("fs", 0, 10), ("device", 10, 25), ("fs", 25, 30)]
    assert found.more == 2
    assert [one.times for one in found.children] == [
        {name: at for at, name in enumerate(POINTS, -10)},
        {name: at for at, name in enumerate(POINTS, 10)},
    ]
    assert (found.children[1].fields["maj_min"], found.children[1].fields["bytes"]) == ("8:17", 512)
    assert reported(start_ns=100, end_ns=130).segments == []
    with pytest.raises(ValueError, match="before it begins"):
        reported(**{"trail__segments[0]": 20 << 8, "trail__segments[1]": 10 << 8})
    # A request passes its stages one after the other.
    request = reported(kind=2, **{f"stages[{stages.index('queue')}]": 5, f"stages[{stages.index('device')}]": 6})
    assert request.segments == [("queue", 0, 5), ("device", 5, 11)]


@pytest.mark.parametrize("bits", [-1, 0, 64, 1 << 60])
def test_a_stage_takes_some_bits_of_a_word(bits: int, obj: BpfObject) -> None:
    """The constant comes from the capture, which may have any value."""
    with pytest.raises(ValueError, match="some bits"):
        Trails(obj.struct("trail"), bits, ["fs"], lambda op, flags: "", str)


def test_a_hit_has_no_request_and_an_operation_may_fail(reported: Callable[..., Any]) -> None:
    found = reported(kind=1, offset=-1, cpus__issue=NO_CPU, cpus__irq=NO_CPU, deleted=1, path_cut=1)
    assert found.group == HIT.group("other", "read")
    assert not {"sector", "bytes", "rwbs", "maj_min"} & set(found.fields)
    assert found.fields["offset"] is None
    assert found.fields["cpus"] == {"submit": 0, "issue": None, "irq": None, "complete": 0, "wake": 0}
    assert (found.fields["deleted"], found.fields["path"]) == (True, ".../")
    failed = reported(result=-errno.EIO)
    assert (failed.fields["result"], failed.fields["error"]) == (-errno.EIO, errno.EIO)


def test_a_commit_that_was_waited_for(reported: Callable[..., Any]) -> None:
    values: dict[str, Any] = {"op": 2, "stages": [0, 1, 5]}
    assert "journal" not in reported(op=2).stages
    known = {
        "transaction": 7,
        "pid": 30,
        "comm": b"jbd2/sda-8",
        "requests": 3,
        "bytes": 12288,
        "ns": 500,
        "flush_ns": 90,
    }
    most = {"most_pid": 40, "most_comm": b"cp", "most_handles": 8, "most_blocks": 60}
    whole = {f"commit__{name}": value for name, value in {**known, **most, "handles": 9, "blocks": 64}.items()}
    found = reported(**values, **whole)
    assert (found.group.label("op"), found.stages["journal"]) == ("sync", 5)
    assert found.fields["commit"] == {
        **known,
        "comm": "jbd2/sda-8",
        "handles": 9,
        "blocks": 64,
        "most": {"pid": 40, "comm": "cp", "handles": 8, "blocks": 60},
    }
    assert reported(**values, commit__transaction=7).fields["commit"] == {"transaction": 7}
    assert reported(commit__transaction=7, commit__pid=30).fields["commit"]["most"] is None


def test_waits_of_an_operation(obj: BpfObject, stories: Stories, reported: Callable[..., Any]) -> None:
    stacks = {3: ("lock of the file", ("ext4_buffered_write_iter", "vfs_write"))}
    stories.stack_of = lambda number: stacks.get(number, io_records.NO_STACK)
    assert "waits" not in reported(op=1).fields
    stages = obj.enum("op_stage")
    first = {"waits[0]__ns": 5, "waits[0]__stack": 3, "waits[0]__stage": stages.index("fs"), "waits[0]__count": 2}
    second = {"waits[1]__ns": 7, "waits[1]__stack": obj.constants["WAIT_OTHER"], "waits[1]__count": 1}
    assert reported(op=1, **first, **second).fields["waits"] == [
        {
            "stage": "fs",
            "reason": "lock of the file",
            "ns": 5,
            "count": 2,
            "stack": ["ext4_buffered_write_iter", "vfs_write"],
        },
        {"stage": "submit", "reason": "several", "ns": 7, "count": 1, "stack": []},
    ]


def test_flushes_that_a_request_waited_for(reported: Callable[..., Any]) -> None:
    assert "flush" not in reported(op=1).fields
    found = reported(op=1, flush_before=7, flush_behind=9)
    assert found.fields["flush"] == {"before_ns": 7, "behind_ns": 9}


def test_what_is_seldom_is_reported_if_there_is_some(reported: Callable[..., Any]) -> None:
    assert not {"layers", "unattributed"} & set(reported().stages)
    assert reported(stages=[0] * 12 + [5]).stages["unattributed"] == 5
    assert reported(stages=[0, 0, 0, 0, 7, *[0] * 8]).stages["layers"] == 7


def test_what_else_happened_is_reported_if_something_did(reported: Callable[..., Any]) -> None:
    assert "events" not in reported().fields
    assert "events" not in reported(events__below=1).fields
    found = reported(events__below=1, events__merged=300, events__parts=2)
    assert found.fields["events"] == {"merged": 300, "parts": 2}


def test_a_request_that_nobody_waits_for(reported: Callable[..., Any]) -> None:
    # BLK_STS_MEDIUM
    stages = [0, 0, 0, *range(9)]
    found = reported(kind=2, op=3, request_op=3, slot=1, stages=stages, dev=kernel_dev(8, 0), result=7)
    assert found.group == REQUEST.group("sda", "discard")
    assert found.stages == {"throttle": 2, "queue": 3, "driver": 4, "device": 5, "complete": 6}
    assert found.fields["error"] == errno.ENODATA
    assert not {"path", "offset", "interference", "result"} & set(found.fields)


def test_an_asynchronous_operation_tells_its_interface(reported: Callable[..., Any]) -> None:
    found = reported(interface=1, user_data=71, stages=[5, 6])
    assert (found.fields["interface"], found.fields["user_data"]) == ("uring", 71)
    assert (found.stages["submit"], found.stages["fs"]) == (5, 6)


def test_a_request_that_writes_back_has_the_file_and_for_how_long_it_was_dirty(reported: Callable[..., Any]) -> None:
    names = b"file\0srv\0"
    found = reported(kind=2, op=1, dirty_ns=7, inode=131, offset=8192, path=names, path_end=len(names))
    expected = {"dirty_ns": 7, "path": "/srv/file", "deleted": False, "inode": 131, "offset": 8192}
    assert {name: found.fields[name] for name in expected} == expected


def test_what_held_it_is_reported_by_controller(reported: Callable[..., Any]) -> None:
    assert "throttled_by" not in reported(kind=2, op=1).fields
    for kind in (0, 2):
        found = reported(kind=kind, held=[5, 0, 0, 0, 9, 0])
        assert found.fields["throttled_by"] == [{"controller": "io_max", "ns": 5}, {"controller": "tag", "ns": 9}]


def test_interference_is_reported_by_kind(reported: Callable[..., Any]) -> None:
    values: dict[str, Any] = {}
    names = ("hog", "virtio0", "", "spinner")
    for place, name in enumerate(names):
        one = {"ns": 10 + place, "count": place + 1, "cpu": place, "name": name.encode(), "pid": 100 + place}
        values.update({f"interference[{place}].{field}": value for field, value in one.items()})
    values["interference[2].softirq"] = 4
    found = reported(**values, before_wakeup__count=1, before_wakeup__ns=99, before_wakeup__name=b"fio")
    assert found.fields["interference"] == [
        {"kind": "preempted", "name": "hog", "pid": 100, "cpu": 0, "ns": 10, "count": 1},
        {"kind": "hardirq", "name": "virtio0", "pid": None, "cpu": 1, "ns": 11, "count": 2},
        {"kind": "softirq", "name": "BLOCK", "pid": None, "cpu": 2, "ns": 12, "count": 3},
        {"kind": "irq_off", "name": "spinner", "pid": 103, "cpu": 3, "ns": 13, "count": 4},
        {"kind": "before_wakeup", "name": "fio", "pid": 0, "cpu": 0, "ns": 99, "count": 1},
    ]


# --- In flight ------------------------------------------------------------------------------------------------


class Tables:
    """An object whose two tables are plain memory."""

    def __init__(self, obj: BpfObject) -> None:
        self.struct, self.enum, self.constants = obj.struct, obj.enum, obj.constants
        self.memory = {
            name: bytearray(64 * self.stride(struct)) for name, struct in (("ops", "op_state"), ("bios", "bio_state"))
        }

    def view(self, name: str) -> memoryview:
        return memoryview(self.memory[name])

    def stride(self, struct: str) -> int:
        return int(self.struct(struct).size)

    def put(self, table: str, place: int, **values: Any) -> None:
        struct = {"ops": "op_state", "bios": "bio_state"}[table]
        data = packed(self.struct(struct), **values)
        self.memory[table][place * self.stride(struct) : place * self.stride(struct) + len(data)] = data


@pytest.fixture
def tables(obj: BpfObject, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(io_state, "name_of", lambda tid: f"task{tid}")
    monkeypatch.setattr(io_state, "leader_of", lambda tid: tid - 1)
    return Tables(obj)


OP = {"task": 0xFFFF888000001000, "tid": 12, "kind": 1, "start_ns": 1000}
QUEUED, HEAD, HELD, ABOVE = range(4)
BIO = {"bio": 0xFFFF888000002000, "tid": 21, "done__slot": 1, "kind": HEAD, "done__times__queued": 4000}
DELIVERED = 1


def test_nothing_is_in_flight(tables: Any) -> None:
    assert waiting(tables, NAMES, 10_000, 0) == []
    assert list(in_use(tables)) == []


@pytest.mark.parametrize(
    ("points", "stage"),
    [
        ({}, "queue"),
        ({"issued": 4200}, "device"),
        ({"issued": 4200, "handed": 4300}, "device"),
        ({"issued": 4200, "handed": 4300, "seen": 4400}, "complete"),
    ],
)
def test_a_request_is_where_it_was_seen_last(tables: Any, points: dict[str, int], stage: str) -> None:
    tables.put("bios", 5, **BIO, **{f"done__times__{point}": ns for point, ns in points.items()}, op_kind=1)
    (found,) = waiting(tables, NAMES, 10_000, 0)
    assert (found.group, found.age_ns, found.stage) == (REQUEST.group("sda", "write"), 6000, stage)
    assert found.fields == {"pid": 20, "tid": 21, "comm": "task21"}
    assert list(in_use(tables)) == [5]


def test_an_operation_is_where_its_request_is(tables: Any) -> None:
    tables.put("ops", 3, **OP, op_kind=1, slot=2, made=1)
    tables.put("bios", 5, **{**BIO, "task": OP["task"], "op": 3}, done__times__issued=4200)
    operation, request = waiting(tables, NAMES, 10_000, 0)
    assert (operation.group, operation.age_ns) == (OPERATION.group("sdb1", "write"), 9000)
    assert operation.stage == request.stage == "device"
    assert operation.fields == request.fields == {"pid": 11, "tid": 12, "comm": "task12"}


def test_an_operation_without_a_request(tables: Any) -> None:
    tables.put("ops", 3, **OP)
    (found,) = waiting(tables, NAMES, 10_000, 0)
    assert (found.group, found.stage) == (OPERATION.group("", "read"), "fs")


def test_an_operation_that_a_limit_holds_back(tables: Any) -> None:
    tables.put("ops", 3, **OP)
    tables.put("bios", 5, **{**BIO, "kind": HELD, "task": OP["task"], "op": 3})
    operation, request = waiting(tables, NAMES, 10_000, 0)
    assert operation.stage == request.stage == "throttle"


@pytest.fixture
def numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blockdev, "numbers", lambda: {0xFD00000: "dm-0", 0xFD00001: "dm-1"})


def devices(*found: Any) -> list[str]:
    return [one.group.label("dev") for one in found]


# Its place is after that of the operation.
UPPER = {**BIO, "kind": ABOVE, "task": OP["task"], "op": 3, "done__dev": 0xFD00000, "layer": 1}


@pytest.mark.usefixtures("numbers")
def test_what_a_stacked_device_keeps_is_in_its_layer(tables: Any) -> None:
    tables.put("ops", 3, **OP)
    tables.put("bios", 5, **UPPER)
    operation, upper = waiting(tables, NAMES, 10_000, 0)
    assert (operation.group, operation.stage) == (OPERATION.group("dm-0", "read"), "layers")
    assert (upper.group, upper.stage, upper.age_ns) == (LAYER.group("dm-0", "read"), "layers", 6000)
    assert upper.fields == operation.fields
    # The end of a trace does not wait for it, because its completion may never be seen.
    assert list(in_use(tables)) == [3]


@pytest.mark.usefixtures("numbers")
def test_what_is_under_way_below_is_with_the_device(tables: Any) -> None:
    """Even below two stacked devices, the operation is where its request is."""
    tables.put("ops", 3, **OP, slot=1)
    tables.put("bios", 5, **UPPER)
    below = {"done__times__queued": 5000, "done__events__below": 1, "above": 5}
    tables.put("bios", 6, **{**UPPER, "done__dev": 0xFD00001, **below})
    operation, upper, lower = waiting(tables, NAMES, 10_000, 0)
    assert [operation.stage, upper.stage, lower.stage] == ["layers", "device", "layers"]
    assert devices(operation, upper, lower) == ["dm-1", "dm-0", "dm-1"]
    tables.put("bios", 7, **{**BIO, "task": OP["task"], "op": 3, **below, "above": 6}, done__times__issued=5100)
    operation, upper, lower, request = waiting(tables, NAMES, 10_000, 0)
    assert [operation.stage, upper.stage, lower.stage, request.stage] == ["device"] * 4
    assert devices(operation, upper, lower, request) == ["sda", "dm-0", "dm-1", "sda"]


@pytest.mark.usefixtures("numbers")
def test_a_stacked_device_that_has_no_rows(tables: Any) -> None:
    """Its bios are not listed, but an operation that waits for one does not wait for its file system."""
    tables.put("ops", 3, **OP)
    tables.put("bios", 5, **{**UPPER, "layer": 0})
    (operation,) = waiting(tables, NAMES, 10_000, 0)
    assert (operation.group.label("dev"), operation.stage) == ("dm-0", "device")


@pytest.mark.usefixtures("numbers")
def test_an_upper_bio_of_an_operation_that_is_over(tables: Any) -> None:
    tables.put("ops", 3, **{**OP, "task": OP["task"] + 64})
    tables.put("bios", 5, **UPPER)
    operation, upper = waiting(tables, NAMES, 10_000, 0)
    assert (operation.stage, operation.group.label("dev")) == ("fs", "")
    assert upper.fields["tid"] == 21


def test_what_ended_for_the_device_is_in_flight_no_more(tables: Any) -> None:
    """Only its operation has not seen the end yet."""
    tables.put("bios", 5, **{**BIO, "bio": DELIVERED})
    assert waiting(tables, NAMES, 10_000, 0) == []


def test_what_a_stack_was_given_may_never_come_back(tables: Any) -> None:
    tables.put("bios", 5, **{**BIO, "kind": ABOVE})
    assert waiting(tables, NAMES, 10_000, 0) == []
    assert list(in_use(tables)) == []


def test_the_oldest_come_first_and_the_young_not_at_all(tables: Any) -> None:
    tables.put("ops", 3, **OP)
    tables.put("ops", 4, **{**OP, "start_ns": 500})
    tables.put("bios", 5, **BIO)
    assert [one.age_ns for one in waiting(tables, NAMES, 10_000, 0)] == [9500, 9000, 6000]
    assert [one.age_ns for one in waiting(tables, NAMES, 10_000, 9000)] == [9500, 9000]
    assert waiting(tables, NAMES, 10_000, 9501) == []


def test_what_a_filter_leaves_out_is_not_listed(tables: Any) -> None:
    tables.put("ops", 3, **{**OP, "kind": 2})
    assert waiting(tables, NAMES, 10_000, 0) == []
    assert list(in_use(tables)) == [3]


def test_each_place_counts_what_began_there(tables: Any) -> None:
    tables.put("ops", 3, **OP, begun=7)
    tables.put("ops", 60, task=0, begun=1 << 40)
    assert started(tables, "ops") == (1 << 40) + 7
    assert started(tables, "bios") == 0


def test_kinds_are_those_of_the_object(tables: Any) -> None:
    assert tables.enum("bio_kind")[:4] == ["queued", "head", "held", "above"]
    assert tables.constants["DELIVERED"] == DELIVERED
    assert tables.constants["OP_TRACED"] == OP["kind"]
    assert tables.constants["NO_CPU"] == NO_CPU
    with pytest.raises(KeyError, match=r"there is no constant OP_STRAY; there are .*, OP_TRACED"):
        tables.constants["OP_STRAY"]
