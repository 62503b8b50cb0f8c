# SPDX-License-Identifier: Apache-2.0
"""`wptrace io` against fio's counts and the kernel's own, in a shared trace: page cache, file systems, filters."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.conftest import GUEST
from tests.kernel.disks import Disk, fio, frozen, loop_device, read_direct, total
from tests.kernel.test_io_path import PARTITION, READS, cgroup, complete, in_cgroup, settle, sums_up
from tests.kernel.trace import count, lossless, rows
from tests.kernel.window import Running
from wptrace.engine.filters import Filter
from wptrace.errors import WptraceError
from wptrace.kernel import cgroups, mounts


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Disk]]:
    """Disks by their contents."""
    names = {"ext4": "nvme0n1", "xfs": "vda", "btrfs": "sda", "raw": "vdb"}
    with ExitStack() as stack:
        if GUEST:
            yield {what: Disk(name) for what, name in names.items()}
        else:
            top = tmp_path_factory.mktemp("disks")
            yield {what: stack.enter_context(loop_device(top / what)) for what in ("ext4", "raw")}


@pytest.fixture(scope="module")
def flow(path_flow: Running, disks: dict[str, Disk], folders: dict[str, Path]) -> Running:
    return path_flow.aim(*disks.values())


@pytest.mark.one_kernel
def test_what_breaks_the_shared_trace_breaks_no_other_test(disks: dict[str, Disk], flow: Running) -> None:
    """A test may close the trace, and may still hold a view of its memory."""
    held = flow.flow._obj.view("ops").cast("Q")[::1]
    with pytest.raises(WptraceError, match="not been started"), flow.window():
        flow.flow.close()
    with flow.window() as trace:
        job = fio(disks["raw"].path, number_ios=20)
    assert count(trace.summary, op="read", dev=disks["raw"].name, kind="operation") == total(job) == 20
    held.release()


def test_buffered_reads_are_hits_or_waited(disks: dict[str, Disk], flow: Running) -> None:
    """Each read is either a hit or an operation, and the kernel counts as many requests."""
    settle()
    disk = disks["raw"]
    # preadv2 with two buffers each.
    options: dict[str, Any] = {"direct": 0, "ioengine": "pvsync2", "number_ios": 100, "size": "16M", "invalidate": 1}
    before = disk.completed()
    # Closing a disk drops its pages once no one else has it open.
    with flow.window(Filter(op="read")) as trace, open(disk.path, "rb"):  # noqa: PTH123
        cold, warm = fio(disk.path, **options), fio(disk.path, **{**options, "invalidate": 0})
    assert lossless(trace.summary), trace.summary["loss"]
    hits = count(trace.summary, op="read", dev=disk.name, kind="hit")
    waited = count(trace.summary, op="read", dev=disk.name, kind="operation")
    assert hits + waited == total(cold) + total(warm)
    # The same blocks again: they are cached, unless memory management has dropped some.
    assert hits >= total(warm) // 2
    assert waited > 0
    complete(rows(trace.summary, "operation", "read", disk.name))
    assert count(trace.summary, op="read", dev=disk.name) == disk.completed()["read"] - before["read"]
    for one in (one for one in trace.operations if one["dev"] == disk.name):
        sums_up(one)
        if one["kind"] == "hit":
            assert all(one["stages"][f"{stage}_ns"] == 0 for stage in PARTITION if stage != "fs")
            assert one["requests"] == one["readahead"]
        assert one["length"] == 4096


@pytest.mark.parametrize("buffers", [17, 1000])
def test_length_of_a_call_with_many_buffers(disks: dict[str, Disk], flow: Running, buffers: int) -> None:
    """Without functions to trace, a program reads the buffers of a system call itself."""
    length = 24 * buffers
    only = Filter(op="read", pid=os.getpid(), size=(length, length))
    with Path(disks["raw"].path).open("rb", 0) as disk, flow.window(only) as trace:
        assert os.preadv(disk.fileno(), [bytearray(24) for _ in range(buffers)], 0) == length
        assert os.preadv(disk.fileno(), [bytearray(24) for _ in range(buffers - 1)], 0) == length - 24
    assert [(one["length"], one["result"]) for one in trace.operations] == [(length, length)]


def test_readahead_belongs_to_its_operation_and_is_not_charged(disks: dict[str, Disk], flow: Running) -> None:
    """A sequential reader makes far fewer requests than reads, some of them ahead of the reads."""
    settle()
    disk = disks["raw"]
    before = disk.completed()
    with flow.window() as trace:
        job = fio(disk.path, rw="read", direct=0, number_ios=512, size="16M", invalidate=1)
    reads = [one for one in trace.operations if (one["dev"], one["op"]) == (disk.name, "read")]
    assert len(reads) == total(job)
    ahead = sum(one["readahead"] for one in reads)
    made = sum(one["requests"] for one in reads)
    assert 0 < ahead < made
    assert made == disk.completed()["read"] - before["read"] == count(trace.summary, op="read", dev=disk.name)
    for one in reads:
        sums_up(one)
        # No one waits for readahead alone.
        if one["kind"] == "hit":
            assert one["stages"]["device_ns"] == 0


@pytest.mark.parametrize("direct", [1, 0])
def test_file_systems(folders: dict[str, Path], disks: dict[str, Disk], flow: Running, direct: int) -> None:
    """Operations on ext4, xfs and btrfs equal fio's counts, requests the kernel's own, and paths are complete."""
    jobs: dict[str, dict[str, Any]] = {}
    places: list[Any] = []
    kinds = {kind: disks[kind] for kind in folders}
    for folder in folders.values():
        deep = folder / f"a b{direct}" / "c"
        deep.mkdir(parents=True)
        (deep / "data").write_bytes(os.urandom(8 << 20))
    with ExitStack() as stack:
        # A journal writes by itself, even while a window opens or closes.
        with frozen(*folders.values()):
            trace = stack.enter_context(flow.window())
            before = {kind: disk.completed() for kind, disk in kinds.items()}
        for kind, folder in folders.items():
            file = str(folder / f"a b{direct}" / "c" / "data")
            places.append(file)
            jobs[kind] = fio(file, rw="randrw", direct=direct, number_ios=150, size="8M", invalidate=1)
        with frozen(*folders.values()):
            after = {kind: disk.completed() for kind, disk in kinds.items()}
            stack.close()
    assert lossless(trace.summary), trace.summary["loss"]
    sectors = sum(
        after[kind][name] - before[kind][name] for kind in kinds for name in ("read_sectors", "write_sectors")
    )
    assert trace.summary["bytes"] == sectors * 512
    for kind, disk in kinds.items():
        reported = [one for one in trace.operations if one["dev"] == disk.name and one["comm"] == "fio"]
        mine = [one for one in reported if one["path"] in places]
        for op in ("read", "write"):
            assert len([one for one in mine if one["op"] == op]) == jobs[kind][op]["total_ios"], (kind, op)
        grown = {name: after[kind][name] - before[kind][name] for name in after[kind]}
        assert count(trace.summary, op="read", dev=disk.name) == grown["read"], kind
        # The kernel counts a flush that a bio asks for as a write without sectors; here it has a row of its own.
        flushes = count(trace.summary, op="flush", dev=disk.name)
        assert 0 <= grown["write"] - count(trace.summary, op="write", dev=disk.name) <= flushes, kind
        for one in mine:
            sums_up(one)
            assert not one["deleted"]


def test_filters_of_files(folders: dict[str, Path], flow: Running) -> None:
    folder = folders["ext4"]
    for name in ("in/a", "in/deep/b", "out/c"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"z" * (4 << 20))
    settle()
    expected = {
        Filter(file=mounts.file(str(folder / "in/a"))): {"in/a"},
        Filter(dir=mounts.directory(str(folder / "in"))): {"in/a", "in/deep/b"},
        Filter(dir=mounts.directory(str(folder / "in/deep"))): {"in/deep/b"},
    }
    for wanted, files in expected.items():
        with flow.window(wanted) as trace:
            for file in ("in/a", "in/deep/b", "out/c"):
                read_direct(folder / file, 60)
        reads = [one for one in trace.operations if one["op"] == "read" and one["length"] == 4096]
        assert {one["path"] for one in trace.operations} == {str(folder / file) for file in files}
        assert {one["pid"] for one in trace.operations} == {os.getpid()}
        assert len(reads) == 60 * len(files)
        assert count(trace.summary, op="read") == sum(one["requests"] for one in trace.operations)


def test_filters_of_tasks(disks: dict[str, Disk], flow: Running, v2: Path) -> None:
    """Filters by comm and by cgroup find a job that has another name, and a cgroup of its own."""
    path = disks["raw"].path
    job = f"{READS} --rw=randread --bs=4k --filename={path}"
    # dd has another name, and makes other requests.
    read = f"dd if={path} of=/dev/null bs=4k count=40 iflag=direct status=none"
    with cgroup(v2) as group:
        found = cgroups.resolve(str(group.parent))
        for wanted, number in ((Filter(cgroup=found), 100), (Filter(comm="fio", cgroup=found), 60)):
            with flow.window(wanted) as trace:
                in_cgroup(group, f"{read}; {job}")
                subprocess.run(["sh", "-c", job], check=True)
            assert trace.summary["operations"]["finished"] == count(trace.summary) == number
