# SPDX-License-Identifier: Apache-2.0
"""Places of operations and requests: each has one owner, and there are enough for thousands of threads."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kernel.disks import Disk, null_device, opened, setting
from tests.kernel.stacks import linear, suspended
from tests.kernel.test_async import observes
from tests.kernel.test_binding import GETPGID
from tests.kernel.trace import PATIENCE, Trace, count, lossless, object_path, wait_until
from tests.kernel.uring import Ring
from tests.kernel.window import Running
from wptrace.bpf import atomics, trial
from wptrace.bpf.object import BpfObject

_LIBC = ctypes.CDLL(None, use_errno=True)


@contextmanager
def alone() -> Iterator[None]:
    """Keep out other runs of these tests, which would make the same system calls."""
    with Path("/run/lock/wptest-getpgid").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def hammer(seconds: float) -> None:
    """Run two processes on two CPUs that make system calls all the time."""
    running = [
        subprocess.Popen([sys.executable, "-c", _CALLS, str(GETPGID), str(seconds), cpu])
        for cpu in map(str, sorted(os.sched_getaffinity(0))[:2])
    ]
    assert [one.wait() for one in running] == [0, 0]


_CALLS = """
import ctypes, os, sys, time
call, number, end = ctypes.CDLL(None).syscall, int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
os.sched_setaffinity(0, {int(sys.argv[3])})
while time.monotonic() < end:
    for _ in range(1000):
        call(number, 0)
"""


@pytest.mark.smp
@pytest.mark.parametrize("exchange", [True, False], ids=["exchange", "count"])
def test_a_place_has_one_owner(exchange: bool) -> None:
    """Without an atomic exchange, a program counts itself in first."""
    if exchange and not trial.exchanges():
        pytest.skip("this kernel has no atomic exchange")
    with alone(), BpfObject(object_path("places"), None if exchange else atomics.as_stores) as obj:
        obj.rodata.without_exchange = not exchange
        obj.bss.target_call = GETPGID
        obj.load()
        obj.attach()
        # A busy machine may run them one after the other.
        for _ in range(200):
            hammer(1.0)
            if obj.bss.tried - obj.bss.taken > 1000:
                break
        assert obj.bss.tried - obj.bss.taken > 1000, "they were never there at once"
        assert (obj.bss.disturbed, obj.bss.place, obj.bss.inside) == (0, 0, 0)
        assert not any(obj.bss.claims)


@pytest.mark.smp
def test_what_two_contexts_count_at_once_is_counted_twice() -> None:
    """A task and an interrupt may count in the same row. No count gets lost, and no bytes do."""
    with alone(), BpfObject(object_path("cells")) as obj:
        obj.bss.target_call = GETPGID
        obj.load()
        obj.attach()
        hammer(1.0)
        row, tried = obj.bss.row, list(obj.bss.tried)
    assert len([one for one in tried if one > 1000]) >= 2, "not on two CPUs"
    assert (row.finished, row.bytes, sum(row.stage.slots)) == (sum(tried), 3 * sum(tried), sum(tried))


def test_kernels_without_an_exchange_take_the_store() -> None:
    """Every kernel takes the fallback for kernels without an exchange, which refuses no one that is alone."""
    with alone(), BpfObject(object_path("places"), atomics.as_stores) as obj:
        obj.rodata.without_exchange = True
        obj.bss.target_call = GETPGID
        obj.load()
        obj.attach()
        for _ in range(100):
            _LIBC.syscall(GETPGID, 0)
        assert (obj.bss.tried, obj.bss.taken, obj.bss.disturbed, obj.bss.place) == (100, 100, 0, 0)


# Real-time, so that none preempts another in a program: from 7.0 on the kernel would skip programs.
_READERS = """
import mmap, os, sys, threading
path, threads = sys.argv[1], int(sys.argv[2])
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
threading.stack_size(65536)
fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
buffer = mmap.mmap(-1, 4096)
def read(place):
    assert os.preadv(fd, [buffer], 4096 * (place % 1000)) == 4096
running = [threading.Thread(target=read, args=(place,)) for place in range(threads)]
for thread in running: thread.start()
for thread in running: thread.join()
"""


def waiting(pid: int) -> int:
    """Return how many threads are in uninterruptible sleep, as in a wait for a disk."""
    found = [path.read_text().rpartition(") ")[2] for path in Path("/proc", str(pid), "task").glob("*/stat")]
    return sum(one.startswith("D") for one in found)


@pytest.mark.guest
def test_no_operation_of_two_thousand_threads_is_lost(path_flow: Running) -> None:
    """Tasks are in slabs, so their addresses are alike, and a bad hash would have room for a few hundred."""
    threads = 2000
    with (
        null_device() as null,
        # Requests next to each other may not merge.
        setting(null.queue / "nomerges", "2"),
        linear(null) as top,
        path_flow.aim(top).window(each=False) as trace,
    ):
        # None ends before all have started.
        with suspended(top):
            reader = subprocess.Popen([sys.executable, "-c", _READERS, top.path, str(threads)])
            wait_until(lambda: reader.poll() is not None or waiting(reader.pid) >= threads, "all reads to begin")
            assert reader.poll() is None
        assert reader.wait(PATIENCE) == 0
    summary = trace.summary
    assert lossless(summary), summary["loss"]
    assert summary["operations"]["finished"] == threads
    assert count(summary, op="read", kind="operation") == threads
    assert count(summary, op="read", dev=top.name, kind="layer") == threads
    assert count(summary, op="read", dev=null.name) == threads


@pytest.mark.guest
@pytest.mark.one_kernel
def test_what_waits_for_no_file_takes_no_place_of_an_operation(disk: Disk) -> None:
    """Reads of an eventfd may wait forever. They are no operations, and real ones are seen meanwhile."""
    pending, reads = 3000, 200
    eventfd = os.eventfd(0) if hasattr(os, "eventfd") else int(_LIBC.eventfd(0, 0))
    with Trace("--dev", disk.name) as trace, Ring(4096) as ring, mmap.mmap(-1, 4096) as buffer:
        address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        for number in range(pending):
            ring.read(eventfd, address, 8, 0, number)
        ring.enter(pending, 0)
        with opened(disk.path, os.O_RDONLY | os.O_DIRECT) as fd:
            for number in range(reads):
                os.preadv(fd, [buffer], 4096 * number)
            for number in range(10):
                ring.read(fd, address, 4096, 4096 * number, 10_000 + number)
            assert len(ring.enter(10, 10)) == 10
        trace.stop()
    os.close(eventfd)
    summary = trace.summary
    assert lossless(summary), summary["loss"]
    followed = 10 if observes("io_uring", trace) else 0
    assert count(summary, op="read", dev=disk.name, kind="operation") == reads + followed
    assert summary["operations"]["in_flight"] == 0
