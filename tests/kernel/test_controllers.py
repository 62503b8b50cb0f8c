# SPDX-License-Identifier: Apache-2.0
"""`wptrace io` names the controller that held a bio before it got a request."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.aio import WRITE, Aio
from tests.kernel.disks import Disk, fio, null_device, opened, setting, total
from tests.kernel.loads import costed, joined, limited
from tests.kernel.trace import Line, Lines, Trace, lossless, wait_until
from tests.kernel.window import Running, path_of
from wptrace.bpf.kernel_btf import vmlinux
from wptrace.engine.filters import Filter

MS = 1_000_000
_DEBUG = Path("/sys/module/blk_cgroup/parameters/blkcg_debug_stats")


# One request at a time, 2 ms each.
_ONE = {"irqmode": 2, "completion_nsec": 2 * MS, "submit_queues": 1, "hw_queue_depth": 1}


@pytest.fixture(scope="module")
def disks() -> Iterator[dict[str, Disk]]:
    """Disks by the controller that is to hold requests back."""
    with ExitStack() as stack:
        made = {name: stack.enter_context(null_device(f"wptest_{name}")) for name in ("io_max", "io_cost")}
        for name, latency_us in (("wbt", "75000"), ("tag", "0")):
            disk = made[name] = stack.enter_context(null_device(f"wptest_{name}", **_ONE))
            (disk.queue / "scheduler").write_text("none")
            (disk.queue / "wbt_lat_usec").write_text(latency_us)
        yield made


@pytest.fixture(scope="module")
def flow(disks: dict[str, Disk], v2: Path) -> Iterator[Running]:
    with path_of(*disks.values(), interference=True) as made:
        yield made


def held(trace: Lines) -> dict[str, int]:
    """Return the nanoseconds by controller, summed over all records."""
    found: dict[str, int] = {}
    for line in trace.operations + trace.requests:
        for one in line.get("throttled_by", ()):
            found[one["controller"]] = found.get(one["controller"], 0) + one["ns"]
    return found


def by_controller(line: Line) -> dict[str, int]:
    return {one["controller"]: one["ns"] for one in line.get("throttled_by", ())}


def rows(trace: Lines, kind: str, stage: str) -> list[Line]:
    return [row for row in trace.summary["rows"] if (row["kind"], row["stage"]) == (kind, stage)]


def named(trace: Lines, controller: str, job: dict[str, Any], besides: str = "") -> None:
    """Check that `controller`, with `besides`, accounts for all of `throttle`, by rows, records and the verdict."""
    assert lossless(trace.summary), trace.summary["loss"]
    assert len(trace.operations) == total(job)
    found = held(trace)
    (throttle,) = (row["sum_ns"] for row in rows(trace, "operation", "throttle") if row["sum_ns"])
    of_both = found[controller] + found.get(besides, 0)
    assert of_both == pytest.approx(throttle, rel=0.05), found
    assert sum(found.values()) - of_both < throttle * 0.02, found
    assert found[controller] == max(found.values()), found
    for line in trace.operations:
        of_all = sum(one["ns"] for one in line.get("throttled_by", ()))
        assert of_all == pytest.approx(line["stages"]["throttle_ns"], abs=MS)
    (of_operations,) = rows(trace, "operation", controller)
    (of_requests,) = rows(trace, "request", controller)
    assert of_operations["sum_ns"] == found[controller]
    by = [[one["controller"] for one in line.get("throttled_by", ())] for line in trace.operations]
    assert of_operations["count"] == sum(controller in one for one in by) == of_requests["count"]
    assert f"{controller} took" in trace.summary["verdict"]["text"]


@pytest.mark.one_kernel
def test_waits_for_tags(loop: Disk) -> None:
    """The controller is known even where functions cannot be observed."""
    (loop.queue / "scheduler").write_text("none")
    (loop.queue / "nr_requests").write_text("4")
    with Trace("--dev", loop.name, "--each", "--interference", "--ring-size=16M") as trace:
        # On a busy machine the jobs may run one after the other.
        for _ in range(50):
            fio(loop.path, numjobs=32, thread=1, group_reporting=1, number_ios=50)
            if '"controller":"tag"' in trace.written():
                break
    assert set(held(trace)) == {"tag"}
    for line in trace.operations:
        assert sum(one["ns"] for one in line.get("throttled_by", ())) <= line["stages"]["throttle_ns"], line
    assert not [note for note in trace.lines[0]["notes"] if "held requests back" in note]


# --- With a shared trace, which is not there yet while the command above runs -----------------------------------------


@pytest.mark.icount
def test_io_max(disks: dict[str, Disk], flow: Running, v2: Path) -> None:
    disk = disks["io_max"]
    with limited(disk, "riops=20", v2) as group, flow.window() as trace, joined(group):
        job = fio(disk.path, number_ios=20)
    named(trace, "io_max", job)
    assert {line["cgroup"] for line in trace.operations} == {"/wptest"}


@pytest.mark.icount
def test_io_max_of_what_does_not_wait(disks: dict[str, Disk], flow: Running, v2: Path) -> None:
    """Requests of libaio are held while their task goes on."""
    disk = disks["io_max"]
    with limited(disk, "riops=20", v2) as group, flow.window() as trace, joined(group):
        job = fio(disk.path, number_ios=20, ioengine="libaio", iodepth=4)
    assert lossless(trace.summary), trace.summary["loss"]
    # Where asynchronous operations are not seen, only their requests are.
    reported = [*trace.operations, *trace.requests]
    assert len(reported) == total(job)
    assert set(held(trace)) == {"io_max"}
    assert held(trace)["io_max"] == pytest.approx(sum(line["stages"]["throttle_ns"] for line in reported), rel=0.02)
    assert {(line["comm"], line["cgroup"]) for line in reported} == {("fio", "/wptest")}


@pytest.mark.icount
def test_io_cost(disks: dict[str, Disk], flow: Running, v2: Path) -> None:
    """The cgroup's io.stat shows the same wait."""
    disk = disks["io_cost"]
    with costed(disk, 20, v2) as group, setting(_DEBUG, "Y"):
        with flow.window() as trace, joined(group):
            job = fio(disk.path, number_ios=40)
        found = held(trace)["io_cost"]
        # io.stat counts periods that are over.
        wait_until(lambda: _cost_wait_ns(group) > found * 0.8, "the end of a period of io.cost")
        waited = _cost_wait_ns(group)
    named(trace, "io_cost", job)
    assert found == pytest.approx(waited, rel=0.2)


def _cost_wait_ns(group: Path) -> int:
    (found,) = re.findall(r"cost\.wait=(\d+)", (group / "io.stat").read_text())
    return int(found) * 1000


@pytest.mark.icount
@pytest.mark.parametrize(("controller", "besides"), [("wbt", "tag"), ("tag", "")])
def test_writeback_throttling_and_tags(disks: dict[str, Disk], flow: Running, controller: str, besides: str) -> None:
    """Writeback throttling lets one or two writes pass at a time; without it they wait for tags.

    Each of four writers waits in its system call for what it writes through the page cache.
    """
    four = {"numjobs": 4, "thread": 1, "group_reporting": 1, "number_ios": 10}
    files = {"direct": 0, "sync": "dsync", "size": "2M", "offset_increment": "8M"}
    with flow.window(Filter(op="write")) as trace:
        job = fio(disks[controller].path, rw="write", **files, **four)
    named(trace, controller, job, besides)
    queues = {one.get("tag_queue") for one in trace.operations if "tag" in by_controller(one)}
    assert queues <= ({0} if vmlinux().tracepoint("block_rq_tag_wait") else {None}), queues
    assert bool(queues) == (controller == "tag" or "tag" in held(trace))


@pytest.mark.guest
@pytest.mark.skipif(
    not vmlinux().tracepoint("disk_zone_wplug_add_bio"), reason="writes to zones wait here for no other"
)
def test_writes_to_one_zone_wait_for_each_other() -> None:
    writes, size = 6, 4096
    settings = {"zoned": 1, "zone_size": 4, "memory_backed": 1, "irqmode": 2, "completion_nsec": 2 * MS}
    with null_device("wptest_zone", **settings) as disk:
        (disk.queue / "nomerges").write_text("2")
        with opened(disk.path, os.O_RDWR | os.O_DIRECT) as fd:
            page = mmap.mmap(-1, size)
            address = ctypes.addressof(ctypes.c_char.from_buffer(page))
            with Trace("--dev", disk.name, "--each", "--interference") as trace:
                done = Aio(writes).do_all([(WRITE, fd, address, size, number * size) for number in range(writes)])
    assert done == [size] * writes
    assert lossless(trace.summary), trace.summary["loss"]
    reported = [*trace.operations, *trace.requests]
    assert len(reported) == writes
    waited = [one for one in reported if "zone" in by_controller(one)]
    # Each but the first waits for those before it.
    assert len(waited) == writes - 1
    assert held(trace)["zone"] >= sum(range(1, writes)) * 2 * MS * 0.9
    for one in waited:
        assert sum(by_controller(one).values()) <= one["stages"]["throttle_ns"]
