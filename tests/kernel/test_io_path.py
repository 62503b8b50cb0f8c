# SPDX-License-Identifier: Apache-2.0
"""`wptrace io` against fio's counts and the kernel's own: operations, requests, page-cache hits, stories, filters."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.conftest import REAL
from tests.kernel.disks import Disk, fio, loop_device, null_device, opened, total
from tests.kernel.flows import running_flow
from tests.kernel.loads import mounted
from tests.kernel.patience import said
from tests.kernel.trace import PATIENCE, ROOT, Line, Trace, count, lossless, rows, same_as_reported, wait_until
from tests.kernel.window import Running
from wptrace.engine.filters import Filter
from wptrace.flows.io.kinds import OPERATION, SPARSE
from wptrace.flows.io.options import Options
from wptrace.flows.io.path import PathFlow
from wptrace.model.kind import OPERATIONS, REQUESTS

pytestmark = pytest.mark.each_kernel

PARTITION = ("fs", "throttle", "queue", "driver", "device", "complete", "wakeup", "return")
_MAP_LOCKED = 0x2000


def settle() -> None:
    """Write everything dirty, so that counters stand still."""
    os.sync()


def sums_up(line: Line) -> None:
    """Every nanosecond belongs to one stage."""
    assert sum(line["stages"].values()) == line["total_ns"], line


def of_one_block(one: Line) -> None:
    """Check an operation of fio on a device."""
    sums_up(one)
    assert one["requests"] == 1
    assert one["path"] == f"/dev/{one['dev']}"
    assert (one["length"], one["result"], one["bytes"], one["error"]) == (4096, 4096, 4096, 0)
    assert one["offset"] == one["sector"] * 512
    assert one["comm"] == "fio"


def complete(found: dict[str, Line]) -> None:
    """The stages of a group add up to its total, and each operation is in all of them."""
    assert {row["count"] for row in found.values()} == {found["total"]["count"]}
    parts = (found[name]["sum_ns"] for name in (*PARTITION, *SPARSE) if name in found)
    assert sum(parts) == found["total"]["sum_ns"]
    unattributed = found["unattributed"]["sum_ns"] if "unattributed" in found else 0
    assert unattributed < found["total"]["sum_ns"] / 100


def test_raw_direct_reads_and_writes(disks: list[Disk]) -> None:
    """Each operation makes one request; fio and the kernel count as many of both, on every driver."""
    before = {disk: disk.completed() for disk in disks}
    with Trace("--each", *(f"--dev={disk.name}" for disk in disks)) as trace:
        jobs = {disk: fio(disk.path, rw="randrw", number_ios=250) for disk in disks}
    summary = trace.summary
    assert lossless(summary), summary["loss"]
    for disk, job in jobs.items():
        after = disk.completed()
        for op in ("read", "write"):
            made = job[op]["total_ios"]
            assert made == after[op] - before[disk][op]
            assert (
                count(summary, op=op, dev=disk.name) == count(summary, op=op, dev=disk.name, kind="operation") == made
            )
            assert count(summary, op=op, dev=disk.name, kind="hit") == 0
            complete(rows(summary, "operation", op, disk.name))
            same_as_reported(rows(summary, "operation", op, disk.name), trace.operations, disk.name, op)
    assert summary["operations"]["started"] == sum(total(job) for job in jobs.values())
    assert len(trace.operations) == summary["operations"]["finished"]
    # Each request belongs to an operation, which reports it.
    assert trace.requests == []
    for one in trace.operations:
        of_one_block(one)
        assert one["rwbs"].startswith("R" if one["op"] == "read" else "W")
        assert one["cpus"]["submit"] is not None
        assert one["cpus"]["wake"] is not None
        if one["dev"] in REAL:
            # Drivers with hooks of their own: D, H, S and C come in this order.
            assert all(one["stages"][f"{stage}_ns"] > 0 for stage in ("driver", "device", "complete")), one
            assert one["cpus"]["issue"] is not None
            assert one["cpus"]["irq"] is not None


@pytest.mark.parametrize("options", [pytest.param((), marks=pytest.mark.one_kernel), ("--by=process",)], ids=str)
def test_sums_without_options_are_exact(disk: Disk, options: tuple[str, ...]) -> None:
    """Without records there are only sums, of direct I/O and of page-cache hits."""
    hits, block = 300, 1 << 20
    with opened(disk.path, os.O_RDONLY) as fd:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.pread(fd, 4096, block)
        # The kernel may reclaim a page before it is read again, but for locked ones.
        page = mmap.mmap(fd, 4096, mmap.MAP_SHARED | _MAP_LOCKED, mmap.PROT_READ, offset=block)
        before = disk.completed()
        with Trace(f"--dev={disk.name}", *options) as trace:
            job = fio(disk.path, rw="randrw", number_ios=120, size="512k", invalidate=0)
            for _ in range(hits):
                assert len(os.pread(fd, 512, block)) == 512
        after = disk.completed()
        page.close()
    summary = trace.summary
    assert lossless(summary), summary["loss"]
    for op in ("read", "write"):
        made = job[op]["total_ios"]
        requests = count(summary, op=op, dev=disk.name)
        assert requests == count(summary, op=op, dev=disk.name, kind="operation") == made == after[op] - before[op]
        complete(rows(summary, "operation", op, disk.name))
        found = rows(summary, "request", op, disk.name)
        assert sum(row["sum_ns"] for stage, row in found.items() if stage != "total") == found["total"]["sum_ns"]
    assert count(summary, op="read", dev=disk.name, kind="hit") == hits
    assert summary["operations"]["started"] == total(job) + hits
    if options:
        owned = [row for row in summary["rows"] if row["kind"] == "owned_operation" and row["stage"] == "total"]
        assert {row["owner"].partition("[")[0] for row in owned} == {"fio"}
        assert sum(row["count"] for row in owned) == total(job)


@pytest.mark.guest
def test_readahead_without_options_is_waited_for_by_nobody() -> None:
    """Of reads in order on a disk that has all at once, the first one waits, and what starts readahead does not."""
    blocks = 64
    with null_device("wptest_ahead", irqmode=0) as disk, Trace(f"--dev={disk.name}") as trace:
        before = disk.completed()
        with opened(disk.path, os.O_RDONLY) as fd:
            for block in range(blocks):
                assert len(os.pread(fd, 4096, block << 12)) == 4096
        requests = disk.completed()["read"] - before["read"]
    assert lossless(trace.summary), trace.summary["loss"]
    assert count(trace.summary, op="read", kind="operation") == 1
    assert count(trace.summary, op="read", kind="hit") == blocks - 1
    assert count(trace.summary, op="read") == requests > 1


@pytest.mark.one_kernel
def test_stories_of_hostile_names(disk: Disk, tmp_path: Path) -> None:
    """Escape codes, newlines and invalid UTF-8 never reach the terminal and never break a line."""
    names = [b"\x1b[31mred", b"two\nlines", b"\xff\xfe", "\u202egnp".encode(), b"x" * 200]
    with mounted(disk, "ext4", tmp_path / "fs") as folder:
        for name in names:
            (Path(os.fsdecode(os.fsencode(folder) + b"/" + name))).write_bytes(b"z" * 4096)
        gone = folder / "gone"
        gone.write_bytes(b"z" * 4096)
        settle()
        reader = (
            "import os,sys\n"
            "open('/proc/self/comm','wb').write(b'\\x1b[2J\\nevil')\n"
            "for name in os.listdir(os.fsencode(sys.argv[1])):\n"
            "    path = os.path.join(os.fsencode(sys.argv[1]), name)\n"
            "    if os.path.isfile(path):\n"
            "        fd = os.open(path, os.O_RDONLY)\n"
            "        if name == b'gone': os.unlink(path)\n"
            "        os.pread(fd, 4096, 0)\n"
        )
        with Trace("--each", f"--dev={disk.name}") as trace:
            subprocess.run([sys.executable, "-c", reader, str(folder)], check=True)
        text = subprocess.Popen(
            [sys.executable, "-m", "wptrace", "io", "--level=path", "--each", f"--dev={disk.name}"],
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        first = said(text)
        wait_until(lambda: Path(f"/proc/{text.pid}/fd").is_dir(), "the trace")
        # The tracer prints its first line when everything is attached.
        subprocess.run([sys.executable, "-c", reader, str(folder)], check=True)
        text.send_signal(signal.SIGINT)
        shown = first + text.communicate(timeout=PATIENCE)[0]
    evil = [one for one in trace.operations if one["comm"] == "\x1b[2J\nevil" and one["length"] == 4096]
    paths = {one["path"].rpartition("/")[2] for one in evil}
    assert {name.decode("utf-8", "backslashreplace") for name in names} <= paths
    assert [one["deleted"] for one in evil if one["path"].endswith("/gone")] == [True]
    assert b"\x1b" not in shown
    assert b"evil" in shown


@pytest.mark.one_kernel
def test_a_long_path_keeps_its_end(disk: Disk, tmp_path: Path) -> None:
    with mounted(disk, "ext4", tmp_path / "fs") as folder:
        deep = folder.joinpath(*["directory-of-a-long-name"] * 20)
        deep.mkdir(parents=True)
        (deep / "leaf").write_bytes(b"z" * 4096)
        settle()
        with Trace("--each", f"--dev={disk.name}") as trace:
            fio(str(deep / "leaf"), number_ios=1, size="4k", direct=1)
    (one,) = [one for one in trace.operations if one["comm"] == "fio" and one["op"] == "read" and one["requests"]]
    assert one["path"].startswith(".../")
    assert one["path"].endswith("/directory-of-a-long-name/leaf")


@pytest.mark.one_kernel
def test_the_rate_of_stories_is_limited(disk: Disk) -> None:
    with Trace("--slow=1ns", "--limit=5", f"--dev={disk.name}") as trace:
        job = fio(disk.path, number_ios=400)
    left_out = trace.summary["loss"]["rate_limited"]
    assert left_out > 0
    assert len(trace.operations) + left_out == total(job)
    assert trace.summary["operations"]["finished"] == total(job)


@pytest.mark.one_kernel
def test_one_in_so_many_is_reported(disk: Disk) -> None:
    with Trace("--sample=1/10", f"--dev={disk.name}") as trace:
        job = fio(disk.path, number_ios=400)
    # There is a count for each CPU.
    cpus = os.cpu_count() or 1
    assert total(job) // 10 - cpus <= len(trace.operations) <= total(job) // 10


@pytest.mark.one_kernel
def test_a_full_ring_loses_stories_and_no_counts(disk: Disk) -> None:
    with Trace("--each", "--ring-size=4K", f"--dev={disk.name}") as trace:
        trace.process.send_signal(signal.SIGSTOP)
        job = fio(disk.path, number_ios=300)
        trace.process.send_signal(signal.SIGCONT)
    lost = trace.summary["loss"]["ring_full"]
    assert lost > 0
    assert len(trace.operations) + lost == total(job) == count(trace.summary, kind="operation")
    assert trace.summary["operations"]["lost"] == trace.summary["requests"]["lost"] == 0


# --- Filters: two jobs that differ in one property ----------------------------------------------------------------


def _pair(disk: Disk, wanted: dict[str, Any], other: dict[str, Any], *filters: str) -> Trace:
    """Trace two jobs, one after the other. `filters` select the first one, which has 120 operations."""
    with Trace(f"--dev={disk.name}", "--each", *filters) as trace:
        fio(disk.path, **{"number_ios": 120, "name": "wanted", **wanted})
        fio(disk.path, **{"number_ios": 80, "name": "other", **other})
    return trace


@pytest.mark.one_kernel
@pytest.mark.parametrize(
    ("wanted", "other", "filters"),
    [
        ({"rw": "randwrite"}, {"rw": "randread"}, ["--op=write"]),
        ({"bs": "4k"}, {"bs": "16k"}, ["--size=-4K"]),
        ({"rw": "randread", "bs": "16k"}, {"rw": "randread", "bs": "4k"}, ["--op=read", "--size=16K"]),
    ],
)
def test_filters_of_operations(disk: Disk, wanted: dict[str, Any], other: dict[str, Any], filters: list[str]) -> None:
    trace = _pair(disk, wanted, other, *filters)
    assert lossless(trace.summary), trace.summary["loss"]
    assert trace.summary["operations"]["finished"] == count(trace.summary, kind="operation") == 120
    # The filters hold at the block layer as well.
    assert count(trace.summary) == trace.summary["requests"]["started"] == 120


def test_filters_of_the_command(disk: Disk, v2: Path, tmp_path: Path) -> None:
    """Filters by name, cgroup, directory, operation and size, all at once."""
    with mounted(disk, "ext4", tmp_path / "fs") as folder, cgroup(v2) as group:
        for name in ("in/a", "out/b"):
            (folder / name).parent.mkdir()
            (folder / name).write_bytes(b"z" * (1 << 20))
        settle()
        filters = ("--comm=fio", f"--cgroup={group.parent}", f"--dir={folder / 'in'}", "--op=read", "--size=4K")
        with Trace("--each", f"--dev={disk.name}", *filters) as trace:
            for name, words in itertools.product(("in/a", "out/b"), ("--rw=randread --bs=4k", "--rw=write --bs=4k")):
                in_cgroup(group, f"{READS} --filename={folder / name} {words}")
            in_cgroup(group, f"{READS} --filename={folder / 'in/a'} --rw=randread --bs=16k")
            in_cgroup(group, f"dd if={folder / 'in/a'} of=/dev/null bs=4k count=40 iflag=direct status=none")
            subprocess.run(["sh", "-c", f"{READS} --filename={folder / 'in/a'} --rw=randread --bs=4k"], check=True)
    assert len(trace.operations) == trace.summary["operations"]["finished"] == count(trace.summary) == 60
    assert {(one["comm"], one["path"]) for one in trace.operations} == {("fio", str(folder / "in/a"))}


READS = "fio --name=j --direct=1 --size=1M --norandommap --number_ios=60 --output=/dev/null"


@pytest.mark.one_kernel
def test_an_idle_device_has_no_operations_of_a_busy_one(tmp_path: Path) -> None:
    """The device of an operation is unknown until it has a request, or ends."""
    with ExitStack() as stack:
        idle, busy = (stack.enter_context(loop_device(tmp_path / name)) for name in ("idle", "busy"))
        load = "fio --name=j --thread --direct=1 --rw=randread --bs=4k --numjobs=4 --size=32M --loops=99"
        process = subprocess.Popen([*load.split(), f"--filename={busy.path}"], stdout=subprocess.DEVNULL)
        stack.callback(process.wait)
        stack.callback(process.kill)
        wait_until(lambda: busy.counted()["read"], "the load")
        trace = stack.enter_context(Trace(f"--dev={idle.name}", "--stuck=1us", "0.1", "20"))
        before = busy.counted()["read"]
        trace.wait()
        assert busy.counted()["read"] > before
        assert process.poll() is None, "the load has ended too early"
    intervals = [line for line in trace.lines if line["kind"] == "interval"]
    assert len(intervals) == 20
    for line in (*intervals, trace.summary):
        assert (line["operations"]["started"], line["requests"]["started"]) == (0, 0), line
    assert [line for line in trace.lines if line["kind"] == "in_flight"] == []


@pytest.mark.one_kernel
def test_what_is_in_flight_on_a_device_is_its_own(tmp_path: Path) -> None:
    with loop_device(tmp_path / "disk") as disk, Trace(f"--dev={disk.name}", "0.1") as trace:
        job = fio(disk.path, rw="randread", number_ios=2000, numjobs=4, group_reporting=1)
    intervals = [line["operations"] for line in trace.lines if line["kind"] == "interval"]
    assert sum(one["finished"] for one in intervals) <= trace.summary["operations"]["finished"] == total(job)


@contextmanager
def cgroup(top: Path) -> Iterator[Path]:
    """A cgroup below another one, whose names no other run of these tests uses."""
    group = top / f"wptest-{os.getpid()}" / "below"
    group.mkdir(parents=True)
    try:
        yield group
    finally:
        group.rmdir()
        group.parent.rmdir()


def in_cgroup(group: Path, command: str) -> None:
    subprocess.run(["sh", "-c", f"echo $$ > {group}/cgroup.procs; {command}"], check=True)


@pytest.mark.one_kernel
def test_filters_change_while_it_runs(disk: Disk) -> None:
    with running_flow(PathFlow(Options((disk.path,), filter=Filter(op="read")))) as flow:
        flow.begin()
        fio(disk.path, rw="randrw", number_ios=60)
        first = flow.snapshot()
        flow.retarget(Filter(op="write", size=(8192, None)))
        fio(disk.path, rw="randwrite", number_ios=30)
        fio(disk.path, rw="randwrite", bs="8k", number_ios=40)
        flow.stop()
        second = flow.snapshot()
    assert {group.label("op") for group in first.cells} == {"read"}
    operations = {
        group.label("op"): stages["total"].count for group, stages in second.cells.items() if group.kind is OPERATION
    }
    assert operations["write"] == 40
    assert operations["read"] == first.books[OPERATIONS].finished
    assert second.books[REQUESTS].finished == first.books[REQUESTS].finished + 40


@pytest.mark.guest
@pytest.mark.one_kernel
def test_without_a_device_all_are_traced() -> None:
    """Including a disk that appears meanwhile, which gets a row of its own at the next look."""
    with Trace("--comm=fio") as trace:
        fio("/dev/vda", number_ios=40)
        with null_device("wpt_late") as late:
            fio(late.path, number_ios=30)
    for devs, made in ((["vda"], 40), ([late.name, "other"], 30)):
        assert sum(count(trace.summary, op="read", dev=dev, kind="operation") for dev in devs) == made
        assert sum(count(trace.summary, dev=dev) for dev in devs) == made
    assert lossless(trace.summary), trace.summary["loss"]


@pytest.mark.one_kernel
def test_sigusr1_lists_what_is_in_flight(disk: Disk) -> None:
    with Trace(f"--dev={disk.name}") as trace:
        trace.process.send_signal(signal.SIGUSR1)
        wait_until(lambda: '"kind":"in_flight"' in trace.written(), "the list")
        fio(disk.path, number_ios=50)
    assert count(trace.summary, kind="operation") == 50


def _call_of_32_bits(number: int, first: int, second: int) -> int:
    """Make a system call as 32-bit programs do on x86, which 64-bit programs can as well; its third argument is 0."""
    # push rbx; mov ebx, edi; mov ecx, esi; xor edx, edx; mov eax, NUMBER; int 0x80; pop rbx; ret
    code = b"\x53\x89\xfb\x89\xf1\x31\xd2\xb8" + struct.pack("<I", number) + b"\xcd\x80\x5b\xc3"
    memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(code)
    function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int)
    return int(function(ctypes.addressof(ctypes.c_char.from_buffer(memory)))(first, second))


@pytest.mark.one_kernel
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="it has instructions of x86")
def test_calls_of_32_bit_programs_have_other_numbers(path_flow: Running, disk: Disk) -> None:
    """Their lseek has the number of readv, which matters where operations are found by system calls."""
    lseek = 19
    with opened(disk.path, os.O_RDONLY) as fd:
        os.pread(fd, 4096, 0)
        with path_flow.aim(disk).window(Filter(pid=os.getpid())) as trace:
            for offset in range(20):
                assert _call_of_32_bits(lseek, fd, offset) == offset
            for _ in range(3):
                os.pread(fd, 4096, 0)
    assert lossless(trace.summary), trace.summary["loss"]
    # Other processes may have dropped the page cache.
    read = sum(count(trace.summary, op="read", kind=kind) for kind in ("hit", "operation"))
    assert trace.summary["operations"]["finished"] == read == 3
