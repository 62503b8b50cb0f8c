# SPDX-License-Identifier: Apache-2.0
"""Stacked devices, against the counters of each: rows of layers, owners from the top, no losses."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Callable, NamedTuple

import pytest

from tests.kernel.disks import Disk, completed, fio, fio_jobs, null_device, read_direct, total
from tests.kernel.loads import mounted
from tests.kernel.stacks import array, crypt, delayed, integrity, linear, multipath, origin, striped, suspended, thin
from tests.kernel.test_async import observes
from tests.kernel.test_owners import exact
from tests.kernel.trace import PATIENCE, Line, Lines, Trace, count, lossless, wait_until
from tests.kernel.window import Running
from wptrace.engine.filters import Filter

pytestmark = pytest.mark.guest


@contextmanager
def disks_in_memory(name: str, number: int) -> Iterator[list[Disk]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(null_device(f"wpt{name}{which}", memory_backed=1, size=48, blocksize=512))
            for which in range(number)
        ]


@pytest.fixture
def nulls() -> Iterator[list[Disk]]:
    """Three disks for a stack of the test's own."""
    with disks_in_memory("", 3) as made:
        yield made


class Stack(NamedTuple):
    top: Disk
    below: list[Disk]


Stacks = dict[str, Stack]


@pytest.fixture(scope="module")
def stacks() -> Iterator[Stacks]:
    """Stacked devices of each kind, each on disks of its own."""
    with ExitStack() as stack:

        def disks(name: str, number: int) -> list[Disk]:
            return stack.enter_context(disks_in_memory(name, number))

        made = {}
        every: list[tuple[str, int, Callable[[list[Disk]], AbstractContextManager[Disk]]]] = [
            ("linear", 2, lambda below: linear(*below)),
            ("striped", 2, lambda below: striped(*below)),
            ("delayed", 1, lambda below: delayed(below[0], 20, 40)),
            ("crypt", 1, lambda below: crypt(*below)),
            ("raid0", 3, lambda below: array("raid0", *below)),
            ("raid5", 3, lambda below: array("raid5", *below)),
        ]
        for name, number, make in every:
            below = disks(name, number)
            made[name] = Stack(stack.enter_context(make(below)), below)
        metadata, data = disks("thin", 2)
        volume, pool = stack.enter_context(thin(metadata, data, 65536))
        yield {**made, "thin": Stack(volume, [pool, metadata, data])}


class Watched:
    """A trace of the top device, and what each device counted meanwhile."""

    trace: Lines

    def __init__(self) -> None:
        self.grown: dict[str, dict[str, range]] = {}
        """Several numbers are possible where something was written by itself while the trace ended."""

    @property
    def summary(self) -> Line:
        return self.trace.summary

    def reads(self, disk: Disk, kind: str = "layer") -> int:
        return count(self.summary, op="read", dev=disk.name, kind=kind)

    def writes(self, disk: Disk, kind: str = "layer") -> int:
        return count(self.summary, op="write", dev=disk.name, kind=kind)

    def mine(self) -> list[Line]:
        return [one for one in self.trace.operations if one["comm"] == "fio"]


@contextmanager
def watched(top: Disk, every: Sequence[Disk], flow: Running | None = None) -> Iterator[Watched]:
    found = Watched()
    os.sync()
    before: dict[str, dict[str, int]] = {}
    stack: ExitStack | None = None

    def nobody_wrote() -> bool:
        nonlocal before, stack
        before = completed(every)
        stack = ExitStack()
        # The command ends with the block, as a window does.
        found.trace = stack.enter_context(
            flow.aim(top).window() if flow else Trace("--each", "--ring-size=8M", f"--dev={top.name}")
        )
        if completed(every) == before:
            return True
        stack.close()
        return False

    # A pool of thin volumes writes by itself. If it does so while the trace begins, it is unknown who saw that.
    wait_until(nobody_wrote, "a trace to begin while nothing was written")
    assert stack is not None
    with stack:
        yield found
        os.sync()
        least = completed(every)
    for name, most in completed(every).items():
        of = {count: (least[name][count] - old, most[count] - old) for count, old in before[name].items()}
        found.grown[name] = {count: range(low, high + 1) for count, (low, high) in of.items()}
    assert lossless(found.summary), found.summary["loss"]
    for one in found.trace.operations:
        assert sum(one["stages"].values()) == one["total_ns"], one


def same_as_counted(found: Watched, layers: Sequence[Disk], disks: Sequence[Disk]) -> None:
    """Rows equal the counters of each device."""
    for disk in layers:
        assert found.reads(disk) in found.grown[disk.name]["read"], disk
        assert found.writes(disk) in found.grown[disk.name]["write"], disk
    for disk in disks:
        assert found.reads(disk, "request") in found.grown[disk.name]["read"], disk
        assert found.writes(disk, "request") in found.grown[disk.name]["write"], disk


def owned(found: Watched, number: int, requests: int = 1) -> None:
    """Operations at the top own the requests below, whichever task sent them."""
    mine = found.mine()
    assert len(mine) == number
    assert {one["requests"] for one in mine} == {requests}, [one["requests"] for one in mine][:10]
    assert [one for one in found.trace.requests if one["comm"] == "fio"] == []


def sends_by_name() -> bool:
    """Tell whether dm announces a bio that it sends later (dm_submit_bio_remap, 5.18, 0fbb4d93b38b)."""
    return re.search(r" dm_submit_bio_remap\b", Path("/proc/kallsyms").read_text()) is not None


def test_a_read_that_hangs_in_a_suspended_device(nulls: list[Disk], path_flow: Running) -> None:
    """The read is listed for the device that holds it, and for no file system."""
    with ExitStack() as stack:
        below = stack.enter_context(linear(nulls[0]))
        top = stack.enter_context(linear(below))
        with path_flow.aim(top).window() as trace:
            for keeper in (top, below):
                with suspended(keeper):
                    command = ["dd", f"if={top.path}", "of=/dev/null", "bs=4k", "count=1", "iflag=direct"]
                    reader = subprocess.Popen(command, stderr=subprocess.DEVNULL)
                    kept = {("operation", keeper.name, "layers"), ("layer", keeper.name, "layers")}
                    reported = hanging(path_flow, reader.pid, 1 + len(kept) if keeper is below else len(kept))
                assert reader.wait(PATIENCE) == 0
                found = {(one["kind"], one["dev"], one["stage"]) for one in reported}
                assert found == kept | ({("layer", top.name, "device")} if keeper is below else set())
                assert {one["op"] for one in reported} == {"read"}
    assert lossless(trace.summary), trace.summary["loss"]
    assert len([one for one in trace.operations if one["comm"] == "dd"]) == 2


def hanging(flow: Running, pid: int, number: int) -> list[Line]:
    """Return what a process waits for, once there is this much. An operation begins before its bio is held."""
    found: list[Line] = []

    def reported() -> bool:
        found[:] = [one for one in flow.stuck(300_000_000) if one["pid"] == pid]
        return len(found) >= number

    wait_until(reported, "what hangs")
    return found


def test_a_stranger_s_bio_that_dm_cuts(nulls: list[Disk], path_flow: Running) -> None:
    """Bios of the page cache have no bi_private, by which the front of a split would name its bio."""
    border, size = 48 << 20, 64 << 10
    with linear(*nulls[:2]) as top:
        before = completed(nulls[:2])
        with path_flow.aim(top).window(Filter(pid=1)) as trace, Path(top.path).open("rb", buffering=0) as disk:
            assert len(os.pread(disk.fileno(), size, border - size // 2)) == size
        assert all(after["read"] > before[name]["read"] for name, after in completed(nulls[:2]).items()), "not cut"
    assert trace.summary["rows"] == []


def test_a_multipath_of_nvme(nulls: list[Disk], path_flow: Running) -> None:
    """The head sends bios by each of its hidden paths in turn."""
    with multipath(nulls[0]) as (head, paths), watched(head, [head, *paths], path_flow) as found:
        fio(head.path, rw="randrw", number_ios=60)
    same_as_counted(found, [], paths)
    # Older kernels do not count bios of the head.
    assert found.reads(head) + found.writes(head) == 60
    owned(found, 60)
    assert {one["dev"] for one in found.mine()} == {path.name for path in paths}


def merged(found: Watched) -> int:
    return sum(row["events"]["merged"] for row in found.summary["rows"] if row.get("events", {}).get("merged"))


@pytest.mark.parametrize("kind", ["multipath", "raid0"])
def test_bios_that_are_merged_below(nulls: list[Disk], path_flow: Running, kind: str) -> None:
    """They are merged before the first one is issued."""
    with ExitStack() as stack:
        if kind == "multipath":
            head, below = stack.enter_context(multipath(nulls[0], paths=1))
        else:
            head, below = stack.enter_context(array("raid0", *nulls)), nulls
        with watched(head, [head, *below], path_flow) as found:
            fio(head.path, rw="read", ioengine="libaio", iodepth=16, iodepth_batch=16, number_ios=64)
    owned(found, 64)
    assert found.reads(head) == 64
    assert merged(found) > 0


@contextmanager
def mirror(prompt: Disk, slow: Disk, folder: Path) -> Iterator[tuple[Disk, Disk, Path]]:
    """A file of ext4 on a mirror with one slow leg: yields the mirror, that leg and the file."""
    with delayed(slow, 0, 20) as late, array("raid1", prompt, late) as top, mounted(top, "ext4", folder):
        file = folder / "file"
        file.write_bytes(bytes(4 << 20))
        yield top, late, file


def waited_for_mirror(found: Watched, late: Disk, prompt: Disk, slow: Disk, number: int) -> list[Line]:
    """Check that each device has rows and that operations own the requests below; return the operations."""
    same_as_counted(found, [late], [prompt, slow])
    mine = found.mine()
    assert len(mine) == number
    # Otherwise requests of the slow leg belong to a worker.
    requests, slower = (2, slow) if sends_by_name() else (1, prompt)
    assert {one["requests"] for one in mine} == {requests}
    assert {one["dev"] for one in mine} <= {prompt.name, slower.name}
    return mine


@pytest.mark.one_kernel
def test_the_slower_leg_of_a_mirror(nulls: list[Disk], tmp_path: Path) -> None:
    """Either leg may be the later one on a real clock."""
    prompt, slow, _ = nulls
    with mirror(prompt, slow, tmp_path / "fs") as (top, late, file), watched(top, [top, late, *nulls]) as found:
        fio(str(file), rw="randwrite", number_ios=30, size="4M", overwrite=1)
    waited_for_mirror(found, late, prompt, slow, 30)


# --- One of each kind, with the trace of all modules -----------------------------------------------------------------


def test_linear(stacks: Stacks, path_flow: Running) -> None:
    top, below = stacks["linear"]
    with watched(top, [top, *below], path_flow) as found:
        fio(top.path, rw="randrw", number_ios=40, size="96M")
    same_as_counted(found, [top], below)
    owned(found, 40)


@pytest.mark.parametrize("by", ["process", "statement"])
def test_rows_by_owner(nulls: list[Disk], by: str) -> None:
    """The programs need most of the stack for them, and older kernels take more of it for each call."""
    with linear(*nulls[:2]) as top, Trace("--dev", top.name, f"--by={by}", "--each", f"--pid={os.getpid()}") as trace:
        read_direct(top.path, 20)
    assert [count(trace.summary, op="read", kind=kind) for kind in ("operation", "request")] == [20, 20]
    exact(trace.summary)


def test_stripes(stacks: Stacks, path_flow: Running) -> None:
    """Reads of four stripes of 64 KiB each."""
    top, below = stacks["striped"]
    with watched(top, [top, *below], path_flow) as found:
        fio(top.path, rw="read", bs="256k", number_ios=20)
    same_as_counted(found, [], below)
    assert found.reads(top) == 20
    owned(found, 20, 4)


def test_a_delay_is_the_layer_s(stacks: Stacks, path_flow: Running) -> None:
    """A worker sends the requests; they and their time belong to the operation that waits."""
    top, below = stacks["delayed"]
    with watched(top, [top, *below], path_flow) as found:
        fio(top.path, rw="randrw", number_ios=40)
    same_as_counted(found, [top], below)
    owned(found, 40, 1 if sends_by_name() else 0)


def test_encryption(stacks: Stacks, path_flow: Running) -> None:
    top, below = stacks["crypt"]
    with watched(top, [top, *below], path_flow) as found:
        fio(top.path, rw="randrw", number_ios=40, bs="16k")
    same_as_counted(found, [top], below)
    mine = found.mine()
    if sends_by_name():
        owned(found, 40)
    else:
        # Reads are sent by their task, writes by a worker.
        assert {(one["op"], one["requests"]) for one in mine} == {("read", 1), ("write", 0)}
        mine = [one for one in mine if one["op"] == "write"]
    assert all(one["stages"]["layers_ns"] > 0 for one in mine)


def test_a_thin_volume(stacks: Stacks, path_flow: Running) -> None:
    """Requests pass two layers; a worker sends those that need a new block."""
    volume, (pool, metadata, data) = stacks["thin"]
    with watched(volume, [volume, pool, metadata, data], path_flow) as found:
        fio(volume.path, rw="write", number_ios=40, size="2M")
        fio(volume.path, rw="randread", number_ios=40, size="2M")
    same_as_counted(found, [volume, pool], [metadata, data])
    assert Counter(one["op"] for one in found.mine()) == {"read": 40, "write": 40}
    reads = [one for one in found.mine() if one["op"] == "read"]
    assert {one["requests"] for one in reads} <= {0, 1}
    assert sum(one["requests"] for one in reads) > 0


@pytest.mark.parametrize("level", ["raid0", "raid5"])
def test_arrays(stacks: Stacks, path_flow: Running, level: str) -> None:
    top, below = stacks[level]
    with watched(top, [top, *below], path_flow) as found:
        fio(top.path, rw="randrw", number_ios=40, size="64M")
    same_as_counted(found, [top], below)
    assert len(found.mine()) == 40
    if level == "raid0":
        owned(found, 40)
    else:
        # A worker reads and writes parity.
        assert found.summary["requests"]["finished"] > 40


@pytest.mark.smp
@pytest.mark.one_kernel
def test_two_that_read_one_place_at_a_time_have_their_own_requests(nulls: list[Disk]) -> None:
    """Both CPUs make bios for the same sector at once, and the tracepoint has nothing but the sector."""
    reads = 1000
    with linear(nulls[0]) as top:
        with Trace("--each", "--ring-size=8M", f"--dev={top.name}") as trace:
            fio(top.path, rw="read", size="4k", loops=reads, number_ios=reads, numjobs=2, group_reporting=1)
        ours = [line for line in trace.lines if line["kind"] == "operation" and line["comm"] == "fio"]
    assert lossless(trace.summary), trace.summary["loss"]
    assert Counter(line["requests"] for line in ours) == {1: 2 * reads}


# So short that some requests end before their task sleeps, and longer than a page-cache hit.
LATE_NS = 50_000


@pytest.fixture(scope="module")
def slow_stacks() -> Iterator[dict[str, Disk]]:
    """Stacked devices whose disks take this long for each request."""
    with ExitStack() as stack:

        def late(name: str, number: int) -> list[Disk]:
            settings = {"memory_backed": 1, "size": 16, "blocksize": 512, "irqmode": 2, "completion_nsec": LATE_NS}
            made = (stack.enter_context(null_device(f"wptl{name}{which}", **settings)) for which in range(number))
            return list(made)

        metadata, data = late("t", 2)
        volume, _ = stack.enter_context(thin(metadata, data, 8 << 20 >> 9))
        # Reads of blocks that were never allocated would need no disk.
        Path(volume.path).write_bytes(bytes(8 << 20))
        yield {
            "thin": volume,
            "delay": stack.enter_context(delayed(late("d", 1)[0], 4, 4)),
            "crypt": stack.enter_context(crypt(*late("c", 1))),
            "integrity": stack.enter_context(integrity(*late("i", 1))),
            "crypt over integrity": stack.enter_context(crypt(stack.enter_context(integrity(*late("o", 1))))),
            "origin": stack.enter_context(origin(*late("s", 2))),
            "raid5": stack.enter_context(array("raid5", *late("r", 3))),
        }


@pytest.mark.parametrize(
    "engine", ["psync", *(pytest.param(one, marks=pytest.mark.one_kernel) for one in ("libaio", "io_uring"))]
)
@pytest.mark.parametrize("rw", ["randread", "randwrite"])
def test_what_waits_for_a_stacked_device_is_no_hit(slow_stacks: dict[str, Disk], engine: str, rw: str) -> None:
    """Whichever task sends the bios on, and whether or not the kernel says whose they are."""
    options = {"rw": rw, "ioengine": engine, "number_ios": 16, "iodepth": 4, "size": "8M", "stonewall": 1}
    devices = [f"--dev={disk.name}" for disk in slow_stacks.values()]
    with Trace("--each", *devices) as trace:
        jobs = fio_jobs(*({"filename": disk.path, **options} for disk in slow_stacks.values()))
    seen = observes(engine, trace) if engine != "psync" else True
    for (name, disk), job in zip(slow_stacks.items(), jobs):
        mine = [one for one in trace.operations if one["path"] == disk.path and one["comm"] == "fio"]
        mine = [one for one in mine if one["op"] == rw.removeprefix("rand")]
        assert len(mine) == (total(job) if seen else 0), name
        assert {one["kind"] for one in mine} <= {"operation"}, name
        for one in mine:
            stages = one["stages"]
            waited = sum(stages[f"{stage}_ns"] for stage in ("throttle", "queue", "driver", "device"))
            assert waited + stages.get("layers_ns", 0) >= LATE_NS * 0.9, (name, one)
            assert one["total_ns"] >= LATE_NS, (name, one)
