# SPDX-License-Identifier: Apache-2.0
"""`wptrace size` against fio's log of every block, the kernel's own counts, and bitesize of libbpf-tools."""

from __future__ import annotations

import mmap
import os
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.kernel.disks import Disk, fio, fio_jobs, scsi_debug, setting, total
from tests.kernel.flows import running_flow
from tests.kernel.peer import ended, running_peer
from tests.kernel.trace import Line, SizeTrace
from tests.kernel.tracefs import traced
from wptrace.bpf.programs import run_statistics
from wptrace.bpf.ring import Reader
from wptrace.flows.size import SizeFlow
from wptrace.model.distribution import Distribution
from wptrace.model.kind import REQUESTS
from wptrace.model.report import BYTES
from wptrace.model.tally import Tally

OPS = ("read", "write")


def tallied(stages: Mapping[str, Distribution]) -> Counter[int]:
    found = stages["total"]
    assert isinstance(found, Tally)
    return Counter(found.counts)


class Block(NamedTuple):
    op: str
    size: int
    offset: int


def blocks(log: Path) -> list[Block]:
    """Return the blocks of a job in the order of completion, which is that of submission with psync."""
    lines = [line.split(",") for line in log.read_text().splitlines()]
    return [Block(OPS[int(words[2])], int(words[3]), int(words[4])) for words in lines]


def sizes(summary: Line, disk: Disk, op: str, stage: str = "total") -> dict[int, int]:
    rows = [row for row in summary["rows"] if (row["dev"], row["op"], row["stage"]) == (disk.name, op, stage)]
    return {int(size): count for row in rows for size, count in row["counts"].items()}


def in_order(found: list[Block], op: str) -> int:
    """Return how many blocks begin where the previous one of the same operation ended."""
    ours = [block for block in found if block.op == op]
    return sum(after.offset == before.offset + before.size for before, after in zip(ours, ours[1:]))


# Many sizes at random, then a few in order, then writes with flushes.
WORK: tuple[dict[str, Any], ...] = (
    {"rw": "randrw", "bsrange": "512-64k", "number_ios": 150},
    {"rw": "rw", "bssplit": "4k/60:12k/40", "norandommap": 0, "number_ios": 100},
    {"rw": "write", "sync": "dsync", "number_ios": 20},
)


def work(disks: list[Disk], folder: Path) -> dict[Disk, list[Block]]:
    """Run the jobs one after the other: if an interrupt runs a program within itself, the kernel skips it."""
    jobs: list[dict[str, Any]] = [{"filename": disk.path, "stonewall": 1, **part} for part in WORK for disk in disks]
    for number, job in enumerate(jobs):
        job.update(write_lat_log=str(folder / f"job{number}"), log_offset=1)
    fio_jobs(*jobs)
    found: dict[Disk, list[Block]] = {disk: [] for disk in disks}
    for number in range(len(jobs)):
        found[disks[number % len(disks)]] += blocks(folder / f"job{number}_clat.{number + 1}.log")
    return found


def test_each_size_is_counted_as_fio_counts_it(disks: list[Disk], tmp_path: Path) -> None:
    with SizeTrace(*(f"--dev={disk.name}" for disk in disks)) as trace:
        found = work(disks, tmp_path)
    summary, requests, flushed = trace.summary, 0, WORK[-1]["number_ios"]
    for disk, done in found.items():
        assert len(done) == sum(part["number_ios"] for part in WORK)
        for op in OPS:
            expected = Counter(block.size for block in done if block.op == op)
            assert sizes(summary, disk, op) == expected
            sequential = sizes(summary, disk, op, "sequential")
            assert sum(sequential.values()) == in_order(done, op)
            what = (disk.name, op, "total")
            row = next(row for row in summary["rows"] if (row["dev"], row["op"], row["stage"]) == what)
            assert row["sum_bytes"] == sum(size * count for size, count in expected.items())
            assert (row["min_bytes"], row["max_bytes"]) == (min(expected), max(expected))
        cached = (disk.queue / "write_cache").read_text().startswith("write back")
        flushes = sizes(summary, disk, "flush")
        assert set(flushes) <= {0}
        assert flushes.get(0, 0) >= flushed if cached else not flushes
        requests += len(done) + flushes.get(0, 0)
    assert summary["requests"]["finished"] == requests
    assert (summary["requests"]["in_flight"], summary["requests"]["lost"], summary["loss"]) == (0, 0, {})


@pytest.mark.one_kernel
def test_order_is_that_of_the_issue(disk: Disk) -> None:
    """Eight requests at a time may complete in any order, but were issued in the order of their sectors."""
    with setting(disk.queue / "nomerges", "2"), running_flow(SizeFlow((disk.path,))) as flow:
        options = {"rw": "read", "ioengine": "libaio", "iodepth": 8, "cpus_allowed": "0"}
        job = fio(disk.path, norandommap=0, number_ios=200, **options)
        flow.stop()
        (stages,) = flow.snapshot().cells.values()
    assert stages["total"].count == total(job) == 200
    assert stages["sequential"].count == 199


@pytest.mark.guest
def test_a_request_that_is_issued_twice_counts_once() -> None:
    """The disk rejects every tenth command as if it were busy."""
    # SDEBUG_OPT_HOST_BUSY of drivers/scsi/scsi_debug.c
    with (
        scsi_debug(every_nth=10, opts=0x8000) as disk,
        run_statistics(),
        running_flow(SizeFlow((disk.path,))) as flow,
    ):
        job = fio(disk.path, rw="randrw", size="4M", number_ios=200)
        runs = {program.name: program.statistics().run_count for program in flow._running.programs}
        flow.stop()
        found = flow.snapshot()
    assert runs["requeue_tp_btf"] >= 10
    assert runs["issue_tp_btf"] >= 210
    assert found.books[REQUESTS].finished == total(job) == 200
    assert sum(tallied(stages)[4096] for stages in found.cells.values()) == 200
    assert not found.books[REQUESTS].noted


@pytest.mark.one_kernel
def test_more_sizes_than_there_are_places(loop: Disk) -> None:
    """Sizes without a place are counted and shown; the bytes include them."""
    many = 700
    (loop.queue / "scheduler").write_text("none")  # on another CPU, places are different
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
    (unplaced,) = found.books[REQUESTS].noted.values()
    assert unplaced == many - 512
    assert stages["total"].count + unplaced == found.books[REQUESTS].finished >= many
    assert found.counters[group][BYTES] == sum(512 * sectors for sectors in range(1, many + 1))
    assert found.books[REQUESTS].lost_total == 0


@pytest.mark.one_kernel
def test_the_fallback_counts_the_same(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Force raw_tp, which replaces tp_btf where that is refused; no kernel of the matrix needs that."""
    monkeypatch.setattr(SizeFlow, "hooks", tuple(hook._replace(programs=hook.programs[1:]) for hook in SizeFlow.hooks))
    with closing(SizeFlow((disk.path,))) as flow:
        start = flow.start(Reader())
        assert all("raw_tp" in source.how and "tp_btf" not in source.how for source in start.sources)
        job = fio(disk.path, rw="randrw", bs="8k")
        flow.stop()
        found = flow.snapshot()
    assert sum(tallied(stages)[8192] for stages in found.cells.values()) == total(job)
    assert found.books[REQUESTS].lost_total == 0


def slots(output: str) -> Counter[int]:
    """Return requests by the lower bound of bitesize's slots, in KiB. It may print a name more than once."""
    lines = [re.fullmatch(r"\s*(\d+) -> \d+\s*: (\d+)\s*\|.*", line) for line in output.splitlines()]
    counts = Counter[int]()
    for found in filter(None, lines):
        counts[int(found[1])] += int(found[2])
    return +counts


@pytest.mark.guest
def test_the_same_as_the_kernels_own_tracing(disk: Disk) -> None:
    """Every issued request with its size and sector, by the kernel's own tracing."""
    ours = {"block_rq_issue": f"dev == {disk.number}"}
    with traced("block/block_rq_issue", filters=ours) as trace, running_flow(SizeFlow((disk.path,))) as flow:
        job = fio(disk.path, rw="randrw", bssplit="4k/40:16k/30:20k/30", norandommap=0, number_ios=150)
        flow.stop()
        found = flow.snapshot().cells
        issues = [re.match(r"\d+,\d+ ([RW])\S* (\d+) .*?(\d+) \+ (\d+) ", record.text) for record in trace.records()]
    requests = [
        Block(op, int(one[2]), int(one[3]) * 512) for one in issues if one for op in OPS if one[1] == op[0].upper()
    ]
    assert len(issues) == len(requests) == total(job)
    for op in OPS:
        (stages,) = (stages for group, stages in found.items() if group.label("op") == op)
        assert tallied(stages) == Counter(block.size for block in requests if block.op == op)
        assert stages["sequential"].count == in_order(requests, op)


@pytest.mark.guest
def test_the_same_as_bitesize_in_the_same_run(disk: Disk) -> None:
    with (
        running_peer("bitesize-libbpf", "--disk", disk.name, "--comm", "fio", links=1) as peer,
        running_flow(SizeFlow((disk.path,))) as flow,
    ):
        job = fio(disk.path, rw="randread", bssplit="4k/50:16k/30:20k/20")
        flow.stop()
        (stages,) = flow.snapshot().cells.values()
        output = ended(peer)
    ours = Counter[int]()
    for size, count in tallied(stages).items():
        ours[1 << (size >> 10).bit_length() - 1] += count
    assert sum(ours.values()) == total(job)
    assert slots(output) == ours, output
