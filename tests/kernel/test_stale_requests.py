# SPDX-License-Identifier: Apache-2.0
"""Requests whose end no program saw leave the books, and requests that are in flight stay."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.kernel import nbd
from tests.kernel.conftest import GUEST
from tests.kernel.disks import Disk, fio, loop_device, opened
from tests.kernel.flows import running_flow
from tests.kernel.loads import mounted
from tests.kernel.patience import reaped
from tests.kernel.trace import KernelSkippedError, unskipped, wait_until
from tests.kernel.window import Running, path_of
from wptrace.bpf.object import BpfObject
from wptrace.engine.filters import Filter
from wptrace.engine.flow import Flow
from wptrace.flows.io import block
from wptrace.flows.io.block import BlockFlow
from wptrace.flows.io.books import GRACE_NS
from wptrace.flows.io.kinds import REQUEST
from wptrace.flows.io.options import Options
from wptrace.flows.io.path import PathFlow
from wptrace.kernel import blockdev
from wptrace.model.book import RECURSION
from wptrace.model.kind import OPERATIONS, REQUESTS, TOTAL


@contextmanager
def tracing(disk: Disk) -> Iterator[PathFlow]:
    with running_flow(PathFlow(Options((disk.path,)))) as flow:
        flow.begin()
        yield flow


@contextmanager
def unseen(flow: Flow, hook: str = "complete") -> Iterator[None]:
    """Detach the programs of a hook meanwhile, as if the kernel skipped them."""
    assert isinstance(flow, (PathFlow, BlockFlow))
    obj: BpfObject = flow._running.obj
    if hook == "queue":
        # Here 5.10 asks for each bio whether it is throttled, and cannot attach programs again.
        obj.progs["throttle_old_fentry"].close()
    programs = [program for name, program in obj.progs.items() if name.startswith(f"{hook}_") and program.links]
    assert len(programs) == 1
    for program in programs:
        program.close()
    yield
    for program in programs:
        program.attach()


def read(disk: Disk, count: int) -> None:
    with opened(disk.path, os.O_RDONLY | os.O_DIRECT) as fd, mmap.mmap(-1, 4096) as buffer:
        for number in range(count):
            assert os.preadv(fd, [buffer], 4096 * number) == 4096


def completed(disk: Disk) -> int:
    found = disk.completed()
    return found["read"] + found["write"]


@pytest.mark.one_kernel
def test_what_the_device_has_no_more_is_not_in_flight(disk: Disk) -> None:
    with tracing(disk) as flow:
        read(disk, 10)
        with unseen(flow):
            read(disk, 7)
        assert flow.snapshot().books[REQUESTS].in_flight > 0
        # The sweep waits, because the end of a request may be on its way.
        wait_until(lambda: not flow.in_flight(0), "the end of requests that the device has no more")
        wait_until(lambda: not flow.snapshot().books[REQUESTS].in_flight, "an account without them")
        read(disk, 10)
        flow.stop()
        book = flow.snapshot().books[REQUESTS]
    lost = {cause.name: count for cause, count in book.lost.items()}
    # A bio that is used again may reveal one.
    assert set(lost) <= {"ghost", "unmatched_start"}
    assert lost["ghost"] >= 1
    assert (book.finished, book.lost_total, book.in_flight) == (20, 7, 0)


@pytest.mark.one_kernel
def test_the_last_look_finds_them_as_well(disk: Disk) -> None:
    with tracing(disk) as flow:
        read(disk, 3)
        with unseen(flow):
            read(disk, 4)
        flow.stop()
        book = flow.snapshot().books[REQUESTS]
    assert (book.finished, book.lost_total, book.in_flight) == (3, 4, 0)


@pytest.mark.one_kernel
def test_a_window_of_other_tests_has_a_reason_for_what_is_missing(disk: Disk) -> None:
    """Even if a filter leaves out other requests, about whose ends nothing is known."""
    with path_of(disk) as shared:
        # On a kernel that hides ends, this test itself would be run again.
        with suppress(KernelSkippedError), shared.window(Filter(pid=os.getpid())) as trace:
            read(disk, 3)
            with unseen(shared.flow):
                read(disk, 1)
        book = trace.summary["requests"]
        assert (book["started"], book["finished"], book["lost"], book["in_flight"]) == (4, 3, 1, 0)
        assert trace.summary["loss"] == {"ghost": 1}
        assert trace.summary["operations"]["finished"] == 4


def parts(flow: PathFlow) -> tuple[int, int, int]:
    """Return the number of requests in the row, their time, and how much of it belongs to no stage."""
    found = flow.snapshot().cells
    (stages,) = (stages for group, stages in found.items() if group.kind is REQUEST and group.label("op") == "read")
    total = stages.pop(TOTAL)
    return total.count, total.sum, total.sum - sum(stage.sum for stage in stages.values())


@pytest.mark.parametrize("hooks", [("queue",), ("issue",), ("queue", "issue")])
def test_a_request_of_which_only_the_end_is_seen_is_in_its_row(disk: Disk, hooks: tuple[str, ...]) -> None:
    before = completed(disk)
    with tracing(disk) as flow:
        with ExitStack() as stack:
            for hook in hooks:
                stack.enter_context(unseen(flow, hook))
            # Bios that were queued before the trace may still end.
            read(disk, 2)
            time.sleep(1.1)
            read(disk, 5)
        read(disk, 3)
        flow.stop()
        count, total, unattributed = parts(flow)
        books = flow.snapshot().books
    book = books[REQUESTS]
    assert completed(disk) - before == 10
    assert (book.started, book.finished, book.in_flight, count) == (10, 10, 0, 10)
    # Owner and time in the queue are unknown, and counted as such. Without the issue the operation still has them.
    noted = {cause.name: count for cause, count in book.noted.items() if cause != RECURSION}
    assert noted == ({"unseen_start": 5} if "queue" in hooks else {})
    assert books[OPERATIONS].finished == 10
    # If the disk keeps no stamps either, the time of the issue is unknown.
    stamped = blockdev.is_stamped(disk.name)
    assert (0 < unattributed < total) == ("issue" in hooks and not stamped)
    assert unattributed >= 0


def lost(flow: PathFlow | BlockFlow) -> dict[str, int]:
    return {cause.name: count for cause, count in flow.snapshot().books[REQUESTS].lost.items()}


@pytest.mark.one_kernel
def test_flushes_of_a_commit_during_a_reading_are_seen(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They begin after the started requests were counted, and end before the rows are read."""
    with mounted(disk, "ext4", tmp_path / "files") as folder, tracing(disk) as flow:
        with (folder / "log").open("wb", buffering=0) as file:

            def commit() -> None:
                file.write(b"x" * 4096)
                os.fsync(file.fileno())

            commit()
            read_cells = flow.read_cells

            def busy() -> Any:
                for _ in range(10):
                    commit()
                return read_cells()

            monkeypatch.setattr(flow, "read_cells", busy)
            book = flow.snapshot().books[REQUESTS]
        assert book.finished >= 10
        assert "unseen" not in {cause.name for cause in book.lost}


@pytest.mark.parametrize("times", ["kernel", "own"])
def test_a_request_whose_end_is_not_seen_is_lost_at_the_level_of_blocks(tmp_path: Path, times: str) -> None:
    with ExitStack() as stack:
        disk = stack.enter_context(loop_device(tmp_path / "image"))
        flow = stack.enter_context(running_flow(BlockFlow(block.Options((disk.path,), times=times))))
        flow.begin()
        read(disk, 2)
        assert lost(flow) == {}
        with unseen(flow):
            read(disk, 7)
        wait_until(lambda: lost(flow) == {"unseen": 7}, "the disk's own count")
        read(disk, 3)
        flow.stop()
        read(disk, 4)
        book = flow.snapshot().books[REQUESTS]
        assert lost(flow) == {"unseen": 7}
    assert (book.started, book.finished, book.in_flight) == (12, 5, 0)


def test_a_request_of_which_nothing_is_seen_is_lost(tmp_path: Path) -> None:
    """The disk has counted it; an nvme driver would report it as well."""
    with loop_device(tmp_path / "image") as disk, tracing(disk) as flow:
        read(disk, 2)
        flow.snapshot()
        with unseen(flow, "queue"), unseen(flow, "issue"), unseen(flow):
            read(disk, 7)
        # The kernel counts a request after it has woken up the waiter.
        wait_until(lambda: lost(flow) == {"unseen": 7}, "the disk's own count")
        read(disk, 3)
        flow.stop()
        book = flow.snapshot().books[REQUESTS]
        assert lost(flow) == {"unseen": 7}
    assert (book.started, book.finished, book.in_flight) == (12, 5, 0)


@pytest.mark.one_kernel
@pytest.mark.guest
def test_what_the_device_has_stays_in_flight(path_flow: Running, tmp_path: Path) -> None:
    """Its request outlives stale entries on the same disk, and the time for which those are kept."""
    with (
        nbd.server(tmp_path) as server,
        nbd.connected(tmp_path) as disk,
        path_flow.aim(disk).window(each=False) as trace,
    ):
        # Only now, because a window that finds something in flight restarts the flow.
        flow = path_flow.flow
        with nbd.stopped(server):
            pid = os.fork()
            if not pid:
                read(disk, 1)
                os._exit(0)
            wait_until(lambda: flow.in_flight(0), "the read")
            end = time.monotonic() + 2 * GRACE_NS / 1e9
            while time.monotonic() < end:
                assert flow.snapshot().books[REQUESTS].in_flight == 1
                assert {one.group.kind.name for one in flow.in_flight(0)} >= {"request"}
                time.sleep(0.5)
        assert reaped(pid) == 0
    book = trace.summary["requests"]
    assert (book["finished"], book["lost"], book["in_flight"]) == (1, 0, 0)


@pytest.mark.one_kernel
def test_under_load_nothing_is_taken_for_one(disk: Disk) -> None:
    before = completed(disk)
    with tracing(disk) as flow:
        pid = os.fork()
        if not pid:
            fio(disk.path, rw="randrw", number_ios=20_000 if not GUEST else 2_000, numjobs=2, group_reporting=1)
            os._exit(0)
        done = 0
        while not done:
            done, status = os.waitpid(pid, os.WNOHANG)
            flow._books.stale.sweep(50_000_000)
            flow.snapshot()
            time.sleep(0.01)
        assert status == 0
        flow.stop()
        book = flow.snapshot().books[REQUESTS]
    made = completed(disk) - before
    skipped = sum(count for cause, count in book.noted.items() if cause == RECURSION)
    unskipped({"loss": {"recursion": skipped}, "requests": {"finished": book.finished}}, made)
    # A hardened kernel may hide some ends from every program.
    assert book.lost_total <= (0 if GUEST else made // 100)
    assert (book.started, book.in_flight) == (made, 0)
