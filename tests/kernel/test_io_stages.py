# SPDX-License-Identifier: Apache-2.0
"""Each stage of `wptrace io` against a device or a load made for it, in guests whose clock counts instructions.

There is one CPU, so everything but waiting is code: some 100 us.
"""

from __future__ import annotations

import mmap
import os
import statistics
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.kernel.disks import Disk, fio, fio_jobs, null_device, opened, setting, total
from tests.kernel.loads import HOG, direct_loop, hog, joined, limited, mounted, real_time, scsi_device
from tests.kernel.modules import inserted
from tests.kernel.stacks import delayed
from tests.kernel.test_io_path import PARTITION
from tests.kernel.trace import Line, Lines, Trace, count, findings, lossless, wait_until
from tests.kernel.window import Running, path_of
from wptrace.flows.io.kinds import SPARSE
from wptrace.flows.io.wait_reasons import BY_NAME
from wptrace.kernel.clock import wall_offset_ns
from wptrace.model.distribution import bounds, index

MS = 1_000_000
# The time that code may take in a stage without a wait.
CODE_NS = MS // 2

# Findings that name a culprit.
ACCUSING = {"behind", "ran", "irq_off", "neighbour"}

pytestmark = [pytest.mark.icount]


SCHEDULERS = {"none": "null_blk", "mq-deadline": "mq-deadline", "kyber": "kyber-iosched", "bfq": "bfq"}
SLOW_NS = 20 * MS


class Disks(NamedTuple):
    """Disks, each slow in its own way."""

    quick: Disk
    late: Disk
    """Late by 5 ms."""
    scsi: Disk
    """Late by SLOW_NS, like the next two."""
    lower: Disk
    delay: Disk
    """A delay on the lower disk."""
    loop: Disk
    """A loop device on the delay."""
    one_tag: dict[str, Disk]
    """Disks with one tag, by scheduler."""


@pytest.fixture(scope="module")
def disks() -> Iterator[Disks]:
    with ExitStack() as stack:

        def null(name: str, **settings: int) -> Disk:
            return stack.enter_context(null_device(f"wptest_{name}", **settings))

        quick, late, lower = null("quick"), null("late", irqmode=2, completion_nsec=5 * MS), null("lower")
        scsi = stack.enter_context(scsi_device(SLOW_NS))
        # Its clock counts ticks, and the first tick may be almost over.
        delay = stack.enter_context(delayed(lower, SLOW_NS // MS + 4))
        loop = stack.enter_context(direct_loop(delay))
        one_tag = {}
        for scheduler, module in SCHEDULERS.items():
            subprocess.run(["modprobe", module], check=False, capture_output=True)  # some are built in
            one = {"irqmode": 2, "completion_nsec": 2 * MS, "submit_queues": 1, "hw_queue_depth": 1}
            disk = one_tag[scheduler] = null(scheduler, **one)
            (disk.queue / "scheduler").write_text(scheduler)
            if scheduler != "none":
                (disk.queue / "nr_requests").write_text("64")
        yield Disks(quick, late, scsi, lower, delay, loop, one_tag)


@pytest.fixture(scope="module")
def flow(disks: Disks, v2: Path) -> Iterator[Running]:
    alone = (disks.quick, disks.late, disks.scsi, disks.delay, disks.loop)
    with path_of(*alone, *disks.one_tag.values(), interference=True) as made:
        yield made


class Stages:
    """Rows and events of a disk's operations of one kind."""

    def __init__(self, trace: Lines, disk: Disk, op: str = "read") -> None:
        self.rows = {
            row["stage"]: row
            for row in trace.summary["rows"]
            if (row["kind"], row["dev"], row["op"]) == ("operation", disk.name, op)
        }
        self.reported = [line for line in trace.operations if (line["dev"], line["op"]) == (disk.name, op)]
        self._lawful(trace)

    def _lawful(self, trace: Lines) -> None:
        """Each operation is reported and is in every stage, and its stages add up to its total."""
        assert lossless(trace.summary), trace.summary
        assert all(sum(line["stages"].values()) == line["total_ns"] for line in self.reported)
        assert {self.rows[stage]["count"] for stage in PARTITION} == {len(self.reported)}
        parts = [row["sum_ns"] for stage, row in self.rows.items() if stage in (*PARTITION, *SPARSE)]
        assert sum(parts) == self.rows["total"]["sum_ns"] == sum(line["total_ns"] for line in self.reported)
        unattributed = self.rows["unattributed"]["sum_ns"] if "unattributed" in self.rows else 0
        assert unattributed < self.rows["total"]["sum_ns"] / 100
        for stage in PARTITION:
            assert self.rows[stage]["sum_ns"] == sum(line["stages"][f"{stage}_ns"] for line in self.reported), stage

    def p50(self, stage: str) -> int:
        return int(self.rows[stage]["p50_ns"])

    def sum(self, stage: str) -> int:
        return int(self.rows[stage]["sum_ns"])

    def single(self, stage: str) -> list[int]:
        """Return the times of all reported operations. Minimum and maximum of a window's row are those of a bucket."""
        return [line["stages"][f"{stage}_ns"] for line in self.reported]

    def share_out(self, *stages: str) -> None:
        assert sum(map(self.sum, stages)) > self.sum("total") * 0.97

    def agree_with(self, job: dict[str, Any], mean: float = 0.05) -> None:
        """Compare count and mean with fio's, which includes the way into the kernel and out of it."""
        report = job["read"] if job["read"]["total_ios"] else job["write"]
        assert len(self.reported) == total(job) == report["clat_ns"]["N"]
        assert self.rows["total"]["mean_ns"] == pytest.approx(report["clat_ns"]["mean"], rel=mean)

    def only(self, *stages: str) -> None:
        """Check that there is no wait in any other stage."""
        others = {stage: self.p50(stage) for stage in PARTITION if stage not in stages}
        assert max(others.values()) < CODE_NS, others


def interferences(line: Line, kind: str) -> list[Line]:
    return [one for one in line["interference"] if one["kind"] == kind]


def test_a_lock_of_the_file_system_is_in_fs(tmp_path: Path) -> None:
    """Two writers fill a hole in one file; each holds the inode's lock until its own blocks are on the device."""
    slow = 10 * MS
    with ExitStack() as stack:
        disk = stack.enter_context(null_device(memory_backed=1, irqmode=2, completion_nsec=slow))
        folder = stack.enter_context(mounted(disk, "ext4", tmp_path / "mnt"))
        file = folder / "file"
        with file.open("wb") as made:
            made.truncate(16 << 20)
        trace = stack.enter_context(Trace("--dev", disk.name, "--each", "--interference", "--file", str(file)))
        options = {"numjobs": 2, "thread": 1, "group_reporting": 1, "size": "4M", "offset_increment": "8M"}
        job = fio(str(file), rw="write", number_ios=20, fallocate="none", overwrite=0, **options)
        trace.stop()
        found = Stages(trace, disk, "write")
    found.agree_with(job)
    assert {line["path"] for line in found.reported} == {str(file)}
    assert all(line["interference"] is not None for line in found.reported)
    assert found.rows["device"]["mean_ns"] == pytest.approx(slow, rel=0.1)
    found.only("fs", "device")
    found.share_out("fs", "device")
    # One waits while the other writes. If a task gets the lock again, the other one waits for half of both times. There
    # is no upper bound, because `fs` also has the journal.
    assert found.sum("fs") / found.sum("device") > 0.45
    assert found.rows["fs"]["max_ns"] > slow * 0.9
    verdict = trace.summary["verdict"]
    assert verdict["stage"] == "device" or verdict["advice"] == BY_NAME["lock of the file"].advice, verdict
    assert not {*findings(trace.summary)} & ACCUSING


# --- With a shared trace, which is not there yet while the command above runs -----------------------------------------


def test_slow_devices_are_in_device(disks: Disks, flow: Running) -> None:
    """A disk of 5 ms, a scsi disk of 20 ms, and a dm-delay device of 20 ms: by itself, and a loop device."""
    late, scsi, lower, delay, loop = disks.late, disks.scsi, disks.lower, disks.delay, disks.loop
    read = {late: 100, scsi: 20, loop: 20, delay: 20}
    with flow.window() as trace:
        made = fio_jobs(*({"filename": disk.path, "number_ios": many, "stonewall": 1} for disk, many in read.items()))
    jobs = dict(zip(read, made))
    # Reads of the stacked device are shown for the disk below it.
    stages = {disk: Stages(trace, lower if disk == delay else disk) for disk in read}
    for disk, found in stages.items():
        found.agree_with(jobs[disk])
        latency, stage = 5 * MS if disk == late else SLOW_NS, "layers" if disk == delay else "device"
        assert min(found.single(stage)) >= latency, disk
        assert found.p50(stage) < latency + 10 * MS, disk
        found.only(stage)
    # The loop device reads its file: no operation, but as many requests of the disk below.
    assert count(trace.summary, kind="request") == sum(read.values()) + read[loop]
    total_row, clat = stages[late].rows["total"], jobs[late]["read"]["clat_ns"]
    for key, name in (("p50_ns", "50.000000"), ("p99_ns", "99.000000")):
        low, high = bounds(index(total_row[key]))
        assert low - (high - low) <= clat["percentile"][name] <= high + (high - low)


def test_a_device_with_one_tag(disks: Disks, flow: Running) -> None:
    """One request at a time, of 2 ms; three wait. A scheduler has tags of its own, so the wait is in `queue`."""
    options = {"numjobs": 4, "thread": 1, "group_reporting": 1, "number_ios": 30, "stonewall": 1}
    with flow.window() as trace:
        made = fio_jobs(*({"filename": disk.path, **options} for disk in disks.one_tag.values()))
    jobs = dict(zip(disks.one_tag, made))
    for scheduler, disk in disks.one_tag.items():
        waits_in = "throttle" if scheduler == "none" else "queue"
        found = Stages(trace, disk)
        found.agree_with(jobs[scheduler])
        assert found.rows["device"]["mean_ns"] == pytest.approx(2 * MS, rel=0.1), scheduler
        found.only(waits_in, "device")
        found.share_out(waits_in, "device")
        # Three wait for the one in the device. A task that gets its tag again ahead of the others is done earlier, and
        # the others wait less: if each one does so for all of its reads, 3, 2, 1 and 0 are left waiting.
        assert 1.4 < found.sum(waits_in) / found.sum("device") < 3.1, scheduler


def test_a_limit_of_a_cgroup_is_in_throttle(disks: Disks, flow: Running, v2: Path) -> None:
    limit, disk = 20, disks.quick
    with limited(disk, f"riops={limit}", v2) as group, flow.window() as trace, joined(group):
        job = fio(disk.path, number_ios=limit)
    found = Stages(trace, disk)
    found.agree_with(job)
    # The kernel lets them pass in bursts, so only the sum is exact: a second, or somewhat less at the beginning.
    assert found.rows["throttle"]["sum_ns"] == pytest.approx(1000 * MS, rel=0.2)
    assert found.rows["throttle"]["share"] > 0.95
    found.only("throttle")


def timed_reads(disk: Disk, number: int, length: int, flags: int = 0) -> dict[str, Any]:
    """Return fio's report of this many reads. Next to a hog, fio would take an emulated CPU minutes to start."""
    times = []
    with opened(disk.path, os.O_RDONLY | flags) as fd, mmap.mmap(-1, length) as buffer:
        for place in range(number):
            start = time.monotonic_ns()
            assert os.preadv(fd, [buffer], place * length) == length
            times.append(time.monotonic_ns() - start)
    clat = {"N": number, "mean": statistics.mean(times)}
    return {"read": {"total_ios": number, "clat_ns": clat}, "write": {"total_ios": 0}}


def test_a_busy_cpu_is_in_wakeup(disks: Disks, flow: Running) -> None:
    """The hog has the CPU when the request completes, and keeps it."""
    burst, gap = 8 * MS, 2 * MS
    with hog(burst // 1000, gap // 1000) as busy, flow.window() as trace:
        busy.begin()
        # Otherwise an ordinary task of this process may be the last one before it.
        with real_time(5):
            job = timed_reads(disks.late, 15, 4096, os.O_DIRECT)
        busy.end()
    found = Stages(trace, disks.late)
    found.agree_with(job)
    found.only("device", "wakeup")
    # The device begins when the hog goes to sleep, and is done while it runs again.
    assert found.p50("wakeup") == pytest.approx(burst + gap - 5 * MS, rel=0.1)
    assert max(found.single("device")) < 5 * MS + CODE_NS
    named = [one for line in found.reported for one in interferences(line, "before_wakeup") if one["name"] == HOG]
    assert {(one["pid"], one["cpu"]) for one in named} == {(busy.process.pid, 0)}
    # Since 6.12 the scheduler sometimes runs ordinary tasks before real-time ones.
    assert len(named) > len(found.reported) * 0.8
    for line in found.reported:
        (reported,) = interferences(line, "before_wakeup")
        assert reported["ns"] == pytest.approx(line["stages"]["wakeup_ns"], abs=1000)
    accused = findings(trace.summary)
    assert {*accused} & ACCUSING == {"ran"}
    assert accused["ran"]["who"] == f"{HOG}[{busy.process.pid}]"
    assert accused["ran"]["sum_ns"] == pytest.approx(found.sum("wakeup"), rel=0.05)


def test_interrupts_kept_off_are_in_complete(disks: Disks, flow: Running) -> None:
    length, periods, disk = 15 * MS, 5, disks.scsi
    latency = Path("/sys/bus/pseudo/drivers/scsi_debug/ndelay")
    with inserted("irqoff") as irqoff, setting(latency, str(5 * MS)), flow.window() as trace:
        before = disk.counted()["read"]
        with ThreadPoolExecutor(max_workers=1) as other:
            reading = other.submit(fio, disk.path, number_ios=60)
            wait_until(lambda: disk.counted()["read"] > before, "the first read")
            for _ in range(periods):
                irqoff.run(0, length // 1000)
            job = reading.result()
        log = irqoff.log()
    found = Stages(trace, disk)
    found.agree_with(job)
    found.only("device")
    late = [line for line in found.reported if interferences(line, "irq_off")]
    offs = [next(iter(interferences(line, "irq_off"))) for line in late]
    # At the beginning of a period the reader may not have had a request in the device.
    by_pid = {int(event["pid"]): event for event in log}
    matched = [by_pid[off["pid"]] for off in offs]
    assert matched == [event for event in log if event in matched]
    assert periods / 2 < len(matched) <= len(log) == periods
    for line, off, event in zip(late, offs, matched):
        assert (off["name"], off["cpu"]) == (event["comm"], int(event["cpu"]))
        # Interrupts were off since some moment between two ticks, which are 1 ms apart.
        assert int(event["length_ns"]) - 1.1 * MS < off["ns"] < int(event["length_ns"]) + CODE_NS
        assert line["stages"]["complete_ns"] == pytest.approx(off["ns"], abs=CODE_NS)
    delays = found.rows["irq_delay"]
    assert delays["sum_ns"] == sum(off["ns"] for off in offs)
    assert found.rows["complete"]["sum_ns"] == pytest.approx(delays["sum_ns"], rel=0.05)
    # Each period has a thread of its own, and the longest one is named.
    accused = findings(trace.summary)
    assert {*accused} & ACCUSING <= {"irq_off"}
    assert accused["inside"]["stage"] == "irq_delay"
    if "irq_off" in accused:
        assert accused["irq_off"]["who"] in {f"{event['comm']}[{event['pid']}]" for event in matched}


def test_a_hog_preempts(disks: Disks, flow: Running) -> None:
    """The device completes at once, so these long reads never wait."""
    burst, gap, disk = 4 * MS, 3 * MS, disks.quick
    with hog(burst // 1000, gap // 1000) as busy, flow.window() as trace:
        busy.begin()
        with real_time(5):
            job = timed_reads(disk, 2, 32 << 20)
        busy.end()
    found = Stages(trace, disk)
    found.agree_with(job)
    offset = wall_offset_ns()
    for line in found.reported:
        (who,) = interferences(line, "preempted")
        assert (who["name"], who["pid"], who["cpu"]) == (HOG, busy.process.pid, 0)
        start_ns, end_ns = line["ts_ns"] - line["total_ns"] - offset, line["ts_ns"] - offset
        # A preempted task begins and ends nothing, so each burst is either inside an operation or outside.
        matched = [burst.end_ns - burst.start_ns for burst in busy.bursts if start_ns < burst.start_ns < end_ns]
        # Sometimes the reader sleeps when the hog wakes up, because a kernel thread does the work of an interrupt (2 of
        # 25 bursts).
        assert 0.75 * len(matched) - 1 <= who["count"] <= len(matched) + 1, (len(matched), who)
        assert min(len(matched), who["count"]) > 1
        assert who["ns"] == pytest.approx(who["count"] * sum(matched) / len(matched), abs=1.05 * burst, rel=0)
        assert who["ns"] < line["total_ns"]
    assert found.rows["preempted"]["sum_ns"] == sum(
        interferences(line, "preempted")[0]["ns"] for line in found.reported
    )
    accused = findings(trace.summary)
    assert {*accused} & ACCUSING == {"ran"}
    assert accused["ran"]["who"] == f"{HOG}[{busy.process.pid}]"
    assert accused["inside"]["stage"] == "preempted"


def test_a_tail_has_its_stage_and_nobody_is_accused(disks: Disks, flow: Running) -> None:
    """One in twenty of 300 reads takes 20 ms, the others 200 us."""
    latency, quick, slow = Path("/sys/bus/pseudo/drivers/scsi_debug/ndelay"), MS // 5, 20 * MS
    with setting(latency, str(quick)), flow.window() as trace:
        for _ in range(15):
            latency.write_text(str(quick))
            timed_reads(disks.scsi, 19, 4096, os.O_DIRECT)
            latency.write_text(str(slow))
            timed_reads(disks.scsi, 1, 4096, os.O_DIRECT)
    found = Stages(trace, disks.scsi)
    assert len(found.reported) == 300
    tail = findings(trace.summary)["tail"]
    assert (tail["stage"], tail["op"]) == ("device", "read")
    assert tail["ratio"] > 10
    assert tail["p99_ns"] == pytest.approx(slow, rel=0.1)
    assert not {*findings(trace.summary)} & ACCUSING
