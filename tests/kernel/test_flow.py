# SPDX-License-Identifier: Apache-2.0
"""`wptrace flow` with a definition of the block layer, against fio's counts and those of `wptrace io --level block`."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernel.disks import Disk, fio, fio_jobs, opened, total
from tests.kernel.flows import defined, running_flow
from tests.kernel.trace import PATIENCE, ROOT, BlockTrace, FlowTrace, Line, bpftool, lossless, wait_until, wptrace
from wptrace.engine.definition.flow import SLOTS_OF_OLD_KERNELS
from wptrace.model.kind import REQUESTS

DISK = "request->q->disk->disk_name | request->rq_disk->disk_name"
# The same as `io --level block --times own`: from the bio to its request, and to its end.
BLOCK = """
name = "block"
noun = ["request", "requests"]
[[point]]
name = "G"
at = "tp:block_getrq"
key = "bio"
stage = "queue"
filter = ["bio->bi_bdev->bd_disk->disk_name | bio->bi_disk->disk_name == 'NAME'"]
[[point]]
name = "D"
at = "tp:block_rq_issue"
key = "request->bio"
becomes = "request"
stage = "device"
value = "request->__data_len"
labels = [{ name = "disk", value = "DISK" }]
[[point]]
name = "C"
at = "tp:block_rq_complete"
key = "request"
[[point]]
name = "merged"
at = "tp:block_bio_backmerge"
key = "bio"
role = "drop"
"""
# Only from the issue on: two tracepoints.
ISSUED = """
name = "issued"
noun = ["request", "requests"]
[[point]]
name = "D"
at = "AT:block_rq_issue"
key = "request"
stage = "device"
value = "request->__data_len"
labels = [{ name = "disk", value = "DISK" }]
filter = ["DISK == 'NAME'"]
[[point]]
name = "C"
at = "tp:block_rq_complete"
key = "request"
"""


def definition(folder: Path, text: str, disk: Disk) -> str:
    file = folder / "flow.toml"
    file.write_text(text.replace("DISK", DISK).replace("NAME", disk.name).replace("AT:", "tp:"))
    return str(file)


def counts(summary: Line, stage: str = "total") -> dict[str, int]:
    return {row["labels"].get("disk", ""): row["count"] for row in summary["rows"] if row["stage"] == stage}


def test_it_counts_what_io_counts(disk: Disk, tmp_path: Path) -> None:
    """The same number of requests, one and eight at a time, from the bio or from the issue on."""
    whole = definition(tmp_path, BLOCK, disk)
    (tmp_path / "issued").mkdir()
    issued = definition(tmp_path / "issued", ISSUED, disk)
    with (
        BlockTrace("--times", "own", f"--dev={disk.path}") as io,
        FlowTrace(whole) as flow,
        FlowTrace(issued) as from_d,
    ):
        job = {"filename": disk.path, "rw": "randrw", "number_ios": 300, "stonewall": 1}
        found = fio_jobs({**job, "ioengine": "psync"}, {**job, "ioengine": "libaio", "iodepth": 8})
        for trace in (io, flow, from_d):
            trace.stop()
    made = sum(map(total, found))
    for trace in (flow, from_d):
        summary = trace.summary
        assert summary["requests"] == {**io.summary["requests"], "finished": made, "started": made}
        assert counts(summary) == counts(summary, "device") == {disk.name: made}
        assert summary["bytes"] == io.summary["bytes"] == 4096 * made
        assert lossless(summary)
    assert counts(flow.summary, "queue") == {disk.name: made}
    # Stages add up to the total, so their sums do.
    sums = {row["stage"]: row["sum_ns"] for row in flow.summary["rows"]}
    assert sums["queue"] + sums["device"] == sums["total"] > 0


@pytest.mark.one_kernel
def test_single_ones(disk: Disk, tmp_path: Path) -> None:
    with FlowTrace(definition(tmp_path, BLOCK, disk), "--each", "--total") as trace:
        made = total(fio(disk.path, rw="randread", number_ios=100))
    reported = [line for line in trace.lines if line["kind"] == "object"]
    assert len(reported) == made == trace.summary["requests"]["finished"]
    for one in reported:
        assert one["stages"]["queue_ns"] + one["stages"]["device_ns"] == one["total_ns"]
        assert (one["labels"], one["comm"], one["value"]) == ({}, "fio", 4096)


def test_whose_they_are(disk: Disk, tmp_path: Path) -> None:
    """The end of another process's request is no loss."""
    with FlowTrace(definition(tmp_path, BLOCK, disk), f"--pid={os.getpid()}") as trace:
        with opened(disk.path, os.O_RDONLY) as fd:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
            for at in range(10):
                os.pread(fd, 4096, at << 16)
        fio(disk.path, rw="randread", number_ios=50)
    assert trace.summary["requests"]["finished"] == 10
    assert lossless(trace.summary)


def test_what_a_kill_leaves(disk: Disk, tmp_path: Path) -> None:
    def own() -> set[str]:
        return {one.get("name", "") for one in bpftool("prog").values()} & {"D_tp_btf_block_", "D_raw_tp_block_"}

    trace = FlowTrace(definition(tmp_path, ISSUED, disk))
    assert own()
    trace.process.send_signal(signal.SIGKILL)
    trace.process.wait(PATIENCE)
    trace.kill()
    wait_until(lambda: not own(), "its programs to go")


@pytest.mark.one_kernel
def test_a_small_table_loses_nothing_uncounted(disk: Disk, tmp_path: Path) -> None:
    with FlowTrace(definition(tmp_path, ISSUED, disk), "--slots=16") as trace:
        made = total(fio(disk.path, rw="randread", number_ios=500, ioengine="libaio", iodepth=64))
    requests = trace.summary["requests"]
    assert requests["started"] == made == requests["finished"] + requests["lost"]
    assert requests["in_flight"] == 0


@pytest.mark.parametrize("slots", [1 << 12, 1 << 17, 1 << 20])
def test_tables_of_any_size_are_taken(disk: Disk, tmp_path: Path, slots: int) -> None:
    """The verifiers of 6.1 and 6.12 refused tables of more than 65,536 slots."""
    words = (definition(tmp_path, ISSUED, disk), f"--slots={slots}")
    if slots > SLOTS_OF_OLD_KERNELS and not _has_large_values(tmp_path, disk):
        done = wptrace("flow", *words)
        assert (done.returncode, "slots are not possible on this kernel" in done.stderr) == (2, True), done.stderr
        return
    with FlowTrace(*words) as trace:
        job = fio(disk.path, number_ios=50)
    assert trace.summary["requests"]["finished"] == total(job) == 50
    assert lossless(trace.summary)


def _has_large_values(folder: Path, disk: Disk) -> bool:
    """Tell whether the kernel can make maps with a single value of more than 4 MiB."""
    done = wptrace("flow", definition(folder, ISSUED, disk), "--slots=32768", "0.1", "1")
    return done.returncode == 0


def test_what_two_cpus_took_at_once_is_found_in_the_end(tmp_path: Path) -> None:
    """Kernels before 5.12 have no atomic exchange, so two CPUs may begin in the same slot, which one of them gets."""
    text = Path(definition(tmp_path, ISSUED, Disk("nodisk"))).read_text()
    with running_flow(defined(text)) as flow:
        objects = flow._obj.maps["objects"]
        whole = bytes(4)
        slots = bytearray(objects[whole])
        key, begun = 7, 2
        struct.pack_into("QQ", slots, 3 * flow._obj.struct("object").size, key, begun)
        objects[whole] = bytes(slots)
        assert flow.snapshot().books[REQUESTS].in_flight == 2
        flow.stop()
        book = flow.snapshot().books[REQUESTS]
    assert (book.started, book.in_flight) == (2, 1)
    assert {cause.name: count for cause, count in book.lost.items()} == {"collided": 1}


@pytest.mark.one_kernel
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["nothing"], 2, "there is no flow 'nothing'"),
        (["FILE", "--by=nope"], 2, "issued has no label nope: it has disk"),
        (["FILE", "--slots=1000"], 2, "--slots takes a power of two from 16 to"),
        (["FILE", "--rows=16385"], 2, "--rows takes a number from 1 to 16,384, not 16385"),
        (["FILE", "--hist=nope"], 2, "there is no stage nope"),
        (["FILE", "--btf=/dev/null"], 2, "--btf goes with --check or --explain"),
        (["FILE", "--program=/bin/sh"], 2, "--program goes with points in programs, and issued has none"),
        ([], 2, "name a definition"),
    ],
)
def test_what_is_refused(words: list[str], code: int, said: str, tmp_path: Path) -> None:
    file = definition(tmp_path, ISSUED, Disk("nodisk"))
    done = wptrace("flow", *(file if word == "FILE" else word for word in words))
    assert done.returncode == code
    assert said in done.stderr.splitlines()[0]


@pytest.mark.one_kernel
def test_check_and_explain(tmp_path: Path) -> None:
    file = definition(tmp_path, ISSUED, Disk("nodisk"))
    checked = wptrace("flow", file, "--check")
    assert (checked.returncode, checked.stderr) == (0, "")
    assert "C  end    tp_btf block_rq_complete" in checked.stdout
    explained = wptrace("flow", file, "--explain")
    assert explained.returncode == 0
    assert explained.stdout.startswith(checked.stdout)
    assert "the body `begin`" in explained.stdout


FUNCTION = """
name = "calls"
key = "task"
[[point]]
name = "in"
at = "fn:NAME"
[[point]]
name = "out"
at = "ret:NAME"
"""


@pytest.mark.parametrize("name", ["vfs_fsync_range", "futex_wait", "ksys_sync"])
def test_check_says_what_a_start_says(tmp_path: Path, name: str) -> None:
    """A function may be in BTF and still take no program."""
    file = definition(tmp_path, FUNCTION, Disk(name))
    started, checked = wptrace("flow", file, "0.1", "1"), wptrace("flow", file, "--check")
    assert checked.returncode == started.returncode
    # A start says the first fault alone.
    assert checked.stderr.splitlines()[:1] == started.stderr.splitlines()[:1]
    assert ("can be traced" in checked.stdout) == (started.returncode == 0)


TWO_ENDS = """
name = "twice"
key = "KEY"
[[point]]
name = "in"
at = "BEGIN"
[[point]]
name = "first"
at = "END"
outcome = "first"
[[point]]
name = "second"
at = "END"
outcome = "second"
"""


@pytest.mark.guest
@pytest.mark.parametrize(
    ("begin", "end", "key"),
    [
        ("fn:blkdev_fsync", "ret:blkdev_fsync", "task"),
        ("fn:blkdev_fsync", "fn:blkdev_issue_flush", "task"),
        ("tp:block_rq_issue", "tp:block_rq_complete", "request"),
    ],
)
def test_of_two_ends_at_one_hook_the_first_in_the_file_counts(
    disk: Disk, tmp_path: Path, begin: str, end: str, key: str
) -> None:
    """The kernel runs the last program attached to a function first, and the last one at a tracepoint last."""
    file = tmp_path / "twice.toml"
    file.write_text(TWO_ENDS.replace("KEY", key).replace("BEGIN", begin).replace("END", end))
    with FlowTrace(str(file)) as trace:
        fio(disk.path, rw="write", number_ios=20, fsync=1)
    events = [row["events"] for row in trace.summary["rows"] if row["stage"] == "total" and "events" in row]
    assert sum(one.get("first", 0) for one in events) >= 15, trace.summary["rows"]
    assert not any("second" in one for one in events)


def test_a_point_that_this_kernel_lacks(tmp_path: Path) -> None:
    file = definition(tmp_path, ISSUED.replace("tp:block_rq_complete", "tp:block_rq_complet"), Disk("nodisk"))
    done = subprocess.run(
        [sys.executable, "-m", "wptrace", "flow", file], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 2
    assert "block_rq_complet" in done.stderr
