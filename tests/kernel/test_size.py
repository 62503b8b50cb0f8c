# SPDX-License-Identifier: Apache-2.0
"""`wptrace size` against fio's log of every block, the kernel's own counts, and bitesize of libbpf-tools."""

from __future__ import annotations

import mmap
import os
import re
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.kernel.disks import Disk, fio, scsi_debug, setting, total
from tests.kernel.peer import ended, running_peer
from tests.kernel.trace import Line, Trace
from wptrace.bpf.programs import run_statistics
from wptrace.bpf.ring import Reader
from wptrace.flows.size import SizeFlow

OPS = ("read", "write")


class SizeTrace(Trace):
    command = "size"


class Block(NamedTuple):
    op: str
    size: int
    offset: int


def blocks(prefix: Path) -> list[Block]:
    """Every block of a job in the order of its completion, which for psync is that of its issue."""
    lines = [line.split(",") for line in Path(f"{prefix}_clat.1.log").read_text().splitlines()]
    return [Block(OPS[int(words[2])], int(words[3]), int(words[4])) for words in lines]


def logged(disk: Disk, prefix: Path, **options: Any) -> list[Block]:
    fio(disk.path, write_lat_log=str(prefix), log_offset=1, **options)
    return blocks(prefix)


def sizes(summary: Line, op: str, stage: str = "total") -> dict[int, int]:
    rows = [row for row in summary["rows"] if (row["op"], row["stage"]) == (op, stage)]
    return {int(size): count for row in rows for size, count in row["counts"].items()}


def in_order(found: list[Block], op: str) -> int:
    """How many blocks begin where the one before them of the same operation ended."""
    ours = [block for block in found if block.op == op]
    return sum(after.offset == before.offset + before.size for before, after in zip(ours, ours[1:]))


def test_each_size_is_counted_as_fio_counts_it(every_disk: Disk, tmp_path: Path) -> None:
    with SizeTrace("--dev", every_disk.name) as trace:
        # Many sizes at random, then a few in order, then writes with flushes.
        found = logged(every_disk, tmp_path / "a", rw="randrw", bsrange="512-64k", number_ios=250)
        found += logged(every_disk, tmp_path / "b", rw="rw", bssplit="4k/60:12k/40", norandommap=0, number_ios=100)
        job = fio(every_disk.path, rw="write", sync="dsync", number_ios=20)
        trace.stop()
    summary = trace.summary
    for op in OPS:
        expected = Counter(block.size for block in found if block.op == op)
        if op == "write":
            expected[4096] += total(job)
        assert sizes(summary, op) == expected
        sequential = sizes(summary, op, "sequential")
        ordered = in_order(found, op) + (total(job) - 1 if op == "write" else 0)
        assert sum(sequential.values()) == ordered
        row = next(row for row in summary["rows"] if (row["op"], row["stage"]) == (op, "total"))
        assert row["sum_bytes"] == sum(size * count for size, count in expected.items())
        assert (row["min_bytes"], row["max_bytes"]) == (min(expected), max(expected))
    cached = (every_disk.queue / "write_cache").read_text().startswith("write back")
    flushes = sizes(summary, "flush")
    assert set(flushes) <= {0}
    assert flushes.get(0, 0) >= total(job) if cached else not flushes
    requests = summary["requests"]
    assert requests["finished"] == len(found) + total(job) + flushes.get(0, 0)
    assert (requests["in_flight"], requests["lost"], summary["loss"]) == (0, 0, {})


def test_order_is_that_of_the_issue(disk: Disk) -> None:
    """Eight at a time complete in whatever order; they were issued in that of the disk."""
    flow = SizeFlow((disk.path,))
    with ExitStack() as stack:
        stack.callback(flow.close)
        stack.enter_context(setting(disk.queue / "nomerges", "2"))
        flow.start(Reader())
        options = {"rw": "read", "ioengine": "libaio", "iodepth": 8, "cpus_allowed": "0"}
        job = fio(disk.path, norandommap=0, number_ios=200, **options)
        flow.stop()
        (stages,) = flow.snapshot().cells.values()
    assert stages["total"].count == total(job) == 200
    assert stages["sequential"].count == 199


@pytest.mark.guest
def test_a_request_that_is_issued_twice_counts_once() -> None:
    """The disk turns every tenth command away as if it were busy."""
    # SDEBUG_OPT_HOST_BUSY of drivers/scsi/scsi_debug.c
    with ExitStack() as stack:
        disk = stack.enter_context(scsi_debug(every_nth=10, opts=0x8000))
        stack.enter_context(run_statistics())
        flow = SizeFlow((disk.path,))
        stack.callback(flow.close)
        flow.start(Reader())
        assert flow._loaded is not None
        job = fio(disk.path, rw="randrw", size="4M", number_ios=200)
        runs = {program.name: program.statistics().run_count for program in flow._loaded.programs}
        flow.stop()
        found = flow.snapshot()
    assert runs["requeue_tp_btf"] >= 10
    assert runs["issue_tp_btf"] >= 210
    assert found.accounting.finished == total(job) == 200
    assert sum(stages["total"].counts[4096] for stages in found.cells.values()) == 200
    assert not found.accounting.noted


def test_more_sizes_than_there_are_places(loop: Disk) -> None:
    """What has no place is counted and told; the bytes are those of all."""
    many = 700
    (loop.queue / "scheduler").write_text("none")  # others may issue on another CPU, which has places of its own
    flow = SizeFlow((loop.path,))
    memory = mmap.mmap(-1, 512 * many)
    device = os.open(loop.path, os.O_RDONLY | os.O_DIRECT)
    cpus = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(cpus)})
        flow.start(Reader())
        for sectors in range(1, many + 1):
            os.preadv(device, [memoryview(memory)[: 512 * sectors]], 0)
        flow.stop()
        found = flow.snapshot()
    finally:
        os.sched_setaffinity(0, cpus)
        os.close(device)
        flow.close()
    ((group, stages),) = found.cells.items()
    (unplaced,) = found.accounting.noted.values()
    assert unplaced == many - 512
    assert stages["total"].count + unplaced == found.accounting.finished >= many
    assert found.bytes[group] == sum(512 * sectors for sectors in range(1, many + 1))
    assert found.accounting.lost_total == 0


def test_the_fallback_counts_the_same(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where tp_btf is refused raw_tp does the same, which no kernel of the matrix needs: so it is asked for here."""
    monkeypatch.setattr(SizeFlow, "hooks", tuple(hook._replace(programs=hook.programs[1:]) for hook in SizeFlow.hooks))
    flow = SizeFlow((disk.path,))
    try:
        start = flow.start(Reader())
        assert all("raw_tp" in source.how and "tp_btf" not in source.how for source in start.sources)
        job = fio(disk.path, rw="randrw", bs="8k")
        flow.stop()
        found = flow.snapshot()
    finally:
        flow.close()
    assert sum(stages["total"].counts[8192] for stages in found.cells.values()) == total(job)
    assert found.accounting.lost_total == 0


def slots(output: str) -> dict[int, int]:
    """Requests by the lower edge of bitesize's slots, in KiB."""
    lines = [re.fullmatch(r"\s*(\d+) -> \d+\s*: (\d+)\s*\|.*", line) for line in output.splitlines()]
    return {int(found[1]): int(found[2]) for found in lines if found and int(found[2])}


@pytest.mark.guest
def test_the_same_as_bitesize_in_the_same_run(disk: Disk) -> None:
    flow = SizeFlow((disk.path,))
    with ExitStack() as stack:
        peer = stack.enter_context(running_peer("bitesize-libbpf", "--disk", disk.name, "--comm", "fio", links=1))
        stack.callback(flow.close)
        flow.start(Reader())
        job = fio(disk.path, rw="randread", bssplit="4k/50:16k/30:20k/20")
        flow.stop()
        (stages,) = flow.snapshot().cells.values()
        output = ended(peer)
    ours = Counter[int]()
    for size, count in stages["total"].counts.items():
        ours[1 << (size >> 10).bit_length() - 1] += count
    assert sum(ours.values()) == total(job)
    assert slots(output) == ours, output
