# SPDX-License-Identifier: Apache-2.0
"""An unused option costs nothing: no constants in the programs, no hooks, no imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.unit.docs.pages import ROOT
from tests.unit.kernel.test_elf_functions import ADDRESS, elf
from wptrace.bpf import trial
from wptrace.bpf.lib import Libbpf
from wptrace.bpf.object import BpfObject, open_object
from wptrace.bpf.ring import Reader
from wptrace.engine import devices
from wptrace.engine.definition.unit import Unit
from wptrace.engine.filters import Filter
from wptrace.engine.recorder import Recorder
from wptrace.engine.recorder_size import RecorderSize
from wptrace.errors import UsageError
from wptrace.flows.io.hooks import OPERATIONS, SWITCH, THROTTLE
from wptrace.flows.io.operations import BY_CALL, BY_FUNCTION
from wptrace.flows.io.options import BY, Options
from wptrace.flows.io.parts.part import Tracing
from wptrace.flows.io.parts.tasks import InCgroup, Process
from wptrace.flows.io.path import PathFlow
from wptrace.flows.io.request import RequestFlow
from wptrace.flows.stacks import Options as StacksOptions
from wptrace.flows.stacks import StacksFlow
from wptrace.kernel import blockdev, memory
from wptrace.kernel.blockdev import EVERYTHING, Extent, kernel_dev
from wptrace.kernel.cgroups import Cgroup
from wptrace.model.book import EXITED, REMOVED

DISK = Extent("sda", "sda", kernel_dev(8, 0), 0, EVERYTHING)
ON = {
    "": set(),
    "slow": {"emits_records"},
    "later": {"emits_records"},
    "segments": {"emits_records", "segmented"},
    "interference": {"interference"},
    "writeback": {"following"},
    "layers": {"stacked"},
    "owners": {"owner_by"},
    "neighbours": {"owner_by", "neighbours"},
    "children": {"filter_children"},
}
OPTIONS = {
    "": Options(),
    "slow": Options(slow_ns=1000),
    "later": Options(records_later=True),
    "segments": Options(slow_ns=0, segments=True),
    "interference": Options(interference=True),
    "writeback": Options(writeback=True),
    "layers": Options(spare=2),
    "owners": Options(by="comm"),
    "neighbours": Options(by="cgroup", neighbours=True),
    "children": Options(children=True, filter=Filter(pid=1)),
}
HOOKS = {
    "interference": {"hardirq.entry", "hardirq.exit", "softirq.entry", "softirq.exit", "tick"},
    "writeback": {"page.dirty"},
    "layers": {"bio.remap"},
    "children": {"children"},
    "neighbours": {"cgroup"},
    "slow": {"cgroup", "journal.commit", "journal.change"},
}


@pytest.fixture(autouse=True)
def _one_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "extents", lambda wanted, hidden: [DISK])
    monkeypatch.setattr(blockdev, "layers", list)
    monkeypatch.setattr(trial, "exchanges", lambda: True)


@pytest.mark.parametrize("name", ON)
def test_constants_are_those_of_what_is_asked_for(name: str) -> None:
    flow = PathFlow(OPTIONS[name])
    with open_object(flow._object) as obj:
        flow._prepare(obj)
        found = {one for one in set().union(*ON.values()) & set(dir(obj.rodata)) if getattr(obj.rodata, one)}
    assert found == ON[name]


def test_only_traces_without_options_and_filters_have_a_smaller_object(tmp_path: Path) -> None:
    plain = {name for name, options in OPTIONS.items() if PathFlow(options)._object == "io_path_plain"}
    assert plain == {"", "owners"}
    (tmp_path / "jobs").write_bytes(elf([(1, ADDRESS, 8)], b"\0current\0", type=1))
    unit = Unit("jobs", str(tmp_path / "jobs"), variable="current")
    named = {by for by in BY if PathFlow(Options(by=by, unit=unit))._object == "io_path_rows"}
    assert named == {"file", "dir", "statement", "unit"}
    assert PathFlow(Options(by="cgroup", neighbours=True))._object == "io_path_rows"
    assert PathFlow(Options(by="file", slow_ns=1))._object == "io_path"
    assert PathFlow(Options(filter=Filter(op="read")))._object == "io_path"
    size = RecorderSize.of_time(10**9)
    assert PathFlow(Options(recorder=size, by="process"))._object == "io_path_recorder"
    assert PathFlow(Options(recorder=size, by="file"))._object == "io_path"
    assert PathFlow(Options(recorder=size, slow_ns=1))._object == "io_path"
    assert RequestFlow(Options(recorder=size))._object == "io_path"
    assert RequestFlow(Options(by="process"))._object == "io_path_requests"
    assert RequestFlow(Options(by="file"))._object == "io_path"
    assert RequestFlow(Options(interference=True))._object == "io_path"


@pytest.mark.parametrize("smaller", ["io_path_plain", "io_path_rows", "io_path_recorder"])
def test_a_smaller_object_has_all_but_the_options(smaller: str) -> None:
    """Programs, tables and layouts are the same, because Python takes one object for the other."""
    with open_object("io_path") as whole, open_object(smaller) as plain:
        assert whole.progs.keys() == plain.progs.keys()
        assert whole.maps.keys() == plain.maps.keys()
        options = set(dir(whole.rodata)) - set(dir(plain.rodata))
        kept = {"owner_by", *(["neighbours"] if smaller == "io_path_rows" else [])}
        assert options == set().union(*ON.values()) - kept | {"recording", "requests_alone", "watches_remote"}
        assert set(dir(whole.bss)) - set(dir(plain.bss)) == {"filtering"}
        for name in ("op_state", "bio_state", "done", "owner", "only_cell", "request_cell"):
            assert whole.struct(name).size == plain.struct(name).size
        assert sum(one.instructions for one in plain.progs.values()) < sum(
            one.instructions for one in whole.progs.values()
        )
        assert plain.constants.get("recording", False) == (smaller == "io_path_recorder")


def test_the_object_for_requests_alone_has_no_operations() -> None:
    flow = RequestFlow(Options(by="cgroup"))
    with open_object("io_path") as whole, open_object(flow._object) as alone:
        flow._prepare(alone)
        of_operations = {program for way in (BY_FUNCTION, BY_CALL) for program in way.programs}
        assert whole.progs.keys() - alone.progs.keys() >= of_operations
        needed = {program for hook in flow.needed_hooks for way in hook.ways for program in way.programs}
        assert needed <= alone.progs.keys() < whole.progs.keys()
        assert whole.maps.keys() == alone.maps.keys()
        for name in ("op_state", "bio_state", "owner", "request_cell", "sleep_cell"):
            assert whole.struct(name).size == alone.struct(name).size


def test_a_recorder_needs_programs_that_have_it() -> None:
    part = PathFlow(Options(recorder=RecorderSize.of_time(10**9))).flight_recorder
    assert isinstance(part, Recorder)
    with open_object("io_path_plain") as obj, pytest.raises(AttributeError, match="recording"):
        part.prepare(obj)


@pytest.mark.parametrize("name", HOOKS)
def test_hooks_are_those_of_what_is_asked_for(name: str) -> None:
    plain = {hook.id for hook in PathFlow(Options()).needed_hooks}
    assert {hook.id for hook in PathFlow(OPTIONS[name]).needed_hooks} - plain >= HOOKS[name]
    assert not plain & set().union(*HOOKS.values())


def test_requests_alone_have_no_hooks_of_operations() -> None:
    hooks = {hook.id: hook for hook in RequestFlow(Options(interference=True, slow_ns=1000)).needed_hooks}
    assert not hooks.keys() & ({*OPERATIONS} - {SWITCH, THROTTLE} | {"journal.commit", "journal.change", "tick"})
    assert hooks.keys() >= {"request.complete", "request.issue", "bio.queue", "bio.complete", SWITCH, THROTTLE}
    measured = {name for kind in RequestFlow(Options()).kinds for name in (one.name for one in kind.measured)}
    assert all(set(hook.serves) <= measured for hook in hooks.values())
    assert not measured & {"fs", "return", "submit", "journal", "preempted"}


@pytest.mark.parametrize("by", ["process", "file"])
def test_requests_alone_have_no_rows_of_operations(by: str) -> None:
    flow = RequestFlow(Options(by=by, interference=True))
    assert [kind.name for kind in flow.kinds] == [
        "layer", "request", "writeback", "sleep", "owned_request", "wait", "owned_wait",
    ]  # fmt: skip
    with open_object("io_path") as obj:
        flow._prepare(obj)
        assert obj.rodata.requests_alone
        rows = [obj.maps[f"{name}_cells"].max_entries for name in ("op", "only", "hit", "interference", "held_op")]
        assert rows == [1] * 5
    with open_object("io_path") as obj:
        PathFlow(OPTIONS["slow"])._prepare(obj)
        assert not obj.rodata.requests_alone


def test_parts_that_nobody_asks_for_are_not_imported() -> None:
    code = """
import sys
from wptrace.flows.io.options import Options
from wptrace.flows.io.path import PathFlow
from wptrace.kernel import blockdev, memory
blockdev.layers = list
PathFlow(Options())
print(*(name for name in sys.modules if name.startswith("wptrace.flows.io.parts.")))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {
        f"wptrace.flows.io.parts.{name}" for name in ("counts", "file_systems", "part", "waits")
    }


def test_rows_of_a_large_machine_are_known_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine has 60 disks and 128 possible CPUs."""
    disks = [Extent(f"sd{at}", f"sd{at}", kernel_dev(8, at), 0, EVERYTHING) for at in range(60)]

    monkeypatch.setattr(Libbpf, "cpus", 128)

    def planned(count: int) -> int:
        monkeypatch.setattr(devices, "extents", lambda wanted, hidden: disks[:count])
        with open_object("io_path_plain") as obj:
            PathFlow(Options())._prepare(obj)
            return obj.planned_bytes

    with open_object("io_path_plain") as obj:
        cells = [obj.maps[f"{name}_cells"] for name in ("op", "only", "hit", "request")]
        row = sum(one.value_size * of_device for one, of_device in zip(cells, (5, 2, 5, 7)))
    few, many = planned(1), planned(60)
    assert 59 * 128 * row <= many - few <= 59 * 128 * row * 1.01
    flow = PathFlow(Options())
    assert flow.planned_memory(flow._prepare) == "take 1.39 GiB of the kernel's memory, for 128 CPUs"


@pytest.fixture
def sixty(monkeypatch: pytest.MonkeyPatch) -> None:
    """60 disks, each busier than the one before, and 128 possible CPUs."""
    disks = [Extent(f"sd{at}", f"sd{at}", kernel_dev(8, at), 0, EVERYTHING) for at in range(60)]
    monkeypatch.setattr(Libbpf, "cpus", 128)
    monkeypatch.setattr(devices, "extents", lambda wanted, hidden: disks)
    monkeypatch.setattr(devices, "stacked", lambda wanted: {})
    monkeypatch.setattr(blockdev, "completed", lambda name: int(name.removeprefix("sd")))


def test_only_the_busiest_devices_get_rows_where_memory_is_short(sixty: None) -> None:
    flow = PathFlow(Options(memory=256 << 20))
    with open_object("io_path_plain") as obj:
        flow._prepare(obj)
        assert obj.planned_bytes <= 256 << 20
        flow._make_room(obj, len(flow.devices.names) + 1)
        assert obj.planned_bytes > 256 << 20
    assert flow.devices.names == ["other", *(f"sd{at}" for at in range(52, 60)), ""]
    assert flow.devices.shortage == [
        "52 of 60 devices are counted as other: rows for all of them take 1.39 GiB of the kernel's memory, "
        "and 256 MiB are permitted"
    ]


def test_half_of_what_is_free_is_the_limit(sixty: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "room", lambda: memory.Room(512 << 20, "the cgroup /a"))
    flow = PathFlow(Options())
    with open_object("io_path_plain") as obj:
        flow._prepare(obj)
        # 46 MiB of this are not for rows of these disks.
        assert obj.planned_bytes <= 280 << 20
    assert flow.devices.names[1:-1] == [f"sd{at}" for at in range(51, 60)]
    # Devices that the user names are all tried.
    named = PathFlow(Options(devices=("sd1",)))
    with open_object("io_path_plain") as obj:
        named._prepare(obj)
    assert len(named.devices.names) == 61
    assert named.devices.shortage == []


def test_maps_without_rows_of_devices_take_what_they_take(sixty: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "room", lambda: memory.Room(0, "the cgroup /a"))
    flow = StacksFlow(StacksOptions())
    with open_object("stacks") as obj:
        flow._prepare(obj)
    assert len(flow._devices.names) > 60
    assert flow._devices.shortage == []


@pytest.mark.parametrize("wanted", [Options(memory=1 << 20), Options(devices=("sd1",), memory=256 << 20)])
def test_what_does_not_fit_is_one_sentence(sixty: None, wanted: Options) -> None:
    flow = PathFlow(wanted)
    with open_object("io_path_plain") as obj, pytest.raises(UsageError, match=r"1\.3. GiB .* permits (1|256) MiB$"):
        flow._prepare(obj)


def test_the_number_of_a_process_is_wanted_until_its_end() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as one:
        obj = cast(BpfObject, SimpleNamespace(bss=SimpleNamespace(filter_tgid=one.pid)))
        reader = Reader()
        process = Process(one.pid, children=False, command=(), watched=True)
        process.start(cast(Tracing, SimpleNamespace(obj=obj, reader=reader)))
        process.begin(obj)
        assert (obj.bss.filter_tgid, process.noted(obj)) == (one.pid, {EXITED: 0})
        one.communicate(timeout=60)
    reader.wait(60)
    assert (obj.bss.filter_tgid, process.noted(obj)) == (0xFFFFFFFF, {EXITED: 1})
    process.close()


def test_a_trace_says_that_its_cgroup_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "service"
    path.mkdir()
    wanted = Filter(cgroup=Cgroup(str(path), path.stat().st_ino, None, None))
    for flow in (PathFlow(Options(filter=wanted)), RequestFlow(Options(filter=wanted))):
        (part,) = [part for part in flow._parts if isinstance(part, InCgroup)]
        assert part.noted(cast(BpfObject, None)) == {REMOVED: 0}
        path.rename(tmp_path / "away")
        assert part.noted(cast(BpfObject, None)) == {REMOVED: 1}
        part.retarget(cast(BpfObject, None), Filter())
        assert part.noted(cast(BpfObject, None)) == {}
        (tmp_path / "away").rename(path)
