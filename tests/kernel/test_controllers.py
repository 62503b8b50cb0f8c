# SPDX-License-Identifier: Apache-2.0
"""What held a request before it was one: `wptrace io` names the controller that was set up for it, and no other one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.disks import Disk, fio, null_device, setting, total
from tests.kernel.loads import costed, joined, limited
from tests.kernel.trace import Line, Trace, lossless, wait_until

MS = 1_000_000
_DEBUG = Path("/sys/module/blk_cgroup/parameters/blkcg_debug_stats")


def held(trace: Trace) -> dict[str, int]:
    """Nanoseconds by controller, of all single ones."""
    found: dict[str, int] = {}
    for line in trace.operations + trace.requests:
        for one in line.get("throttled_by", ()):
            found[one["controller"]] = found.get(one["controller"], 0) + one["ns"]
    return found


def rows(trace: Trace, kind: str, stage: str) -> list[Line]:
    return [row for row in trace.summary["rows"] if (row["kind"], row["stage"]) == (kind, stage)]


def named(trace: Trace, controller: str, job: dict[str, Any], besides: str = "") -> None:
    """It is what throttle consists of, with another one behind it; rows, single ones and the verdict agree."""
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


@pytest.mark.icount
def test_io_max(tmp_path: Path) -> None:
    with (
        null_device() as disk,
        limited(disk, "riops=20", tmp_path / "v2") as group,
        Trace("--dev", disk.name, "--each", "--interference") as trace,
    ):
        with joined(group):
            job = fio(disk.path, number_ios=20)
        trace.stop()
    named(trace, "io_max", job)
    assert {line["cgroup"] for line in trace.operations} == {"/wptest"}


@pytest.mark.icount
def test_io_max_of_what_does_not_wait(tmp_path: Path) -> None:
    """Requests of libaio are held while their task goes on."""
    with (
        null_device() as disk,
        limited(disk, "riops=20", tmp_path / "v2") as group,
        Trace("--dev", disk.name, "--each", "--interference") as trace,
    ):
        with joined(group):
            job = fio(disk.path, number_ios=20, ioengine="libaio", iodepth=4)
        trace.stop()
    assert lossless(trace.summary), trace.summary["loss"]
    # Where asynchronous operations are seen, the requests are theirs.
    told = [*trace.operations, *trace.requests]
    assert len(told) == total(job)
    assert set(held(trace)) == {"io_max"}
    assert held(trace)["io_max"] == pytest.approx(sum(line["stages"]["throttle_ns"] for line in told), rel=0.02)
    assert {(line["comm"], line["cgroup"]) for line in told} == {("fio", "/wptest")}


@pytest.mark.icount
def test_io_cost(tmp_path: Path) -> None:
    """What the cgroup waited is in its io.stat as well."""
    with (
        null_device() as disk,
        costed(disk, 20, tmp_path / "v2") as group,
        setting(_DEBUG, "Y"),
        Trace("--dev", disk.name, "--each", "--interference") as trace,
    ):
        with joined(group):
            job = fio(disk.path, number_ios=40)
        trace.stop()
        found = held(trace)["io_cost"]
        # It counts periods that are over.
        wait_until(lambda: _cost_wait_ns(group) > found * 0.8, "the end of a period of io.cost")
        waited = _cost_wait_ns(group)
    named(trace, "io_cost", job)
    assert found == pytest.approx(waited, rel=0.2)


def _cost_wait_ns(group: Path) -> int:
    (found,) = re.findall(r"cost\.wait=(\d+)", (group / "io.stat").read_text())
    return int(found) * 1000


# The device works on one at a time, for 2 ms.
_ONE = {"irqmode": 2, "completion_nsec": 2 * MS, "submit_queues": 1, "hw_queue_depth": 1}
_FOUR: dict[str, Any] = {"numjobs": 4, "thread": 1, "group_reporting": 1, "number_ios": 20}


def _four_writers(disk: Disk, wbt: str) -> tuple[Trace, dict[str, Any]]:
    """Each waits in the call for what it writes through the page cache."""
    (disk.queue / "scheduler").write_text("none")
    (disk.queue / "wbt_lat_usec").write_text(wbt)
    with Trace("--dev", disk.name, "--each", "--interference", "--op", "write") as trace:
        files = {"direct": 0, "sync": "dsync", "size": "2M", "offset_increment": "8M"}
        job = fio(disk.path, rw="write", **files, **_FOUR)
        trace.stop()
    return trace, job


@pytest.mark.icount
def test_writeback_throttling_and_tags() -> None:
    """The same load with writeback throttling, which lets one or two through, and without: they wait for tags."""
    for wbt, controller, besides in (("75000", "wbt", "tag"), ("0", "tag", "")):
        with null_device(**_ONE) as disk:
            trace, job = _four_writers(disk, wbt)
        named(trace, controller, job, besides)


@pytest.mark.one_kernel
def test_waits_for_tags(loop: Disk) -> None:
    """Also where functions cannot be observed."""
    (loop.queue / "scheduler").write_text("none")
    (loop.queue / "nr_requests").write_text("4")
    with Trace("--dev", loop.name, "--each", "--interference", "--ring-size=16M") as trace:
        fio(loop.path, numjobs=32, thread=1, group_reporting=1, number_ios=50)
        trace.stop()
    assert set(held(trace)) == {"tag"}
    for line in trace.operations:
        assert sum(one["ns"] for one in line.get("throttled_by", ())) <= line["stages"]["throttle_ns"], line
    assert not [note for note in trace.lines[0]["notes"] if "held requests back" in note]
