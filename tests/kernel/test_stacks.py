# SPDX-License-Identifier: Apache-2.0
"""`wptrace stacks` against fio's counts, the kernel's own, and biostacks of libbpf-tools."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.conftest import GUEST
from tests.kernel.disks import Disk, fio, loop_device, null_device, total
from tests.kernel.peer import ended, running_peer
from tests.kernel.trace import PATIENCE, ROOT, Line, Trace, lossless, wait_until
from wptrace.bpf import loaded
from wptrace.bpf.kernel_btf import vmlinux
from wptrace.bpf.ring import Reader
from wptrace.engine.results import Group, Snapshot
from wptrace.engine.stack import Stack
from wptrace.flows import stacks
from wptrace.flows.stacks import Options, StacksFlow

LATENCY_NS = 5_000_000
CPUS = os.cpu_count() or 1


class StacksTrace(Trace):
    command = "stacks"


def has(row: Line, *functions: str) -> bool:
    return set(functions) <= set(row["stack"]["kernel"])


def count(summary: Line, *functions: str, **wanted: str) -> int:
    """How many I/Os were started by stacks with these functions."""
    rows = [row for row in summary["rows"] if all(row[name] == value for name, value in wanted.items())]
    return sum(row["count"] for row in rows if has(row, *functions))


@contextmanager
def mounted(disk: Disk, kind: str, point: Path) -> Iterator[Path]:
    quiet = {"check": True, "capture_output": True}
    subprocess.run([f"mkfs.{kind}", "-q", *(["-f"] if kind == "xfs" else ["-F"]), disk.path], **quiet)
    point.mkdir()
    subprocess.run(["mount", "-t", kind, disk.path, str(point)], **quiet)
    try:
        yield point
    finally:
        subprocess.run(["umount", str(point)], **quiet)


def test_two_file_systems_have_different_stacks(disk: Disk, tmp_path: Path) -> None:
    """Two jobs that take turns on a CPU, each with as many I/Os in its own stacks as fio says."""
    with ExitStack() as stack:
        other = stack.enter_context(loop_device(tmp_path / "other.img", "320M"))  # xfs wants 300 MB
        places = {
            "ext4": stack.enter_context(mounted(disk, "ext4", tmp_path / "ext4")),
            "xfs": stack.enter_context(mounted(other, "xfs", tmp_path / "xfs")),
        }
        for place in places.values():
            (place / "file").write_bytes(bytes(8 << 20))
        subprocess.run(["sync"], check=True)
        trace = stack.enter_context(StacksTrace("--dev", disk.name, "--dev", other.name))
        jobs = [_job(place / "file", number) for place, number in zip(places.values(), (150, 90))]
        for job in jobs:
            assert job.wait(timeout=PATIENCE) == 0
        trace.stop()
    summary = trace.summary
    assert count(summary, "ext4_file_read_iter", dev=disk.name, op="read") == 150
    assert count(summary, "xfs_file_read_iter", dev=other.name, op="read") == 90
    assert count(summary, "ext4_file_read_iter") == 150
    assert count(summary, "xfs_file_read_iter") == 90
    for name, number in (("ext4_file_read_iter", 150), ("xfs_file_read_iter", 90)):
        rows = [row for row in summary["rows"] if has(row, name)]
        assert sum(row["bytes"] for row in rows) == 4096 * number
        # The innermost function is the kernel's, not what takes the stack.
        assert all(row["stack"]["kernel"][0].startswith(("blk_mq_", "__blk_mq_")) for row in rows), rows
    assert lossless(summary), summary


def _job(file: Path, number: int) -> subprocess.Popen[bytes]:
    command = ["fio", "--name=job", f"--filename={file}", "--rw=randread", "--bs=4k", "--direct=1", "--size=8M"]
    command += ["--norandommap", "--ioengine=psync", f"--number_ios={number}", "--thread", "--output-format=terse"]
    command += ["--cpus_allowed=0"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def test_merges_are_charged_to_who_merged(disk: Disk) -> None:
    """Pages of a file that are written back merge into few requests; each of them is an I/O here."""
    before = statistics(disk)
    with StacksTrace("--dev", disk.name) as trace:
        job = fio(disk.path, rw="write", direct=0, bs="64k", number_ios=40, end_fsync=1, norandommap=0)
        trace.stop()
    after = statistics(disk)
    summary = trace.summary
    assert after["merged"] - before["merged"] > 0
    assert count(summary, "bio_attempt_back_merge", op="write") == after["merged"] - before["merged"]
    # The sequence of a flush, which has no data, counts in the kernel as another write.
    assert count(summary, op="write") <= after["finished"] - before["finished"] + after["merged"] - before["merged"]
    assert sum(row["bytes"] for row in summary["rows"]) == (after["sectors"] - before["sectors"]) * 512
    assert sum(row["bytes"] for row in summary["rows"]) == job["write"]["io_bytes"]
    assert summary["requests"]["in_flight"] == 0
    assert lossless(summary), summary


def statistics(disk: Disk) -> dict[str, int]:
    """Of writes, as /sys/block/*/stat has them (Documentation/block/stat.rst)."""
    fields = [int(field) for field in Path("/sys/class/block", disk.name, "stat").read_text().split()]
    return {"finished": fields[4], "merged": fields[5], "sectors": fields[6]}


def test_a_write_with_flushes_ends_once(every_disk: Disk) -> None:
    """Its data and its flushes are several requests, and one I/O; where the disk has no FUA, a flush is one as well."""
    with StacksTrace("--dev", every_disk.name) as trace:
        job = fio(every_disk.path, rw="write", sync="dsync", number_ios=30)
        trace.stop()
    assert count(trace.summary, op="write") == total(job)
    flushes = count(trace.summary, "blkdev_issue_flush", op="flush")
    assert flushes in (0, total(job))
    assert trace.summary["requests"]["finished"] == total(job) + flushes
    assert trace.summary["requests"]["in_flight"] == 0
    assert lossless(trace.summary), trace.summary


def test_folded_lines_for_a_process_with_its_own_stack(disk: Disk, tmp_path: Path) -> None:
    """What a flame graph is made of: the process outermost, the block layer innermost, and the count."""
    # fio waits for a newline, so that its pid is known before its first I/O.
    command = f"read line; exec fio --name=job --filename={disk.path} --rw=randread --bs=4k --direct=1 --size=32M"
    command += " --norandommap --ioengine=psync --number_ios=120 --thread --output-format=terse"
    wanted = subprocess.Popen(["sh", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    result = tmp_path / "folded"
    links = len(list(loaded.links()))
    arguments = ["-d", disk.name, "-p", str(wanted.pid), "-D", "--user", "--folded", "count", "-o", str(result)]
    trace = subprocess.Popen([sys.executable, "-m", "wptrace", "stacks", *arguments], stderr=subprocess.PIPE, cwd=ROOT)
    wait_until(lambda: len(list(loaded.links())) >= links + 4, "the programs")
    fio(disk.path, number_ios=50)  # somebody else's
    wanted.communicate("\n", timeout=PATIENCE)
    trace.send_signal(signal.SIGINT)
    assert trace.communicate(timeout=PATIENCE) == (None, b"")
    stacks = dict(line.rsplit(" ", 1) for line in result.read_text().splitlines())
    assert sum(map(int, stacks.values())) == 120
    for line in stacks:
        frames = line.split(";")
        assert frames[0] == disk.name
        assert re.fullmatch(rf"\S+\[{wanted.pid}\]", frames[1])
        assert any("pread" in frame for frame in frames)
        assert frames.index("vfs_read") < frames.index("blk_mq_submit_bio")


def run(options: Options, disk: Disk, **job: Any) -> tuple[Snapshot, dict[str, Any]]:
    flow = StacksFlow(options)
    try:
        flow.start(Reader())
        done = fio(disk.path, **job)
        flow.stop()
        return flow.snapshot(), done
    finally:
        flow.close()


def test_min_leaves_quick_ones_uncharged(disk: Disk) -> None:
    found, job = run(Options((disk.path,), min_ns=3600 * 10**9), disk)
    assert found.accounting.finished == total(job)
    assert found.cells == {}


def test_the_fallback_charges_the_same(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where tp_btf is refused raw_tp does the same, which no kernel of the matrix needs: so it is asked for here."""
    hooks = tuple(hook._replace(programs=hook.programs[1:]) for hook in StacksFlow.hooks)
    monkeypatch.setattr(StacksFlow, "hooks", hooks)
    found, job = run(Options((disk.path,)), disk, rw="randrw")
    assert started(found, "vfs_read") == job["read"]["total_ios"]
    assert started(found, "vfs_write") == job["write"]["total_ios"]
    assert (found.accounting.in_flight, found.accounting.lost, found.accounting.noted) == (0, {}, {})


def started(found: Snapshot, function: str) -> int:
    return sum(stages["total"].count for group, stages in found.cells.items() if function in kernel(group))


def kernel(group: Group) -> tuple[str, ...]:
    assert isinstance(group.key, Stack)
    return group.key.kernel


@pytest.mark.parametrize(("room", "second_room"), [(1, 1024), (1, 1)], ids=["a second chance", "none"])
def test_stacks_that_want_one_place(loop: Disk, room: int, second_room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two stacks and room for one: the other gets a second chance, or is told to have no place; both are counted."""
    monkeypatch.setattr(stacks, "_STACKS", room)
    monkeypatch.setattr(stacks, "_MORE_STACKS", second_room)
    # Reads at first, so that the stack which has no room is known.
    found, job = run(Options((loop.path,)), loop, rw="rw", norandommap=0)
    total_ios = {"vfs_read": job["read"]["total_ios"], "vfs_write": job["write"]["total_ios"]}
    seen = {name: started(found, name) for name in total_ios}
    if second_room > 1:
        assert seen == total_ios
        assert found.accounting.noted == {}
    else:
        assert 0 < sum(seen.values()) <= total(job)
    without = started(found, "[no stack]")
    assert sum(seen.values()) + without == total(job) == found.accounting.finished
    assert sum(found.accounting.noted.values()) == without


@pytest.mark.guest
def test_the_same_as_biostacks_in_the_same_run(disk: Disk) -> None:
    if not vmlinux().tracepoint("block_io_start"):
        pytest.skip("biostacks of today knows kernels with the tracepoint block_io_start, from 6.5 on")
    flow = StacksFlow(Options((disk.path,)))
    with ExitStack() as stack:
        peer = stack.enter_context(running_peer("biostacks-libbpf", "--disk", disk.name, links=3))
        stack.callback(flow.close)
        flow.start(Reader())
        job = fio(disk.path, rw="randrw", thread=1)
        flow.stop()
        found = flow.snapshot()
        output = ended(peer)
    theirs: Counter[str] = Counter()
    for block in output.split("\n\n"):
        counts = [int(match) for match in re.findall(r"-> \d+\s*: (\d+)\s*\|", block)]
        for name in ("vfs_read", "vfs_write"):
            if f"\n{name}\n" in block:
                theirs[name] += sum(counts)
    assert theirs == {"vfs_read": job["read"]["total_ios"], "vfs_write": job["write"]["total_ios"]}, output
    assert {name: started(found, name) for name in theirs} == theirs


@pytest.mark.icount
def test_latency_is_fios() -> None:
    assert GUEST, "this test needs a guest with --icount: python3 -m tests.run starts it"
    with null_device(irqmode=2, completion_nsec=LATENCY_NS) as disk:
        found, job = run(Options((disk.path,)), disk, number_ios=200)
    clat = job["read"]["clat_ns"]
    (stages,) = found.cells.values()
    assert stages["total"].count == clat["N"]
    assert stages["total"].mean == pytest.approx(clat["mean"], rel=0.05)
    assert stages["total"].min >= LATENCY_NS
