# SPDX-License-Identifier: Apache-2.0
"""`wptrace io --writeback`: written-back data belong to the task that dirtied them, by its counts and the kernel's."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from tests.kernel.conftest import GUEST
from tests.kernel.disks import Disk, frozen, opened, setting, wake_flushers, written_when_asked
from tests.kernel.loads import mounted
from tests.kernel.patience import reaped
from tests.kernel.test_io_path import settle
from tests.kernel.trace import KernelSkippedError, Line, Lines, Trace, count, lossless, wait_until
from tests.kernel.window import Running
from wptrace.bpf.ring import Reader
from wptrace.engine.filters import Filter
from wptrace.flows.io.kinds import REQUEST, WRITEBACK
from wptrace.flows.io.options import Options
from wptrace.flows.io.parts import writeback as io_writeback
from wptrace.flows.io.path import PathFlow
from wptrace.kernel import mounts
from wptrace.model.book import RECURSION
from wptrace.model.kind import REQUESTS
from wptrace.model.report import BYTES

PAGE = os.sysconf("SC_PAGE_SIZE")
FILE_SYSTEMS = ("ext4", "xfs", "btrfs") if GUEST else ("ext4",)
# The size of each file, of which the tests write less.
SIZE = 1 << 20


class Writer:
    """A process that writes each page of a range twice. It exists, and has its name, before it begins."""

    def __init__(
        self,
        path: Path | str,
        first: int,
        pages: int,
        how: str = "write",
        name: str = "wptest_writer",
        step: int = 1,
    ) -> None:
        self.bytes = pages * PAGE
        wait, self._go = os.pipe()
        self.pid = os.fork()  # starting Python would take a guest longer than the test
        if self.pid:
            os.close(wait)
            return
        try:
            Path("/proc/self/comm").write_text(name)
            if os.read(wait, 1):
                _write(path, range(first, first + pages * step, step), how)
                os._exit(0)
        finally:
            os._exit(1)

    def write(self) -> None:
        os.write(self._go, b"x")
        os.close(self._go)
        assert reaped(self.pid) == 0


def _write(path: Path | str, pages: range, how: str) -> None:
    fd = os.open(path, os.O_RDWR)
    memory = mmap.mmap(fd, pages.stop * PAGE) if how == "mmap" else None
    if memory:
        memory.madvise(mmap.MADV_RANDOM)
    for turn in b"ab":
        for number in pages:
            if memory:
                memory[number * PAGE] = turn
            else:
                os.pwrite(fd, bytes([turn]) * PAGE, number * PAGE)


@pytest.fixture(autouse=True)
def _the_kernel_writes_when_it_is_asked() -> Iterator[None]:
    """Let nothing else write: a page that is written back between its two writes becomes dirty twice."""
    with written_when_asked():
        yield


@contextmanager
def files(disk: Disk, kind: str, folder: Path, *names: str) -> Iterator[list[Path]]:
    """Files with blocks of their own and without dirty pages; no two are adjacent on the disk."""
    with mounted(disk, kind, folder) as top:
        found = [top / name for name in names]
        for number, path in enumerate(found):
            path.parent.mkdir(exist_ok=True)
            for one in (path, top / f"between{number}"):
                with one.open("wb") as file:
                    if kind == "btrfs" and one.name == "shared":
                        # Keep its ranges apart on disk: 5.10 sends adjacent ones as one bio.
                        subprocess.run(["chattr", "+C", str(one)], check=True)
                    file.write(os.urandom(SIZE))
                    file.flush()
                    os.fsync(file.fileno())
        settle()
        for path in found:
            # Drop the page cache: it may have large folios, which become dirty as a whole.
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        yield found


def written_back(path: Path) -> None:
    """Write a whole file system back, by its flusher alone (see `flushed`)."""
    with path.open("rb") as file:
        assert ctypes.CDLL(None, use_errno=True).syncfs(file.fileno()) == 0, os.strerror(ctypes.get_errno())


def flushed(disk: Disk, before: dict[str, int], size: int) -> None:
    """Write back what was written to the device, by its flusher alone or by this task without an operation.

    `sync` has records for what it sends itself. If one of two senders is preempted in a program, 7.0 and newer skip the
    program of the other. Settings of the running kernel are left alone.
    """
    if GUEST:
        wake_flushers()
    else:
        with opened(disk.path, os.O_RDONLY) as fd:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    wait_until(lambda: written_since(disk, before) >= size, "the flusher")
    settle()


def reported(trace: Lines, pid: int) -> list[Line]:
    return [line for line in trace.requests if line["pid"] == pid and "dirty_ns" in line]


def adds_up(summary: Line, disk: Disk) -> None:
    found = {
        row["stage"]: row
        for row in summary["rows"]
        if (row["kind"], row["dev"], row["op"]) == ("writeback", disk.name, "write")
    }
    assert set(found) == {"dirty", "writeback", "total"}
    assert len({row["count"] for row in found.values()}) == 1
    assert found["dirty"]["sum_ns"] + found["writeback"]["sum_ns"] == found["total"]["sum_ns"]


def written_since(disk: Disk, before: dict[str, int]) -> int:
    return (disk.completed()["write_sectors"] - before["write_sectors"]) * 512


def test_a_device_that_is_written_like_a_file(writeback_flow: Running, disk: Disk) -> None:
    """No file system is involved: each byte belongs to one of two writers, and the kernel counts as many."""
    settle()
    with open(disk.path, "rb"), writeback_flow.aim(disk).window() as trace:  # noqa: PTH123
        writers = [Writer(disk.path, 0, 100), Writer(disk.path, 1024, 50)]
        before = disk.completed()
        for writer in writers:
            writer.write()
        flushed(disk, before, sum(writer.bytes for writer in writers))
        made = written_since(disk, before)
    assert lossless(trace.summary), trace.summary["loss"]
    assert made == trace.summary["bytes"] == sum(writer.bytes for writer in writers)
    for writer in writers:
        mine = reported(trace, writer.pid)
        assert sum(line["bytes"] for line in mine) == writer.bytes
        assert {line["comm"] for line in mine} == {"wptest_writer"}
        assert all(line["offset"] == line["sector"] * 512 for line in mine)
    assert len(trace.requests) == sum(len(reported(trace, writer.pid)) for writer in writers) == count(trace.summary)
    adds_up(trace.summary, disk)
    # A page that is written again while dirty counts once.
    assert count(trace.summary, kind="writeback") * PAGE <= made


@pytest.mark.parametrize("kind", FILE_SYSTEMS)
def test_two_writers_of_a_file_system(writeback_flow: Running, disk: Disk, tmp_path: Path, kind: str) -> None:
    """Two files, and two ranges of a third, have separate owners, although one kernel worker sends everything."""
    top = tmp_path / "fs"
    with (
        # btrfs writes to new blocks, and may put two files next to each other.
        setting(disk.queue / "nomerges", "2"),
        files(disk, kind, top, "one", "two", "shared") as (one, two, shared),
    ):
        writers = [Writer(one, 0, 100), Writer(two, 7, 70), Writer(shared, 0, 40), Writer(shared, 120, 60)]
        with ExitStack() as stack:
            with frozen(top):
                trace = stack.enter_context(writeback_flow.aim(disk).window())
                before = disk.completed()
            for writer in writers:
                writer.write()
            inodes = {path: path.stat().st_ino for path in (one, two, shared)}
            with frozen(top):
                made = written_since(disk, before)
                stack.close()
    assert lossless(trace.summary), trace.summary["loss"]
    assert sum(line["bytes"] for line in trace.requests if line["op"] == "write") == made
    for writer, path in zip(writers, (one, two, shared, shared)):
        # Trees of btrfs are in the page cache as well, and have no name.
        mine = [line for line in reported(trace, writer.pid) if line["path"] or kind != "btrfs"]
        assert sum(line["bytes"] for line in mine) == writer.bytes, (writer.pid, mine)
        assert {(line["path"], line["comm"], line["deleted"]) for line in mine} == {(str(path), "wptest_writer", False)}
        assert {line["inode"] for line in mine} == {inodes[path]}
    first, second = ({line["offset"] for line in reported(trace, one.pid) if line["path"]} for one in writers[2:])
    assert min(first) == 0
    assert max(first) < 40 * PAGE
    assert min(second) == 120 * PAGE
    adds_up(trace.summary, disk)


def test_who_writes_to_memory(writeback_flow: Running, disk: Disk, tmp_path: Path) -> None:
    """There is no system call for a mapped file, and its pages still have an owner."""
    with files(disk, "ext4", tmp_path / "fs", "one") as (one,):
        writer = Writer(one, 0, 64, "mmap")
        with writeback_flow.aim(disk).window() as trace:
            writer.write()
            written_back(one)
    assert lossless(trace.summary), trace.summary["loss"]
    mine = reported(trace, writer.pid)
    assert sum(line["bytes"] for line in mine) == writer.bytes
    assert {line["path"] for line in mine} == {str(one)}


def test_how_long_it_was_dirty(writeback_flow: Running, disk: Disk, tmp_path: Path) -> None:
    """The time is between readings of the clock around the write and around the writeback."""
    with files(disk, "ext4", tmp_path / "fs", "one") as (one,):
        # Something else may have written the page back earlier.
        for _ in range(20):
            writer = Writer(one, 0, 1)
            before = disk.completed()
            with writeback_flow.aim(disk).window() as trace:
                begin = time.monotonic_ns()
                writer.write()
                dirtied = time.monotonic_ns()
                time.sleep(0.3)
                early = written_since(disk, before) > 0
                asked = time.monotonic_ns()
                written_back(one)
                end = time.monotonic_ns()
            if not early:
                break
    (line,) = reported(trace, writer.pid)
    assert asked - dirtied <= line["dirty_ns"] <= end - begin
    assert line["total_ns"] <= end - asked


def test_filters_ask_who_wrote(writeback_flow: Running, disk: Disk, tmp_path: Path) -> None:
    """Each filter selects some of three writers; the name of the kernel worker does not matter."""
    pages = (40, 50, 70)  # each sum of some of them is different
    with files(disk, "ext4", tmp_path / "fs", "deep/one", "deep/two", "three") as paths:
        one, two, _ = paths
        flow = writeback_flow.aim(disk).flow
        assert isinstance(flow, PathFlow)
        lost, skipped = _missing(flow)
        try:
            for of, wanted in (
                ("pid", {1}),
                ("comm", {0}),
                ("file", {1}),
                ("directory", {0, 1}),
                ("both", {1}),
                ("read", set()),
                ("small", {0}),
            ):
                names = ("wptest_one", "wptest_other", "wptest_other")
                writers = [Writer(path, 0, number, name=name) for path, number, name in zip(paths, pages, names)]
                flow.retarget(
                    {
                        "pid": Filter(pid=writers[1].pid),
                        "comm": Filter(comm="wptest_one"),
                        "file": Filter(file=mounts.file(str(two))),
                        "directory": Filter(dir=mounts.directory(str(one.parent))),
                        "both": Filter(dir=mounts.directory(str(one.parent)), comm="wptest_other"),
                        "read": Filter(op="read"),
                        "small": Filter(dir=mounts.directory(str(one.parent)), size=(None, 40 * PAGE)),
                    }[of]
                )
                before = _bytes(flow)
                for writer in writers:
                    writer.write()
                written_back(one)
                found = {kind: number - before[kind] for kind, number in _bytes(flow).items()}
                if (more := _missing(flow)[1] - skipped) > 0:
                    raise KernelSkippedError(f"the kernel skipped {more} runs of programs")
                written = sum(writers[place].bytes for place in wanted)
                assert found == {"request": written, "writeback": written}, of
            assert _missing(flow)[0] == lost
        finally:
            flow.retarget(Filter())


def _missing(flow: PathFlow) -> tuple[int, int]:
    """Return lost requests, and runs that the kernel skipped."""
    book = flow.snapshot().books[REQUESTS]
    return book.lost_total, book.noted.get(RECURSION, 0)


def _bytes(flow: PathFlow) -> dict[str, int]:
    found = {"request": 0, "writeback": 0}
    for group, counts in flow.snapshot().counters.items():
        if group.kind.name in found:
            found[group.kind.name] += counts.get(BYTES, 0)
    return found


def test_what_is_synchronous_has_both(disk: Disk, tmp_path: Path) -> None:
    """An O_DSYNC write is an operation with a request, and its data were dirty for a moment."""
    with files(disk, "ext4", tmp_path / "fs", "one") as (one,), Trace("--writeback", "--dev", disk.name) as trace:
        with opened(one, os.O_WRONLY | os.O_DSYNC) as fd:
            for number in range(10):
                os.pwrite(fd, b"x" * PAGE, number * PAGE)
        trace.stop(signal.SIGTERM)
    assert lossless(trace.summary), trace.summary["loss"]
    assert count(trace.summary, op="write", kind="operation") == 10
    assert count(trace.summary, kind="writeback") >= 10


@pytest.mark.one_kernel
def test_without_the_option_nothing_is_followed(disk: Disk, tmp_path: Path) -> None:
    with files(disk, "ext4", tmp_path / "fs", "one") as (one,):
        writer = Writer(one, 0, 64)
        with Trace("--each", "--dev", disk.name) as trace:
            writer.write()
            settle()
    assert count(trace.summary, kind="writeback") == 0
    assert reported(trace, writer.pid) == []
    assert count(trace.summary, op="write") > 0


# The table holds all dirty pages of the kernel; outside guests, those of other processes fill it.
@pytest.mark.guest
@pytest.mark.one_kernel
def test_a_full_table_of_dirty_pages(disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page without a place has no owner and is counted; it is written all the same."""
    monkeypatch.setattr(io_writeback, "MOST_FRAMES", 64)
    top = tmp_path / "fs"
    with files(disk, "ext4", top, "one") as (one,):
        # The pages are not adjacent, so each has a bio of its own.
        writer = Writer(one, 0, 128, step=2)
        with closing(PathFlow(Options(devices=(disk.name,), writeback=True))) as flow:
            with frozen(top):
                flow.start(Reader())
                flow.begin()
                before = disk.completed()
            writer.write()
            with frozen(top):
                made = written_since(disk, before)
                flow.stop()
            found = flow.snapshot()
    causes = {cause.name: number for cause, number in found.books[REQUESTS].noted.items()}
    assert causes["dirty_full"] >= 128 - 64
    sizes = {group: counts.get(BYTES, 0) for group, counts in found.counters.items()}
    assert sum(size for group, size in sizes.items() if group.kind is REQUEST and group.label("op") == "write") == made
    assert 0 < sum(size for group, size in sizes.items() if group.kind is WRITEBACK) < made
    assert found.books[REQUESTS].lost_total == 0
