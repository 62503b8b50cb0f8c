# SPDX-License-Identifier: Apache-2.0
"""`wptrace io --capture` and `wptrace replay`: what is told later is what was counted."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.kernel.disks import Disk, fio
from tests.kernel.trace import Line, Trace, check, lossless, programs, rows, same_as_told, wait_until, wptrace

pytestmark = pytest.mark.one_kernel


def replayed(file: Path, *options: str) -> list[Line]:
    done = wptrace("replay", str(file), "--json", *options)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    for line in lines:
        check(line)
    assert lines[0]["kind"] == "start"
    return lines


def test_a_capture_tells_what_the_trace_counted(disk: Disk, tmp_path: Path) -> None:
    file = tmp_path / "trace.wpt"
    with Trace("--each", f"--capture={file}", f"--dev={disk.name}") as trace:
        job = fio(disk.path, rw="randrw", number_ios=400)
        trace.stop()
    assert lossless(trace.summary)
    assert trace.operations == trace.requests == []
    start, *told = replayed(file)
    assert start == trace.lines[0] | {"file": str(file)}
    assert Counter((one["kind"], one["op"]) for one in told) == {
        ("operation", op): job[op]["total_ios"] for op in ("read", "write")
    }
    for op in ("read", "write"):
        same_as_told(rows(trace.summary, "operation", op, disk.name), told, disk.name, op)
    assert {(one["comm"], one["path"], one["length"]) for one in told} == {("fio", disk.path, 4096)}
    # Those that it does not tell are the shorter ones.
    times = sorted(one["total_ns"] for one in told)
    assert [one["total_ns"] for one in replayed(file, f"--slow={times[300]}ns")[1:]] == [
        one["total_ns"] for one in told if one["total_ns"] >= times[300]
    ]


def test_what_a_full_ring_lost_is_said(disk: Disk, tmp_path: Path) -> None:
    file = tmp_path / "trace.wpt"
    with Trace("--each", f"--capture={file}", "--ring-size=4K", f"--dev={disk.name}") as trace:
        trace.process.send_signal(signal.SIGSTOP)
        fio(disk.path, number_ios=300)
        trace.process.send_signal(signal.SIGCONT)
        trace.stop()
    lost = trace.summary["loss"]["ring_full"]
    start, *told = replayed(file)
    assert lost > 0
    assert len(told) + lost == trace.summary["operations"]["finished"] == 300
    assert start["notes"][-1] == f"the ring had no room for {lost:,} records: they are missing"


def test_a_killed_trace_leaves_what_it_wrote(disk: Disk, tmp_path: Path) -> None:
    file = tmp_path / "trace.wpt"
    with Trace("--each", f"--capture={file}", "--ring-size=64K", f"--dev={disk.name}") as trace:
        begun = file.stat().st_size
        fio(disk.path, number_ios=2000)
        wait_until(lambda: file.stat().st_size > begun + 4096, "some of it in the file")
        trace.kill()
    start, *told = replayed(file)
    assert 0 < len(told) <= 2000
    assert start["notes"][-1].startswith("the capture has no end")


def test_a_full_disk_ends_the_trace_with_a_sentence(disk: Disk) -> None:
    done = wptrace("io", "--each", "--capture=/dev/full", f"--dev={disk.name}")
    assert (done.returncode, done.stdout.count("\n")) == (1, 0)
    assert done.stderr == "wptrace: /dev/full cannot be written: No space left on device\n"
    wait_until(lambda: not programs(), "the end of the programs")
