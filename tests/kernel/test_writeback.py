# SPDX-License-Identifier: Apache-2.0
"""`wptrace io --writeback`: what is written back belongs to who dirtied it, by what writers and the kernel count."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.kernel.conftest import GUEST
from tests.kernel.disks import Disk, loop_device
from tests.kernel.test_io_path import mounted, settle
from tests.kernel.trace import ROOT, Line, Trace, count, lossless
from wptrace.bpf.ring import Reader
from wptrace.flows import io_writeback
from wptrace.flows.io_path import Options, PathFlow

PAGE = os.sysconf("SC_PAGE_SIZE")
FILE_SYSTEMS = ("ext4", "xfs", "btrfs") if GUEST else ("ext4",)
# Each page of a range twice, by whom the line on standard input lets go.
WRITER = """
import mmap, os, sys
path, how, first, pages, page, name = sys.argv[1:]
first, pages, page = int(first), int(pages), int(page)
open("/proc/self/comm", "w").write(name)
sys.stdin.readline()
fd = os.open(path, os.O_RDWR)
if how == "mmap":
    memory = mmap.mmap(fd, (first + pages) * page)
    memory.madvise(mmap.MADV_RANDOM)
for turn in b"ab":
    for number in range(first, first + pages):
        if how == "mmap":
            memory[number * page] = turn
        else:
            os.pwrite(fd, bytes([turn]) * page, number * page)
"""


class Writer:
    def __init__(
        self, path: Path | str, first: int, pages: int, how: str = "write", name: str = "wptest_writer"
    ) -> None:
        self.bytes = pages * PAGE
        words = [sys.executable, "-c", WRITER, str(path), how, str(first), str(pages), str(PAGE), name]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, cwd=ROOT)
        self.pid = self._process.pid

    def write(self) -> None:
        self._process.communicate(b"\n", timeout=120)
        assert self._process.returncode == 0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if GUEST:
        yield Disk("nvme0n1")
    else:
        with loop_device(tmp_path / "disk.img", "256M") as made:
            yield made


@contextmanager
def files(disk: Disk, kind: str, folder: Path, *names: str) -> Iterator[list[Path]]:
    """Files of 2 MiB with blocks of their own, nothing of which is dirty; no two lie beside each other on the disk."""
    with mounted(disk, kind, folder) as top:
        found = [top / name for name in names]
        for number, path in enumerate(found):
            path.parent.mkdir(exist_ok=True)
            for one in (path, top / f"between{number}"):
                one.write_bytes(os.urandom(2 << 20))
                settle()
        for path in found:
            # What is in the page cache now may be large folios, which become dirty as a whole.
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        yield found


def told(trace: Trace, pid: int) -> list[Line]:
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


def test_a_device_that_is_written_like_a_file(disk: Disk) -> None:
    """No file system in the way: each byte belongs to one of two writers, and the kernel counts what they wrote."""
    settle()
    with open(disk.path, "rb"), Trace("--each", "--writeback", "--dev", disk.name) as trace:  # noqa: PTH123
        writers = [Writer(disk.path, 0, 256), Writer(disk.path, 1024, 128)]
        before = disk.completed()
        for writer in writers:
            writer.write()
        settle()
        made = written_since(disk, before)
        trace.stop()
    assert lossless(trace.summary), trace.summary["loss"]
    assert made == trace.summary["bytes"] == sum(writer.bytes for writer in writers)
    for writer in writers:
        mine = told(trace, writer.pid)
        assert sum(line["bytes"] for line in mine) == writer.bytes
        assert {line["comm"] for line in mine} == {"wptest_writer"}
        assert all(line["offset"] == line["sector"] * 512 for line in mine)
    assert len(trace.requests) == sum(len(told(trace, writer.pid)) for writer in writers) == count(trace.summary)
    adds_up(trace.summary, disk)
    # A page that was dirty when it was written again counts once.
    assert count(trace.summary, kind="writeback") * PAGE <= made


@pytest.mark.parametrize("kind", FILE_SYSTEMS)
def test_two_writers_of_a_file_system(disk: Disk, tmp_path: Path, kind: str) -> None:
    """Two files, and two ranges of a third one, are told apart, though one worker of the kernel sends all of it."""
    with files(disk, kind, tmp_path / "fs", "one", "two", "shared") as (one, two, shared), ExitStack() as stack:
        writers = [Writer(one, 0, 300), Writer(two, 7, 200), Writer(shared, 0, 100), Writer(shared, 300, 150)]
        trace = stack.enter_context(Trace("--each", "--writeback", "--ring-size=16M", "--dev", disk.name))
        # Of one of them alone, by another tracer.
        alone = stack.enter_context(Trace("--writeback", "--dev", disk.name, "--pid", str(writers[1].pid)))
        before = disk.completed()
        for writer in writers:
            writer.write()
        settle()
        made = written_since(disk, before)
        inodes = {path: path.stat().st_ino for path in (one, two, shared)}
        alone.stop()
        trace.stop()
    assert lossless(trace.summary), trace.summary["loss"]
    assert lossless(alone.summary), alone.summary["loss"]
    assert sum(line["bytes"] for line in trace.requests if line["op"] == "write") == made
    for writer, path in zip(writers, (one, two, shared, shared)):
        # Trees of btrfs lie in the page cache as well, and have no name.
        mine = [line for line in told(trace, writer.pid) if line["path"] or kind != "btrfs"]
        assert sum(line["bytes"] for line in mine) == writer.bytes, (writer.pid, mine)
        assert {(line["path"], line["comm"], line["deleted"]) for line in mine} == {(str(path), "wptest_writer", False)}
        assert {line["inode"] for line in mine} == {inodes[path]}
    first, second = ({line["offset"] for line in told(trace, one.pid) if line["path"]} for one in writers[2:])
    assert min(first) == 0
    assert max(first) < 100 * PAGE
    assert min(second) == 300 * PAGE
    assert alone.summary["bytes"] == sum(line["bytes"] for line in told(trace, writers[1].pid))
    assert count(alone.summary, kind="writeback") >= count(alone.summary, op="write") > 0
    for summary in (trace.summary, alone.summary):
        adds_up(summary, disk)


def test_who_writes_to_memory(disk: Disk, tmp_path: Path) -> None:
    """A mapped file: there is no system call, and the pages still have an owner."""
    with files(disk, "ext4", tmp_path / "fs", "one") as (one,):
        writer = Writer(one, 0, 64, "mmap")
        with Trace("--each", "--writeback", "--dev", disk.name) as trace:
            writer.write()
            settle()
            trace.stop()
    assert lossless(trace.summary), trace.summary["loss"]
    mine = told(trace, writer.pid)
    assert sum(line["bytes"] for line in mine) == writer.bytes
    assert {line["path"] for line in mine} == {str(one)}


def test_how_long_it_was_dirty(disk: Disk, tmp_path: Path) -> None:
    """Between the clock's readings before and after the write, and before and after somebody had all written back."""
    with files(disk, "ext4", tmp_path / "fs", "one") as (one,):
        writer = Writer(one, 0, 1)
        with Trace("--each", "--writeback", "--dev", disk.name) as trace:
            begin = time.monotonic_ns()
            writer.write()
            dirtied = time.monotonic_ns()
            time.sleep(0.3)
            asked = time.monotonic_ns()
            settle()
            end = time.monotonic_ns()
            trace.stop()
    (line,) = told(trace, writer.pid)
    assert asked - dirtied <= line["dirty_ns"] <= end - begin
    assert line["total_ns"] <= end - asked


def test_filters_ask_who_wrote(disk: Disk, tmp_path: Path) -> None:
    """Of four writers of files each filter leaves one or some; what the kernel's worker is called does not matter."""
    with (
        files(disk, "ext4", tmp_path / "fs", "deep/one", "deep/two", "three") as (one, two, three),
        ExitStack() as stack,
    ):
        writers = [Writer(one, 0, 40, name="wptest_one"), Writer(two, 0, 50), Writer(three, 0, 60)]
        wanted = {
            ("--file", str(two)): {1},
            ("--dir", str(one.parent)): {0, 1},
            ("--comm", "wptest_one"): {0},
            ("--op", "read"): set(),
        }
        traces = {
            words: stack.enter_context(Trace("--each", "--writeback", "--dev", disk.name, *words)) for words in wanted
        }
        for writer in writers:
            writer.write()
        settle()
        for words, trace in traces.items():
            trace.stop()
            assert lossless(trace.summary), (words, trace.summary["loss"])
            found = {place for place, writer in enumerate(writers) if told(trace, writer.pid)}
            assert found == wanted[words], words
            assert sum(line["bytes"] for line in trace.requests) == sum(writers[place].bytes for place in found), words


def test_what_is_synchronous_has_both(disk: Disk, tmp_path: Path) -> None:
    """A write with O_SYNC is an operation with a request, and what it wrote was dirty for a moment."""
    with files(disk, "ext4", tmp_path / "fs", "one") as (one,), Trace("--writeback", "--dev", disk.name) as trace:
        fd = os.open(one, os.O_WRONLY | os.O_DSYNC)
        for number in range(10):
            os.pwrite(fd, b"x" * PAGE, number * PAGE)
        os.close(fd)
        trace.stop()
    assert lossless(trace.summary), trace.summary["loss"]
    assert count(trace.summary, op="write", kind="operation") == 10
    assert count(trace.summary, kind="writeback") >= 10


def test_without_the_option_nothing_is_followed(disk: Disk, tmp_path: Path) -> None:
    with files(disk, "ext4", tmp_path / "fs", "one") as (one,):
        writer = Writer(one, 0, 64)
        with Trace("--each", "--dev", disk.name) as trace:
            writer.write()
            settle()
            trace.stop()
    assert count(trace.summary, kind="writeback") == 0
    assert told(trace, writer.pid) == []
    assert count(trace.summary, op="write") > 0


def test_a_full_table_of_dirty_pages(disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has no room has no owner, is counted, and is written all the same."""
    monkeypatch.setattr(io_writeback, "MOST_FRAMES", 16)
    with files(disk, "ext4", tmp_path / "fs", "one") as (one,):
        writer = Writer(one, 0, 400)
        flow = PathFlow(Options(devices=(disk.name,), writeback=True))
        try:
            flow.start(Reader())
            before = disk.completed()
            writer.write()
            settle()
            made = written_since(disk, before)
            flow.stop()
            found = flow.snapshot()
        finally:
            flow.close()
    causes = {cause.name: number for cause, number in found.accounting.noted.items()}
    assert causes["dirty_full"] >= 400 - 16
    assert sum(size for group, size in found.bytes.items() if (group.kind, group.op) == ("request", "write")) == made
    assert 0 < sum(size for group, size in found.bytes.items() if group.kind == "writeback") < made
    assert found.accounting.lost_total == 0
