# SPDX-License-Identifier: Apache-2.0
"""A budget for the cost of tracing: what is shed under load, in which order, and the counts meanwhile."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.conftest import GUEST
from tests.kernel.disks import Disk, fio, opened, read_direct, setting
from tests.kernel.flows import running_flow
from tests.kernel.loads import mounted
from tests.kernel.patience import joined
from tests.kernel.trace import Line, Trace, count, wait_until
from tests.thorough import cases
from wptrace.bpf.object import BpfObject
from wptrace.bpf.programs import run_statistics
from wptrace.engine.filters import Filter
from wptrace.errors import WptraceError
from wptrace.flows.io import operations as io_operations
from wptrace.flows.io import options as io_options
from wptrace.flows.io import path as io_path
from wptrace.flows.io import state as io_state
from wptrace.flows.io.kinds import REQUEST
from wptrace.flows.io.options import FS, INTERFERENCE, SAMPLE, SAVINGS
from wptrace.flows.io.state import operations
from wptrace.kernel import mounts
from wptrace.model.budget import Step
from wptrace.model.kind import OPERATIONS, REQUESTS
from wptrace.model.report import UNTIMED, Snapshot


@pytest.fixture(scope="module", autouse=True)
def _statistics_stay_on() -> Iterator[None]:
    """Keep run statistics on: a budget toggles them, which patches kernel code, and emulated CPUs may die of that."""
    with run_statistics() if GUEST else nullcontext():
        yield


# No trace costs as little as this.
TINY = "0.001%"
ALL = [(one.name, rate) for one in SAVINGS for rate in one.rates or (1,)]


@contextmanager
def load(disk: Disk, **options: Any) -> Iterator[dict[str, Any]]:
    """Read and write a disk at random until the block ends; then the yielded dictionary has fio's counts."""
    found: dict[str, Any] = dict.fromkeys(("jobs", "read", "read_bytes", "write", "write_bytes"), 0)
    going = threading.Event()

    def go_on() -> None:
        while not going.is_set():
            job = fio(disk.path, rw="randrw", number_ios=300, **options)
            for op in ("read", "write"):
                found[op] += job[op]["total_ios"]
                found[f"{op}_bytes"] += job[op]["io_bytes"]
            found["jobs"] += 1

    worker = threading.Thread(target=go_on)
    worker.start()
    try:
        yield found
    finally:
        going.set()
        joined(worker)


def a_whole_job(made: dict[str, Any]) -> None:
    """Wait until at least one more job of fio has begun and ended."""
    before = made["jobs"]
    wait_until(lambda: made["jobs"] >= before + 2, "a job of fio")


def changes(lines: list[Line]) -> list[tuple[str, int]]:
    """Return everything that was shed, by interval."""
    found = [change for line in lines if line["kind"] == "interval" for change in line["budget"]["changes"]]
    assert all(change["shed"] for change in found)
    assert [change["ts_ns"] for change in found] == sorted(change["ts_ns"] for change in found)
    return [(change["step"], change["request_sample"]) for change in found]


@pytest.fixture(autouse=True)
def _functions_of_all_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Observe functions of all files: in 6.1 a write to a frozen file system waits before that file system gets it."""
    monkeypatch.setattr(io_operations, "_are_known", lambda kinds: False)


# A hardened kernel hides some ends from every program (docs/kernels.md); guests do not.
HIDDEN = 0 if GUEST else 64
# Each round takes 15 seconds in a guest.
ROUNDS = cases(4, 2)
UNSEEN = set() if GUEST else {"unmatched_start", "unseen_start"}


def near(found: int, made: int) -> bool:
    return made - HIDDEN <= found <= made


def exact(summary: Line, made: dict[str, Any], disk: Disk, before: dict[str, int]) -> None:
    """Check that requests and their bytes are exactly those that fio and the kernel count."""
    after = disk.completed()
    for op in ("read", "write"):
        assert made[op] == after[op] - before[op]
        assert near(count(summary, op=op, dev=disk.name), made[op])
    found = summary["requests"]
    assert near(found["started"], made["read"] + made["write"])
    assert near(found["finished"], found["started"])
    assert found["failed"] == 0
    hidden = made["read"] + made["write"] - found["finished"]
    assert summary["bytes"] == made["read_bytes"] + made["write_bytes"] - 4096 * hidden


def timed(summary: Line) -> int:
    return sum(row["timed"] for row in summary["rows"] if row["stage"] == "total" and "timed" in row)


@pytest.mark.one_kernel
def test_everything_is_shed_in_the_stated_order_and_counts_stay_exact(disk: Disk) -> None:
    before = disk.completed()
    options = ("--each", "--interference", "--budget", TINY, f"--dev={disk.name}", "0.5")
    with Trace(*options) as trace, load(disk) as made:
        wait_until(lambda: '"step":"sample","request_sample":256' in trace.written(), "the last step")
        so_far = made["read"] + made["write"]
        wait_until(lambda: made["read"] + made["write"] > so_far + 1500, "some more requests")
    summary = trace.summary
    assert changes(trace.lines) == ALL
    spent = summary["budget"]
    assert spent["shed"] == [one.name for one in SAVINGS]
    assert spent["request_sample"] == SAMPLE.rates[-1]
    assert spent["cost"] > spent["limit"]
    assert spent["programs"] > 0
    assert spent["worst"] >= spent["cost"] >= spent["reader"] > 0
    off = spent["off_ns"]
    assert summary["duration_ns"] > off["interference"] > off["each"] > off["fs"] > off["sample"] > 0
    exact(summary, made, disk, before)
    assert set(summary["loss"]) - {"shed"} <= UNSEEN
    # Only operations before the shedding are counted: fewer than fio made.
    assert summary["operations"]["finished"] < made["read"] + made["write"]
    assert near(-summary["operations"]["in_flight"], 0)
    assert summary["operations"]["lost"] == summary["loss"].get("shed", 0)
    # fio has 300 under way that its counts lack; hardly any of the others is timed or shown.
    few = so_far + 600 + (made["read"] + made["write"] - so_far) / 8
    # Rows of requests are extrapolated from a sample, and say how large it was.
    assert 0 < timed(summary) < few
    for row in summary["rows"]:
        assert ("timed" in row) == (row["kind"] == "request")
        assert row["count"] >= row.get("timed", 0)
    assert len(trace.requests) + len(trace.operations) < few


@pytest.mark.one_kernel
def test_with_a_large_budget_nothing_is_shed(disk: Disk) -> None:
    before = disk.completed()
    # Without --each, whose lines alone would keep an emulated CPU busy.
    with Trace("--interference", "--budget", "100%", f"--dev={disk.name}", "1") as trace, load(disk) as made:
        wait_until(lambda: trace.written().count('"kind":"interval"') >= 6, "some intervals")
    summary = trace.summary
    assert changes(trace.lines) == []
    assert summary["budget"]["shed"] == []
    assert summary["budget"]["request_sample"] == 1
    assert 0 < summary["budget"]["cost"] < 1
    exact(summary, made, disk, before)
    assert set(summary["loss"]) <= UNSEEN
    assert near(summary["operations"]["finished"], made["read"] + made["write"])
    assert not any("timed" in row for row in summary["rows"])


@pytest.mark.one_kernel
@pytest.mark.parametrize("times", ["kernel", "own"])
def test_the_block_layer_alone(disk: Disk, times: str) -> None:
    before = disk.completed()
    with (
        setting(disk.queue / "iostats", "1"),
        Trace("--level=block", f"--times={times}", "--each", "--budget", TINY, f"--dev={disk.name}", "0.5") as trace,
        load(disk) as made,
    ):
        wait_until(lambda: '"request_sample":256' in trace.written(), "the last step")
    assert changes(trace.lines) == [step for step in ALL if step[0] in ("each", "sample")]
    assert trace.summary["budget"]["shed"] == ["each", "sample"]
    after = disk.completed()
    found = trace.summary["requests"]
    for op in ("read", "write"):
        assert made[op] == after[op] - before[op]
    assert near(found["finished"], made["read"] + made["write"])
    # Without writeback throttling the kernel does not stamp the requests to be timed.
    without = {"no_stamp"} if times == "kernel" else set()
    assert set(trace.summary["loss"]) <= UNSEEN | without
    if "no_stamp" not in trace.summary["loss"]:
        assert all(near(count(trace.summary, op=op), made[op]) for op in ("read", "write"))
        assert 0 < timed(trace.summary) < found["finished"]
    assert len(trace.requests) < found["finished"]


LONG_AGO = 0xFFFFFFF0

# --- Step by step, without a policy -----------------------------------------------------------------------------------


@contextmanager
def flow_of(options: io_options.Options) -> Iterator[io_path.PathFlow]:
    with running_flow(io_path.PathFlow(options)) as flow:
        flow.begin()
        yield flow


def attached(flow: io_path.PathFlow) -> set[str]:
    return {program.name for program in flow._running.programs if program.links}


def book(found: Snapshot) -> dict[str, Any]:
    for one in found.books.values():
        assert one.started == one.finished + one.in_flight + one.lost_total
    return found.books[OPERATIONS].as_dict()


def restored(flow: io_path.PathFlow, shedder: Any, step: Step) -> bool:
    """Restore a step, if this kernel can: fentry programs attach only once before 5.13."""
    try:
        shedder.restore(step)
    except WptraceError as error:
        print(f"{step.kind.name} stays off: {error.message}")
        assert any("fentry" in program.section for program in flow._running.programs), "nothing that attaches once"
        return False
    return True


def test_hooks_go_and_come_back(disk: Disk) -> None:
    options = io_options.Options((disk.name,), interference=True, slow_ns=0, sample=7)
    with flow_of(options) as flow:
        shedder = flow.shedder()
        loaded = flow._running
        whole = attached(flow)
        assert whole == {program.name for program in loaded.programs}
        interference, each, fs, *samples = shedder.steps
        shedder.shed(interference)
        without = attached(flow)
        gone = whole - without
        assert {name for name in gone if name.startswith("softirq")}
        assert "tick_perf" in gone
        # Completions may be seen by hooks at interrupt handlers.
        assert not any(name.startswith(("hardirq", "softirq", "tick")) for name in without - seen_by(loaded))
        shedder.shed(each)
        assert (loaded.obj.data.slow_ns, loaded.obj.bss.sample) == ((1 << 64) - 1, 100)
        assert attached(flow) == without
        shedder.shed(fs)
        assert not loaded.obj.bss.operating
        left = attached(flow)
        assert not any(name.startswith(("vfs", "call", "switch", "throttle")) for name in left)
        assert {name.partition("_")[0] for name in left} >= {"complete", "issue", "queue"}
        for step in samples:
            shedder.shed(step)
            assert loaded.obj.bss.request_sample == step.one_in
        for rate, step in zip((64, 16, 4, 0), reversed(samples)):
            shedder.restore(step)
            assert loaded.obj.bss.request_sample == rate
        if not restored(flow, shedder, fs):
            assert attached(flow) == left
            return
        assert attached(flow) == without
        assert loaded.obj.bss.operating
        shedder.restore(each)
        assert (loaded.obj.data.slow_ns, loaded.obj.bss.sample) == (0, 7)
        # Periods of CPUs that were under way when the hooks went are over by now.
        states = loaded.obj.maps["cpu_states"]
        before = states[0]
        for cpu in before:
            cpu.hardirq_ns = cpu.softirq_ns = cpu.tick_ns = 1
            cpu.off_pid = LONG_AGO
        states[0] = before
        shedder.restore(interference)
        assert attached(flow) == whole
        assert not any(cpu.off_pid == LONG_AGO for cpu in states[0])
        flow.stop()
        assert attached(flow) == set()


def seen_by(loaded: Any) -> set[str]:
    return {name for hook, way in loaded.attempts.chosen.items() if hook.startswith("seen.") for name in way.programs}


@pytest.mark.smp
def test_after_shedding_and_back_everything_is_counted_again(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under constant load nothing is unmatched, whatever was in flight when hooks were detached or attached."""
    # This load nearly always has a request in flight, and on a busy machine one may take longer than the usual moment.
    # With this limit none is given up.
    monkeypatch.setattr(io_state, "LAST_MOMENT_S", 20.0)
    before = disk.completed()
    with flow_of(io_options.Options((disk.name,), interference=True)) as flow:
        shedder = flow.shedder()
        back = True
        with load(disk) as made:
            wait_until(lambda: made.get("read"), "requests")
            for _ in range(ROUNDS):
                for step in shedder.steps:
                    shedder.shed(step)
                a_whole_job(made)
                for step in reversed(shedder.steps):
                    back = restored(flow, shedder, step)
                    if not back:
                        break
                if not back:
                    break
                a_whole_job(made)
        flow.stop()
        found = flow.snapshot()
        operations = book(found)
        after = disk.completed()
        assert near(found.books[REQUESTS].started, made["read"] + made["write"])
        assert near(found.books[REQUESTS].finished, found.books[REQUESTS].started)
        for op in ("read", "write"):
            assert made[op] == after[op] - before[op]
            group = next(group for group in found.cells if group.kind is REQUEST and group.label("op") == op)
            assert near(found.cells[group]["total"].count, made[op])
            assert 0 < found.counters[group][UNTIMED] < made[op]
        assert set(operations["lost_by_cause"]) <= {"shed"}
        assert near(-operations["lost"], 0), operations
        assert near(-operations["in_flight"], 0)
        if back:
            assert operations["finished"] >= ROUNDS * 300 - HIDDEN
        # An interrupt under way at that time would seem to last as long as its hooks were away.
        for group, stages in found.cells.items():
            for name in ("hardirq", "softirq", "preempted", "irq_delay"):
                if name in stages:
                    assert stages[name].max <= stages["total"].max, group


@pytest.mark.one_kernel
def test_operations_that_are_in_flight_are_given_up_and_counted(disk: Disk, tmp_path: Path) -> None:
    """A frozen file system holds back a write for longer than the shedding waits."""
    with mounted(disk, "ext4", tmp_path / "mnt") as folder:
        (folder / "file").write_bytes(bytes(4096))
        # The device of an operation is known only at its end, so those of other processes would be given up as well.
        with flow_of(io_options.Options((disk.name,), filter=Filter(pid=os.getpid()))) as flow:
            shedder = flow.shedder()
            fs = next(step for step in shedder.steps if step.kind is FS)
            with held_up(folder) as writer:
                wait_for_an_operation(flow)
                shedder.shed(fs)
                held = book(flow.snapshot())
                assert (held["in_flight"], held["lost_by_cause"]) == (0, {"shed": 1})
            assert not writer.is_alive()
            after = book(flow.snapshot())
            assert (after["started"], after["finished"], after["lost"]) == (held["started"], held["finished"], 1)
            # Later requests of the task are not attributed to that operation.
            if restored(flow, shedder, fs):
                (folder / "file").write_bytes(bytes(4096))
                found = book(flow.snapshot())
                assert found["finished"] == held["finished"] + 1
            flow.stop()


@contextmanager
def held_up(
    folder: Path, *then: Callable[[], object], before: Callable[[], object] = bool
) -> Iterator[threading.Thread]:
    """Write to a file of a frozen file system until the block ends; `before` and `then` run in the same thread."""
    with (folder / "late").open("wb", buffering=0) as file:
        subprocess.run(["fsfreeze", "--freeze", str(folder)], check=True)

        def write() -> None:
            before()
            file.write(bytes(4096))
            for action in then:
                action()

        # A daemon, because a failed test may never let it go on.
        writer = threading.Thread(target=write, daemon=True)
        try:
            writer.start()
            yield writer
        finally:
            subprocess.run(["fsfreeze", "--unfreeze", str(folder)], check=True)
            joined(writer)


def wait_for_an_operation(flow: io_path.PathFlow) -> None:
    """Wait for an operation, even if it is not known yet whether it counts."""
    wait_until(lambda: any(True for _ in operations(flow._running.obj)), "the write")


@pytest.mark.one_kernel
def test_requests_after_an_operation_that_was_given_up_are_counted(disk: Disk, tmp_path: Path) -> None:
    """Requests of an operation that a filter leaves out are left out, later ones of its task are not."""
    with mounted(disk, "ext4", tmp_path / "mnt") as folder:
        wanted = Filter(pid=os.getpid(), op="read")
        with flow_of(io_options.Options((disk.name,), filter=wanted)) as flow:
            shedder = flow.shedder()
            fs = next(step for step in shedder.steps if step.kind is FS)
            with held_up(folder, lambda: read_direct(Path(disk.path), 10)):
                wait_for_an_operation(flow)
                shedder.shed(fs)
            found = flow.snapshot()
            # The file system may read something as well.
            assert count_of(found, "read") >= 10
            assert shedder.given_up == 0
            flow.stop()


def leave_behind(obj: BpfObject, name: str, struct: str, values: dict[str, int]) -> None:
    """Fill all free entries with values that an earlier user may have left there."""
    layout = obj.struct(struct)
    view = obj.view(name)
    stale = layout.struct.pack(
        *(values.get(field, b"" if field.endswith(("name", "comm", "preemptor")) else 0) for field in layout.fields)
    )
    for begin in range(0, len(view), layout.size):
        if not any(view[begin : begin + 8]):
            view[begin : begin + layout.size] = stale


@pytest.mark.one_kernel
def test_an_operation_without_interference_does_not_get_that_of_an_earlier_one(disk: Disk, tmp_path: Path) -> None:
    """The operation begins while interference is off and ends after it has been restored."""
    with mounted(disk, "ext4", tmp_path / "mnt") as folder:
        options = io_options.Options((disk.name,), filter=Filter(pid=os.getpid()), interference=True)
        with flow_of(options) as flow:
            shedder = flow.shedder()
            obj = flow._running.obj
            shedder.shed(shedder.steps[0])
            go = threading.Event()
            with held_up(folder, before=go.wait) as writer:
                left = {"kinds[1].ns": 12345, "kinds[1].count": 12345}
                leave_behind(obj, "interferences", "interference_state", left)
                leave_behind(obj, "ops", "op_state", {"disturbed": True})
                go.set()
                wait_for_an_operation(flow)
                ops, memory = obj.struct("op_state"), bytes(obj.view("ops"))
                found = [ops.unpack(memory, place * ops.size) for place, _ in operations(obj)]
                (mine,) = [operation for operation in found if operation.tid == writer.native_id]
                assert not mine.disturbed
            flow.stop()


@pytest.mark.one_kernel
def test_flushes_are_timed_wherever_their_place_was_before(disk: Disk) -> None:
    with flow_of(io_options.Options((disk.name,))) as flow:
        leave_behind(flow._running.obj, "bios", "bio_state", {"untimed": True})
        with opened(disk.path, os.O_RDWR) as fd:
            os.pwrite(fd, bytes(4096), 0)
            os.fsync(fd)
        flow.stop()
        found = flow.snapshot()
        assert count_of(found, "flush") >= 1
        assert count_of(found, "write") >= 1
        assert not any(counts.get(UNTIMED) for counts in found.counters.values())


def count_of(found: Snapshot, op: str) -> int:
    return sum(
        stages["total"].count
        for group, stages in found.cells.items()
        if group.kind is REQUEST and group.label("op") == op
    )


@pytest.mark.one_kernel
def test_with_a_filter_for_files_operations_stay(disk: Disk, tmp_path: Path) -> None:
    with mounted(disk, "ext4", tmp_path / "mnt") as folder:
        place = mounts.directory(str(folder))
        with flow_of(io_options.Options((disk.name,), filter=Filter(dir=place), interference=True)) as flow:
            assert [step.kind for step in flow.shedder().steps] == [INTERFERENCE]
