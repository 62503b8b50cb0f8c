# SPDX-License-Identifier: Apache-2.0
"""Operations of io_uring and Linux AIO against fio's counts and the kernel's own."""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.kernel.aio import READ, Aio
from tests.kernel.conftest import GUEST
from tests.kernel.disks import Disk, completed, fio, fio_jobs, null_device, opened, total
from tests.kernel.loads import mounted
from tests.kernel.modules import on_cpu
from tests.kernel.test_io_path import complete, of_one_block, sums_up
from tests.kernel.trace import Line, Lines, Trace, count, lossless, rows, wait_until
from tests.kernel.uring import ASYNC, LINK, SKIP, Event, Ring
from tests.kernel.window import Running
from wptrace.bpf.kernel_btf import vmlinux
from wptrace.engine.filters import Filter
from wptrace.flows.io.operations import KNOWN, ways
from wptrace.kernel import mounts

pytestmark = pytest.mark.each_kernel

ENGINES = {"libaio": "aio", "io_uring": "uring"}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path | None]:
    """Make a file on an ext4 of its own; None outside guests."""
    if not GUEST:
        yield None
        return
    with mounted(Disk("vdb"), "ext4", tmp_path_factory.mktemp("file") / "mnt") as folder:
        path = folder / "file"
        path.write_bytes(os.urandom(4 << 20))
        os.sync()
        yield path


@pytest.fixture(scope="module")
def flow(path_flow: Running, disks: list[Disk], file: Path | None) -> Running:
    return path_flow.aim(*disks, *([Disk("vdb")] if file else []))


def observes(engine: str, trace: Lines, module: str = "") -> bool:
    """Tell whether this kernel shows the operations of an interface, and check that the notes say the same."""
    unseen = [note for note in trace.lines[0]["notes"] if note.startswith("asynchronous operations (")]
    says = not any({"libaio": "AIO", "io_uring": "io_uring"}[engine] in note for note in unseen)
    if not GUEST:
        # This machine may not let functions be traced.
        return says
    if engine == "libaio":
        # AIO has functions of its own where those of the file system cannot be observed.
        assert says
        return True
    # Before 5.11 (36e68442d1af) modules have no BTF.
    arguments = vmlinux().tracepoint("io_uring_complete") or ()
    assert says == (arguments[1:2] == ("void *",) and (not module or Path("/sys/kernel/btf", module).exists()))
    return says


@pytest.mark.parametrize("engine", ENGINES)
def test_direct_reads_and_writes(engine: str, disks: list[Disk], flow: Running) -> None:
    """Each operation makes one request, with several in flight; fio and the kernel count as many of both."""
    before = completed(disks)
    options = {"rw": "randrw", "number_ios": 250, "ioengine": engine, "iodepth": 8, "stonewall": 1}
    with flow.window() as trace:
        jobs = dict(zip(disks, fio_jobs(*({"filename": disk.path, **options} for disk in disks))))
    summary = trace.summary
    after = completed(disks)
    assert lossless(summary), summary["loss"]
    seen = observes(engine, trace)
    for disk, job in jobs.items():
        for op in ("read", "write"):
            made = job[op]["total_ios"]
            assert made == after[disk.name][op] - before[disk.name][op] == count(summary, op=op, dev=disk.name)
            assert count(summary, op=op, dev=disk.name, kind="operation") == (made if seen else 0)
            assert count(summary, op=op, dev=disk.name, kind="hit") == 0
            if seen:
                complete(rows(summary, "operation", op, disk.name))
    made = sum(total(job) for job in jobs.values())
    assert summary["operations"]["started"] == (made if seen else 0)
    assert len(trace.operations) == (made if seen else 0)
    # A file system on another disk reads by itself.
    assert len([one for one in trace.requests if one["dev"] in {disk.name for disk in disks}]) == (0 if seen else made)
    for one in trace.operations:
        of_one_block(one)
        assert one["interface"] == ENGINES[engine]
        assert one["user_data"] > 0


MODES = {
    "polled submission": {"sqthread_poll": 1},
    "fixed buffers and files": {"fixedbufs": 1, "registerfiles": 1},
    "workers": {"force_async": 1},
}


@pytest.mark.guest
@pytest.mark.parametrize("mode", MODES)
def test_ways_of_io_uring(mode: str, disks: list[Disk], flow: Running) -> None:
    with flow.window() as trace:
        job = fio(disks[0].path, rw="randread", number_ios=100, ioengine="io_uring", iodepth=4, **MODES[mode])
    assert lossless(trace.summary), trace.summary["loss"]
    made = job["read"]["total_ios"] if observes("io_uring", trace) else 0
    assert count(trace.summary, kind="operation") == len(trace.operations) == made
    assert trace.summary["operations"]["lost"] == 0
    for one in trace.operations:
        sums_up(one)
        assert (one["requests"], one["length"], one["result"]) == (1, 4096, 4096)
        # Only workers keep an operation waiting before a file system gets it.
        if mode == "workers":
            assert one["stages"]["submit_ns"] > 0


@pytest.mark.guest
@pytest.mark.parametrize("engine", ENGINES)
def test_buffered_reads_of_a_file(engine: str, file: Path, flow: Running) -> None:
    """Reads of uncached pages wait, in a worker or for a callback of the page; cached ones are hits."""
    path = file
    options = {"ioengine": engine, "iodepth": 4, "direct": 0, "rw": "randread", "size": "4M", "number_ios": 100}
    options.update({"invalidate": 0, "norandommap": 0, "random_generator": "lfsr"})
    Path("/proc/sys/vm/drop_caches").write_text("1")
    only = Filter(file=mounts.file(str(path)))
    with flow.window(only) as cold:
        first = fio(str(path), **options)
    with flow.window(only) as warm:
        fio(str(path), **options)
    for trace in (cold, warm):
        assert lossless(trace.summary), trace.summary["loss"]
    if not observes(engine, cold, "ext4"):
        assert not cold.operations
        return
    assert len(cold.operations) == total(first) == cold.summary["operations"]["finished"]
    waited = [one for one in cold.operations if one["kind"] == "operation"]
    assert len(waited) > 50
    for one in cold.operations + warm.operations:
        sums_up(one)
        assert one["path"] == str(path)
        assert one["interface"] == ENGINES[engine]
    assert {one["kind"] for one in warm.operations[:20]} <= {"hit", "operation"}
    assert sum(one["kind"] == "hit" for one in warm.operations) >= 100 - (1024 - len(waited))


def run_ring(disk: Disk, requests: list[tuple[int, int]]) -> list[Event]:
    """Submit reads of 4 KiB by (user_data, flags) at once, and return the completion events."""
    with (
        opened(disk.path, os.O_RDONLY | os.O_DIRECT) as fd,
        Ring() as ring,
        mmap.mmap(-1, 4096 * len(requests)) as buffer,
    ):
        place = ctypes.c_char.from_buffer(buffer)
        address = ctypes.addressof(place)
        for number, (user_data, flags) in enumerate(requests):
            ring.read(fd, address + 4096 * number, 4096, 4096 * number, user_data, flags)
        events = ring.enter(len(requests), sum(not flags & SKIP for _, flags in requests))
        del place
        return events


@pytest.mark.guest
def test_links_wait_for_one_another(disks: list[Disk], flow: Running) -> None:
    """The second of two linked reads is submitted with the first and begins when the first is done."""
    with flow.window() as trace:
        events = run_ring(disks[0], [(71, LINK), (72, LINK), (73, 0)])
    assert sorted(events) == [(71, 4096), (72, 4096), (73, 4096)]
    assert lossless(trace.summary), trace.summary["loss"]
    if not observes("io_uring", trace):
        assert not trace.operations
        return
    found: dict[int, Line] = {one["user_data"]: one for one in trace.operations}
    assert sorted(found) == [71, 72, 73]
    for earlier, later in ((71, 72), (72, 73)):
        # All are submitted before the first begins.
        assert found[later]["stages"]["submit_ns"] > found[earlier]["stages"]["device_ns"]
        assert found[later]["ts_ns"] > found[earlier]["ts_ns"]


TAGS, TAGGED_NS = 4, 10_000_000


@pytest.mark.guest
@pytest.mark.icount
def test_a_try_that_found_no_tag() -> None:
    """io_uring leaves to a worker what it cannot send without waiting. Until then all of the time is `submit`."""
    slow = {"irqmode": 2, "completion_nsec": TAGGED_NS, "hw_queue_depth": TAGS, "submit_queues": 1}
    with null_device("wpt0", **slow) as disk, Trace("--each", f"--dev={disk.name}") as trace:
        fio(disk.path, rw="randread", number_ios=128, ioengine="io_uring", iodepth=32, hipri=0)
        assert waiting(trace) == []
    assert lossless(trace.summary), trace.summary["loss"]
    if not observes("io_uring", trace):
        assert not trace.operations
        return
    assert len(trace.operations) == count(trace.summary) == 128
    for one in trace.operations:
        sums_up(one)
        assert one["requests"] == 1
        assert one["stages"]["fs_ns"] < TAGGED_NS // 2, one
        assert TAGGED_NS <= one["stages"]["device_ns"] < TAGGED_NS * 2, one
    # The first 32 are submitted at once, and 28 of them have to wait for a tag; later ones may find one.
    assert sum(one["stages"].get("submit_ns", 0) > TAGGED_NS // 2 for one in trace.operations) >= 32 - TAGS


def waiting(trace: Trace) -> list[Line]:
    """Return what the trace lists as in flight now."""

    def reported() -> list[Line]:
        return [json.loads(line) for line in trace.written().splitlines() if '"kind":"in_flight"' in line]

    before = len(reported())
    trace.process.send_signal(signal.SIGUSR1)
    wait_until(lambda: len(reported()) > before, "what is in flight")
    return list(reported()[-1]["found"])


@pytest.mark.guest
def test_success_that_nobody_hears_of_is_no_operation(disks: list[Disk], flow: Running) -> None:
    """No event ends such an operation, so only its request is counted, and nothing stays in flight."""
    with flow.window() as trace:
        events = run_ring(disks[0], [(81, SKIP | LINK), (82, SKIP | LINK), (83, ASYNC)])
    if (81, -errno.EINVAL) in events:
        pytest.skip("this kernel knows no IOSQE_CQE_SKIP_SUCCESS, which came with 5.17")
    assert events == [(83, 4096)]
    assert trace.summary["requests"]["lost"] == 0
    assert count(trace.summary, kind="request") == 3
    if observes("io_uring", trace):
        assert [one["user_data"] for one in trace.operations] == [83]
        assert trace.summary["loss"] == {"silent": 2}
    else:
        assert not trace.summary["loss"]


APART = 64 << 10
"""Offsets of reads that the kernel does not merge."""


@pytest.mark.guest
def test_completions_that_find_no_room_in_the_ring(disks: list[Disk], flow: Running) -> None:
    """The kernel keeps them elsewhere, and does not report them like others. Each still ends its operation."""
    if os.uname().release.startswith("6.1."):
        pytest.skip("its compiler has made the function that would name the operation a part of others")
    before = completed(disks)[disks[0].name]["read"]
    with (
        opened(disks[0].path, os.O_RDONLY | os.O_DIRECT) as fd,
        Ring(4) as ring,
        mmap.mmap(-1, 4096) as buffer,
        flow.window() as trace,
    ):
        place = ctypes.c_char.from_buffer(buffer)
        for first in range(0, 16, 4):
            for number in range(first, first + 4):
                ring.read(fd, ctypes.addressof(place), 4096, APART * number, number)
            ring.submit(4)
            wait_until(lambda done=before + first + 4: completed(disks)[disks[0].name]["read"] >= done, "the reads")
        events = ring.enter(0, 8)
        while len(events) < 16:
            events += ring.enter(0, 1)
        del place
    assert sorted(events) == [(number, 4096) for number in range(16)]
    assert lossless(trace.summary), trace.summary["loss"]
    seen = observes("io_uring", trace)
    assert sorted(one["user_data"] for one in trace.operations) == (list(range(16)) if seen else [])
    assert trace.summary["operations"]["in_flight"] == 0
    for one in trace.operations:
        sums_up(one)
        assert (one["requests"], one["offset"], one["result"]) == (1, APART * one["user_data"], 4096)


@pytest.mark.guest
def test_a_refused_request_of_aio_is_nobody_elses(disks: list[Disk], flow: Running) -> None:
    """The next one gets its memory, from a thread that the filter leaves out."""
    queue = Aio()
    with (
        opened(disks[0].path, os.O_RDONLY | os.O_DIRECT) as fd,
        mmap.mmap(-1, 4096) as buffer,
        # Freed memory is used again at once there.
        on_cpu(min(os.sched_getaffinity(0))),
        flow.window(Filter(tid=threading.get_native_id())) as trace,
    ):
        place = ctypes.c_char.from_buffer(buffer)
        address = ctypes.addressof(place)
        for _ in range(4):
            assert queue.refused(READ, fd, address, 4096, -4096) == errno.EINVAL
            with ThreadPoolExecutor(1) as other:
                assert other.submit(queue.do, READ, fd, address, 4096, 0).result() == 4096
        del place
    # By the functions of AIO, a refused one is a failed operation.
    assert all(one["result"] == -errno.EINVAL for one in trace.operations), trace.operations
    assert trace.summary["operations"]["started"] == len(trace.operations)
    assert trace.summary["operations"]["in_flight"] == 0


@pytest.mark.guest
def test_other_file_systems_than_the_known_have_no_narrow_way() -> None:
    assert ways({"ext4"})[0] != ways({"ext4", "f2fs"})[0]
    assert set(ways({"ext4", "xfs", "vfat"})[0].programs) <= {*KNOWN.programs, "uring_submit_old_raw_tp"}
