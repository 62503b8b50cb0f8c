# SPDX-License-Identifier: Apache-2.0
"""`wptrace io --by`: owners of operations and requests; the rows of all owners add up to the totals."""

from __future__ import annotations

import ctypes
import fcntl
import json
import mmap
import os
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.kernel import aio
from tests.kernel.aio import Aio
from tests.kernel.conftest import GUEST
from tests.kernel.disks import Disk, loop_device, opened
from tests.kernel.flows import running_flow
from tests.kernel.loads import joined, mounted
from tests.kernel.patience import reaped, said
from tests.kernel.trace import PATIENCE, ROOT, Line, Trace, count
from tests.kernel.uring import Ring
from tests.thorough import cases
from wptrace.bpf.ring import Reader
from wptrace.engine.definition import shipped
from wptrace.engine.definition.flow import DefinedFlow
from wptrace.engine.definition.flow import Options as DefinedOptions
from wptrace.engine.definition.programs import resolve_here
from wptrace.engine.filters import Filter
from wptrace.engine.session import Session
from wptrace.flows import cpu, stacks
from wptrace.flows.cpu import CpuFlow
from wptrace.flows.io import block
from wptrace.flows.io.block import BlockFlow
from wptrace.flows.io.options import COMM, DIR, FILE, PROCESS, THREAD, Options
from wptrace.flows.io.parts.owners import KINDS
from wptrace.flows.io.path import PathFlow
from wptrace.flows.stacks import StacksFlow
from wptrace.kernel import system_calls
from wptrace.model.book import EXITED
from wptrace.model.kind import OPERATIONS, OTHERS, REQUESTS, TOTAL
from wptrace.model.report import Report

OF_COMMS = KINDS[COMM][0]
OWNED = {"operation": "owned_operation", "hit": "owned_hit", "request": "owned_request"}


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disk]:
    with loop_device(tmp_path_factory.mktemp("disk") / "disk.img") as made:
        yield made


def read(disk: Disk, count: int, size: int = 4096) -> int:
    """Read directly in a process of its own, and return its pid."""
    command = ["dd", f"if={disk.path}", "of=/dev/null", f"bs={size}", f"count={count}", "iflag=direct"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        assert process.wait() == 0
    return process.pid


def exact(report: Line) -> None:
    """Counts and times of owners add up to those of all rows."""

    def sums(kind: str) -> Counter[Any]:
        found: Counter[Any] = Counter()
        for row in report["rows"]:
            if row["kind"] == kind and row["stage"] == "total":
                found[row["dev"], row["op"], "count"] += row["count"]
                found[row["dev"], row["op"], "ns"] += row["sum_ns"]
        return found

    for kind, owned in OWNED.items():
        assert sums(owned) == sums(kind)
    assert sum(row["count"] for row in totals(report, "owned_request")) == report["requests"]["finished"]
    assert sum(row["bytes"] for row in totals(report, "owned_request")) == report["bytes"]


def totals(report: Line, kind: str) -> list[Line]:
    return [row for row in report["rows"] if row["kind"] == kind and row["stage"] == "total"]


def counts(report: Line, kind: str, op: str = "read") -> dict[str, int]:
    return {row["owner"]: row["count"] for row in totals(report, kind) if row["op"] == op}


@pytest.mark.one_kernel
def test_processes_and_those_that_have_no_row_of_their_own(disk: Disk) -> None:
    """Other readers of the disk (udev) have rows of their own."""
    with Trace("--dev", disk.name, "--by=process", "--top=2") as trace:
        for count in (200, 100, 3, 3, 3):
            read(disk, count)
        subprocess.run(["dd", "if=/dev/zero", f"of={disk.path}", "bs=8k", "count=8", "conv=fsync"], check=True)
    exact(trace.summary)
    every = {row["task"]["pid"] if row["task"] else row["owner"] for row in totals(trace.summary, "owned_operation")}
    assert len(every - {OTHERS}) == 2
    assert OTHERS in every


@pytest.mark.one_kernel
def test_how_many_each_had(disk: Disk) -> None:
    with Trace("--dev", disk.name, "--by=process", "--top=0") as trace:
        pids = {read(disk, count): count for count in (200, 100, 3)}
    exact(trace.summary)
    for kind in ("owned_operation", "owned_request"):
        found = {row["task"]["pid"]: row for row in totals(trace.summary, kind) if row["task"]}
        assert {pid: found[pid]["count"] for pid in pids} == pids
        assert {found[pid]["task"]["comm"] for pid in pids} == {"dd"}
        assert {pid: found[pid]["bytes"] for pid in pids} == {pid: count * 4096 for pid, count in pids.items()}


@pytest.mark.one_kernel
@pytest.mark.parametrize("by", ["comm", "file", "dir", "cgroup", "device"])
def test_other_owners(disk: Disk, by: str) -> None:
    with Trace("--dev", disk.name, f"--by={by}", "100ms") as trace:
        read(disk, 50)
        read(disk, 30)
        trace.wait_for('"owned_operation"', "an interval with owners")
    exact(trace.summary)
    owner = {"comm": "dd", "file": disk.path, "dir": "/dev", "device": disk.name}.get(by)
    for kind in ("owned_operation", "owned_request"):
        found = counts(trace.summary, kind)
        assert (found[owner] if owner else max(found.values())) >= 80
    # Intervals have owners as well.
    reported = [row for line in trace.lines if line["kind"] == "interval" for row in totals(line, "owned_operation")]
    assert 0 < sum(row["count"] for row in reported) <= sum(counts(trace.summary, "owned_operation").values())


THREADS = """
import os, sys, threading
fd = os.open(sys.argv[1], os.O_RDONLY)
start = threading.Barrier(int(sys.argv[2]))
def act():
    start.wait()
    os.pread(fd, 4096, 0)
threads = [threading.Thread(target=act) for _ in range(int(sys.argv[2]))]
for one in threads: one.start()
for one in threads: one.join()
"""


PROCESSES = """
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)
buffer = mmap.mmap(-1, 4096)
for number in range(int(sys.argv[2])):
    pid = os.fork()
    if not pid:
        os.preadv(fd, [buffer], 4096 * (number % 1024))
        os._exit(0)
    os.waitpid(pid, 0)
"""
# More processes than there are owner rows, and unusually many threads; `make test` has time for fewer.
MANY, AT_ONCE = cases(10_000, 300), cases(3_000, 200)
# OWNERS of bpf_src/block/path/owner.h.
_OWNERS = 4096


@pytest.mark.one_kernel
def test_sums_of_many_processes_that_are_soon_gone(disk: Disk) -> None:
    """The sums have every process, whether or not it got a row."""
    with Trace("--dev", disk.name, "--by=process", "--top=0") as trace:
        subprocess.run([sys.executable, "-I", "-S", "-c", PROCESSES, disk.path, str(MANY)], check=True)
    exact(trace.summary)
    rows = totals(trace.summary, "owned_operation")
    loss = trace.summary["loss"]
    assert sum(row["count"] for row in rows if row["op"] == "read") + loss.get("recursion", 0) >= MANY
    # With many CPUs there are fewer rows.
    assert len({row["owner"] for row in rows if row["task"]}) > min(MANY, _OWNERS / 4) * 0.5
    assert loss.get("owner_full", 0) >= MANY - _OWNERS


@pytest.mark.one_kernel
def test_sums_of_many_threads_at_once(disk: Disk) -> None:
    """All threads read at the same time. Those that miss the page cache are operations, the others hits."""
    with Trace("--dev", disk.name, "--by=thread", "--top=0") as trace:
        subprocess.run([sys.executable, "-c", THREADS, disk.path, str(AT_ONCE)], check=True)
    exact(trace.summary)
    rows = [*totals(trace.summary, "owned_operation"), *totals(trace.summary, "owned_hit")]
    skipped = trace.summary["loss"].get("recursion", 0)
    assert sum(row["count"] for row in rows) + skipped >= AT_ONCE
    assert len({row["owner"] for row in rows if row["task"]}) + skipped > AT_ONCE * 0.8


@pytest.mark.one_kernel
def test_a_table_that_is_full_counts_into_others(disk: Disk) -> None:
    """300 threads and 16 rows; an owner may need one row for operations and one for hits."""
    with running_flow(PathFlow(Options((disk.name,), by=THREAD, top=0, owner_rows=16))) as flow:
        flow.begin()
        subprocess.run([sys.executable, "-c", THREADS, disk.path, "300"], check=True)
        flow.stop()
        found = flow.snapshot()
    operations, hits, _ = KINDS[THREAD]
    rows = {group: stages["total"].count for group, stages in found.cells.items() if group.kind in (operations, hits)}
    plain = [stages["total"].count for group, stages in found.cells.items() if group.kind.book == "operations"]
    assert sum(rows.values()) == sum(plain)
    # A program that preempts another one is skipped, and counted as such.
    assert sum(plain) >= 200
    others = sum(count for group, count in rows.items() if group.values[-1] == OTHERS)
    assert others >= 200 - 16
    assert len({group.values[-1] for group in rows}) <= 17
    noted = {cause.name: count for book in found.books.values() for cause, count in book.noted.items()}
    assert noted["owner_full"] >= others
    assert len({group.values[-1] for group in rows}) > 2


# Names that read once each, many more than there are rows. Emulated CPUs are slow.
_ROWS = 256 if GUEST else _OWNERS
_NAMES = _ROWS * cases(24, 8 if GUEST else 3)
_BATCH = _ROWS // 8
_SET_NAME = 15  # PR_SET_NAME


@contextmanager
def reading_by_names(disk: Disk, names: Iterable[bytes], batch: int = 1) -> Iterator[tuple[int, Callable[[], None]]]:
    """A process that reads once under each of these names: its pid, and what lets it go on with the next batch."""
    (go, say), (hear, done) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        with suppress(BaseException):
            os.close(say)
            with opened(disk.path, os.O_RDONLY | os.O_DIRECT) as fd, mmap.mmap(-1, 4096) as buffer:
                for number, name in enumerate(names):
                    if number % batch == 0 and not os.read(go, 1):
                        break
                    _libc.prctl(_SET_NAME, name, 0, 0, 0)
                    assert os.preadv(fd, [buffer], 4096 * (number % 1000)) == 4096
                    if number % batch == batch - 1:
                        os.write(done, b"x")
            os._exit(0)
        os._exit(1)

    def go_on() -> None:
        os.write(say, b"x")
        assert os.read(hear, 1)

    try:
        os.close(done)
        yield child, go_on
    finally:
        for pipe in (go, say, hear):
            os.close(pipe)
        assert reaped(child) == 0


class _Passed(NamedTuple):
    """Figures of owners that came and went."""

    found: Counter[str]
    """Counts in all windows."""
    most: int
    """Rows at a time."""
    kept: list[int]
    """Bytes of this process after each batch."""
    whole: Report


def pass_through(disk: Disk, rows: int, names: int, batch: int, windows: int) -> _Passed:
    """Run short-lived owners in batches, and take this many windows after each batch."""
    flow = PathFlow(Options((disk.name,), by=COMM, top=0, owner_rows=rows))
    session = Session([flow])
    (trace,) = session.traces
    found: Counter[str] = Counter()
    most, kept = 0, []
    with closing(session):
        session.start()
        first = before = trace.first
        with reading_by_names(disk, (b"wpo%d" % number for number in range(names)), batch) as (_, go_on):
            for _ in range(names // batch):
                go_on()
                for _ in range(windows):
                    now = trace.snapshot()
                    for row in trace.window(before, now, "interval").rows:
                        if row.metric == TOTAL and row.group.kind is OF_COMMS:
                            found[str(row.group.values[-1])] += row.distribution.count
                    most = max(most, len(now.cells))
                    before = now
                kept.append(int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE)
        return _Passed(found, most, kept, trace.window(first, before, "summary"))


def counted_once(passed: _Passed, names: int) -> set[str]:
    """Check that each owner is counted once, by name or among the others, and return the names."""
    operations = passed.whole.books[OPERATIONS].finished
    assert passed.found.total() == operations >= names
    named = {name: count for name, count in passed.found.items() if name.startswith("wpo")}
    assert set(named.values()) == {1}
    rows = [row for row in passed.whole.rows if row.metric == TOTAL and row.group.kind is OF_COMMS]
    assert sum(row.distribution.count for row in rows) == operations
    return set(named)


@pytest.mark.one_kernel
def test_owners_that_were_seen_long_ago_make_room_for_others(disk: Disk) -> None:
    # The owners of a batch are idle in the second window.
    passed = pass_through(disk, _ROWS, _NAMES, _BATCH, windows=2)
    named = counted_once(passed, _NAMES)
    assert len(named) > 1.2 * _ROWS
    assert any(f"wpo{number}" in named for number in range(_NAMES * 3 // 4, _NAMES))
    # The memory of the reader does not grow with their number either.
    assert passed.most < 3 * _ROWS


@pytest.mark.one_kernel
def test_as_many_owners_as_there_will_be_pass_through(disk: Disk) -> None:
    """No table fills up and no memory grows; there are 100,000 owners in `make test-all`."""
    names = cases(100_000, 10_000)
    passed = pass_through(disk, 0, names, 1000, windows=1)
    named = counted_once(passed, names)
    # All places of a few owners were taken.
    assert len(named) > 0.97 * names
    assert sum(f"wpo{number}" in named for number in range(names - 1000, names)) > 970
    settled = len(passed.kept) // 2
    assert passed.kept[-1] - passed.kept[settled] < 16 << 20


@pytest.mark.parametrize(
    ("by", "owners"), [(FILE, ("one", "sub/two")), pytest.param(DIR, ("", "sub"), marks=pytest.mark.one_kernel)]
)
def test_files_and_directories_have_their_paths(disk: Disk, tmp_path: Path, by: str, owners: tuple[str, ...]) -> None:
    with mounted(disk, "ext4", tmp_path / "top") as top:
        (top / "sub").mkdir()
        for name in ("one", "sub/two"):
            (top / name).write_bytes(os.urandom(1 << 18))
        os.sync()
        with Trace("--dev", disk.name, f"--by={by}") as trace:
            for name, count in (("one", 40), ("sub/two", 20)):
                command = ["dd", f"if={top / name}", "of=/dev/null", "bs=4k", f"count={count}", "iflag=direct"]
                subprocess.run(command, check=True)
        exact(trace.summary)
        found = counts(trace.summary, "owned_request")
        assert [found[str(top / owner)] for owner in owners] == [40, 20]


@pytest.mark.one_kernel
def test_what_is_written_back_belongs_to_who_wrote_it(disk: Disk) -> None:
    """A sync of the whole system does not become the owner of others' data."""
    with Path(disk.path).open("rb"), Trace("--dev", disk.name, "--by=process", "--writeback") as trace:
        command = ["dd", "if=/dev/zero", f"of={disk.path}", "bs=64k", "count=16"]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            assert process.wait() == 0
        os.sync()
    exact(trace.summary)
    written = {row["task"]["pid"]: row["bytes"] for row in totals(trace.summary, "owned_request") if row["task"]}
    assert written[process.pid] == 1 << 20


@pytest.mark.one_kernel
def test_a_process_that_is_renamed_is_another_owner(disk: Disk) -> None:
    names = [b"wpt1", b"wpt1", b"wpt2", b"wpt1", b"wpt2 with a tail", b"wpt2 with a tale", b"wpt2"]
    with Trace("--dev", disk.name, "--by=process", "--top=0") as trace, reading_by_names(disk, names) as (pid, go_on):
        for _ in names:
            go_on()
    exact(trace.summary)
    rows = [row for row in totals(trace.summary, "owned_operation") if row["task"] and row["task"]["pid"] == pid]
    found = {row["task"]["comm"]: row["count"] for row in rows}
    # A name has 15 bytes.
    assert found == {"wpt1": 3, "wpt2": 2, "wpt2 with a tai": 1, "wpt2 with a tal": 1}


@pytest.mark.one_kernel
def test_a_process_whose_number_was_freed_gets_another(disk: Disk) -> None:
    flow = PathFlow(Options((disk.name,), by=PROCESS, top=0))
    with closing(flow), reading_by_names(disk, [b"wpt"] * 3) as (pid, go_on):
        flow.start(Reader())
        flow.begin()
        obj = flow._running.obj
        layout, view = obj.struct("owner"), obj.view("owners")

        def numbers() -> list[int]:
            """Those that it has, as a place has one more than its number."""
            memory = bytes(view)
            every = [layout.unpack(memory, place * layout.size) for place in range(len(memory) // layout.size)]
            return [number for number, one in enumerate(every) if one.taken and one.key.id >> 32 == pid]

        go_on()
        go_on()
        (number,) = numbers()
        view[number * layout.size : (number + 1) * layout.size] = bytes(layout.size)
        assert numbers() == []
        go_on()
        assert numbers() == [number]
        flow.stop()


@pytest.mark.guest
@pytest.mark.one_kernel
@pytest.mark.parametrize("by", ["process", "thread"])
def test_a_number_that_is_given_again_is_another_owner(disk: Disk, by: str) -> None:
    """The new process has the same name; its written-back data are its own as well."""
    last = Path("/proc/sys/kernel/ns_last_pid")

    def write(pid: int = 0) -> int:
        """Write as many pages as `pid` says, or 9, in a process with that pid."""
        if pid:
            last.write_text(str(pid - 1))
        command = ["dd", "if=/dev/zero", f"of={disk.path}", "bs=4k", f"count={5 if pid else 9}", "conv=notrunc"]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            assert process.wait() == 0
        os.sync()
        return process.pid

    with Path(disk.path).open("rb"), Trace("--dev", disk.name, f"--by={by}", "--writeback", "--top=0") as trace:
        first = write()
        for _ in range(50):
            # Another process may have got the pid first.
            if (second := write(first)) == first:
                break
    exact(trace.summary)
    assert second == first
    found = {
        row["owner"]: row["bytes"]
        for row in totals(trace.summary, "owned_request")
        if row["task"] and row["op"] == "write"
    }
    number = f"{first}/{first}" if by == "thread" else str(first)
    assert sorted(found[f"dd[{number}]{again}"] for again in ("", "#2")) == [5 * 4096, 9 * 4096]


def test_a_cgroup_that_is_gone_has_its_name(disk: Disk, v2: Path) -> None:
    """It is created, reads a little and is removed before anything looks up its name."""
    before = v2 / "wptest_before"
    before.mkdir()
    with Trace("--dev", disk.name, "--by=cgroup", "--each", "--top=0") as trace:
        for group, many in ((before, 5), (v2 / "wptest_brief", 7)):
            group.mkdir(exist_ok=True)
            with joined(group):
                read(disk, many)
            group.rmdir()
    exact(trace.summary)
    found = counts(trace.summary, "owned_operation")
    assert {owner: found[owner] for owner in ("/wptest_before", "/wptest_brief")} == {
        "/wptest_before": 5,
        "/wptest_brief": 7,
    }
    assert Counter(line["cgroup"] for line in trace.operations) == found


# How often each call is made. Each has a name of its own.
CALLS = {"fsync": 13, "fdatasync": 17, "sync_file_range": 3, "msync": 4, "pread": 40, "readv": 11, "preadv": 7}
AIO_READS, AIO_SYNCS, URING_READS, FAULTS = 9, 2, 6, 5
_PAGE = 4096
_RANGE = 7  # SYNC_FILE_RANGE_WAIT_BEFORE, WRITE and WAIT_AFTER
_SET_BLOCK_SIZE = 0x40081271  # BLKBSZSET
_libc = ctypes.CDLL(None, use_errno=True)


def call_all(disk: Disk) -> None:
    """Make each call as often as CALLS says, one after another; syncs follow a write."""
    cached, direct = os.open(disk.path, os.O_RDWR), os.open(disk.path, os.O_RDWR | os.O_DIRECT)
    numbers = system_calls.numbers()
    try:
        # A file system may have left a smaller block size, with which a page would take several requests.
        fcntl.ioctl(cached, _SET_BLOCK_SIZE, ctypes.c_size_t(_PAGE))
        with mmap.mmap(-1, _PAGE) as memory, mmap.mmap(cached, 1 << 20) as mapped, Ring() as ring:
            address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            vector = struct.pack("QQ", address, _PAGE)
            for number in range(CALLS["fsync"]):
                os.pwrite(cached, bytes([number]) * _PAGE, number * _PAGE)
                os.fsync(cached)
            for number in range(CALLS["fdatasync"]):
                os.pwrite(cached, bytes([number]) * _PAGE, number * _PAGE)
                os.fdatasync(cached)
            for number in range(CALLS["sync_file_range"]):
                os.pwrite(cached, bytes([number]) * _PAGE, number * _PAGE)
                assert not _libc.syscall(
                    numbers["sync_file_range"], cached, ctypes.c_long(0), ctypes.c_long(1 << 20), _RANGE
                )
            for number in range(CALLS["msync"]):
                mapped[number * _PAGE] = number
                mapped.flush()
            for number in range(CALLS["pread"]):
                assert _libc.pread(direct, ctypes.c_void_p(address), _PAGE, ctypes.c_long(number * _PAGE)) == _PAGE
            for _ in range(CALLS["readv"]):
                assert os.readv(direct, [memory]) == _PAGE
            for number in range(CALLS["preadv"]):
                words = ctypes.c_long(number * _PAGE), ctypes.c_long(0)
                assert _libc.syscall(numbers["preadv"], direct, vector, 1, *words) == _PAGE
            queue = Aio()
            for number in range(AIO_READS):
                assert queue.do(aio.READ, direct, address, _PAGE, number * _PAGE) == _PAGE
            for _ in range(AIO_SYNCS):
                assert not queue.do(aio.FDSYNC, cached)
            for number in range(URING_READS):
                ring.read(direct, address, _PAGE, number * _PAGE, number)
                assert [event.result for event in ring.enter(1, 1)] == [_PAGE]
            os.posix_fadvise(cached, 0, 0, os.POSIX_FADV_DONTNEED)
            mapped.madvise(mmap.MADV_RANDOM)
            for number in range(FAULTS):
                mapped[(100 + number) * _PAGE]
    finally:
        os.close(cached)
        os.close(direct)


def test_each_call_has_its_operations(disk: Disk) -> None:
    """Each call has as many operations as it was made, whichever hook saw them."""
    with Trace("--dev", disk.name, "--by=call", "--top=0", f"--pid={os.getpid()}") as trace:
        call_all(disk)
    exact(trace.summary)
    assert not trace.summary["loss"].get("owner_full")
    made: Counter[str] = Counter()
    for kind in ("owned_operation", "owned_hit"):
        for row in totals(trace.summary, kind):
            made[row["owner"]] += row["count"]
    # A program that the kernel skipped counts nothing, but the skip is counted.
    skipped = trace.summary["loss"].get("recursion", 0)
    missing = sum(count - made[call] for call, count in CALLS.items())
    assert 0 <= missing <= skipped, made
    assert all(made[call] <= count for call, count in CALLS.items()), made
    assert not made["nobody"] + made["kernel thread"]
    sent = Counter(
        {row["owner"]: row["count"] for row in totals(trace.summary, "owned_request") if row["op"] == "read"}
    )
    for call, times in {"aio": AIO_READS, "io_uring": URING_READS, "pread": CALLS["pread"]}.items():
        assert times - skipped <= sent[call] <= times, sent
    # Seen as faults or not, their requests do not belong to a system call.
    notes = trace.lines[0]["notes"]
    faults = not any(note.startswith("page faults of mapped files are not counted as operations") for note in notes)
    assert sent["page fault" if faults else "nobody"] == FAULTS, sent
    # The other faults, of mapped and synced pages, found the page in memory.
    waited = [row["count"] for row in totals(trace.summary, "owned_operation") if row["owner"] == "page fault"]
    assert waited == ([FAULTS] if faults else [])
    asynchronous = " ".join(note for note in notes if note.startswith("asynchronous operations ("))
    assert made["io_uring"] == (0 if "io_uring" in asynchronous else URING_READS)
    assert made["aio"] == (0 if "AIO" in asynchronous else AIO_READS + AIO_SYNCS)


@pytest.mark.one_kernel
@pytest.mark.parametrize(("op", "calls"), [("sync", ("fsync", "fdatasync", "sync_file_range", "msync", "aio"))])
def test_syncs_alone(disk: Disk, op: str, calls: tuple[str, ...]) -> None:
    with Trace("--dev", disk.name, "--by=call", "--top=0", f"--pid={os.getpid()}", f"--op={op}") as trace:
        call_all(disk)
    exact(trace.summary)
    made = Counter[str]()
    for kind in ("owned_operation", "owned_hit"):
        for row in totals(trace.summary, kind):
            assert row["op"] == op
            made[row["owner"]] += row["count"]
    skipped = trace.summary["loss"].get("recursion", 0)
    assert {*made} <= {*calls}
    seen = not any("asynchronous operations (" in note and "AIO" in note for note in trace.lines[0]["notes"])
    asked = {**CALLS, "aio": AIO_SYNCS if seen else 0}
    assert 0 <= sum(asked[call] - made[call] for call in calls) <= skipped, made
    # Other reads and writes of these calls are left out.
    assert {row["owner"] for row in totals(trace.summary, "owned_request")} - {"nobody"} <= {*calls}


ORPHAN = """
import os, subprocess, sys
# Its parent ends, so that it is a child of init, before it reads anything.
parent = os.getpid()
if os.fork():
    os._exit(0)
while os.getppid() == parent:
    pass
if os.fork():
    os.wait()
    os._exit(0)
subprocess.run(["dd", "if=" + sys.argv[1], "of=/dev/null", "bs=4k", "count=7", "iflag=direct", "status=none"])
"""
GENERATIONS = """
import os, sys
for generation in range(40):
    if os.fork():
        os.wait()
        os._exit(0)
os.execlp("dd", "dd", "if=" + sys.argv[1], "of=/dev/null", "bs=4k", "count=9", "iflag=direct", "status=none")
"""


WAITING = """
import mmap, os, sys
fd, buffer = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, 4096)
print("ready", flush=True)
sys.stdin.readline()
for number in range(30):
    os.preadv(fd, [buffer], 4096 * number)
"""

# Forty generations deep.
DEEP = """
import os
for generation in range(40):
    if os.fork():
        os.wait()
        os._exit(0)
"""


WITH_CHILDREN = (f"--pid={os.getpid()}", "--children", "--by=process", "--top=0")


@contextmanager
def waiting(disk: Disk, before: str = "") -> Iterator[subprocess.Popen[str]]:
    """A process that reads when it is told."""
    command = [sys.executable, "-I", "-S", "-c", before + WAITING, disk.path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert said(child) == "ready\n"
        yield child


@pytest.mark.one_kernel
def test_descendants_however_far_and_of_whom_the_parent_ended(disk: Disk) -> None:
    """Processes that are forked meanwhile, and one that was 40 generations deep before."""
    with waiting(disk, DEEP) as deep, Trace("--dev", disk.name, *WITH_CHILDREN) as trace:
        deep.communicate("go\n", timeout=600)
        for script in (ORPHAN, GENERATIONS):
            # Wait until all of them have closed the pipe.
            command = [sys.executable, "-I", "-S", "-c", script, disk.path]
            subprocess.run(command, stdout=subprocess.PIPE, check=True)
    exact(trace.summary)
    assert sum(row["count"] for row in totals(trace.summary, "operation")) == 30 + 7 + 9


@pytest.mark.one_kernel
def test_the_end_of_the_process_is_said(disk: Disk) -> None:
    with waiting(disk) as child, Trace("--dev", disk.name, f"--pid={child.pid}") as trace:
        child.communicate("go\n", timeout=600)
    assert (count(trace.summary, kind="operation"), trace.summary["loss"]) == (30, {"exited": 1})


@pytest.mark.guest
@pytest.mark.one_kernel
def test_what_gets_the_number_of_a_process_that_ended_is_left_out(disk: Disk) -> None:
    """By each flow with --pid, at once: without intervals there is no report before the end of a trace."""
    last = Path("/proc/sys/kernel/ns_last_pid")
    with waiting(disk) as child:
        wanted, devices = Filter(pid=child.pid), (disk.name,)
        requests = resolve_here(shipped.find("block"))
        flows = [
            PathFlow(Options(devices, filter=wanted)),
            BlockFlow(block.Options(devices, filter=wanted)),
            StacksFlow(stacks.Options(devices, wanted)),
            DefinedFlow(requests, DefinedOptions(filter=wanted)),
            CpuFlow(cpu.Options(wanted=wanted)),
        ]
        session = Session(flows)
        with closing(session):
            session.start()
            child.communicate("go\n", timeout=600)
            session.wait(time.monotonic() + PATIENCE)
            turns = flows[-1].snapshot().books[REQUESTS].finished
            for _ in range(50):
                # Another process may get the pid first.
                last.write_text(str(child.pid - 1))
                if read(disk, 20) == child.pid:
                    break
            else:
                pytest.fail("no other process got its number")
            session.end()
            books = [flow.snapshot().books for flow in flows]
    assert [found.get(OPERATIONS, found[REQUESTS]).finished for found in books] == [30, 30, 30, 30, turns]
    assert [found[REQUESTS].noted.get(EXITED) for found in books] == [1] * len(flows)


@pytest.mark.one_kernel
def test_children_that_are_there_and_that_come_later(disk: Disk) -> None:
    """Also children of children; reads of unrelated processes are left out."""
    with waiting(disk) as child, Trace("--dev", disk.name, *WITH_CHILDREN) as trace:
        child.communicate("go\n", timeout=600)
        later = read(disk, 20)
        # A grandchild.
        shell = f"dd if={disk.path} of=/dev/null bs=4k count=10 iflag=direct; true"
        subprocess.run(["sh", "-c", shell], check=True, stderr=subprocess.DEVNULL)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as childless:
        with Trace("--dev", disk.name, f"--pid={childless.pid}", "--children") as stranger:
            read(disk, 20)
        childless.communicate(timeout=600)
    exact(trace.summary)
    found = {row["task"]["pid"]: row["count"] for row in totals(trace.summary, "owned_operation") if row["task"]}
    assert (found.pop(child.pid), found.pop(later)) == (30, 20)
    assert 10 in found.values()
    # Other processes' children are left out.
    assert not stranger.summary["rows"]
    assert trace.lines[0]["filters"]["children"] is True


@pytest.mark.one_kernel
def test_a_command_that_is_run_and_what_it_starts(disk: Disk) -> None:
    """Without unrelated reads."""
    reads = f"dd if={disk.path} of=/dev/null bs=4k count=%d iflag=direct status=none"
    script = f"{reads % 20}; ({reads % 10} & {reads % 5}; wait); echo read; cat; exit 3"
    command = ["io", "--level=path", "--json", "--dev", disk.name, "--by=process", "--", "sh", "-c", script]
    wptrace, pipe = [sys.executable, "-m", "wptrace"], subprocess.PIPE
    with subprocess.Popen([*wptrace, *command], stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=ROOT) as running:
        assert said(running) == "read\n"
        read(disk, 40)
        out, errors = running.communicate("go\n", timeout=600)
    assert (running.returncode, out) == (3, "go\n")
    start, summary = map(json.loads, errors.splitlines())
    exact(summary)
    assert start["filters"]["command"] == ["sh", "-c", script]
    # The pid of a command is not reused until its exit code has been read.
    assert not summary["loss"]
    found = totals(summary, "owned_operation")
    assert sorted(row["count"] for row in found) == [5, 10, 20]
    assert all(row["task"]["comm"] == "dd" for row in found)
