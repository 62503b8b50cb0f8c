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
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.kernel.conftest import GUEST
from tests.kernel.disks import Disk, fio, fio_jobs, loop_device, null_device, total
from tests.kernel.flows import running_flow
from tests.kernel.loads import mounted
from tests.kernel.patience import said
from tests.kernel.peer import ended, running_peer
from tests.kernel.trace import PATIENCE, ROOT, Line, StacksTrace, lossless, wait_until
from tests.kernel.tracefs import traced
from wptrace.bpf import loaded
from wptrace.bpf.ring import Reader
from wptrace.flows import stacks
from wptrace.flows.stacks import Options, StacksFlow
from wptrace.model.book import MISTAKEN_STACK
from wptrace.model.kind import REQUESTS, Group
from wptrace.model.report import Snapshot
from wptrace.model.stack import Stack

LATENCY_NS = 5_000_000


def has(row: Line, *functions: str) -> bool:
    return set(functions) <= set(row["stack"]["kernel"])


def count(summary: Line, *functions: str, **wanted: str) -> int:
    """Return how many I/Os began in stacks with these functions."""
    rows = [row for row in summary["rows"] if all(row[name] == value for name, value in wanted.items())]
    return sum(row["count"] for row in rows if has(row, *functions))


class Place(NamedTuple):
    disk: Disk
    file: Path
    reads: str
    """The function of its file system that is on the stack of a read."""


@pytest.fixture
def places(disk: Disk, tmp_path: Path) -> Iterator[list[Place]]:
    """A file on each of two file systems."""
    with ExitStack() as stack:
        other = stack.enter_context(loop_device(tmp_path / "other.img", "320M"))  # xfs wants 300 MB
        found = []
        for kind, where in (("ext4", disk), ("xfs", other)):
            point = stack.enter_context(mounted(where, kind, tmp_path / kind))
            (point / "file").write_bytes(bytes(2 << 20))
            found.append(Place(where, point / "file", f"{kind}_file_read_iter"))
        subprocess.run(["sync"], check=True)
        yield found


NUMBERS, ROUNDS = (150, 90), 3


def read_both(places: list[Place]) -> None:
    """Read both in turn on one CPU. If one preempted a program of the other, 7.0 and newer would skip a program."""
    common = {"size": "2M", "thread": 1, "cpus_allowed": "0", "stonewall": 1}
    turns = [number // ROUNDS for number in NUMBERS]
    jobs = [{"filename": one.file, "number_ios": number, **common} for one, number in zip(places, turns)]
    assert [total(job) for job in fio_jobs(*jobs * ROUNDS)] == turns * ROUNDS


def test_two_file_systems_have_different_stacks(places: list[Place]) -> None:
    """fio made as many I/Os in each file system as the stacks of that have."""
    with StacksTrace(*(f"--dev={place.disk.name}" for place in places)) as trace:
        read_both(places)
    summary = trace.summary
    for place, number in zip(places, NUMBERS):
        assert count(summary, place.reads, dev=place.disk.name, op="read") == count(summary, place.reads) == number
        rows = [row for row in summary["rows"] if has(row, place.reads)]
        assert sum(row["bytes"] for row in rows) == 4096 * number
        # The innermost function is the kernel's, not that of the program.
        assert all(row["stack"]["kernel"][0].startswith(("blk_mq_", "__blk_mq_")) for row in rows), rows
    assert lossless(summary), summary["loss"]
    assert summary["requests"]["in_flight"] == 0


def test_merges_are_charged_to_who_merged(disk: Disk) -> None:
    """Pages that are written back merge into a few requests; each is an I/O here."""
    before = disk.completed()
    with StacksTrace("--dev", disk.name) as trace:
        job = fio(disk.path, rw="write", direct=0, bs="64k", number_ios=40, end_fsync=1, norandommap=0)
    after = disk.completed()
    grown = {name: after[name] - before[name] for name in after}
    summary = trace.summary
    assert grown["write_merges"] > 0
    assert count(summary, "bio_attempt_back_merge", op="write") == grown["write_merges"]
    # The kernel counts a flush without data as another write.
    assert count(summary, op="write") <= grown["write"] + grown["write_merges"]
    assert sum(row["bytes"] for row in summary["rows"]) == grown["write_sectors"] * 512
    assert sum(row["bytes"] for row in summary["rows"]) == job["write"]["io_bytes"]
    assert summary["requests"]["in_flight"] == 0
    assert lossless(summary), summary


def test_a_write_with_flushes_ends_once(disks: list[Disk]) -> None:
    """Its data and flushes are several requests and one I/O. Without FUA the last one is a flush as well."""
    with StacksTrace(*(f"--dev={disk.name}" for disk in disks)) as trace:
        # One disk after the other: if an interrupt runs a program within itself, the kernel skips it.
        job = {"rw": "write", "sync": "dsync", "number_ios": 30, "stonewall": 1}
        jobs = fio_jobs(*({"filename": disk.path, **job} for disk in disks))
    finished = 0
    for disk, writes in zip(disks, map(total, jobs)):
        assert count(trace.summary, op="write", dev=disk.name) == writes
        flushes = count(trace.summary, "blkdev_issue_flush", op="flush", dev=disk.name)
        assert flushes in (0, writes), trace.summary
        finished += writes + flushes
    assert trace.summary["requests"]["finished"] == finished
    assert trace.summary["requests"]["in_flight"] == 0
    assert lossless(trace.summary), trace.summary


def polls(pid: int) -> bool:
    """Tell whether a process is in poll or ppoll."""
    number = {"x86_64": "7", "aarch64": "73"}[os.uname().machine]
    return Path(f"/proc/{pid}/syscall").read_text().split()[0] == number


@pytest.mark.one_kernel
def test_folded_lines_for_a_process_with_its_own_stack(disk: Disk, tmp_path: Path) -> None:
    """Folded lines for a flame graph: the process first, the block layer last, then the count."""
    # fio waits for a newline, so that its pid is known before its first I/O.
    command = f"read line; exec fio --name=job --filename={disk.path} --rw=randread --bs=4k --direct=1 --size=32M"
    command += " --norandommap --ioengine=psync --number_ios=120 --thread --output-format=terse"
    wanted = subprocess.Popen(["sh", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    result = tmp_path / "folded"
    links = len(list(loaded.links()))
    arguments = ["-d", disk.name, "-p", str(wanted.pid), "-D", "--user", "--folded", "count", "-o", str(result)]
    trace = subprocess.Popen([sys.executable, "-m", "wptrace", "stacks", *arguments], stderr=subprocess.PIPE, cwd=ROOT)
    # Once it waits for records, it has taken the snapshot that the figures start from.
    wait_until(lambda: len(list(loaded.links())) >= links + 4 and polls(trace.pid), "the tracer to wait")
    fio(disk.path, number_ios=50)  # another process
    wanted.communicate("\n", timeout=PATIENCE)
    trace.send_signal(signal.SIGINT)
    _, complaints = trace.communicate(timeout=PATIENCE)
    assert [line for line in complaints.decode().splitlines() if not line.startswith("note: ")] == [
        "noted: 1 x exited: the process of --pid has ended: what another one with its number does is not counted"
    ]
    stacks = dict(line.rsplit(" ", 1) for line in result.read_text().splitlines())
    assert sum(map(int, stacks.values())) == 120
    for line in stacks:
        frames = line.split(";")
        assert frames[0] == disk.name
        assert re.fullmatch(rf"\S+\[{wanted.pid}\]", frames[1])
        assert any("pread" in frame for frame in frames)
        assert frames.index("vfs_read") < frames.index("blk_mq_submit_bio")


def run(options: Options, disk: Disk, **job: Any) -> tuple[Snapshot, dict[str, Any]]:
    with running_flow(StacksFlow(options)) as flow:
        done = fio(disk.path, **job)
        flow.stop()
        return flow.snapshot(), done


@pytest.mark.one_kernel
def test_min_leaves_quick_ones_uncharged(disk: Disk) -> None:
    found, job = run(Options((disk.path,), min_ns=3600 * 10**9), disk)
    assert found.books[REQUESTS].finished == total(job)
    assert found.cells == {}


@pytest.mark.one_kernel
def test_who_does_io_while_the_trace_begins_has_a_name(loop: Disk) -> None:
    """Even though the ring, with room for 128, is not read; a process is reported when it does I/O."""
    flow = StacksFlow(Options((loop.path,), user=True))
    children: list[subprocess.Popen[bytes]] = []
    try:
        flow.start(Reader())
        # Until the shell runs dd, the name is that of the shell.
        for _ in range(150):
            read = ["dd", f"if={loop.path}", "of=/dev/null", "iflag=direct", "bs=4k", "count=1", "status=none"]
            subprocess.run(read, check=True)
        waits = "import os, sys; os.preadv(os.open(sys.argv[1], os.O_DIRECT), [__import__('mmap').mmap(-1, 4096)], 0)"
        last = [sys.executable, "-c", f"{waits}; print(flush=True); sys.stdin.read()", loop.path]
        children.append(subprocess.Popen(last, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        said(children[0])
        flow.stop()
        found = flow.snapshot()
    finally:
        flow.close()
        for child in children:
            child.communicate()
    names = Counter(
        stack.process.partition("[")[0] for group in found.cells if isinstance(stack := group.label("stack"), Stack)
    )
    assert found.books[REQUESTS].finished == 151, found.books[REQUESTS]
    # Processes that exited before they were reported have no name; the last one is alive.
    assert names["dd"] >= 100, names
    (python,) = (name for name in names if name not in ("dd", "?"))
    assert python.startswith("python"), names


@pytest.mark.one_kernel
def test_the_fallback_charges_the_same(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Force raw_tp, which replaces tp_btf where that is refused; no kernel of the matrix needs that."""
    hooks = tuple(hook._replace(programs=hook.programs[1:]) for hook in StacksFlow.hooks)
    monkeypatch.setattr(StacksFlow, "hooks", hooks)
    found, job = run(Options((disk.path,)), disk, rw="randrw")
    assert started(found, "vfs_read") == job["read"]["total_ios"]
    assert started(found, "vfs_write") == job["write"]["total_ios"]
    assert (found.books[REQUESTS].in_flight, found.books[REQUESTS].lost, found.books[REQUESTS].noted) == (0, {}, {})


def started(found: Snapshot, function: str) -> int:
    return sum(stages["total"].count for group, stages in found.cells.items() if function in kernel(group))


def kernel(group: Group) -> tuple[str, ...]:
    stack = group.label("stack")
    assert isinstance(stack, Stack)
    return stack.kernel


@pytest.mark.one_kernel
@pytest.mark.parametrize(("room", "second_room"), [(1, 1024), (1, 1)], ids=["a second chance", "none"])
def test_stacks_that_want_one_place(loop: Disk, room: int, second_room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two stacks and one place: the second stack uses the overflow table, or is counted without a place."""
    monkeypatch.setattr(stacks, "_STACKS", room)
    monkeypatch.setattr(stacks, "_MORE_STACKS", second_room)
    # Reads come first, so that it is known which stack gets no room.
    found, job = run(Options((loop.path,)), loop, rw="rw", norandommap=0)
    total_ios = {"vfs_read": job["read"]["total_ios"], "vfs_write": job["write"]["total_ios"]}
    seen = {name: started(found, name) for name in total_ios}
    if second_room > 1:
        assert seen == total_ios
        assert found.books[REQUESTS].noted == {}
    else:
        assert 0 < sum(seen.values()) <= total(job)
    without = started(found, "[no stack]")
    assert sum(seen.values()) + without == total(job) == found.books[REQUESTS].finished
    assert sum(found.books[REQUESTS].noted.values()) == without


@pytest.mark.one_kernel
def test_a_stack_that_is_taken_for_another_is_noticed(disk: Disk) -> None:
    """Falsify what a CPU has learned: one in 128 stacks is walked as a check, which must notice."""
    flow = StacksFlow(Options((disk.path,)))
    # Each CPU learns by itself.
    job = {"cpus_allowed": "0"}
    with running_flow(flow):
        known = flow._obj.maps["known_stacks"]
        fio(disk.path, number_ios=100, **job)
        hits = 0
        for key, cpus in known.items():
            for way in (way for cpu in cpus for way in cpu.ways if way.depth):
                hits += way.hits
                way.id = stacks._STACKS - 1
            known[key] = cpus
        assert hits >= 90
        runs = 0
        # If all stacks are new to the CPU, none can be mistaken.
        while not flow.snapshot().books[REQUESTS].noted.get(MISTAKEN_STACK) and runs < 100:
            fio(disk.path, number_ios=200, **job)
            runs += 1
        flow.stop()
        found = flow.snapshot()
    assert found.books[REQUESTS].noted[MISTAKEN_STACK] >= 1
    assert found.books[REQUESTS].finished == 100 + 200 * runs
    # A mistaken entry is learned anew.
    assert started(found, "vfs_read") > 100


@pytest.mark.guest
def test_the_same_as_the_kernels_own_tracing(disk: Disk) -> None:
    """Each request has one stack in the kernel's buffer, because nothing merges here."""
    ours = {"block_getrq": f"dev == {disk.number}"}
    with (
        traced("block/block_getrq", stacks=True, filters=ours) as trace,
        running_flow(StacksFlow(Options((disk.path,)))) as flow,
    ):
        job = fio(disk.path, rw="randrw", number_ios=150)
        flow.stop()
        found = flow.snapshot()
        records = trace.records()
    theirs = {name: sum(name in record.stack for record in records) for name in ("vfs_read", "vfs_write")}
    assert theirs == {"vfs_read": job["read"]["total_ios"], "vfs_write": job["write"]["total_ios"]}
    assert {name: started(found, name) for name in theirs} == theirs
    # From the block layer out to the system call, the functions are the same.
    for group in found.cells:
        (same,) = {record.stack for record in records if record.stack[-len(kernel(group)) :] == kernel(group)} or {()}
        assert same, (kernel(group), records[0].stack)


@pytest.mark.guest
def test_the_same_as_biostacks_in_the_same_run(request: pytest.FixtureRequest) -> None:
    # The peer reads kernel symbols once, at its start.
    subprocess.run(["modprobe", "-a", "ext4", "xfs"], check=True)
    with running_peer("biostacks-libbpf", links=3) as peer:
        places: list[Place] = request.getfixturevalue("places")
        with running_flow(StacksFlow(Options(tuple(place.disk.path for place in places)))) as flow:
            read_both(places)
            flow.stop()
            found = flow.snapshot()
            output = ended(peer)
    theirs: Counter[str] = Counter()
    for block in output.split("\n\n"):
        counts = [int(match) for match in re.findall(r"-> \d+\s*: (\d+)\s*\|", block)]
        for place in places:
            if f"\n{place.reads}\n" in block:
                theirs[place.reads] += sum(counts)
    for place, number in zip(places, NUMBERS):
        # On 7.x the kernel skips programs of the peer as well, which does not report how many.
        assert theirs[place.reads] == number or (GUEST == "7.2" and 0 < theirs[place.reads] < number), output
        assert started(found, place.reads) == number


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
