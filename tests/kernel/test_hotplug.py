# SPDX-License-Identifier: Apache-2.0
"""Disks and CPUs that come and go during a trace: a disk has rows of its own, and no count moves to another name."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.kernel.disks import Disk, completed, null_device, read_direct, scsi_debug
from tests.kernel.test_capture import replayed
from tests.kernel.test_recorder import ToFolder
from tests.kernel.trace import Line, Trace, wait_until
from tests.thorough import only_all
from wptrace.bpf import trial
from wptrace.bpf.ring import Reader
from wptrace.engine import devices
from wptrace.engine.recorder_size import LONGEST_NS, RecorderSize
from wptrace.flows.io.kinds import OPERATION, REQUEST
from wptrace.flows.io.options import Options
from wptrace.flows.io.path import PathFlow
from wptrace.kernel import blockdev
from wptrace.model.kind import TOTAL

pytestmark = pytest.mark.guest

# In all more disks than there are spare rows.
ROUNDS, AT_ONCE = 3, 3
INTERVAL = '"kind":"interval"'


class _Reads:
    """Direct reads of this process, by device."""

    def __init__(self) -> None:
        self.made: Counter[str] = Counter()

    def read(self, disk: Disk, count: int) -> None:
        read_direct(disk.path, count)
        self.made[disk.name] += count

    def until_named(self, disk: Disk, trace: Trace) -> None:
        """Read until the device has its name. The trace looks once a second; earlier reads have a row as well."""

        def named() -> bool:
            self.read(disk, 1)
            time.sleep(0.1)
            return f'"dev":"{disk.name}"' in trace.written()

        wait_until(named, f"a row of {disk.name}")


def of_devices(rows: list[Line], kind: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in rows:
        if row["kind"] == kind and row["op"] == "read" and row["stage"] == "total":
            found[row["dev"]] += row["count"]
    return found


def reads_of(lines: list[Line], *tids: int) -> Counter[str]:
    """Count requests by device, of these threads or of all."""
    found = (one for one in lines if one["kind"] == "operation" and one["op"] == "read")
    return Counter(one["dev"] for one in found if not tids or one["tid"] in tids)


def come_and_go(trace: Trace, name: str) -> tuple[Counter[str], Counter[str]]:
    """Read disks one after another, so many that some reuse rows of others; return the reads made and completed."""
    reads, done = _Reads(), Counter[str]()
    for number in range(ROUNDS):
        with ExitStack() as stack:
            disks = [stack.enter_context(null_device(name.format(f"{number}x{one}"))) for one in range(AT_ONCE)]
            for place, disk in enumerate(disks):
                reads.until_named(disk, trace)
                reads.read(disk, 20 + 3 * number + place)
                # The kernel scans for partitions as well.
                done[disk.name] += disk.completed()["read"]
        # Until the trace has looked, the next disks could get the same device numbers.
        trace.wait_for(INTERVAL, "a look", trace.written().count(INTERVAL) + 2)
    return reads.made, done


_OPTIONS = [
    "",
    pytest.param("--by=process --neighbours", marks=pytest.mark.one_kernel),
    pytest.param("--interference --segments", marks=[pytest.mark.one_kernel, only_all]),
]


@pytest.mark.parametrize("options", _OPTIONS)
def test_disks_that_come_have_rows_of_their_own(options: str, tmp_path: Path) -> None:
    capture = tmp_path / "trace.wpt"
    with Trace("--each", "--capture", str(capture), *options.split(), "0.5") as trace:
        made, done = come_and_go(trace, f"wpth{{}}{options[2:4]}")
    rows, again = trace.summary["rows"], replayed(capture)
    assert again[-1]["rows"] == rows
    found, every = reads_of(again, os.getpid()), reads_of(again)
    assert set(made) <= set(found)
    assert found.total() == made.total()
    operations, requests = of_devices(rows, "operation"), of_devices(rows, "request")
    for name, count in made.items():
        # The first reads may have been before the trace looked.
        assert 20 <= found[name] <= count
        assert found[name] <= every[name] == operations[name]
        assert found[name] <= requests[name] <= done[name]
        if "--by" in options:
            assert of_devices(rows, "owned_operation")[name] == operations[name]
            assert of_devices(rows, "owned_request")[name] == requests[name]
            assert sum(one["requests"] for one in trace.summary["neighbours"] if one["dev"] == name) == requests[name]


@pytest.mark.parametrize(
    "times", [pytest.param("auto", marks=pytest.mark.one_kernel), pytest.param("own", marks=only_all)]
)
def test_disks_that_come_have_rows_at_the_level_of_blocks(times: str) -> None:
    with Trace("--level=block", f"--times={times}", "0.5") as trace:
        made, done = come_and_go(trace, f"wpth{{}}{times}")
    requests = of_devices(trace.summary["rows"], "request")
    for name in made:
        assert 20 <= requests[name] <= done[name]
    book = trace.summary["requests"]
    assert (book["lost"], book["in_flight"]) == (0, 0)


HITS = 7


def memory_of(rows: int, options: Options) -> int:
    """The memory of a trace of all disks with rows for so many of them."""
    flow = PathFlow(options)
    with trial.open_here(flow._object) as obj:
        flow._prepare(obj)
        spare = len(flow.devices.names) - 1 - len(blockdev.disks())
        flow._make_room(obj, 1 + rows + spare)
        return obj.planned_bytes


def test_only_the_busiest_disks_have_rows_where_memory_is_short() -> None:
    with ExitStack() as stack:
        busy, idle, idlest = (stack.enter_context(null_device(f"wptm{name}")) for name in ("busy", "idle", "idlest"))
        reads = _Reads()
        reads.read(busy, 60)
        reads.read(idle, 20)
        of_all = completed([Disk(name) for name in blockdev.disks()])
        busier = sum(counts["read"] + counts["write"] + counts["discard"] >= 60 for counts in of_all.values())
        memory = memory_of(busier, Options())
        with Trace("--memory", str(memory), "0.5") as trace:
            reads.made.clear()
            for disk in (busy, idle, idlest):
                reads.read(disk, 30)
                with Path(disk.path).open("rb", buffering=0) as file:
                    for _ in range(1 + HITS):
                        file.seek(0)
                        file.read(512)
    (note,) = [one for one in trace.lines[0]["notes"] if "counted as other" in one]
    assert note.startswith(f"{len(of_all) - busier} of {len(of_all)} devices are")
    for kind in ("operation", "request"):
        found = of_devices(trace.summary["rows"], kind)
        assert (found[busy.name], found["other"], found[idle.name]) == (31, 62, 0)
    hits = of_devices(trace.summary["rows"], "hit")
    assert (hits[busy.name], hits["other"]) == (HITS, 2 * HITS)
    assert trace.summary["requests"]["lost"] == 0


def test_a_dump_has_the_names_that_disks_had(tmp_path: Path) -> None:
    with ToFolder(tmp_path, "0.5", size="16M") as trace:
        made, done = come_and_go(trace, "wpthr{}")
    found, every = reads_of(trace.dumped, os.getpid()), reads_of(trace.dumped)
    rows = of_devices(trace.summary["rows"], "operation")
    for name, count in made.items():
        assert 20 <= found[name] <= count
        assert every[name] == rows[name]
        assert found[name] <= done[name]


@pytest.mark.parametrize("recorder", [None, RecorderSize(LONGEST_NS, 16 << 20)], ids=["", "recorder"])
def test_a_disk_that_gets_busy_has_the_row_of_an_idle_one(
    recorder: RecorderSize | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options = Options(recorder=recorder)
    monkeypatch.setattr(devices, "_RANKED_S", 0.0)
    with ExitStack() as stack:
        there = [stack.enter_context(null_device(f"wptn{number}")) for number in range(12)]
        reads = _Reads()
        for disk in there[:2]:
            reads.read(disk, 5000)
        flow = stack.enter_context(closing(PathFlow(options._replace(memory=memory_of(2, options)))))
        start = flow.start(Reader())
        flow.begin()
        reads.made.clear()
        spare = flow.devices.names.count("")
        assert {one.name for one in there[:2]} <= set(flow.devices.names)
        assert not {one.name for one in there[2:]} & set(flow.devices.names)

        def counted() -> Counter[str]:
            found = {group: stages[TOTAL].count for group, stages in flow.snapshot().cells.items()}
            of_reads = [one for one in found if one.kind is REQUEST and one.label("op") == "read"]
            return Counter({one.label("dev"): found[one] for one in of_reads})

        for disk in there[2 : 3 + spare]:
            reads.read(disk, 200)
            counted()
            # There is a row at once, or in the next look, when nothing is in flight in that of the one that it was.
            reads.read(disk, 200)
            counted()
            in_row = counted()[disk.name]
            reads.read(disk, 20)
            assert counted()[disk.name] == in_row + 20
        in_rows = counted()
        assert in_rows["other"] >= 200 * (1 + spare)
        for disk in there:
            reads.read(disk, 10)
        found = counted()
        without = sum(disk.name not in flow.devices.names for disk in there)
        assert without == len(there) - 2 - spare
        assert found["other"] - in_rows["other"] == 10 * without
        assert found.total() == sum(reads.made.values())
        if flow.flight_recorder is not None:
            flow.flight_recorder.copied(start, flow.view)(tmp_path / "dump.wpt")
            again = replayed(tmp_path / "dump.wpt")
            assert of_devices(again[-1]["rows"], "request") == found


# --- CPUs -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def cpu_1() -> Iterator[Path]:
    """The file that switches CPU 1 off and on. This process runs on it."""
    switch = Path("/sys/devices/system/cpu/cpu1/online")
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {1})
    yield switch
    switch.write_text("1")
    os.sched_setaffinity(0, before)


@pytest.mark.smp
def test_a_cpu_that_comes_again_has_no_late_interrupts(cpu_1: Path) -> None:
    with ExitStack() as stack:
        disk = stack.enter_context(scsi_debug(dev_size_mb=8, ndelay=100_000))
        flow = stack.enter_context(closing(PathFlow(Options((disk.name,), interference=True))))
        flow.start(Reader())
        flow.begin()

        def taken() -> tuple[int, int]:
            found = flow.snapshot().cells.get(OPERATION.group(disk.name, "read"), {})
            return found["irq_delay"].sum if "irq_delay" in found else 0, found["device"].sum if found else 0

        def last_tick() -> int:
            return int(flow._obj.maps["cpu_states"][0][1].tick_ns)

        os.sched_setaffinity(0, {0})
        cpu_1.write_text("0")
        time.sleep(0.5)
        cpu_1.write_text("1")
        os.sched_setaffinity(0, {1})
        since = time.monotonic_ns()
        read_direct(disk.path, 100)
        late, device = taken()
        # An emulated CPU may stand still for a moment.
        assert late < device
        wait_until(lambda: last_tick() > since, "a tick of the CPU")
