# SPDX-License-Identifier: Apache-2.0
"""`wptrace io --level request`: requests with their owners, tasks that sleep for them, and no operations."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Callable

import pytest

from tests.kernel.disks import Disk, fio
from tests.kernel.test_capture import replayed
from tests.kernel.test_owners import totals
from tests.kernel.trace import Line, Trace, count
from wptrace.bpf import trial
from wptrace.bpf.object import BpfObject
from wptrace.bpf.programs import run_statistics
from wptrace.flows.io import calls, operations

# Kinds of rows that are about operations.
_OPERATIONS = {"operation", "hit", "owned_operation", "owned_hit", "work"}
_WORDS = ("--level=request", "--by=process", "--waits=0")


def load(disk: Disk, reads: int, **options: object) -> Line:
    return fio(disk.path, rw="randread", number_ios=reads, **options)


def right(trace: Trace, job: Line) -> None:
    """The trace has all of fio's requests and waits."""
    summary, reads = trace.summary, job["read"]["total_ios"]
    assert count(summary, op="read") == reads == summary["requests"]["finished"]
    assert [row["count"] for row in totals(summary, "owned_request") if row["owner"].startswith("fio[")] == [reads]
    assert not _OPERATIONS & {row["kind"] for row in summary["rows"]}
    assert "operations" not in summary
    (slept,) = totals(summary, "sleep")
    # At most as many as its voluntary context switches.
    assert 0 < slept["count"] <= job["ctx"]
    named = totals(summary, "wait")
    assert sum(row["count"] for row in named) == slept["count"]
    asleep = sum(row["sum_ns"] for row in summary["rows"] if (row["kind"], row["stage"]) == ("sleep", "asleep"))
    assert sum(row["sum_ns"] for row in named) == asleep <= slept["sum_ns"]
    assert max(named, key=lambda row: row["count"])["reason"] == "direct I/O"
    assert [row["owner"].partition("[")[0] for row in totals(summary, "owned_wait")] == ["fio"] * len(named)


@pytest.mark.one_kernel
def test_requests_and_waits_of_a_task(loop: Disk, tmp_path: Path) -> None:
    capture = tmp_path / "capture.wpt"
    with Trace(*_WORDS, "--each", f"--capture={capture}", f"--dev={loop.name}") as trace:
        job = load(loop, 300)
    right(trace, job)
    lines = replayed(capture)
    assert lines[-1]["rows"] == trace.summary["rows"]
    assert lines[-1]["verdict"] == trace.summary["verdict"]
    requests = [line for line in lines if line["kind"] == "request"]
    assert len(requests) == 300
    slowest = max(requests, key=lambda line: line["total_ns"])
    assert sum(slowest["stages"].values()) == slowest["total_ns"] <= job["read"]["clat_ns"]["max"]
    assert (slowest["comm"], slowest["bytes"]) == ("fio", 4096)
    assert "path" not in slowest
    again = replayed(capture, "--by=comm")[-1]
    assert [(row["owner"], row["count"]) for row in totals(again, "owned_request")] == [("fio", 300)]
    assert not _OPERATIONS & {row["kind"] for row in again["rows"]}


@pytest.mark.one_kernel
@pytest.mark.guest
def test_requests_of_a_real_disk(disk: Disk) -> None:
    with Trace(*_WORDS, "--interference", "--slow=1s", f"--dev={disk.name}") as trace:
        job = load(disk, 200)
    right(trace, job)
    # This disk shows the start and the end of the driver's work.
    stages = {row["stage"]: row for row in trace.summary["rows"] if row["kind"] == "request"}
    assert all(stages[name]["min_ns"] > 0 for name in ("driver", "device", "complete"))


@pytest.mark.one_kernel
def test_who_waits_for_events_of_asynchronous_reads(loop: Disk) -> None:
    with Trace("--level=request", "--waits=0", f"--dev={loop.name}") as trace:
        job = load(loop, 400, ioengine="libaio", iodepth=4)
    assert count(trace.summary, op="read") == job["read"]["total_ios"]
    reasons = {row["reason"]: row["count"] for row in totals(trace.summary, "wait")}
    assert reasons
    assert max(reasons, key=reasons.__getitem__) == "AIO events"


@pytest.mark.one_kernel
def test_system_calls_are_counted_by_what_they_are_about(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with (
        (tmp_path / "file").open("rb") as file,
        Path(os.devnull).open("rb") as null,
        trial.open_here("calls") as obj,
    ):
        obj.load()
        obj.bss.calls = operations.calls(len(obj.view("calls")), obj.enum("call_kind"), plain=True, syncs=True)
        for program in obj.progs.values():
            program.attach()
        every: dict[str, Callable[[], object]] = {
            "other": os.getppid,
            "not_stored": partial(os.pread, null.fileno(), 1, 0),
            "stored": partial(os.pread, file.fileno(), 1, 0),
        }
        for about, call in every.items():
            before = counted(obj)
            for _ in range(20_000):
                call()
            more = {name: now - before[name] for name, now in counted(obj).items()}
            # Other processes make calls as well, but fewer.
            assert more[about] >= 20_000
            assert max(more, key=more.__getitem__) == about
    assert calls.price().calls > 0


def counted(obj: BpfObject) -> dict[str, int]:
    found = [each.counts for each in obj.maps["counted"][0]]
    return {name: sum(counts[at] for counts in found) for at, name in enumerate(obj.enum("call_about"))}


@pytest.mark.one_kernel
def test_a_budget_counts_what_the_kernel_does_for_each_call() -> None:
    with trial.open_here("calls") as obj:
        obj.load()
        enter = obj.progs["enter_raw_tp"]
        enter.attach()
        slow = calls.SlowPath(enter, 100.0)
        with run_statistics():
            before = slow.statistics().run_time_ns
            for _ in range(10_000):
                os.getppid()
            assert slow.statistics().run_time_ns - before >= 10_000 * 100
        # They are not counted as runs of another program.
        assert slow.statistics().run_count == 0
