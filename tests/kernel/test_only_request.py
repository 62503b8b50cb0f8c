# SPDX-License-Identifier: Apache-2.0
"""The only request of an operation, which is accounted together with it: each counts once."""

from __future__ import annotations

import ctypes
import mmap
import os
import select
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel import nbd
from tests.kernel.disks import Disk, opened
from tests.kernel.patience import joined, reaped
from tests.kernel.trace import Line, count, lossless, wait_until
from tests.kernel.window import Running, running
from wptrace.engine.filters import Filter
from wptrace.flows.io.options import Options
from wptrace.flows.io.path import PathFlow
from wptrace.model.kind import OPERATIONS, REQUESTS

BLOCK = 4096
_LIBC = ctypes.CDLL(None, use_errno=True)
_BEGIN_WRITING = 2


Served = tuple[subprocess.Popen[bytes], int]


@pytest.fixture
def served(path_flow: Running, tmp_path: Path) -> Iterator[Served]:
    """The server of the traced disk, and the disk without readahead."""
    with nbd.server(tmp_path) as server, nbd.connected(tmp_path) as disk, opened(disk.path, os.O_RDWR) as fd:
        path_flow.aim(disk)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        yield server, fd


def counted(summary: Line, op: str, operations: int, requests: int) -> None:
    assert lossless(summary), summary["loss"]
    assert count(summary, op=op, kind="operation") + count(summary, op=op, kind="hit") == operations
    assert count(summary, op=op) == requests


def all_of_it(summary: Line) -> None:
    for book in (summary["operations"], summary["requests"]):
        assert (book["started"] - book["finished"], book["in_flight"], book["lost"]) == (0, 0, 0), summary


def test_another_request_comes_when_the_first_is_done(disk: Disk, path_flow: Running) -> None:
    """O_DSYNC writes flush after the write, so the operation does not end with its only request."""
    writes = 20
    assert Path("/sys/block", disk.name, "queue/write_cache").read_text() == "write back\n"
    with opened(disk.path, os.O_RDWR | os.O_DIRECT | os.O_DSYNC) as fd:
        before = disk.completed()
        with path_flow.aim(disk).window(Filter(pid=os.getpid())) as trace, mmap.mmap(-1, BLOCK) as buffer:
            for number in range(writes):
                assert os.pwritev(fd, [buffer], BLOCK * number) == BLOCK
        after = disk.completed()
    counted(trace.summary, "write", writes, writes)
    assert trace.summary["bytes"] == writes * BLOCK == 512 * (after["write_sectors"] - before["write_sectors"])
    all_of_it(trace.summary)


@pytest.mark.guest
def test_what_ends_before_its_request(path_flow: Running, served: Served) -> None:
    """The operation starts writeback without a wait; its task goes on before that request ends."""
    server, fd = served
    with path_flow.window(Filter(pid=os.getpid())) as trace:
        # Only now, because a window that finds something in flight restarts the flow.
        flow = path_flow.flow
        assert isinstance(flow, PathFlow)
        with nbd.stopped(server):
            os.pwrite(fd, b"x" * BLOCK, 0)
            assert _LIBC.sync_file_range(fd, *map(ctypes.c_long, (0, BLOCK)), _BEGIN_WRITING) == 0
            before = in_flight(flow)
            # A new filter does not apply to operations in flight.
            flow.retarget(Filter(op="read"))
            for _ in range(10):
                os.pread(fd, BLOCK, 0)
            still = in_flight(flow)
        # This read makes a request as well, and the earlier one ends while this waits.
        os.pread(fd, BLOCK, BLOCK * 1024)
    assert (before, still) == ((0, 1), (0, 1))
    counted(trace.summary, "write", 1, 1)
    counted(trace.summary, "read", 11, 1)
    assert trace.summary["operations"]["finished"] == 13
    all_of_it(trace.summary)


@pytest.mark.guest
def test_who_is_killed_before_its_request(path_flow: Running, served: Served) -> None:
    server, fd = served
    with path_flow.window() as trace:
        flow = path_flow.flow
        assert isinstance(flow, PathFlow)
        with nbd.stopped(server):
            pid = os.fork()
            if not pid:
                os.pread(fd, BLOCK, 0)
                os._exit(0)
            kill_under_way(pid, flow)
            left = in_flight(flow)
        wait_until(lambda: in_flight(flow) == (0, 0), "the request")
    assert left == (0, 1)
    counted(trace.summary, "read", 1, 1)
    assert (trace.summary["operations"]["failed"], trace.summary["requests"]["failed"]) == (1, 0)
    all_of_it(trace.summary)


def kill_under_way(pid: int, flow: PathFlow) -> None:
    """Kill the child once its read is seen. It never is if the kernel skips a program."""
    child = os.pidfd_open(pid)
    try:
        wait_until(lambda: in_flight(flow) == (1, 1) or bool(select.select([child], [], [], 0)[0]), "the read")
        signal.pidfd_send_signal(child, signal.SIGKILL)
    finally:
        os.close(child)
    assert os.waitstatus_to_exitcode(reaped(pid)) == -signal.SIGKILL


def test_one_that_came_too_late_is_counted_by_the_next_operation(disk: Disk, path_flow: Running) -> None:
    """The table is prepared as if a request ended on one CPU while its operation ended on another."""
    obj = path_flow.aim(disk).flow._obj
    ops, bios = obj.view("ops"), obj.view("bios")
    op, bio = obj.struct("op_state"), obj.struct("bio_state")
    (only,) = (member.offset for member in op.places if member.name == "only")
    with (
        opened(disk.path, os.O_RDONLY | os.O_DIRECT) as fd,
        mmap.mmap(-1, BLOCK) as buffer,
        path_flow.window(Filter(pid=os.getpid())) as trace,
    ):
        before = uses(ops, op.size), uses(bios, bio.size)
        assert os.preadv(fd, [buffer], 0) == BLOCK
        after = uses(ops, op.size), uses(bios, bio.size)
        at, place = (changed(*both) for both in zip(before, after))
        words = bios[place * bio.size : place * bio.size + 16].cast("Q")
        assert words[0] == 0
        words[1] += 1
        words[0] = obj.constants["DELIVERED"]
        ops[at * op.size + only : at * op.size + only + 4] = (place + 1).to_bytes(4, "little")
        assert os.preadv(fd, [buffer], 0) == BLOCK
    counted(trace.summary, "read", 2, 3)
    all_of_it(trace.summary)


def uses(table: memoryview, size: int) -> list[int]:
    """Return the use counts of all places: their second words."""
    return table.cast("Q")[1 :: size // 8].tolist()


def changed(before: list[int], after: list[int]) -> int:
    (place,) = (place for place, (one, other) in enumerate(zip(before, after)) if one != other)
    return place


def in_flight(flow: PathFlow) -> tuple[int, int]:
    books = flow.snapshot().books
    return books[OPERATIONS].in_flight, books[REQUESTS].in_flight


@pytest.mark.guest
def test_waiting_for_the_request_of_another_is_no_hit(tmp_path: Path) -> None:
    """A read of a page that another task is reading makes no request. Without records only the account shows that."""
    with nbd.server(tmp_path) as server, nbd.connected(tmp_path) as disk, opened(disk.path, os.O_RDONLY) as fd:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        with running(lambda: PathFlow(Options((disk.name,))), [disk]) as flow, flow.window() as trace:
            with nbd.stopped(server):
                readers = [threading.Thread(target=_read_to_the_end, args=(fd,)) for _ in range(3)]
                for reader in readers:
                    reader.start()
                    wait_until(lambda reader=reader: _state(reader.native_id) == "D", "a sleep for the page")
            for reader in readers:
                joined(reader)
            assert len(os.pread(fd, BLOCK, 0)) == BLOCK
    assert lossless(trace.summary), trace.summary["loss"]
    assert count(trace.summary, op="read", kind="operation") == len(readers)
    assert count(trace.summary, op="read", kind="hit") == 1


def _read_to_the_end(fd: int) -> None:
    """Read a block in a thread that no other reader preempts.

    All readers wake at once, and the kernel skips a program where one preempts another that runs it.
    """
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    os.pread(fd, BLOCK, 0)


def _state(tid: int) -> str:
    return Path(f"/proc/self/task/{tid}/stat").read_text().rpartition(")")[2].split()[0]
