# SPDX-License-Identifier: Apache-2.0
"""Events of requests, against the kernel's own counts and tracepoints: merges, splits, requeues, partial completions,
errors, timeouts, discards, zeroes, zones. Nothing is lost, whatever happens to a request.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.kernel import tracefs
from tests.kernel.conftest import GUEST
from tests.kernel.disks import Disk, fio, loop_device, null_device, opened, scsi_debug, setting
from tests.kernel.loads import mounted
from tests.kernel.trace import BlockTrace, Line, Lines, SizeTrace, Trace, count, lossless
from tests.kernel.window import Running, block_of


def events(summary: Line, name: str, op: str | None = None) -> int:
    """Return how often an event happened to requests, by the rows."""
    return sum(row.get("events", {}).get(name, 0) for row in summary["rows"] if op in (None, row["op"]))


def reported(trace: Lines, name: str) -> int:
    """Return how often it happened by the records. Operations that share a merged request report all of its events."""
    total = 0
    shared: dict[int | None, tuple[int, int]] = {}  # by sector: the latest end so far and the most events
    for line in sorted(single(trace), key=lambda one: one["ts_ns"] - one["total_ns"]):
        until, most = shared.get(line.get("sector"), (0, 0))
        if line["ts_ns"] - line["total_ns"] >= until:
            until, most = 0, 0
        often = line.get("events", {}).get(name, 0)
        total += max(often - most, 0)
        shared[line.get("sector")] = max(until, line["ts_ns"]), max(most, often)
    return total


def single(trace: Lines) -> list[Line]:
    return [*trace.operations, *trace.requests]


class Disks(NamedTuple):
    plain: Disk
    short: Disk
    """A loop device whose file has become shorter."""
    failing: Disk | None = None
    """A disk of a driver that fails on demand, in guests."""
    zoned: Disk | None = None


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disks]:
    top = tmp_path_factory.mktemp("disks")
    with ExitStack() as stack:
        # A guest's files are in memory, which takes no direct I/O before 6.6 (e88e0d366f9c).
        folder = stack.enter_context(mounted(Disk("vda"), "ext4", top / "fs")) if GUEST else top
        short = stack.enter_context(loop_device(folder / "short.img"))
        subprocess.run(["losetup", "--direct-io=on", short.path], check=True)
        os.truncate(folder / "short.img", (32 << 20) + (12 << 10))
        if GUEST:
            failing = stack.enter_context(scsi_debug(dev_size_mb=32, statistics=1))
            zoned = stack.enter_context(null_device(zoned=1, zone_size=4, memory_backed=1))
            yield Disks(Disk("nvme0n1"), short, failing, zoned)
        else:
            yield Disks(stack.enter_context(loop_device(top / "disk.img")), short)


@pytest.fixture
def disk(disks: Disks) -> Disk:
    return disks.plain


@pytest.fixture
def scsi(disks: Disks) -> Disk:
    assert disks.failing is not None
    return disks.failing


Flows = dict[str, Running]


@pytest.fixture(scope="module")
def flows(path_flow: Running, disks: Disks) -> Iterator[Flows]:
    """A trace of each level, shared by all tests."""
    every = [disk for disk in disks if disk is not None]
    with block_of(*every) as block:
        yield {"path": path_flow.aim(*every), "block": block}


class Watched:
    """The kernel's counts, the hits of its tracepoints and a trace of each level."""

    def __init__(self) -> None:
        self.grown: dict[str, int] = {}
        self.fired: dict[str, int] = {}
        self.traces: dict[str, Lines] = {}


@contextmanager
def watched(disk: Disk, flows: Flows) -> Iterator[Watched]:
    """Trace with both levels at once, because in a guest fio takes longer than a second trace."""
    seen = Watched()
    names = ("block_rq_complete", "block_rq_requeue", "block_split")
    of_disk = dict.fromkeys(names, f"dev == {disk.number}")
    with ExitStack() as stack:
        seen.traces.update((level, stack.enter_context(flow.window())) for level, flow in flows.items())
        kernel = stack.enter_context(tracefs.traced(*(f"block/{name}" for name in names), filters=of_disk))
        before = disk.completed()
        yield seen
        after = disk.completed()
        seen.grown.update({name: after[name] - before[name] for name in after})
        records = kernel.records()
        seen.fired.update({name: len([one for one in records if one.name == name]) for name in names})
    for level, trace in seen.traces.items():
        assert lossless(trace.summary), (level, trace.summary["loss"])
        assert trace.summary["requests"]["in_flight"] == 0, level


READS = 64


def batch(disk: Disk, **options: Any) -> None:
    """Read sequentially, eight requests at a time, so that the plug merges them."""
    fio(
        disk.path,
        **{"rw": "read", "ioengine": "libaio", "iodepth": 8, "iodepth_batch": 8, "number_ios": READS, **options},
    )


def read(disk: Disk, offset: int, length: int) -> int:
    """Make one direct read and return its result, or a negative errno."""
    fd = os.open(disk.path, os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, length) as buffer:
            return os.preadv(fd, [buffer], offset)
    except OSError as error:
        return -(error.errno or 0)
    finally:
        os.close(fd)


def test_merges(disk: Disk, flows: Flows) -> None:
    with watched(disk, flows) as seen:
        batch(disk)
    for trace in seen.traces.values():
        merged = events(trace.summary, "merged", "read")
        assert merged == seen.grown["read_merges"] > 0
        assert reported(trace, "merged") == merged
        assert count(trace.summary, op="read") == seen.grown["read"] == READS - merged
        assert trace.summary["bytes"] == READS * 4096
        (device,) = [one for one in trace.summary["devices"] if one["dev"] == disk.name]
        assert device["merged"] == {"read": merged}
        assert device["queue_depth"] > 0


def test_splits(disk: Disk, flows: Flows) -> None:
    """Reads that are four times as large as a request may be."""
    with setting(disk.queue / "max_sectors_kb", "64"), watched(disk, flows) as seen:
        for place in range(5):
            assert read(disk, place << 20, 256 << 10) == 256 << 10
    for level, trace in seen.traces.items():
        assert events(trace.summary, "split", "read") == seen.fired["block_split"] == 15
        assert count(trace.summary, op="read") == seen.grown["read"] == 20
        assert trace.summary["bytes"] == 5 * (256 << 10)
        if level == "path":
            assert {(one["requests"], one["events"]["split"] > 0) for one in trace.operations} == {(4, True)}


def test_discards_and_zeroes(disk: Disk, flows: Flows) -> None:
    with watched(disk, flows) as seen:
        subprocess.run(["blkdiscard", "--length=4M", disk.path], check=True)
        subprocess.run(["blkdiscard", "--zeroout", "--offset=8M", "--length=1M", disk.path], check=True)
    for trace in seen.traces.values():
        assert count(trace.summary, op="discard") == seen.grown["discard"] > 0
        # A device without that command is sent zeroes.
        zeroes = count(trace.summary, op="zeroes")
        assert zeroes + count(trace.summary, op="write") == seen.grown["write"] > 0
        assert zeroes > 0
        letters = {one["rwbs"][:2] for one in trace.requests if one["op"] == "zeroes"}
        assert letters == {"WZ"}


@pytest.mark.one_kernel
@pytest.mark.guest
@pytest.mark.parametrize("kind", [BlockTrace, SizeTrace])
def test_commands_to_a_disk_are_no_requests(scsi: Disk, kind: type[Trace]) -> None:
    disk = scsi
    with kind() as trace:
        for _ in range(5):
            # Reads the capacity, and what else a disk says of itself.
            Path("/sys/block", disk.name, "device/rescan").write_text("1")
        assert read(disk, 0, 4096) == 4096
    found = Counter((row["dev"], row["op"]) for row in trace.summary["rows"])
    assert (disk.name, "read") in found
    assert not [one for one in found if "other" in one], found


@pytest.mark.parametrize("op", ["read", "write"])
def test_a_discard_is_no_read(disk: Disk, op: str) -> None:
    with Trace(f"--op={op}", f"--dev={disk.name}") as trace:
        subprocess.run(["blkdiscard", "--length=4M", disk.path], check=True)
        assert read(disk, 0, 4096) == 4096
    seen = [count(trace.summary, op=of) > 0 for of in ("read", "discard")]
    assert seen == ([True, False] if op == "read" else [False, True])


@pytest.mark.one_kernel
@pytest.mark.guest
def test_a_request_of_many_bios(scsi: Disk) -> None:
    disk = scsi
    with setting(disk.queue / "max_sectors_kb", "4096"):
        with Trace("--each", "--ring-size=8M", f"--dev={disk.name}") as trace:
            fio(disk.path, rw="read", ioengine="libaio", iodepth=1024, iodepth_batch=1024, number_ios=1024)
        assert lossless(trace.summary), trace.summary["loss"]
        ours = [one for one in trace.operations if one["comm"] == "fio"]
        assert Counter(one["requests"] for one in ours) == {1: 1024}
        # More than 256 in one request.
        assert count(trace.summary, op="read") <= 3
        assert events(trace.summary, "merged", "read") == 1024 - count(trace.summary, op="read")


def test_a_short_read_of_a_loop_device(disks: Disks, flows: Flows) -> None:
    """The part that exists is read; the rest is issued again and fails."""
    disk = disks.short
    with watched(disk, flows) as seen:
        assert read(disk, 32 << 20, 32 << 10) < 32 << 10
        # The size limits the job, because fio does not count failed reads.
        batch(disk, offset=32 << 20, size="32k", continue_on_error="io", ignore_error="EIO")
    for level, trace in seen.traces.items():
        finished = count(trace.summary)
        assert finished == seen.grown["read"] == trace.summary["requests"]["started"]
        parts = events(trace.summary, "parts")
        assert parts == reported(trace, "parts") >= 2
        # A request that begins beyond the end has no completed part.
        assert trace.summary["requests"]["failed"] >= parts
        assert (
            events(trace.summary, "requeues") == seen.fired["block_rq_requeue"] == reported(trace, "requeues") == parts
        )
        assert seen.fired["block_rq_complete"] == finished + parts
        assert events(trace.summary, "merged") == seen.grown["read_merges"]
        # Three of its bios completed earlier, so another one stands for the request now.
        first = max(single(trace), key=lambda one: one.get("events", {}).get("merged", 0))
        assert (first["sector"], first["bytes"]) == ((32 << 20) // 512, 32 << 10)
        assert first["events"] == {"merged": 7, "requeues": 1, "parts": 1}
        if level == "path":
            (one,) = (one for one in trace.operations if one["pid"] == os.getpid())
            assert one["events"] == {"parts": 1, "requeues": 1}
            assert sum(one["stages"].values()) == one["total_ns"]


# --- Guests: drivers that fail on demand ------------------------------------------------------------------------------

MEDIUM_ERROR, TIMEOUT, SHORT_TRANSFER, HOST_BUSY = 2, 4, 0x100, 0x8000
# The first sector that scsi_debug fails to read (OPT_MEDIUM_ERR_ADDR).
BAD_SECTOR = 0x1234


@contextmanager
def failing(options: int, every: int = 0) -> Iterator[None]:
    driver = Path("/sys/bus/pseudo/drivers/scsi_debug")
    with setting(driver / "opts", str(options)), setting(driver / "every_nth", str(every)):
        yield


@pytest.mark.guest
def test_partial_completions(scsi: Disk, flows: Flows) -> None:
    """Single and merged requests complete up to the bad sectors; the rest fails or is issued again."""
    with watched(scsi, flows) as seen, failing(MEDIUM_ERROR):
        for offset in (8, 12, 28):
            assert read(scsi, (BAD_SECTOR - offset) * 512 >> 12 << 12, 32 << 10) < 32 << 10
        # The job continues after a failed read.
        batch(
            scsi,
            offset=(BAD_SECTOR * 512 >> 15) - 1 << 15,
            number_ios=32,
            ignore_error=61,
            continue_on_error="io",
        )
    for level, trace in seen.traces.items():
        parts = events(trace.summary, "parts")
        finished = count(trace.summary)
        assert parts >= 3
        assert reported(trace, "parts") == parts
        assert seen.fired["block_rq_complete"] == finished + parts
        assert finished == seen.grown["read"] == trace.summary["requests"]["started"]
        assert events(trace.summary, "merged") == seen.grown["read_merges"] > 0
        assert trace.summary["requests"]["failed"] >= 4
        if level == "path":
            reads = [one for one in trace.operations if one["length"] == 32 << 10]
            assert len(reads) == 3
            assert all(sum(one["stages"].values()) == one["total_ns"] for one in reads)
            assert all(one["events"]["parts"] for one in reads)


@pytest.mark.guest
def test_short_transfers(scsi: Disk, flows: Flows) -> None:
    """The rest is issued again, and everything succeeds."""
    with watched(scsi, flows) as seen, failing(SHORT_TRANSFER, 5):
        batch(scsi)
        for place in range(10):
            assert read(scsi, place << 16, 32 << 10) == 32 << 10
    for trace in seen.traces.values():
        parts = events(trace.summary, "parts")
        finished = count(trace.summary)
        assert parts == reported(trace, "parts") > 0
        assert seen.fired["block_rq_complete"] == finished + parts
        assert finished == seen.grown["read"] == trace.summary["requests"]["started"]
        assert trace.summary["requests"]["failed"] == 0
        assert events(trace.summary, "merged") == seen.grown["read_merges"]
        assert trace.summary["bytes"] == seen.grown["read_sectors"] * 512 == READS * 4096 + 10 * (32 << 10)


@pytest.mark.guest
def test_requeues(scsi: Disk, flows: Flows) -> None:
    """The host is busy now and then: requests are requeued, and may be merged before they are issued again."""
    with watched(scsi, flows) as seen, failing(HOST_BUSY, 7):
        batch(scsi)
        batch(scsi, iodepth_batch=1)
        for place in range(10):
            assert read(scsi, place << 16, 4096) == 4096
    for trace in seen.traces.values():
        requeues = events(trace.summary, "requeues")
        assert requeues == seen.fired["block_rq_requeue"] > 0
        assert reported(trace, "requeues") == requeues
        assert count(trace.summary) == seen.grown["read"] == trace.summary["requests"]["started"]
        assert events(trace.summary, "merged") == seen.grown["read_merges"]
        assert trace.summary["bytes"] == seen.grown["read_sectors"] * 512


@pytest.mark.guest
def test_timeouts(scsi: Disk, flows: Flows) -> None:
    """A command without an answer is aborted when its time is up, and issued again."""
    patience = Path("/sys/block", scsi.name, "device/timeout")
    with setting(patience, "1"), watched(scsi, flows) as seen, failing(TIMEOUT, 4):
        for place in range(8):
            assert read(scsi, place << 16, 4096) == 4096
    for trace in seen.traces.values():
        timeouts = events(trace.summary, "timeouts")
        assert timeouts > 0
        assert events(trace.summary, "requeues") == seen.fired["block_rq_requeue"] >= timeouts
        late = [one for one in single(trace) if one.get("events", {}).get("timeouts")]
        assert len(late) == timeouts
        assert all(one["total_ns"] > 900_000_000 for one in late)
        assert count(trace.summary) == seen.grown["read"] == 8


_REPORT_SIZE = struct.Struct("QQ")  # struct blk_zone_range
_ZONE_CALLS = {"reset": 0x40101283, "open": 0x40101286, "close": 0x40101287, "finish": 0x40101288}


@pytest.mark.guest
def test_zones(disks: Disks, flows: Flows) -> None:
    """Zones are opened, closed, finished and reset."""
    assert disks.zoned is not None
    with opened(disks.zoned.path, os.O_RDWR | os.O_DIRECT) as fd:
        sectors = (4 << 20) // 512
        with watched(disks.zoned, flows) as seen:
            for name in ("open", "close", "finish", "reset"):
                for zone in range(3):
                    fcntl.ioctl(fd, _ZONE_CALLS[name], _REPORT_SIZE.pack(zone * sectors, sectors))
            with mmap.mmap(-1, 4096) as buffer:
                for place in range(5):
                    os.pwritev(fd, [buffer], place << 12)
    for trace in seen.traces.values():
        assert count(trace.summary, op="zone") == 12
        assert count(trace.summary, op="write") == 5
        assert seen.fired["block_rq_complete"] == 17
