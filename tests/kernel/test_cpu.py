# SPDX-License-Identifier: Apache-2.0
"""The cpu flow against /proc/PID/schedstat and libbpf-tools."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.kernel.conftest import GUEST
from tests.kernel.flows import running_flow
from tests.kernel.loads import cgroup_of, joined
from tests.kernel.patience import said
from tests.kernel.peer import ended as ended_peer
from tests.kernel.peer import running_peer
from tests.kernel.trace import CpuTrace, wait_until
from tests.kernel.tracefs import Record
from tests.kernel.tracefs import traced as kernel_traced
from wptrace.engine.filters import Filter
from wptrace.flows.cpu import BY, CGROUP, CPU, OTHERS, PROCESS, THREAD, CpuFlow, Options
from wptrace.model.book import STATE_FULL
from wptrace.model.distribution import Distribution
from wptrace.model.kind import REQUESTS, Task
from wptrace.model.report import Snapshot, everywhere

# All on one CPU, so that they wait for each other.
PLACE = max(os.sched_getaffinity(0))
WORKER = """
import os, sys, threading, time
def spin(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
def work(count):
    for _ in range(count):
        spin(0.004)
        time.sleep(0.002)
os.sched_setaffinity(0, {int(sys.argv[1])})
with open("/proc/self/comm", "w") as comm:
    comm.write(sys.argv[2])
for line in sys.stdin:
    what, number = line.split()
    if what == "work":
        work(int(number))
    elif what == "spin":
        spin(int(number) / 1000)
    elif what == "thread":
        thread = threading.Thread(target=work, args=(int(number),))
        thread.start()
        work(int(number))
        thread.join()
    elif what == "fork":
        for _ in range(int(number)):
            if not os.fork():
                os._exit(0)
            os.wait()
    print("done", flush=True)
"""


class Scheduled(NamedTuple):
    """The kernel's own counters of a thread."""

    run_ns: int
    wait_ns: int
    turns: int
    """Turns that ended, including one preempted on its way to sleep, whose next turn `schedstat` does not count."""


class Worker:
    def __init__(self) -> None:
        self.name = f"worker{os.getpid()}"
        command = [sys.executable, "-S", "-c", WORKER, str(PLACE), self.name]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self.process.pid
        self.do("work", 0)

    def begin(self, what: str, number: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what} {number}\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """Wait until the worker has done its work and sleeps."""
        assert said(self.process) == "done\n"
        wait_until(lambda: self._proc("stat").partition(") ")[2].startswith("S"), "the worker to sleep")
        # The task may still be about to leave its CPU. Running there ensures that it has.
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {PLACE})
        os.sched_setaffinity(0, before)

    def do(self, what: str, number: int) -> None:
        self.begin(what, number)
        self.end()

    def _proc(self, name: str) -> str:
        return Path(f"/proc/{self.pid}/{name}").read_text()

    def scheduled(self) -> Scheduled:
        run_ns, wait_ns, _ = map(int, self._proc("schedstat").split())
        switches = re.findall(r"^(?:non)?voluntary_ctxt_switches:\t(\d+)$", self._proc("status"), re.MULTILINE)
        assert len(switches) == 2
        return Scheduled(run_ns, wait_ns, sum(map(int, switches)))


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker()
    with made.process:
        yield made
        made.process.kill()


@contextmanager
def hog() -> Iterator[int]:
    code = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nprint(flush=True)\nwhile True: pass"
    command = [sys.executable, "-S", "-c", code, str(PLACE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        said(process)
        try:
            yield process.pid
        finally:
            process.kill()


@contextmanager
def traced(*options: Options) -> Iterator[list[CpuFlow]]:
    with ExitStack() as stack:
        yield [stack.enter_context(running_flow(CpuFlow(one))) for one in options]


def noted(found: Snapshot) -> dict[str, int]:
    return {cause.name: count for cause, count in found.books[REQUESTS].noted.items()}


def lossless(found: Snapshot) -> None:
    """The hardened kernel hides some switches: each of them has to be counted as missing."""
    assert not found.books[REQUESTS].lost
    assert set(noted(found)) <= (set() if GUEST else {"incomplete", "unmatched_end"})


# On a real clock an emulated CPU may stall between two programs at the same event.
TIMES = pytest.mark.parametrize(
    "times",
    [pytest.param(False, id="counts", marks=pytest.mark.smp), pytest.param(True, id="times", marks=pytest.mark.icount)],
)


@TIMES
@pytest.mark.parametrize("way", ["tp_btf", "raw_tp"])
def test_it_counts_what_the_scheduler_counts(
    worker: Worker, way: str, times: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "raw_tp":
        hooks = tuple(hook._replace(programs=hook.programs[-1:]) for hook in CpuFlow.hooks)
        monkeypatch.setattr(CpuFlow, "hooks", hooks)
    begin = time.monotonic_ns()
    with hog(), traced(Options(by=PROCESS, wanted=Filter(pid=worker.pid))) as (flow,):
        before = worker.scheduled()
        worker.do("work", 25)
        after = worker.scheduled()
        found = flow.snapshot()
        end = time.monotonic_ns()
        book = flow._obj.maps["books"].summed(0)
        # The task may have lost its CPU once more before it slept.
        most = worker.scheduled().turns - before.turns
    lossless(found)
    turns = after.turns - before.turns
    assert turns > 0
    unseen = sum(noted(found).values())
    assert turns - unseen <= found.books[REQUESTS].started == found.books[REQUESTS].finished <= most
    # The book is as counted, before corrections.
    assert abs(book.started - book.finished) <= unseen
    (group,) = found.cells
    assert group.label("task") == Task(worker.name, worker.pid)
    wait, run, off, total = (found.cells[group][name] for name in ("wait", "run", "off", "total"))
    assert turns - 2 * unseen <= wait.count == run.count == total.count <= most
    # Its first sleep began before the trace.
    assert total.count - 1 <= off.count <= total.count
    assert wait.sum + run.sum == total.sum
    # The parts follow one another between two readings of the clock.
    assert run.sum + off.sum <= end - begin or unseen
    if times:
        # The kernel and the program read the clock some microseconds apart.
        apart = turns * 50_000
        assert abs(run.sum - (after.run_ns - before.run_ns)) <= apart
        assert abs(wait.sum - (after.wait_ns - before.wait_ns)) <= apart
        assert run.sum >= 25 * 4_000_000 - apart
        assert off.sum >= wait.sum + 24 * 2_000_000 - wait.max


@pytest.mark.one_kernel
def test_rows_are_about_what_was_asked_for(worker: Worker) -> None:
    with traced(*(Options(by=by, wanted=Filter(pid=worker.pid)) for by in BY)) as flows:
        worker.do("thread", 10)
        found = {flow._options.by: flow.snapshot() for flow in flows}
    names = {by: {group.shown for group in snapshot.cells} for by, snapshot in found.items()}
    (process,) = names[PROCESS]
    threads = sorted(names[THREAD])
    assert process == f"{worker.name}[{worker.pid}]"
    assert len(threads) == 2
    assert f"{worker.name}[{worker.pid}/{worker.pid}]" in threads
    # A new thread starts where its creator runs, and moves once it binds itself.
    assert f"cpu{PLACE}" in names[CPU]
    assert names[CGROUP] == {cgroup_of(worker.pid)}
    counts = {by: sum(stages["total"].count for stages in snapshot.cells.values()) for by, snapshot in found.items()}
    assert counts[CPU] >= 2
    # The flows attach one after the other while the worker sleeps, so all of them saw the same.
    assert len(set(counts.values())) == 1 or not GUEST
    for snapshot in found.values():
        lossless(snapshot)


@pytest.mark.one_kernel
def test_what_finds_no_room_is_counted(worker: Worker) -> None:
    """Short-lived children, in a table of two tasks and with a single row."""
    wanted = Filter(comm=worker.name)
    with traced(Options(PROCESS, wanted, rows=1), Options(PROCESS, wanted, tasks=1)) as (rows, tasks):
        worker.do("fork", 20)
        few_rows, few_tasks = rows.snapshot(), tasks.snapshot()
        known = len(list(rows._obj.maps["tasks"].keys()))
    assert few_rows.books[REQUESTS].lost == {}
    # Each child is seen from its creation.
    assert noted(few_rows).get("unmatched_end", 0) < (1 if GUEST else 10)
    # A sleeping task wants no CPU; a task that has exited is forgotten, if the kernel has shown its exit.
    assert few_rows.books[REQUESTS].in_flight == 0 or not GUEST
    assert known == 1 or not GUEST
    (others,) = [stages for group, stages in few_rows.cells.items() if group.shown == OTHERS]
    assert others["total"].count == noted(few_rows)["no_row"] >= 20
    assert len(few_rows.cells) == 2
    book = few_tasks.books[REQUESTS]
    assert book.lost[STATE_FULL] >= 10
    assert book.started == book.finished + book.in_flight + book.lost_total
    assert book.in_flight == 0 or not GUEST


def test_a_long_wait_is_reported_with_who_ran_instead(worker: Worker) -> None:
    """The command itself, whose lines are checked against the schema and the law."""
    with hog() as other, CpuTrace("-p", str(worker.pid), "--by", "thread", "--slow", "1ms", "0.2") as trace:
        # Repeat until the worker has waited for the hog, which shares its only CPU.
        reported = re.compile(rf'"instead":{{[^}}]*"pid":{other}\b')

        def waited() -> bool:
            worker.do("work", 10)
            return bool(reported.search(trace.written()))

        wait_until(waited, "a long wait")
        lines = trace.stop()
    assert lines[0]["filters"] == {"by": "thread", "pid": worker.pid}
    assert lines[-1]["kind"] == "summary"
    waits = [line for line in lines if line["kind"] == "wait"]
    (wait,) = [row for row in lines[-1]["rows"] if row["stage"] == "wait"]
    assert len(waits) == lines[-1]["overhead"]["records"]
    # The worker sleeps, so no wait was under way at the summary.
    assert max(line["total_ns"] for line in waits) == wait["max_ns"]
    assert len(waits) <= wait["count"]
    assert all(line["total_ns"] >= 1_000_000 for line in waits)
    assert {(line["pid"], line["tid"], line["cpu"]) for line in waits} == {(worker.pid, worker.pid, PLACE)}
    # On a busy machine so many tasks may have run that who ran instead is forgotten.
    named = [line for line in waits if "instead" in line]
    assert all(0 < line["instead"]["run_ns"] <= line["total_ns"] for line in named)
    assert other in {line["instead"]["pid"] for line in named}


@pytest.mark.one_kernel
def test_who_wants_a_cpu_is_listed(worker: Worker) -> None:
    begin = time.monotonic_ns()
    with hog() as other, traced(Options(wanted=Filter(pid=other))) as (flow,):
        worker.do("work", 5)
        found = flow.in_flight(0)
        end = time.monotonic_ns()
        assert flow.snapshot().books[REQUESTS].in_flight == len(found) or not GUEST
        assert flow.in_flight(3_600_000_000_000) == []
    assert [one.fields["tid"] for one in found] == [other]
    assert found[0].stage in ("wait", "run")
    assert 0 <= found[0].age_ns <= end - begin


# --- The same run, seen by others -------------------------------------------------------------------------------------


class Turns(NamedTuple):
    """Times of a task by stage, by the kernel's own tracing."""

    wait: list[int]
    run: list[int]
    off: list[int]


def turns_of(pid: int, records: list[Record]) -> Turns:
    """Compute the times by the same rules: waking a running task counts for nothing; a preempted task wants a CPU."""
    found = Turns([], [], [])
    woken = ran = left = 0
    for record in records:
        if record.name == "sched_wakeup":
            woken = woken or (0 if ran else record.ns)
            continue
        match = re.fullmatch(r"prev_comm=.* prev_pid=(\d+) .*prev_state=(\S+) ==> .* next_pid=(\d+) .*", record.text)
        assert match, record
        if int(match[1]) == pid:
            if ran:
                found.run.append(record.ns - ran)
            ran, left, woken = 0, record.ns, record.ns if match[2].startswith("R") else 0
        elif int(match[3]) == pid:
            ran = record.ns
            found.wait.append(ran - woken)
            if left:
                found.off.append(ran - left)
            woken = 0
    return found


def as_counts(times: list[int]) -> dict[int, int]:
    return dict(Counter(max((ns // 1000).bit_length(), 1) for ns in times))


@TIMES
@pytest.mark.guest
def test_the_same_as_the_kernels_own_tracing(worker: Worker, times: bool) -> None:
    pid = worker.pid
    # Events are in the buffer of the CPU that they are about, where only this worker runs.
    filters = {"sched_switch": f"prev_pid == {pid} || next_pid == {pid}", "sched_wakeup": f"pid == {pid}"}
    with (
        hog(),
        kernel_traced("sched/sched_switch", "sched/sched_wakeup", filters=filters) as trace,
        traced(Options(wanted=Filter(pid=pid))) as (flow,),
    ):
        worker.do("work", 25)
        stages = whole(flow.snapshot())
        theirs = turns_of(pid, trace.records())
    assert len(theirs.wait) == len(theirs.run) == stages["total"].count > 0
    for name in ("wait", "run", "off"):
        seen = getattr(theirs, name)
        assert stages[name].count == len(seen)
        if times:
            # Both are at the same event, one after the other.
            assert abs(stages[name].sum - sum(seen)) <= len(seen) * 20_000
            assert_alike(stages[name], as_counts(seen), times)


LINKS = {"runqlat-libbpf": 3, "cpudist-libbpf": 1}
_BUCKET = re.compile(r"^\s*(\d+) -> (\d+)\s*: (\d+)", re.MULTILINE)


def microseconds(text: str) -> dict[int, int]:
    """Parse a histogram of libbpf-tools: counts by power of two of microseconds, with 0 for 0 and 1."""
    return {int(low).bit_length(): int(count) for low, _, count in _BUCKET.findall(text) if int(count)}


def as_theirs(found: Distribution) -> dict[int, int]:
    counts: dict[int, int] = {}
    for low, high, count in found.filled():
        power = max(((low + min(high - 1, found.max)) // 2 // 1000).bit_length(), 1)
        counts[power] = counts.get(power, 0) + count
    return counts


def percentile(counts: dict[int, int], percent: float) -> int:
    rank, seen = math.ceil(sum(counts.values()) * percent / 100), 0
    for power in sorted(counts):
        seen += counts[power]
        if seen >= rank:
            return power
    raise AssertionError("an empty histogram")


def tool(name: str, *arguments: str) -> AbstractContextManager[subprocess.Popen[str]]:
    return running_peer(name, *arguments, links=LINKS[name])


def histogram(process: subprocess.Popen[str]) -> dict[int, int]:
    text = ended_peer(process)
    found = microseconds(text)
    assert found, text
    return found


def assert_alike(ours: Distribution, theirs: dict[int, int], times: bool) -> None:
    """Check for equal counts in the same bucket or the next, because both read the clock at different moments."""
    made = as_theirs(ours)
    assert abs(sum(made.values()) - sum(theirs.values())) <= 2, (made, theirs)
    if not times:
        return
    for percent in (10, 50, 90, 100):
        assert abs(percentile(made, percent) - percentile(theirs, percent)) <= 1, (percent, made, theirs)


@TIMES
@pytest.mark.guest
def test_the_same_as_runqlat_and_cpudist(worker: Worker, times: bool) -> None:
    pid = str(worker.pid)
    with (
        hog(),
        traced(Options(wanted=Filter(pid=worker.pid))) as (flow,),
        tool("runqlat-libbpf", "-p", pid) as waits,
        tool("cpudist-libbpf", "-O", "-p", pid) as absences,
    ):
        worker.do("work", 30)
        stages = whole(flow.snapshot())
        assert_alike(stages["wait"], histogram(waits), times)
        assert_alike(stages["off"], histogram(absences), times)
    # Without -O, cpudist only counts turns that ended by preemption.
    with hog(), tool("cpudist-libbpf", "-p", pid) as turns, traced(Options(wanted=Filter(pid=worker.pid))) as (flow,):
        worker.do("spin", 300)
        assert_alike(whole(flow.snapshot())["run"], histogram(turns), times)


def whole(found: Snapshot) -> dict[str, Distribution]:
    """Merge all CPUs: the worker begins on its own, but its first turn may be elsewhere."""
    return next(iter(everywhere(found.cells).values()))


@pytest.mark.guest
@pytest.mark.one_kernel
def test_a_cgroup_that_is_gone_has_its_name(v2: Path) -> None:
    """It ran for a moment and was removed before anything read its name."""
    group = v2 / "wptest_brief"
    with traced(Options(by=CGROUP)) as (flow,):
        group.mkdir()
        with joined(group):
            subprocess.run(["true"], check=True)
        group.rmdir()
        found = flow.snapshot()
    assert "/wptest_brief" in {group.values[0] for group in found.cells}
