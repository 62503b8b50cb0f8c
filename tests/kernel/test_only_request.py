# SPDX-License-Identifier: Apache-2.0
"""The only request of an operation, which is counted together with it: each is counted once."""

from __future__ import annotations

import ctypes
import mmap
import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kernel.disks import Disk, null_device
from tests.kernel.patience import reaped
from tests.kernel.trace import Line, count, lossless, wait_until
from tests.kernel.window import Running
from wptrace.engine.filters import Filter
from wptrace.flows.io.path import PathFlow
from wptrace.model.kind import OPERATIONS, REQUESTS

BLOCK = 4096
_LIBC = ctypes.CDLL(None, use_errno=True)
_BEGIN_WRITING = 2
# Long enough for others to come in between. Where the machine stood still for longer, it is done once more.
_SLOW_NS, _ROUNDS = 4_500_000_000, 5


@contextmanager
def opened(disk: Disk, flags: int) -> Iterator[int]:
    fd = os.open(disk.path, flags)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def slow_disk(path_flow: Running) -> Iterator[tuple[int, PathFlow]]:
    """Read ahead is nothing of it."""
    with null_device(irqmode=2, completion_nsec=_SLOW_NS) as null, opened(null, os.O_RDWR) as fd:
        flow = path_flow.aim(null).flow
        assert isinstance(flow, PathFlow)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        yield fd, flow


def counted(summary: Line, op: str, operations: int, requests: int) -> None:
    assert lossless(summary), summary["loss"]
    assert count(summary, op=op, kind="operation") + count(summary, op=op, kind="hit") == operations
    assert count(summary, op=op) == requests


def all_of_it(summary: Line) -> None:
    for book in (summary["operations"], summary["requests"]):
        assert (book["started"] - book["finished"], book["in_flight"], book["lost"]) == (0, 0, 0), summary


def test_another_request_comes_when_the_first_is_done(disk: Disk, path_flow: Running) -> None:
    """A write that has to be on the disk asks for a flush behind it, and so does not end with its only request."""
    writes = 20
    assert Path("/sys/block", disk.name, "queue/write_cache").read_text() == "write back\n"
    with opened(disk, os.O_RDWR | os.O_DIRECT | os.O_DSYNC) as fd:
        before = disk.completed()
        with path_flow.aim(disk).window(Filter(pid=os.getpid())) as trace, mmap.mmap(-1, BLOCK) as buffer:
            for number in range(writes):
                assert os.pwritev(fd, [buffer], BLOCK * number) == BLOCK
        after = disk.completed()
    counted(trace.summary, "write", writes, writes)
    assert trace.summary["bytes"] == writes * BLOCK == 512 * (after["write_sectors"] - before["write_sectors"])
    all_of_it(trace.summary)


@pytest.mark.guest
def test_what_ends_before_its_request(path_flow: Running) -> None:
    """It began writeback and waits for nothing; its task does the next thing before that request ends."""
    with slow_disk(path_flow) as (fd, flow):
        for block in range(_ROUNDS):
            with path_flow.window(Filter(pid=os.getpid())) as trace:
                start = time.monotonic_ns()
                os.pwrite(fd, b"x" * BLOCK, BLOCK * block)
                assert _LIBC.sync_file_range(fd, *map(ctypes.c_long, (BLOCK * block, BLOCK)), _BEGIN_WRITING) == 0
                before = in_flight(flow)
                # What is wanted from now on is not what is under way.
                flow.retarget(Filter(op="read"))
                for _ in range(10):
                    os.pread(fd, BLOCK, BLOCK * block)
                still = in_flight(flow)
                took = time.monotonic_ns() - start
                # The next one makes one as well, and that of the one before ends while it waits for its own.
                os.pread(fd, BLOCK, BLOCK * (1024 + block))
            counted(trace.summary, "write", 1, 1)
            counted(trace.summary, "read", 11, 1)
            assert trace.summary["operations"]["finished"] == 13
            all_of_it(trace.summary)
            if took < _SLOW_NS:
                break
        assert (before, still) == ((0, 1), (0, 1)), f"seen {took} ns after its begin"


@pytest.mark.guest
def test_who_is_killed_before_its_request(path_flow: Running) -> None:
    with slow_disk(path_flow) as (fd, flow):
        for block in range(_ROUNDS):
            with path_flow.window() as trace:
                start = time.monotonic_ns()
                pid = os.fork()
                if not pid:
                    os.pread(fd, BLOCK, BLOCK * block)
                    os._exit(0)
                killed = killed_in_time(pid, flow)
                left = in_flight(flow)
                took = time.monotonic_ns() - start
            if killed and took < _SLOW_NS:
                break
        counted(trace.summary, "read", 1, 1)
        assert (killed, left) == (True, (0, 1)), f"seen {took} ns after its begin"
        assert (trace.summary["operations"]["failed"], trace.summary["requests"]["failed"]) == (1, 0)
        all_of_it(trace.summary)


def killed_in_time(pid: int, flow: PathFlow) -> bool:
    """Once its read is seen under way, which a kernel that skips a program never shows."""
    child = os.pidfd_open(pid)
    try:
        wait_until(lambda: in_flight(flow) == (1, 1) or bool(select.select([child], [], [], 0)[0]), "the read")
        signal.pidfd_send_signal(child, signal.SIGKILL)
    finally:
        os.close(child)
    return os.waitstatus_to_exitcode(reaped(pid)) == -signal.SIGKILL


def test_one_that_came_too_late_is_counted_by_the_next_operation(disk: Disk, path_flow: Running) -> None:
    """The table is made as it is where a request completes on one CPU while its operation ends on another one."""
    obj = path_flow.aim(disk).flow._obj
    ops, bios = obj.view("ops"), obj.view("bios")
    op, bio = obj.struct("op_state"), obj.struct("bio_state")
    (only,) = (member.offset for member in op.places if member.name == "only")
    with (
        opened(disk, os.O_RDONLY | os.O_DIRECT) as fd,
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
    """How often in each place: its second word."""
    return table.cast("Q")[1 :: size // 8].tolist()


def changed(before: list[int], after: list[int]) -> int:
    (place,) = (place for place, (one, other) in enumerate(zip(before, after)) if one != other)
    return place


def in_flight(flow: PathFlow) -> tuple[int, int]:
    books = flow.snapshot().books
    return books[OPERATIONS].in_flight, books[REQUESTS].in_flight
