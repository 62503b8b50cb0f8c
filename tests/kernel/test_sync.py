# SPDX-License-Identifier: Apache-2.0
"""Syncs, page faults and swap-ins against fio's counts and the kernel's, and the commits that syncs wait for."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.kernel import aio
from tests.kernel.conftest import GUEST
from tests.kernel.disks import Disk, fio, loop_device, null_device, opened, setting, unmount, written_when_asked
from tests.kernel.loads import joined, mount, mounted, scsi_device
from tests.kernel.patience import said
from tests.kernel.stacks import delayed
from tests.kernel.test_io_path import settle, sums_up
from tests.kernel.trace import PATIENCE, Lines, count, lossless, rows, wait_until
from tests.kernel.window import Running, path_of
from wptrace.engine.filters import Filter
from wptrace.kernel import mounts

pytestmark = pytest.mark.each_kernel

PAGE = mmap.PAGESIZE

WRITER = "wptest_writer"
# Tests that use it come before those that use the folders.
GUEST_DISK = "vda"


@pytest.fixture(autouse=True)
def _the_kernel_writes_when_it_is_asked() -> Iterator[None]:
    """Let nothing else write, because then a sync may find nothing to wait for."""
    with written_when_asked():
        yield


# File systems and the disks that they are on in guests.
PLACES = {"ext4": "vda", "xfs": "nvme0n1", "btrfs": "sda"} if GUEST else {"ext4": "loop"}


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Disk]]:
    if GUEST:
        yield {kind: Disk(name) for kind, name in PLACES.items()}
    else:
        with loop_device(tmp_path_factory.mktemp("disk") / "disk.img") as loop:
            yield {"ext4": loop}


@pytest.fixture(scope="module")
def flow(path_flow: Running, disks: dict[str, Disk], folders: dict[str, Path]) -> Running:
    """The trace of all modules, aimed at all disks of this one."""
    return path_flow.aim(*disks.values())


@pytest.fixture
def bare(path_flow: Running, disk: Disk) -> Running:
    """The trace of all modules, aimed at that disk."""
    return path_flow.aim(disk)


def whole(trace: Lines) -> None:
    """Nothing is lost, no end lacks its start, and the stages of each operation add up."""
    assert lossless(trace.summary), trace.summary["loss"]
    assert trace.summary["operations"]["in_flight"] == 0
    assert len(trace.operations) == trace.summary["operations"]["finished"]
    for one in trace.operations:
        sums_up(one)


def test_flushes_that_are_asked_for_without_data(disk: Disk, bare: Running) -> None:
    """The kernel counts each as a write, and its own flushes separately: only both together agree."""
    with opened(disk.path, os.O_WRONLY) as fd, bare.window() as trace:
        before = disk.completed()
        for block in range(12):
            if block % 3 == 0:
                os.pwrite(fd, b"x" * PAGE, block * PAGE)
            os.fsync(fd)
        grown = {name: number - before[name] for name, number in disk.completed().items()}
    whole(trace)
    (flushes,) = [
        row for row in trace.summary["rows"] if (row["kind"], row["op"], row["stage"]) == ("request", "flush", "total")
    ]
    assert flushes["count"] == flushes["events"]["asked"] == 12
    writes = count(trace.summary, op="write", dev=disk.name)
    assert writes >= 4
    assert writes + flushes["events"]["asked"] == grown["write"]


@pytest.mark.one_kernel
def test_flushes_of_a_process_are_those_that_it_asks_for(disk: Disk, bare: Running) -> None:
    """A filter leaves out requests that the block layer makes for the flushes, as they belong to no process."""
    with opened(disk.path, os.O_WRONLY) as fd, bare.window(Filter(pid=os.getpid())) as trace:
        for _ in range(9):
            os.fsync(fd)
        sync = "import os, sys; os.fsync(os.open(sys.argv[1], os.O_WRONLY))"
        subprocess.run([sys.executable, "-c", sync, disk.path], check=True)
    flushes = rows(trace.summary, "request", "flush", disk.name)["total"]
    assert (flushes["count"], flushes["events"]) == (0, {"asked": 9})
    assert (trace.summary["requests"]["finished"], trace.summary["operations"]["finished"]) == (0, 9)


@pytest.mark.one_kernel
@pytest.mark.guest
def test_more_journals_than_are_remembered_at_a_time(path_flow: Running, tmp_path: Path) -> None:
    """The least recently used journal makes room, again and again."""
    with ExitStack() as stack:
        disks = [stack.enter_context(loop_device(tmp_path / f"{number}.img", "8M")) for number in range(18)]
        folders = [stack.enter_context(mounted(disk, "ext4", tmp_path / disk.name)) for disk in disks]
        settle()
        with path_flow.aim(*disks).window() as trace:
            for folder in folders:
                with opened(folder, os.O_RDONLY) as fd:
                    (folder / "name").touch()
                    os.fsync(fd)
    whole(trace)
    synced = [one for one in trace.operations if one["op"] == "sync" and one["pid"] == os.getpid()]
    assert [one["path"] for one in synced] == list(map(str, folders))
    for one, disk in zip(synced, disks):
        assert one["commit"].get("comm", "").startswith(f"jbd2/{disk.name}"[:10]), one
        assert one["commit"]["most"]["pid"] == os.getpid()


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


# Pages that the interpreter has mapped stay in memory, because reading its file again is a major fault as well.
_FILL = """
import ctypes, mmap, os, sys
if ctypes.CDLL(None, use_errno=True).mlockall(1):  # MCL_CURRENT
    sys.exit(os.strerror(ctypes.get_errno()))
memory = mmap.mmap(-1, int(sys.argv[1]), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_NOHUGEPAGE)
for page in range(0, len(memory), mmap.PAGESIZE):
    memory[page] = 1
print('ready', flush=True)
sys.stdin.readline()
for page in range(0, len(memory), mmap.PAGESIZE):
    assert memory[page] == 1
print('done', flush=True)
sys.stdin.readline()
"""


def _swapped_in() -> int:
    """Return the pages swapped in so far, on the whole machine."""
    return int(re.findall(r"^pswpin (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE)[0])


def _faults_of(pid: int) -> int:
    """Return the major faults of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[9])


def _swap_out(group: Path) -> None:
    """Swap out the memory of a cgroup, and wait; a later attempt frees what is still being written."""

    def is_done() -> bool:
        with setting(group / "memory.high", "0"):
            left = re.findall(r"^(?:in)?active_anon (\d+)$", (group / "memory.stat").read_text(), re.MULTILINE)
        return sum(map(int, left)) < SWAPPED * PAGE // 4

    wait_until(is_done, "the memory of the cgroup on the disk")


SWAPPED = 512


@pytest.mark.guest
def test_swapped_pages_are_read_again(disk: Disk, bare: Running, tmp_path: Path) -> None:
    """The cgroup of the process has no memory for a while; nothing else has to swap."""
    group = tmp_path / "cgroup" / "wptest"
    group.parent.mkdir()
    subprocess.run(["mkswap", disk.path], check=True, capture_output=True)
    subprocess.run(["swapon", disk.path], check=True)
    subprocess.run(["mount", "-t", "cgroup2", "cgroup2", str(group.parent)], check=True)
    try:
        (group.parent / "cgroup.subtree_control").write_text("+memory")
        group.mkdir()
        command = [sys.executable, "-c", _FILL, str(SWAPPED * PAGE)]
        with joined(group):
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert said(process) == "ready\n"
        # Read no neighbouring pages.
        with setting(Path("/proc/sys/vm/page-cluster"), "0"):
            _swap_out(group)
            with bare.window() as trace:
                before, pages, faults = disk.completed(), _swapped_in(), _faults_of(process.pid)
                assert process.stdin is not None
                process.stdin.write("\n")
                process.stdin.flush()
                assert said(process) == "done\n"
                wait_until(lambda: _sleeps(process.pid), "the end of what it reads")
                faults = _faults_of(process.pid) - faults
                after, pages = disk.completed(), _swapped_in() - pages
            process.communicate("\n", timeout=PATIENCE)
        assert process.returncode == 0
    finally:
        subprocess.run(["swapoff", disk.path], check=True)
        if group.is_dir():
            group.rmdir()
        (group.parent / "cgroup.subtree_control").write_text("-memory")
        unmount(group.parent)
    whole(trace)
    found = [one for one in trace.operations if one["op"] == "swapin"]
    read = after["read"] - before["read"]
    # Memory management decides how much comes back, and whether others need some of it.
    assert count(trace.summary, op="read", dev=disk.name) == read > 0
    assert (after["read_sectors"] - before["read_sectors"]) * 512 == pages * PAGE
    # Each request belongs to a swap-in or is shown by itself.
    otherwise = len([one for one in trace.requests if one["op"] == "read"])
    assert sum(one["requests"] for one in found) + otherwise == read
    # For that process the kernel has counted the swap-ins that had to read.
    assert len([one for one in found if one["pid"] == process.pid and one["requests"]]) == faults > 0
    assert {(one["path"], one["offset"], one["length"]) for one in found} == {("", None, PAGE)}


def _sleeps(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("S")


MS = 1_000_000
SLOW_NS = 20 * MS


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Disk, Path]]]:
    """A scsi disk, and a stacked device whose worker makes the requests, each with ext4."""
    top = tmp_path_factory.mktemp("slow")
    with ExitStack() as stack:
        lower = stack.enter_context(null_device("wptest_lower", memory_backed=1))
        # Its clock counts ticks, and the first tick may be almost over.
        delay = stack.enter_context(delayed(lower, SLOW_NS // MS + 4))
        made = {"scsi": stack.enter_context(scsi_device(SLOW_NS)), "delayed": delay}
        yield {kind: (disk, stack.enter_context(mounted(disk, "ext4", top / kind))) for kind, disk in made.items()}


@pytest.fixture(scope="module")
def slow_flow(slow: dict[str, tuple[Disk, Path]]) -> Iterator[Running]:
    with path_of(*(disk for disk, _ in slow.values())) as made:
        yield made


@pytest.mark.icount
@pytest.mark.parametrize("kind", ["scsi", "delayed"])
def test_data_and_journal_on_a_slow_disk(slow: dict[str, tuple[Disk, Path]], slow_flow: Running, kind: str) -> None:
    """Each request takes 20 ms: data need one, made by the task; a commit needs two, one after the other."""
    # If the requests are those of the device below, they take no time, and the time is in `layers`.
    data = {"scsi": "device_ns", "delayed": "layers_ns"}[kind]
    _, folder = slow[kind]
    settle()
    with (folder / "data").open("wb", buffering=0) as file, slow_flow.window() as trace:
        for _ in range(10):
            file.write(b"x" * PAGE)
            os.fsync(file.fileno())
    whole(trace)
    synced = [one for one in trace.operations if one["op"] == "sync"]
    assert len(synced) == 10
    usual = []
    for one in synced:
        waits, journal = one["stages"][data], one["stages"]["journal_ns"]
        assert min(waits, journal) >= SLOW_NS
        # A sync that begins at once and waits for nothing else.
        alone = waits + journal > one["total_ns"] * 0.9 and abs(one["commit"]["ns"] - journal) < 2 * MS
        if alone and waits < 2 * SLOW_NS <= journal:
            usual.append(one)
            if kind == "scsi":
                assert one["commit"]["requests"] >= 2
                # So small a file system has blocks of 1 KiB.
                assert one["commit"]["bytes"] >= 3 * 1024
    # Sometimes the journal is committing by itself when a sync begins.
    assert len(usual) >= 7, synced
    rows = [row for row in trace.summary["rows"] if (row["kind"], row["op"]) == ("operation", "sync")]
    assert {row["count"] for row in rows} == {10}
    (journal,) = [row for row in rows if row["stage"] == "journal"]
    assert journal["sum_ns"] == sum(one["stages"]["journal_ns"] for one in synced)
    assert trace.summary["verdict"]["stage"] == "journal"


_BIG = """
import os, sys
open('/proc/self/comm', 'w').write(sys.argv[2])
file = open(sys.argv[1], 'wb')
for block in range(int(sys.argv[3])):
    file.write(b'z' * 65536)
file.flush()
print('ready', flush=True)
sys.stdin.readline()
"""


@contextmanager
def dirty(path: Path, blocks: int) -> Iterator[int]:
    """A task that has written this many blocks of 64 KiB without a sync."""
    command = [sys.executable, "-c", _BIG, str(path), WRITER, str(blocks)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert said(process) == "ready\n"
    try:
        yield process.pid
    finally:
        process.communicate("\n", timeout=PATIENCE)


@pytest.mark.icount
def test_a_sync_behind_the_commit_of_another(slow: dict[str, tuple[Disk, Path]], slow_flow: Running) -> None:
    """Blocks that are allocated by the write have to be on disk before their transaction commits."""
    disk, folder = slow["scsi"]
    # Newer kernels cannot change it while mounted.
    subprocess.run(["umount", str(folder)], check=True)
    mount(disk, "ext4", folder, "nodelalloc")
    settle()
    with slow_flow.window() as trace, dirty(folder / "big", 64) as pid, (folder / "small").open("wb") as small:
        small.write(b"x")
        small.flush()
        os.fsync(small.fileno())
    whole(trace)
    (one,) = [one for one in trace.operations if one["op"] == "sync" and one["pid"] == os.getpid()]
    commit = one["commit"]
    # Its own data are one request; the other task's data and the journal are at least two in a row.
    assert one["stages"]["journal_ns"] > one["stages"]["device_ns"]
    assert commit["bytes"] >= 64 * 65536
    assert commit["comm"].startswith(f"jbd2/{disk.name}")
    assert (commit["most"]["pid"], commit["most"]["comm"]) == (pid, WRITER)
    # The requests of the commit are shown as well, with their task.
    of_journal = [request for request in trace.requests if request["pid"] == commit["pid"]]
    assert sum(request["bytes"] for request in of_journal) >= commit["bytes"]
    assert WRITER in trace.summary["verdict"]["text"]


# --- File systems, with the trace of all modules ----------------------------------------------------------------------


def test_a_write_that_has_to_read_first(disks: dict[str, Disk], folders: dict[str, Path], flow: Running) -> None:
    """The rest of the page is not in memory, so the only request of the write is a read, and counts as such."""
    disk, path = disks["ext4"], folders["ext4"] / "data"
    path.write_bytes(bytes(64 * PAGE))
    settle()
    fd = os.open(path, os.O_WRONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    before = disk.completed()
    with flow.window() as trace:
        opened = disk.completed()
        for page in range(0, 64, 4):
            os.pwrite(fd, b"x", page * PAGE + 17)
        closing = disk.completed()
    after = disk.completed()
    os.close(fd)
    whole(trace)
    mine = [one for one in trace.operations if one["pid"] == os.getpid() and one["kind"] == "operation"]
    assert [(one["op"], one["requests"], one["rwbs"][0]) for one in mine] == [("write", 1, "R")] * 16
    assert count(trace.summary, op="write", dev=disk.name, kind="operation") == 16
    for op in ("read", "write"):
        # The file system may read and write by itself while a window opens or closes.
        assert closing[op] - opened[op] <= count(trace.summary, op=op, dev=disk.name) <= after[op] - before[op]


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize("call", ["fsync", "fdatasync"])
def test_each_sync_is_an_operation(folders: dict[str, Path], flow: Running, kind: str, call: str) -> None:
    """fio makes as many. They wait for data, for the journal, or for both."""
    folder = folders[kind]
    settle()
    with flow.window() as trace:
        job = fio(str(folder / call), rw="write", direct=0, number_ios=60, size="4M", ioengine="sync", **{call: 4})
    whole(trace)
    synced = [one for one in trace.operations if one["op"] == "sync" and one["comm"] == "fio"]
    # fio only counts fsync; fdatasync is made after every fourth write but the last.
    made = job["sync"]["total_ios"] if call == "fsync" else (job["write"]["total_ios"] - 1) // 4
    seen = Counter((one["op"], one["kind"], one["comm"], one["path"]) for one in trace.operations)
    assert {one["path"] for one in synced} == {str(folder / call)}, seen
    # fio lays out the file before it starts, and may sync it once.
    assert 0 <= len(synced) - made <= 1
    assert made >= 14
    assert len([one for one in synced if one["kind"] == "operation"]) >= made // 2
    writes = [one for one in trace.operations if one["op"] == "write" and one["comm"] == "fio"]
    assert len(writes) == job["write"]["total_ios"] == 60
    assert sum(one["stages"]["device_ns"] for one in synced) > 0
    # The wait is part of `fs` where functions cannot be observed.
    if GUEST and kind != "btrfs":
        assert sum(one["stages"].get("journal_ns", 0) for one in synced) > 0
    assert all((one["offset"], one["length"]) == (None, 0) for one in synced)


@pytest.mark.guest
def test_a_write_with_o_sync_stays_one_operation(folders: dict[str, Path], flow: Running) -> None:
    """Its sync is part of the write, and so is the wait for the journal."""
    settle()
    with flow.window() as trace:
        job = fio(str(folders["ext4"] / "synced"), rw="write", direct=0, sync=1, number_ios=40, size="4M")
    whole(trace)
    writes = [one for one in trace.operations if one["op"] == "write" and one["comm"] == "fio"]
    assert len(writes) == job["write"]["total_ios"] == 40
    assert all(one["kind"] == "operation" for one in writes)
    assert sum(one["stages"].get("journal_ns", 0) for one in writes) > 0
    # fio itself only syncs the file that it has laid out.
    assert len([one for one in trace.operations if one["op"] == "sync" and one["comm"] == "fio"]) <= 1


def test_msync_and_sync_file_range(folders: dict[str, Path], flow: Running) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    path = folders["ext4"] / "mapped"
    path.write_bytes(bytes(32 * PAGE))
    settle()
    with flow.window(Filter(pid=os.getpid())) as trace, path.open("r+b") as file:
        with mmap.mmap(file.fileno(), 32 * PAGE) as memory:
            for page in range(10):
                memory[page * PAGE] = 1
                memory.flush(page * PAGE, PAGE)
        for page in range(16, 22):
            os.pwrite(file.fileno(), b"x" * PAGE, page * PAGE)
            # Wait before, write, wait after.
            done = libc.sync_file_range(
                file.fileno(), ctypes.c_int64(page * PAGE), ctypes.c_int64(PAGE), ctypes.c_uint(7)
            )
            assert done == 0
    whole(trace)
    synced = [one for one in trace.operations if one["op"] == "sync"]
    # System calls do not show which file is mapped.
    mapped = {(str(path), page * PAGE, PAGE) for page in range(10)} if GUEST else {("", None, 0)}
    assert {(one["path"], one["offset"], one["length"]) for one in synced[:10]} == mapped
    ranges = [(one["path"], one["offset"], one["length"]) for one in synced[10:]]
    assert ranges == [(str(path), page * PAGE, PAGE) for page in range(16, 22)]
    assert all(one["kind"] == "operation" and one["requests"] >= 1 for one in synced)
    assert {one["rwbs"][0] for one in synced[10:]} == {"W"}


def test_whole_file_systems_are_synced(disks: dict[str, Disk], folders: dict[str, Path], flow: Running) -> None:
    """Each call for one file system or for all of them is counted."""
    libc = ctypes.CDLL(None, use_errno=True)
    path = folders["ext4"] / "whole"
    path.write_bytes(bytes(32 * PAGE))
    settle()
    with flow.window(Filter(pid=os.getpid())) as trace, path.open("r+b") as file:
        for page in range(12):
            os.pwrite(file.fileno(), bytes([page + 1]) * PAGE, page * PAGE)
            os.truncate(path, (33 + page) * PAGE)
            if page < 7:
                assert libc.syncfs(file.fileno()) == 0
            else:
                os.sync()
    whole(trace)
    synced = [one for one in trace.operations if one["op"] == "sync"]
    assert [one["path"] for one in synced] == [str(path)] * 7 + [""] * 5
    assert {one["dev"] for one in synced} == {disks["ext4"].name}
    # They have no file, so a filter for a file leaves them out.
    with flow.window(Filter(file=mounts.file(str(path)))) as trace, path.open("r+b") as file:
        os.pwrite(file.fileno(), b"x" * PAGE, 0)
        assert libc.syncfs(file.fileno()) == 0
        os.pwrite(file.fileno(), b"y" * PAGE, 0)
        os.fsync(file.fileno())
    assert len([one for one in trace.operations if one["op"] == "sync"]) == 1


@pytest.mark.guest
@pytest.mark.parametrize("filtered", [False, True])
def test_a_sync_of_aio_is_of_who_asked_for_it(folders: dict[str, Path], flow: Running, filtered: bool) -> None:
    """A kernel worker makes the sync, which is seen once."""
    path = folders["xfs"] / "queued"
    path.write_bytes(bytes(8 * PAGE))
    settle()
    queue = aio.Aio()
    with flow.window(Filter(pid=os.getpid()) if filtered else None) as trace, path.open("r+b") as file:
        for number in range(8):
            os.pwrite(file.fileno(), bytes([number + 1]) * PAGE, number * PAGE)
            assert not queue.do(aio.FDSYNC if number % 2 else aio.FSYNC, file.fileno())
    whole(trace)
    synced = [one for one in trace.operations if one["op"] == "sync" and one["path"] == str(path)]
    assert len(synced) == 8
    assert {(one["pid"], one["tid"], one["interface"], one["error"]) for one in synced} == {
        (os.getpid(), os.getpid(), "aio", 0)
    }
    assert all(one["kind"] == "operation" and one["requests"] >= 1 for one in synced)


@pytest.mark.guest
@pytest.mark.parametrize("filtered", [False, True])
def test_the_sync_of_an_asynchronous_write_is_part_of_it(
    folders: dict[str, Path], flow: Running, filtered: bool
) -> None:
    """A kernel worker makes it, once the data are written."""
    path = folders["ext4"] / f"late{filtered}"
    with opened(path) as fd:
        os.posix_fallocate(fd, 0, 4 * PAGE)
        os.fsync(fd)
    settle()
    queue = aio.Aio()
    with (
        opened(path, os.O_RDWR | os.O_DIRECT | os.O_SYNC) as fd,
        mmap.mmap(-1, PAGE) as buffer,
        flow.window(Filter(pid=os.getpid()) if filtered else None) as trace,
    ):
        place = ctypes.c_char.from_buffer(buffer)
        for number in range(4):
            assert queue.do(aio.WRITE, fd, ctypes.addressof(place), PAGE, number * PAGE) == PAGE
        del place
    whole(trace)
    made = [one for one in trace.operations if one["path"] == str(path)]
    assert [(one["op"], one["pid"], one["interface"], one["offset"], one["result"]) for one in made] == [
        ("write", os.getpid(), "aio", number * PAGE, PAGE) for number in range(4)
    ]
    for one in made:
        sums_up(one)
        assert one["stages"]["device_ns"] > 0
        assert one["stages"]["journal_ns"] > 0


@pytest.mark.guest
@pytest.mark.parametrize("filtered", [False, True])
def test_a_directory_is_synced(folders: dict[str, Path], flow: Running, filtered: bool) -> None:
    folder = folders["ext4"] / f"synced{filtered}"
    folder.mkdir()
    settle()
    with flow.window(Filter(pid=os.getpid()) if filtered else None) as trace, opened(folder, os.O_RDONLY) as fd:
        for name in range(5):
            (folder / str(name)).touch()
            os.fsync(fd)
    whole(trace)
    synced = [one for one in trace.operations if one["op"] == "sync" and one["pid"] == os.getpid()]
    assert [one["path"] for one in synced] == [str(folder)] * 5
    for one in synced:
        assert one["stages"]["journal_ns"] > 0
        commit = one["commit"]
        assert commit["comm"].startswith("jbd2/vda")
        assert commit["most"]["pid"] == os.getpid()
        # With a filter, the owners of other requests are unknown.
        assert ("requests" in commit) is not filtered
        if not filtered:
            assert commit["requests"] > 0
            # The disk has a cache, so a flush precedes the last block.
            assert 0 < commit["flush_ns"] < commit["ns"]


@pytest.mark.guest
def test_major_faults_are_operations(folders: dict[str, Path], flow: Running) -> None:
    """The kernel counts as many for this process."""
    path = folders["ext4"] / "faults"
    path.write_bytes(os.urandom(512 * PAGE))
    settle()
    with path.open("rb") as file, flow.window(Filter(file=mounts.file(str(path)))) as trace:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with mmap.mmap(file.fileno(), 512 * PAGE, prot=mmap.PROT_READ) as memory:
            memory.madvise(mmap.MADV_RANDOM)
            before = _faults()
            for page in range(0, 512, 8):
                memory[page * PAGE]
            made = _faults() - before
    whole(trace)
    faults = [one for one in trace.operations if one["op"] == "pagefault"]
    waited = [one for one in faults if one["kind"] == "operation"]
    assert len(waited) == made == 64
    assert [one["offset"] for one in waited] == [page * PAGE for page in range(0, 512, 8)]
    assert {(one["path"], one["requests"], one["length"], one["result"]) for one in waited} == {
        (str(path), 1, PAGE, PAGE)
    }
    assert all(one["rwbs"].startswith("R") and one["stages"]["device_ns"] > 0 for one in waited)


@pytest.mark.guest
def test_fio_reads_what_is_mapped(folders: dict[str, Path], flow: Running) -> None:
    path = folders["ext4"] / "read"
    path.write_bytes(os.urandom(4 << 20))
    settle()
    with flow.window(Filter(comm="fio")) as trace:
        job = fio(str(path), ioengine="mmap", rw="randread", direct=0, number_ios=200, size="4M", invalidate=1)
    whole(trace)
    faults = [one for one in trace.operations if one["op"] == "pagefault" and one["path"] == str(path)]
    waited = [one for one in faults if one["kind"] == "operation"]
    assert 0 < len(waited) <= job["read"]["total_ios"]
    assert len(waited) <= job["majf"]
    assert not [one for one in trace.operations if one["op"] == "read" and one["path"] == str(path)]
