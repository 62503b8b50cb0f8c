# SPDX-License-Identifier: Apache-2.0
"""`wptrace io --neighbours`: which owners had the device while others waited for it.

The device has four tags and takes 2 ms for each request. A backup in the cgroup /batch keeps all of them busy and four
more requests waiting. The victim in /app reads once and then sleeps, and so does a third cgroup now and then.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Callable, NamedTuple

import pytest

from tests.kernel.disks import Disk, null_device, wake_flushers, written_when_asked
from tests.kernel.loads import joined
from tests.kernel.patience import said
from tests.kernel.stacks import striped
from tests.kernel.trace import Line, Trace, findings, lossless, wait_until
from tests.kernel.window import RING, Running, running
from tests.thorough import only_all
from wptrace.cli.main import main
from wptrace.engine.filters import Filter
from wptrace.flows.io.options import CGROUP, Options
from wptrace.flows.io.path import PathFlow
from wptrace.model.kind import OTHERS

MS = 1_000_000
TAGS, DEVICE_NS = 4, 2 * MS
READERS, READS = 8, 40
VICTIM_READS, THINK_NS = 10, 5 * MS
BATCH, APP, CRON = "/batch", "/app", "/cron"
CRON_READERS, CRON_READS, CRON_BYTES = 2, 10, 16384
# Every second page, so that each is a request of its own.
WRITES = 400

pytestmark = [pytest.mark.icount, pytest.mark.guest]


@contextmanager
def busy_device(name: str) -> Iterator[Disk]:
    made = {"irqmode": 2, "completion_nsec": DEVICE_NS, "submit_queues": 1, "hw_queue_depth": TAGS}
    with null_device(name, **made) as disk:
        (disk.queue / "scheduler").write_text("none")
        (disk.queue / "wbt_lat_usec").write_text("0")
        yield disk


@pytest.fixture(scope="module")
def disk() -> Iterator[Disk]:
    with written_when_asked(), busy_device("wptest_busy") as disk:
        yield disk


@pytest.fixture(scope="module")
def groups(v2: Path) -> Iterator[dict[str, Path]]:
    made = {name: v2 / name.strip("/") for name in (BATCH, APP, CRON)}
    for path in made.values():
        path.mkdir()
    yield made
    for path in made.values():
        path.rmdir()


@pytest.fixture(scope="module")
def flow(disk: Disk, groups: dict[str, Path]) -> Iterator[Running]:
    options = Options((disk.name,), by=CGROUP, neighbours=True, writeback=True, slow_ns=0, ring_bytes=RING)
    with running(lambda: PathFlow(options), [disk]) as made:
        yield made


READER = """
import mmap, os, sys, threading, time
path, name, size, threads, count, think = *sys.argv[1:3], *map(int, sys.argv[3:])
open("/proc/self/comm", "w").write(name)
fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
def read(number):
    buffer = mmap.mmap(-1, size)
    for one in range(count):
        os.preadv(fd, [buffer], (number * count + one) * size % (32 << 20))
        if think: time.sleep(think / 1e9)
every = [threading.Thread(target=read, args=(number,)) for number in range(threads)]
print("ready", flush=True)
sys.stdin.readline()
for one in every: one.start()
for one in every: one.join()
"""


JOBS = {BATCH: ("backup", 65536, READERS, READS, 0), APP: ("db", 4096, 1, VICTIM_READS, THINK_NS)}
THIRD = {CRON: ("cron", CRON_BYTES, CRON_READERS, CRON_READS, THINK_NS)}
Jobs = Mapping[str, tuple[object, ...]]


@contextmanager
def reader(disk: Disk, group: Path, words: tuple[object, ...]) -> Iterator[subprocess.Popen[str]]:
    """Start a reader in a cgroup; it waits for a line."""
    command = [sys.executable, "-I", "-S", "-c", READER, disk.path, *map(str, words)]
    with joined(group):
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        assert said(process) == "ready\n"
        yield process


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def load(disk: Disk, groups: dict[str, Path], jobs: Jobs = JOBS, begin: Callable[[], object] = lambda: None) -> None:
    """Let all readers begin at the same time, and together with `begin`."""
    with ExitStack() as stack:
        started = []
        for name, words in jobs.items():
            started.append(stack.enter_context(reader(disk, groups[name], words)))
        begin()
        for process in started:
            go(process)
        assert [process.wait(timeout=3600) for process in started] == [0] * len(jobs)


class Span(NamedTuple):
    owner: str
    queued: int
    issued: int
    completed: int


def span_of_request(line: Line) -> Span:
    """Return the times of a request that has no operation."""
    stages, queued = line["stages"], line["ts_ns"] - line["total_ns"]
    return Span(line["cgroup"], queued, queued + stages["throttle_ns"] + stages["queue_ns"], line["ts_ns"])


def span(line: Line) -> Span:
    """Return Q, D and C of an operation with one request."""
    stages = line["stages"]
    assert line["requests"] == 1
    queued = line["ts_ns"] - line["total_ns"] + stages["fs_ns"]
    issued = queued + stages["throttle_ns"] + stages["queue_ns"]
    device = stages["driver_ns"] + stages["device_ns"] + stages["complete_ns"]
    return Span(line["cgroup"], queued, issued, issued + device)


def had_meanwhile(one: Span, every: list[Span]) -> Counter[str]:
    """Sum up the device time of each owner while this request waited."""
    found: Counter[str] = Counter()
    for other in every:
        found[other.owner] += max(min(one.issued, other.completed) - max(one.queued, other.issued), 0)
    return found


def by_owner(report: Line) -> dict[str, Line]:
    return {one["owner"]: one for one in report["neighbours"]}


# A tick with HZ=100, the coarsest.
TICK_NS = 10 * MS
# Shares have four decimals, which are milliseconds if the kernel was idle for minutes.
ROUNDED = 0.00005


def how_busy(disk: Disk, report: Line, every: list[Span], grown: dict[str, int]) -> None:
    """Compare utilisation and queue depth with the records and with the kernel's own counters."""
    (found,) = [one for one in report["devices"] if one["dev"] == disk.name]
    covered = reached = 0
    for one in sorted(every, key=lambda one: one.issued):
        covered += max(one.completed - max(one.issued, reached), 0)
        reached = max(reached, one.completed)
    whole = report["duration_ns"]
    busy = found["utilisation"] * whole
    near = TICK_NS + ROUNDED * whole
    assert busy == pytest.approx(grown["io_ms"] * MS, rel=0.05, abs=near)
    # Before 99dc422335d8 ("block: support to account io_ticks precisely", 6.10) the start of a request counted a tick.
    if tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 10):
        assert busy == pytest.approx(covered, rel=0.05, abs=near)
    # Time counts from G on, which is D here, because there is no scheduler.
    had = sum(one.completed - one.issued for one in every)
    assert found["queue_depth"] * whole == pytest.approx(had, rel=0.05, abs=near)
    assert found["queue_depth"] * whole == pytest.approx(grown["queue_ms"] * MS, rel=0.05, abs=near)
    assert sum(found["merged"].values()) == grown["read_merges"] + grown["write_merges"]


def test_three_cgroups_on_few_tags(disk: Disk, groups: dict[str, Path], flow: Running) -> None:
    with flow.window() as trace:
        before = disk.counted()
        load(disk, groups, {**JOBS, **THIRD})
    assert lossless(trace.summary), trace.summary["loss"]
    every = [span(line) for line in trace.operations]
    found = by_owner(trace.summary)
    assert {*found} == {BATCH, APP, CRON} == {one.owner for one in every}
    # Eight readers share four tags, so each waits as long as it is served.
    assert found[BATCH]["requests"] == READERS * READS
    assert found[APP]["requests"] == VICTIM_READS
    assert found[CRON]["requests"] == CRON_READERS * CRON_READS
    assert (found[CRON]["op_bytes"], found[CRON]["seen"]) == (CRON_BYTES, "cron")
    assert found[BATCH]["op_bytes"] == 65536
    assert found[APP]["op_bytes"] == 4096
    assert found[BATCH]["op"] == "read"
    assert found[BATCH]["seen"] == "backup"
    for owner in (BATCH, APP, CRON):
        one = found[owner]
        had = sum(other.completed - other.issued for other in every if other.owner == owner)
        assert one["device_ns"] == pytest.approx(had, rel=0.05)
        assert one["device_ns"] == pytest.approx(one["requests"] * DEVICE_NS, rel=0.05)
        meanwhile = {holder["owner"]: holder["ns"] for holder in one["meanwhile"]}
        # A free tag has no owner until the next request.
        assert 0.9 * TAGS < sum(meanwhile.values()) / one["waited_ns"] < 1.01 * TAGS
        exact = sum((had_meanwhile(other, every) for other in every if other.owner == owner), Counter())
        # Including owners whose first request began during such a wait.
        for holder in (BATCH, APP, CRON):
            assert meanwhile.get(holder, 0) == pytest.approx(exact[holder], rel=0.05, abs=MS)
        assert not meanwhile.get(OTHERS)
    assert found[APP]["waits"] >= VICTIM_READS // 2
    how_busy(disk, trace.summary, every, {name: now - before[name] for name, now in disk.counted().items()})
    for line, read in zip(trace.operations, every):
        if read.issued - read.queued < MS:
            continue
        reported = line["neighbours"]
        assert reported["waited_ns"] == read.issued - read.queued
        sums = Counter({holder["owner"]: holder["ns"] for holder in reported["meanwhile"]})
        exact = had_meanwhile(read, every)
        assert {*sums} == {*+exact}
        for holder in sums:
            assert sums[holder] == pytest.approx(exact[holder], rel=0.05, abs=MS // 10)
        # The first one had the device longest, which may be the third cgroup if the wait is short.
        assert [holder["ns"] for holder in reported["meanwhile"]] == sorted(sums.values(), reverse=True)
        for holder in reported["meanwhile"]:
            seen, size = {**JOBS, **THIRD}[holder["owner"]][:2]
            assert (holder["seen"], holder["op"], holder["bytes"]) == (seen, "read", size)
    (finding,) = [one for one in trace.summary["verdict"]["findings"] if one["rule"] == "neighbour"]
    assert (finding["dev"], finding["who"]) == (disk.name, "/batch (backup, 64 KiB reads)")
    assert finding["owner"] in (APP, CRON)


@pytest.mark.parametrize(
    "jobs",
    [
        {**JOBS, **THIRD},
        pytest.param(JOBS, marks=only_all),
    ],
)
def test_a_replay_makes_the_same_of_single_ones(
    jobs: Jobs, disk: Disk, groups: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Compare the kernel's counts with the overlap of the records' times, under the same load."""
    file = tmp_path / "trace.wpt"
    with Trace("--each", "--neighbours", "--ring-size=16M", f"--capture={file}", f"--dev={disk.name}") as trace:
        load(disk, groups, jobs)
    assert main(["replay", str(file), "--json", "--summary", "--neighbours"]) == 0
    start, summary = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert "exact overlap" in start["notes"][-1]
    assert not summary["loss"].get("neighbour_unknown")
    counted, exact = by_owner(trace.summary), by_owner(summary)
    assert {*exact} == {*counted} == {*jobs}
    whole = sum(one["device_ns"] for one in counted.values())
    for owner, one in exact.items():
        live = counted[owner]
        assert [one[name] for name in ("requests", "bytes", "op", "op_bytes", "seen", "waits")] == [
            live[name] for name in ("requests", "bytes", "op", "op_bytes", "seen", "waits")
        ]
        assert one["device_ns"] / whole == pytest.approx(live["device_ns"] / whole, rel=0.05)
        assert one["waited_ns"] == pytest.approx(live["waited_ns"], rel=0.05)
        meanwhile = {holder["owner"]: holder["ns"] for holder in live["meanwhile"]}
        assert {holder["owner"] for holder in one["meanwhile"]} == {*meanwhile}
        for holder in one["meanwhile"]:
            assert holder["ns"] == pytest.approx(meanwhile[holder["owner"]], rel=0.05, abs=MS)
    findings = [
        [(found["owner"], found["who"]) for found in line["verdict"]["findings"] if found["rule"] == "neighbour"]
        for line in (summary, trace.summary)
    ]
    assert findings[0] == findings[1] != []


def test_a_device_that_one_has_alone(disk: Disk, groups: dict[str, Path], flow: Running) -> None:
    """One read at a time, each as fast as the device: there is no finding against a neighbour."""
    with flow.window() as trace:
        load(disk, groups, {APP: ("db", 4096, 1, 30, 0)})
    found = findings(trace.summary)
    assert {*found} == {"largest", "owner"}
    assert (found["largest"]["stage"], found["largest"]["dev"]) == ("device", disk.name)
    assert found["largest"]["share"] > 0.9
    assert (found["owner"]["who"], found["owner"]["share"]) == (APP, 1.0)
    assert f"{APP} had the device alone" in trace.summary["verdict"]["text"]


def test_two_that_had_it_alike_are_both_named(disk: Disk, groups: dict[str, Path], flow: Running) -> None:
    """Whichever of them had a read more than half of the time, and neither is the victim of the other."""
    bully = (65536, READERS, READS // 2, 0)
    with flow.window() as trace:
        load(disk, groups, {BATCH: ("backup", *bully), CRON: ("cron", *bully), APP: JOBS[APP]})
    found = findings(trace.summary)["neighbour"]
    assert found["owner"] == APP
    had = {holder["owner"]: holder["ns"] for holder in by_owner(trace.summary)[APP]["meanwhile"]}
    # In ten waits one may by chance have had more than the other.
    named = {BATCH, CRON}
    if min(had[one] for one in named) < 0.8 * max(had[one] for one in named):
        named = {max(named, key=had.__getitem__)}
    assert {who.split()[0] for who in found["who"].split(" and ")} == named
    assert found["had"] > (0.9 if len(named) == 2 else 0.5)


def test_of_many_nobody_is_accused(disk: Disk, groups: dict[str, Path], v2: Path, flow: Running) -> None:
    """Eight owners with an eighth of the device each wait for the other seven."""
    many = {f"/one{number}": v2 / f"one{number}" for number in range(8)}
    for path in many.values():
        path.mkdir()
    try:
        with flow.window() as trace:
            load(disk, {**groups, **many}, {**dict.fromkeys(many, ("batch", 65536, 2, 12, 0)), APP: JOBS[APP]})
    finally:
        for path in many.values():
            path.rmdir()
    found = findings(trace.summary)["neighbour"]
    assert (found["who"], found["many"]) == ("many others", 1)
    assert found["owner"] in {APP, *many}


def test_of_a_partition_nobody_knows_the_others(disk: Disk, groups: dict[str, Path]) -> None:
    """The neighbour reads another partition of the disk."""
    prefix = f"{disk.name}p" if disk.name[-1].isdigit() else disk.name
    parts = [Disk(f"{prefix}{number}") for number in (1, 2)]
    half = 30 << 20 >> 9
    with ExitStack() as stack:
        for number in (1, 2):
            words = [str(number), str(2048 + half * (number - 1)), str(half)]
            subprocess.run(["addpart", disk.path, *words], check=True)
            stack.callback(subprocess.run, ["delpart", disk.path, str(number)], check=True)
        for part in parts:
            wait_until(Path(part.path).exists, "the partitions")
        options = Options((parts[0].name,), by=CGROUP, neighbours=True, slow_ns=0, ring_bytes=RING)
        flow = stack.enter_context(running(lambda: PathFlow(options), [parts[0]]))
        backup = reading(parts[1], disk, groups[BATCH])
        with flow.window() as trace:
            load(parts[0], groups, {APP: JOBS[APP]}, lambda: stack.enter_context(backup))
    found = findings(trace.summary)
    assert "neighbour" not in found
    assert found["owner"]["partial"] == 1
    assert "alone" not in trace.summary["verdict"]["text"]


@contextmanager
def reading(part: Disk, disk: Disk, group: Path) -> Iterator[None]:
    """Run the backup during the block."""
    with reader(part, group, JOBS[BATCH]) as process:
        go(process)
        wait_until(lambda: disk.in_flight()[0] > 0, "the backup")
        yield
        assert process.wait(timeout=3600) == 0


def test_what_a_filter_leaves_out_is_reported_as_neighbour(disk: Disk, groups: dict[str, Path], flow: Running) -> None:
    """Only the victim is shown, but another owner had the device meanwhile."""
    with flow.window(Filter(op="read", size=(None, 4096))) as trace:
        load(disk, groups)
    found = by_owner(trace.summary)
    assert {line["cgroup"] for line in trace.operations} == {APP}
    assert len(trace.operations) == VICTIM_READS
    assert {owner: one["requests"] for owner, one in found.items()} == {BATCH: READERS * READS, APP: VICTIM_READS}
    assert found[BATCH]["device_ns"] == pytest.approx(READERS * READS * DEVICE_NS, rel=0.05)
    assert found[BATCH]["waits"] == 0
    one = found[APP]
    meanwhile = {holder["owner"]: holder["ns"] for holder in one["meanwhile"]}
    assert 0.9 * TAGS < meanwhile[BATCH] / one["waited_ns"] < 1.01 * TAGS
    (finding,) = [one for one in trace.summary["verdict"]["findings"] if one["rule"] == "neighbour"]
    assert (finding["owner"], finding["who"]) == (APP, "/batch (backup, 64 KiB reads)")
    assert "/batch (backup, 64 KiB reads) had 100% of it meanwhile" in trace.summary["verdict"]["text"]
    assert {*meanwhile} == {BATCH}


WRITER = """
import os, sys
open("/proc/self/comm", "w").write("logger")
fd = os.open(sys.argv[1], os.O_WRONLY)
for number in range(int(sys.argv[2])):
    os.pwrite(fd, bytes([number & 255]) * 4096, (32 << 20) + number * 8192)
"""


def test_what_is_written_back_is_its_writers(disk: Disk, groups: dict[str, Path], flow: Running) -> None:
    """The flusher writes after the writer has exited, and the writer is the owner.

    The pages are where nothing reads, because a direct read would write dirty pages itself.
    """
    with flow.window() as trace, ExitStack() as stack:
        # The last close would drop the page cache.
        held = os.open(disk.path, os.O_RDONLY)
        stack.callback(os.close, held)
        with joined(groups[BATCH]):
            subprocess.run([sys.executable, "-I", "-S", "-c", WRITER, disk.path, str(WRITES)], check=True)

        def begin() -> None:
            """Wake the flushers. A sync would make requests of its own."""
            wake_flushers()
            wait_until(lambda: disk.in_flight()[1] > 0, "what is written back")

        load(disk, groups, {APP: JOBS[APP]}, begin)
        wait_until(lambda: disk.in_flight()[1] == 0, "the end of it")
    assert lossless(trace.summary), trace.summary["loss"]
    found = by_owner(trace.summary)
    assert (found[BATCH]["requests"], found[BATCH]["op"], found[BATCH]["op_bytes"]) == (WRITES, "write", 4096)
    assert found[BATCH]["device_ns"] == pytest.approx(WRITES * DEVICE_NS, rel=0.05)
    reads = [span(line) for line in trace.operations if line["op"] == "read" and line["cgroup"] == APP]
    assert len(reads) == VICTIM_READS
    every = [*reads, *(span_of_request(line) for line in trace.requests)]
    exact = sum((had_meanwhile(one, every) for one in reads), Counter())
    meanwhile = {holder["owner"]: holder["ns"] for holder in found[APP]["meanwhile"]}
    assert exact[BATCH] > MS
    assert meanwhile[BATCH] == pytest.approx(exact[BATCH], rel=0.05, abs=MS)


def test_below_a_stacked_device_each_disk_has_its_neighbours(groups: dict[str, Path]) -> None:
    """Stripes of 64 KiB: the backup reads both disks in turn, the victim mostly one."""
    with ExitStack() as stack:
        below = [stack.enter_context(busy_device(f"wptest_leg{number}")) for number in range(2)]
        disk = stack.enter_context(striped(*below))
        options = Options((disk.name,), by=CGROUP, neighbours=True, slow_ns=0, ring_bytes=RING)
        flow = stack.enter_context(running(lambda: PathFlow(options), [disk]))
        with flow.window() as trace:
            load(disk, groups)
    assert lossless(trace.summary), trace.summary["loss"]
    found = {(one["dev"], one["owner"]): one for one in trace.summary["neighbours"]}
    assert {dev for dev, _ in found} == {one.name for one in below}
    requests: Counter[str] = Counter()
    for (_, owner), one in found.items():
        requests[owner] += one["requests"]
        assert one["device_ns"] == pytest.approx(one["requests"] * DEVICE_NS, rel=0.05)
        # The first requests find free tags.
        if one["waited_ns"] > 10 * DEVICE_NS:
            meanwhile = sum(holder["ns"] for holder in one["meanwhile"])
            assert 0.9 * TAGS < meanwhile / one["waited_ns"] < 1.01 * TAGS
    # No read crosses the end of a stripe.
    assert requests == {BATCH: READERS * READS, APP: VICTIM_READS}
