# SPDX-License-Identifier: Apache-2.0
"""Reasons of waits, under loads whose reason is known; the witnesses are /proc/TID/stack and the kernel's tracing."""

from __future__ import annotations

import ctypes
import itertools
import os
import random
import re
import shlex
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.kernel import tracefs
from tests.kernel.conftest import GUEST
from tests.kernel.disks import Disk, loop_device, null_device, opened, setting
from tests.kernel.loads import joined, mounted
from tests.kernel.patience import joined as ended
from tests.kernel.stacks import delayed, suspended
from tests.kernel.test_binding import GETPGID, call
from tests.kernel.test_capture import replayed
from tests.kernel.test_io_path import in_cgroup, sums_up
from tests.kernel.test_places import alone
from tests.kernel.trace import Line, Lines, Trace, lossless, object_path
from tests.kernel.window import Running
from tests.thorough import only_all
from wptrace.analysis.waits import RUNNABLE
from wptrace.bpf.object import BpfObject
from wptrace.engine.hooks import Hook
from wptrace.flows.io import hooks as io_hooks
from wptrace.flows.io import wait_reasons
from wptrace.flows.io.hooks import BY_STACK, JOURNAL_WAITS, OPERATION, READS_STACKS, TICK_NS
from wptrace.flows.io.operations import FILES
from wptrace.flows.io.options import PROCESS, Options
from wptrace.flows.io.parts import waits as waits_part
from wptrace.flows.io.path import PathFlow

MS = 1_000_000
PAGE = os.sysconf("SC_PAGE_SIZE")
NEVER, ALWAYS = (1 << 64) - 1, 0
DELAY_MS = 40
AT_ONCE = "wptj"
# Others than ext4 are looked at on one kernel.
EVERY = ["ext4", *(pytest.param(kind, marks=pytest.mark.one_kernel) for kind in ("xfs", "btrfs"))]


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disk]:
    """Reads and writes take their time, of which a tick is 4 ms."""
    with null_device("wptw", memory_backed=1, size=256) as below, delayed(below, DELAY_MS, DELAY_MS) as disk:
        yield disk


@pytest.fixture
def folder(slow: Disk, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    with mounted(slow, getattr(request, "param", "ext4"), tmp_path / "mounted") as top:
        yield top


@pytest.fixture
def flow(path_flow: Running, slow: Disk, folder: Path) -> Running:
    """A trace of the slow disk, mounted before."""
    return path_flow.aim(slow)


@contextmanager
def threshold(flow: Running, ns: int) -> Iterator[None]:
    obj = flow.flow._obj
    before, obj.data.wait_ns = obj.data.wait_ns, ns
    try:
        yield
    finally:
        obj.data.wait_ns = before


class Sleeper(threading.Thread):
    """Does something, while /proc has the stack of its thread."""

    def __init__(self, do: object) -> None:
        super().__init__(daemon=True)
        self._do = do
        self.tid = 0
        self.seen: Counter[tuple[str, ...]] = Counter()
        self.failed: BaseException | None = None

    def run(self) -> None:
        self.tid = threading.get_native_id()
        try:
            self._do()  # type: ignore[operator]
        except BaseException as error:
            self.failed = error

    def see_stack(self) -> None:
        if self.tid:
            try:
                text = Path(f"/proc/self/task/{self.tid}/stack").read_text()
            except OSError:
                return
            self.seen[tuple(re.findall(r"\] (?:\? )?([\w.]+)\+", text))] += 1


def run(*work: object) -> list[Sleeper]:
    """All at once, each in a thread of its own, of which the stacks are looked at until the last one has ended."""
    every = [Sleeper(do) for do in work]
    for one in every:
        one.start()
    while any(one.is_alive() for one in every):
        for one in every:
            one.see_stack()
        time.sleep(0.002)
    for one in every:
        ended(one)
        if one.failed is not None:
            raise one.failed
    return every


def waits(reported: Lines, op: str) -> list[tuple[Line, Line]]:
    """Operations of this kind, with each of their waits."""
    return [(one, wait) for one in reported.operations if one["op"] == op for wait in one.get("waits", ())]


def exact(reported: Lines) -> None:
    """Waits are parts of their stage; rows have what records have; nothing is lost."""
    assert lossless(reported.summary), reported.summary["loss"]
    rows: Counter[tuple[str, str, str]] = Counter()
    counts: Counter[tuple[str, str, str]] = Counter()
    for one in reported.operations:
        sums_up(one)
        of_stage: Counter[str] = Counter()
        for wait in one.get("waits", ()):
            of_stage[wait["stage"]] += wait["ns"]
            rows[one["op"], wait["stage"], wait["reason"]] += wait["ns"]
            counts[one["op"], wait["stage"], wait["reason"]] += wait["count"]
        assert all(one["stages"][f"{stage}_ns"] >= ns for stage, ns in of_stage.items()), one
    found = [row for row in reported.summary["rows"] if row["kind"] == "wait"]
    assert {(row["op"], row["in_stage"], row["reason"]): row["sum_ns"] for row in found} == dict(rows)
    assert {(row["op"], row["in_stage"], row["reason"]): row["waits"] for row in found} == dict(counts)
    slept: Counter[tuple[str, str]] = Counter()
    for (op, stage, _), ns in rows.items():
        slept[op, stage] += ns
    for row in reported.summary["rows"]:
        if row["kind"] == "operation" and row["stage"] in RUNNABLE:
            assert slept[row["op"], row["stage"]] <= row.get("asleep_ns", 0) <= row["sum_ns"], row


def is_witnessed(wait: Line, sleepers: Sequence[Sleeper]) -> bool:
    """Whether /proc had the innermost function of the stack, or of the one that called it."""
    seen = {name.partition(".")[0] for one in sleepers for stack in one.seen for name in stack}
    return wait["stack"][0].partition(".")[0] in seen


def written(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.write(b"x" * size)
        file.flush()
        os.fsync(file.fileno())


def test_each_reason_has_functions_in_this_kernel() -> None:
    """A reason without functions would never be found."""
    if GUEST:
        for module in ("ext4", "xfs", "btrfs", "fuse", "nfsv4", "dm-mod", "raid456"):
            subprocess.run(["modprobe", "--quiet", module], check=False)  # built in here and there
    lines = Path("/proc/kallsyms").read_text().splitlines()
    functions = {wait_reasons.plain(line.split()[2]) for line in lines if line.split()[1] in "tT"}
    missing = {
        reason.name for reason in wait_reasons.REASONS if not any(reason.has(function) for function in functions)
    }
    # The running kernel may be without what is a module elsewhere.
    assert missing <= (set() if GUEST else {"NFS call", "stacked device"})


# --- Locks and pages ------------------------------------------------------------------------------------------------


@pytest.mark.guest
@pytest.mark.parametrize("folder", EVERY, indirect=True)
def test_readers_of_one_page_wait_for_the_one_who_reads_it(flow: Running, folder: Path) -> None:
    written(folder / "file", 1 << 20)
    places = [16 * PAGE * block for block in range(4)]
    together = threading.Barrier(3)
    with opened(folder / "file") as fd:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)

        def read() -> None:
            for place in places:
                together.wait()
                os.pread(fd, PAGE, place)

        with flow.window() as reported:
            sleepers = run(read, read, read)
    exact(reported)
    reads = [one for one in reported.operations if one["op"] == "read"]
    assert len(reads) == 3 * len(places)
    others = [one for one in reads if one["kind"] == "operation" and not one["requests"]]
    # A reader that comes when the block is nearly read waits for less than the threshold.
    waiting = [one for one in others if one["stages"]["fs_ns"] > DELAY_MS * MS / 2]
    assert waiting, reads
    for one in waiting:
        (wait,) = one["waits"]
        assert (wait["stage"], wait["reason"]) == ("fs", "lock of a page"), one
        assert is_witnessed(wait, sleepers), (wait, sleepers[0].seen)


@pytest.mark.guest
@pytest.mark.parametrize("folder", EVERY, indirect=True)
def test_a_writer_waits_for_the_lock_of_the_file(flow: Running, folder: Path) -> None:
    """Another one has it for all of a write with O_DSYNC, or for most of it."""
    written(folder / "file", 1 << 20)
    buffer = memoryview(bytearray(1 << 20))
    place = -ctypes.addressof(ctypes.c_char.from_buffer(buffer)) % PAGE
    took: list[int] = []

    def write_through() -> None:
        for number in range(4):
            # Beyond the end, so that no file system shares the lock.
            os.pwritev(synced, [buffer[place : place + 8 * PAGE]], (1 << 20) + number * 8 * PAGE)

    def write() -> None:
        for number in range(8):
            began = time.monotonic_ns()
            os.pwrite(plain, b"y" * 100, number * PAGE)
            took.append(time.monotonic_ns() - began)
            time.sleep(0.01)

    path = folder / "file"
    with opened(path, os.O_RDWR | os.O_DIRECT | os.O_DSYNC) as synced, opened(path) as plain, flow.window() as reported:
        sleepers = run(write_through, write)
    exact(reported)
    found = [(one, wait) for one, wait in waits(reported, "write") if wait["reason"] == "lock of the file"]
    mine = [(one, wait) for one, wait in found if one["length"] == 100]
    assert mine, reported.operations
    assert all(one["kind"] == "operation" for one, _ in mine)
    assert all(is_witnessed(wait, sleepers) for _, wait in mine)
    # The times that the program itself saw are an upper bound.
    assert sum(wait["ns"] for _, wait in mine) <= sum(took)
    assert max(wait["ns"] for _, wait in mine) <= max(took)


@pytest.mark.guest
def test_what_waits_for_less_than_the_threshold_is_a_hit(flow: Running, folder: Path) -> None:
    """A lock is not I/O: without a threshold the sleep is not seen."""
    written(folder / "file", 1 << 20)

    def write_synced() -> None:
        with opened(folder / "file") as fd:
            for number in range(4):
                os.pwrite(fd, b"z" * PAGE, number * PAGE)
                os.fsync(fd)

    def write() -> None:
        for number in range(16):
            os.pwrite(plain, b"y" * 100, number * PAGE)
            time.sleep(0.005)

    with opened(folder / "file") as plain:
        for ns in (NEVER, ALWAYS):
            with threshold(flow, ns), flow.window() as reported:
                run(write_synced, write)
            exact(reported)
            assert bool(waits(reported, "write")) == bool(waits(reported, "sync")) == (ns == ALWAYS), (
                reported.operations
            )


@pytest.mark.guest
@pytest.mark.parametrize("folder", ["btrfs"], indirect=True)
def test_a_page_that_is_written_back_must_not_change(flow: Running, folder: Path) -> None:
    """btrfs has checksums."""
    written(folder / "file", 1 << 20)
    sync_file_range = ctypes.CDLL(None, use_errno=True).sync_file_range
    sync_file_range.argtypes = [ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong, ctypes.c_uint]

    def rewrite() -> None:
        for number in range(4):
            os.pwrite(fd, bytes([number]) * PAGE, 0)
            # Only begin to write it.
            assert sync_file_range(fd, 0, PAGE, 2) == 0
            os.pwrite(fd, bytes([number + 1]) * PAGE, 0)

    with opened(folder / "file") as fd, flow.window() as reported:
        sleepers = run(rewrite)
    exact(reported)
    found = [wait for _, wait in waits(reported, "write") if wait["reason"] == "stable page"]
    assert found, waits(reported, "write")
    assert all(is_witnessed(wait, sleepers) for wait in found)


def sum_of_stages(operations: Sequence[Line]) -> dict[str, int]:
    found = Counter[str]()
    for one in operations:
        found.update(one["stages"])
    return {name: ns for name, ns in found.items() if ns}


def sums(rows: Sequence[Line], kind: str) -> dict[tuple[str, str, str], int]:
    """Time by operation, stage and reason."""
    found = Counter[tuple[str, str, str]]()
    for row in rows:
        if row["kind"] == kind:
            found[row["op"], row["in_stage"], row["reason"]] += row["sum_ns"]
    return dict(found)


# --- Work ---------------------------------------------------------------------------------------------------------


def test_ticks_find_what_operations_do_on_a_cpu(tmp_path: Path) -> None:
    """No more of it than the CPU time that the thread had, but for a tick each."""
    size, times = 16 << 20, 4
    with loop_device(tmp_path / "disk.img") as disk, mounted(disk, "ext4", tmp_path / "mounted") as folder:
        written(folder / "file", size)
        with opened(folder / "file") as fd, Trace("--dev", disk.path, "--op", "read", "--interference") as trace:
            before = time.thread_time_ns()
            for _ in range(times):
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                os.pread(fd, size, 0)
            took = time.thread_time_ns() - before
    found = [row for row in trace.summary["rows"] if row["kind"] == "work"]
    assert found
    assert {(row["dev"], row["op"], row["in_stage"]) for row in found} == {(disk.name, "read", "fs")}
    assert 0 < sum(row["sum_ns"] for row in found) <= took + times * TICK_NS
    assert abs(sum(row["share"] for row in found) - 1) < 0.01
    most = max(found, key=lambda row: int(row["sum_ns"]))
    assert most["reason"] in {"copying", "page faults of the buffer", "memory", "page cache", "several"}, found


# --- Journals -------------------------------------------------------------------------------------------------------


_calls = itertools.count()


def commits_preempt_nobody(disk: Disk) -> None:
    """A task that is woken on the waker's CPU may be done before the waker goes to sleep."""
    os.sched_setscheduler(kernel_thread(f"jbd2/{disk.name}-"), os.SCHED_BATCH, os.sched_param(0))


def kernel_thread(prefix: str) -> int:
    """Its id; the name begins so."""
    names = {int(file.parent.name): file.read_text() for file in Path("/proc").glob("[0-9]*/comm")}
    (tid,) = (tid for tid, name in names.items() if name.startswith(prefix))
    return tid


def sync_often(folder: Path, times: int) -> list[Sleeper]:
    """Nobody else runs the same programs meanwhile, which a kernel that preempts them would skip."""
    return sync_together(folder, 1, times)


def sync_together(folder: Path, threads: int, times: int) -> list[Sleeper]:
    """Overwriting needs no change of the journal, so each time there are new blocks in new files."""
    call = next(_calls)

    def sync(number: int) -> None:
        with opened(folder / f"file{call}-{number % 2}") as fd:
            for block in range(times):
                os.pwrite(fd, b"x" * PAGE, (number * times + block) * PAGE)
                os.fsync(fd)

    return run(*(lambda number=number: sync(number) for number in range(threads)))


@pytest.mark.guest
@pytest.mark.parametrize("folder", EVERY, indirect=True)
def test_who_syncs_waits_for_a_commit(flow: Running, folder: Path) -> None:
    kind = next(line.split()[2] for line in Path("/proc/mounts").read_text().splitlines() if f" {folder} " in line)
    with flow.window() as reported:
        # On others a task that is alone has its own requests to wait for.
        sleepers = sync_often(folder, 6) if kind == "ext4" else sync_together(folder, 4, 3)
    exact(reported)
    found = [wait for _, wait in waits(reported, "sync") if wait["reason"] == "journal commit"]
    assert found, waits(reported, "sync")
    assert {wait["stage"] for wait in found} >= {"journal"}
    assert any(is_witnessed(wait, sleepers) for wait in found)


@pytest.mark.guest
@pytest.mark.one_kernel
def test_a_full_journal_has_to_be_emptied_first(path_flow: Running, slow: Disk, tmp_path: Path) -> None:
    """All data go through one of 4 MiB, in more requests than the ring holds."""
    with mounted(slow, "ext4", tmp_path / "mounted", "-J size=4", "data=journal") as folder:
        flow = path_flow.aim(slow)

        def write(name: str) -> None:
            with opened(folder / name) as fd:
                for number in range(8):
                    os.pwrite(fd, b"x" * (1 << 20), number << 20)

        # The task that empties the journal has its own requests to wait for, and the other one waits for that one.
        with threshold(flow, ALWAYS), flow.window(each=False) as reported:
            sleepers = run(lambda: write("one"), lambda: write("other"))
    assert lossless(reported.summary), reported.summary["loss"]
    found = [row for row in reported.summary["rows"] if row["kind"] == "wait" and row["op"] == "write"]
    assert "journal space" in {row["reason"] for row in found}, found
    # At most half of it is filled before a task has to wait for a commit.
    assert sum(row["sum_ns"] for row in found) >= DELAY_MS * MS
    seen = {name.partition(".")[0] for one in sleepers for stack in one.seen for name in stack}
    assert seen & {"__jbd2_log_wait_for_space", "jbd2_log_do_checkpoint", "add_transaction_credits"}, seen


@pytest.mark.guest
@pytest.mark.one_kernel
def test_a_full_log_of_xfs_holds_up_a_write(path_flow: Running, slow: Disk, tmp_path: Path) -> None:
    """The disk takes nothing while two tasks change attributes, which fill a log of 4 MiB.

    The file that is written is in a directory of its own: inodes that were made together are locked together while they
    are on their way to the disk, and the write could wait for that instead.
    """
    held_s, full = 4, threading.Event()
    with mounted(slow, "xfs", tmp_path / "mounted", "-l size=4m") as folder:
        flow = path_flow.aim(slow)
        files = [_new(folder / f"file{number}") for number in range(800)]

        def change(text: bytes) -> None:
            for file in files:
                os.setxattr(file, "user.x", text * 1400)

        change(b"a")
        os.sync()

        def change_often(number: int) -> None:
            while not full.is_set():
                for file in files[number::2]:
                    os.setxattr(file, "user.x", os.urandom(1) * 1400)
                    if full.is_set():
                        return

        def hold() -> None:
            with suspended(slow):
                time.sleep(held_s)
            full.set()

        def write() -> None:
            while not full.is_set():
                # Its time changes with the next tick.
                os.pwrite(fd, b"x", 0)
                time.sleep(0.005)

        (folder / "apart").mkdir()
        with opened(folder / "apart" / "file") as fd, flow.window() as reported:
            every = run(hold, lambda: change_often(0), lambda: change_often(1), write)
    exact(reported)
    found = [wait for _, wait in waits(reported, "write") if wait["reason"] == "journal space"]
    assert found, (waits(reported, "write"), every[-1].seen)
    # Those that fill the log wait in the same place.
    assert any(is_witnessed(wait, every) for wait in found), (found, [one.seen for one in every])


@pytest.mark.guest
@pytest.mark.one_kernel
def test_a_quota_that_is_being_committed_is_waited_for(path_flow: Running, slow: Disk, tmp_path: Path) -> None:
    """One task syncs what it writes. The other one's files have their inodes elsewhere, but both have one quota."""
    made_with = "-O quota,^orphan_file,^metadata_csum_seed"
    with mounted(slow, "ext4", tmp_path / "mounted", made_with, "nodelalloc") as folder:
        flow = path_flow.aim(slow)
        files = [_new(folder / f"file{number}") for number in range(200)]
        os.sync()

        def sync() -> None:
            with opened(files[0]) as fd:
                for number in range(1, 13):
                    os.pwrite(fd, b"x" * PAGE, number * PAGE)
                    os.fsync(fd)

        def write() -> None:
            for number in range(20, 180, 20):
                with opened(files[number]) as fd:
                    os.pwrite(fd, b"x" * PAGE, PAGE)
                time.sleep(DELAY_MS / 1000)

        with flow.window() as reported:
            sleepers = run(sync, write)
    exact(reported)
    found = [wait for _, wait in waits(reported, "write") if wait["reason"] == "quota"]
    assert found, waits(reported, "write")
    assert any(is_witnessed(wait, sleepers) for wait in found)


@pytest.fixture(params=["late", pytest.param("at_once", marks=only_all)])
def journaled(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Disk, Path]]:
    """Requests end after a while, or before who asked for them sleeps."""
    with ExitStack() as stack:
        if request.param == "late":
            disk: Disk = request.getfixturevalue("slow")
        else:
            disk = stack.enter_context(null_device(AT_ONCE, memory_backed=1, size=256, irqmode=0))
        yield disk, stack.enter_context(mounted(disk, "ext4", tmp_path / "mounted"))


@pytest.mark.guest
def test_stacks_know_a_journal_as_well_as_its_functions_do(
    path_flow: Running, journaled: tuple[Disk, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stacks are all there is where no function can be observed. They lack the time between sleeps."""
    disk, folder = journaled
    commits_preempt_nobody(disk)
    waiting = {f"wait.{name}" for name in JOURNAL_WAITS}

    def by_stack(hook: Hook) -> Hook:
        if hook.id not in waiting:
            return hook
        return hook._replace(programs=tuple(way for way in hook.ways if way.name == BY_STACK))

    flow = path_flow.aim(disk)
    with monkeypatch.context() as patched:
        patched.setattr(io_hooks, "HOOKS", tuple(map(by_stack, io_hooks.HOOKS)))
        other = Running(lambda: PathFlow(Options(devices=(disk.name,), slow_ns=0)), [disk])
    try:
        assert other.flow._obj.bss.journal_by_stack
        assert not flow.flow._obj.bss.journal_by_stack
        with flow.window() as reported, other.window() as seen:
            sync_often(folder, 9)
    finally:
        other.flow.close()
    exact(reported)
    exact(seen)

    def syncs(of: Lines) -> list[Line]:
        return [one for one in of.operations if one["op"] == "sync"]

    functions, stacks = sum_of_stages(syncs(reported)), sum_of_stages(syncs(seen))
    assert len(syncs(reported)) == len(syncs(seen)) == 9
    # A sleep is what such a function does, but for the way there and back: it may take an emulated CPU its time.
    assert 0 < stacks["journal_ns"] <= functions["journal_ns"] + 9 * MS, (functions, stacks)
    if disk.name == AT_ONCE:
        # A wait that ended before is not the reason of that sleep.
        assert sum("wakeup_ns" not in one["stages"] or not one["stages"]["wakeup_ns"] for one in syncs(seen)) > 4
    assert {wait["reason"] for _, wait in waits(seen, "sync") if wait["stage"] == "journal"} <= {"journal commit"}


def test_a_journal_is_known_where_no_function_can_be_observed(tmp_path: Path) -> None:
    """Stacks say so, in whichever way this kernel shows them."""
    with loop_device(tmp_path / "disk.img") as disk, mounted(disk, "ext4", tmp_path / "mounted") as folder:
        commits_preempt_nobody(disk)
        with Trace("--dev", disk.path, "--op", "sync", "--waits", "0", "--each") as trace:
            sync_often(folder, 18)
        syncs = [one for one in trace.operations if one["op"] == "sync"]
        assert len(syncs) == 18
        found = [wait for _, wait in waits(trace, "sync") if wait["stage"] == "journal"]
        assert found, (sum_of_stages(syncs), waits(trace, "sync"))
        assert {wait["reason"] for wait in found} == {"journal commit"}
        assert not [note for note in trace.lines[0]["notes"] if "journal is part of fs" in note]
        assert [note for note in trace.lines[0]["notes"] if "instructions for each sleep" in note]
        (how,) = [one["how"] for one in trace.lines[0]["stages"] if one["stage"] == "journal"]
        assert how


@pytest.mark.one_kernel
def test_rows_of_owners_and_a_replay_have_the_same_waits(tmp_path: Path) -> None:
    file = tmp_path / "waits.wpt"
    with loop_device(tmp_path / "disk.img") as disk, mounted(disk, "ext4", tmp_path / "mounted") as folder:
        options = ("--dev", disk.path, "--waits", "0", "--each", "--by", "thread", "--top", "0", "--capture", str(file))
        with Trace(*options) as trace:
            sync_together(folder, 3, 6)

    live = trace.summary["rows"]
    assert sums(live, "wait")
    assert sums(live, "owned_wait") == sums(live, "wait")
    assert len({row["owner"] for row in live if row["kind"] == "owned_wait" and row["op"] == "sync"}) >= 3
    shown = replayed(file)
    assert sums(shown[-1]["rows"], "wait") == sums(live, "wait")
    reported = Counter[tuple[str, str, str]]()
    for one in shown:
        for wait in one.get("waits", ()):
            reported[one["op"], wait["stage"], wait["reason"]] += wait["ns"]
            assert wait["stack"]
    assert dict(reported) == sums(live, "wait")


@pytest.mark.one_kernel
def test_owners_that_leave_take_their_waits_to_the_others(tmp_path: Path) -> None:
    with loop_device(tmp_path / "disk.img") as disk, mounted(disk, "ext4", tmp_path / "mounted") as folder:
        options = Options(devices=(disk.name,), by=PROCESS, owner_rows=16, waits_ns=ALWAYS)
        flow = Running(lambda: PathFlow(options), [disk])
        try:
            with flow.window() as reported:
                for number in range(60):
                    subprocess.run(["sync", _new(folder / f"file{number}")], check=True)
                    flow.flow.snapshot()
        finally:
            flow.flow.close()
    rows = reported.summary["rows"]
    assert sums(rows, "wait")
    assert sums(rows, "owned_wait") == sums(rows, "wait")
    owners = {row["owner"] for row in rows if row["kind"] == "owned_wait"}
    assert "others" in owners
    assert len(owners) < 60


def test_what_makes_room_for_others_is_still_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look takes half of the rows and all stacks of theirs, while operations go on to use them."""
    monkeypatch.setattr(waits_part, "FULL", 0)
    with loop_device(tmp_path / "disk.img") as disk, mounted(disk, "ext4", tmp_path / "mounted") as folder:
        options = Options(devices=(disk.name,), slow_ns=0, waits_ns=ALWAYS)
        flow = Running(lambda: PathFlow(options), [disk])

        def made_room() -> int:
            stack = flow.flow._obj.struct("wait_stack")
            table = stack.struct.iter_unpack(flow.flow._obj.view("wait_stacks"))
            return sum(one[stack.fields.index("generation")] for one in table)

        try:
            with flow.window() as reported:
                for number in range(20):
                    # How many stacks there are at a look depends on how fast the machine is.
                    if number >= 4 and made_room() > 1:
                        break
                    load = threading.Thread(target=sync_often, args=(folder, 12))
                    load.start()
                    while load.is_alive():
                        flow.flow.read_cells()
                        # A session does the same: rows that left long ago have no names any more.
                        flow.drain()
                    ended(load)
                    # Each takes half of what is left.
                    for _ in range(12):
                        flow.flow.read_cells()
            listed = flow.flow.lists()["wait_stacks"]
            generations = made_room()
        finally:
            flow.flow.close()
    exact(reported)
    found = waits(reported, "sync")
    assert found
    assert not [wait for _, wait in found if not wait["stack"] and wait["reason"] != "several"]
    assert generations > 1
    counted = Counter[tuple[str, str]]()
    for one in listed:
        counted[one["op"], one["reason"]] += one["sum_ns"]
    assert len({(one["op"], one["in_stage"], one["reason"], *one["stack"]) for one in listed}) == len(listed)
    rows = Counter[tuple[str, str]]()
    for row in reported.summary["rows"]:
        if row["kind"] == "wait":
            rows[row["op"], row["reason"]] += row["sum_ns"]
    # The list is of all that was counted since the start.
    assert all(counted[key] >= rows[key] for key in rows if key[1] != "several")


def _new(path: Path) -> Path:
    path.write_bytes(b"x" * PAGE)
    return path


@pytest.mark.guest
@pytest.mark.one_kernel
def test_hidden_symbols_leave_addresses(tmp_path: Path) -> None:
    with (
        loop_device(tmp_path / "disk.img") as disk,
        mounted(disk, "ext4", tmp_path / "mounted") as folder,
        setting(Path("/proc/sys/kernel/kptr_restrict"), "2"),
        Trace("--dev", disk.path, "--waits", "0") as trace,
    ):
        sync_together(folder, 2, 3)
    assert [note for note in trace.lines[0]["notes"] if note.startswith("waits have addresses instead of reasons")]
    found = [row["reason"] for row in trace.summary["rows"] if row["kind"] == "wait"]
    assert found
    assert all(re.fullmatch(r"unknown \(0x[0-9a-f]{16}\)|dirty limit|several", reason) for reason in found), found


@pytest.mark.one_kernel
def test_without_stacks_there_are_waits_and_no_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some kernels let no program read stacks."""

    def without(hook: Hook) -> Hook:
        return hook._replace(programs=tuple(way for way in hook.ways if READS_STACKS not in way.programs))

    monkeypatch.setattr(io_hooks, "HOOKS", tuple(map(without, io_hooks.HOOKS)))
    with loop_device(tmp_path / "disk.img") as disk, mounted(disk, "ext4", tmp_path / "mounted") as folder:
        flow = Running(lambda: PathFlow(Options(devices=(disk.name,), slow_ns=0, waits_ns=ALWAYS)), [disk])
        try:
            assert isinstance(flow.flow, PathFlow)
            (part,) = (part for part in flow.flow._parts if isinstance(part, waits_part.Waits))
            (note,) = part.notes(flow.flow._running)
            assert note.startswith("waits have no reasons: this kernel lets no program read")
            with flow.window() as reported:
                sync_together(folder, 3, 4)
        finally:
            flow.flow.close()
    exact(reported)
    found = waits(reported, "sync")
    assert found
    assert {wait["reason"] for _, wait in found} == {"unknown"}
    assert not [wait for _, wait in found if wait["stack"]]


# --- What an operation keeps ------------------------------------------------------------------------------------------


def test_an_operation_has_room_for_waits_of_every_stage() -> None:
    """Stacks are random. Time and number of each stage are complete, and several waits can share a place."""
    chance = random.Random(4)  # noqa: S311 - always the same
    with alone(), BpfObject(object_path("waits")) as obj:
        obj.bss.target_call = GETPGID
        obj.load()
        obj.attach()
        other = obj.constants["WAIT_OTHER"]
        stages, most = range(1, obj.constants["OP_WAITS"]), obj.length("stages")
        for _ in range(300):
            made = [
                (chance.choice(stages), chance.randint(1, 4), chance.randint(1, 99))
                for _ in range(chance.randint(1, most))
            ]
            unused = [0] * (most - len(made))
            obj.bss.stages, obj.bss.stacks, obj.bss.times = ([*of, *unused] for of in zip(*made))
            obj.bss.given = len(made)
            call()
            kept = [obj.bss.kept[place] for place in range(obj.bss.kept_count)]
            assert len({(one.stage, one.stack) for one in kept}) == len(kept) <= obj.constants["OP_WAITS"]
            for stage in stages:
                of_stage = [(one.stack, one.count, one.ns) for one in kept if one.stage == stage]
                assert sum(count for _, count, _ in of_stage) == sum(1 for one in made if one[0] == stage)
                assert sum(ns for _, _, ns in of_stage) == sum(ns for at, _, ns in made if at == stage)
                for stack, _, ns in of_stage:
                    assert stack == other or ns <= sum(ns for at, its, ns in made if (at, its) == (stage, stack))


# --- Limits ---------------------------------------------------------------------------------------------------------


@contextmanager
def dirty_bytes(count: int) -> Iterator[None]:
    """Limit the machine's dirty bytes. dirty_bytes and dirty_ratio exclude each other: writing the ratio undoes it."""
    limits = Path("/proc/sys/vm")
    ratio = (limits / "dirty_ratio").read_text()
    (limits / "dirty_bytes").write_text(str(count))
    try:
        yield
    finally:
        (limits / "dirty_ratio").write_text(ratio)


@pytest.fixture(scope="module")
def throttled() -> Iterator[Disk]:
    """8 MB/s."""
    with null_device("wptd", memory_backed=1, size=128, mbps=8) as disk:
        yield disk


def verdict_says(reported: Lines, words: str) -> None:
    """Check the verdict, unless a busy machine made the way to the page cache longer than the pauses."""
    stages = {row["stage"]: row["sum_ns"] for row in reported.summary["rows"] if row["kind"] == "operation"}
    verdict = reported.summary["verdict"]
    assert verdict["findings"][0]["stage"] == max(stages.keys() - {"total"}, key=stages.__getitem__)
    assert (words in verdict["text"]) == (verdict["findings"][0]["stage"] == "dirty_limit")


@pytest.mark.guest
def test_a_writer_sleeps_in_the_dirty_limit(path_flow: Running, throttled: Disk, tmp_path: Path) -> None:
    """The kernel's own tracing counts as many."""
    with ExitStack() as stack:
        top = stack.enter_context(mounted(throttled, "ext4", tmp_path / "mounted"))
        flow = path_flow.aim(throttled)
        os.sync()
        stack.enter_context(dirty_bytes(4 << 20))
        pauses = stack.enter_context(tracefs.traced("writeback/balance_dirty_pages"))
        fd = stack.enter_context(opened(top / "file"))

        def write() -> None:
            for number in range(10):
                os.pwrite(fd, b"x" * (1 << 20), number << 20)

        with flow.window() as reported:
            (sleeper,) = run(write)
        events = [dict(re.findall(r"(\w+)=(-?\d+)", one.text)) for one in pauses.records()]
    exact(reported)
    found = waits(reported, "write")
    slept = [(one, wait) for one, wait in found if wait["stage"] == "dirty_limit"]
    assert slept
    assert {wait["reason"] for _, wait in slept} == {"dirty limit"}
    made = [int(one["pause"]) for one in events if int(one["pause"]) > 0]
    assert sum(wait["count"] for _, wait in slept) == len(made)
    # In milliseconds, rounded down; a sleep may be longer, and is not ended early but by a signal.
    assert sum(wait["ns"] for _, wait in slept) >= sum(made) * MS * 3 // 4
    (row,) = [row for row in reported.summary["rows"] if row["kind"] == "wait" and row["reason"] == "dirty limit"]
    assert (row["in_stage"], row["waits"]) == ("dirty_limit", len(made))
    assert 0 < row["limit_bytes"] <= 4 << 20
    verdict_says(reported, "the machine may have")
    assert any("balance_dirty_pages" in name for names in sleeper.seen for name in names)


@pytest.mark.guest
@pytest.mark.one_kernel
def test_who_filled_the_dirty_limit_is_named(throttled: Disk, v2: Path, tmp_path: Path) -> None:
    group = v2 / "wptbatch"
    group.mkdir()
    try:
        with (
            mounted(throttled, "ext4", tmp_path / "mounted") as top,
            dirty_bytes(4 << 20),
            Trace("--dev", throttled.name, "--writeback", "--by", "cgroup") as trace,
            opened(top / "file") as fd,
        ):
            with joined(group):
                words = ["dd", "if=/dev/zero", f"of={top / 'batch'}", "bs=256k", "count=64"]
                hog = subprocess.Popen(words, stderr=subprocess.DEVNULL)
            for number in range(16):
                os.pwrite(fd, b"x" * PAGE, number * PAGE)
            assert hog.wait() == 0
    finally:
        group.rmdir()
    finding = trace.summary["verdict"]["findings"][0]
    assert (finding["stage"], finding["dirtied_by"]) == ("dirty_limit", "/wptbatch")
    assert "; /wptbatch made most of what is written back dirty" in trace.summary["verdict"]["text"]


@contextmanager
def limited(v2: Path, name: str, **limits: int) -> Iterator[Path]:
    """A cgroup with limits of its memory, whose pages are written back on its own account."""
    controllers = v2 / "cgroup.subtree_control"
    group = v2 / name
    group.mkdir()
    try:
        if not {"memory", "io"} <= set(controllers.read_text().split()):
            controllers.write_text("+memory +io")
        for limit, size in limits.items():
            (group / f"memory.{limit}").write_text(str(size))
        yield group
    finally:
        group.rmdir()


@pytest.mark.guest
def test_a_writer_sleeps_in_the_dirty_limit_of_its_cgroup(
    path_flow: Running, throttled: Disk, v2: Path, tmp_path: Path
) -> None:
    """The limit is a share of the cgroup's memory; the machine is far from its own. memory.max could kill the test."""
    most = 8 << 20
    with limited(v2, "wptwaits", high=most) as group, mounted(throttled, "ext4", tmp_path / "mounted") as top:
        flow = path_flow.aim(throttled)
        with tracefs.traced("writeback/balance_dirty_pages") as pauses:
            with flow.window() as reported:
                # 5.10 moves no process that shares its I/O context, as ours may with workers of io_uring.
                in_cgroup(group, f"dd if=/dev/zero of={top / 'file'} bs=1M count=16 status=none")
            events = [dict(re.findall(r"(\w+)=(-?\d+)", one.text)) for one in pauses.records()]
    exact(reported)
    made = [int(one["pause"]) for one in events if int(one["pause"]) > 0]
    if not made:
        # Its pages were written back before, by who had to make room for them.
        assert "memory" in {wait["reason"] for _, wait in waits(reported, "write")}
        return
    (row,) = [row for row in reported.summary["rows"] if row["kind"] == "wait" and row["reason"] == "dirty limit"]
    assert (row["in_stage"], row["waits"]) == ("dirty_limit", len(made))
    assert 0 < row["limit_bytes"] < most < row["machine_bytes"]
    verdict_says(reported, "its cgroup may have")


_READER = """
import mmap, os, sys
size, path = int(sys.argv[1]), sys.argv[2]
held = mmap.mmap(-1, size)
for at in range(0, size, mmap.PAGESIZE):
    held[at] = 1
os.pread(os.open(path, os.O_RDONLY), 1 << 20, 0)
"""


@pytest.mark.guest
@pytest.mark.one_kernel
def test_a_reader_whose_cgroup_is_full_waits_for_memory(
    path_flow: Running, throttled: Disk, v2: Path, tmp_path: Path
) -> None:
    """Its own memory is all that the cgroup should have: from 5.18, who asks for much more is held up at once."""
    most = 16 << 20
    with limited(v2, "wptfull", high=most) as group, mounted(throttled, "ext4", tmp_path / "mounted") as top:
        written(top / "file", 1 << 20)
        Path("/proc/sys/vm/drop_caches").write_text("1\n")
        flow = path_flow.aim(throttled)
        with flow.window() as reported:
            in_cgroup(group, shlex.join([sys.executable, "-c", _READER, str(most), str(top / "file")]))
        events = dict(line.split() for line in (group / "memory.events").read_text().splitlines())
    exact(reported)
    assert int(events["high"]) > 0
    assert {wait["reason"] for _, wait in waits(reported, "read")} >= {"memory"}


def meminfo(name: str) -> int:
    """Return a value of /proc/meminfo in bytes."""
    (found,) = re.findall(rf"^{name}: +(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return int(found) << 10


def vmstat(name: str) -> int:
    return sum(
        int(count) for count in re.findall(rf"^{name}\S* (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE)
    )


_FREE, _CACHED = 64 << 20, 256 << 20
TRIES = 5


@contextmanager
def crowded(cache: Path) -> Iterator[None]:
    """Little is free, and this file, which takes most of the page cache, has to go first."""
    limits = Path("/proc/sys/vm")
    with cache.open("wb") as file:
        file.truncate(_CACHED)
    pages = (meminfo("MemFree") - _CACHED - _FREE) // meminfo("Hugepagesize")
    # Nothing from the zone that is for DMA alone.
    with setting(limits / "lowmem_reserve_ratio", "1 1 1"), setting(limits / "nr_hugepages", str(pages)):
        # The file is a hole: these pages are clean.
        subprocess.run(["cat", cache], stdout=subprocess.DEVNULL, check=True)
        yield


@contextmanager
def kswapd_yields() -> Iterator[None]:
    """It runs while the CPU is otherwise idle."""
    tid = kernel_thread("kswapd0")
    os.sched_setscheduler(tid, os.SCHED_IDLE, os.sched_param(0))
    try:
        yield
    finally:
        os.sched_setscheduler(tid, os.SCHED_OTHER, os.sched_param(0))


@pytest.mark.guest
def test_a_reader_waits_for_memory_of_the_machine(path_flow: Running, throttled: Disk, tmp_path: Path) -> None:
    """The kernel has too little free for a page that is to be read, so kswapd has to find some first.

    It may find enough before the reader asks, as others ask as well: then the file is read again.
    """
    stacks: list[list[str]] = []
    with mounted(throttled, "ext4", tmp_path / "mounted") as top, opened(top / "file") as fd:
        written(top / "file", 4 << 20)
        flow = path_flow.aim(throttled)
        for _ in range(TRIES):
            Path("/proc/sys/vm/drop_caches").write_text("1\n")
            with threshold(flow, ALWAYS), crowded(top / "cache"), kswapd_yields(), flow.window() as reported:
                # A task that wants a page has to wait for kswapd where less than half of this is free.
                free = meminfo("MemFree")
                wanted = 2 * free + (16 << 20)
                assert wanted < free + _CACHED * 3 // 4
                before = vmstat("allocstall")
                with setting(Path("/proc/sys/vm/min_free_kbytes"), str(wanted >> 10)):
                    os.pread(fd, 4 << 20, 0)
                stalls = vmstat("allocstall") - before
            exact(reported)
            stacks = [wait["stack"] for _, wait in waits(reported, "read") if wait["reason"] == "memory"]
            if stacks:
                break
    assert stalls > 0
    (stack,) = stacks
    assert "throttle_direct_reclaim" in stack


@pytest.mark.guest
@pytest.mark.parametrize("folder", EVERY, indirect=True)
def test_a_frozen_file_system_holds_up_a_write(flow: Running, folder: Path) -> None:
    """In any kind of write; a directory that waits as well makes none of the writes after it longer."""
    written(folder / "file", 1)
    frozen_s, is_frozen = 0.5, threading.Event()
    stuck: list[Line] = []

    def freeze() -> None:
        subprocess.run(["fsfreeze", "--freeze", str(folder)], check=True)
        try:
            is_frozen.set()
            time.sleep(frozen_s)
            stuck.extend(flow.stuck(1))
        finally:
            subprocess.run(["fsfreeze", "--unfreeze", str(folder)], check=True)

    def write() -> None:
        is_frozen.wait()
        os.pwrite(fd, b"y", 0)

    def write_vector() -> None:
        is_frozen.wait()
        os.writev(fd, [b"y"])

    def make() -> None:
        is_frozen.wait()
        (folder / "made").mkdir()
        os.pwrite(fd, b"y", 2)

    with opened(folder / "file") as fd, flow.window() as reported:
        _, *sleepers = run(freeze, write, write_vector, make)
    exact(reported)
    writes = [one for one in reported.operations if one["op"] == "write"]
    assert sorted(one["offset"] for one in writes) == [0, 0, 2]
    assert {one["path"] for one in writes} == {str(folder / "file")}
    if flow.flow._running.way(OPERATION).name == FILES:
        # Others know the device at the end.
        assert [(one["dev"], one["op"], one["stage"]) for one in stuck] == [(writes[0]["dev"], "write", "fs")] * 2
    held = [one for one in writes if one["offset"] == 0]
    for one in held:
        (wait,) = [wait for wait in one["waits"] if wait["reason"] == "freeze"]
        assert frozen_s * 1e9 / 2 <= wait["ns"] <= one["stages"]["fs_ns"]
        assert is_witnessed(wait, sleepers), (wait, sleepers)
    (after,) = [one for one in writes if one["offset"] == 2]
    assert not [wait for wait in after.get("waits", ()) if wait["reason"] == "freeze"]
