# SPDX-License-Identifier: Apache-2.0
"""`wptrace io --level block` against fio's counts and the kernel's own, on each kind of disk that is here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.kernel.disks import Disk, completed, fio, fio_jobs, opened, read_direct, setting, total
from tests.kernel.patience import guarded, said
from tests.kernel.trace import PATIENCE, BlockTrace, count, lossless, programs, wait_until
from wptrace.bpf.ring import Reader
from wptrace.flows.io.block import BlockFlow, Options
from wptrace.model.distribution import Distribution
from wptrace.model.kind import REQUESTS

SECTOR = 512
SECTORS = ("read_sectors", "write_sectors")
BOTH = pytest.mark.parametrize("times", ["auto", "own"])


@BOTH
def test_counts_what_fio_counts(disks: list[Disk], times: str) -> None:
    """Each kind of disk is read, one and eight requests at a time."""
    engines = {"psync": 1, "libaio": 8}
    before = completed(disks)
    with BlockTrace("--times", times, *(f"--dev={disk.path}" for disk in disks)) as trace:
        wanted = [(disk, engine) for disk in disks for engine in engines]
        found = fio_jobs(
            *(
                {
                    "filename": disk.path,
                    "rw": "randrw",
                    "ioengine": engine,
                    "iodepth": engines[engine],
                    "number_ios": 300,
                    "stonewall": 1,
                }
                for disk, engine in wanted
            )
        )
    after = completed(disks)
    summary = trace.summary
    for disk in disks:
        jobs = [job for (of, _), job in zip(wanted, found) if of == disk]
        for op in ("read", "write"):
            made = sum(job[op]["total_ios"] for job in jobs)
            assert count(summary, op=op, dev=disk.name) == made == after[disk.name][op] - before[disk.name][op]
    made = sum(map(total, found))
    assert summary["requests"]["finished"] == made
    sectors = sum(after[disk.name][name] - before[disk.name][name] for disk in disks for name in SECTORS)
    assert summary["bytes"] == 4096 * made == sectors * SECTOR
    assert summary["requests"]["in_flight"] == 0
    assert lossless(summary)
    assert {row["dev"] for row in summary["rows"]} == {disk.name for disk in disks}


@BOTH
def test_figures_and_events_have_the_same_requests(disk: Disk, times: str) -> None:
    """Programs see requests from the moment on at which they are attached; those before the begin are in neither."""
    with closing(BlockFlow(Options((disk.path,), slow_ns=0, times=times))) as flow:
        reader = Reader()
        flow.start(reader)
        read_direct(disk.path, 5)
        flow.snapshot()
        read_direct(disk.path, 3)
        flow.begin()
        read_direct(disk.path, 7)
        flow.stop()
        reader.drain()
        assert len(flow.events()) == flow.snapshot().books[REQUESTS].finished == 7


@BOTH
def test_each_request_is_reported_and_the_histograms_hold_the_same(disk: Disk, times: str) -> None:
    """The kernel's distributions equal, bucket for bucket, those that Python makes of the reported requests."""
    with BlockTrace("--dev", disk.name, "--times", times, "--each") as trace:
        job = fio(disk.path, rw="randread", number_ios=300)
    assert len(trace.requests) == total(job) == trace.summary["overhead"]["records"]
    assert {request["bytes"] for request in trace.requests} == {4096}
    assert {request["dev"] for request in trace.requests} == {disk.name}
    assert all(request["rwbs"].startswith("R") for request in trace.requests)
    assert all(request["sector"] % 8 == 0 and request["error"] == 0 for request in trace.requests)
    assert all(sum(request["stages"].values()) == request["total_ns"] for request in trace.requests)
    rows = {row["stage"]: row for row in trace.summary["rows"]}
    assert rows["queue"]["sum_ns"] + rows["device"]["sum_ns"] == rows["total"]["sum_ns"]
    assert rows["total"]["share"] == 1
    for stage in ("queue", "device", "total"):
        made = Distribution()
        for request in trace.requests:
            made.add(request["total_ns"] if stage == "total" else request["stages"][f"{stage}_ns"])
        row = rows[stage]
        assert (row["count"], row["sum_ns"], row["min_ns"], row["max_ns"]) == (made.count, made.sum, made.min, made.max)
        # The deviation is computed from the buckets, which are this wide.
        assert row["stddev_ns"] == pytest.approx(made.stddev, rel=0.0625, abs=made.mean * 0.0625)
        for key, percent in (("p50_ns", 50), ("p90_ns", 90), ("p99_ns", 99), ("p999_ns", 99.9)):
            assert row[key] == made.percentile(percent)


@pytest.mark.one_kernel
def test_a_process_is_reported_from_its_neighbour(disk: Disk) -> None:
    """Two jobs on one disk, of which one is wanted: it is decided at the start, and holds at the completion."""
    command = [
        "fio",
        "--name=wanted",
        f"--filename={disk.path}",
        "--rw=randread",
        "--bs=4k",
        "--direct=1",
        "--size=32M",
    ]
    command += ["--norandommap", "--ioengine=psync", "--number_ios=150", "--thread", "--output-format=json"]
    # fio waits for a newline, so that its pid is known before its first request.
    gate = "read line; exec " + " ".join(command)
    wanted = subprocess.Popen(["sh", "-c", gate], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with BlockTrace("--dev", disk.name, "--pid", str(wanted.pid)) as trace:
        other = subprocess.Popen([word.replace("wanted", "other") for word in command], stdout=subprocess.PIPE)
        wanted.communicate("\n", timeout=PATIENCE)
        other.communicate(timeout=PATIENCE)
    assert (wanted.returncode, other.returncode) == (0, 0)
    assert count(trace.summary) == trace.summary["requests"]["started"] == 150
    assert trace.summary["loss"] == {"exited": 1}, trace.summary


@pytest.mark.one_kernel
def test_slow_tells_only_those_over_the_threshold(disk: Disk) -> None:
    with BlockTrace("--dev", disk.name, "--slow", "1h") as trace:
        fio(disk.path)
    assert trace.requests == []
    assert trace.summary["requests"]["finished"] == 200


@pytest.mark.one_kernel
def test_a_full_ring_loses_records_and_counts_them(disk: Disk) -> None:
    """The reader is stopped, so that the ring overflows; distributions stay exact."""
    with BlockTrace("--dev", disk.name, "--each", "--ring-size", "4K") as trace:
        trace.process.send_signal(signal.SIGSTOP)
        job = fio(disk.path, number_ios=500)
        trace.process.send_signal(signal.SIGCONT)
    lost = trace.summary["loss"]["ring_full"]
    assert lost > 0
    assert len(trace.requests) + lost == total(job) == count(trace.summary)
    assert trace.summary["requests"]["lost"] == 0


@pytest.mark.one_kernel
def test_intervals_sum_to_the_summary(disk: Disk) -> None:
    with BlockTrace("--dev", disk.name, "0.2") as trace:
        fio(disk.path, number_ios=100)
        trace.wait_for('"kind":"interval"', often=5)
    intervals = [line for line in trace.lines if line["kind"] == "interval"]
    assert len(intervals) >= 5
    seen = sum(line["requests"]["finished"] for line in intervals)
    # Requests that complete between the last interval and the end are only in the summary.
    assert seen <= trace.summary["requests"]["finished"]
    for earlier, later in zip(intervals, intervals[1:]):
        assert later["requests"]["carried"] == earlier["requests"]["in_flight"]
        assert later["ts_ns"] > earlier["ts_ns"]


@pytest.mark.parametrize("switch", ["iostats", "wbt_lat_usec"])
def test_a_disk_without_stamps_gets_own_times(disk: Disk, switch: str) -> None:
    with ExitStack() as stack:
        stack.enter_context(setting(disk.queue / switch, "0"))
        trace = stack.enter_context(BlockTrace("--dev", disk.name))
        job = fio(disk.path, rw="randrw")
        trace.stop()
    hows = {stage["how"] for stage in trace.lines[0]["stages"]}
    assert all("own times" in how and "block_rq_issue" in how for how in hows)
    for stage in ("queue", "device", "total"):
        assert count(trace.summary, stage) == total(job)
    assert lossless(trace.summary)


def test_stale_stamps_are_never_shown(disk: Disk) -> None:
    """If the disk may not make stamps, there are counts without stages, and a note says so."""
    with ExitStack() as stack:
        for switch in ("iostats", "wbt_lat_usec"):
            stack.enter_context(setting(disk.queue / switch, "0"))
        trace = stack.enter_context(BlockTrace("--dev", disk.name, "--times", "kernel"))
        job = fio(disk.path)
        trace.stop()
    assert trace.summary["requests"]["finished"] == total(job)
    # A stamp of 0, or of an earlier request in the same memory, would make a time longer than the trace.
    assert trace.summary["loss"]["no_stamp"] == total(job)
    assert count(trace.summary) == 0


def test_merged_requests_count_once(disk: Disk) -> None:
    """Small sequential writes of a batch merge in the plug. Requests count as the device gets them."""
    before = disk.completed()
    with BlockTrace("--dev", disk.name, "--times", "own") as trace:
        options = {"rw": "write", "bs": "512" if disk.name.startswith("sd") else "4k", "ioengine": "libaio"}
        fio(disk.path, iodepth=16, iodepth_batch=16, number_ios=320, norandommap=0, **options)
    after = disk.completed()
    assert count(trace.summary, op="write") == after["write"] - before["write"]
    assert trace.summary["requests"]["in_flight"] == 0
    assert lossless(trace.summary), trace.summary


@BOTH
def test_synchronous_writes_show_their_flushes(disk: Disk, times: str) -> None:
    """Each is one write; the flushes that the device's cache needs are requests of their own."""
    before = disk.completed()
    with BlockTrace("--dev", disk.name, "--times", times) as trace:
        job = fio(disk.path, rw="write", sync="dsync", number_ios=50)
    assert count(trace.summary, op="write") == total(job)
    # The kernel counts a flush without data as a write.
    assert total(job) + asked(trace) == disk.completed()["write"] - before["write"]
    flushes = count(trace.summary, op="flush")
    cached = (disk.queue / "write_cache").read_text().startswith("write back")
    assert flushes >= total(job) if cached else flushes == 0
    assert trace.summary["requests"]["finished"] == total(job) + flushes
    assert trace.summary["requests"]["in_flight"] == 0


def asked(trace: BlockTrace) -> int:
    """Return the number of flushes without data."""
    found = [row.get("events", {}) for row in trace.summary["rows"] if row["op"] == "flush"]
    return sum(events.get("asked", 0) for events in found)


@pytest.mark.one_kernel
def test_flushes_of_a_process_are_those_that_it_asks_for(disk: Disk) -> None:
    """The requests that the block layer makes for a flush belong to no process."""
    with opened(disk.path, os.O_WRONLY) as fd:
        sync = "import os, sys; fd = os.open(sys.argv[1], os.O_WRONLY); [os.fsync(fd) for _ in range(3)]"
        with BlockTrace("--dev", disk.name, "--pid", str(os.getpid())) as trace:
            for number in range(5):
                os.pwrite(fd, bytes(4096), 4096 * (number % 2))
                os.fsync(fd)
            for _ in range(4):
                os.fsync(fd)
            subprocess.run([sys.executable, "-c", sync, disk.path], check=True)
    assert (asked(trace), count(trace.summary, op="flush"), count(trace.summary, op="write")) == (9, 0, 5)
    assert lossless(trace.summary)


@pytest.mark.one_kernel
def test_a_partition_is_a_part_of_its_disk(disk: Disk) -> None:
    table = "label: gpt\nsize=16MiB\nsize=16MiB\n"
    with ExitStack() as stack:
        subprocess.run(
            ["sfdisk", "--quiet", "--wipe=always", disk.path],
            input=table,
            text=True,
            check=True,
            capture_output=True,
        )
        subprocess.run(["blockdev", "--rereadpt", disk.path], check=False, capture_output=True)
        subprocess.run(["partx", "--update", disk.path], check=False, capture_output=True)
        stack.callback(lambda: subprocess.run(["partx", "--delete", disk.path], check=True, capture_output=True))
        first, second = f"{disk.name}p1", f"{disk.name}p2"
        wait_until(lambda: Path("/sys/class/block", second).exists(), "the partitions")
        nodes = [_node(name) for name in (first, second)]
        wanted = {first: "own", second: "kernel", disk.name: "own"}
        traces = {
            name: stack.enter_context(BlockTrace("--dev", name, "--times", times)) for name, times in wanted.items()
        }
        both = stack.enter_context(BlockTrace("--dev", first, "--dev", second))
        one, two = (fio(node, size="8M", number_ios=number) for node, number in zip(nodes, (70, 130)))
        for trace in (*traces.values(), both):
            trace.stop()
    assert traces[first].summary["requests"]["finished"] == total(one) == 70
    assert traces[second].summary["requests"]["finished"] == total(two) == 130
    assert traces[disk.name].summary["requests"]["finished"] == 200
    assert [count(both.summary, dev=name) for name in (first, second)] == [70, 130]


@pytest.mark.guest
def test_a_stack_is_shown_on_the_disk_below(disk: Disk) -> None:
    """A dm device only remaps bios; its requests are those of the disks below."""
    subprocess.run(["modprobe", "dm-mod"], check=True)
    table = f"0 16384 linear {disk.path} 2048"
    with ExitStack() as stack:
        subprocess.run(["dmsetup", "create", "--noudevsync", "wpt"], input=table, text=True, check=True)
        stack.callback(lambda: subprocess.run(["dmsetup", "remove", "--noudevsync", "wpt"], check=True))
        (name,) = [path.parent.parent.name for path in Path("/sys/block").glob("dm-*/dm/name")]
        trace = stack.enter_context(BlockTrace("--dev", name))
        job = fio(_node(name), size="4M", number_ios=60)
        trace.stop()
    assert any(f"shown on {disk.name}" in note for note in trace.lines[0]["notes"])
    assert count(trace.summary, dev=disk.name) == total(job) == 60


def _node(name: str) -> str:
    """Return a device node. udev makes them, which a guest may not run."""
    path = Path("/dev", name)
    if not path.exists():
        major, minor = Path("/sys/class/block", name, "dev").read_text().split(":")
        subprocess.run(["mknod", str(path), "b", major, minor.strip()], check=True)
    return str(path)


@pytest.mark.one_kernel
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_with_the_summary(loop: Disk, number: signal.Signals) -> None:
    with BlockTrace("--dev", loop.name) as trace:
        assert programs()
        trace.stop(number)
    assert trace.summary["requests"]["finished"] == 0
    wait_until(lambda: not programs(), "the programs to go")


def test_kill_leaves_nothing_behind(loop: Disk) -> None:
    with BlockTrace("--dev", loop.name, "--times", "own", "--each") as trace:
        assert len(programs()) >= 4
        trace.kill()
    wait_until(lambda: not programs(), "the programs to go")


@pytest.mark.one_kernel
@pytest.mark.parametrize("arguments", [("--json",), (), ("--json", "0.1"), ("0.1",)])
def test_a_closed_pipe_ends_it(loop: Disk, arguments: tuple[str, ...]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "wptrace", "io", "--dev", loop.name, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    said(process)
    process.stdout.close()
    with process.stderr, guarded(process):
        complaint = process.stderr.read()
    assert process.wait(timeout=PATIENCE) == 0
    # Standard error also says what this kernel cannot show.
    assert [line for line in complaint.splitlines() if not line.startswith("note: ")] == []
    wait_until(lambda: not programs(), "the programs to go")
