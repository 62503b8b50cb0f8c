# SPDX-License-Identifier: Apache-2.0
"""The iopf flow against modules that report I/O page faults and know when they were answered."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.kernel.byhand import run
from tests.kernel.conftest import GUEST
from tests.kernel.modules import NEVER, Module
from tests.kernel.trace import Line, Trace, wait_until, wptrace
from wptrace.bpf.object import BpfObject, open_object
from wptrace.bpf.ring import Reader
from wptrace.engine.filters import Filter
from wptrace.engine.hooks import Way
from wptrace.engine.resolver import Attempts, Loaded
from wptrace.flows import iopf as flow_module
from wptrace.flows.iopf import IopfFlow
from wptrace.model.book import STATE_FULL, UNMATCHED_END, UNMATCHED_START
from wptrace.model.kind import REQUESTS
from wptrace.model.report import BYTES

US = 1000
# Debian's 5.10 has no queue of faults. Before 6.9 another function answers, always with code 1.
OLD = GUEST == "6.1"


class IopfTrace(Trace):
    command = "iopf"

    def row(self, dev: str, pasid: int, stage: str = "total") -> Line:
        (found,) = [
            row for row in self.summary["rows"] if (row["dev"], row["pasid"], row["stage"]) == (dev, pasid, stage)
        ]
        return dict(found)


def mean(values: list[int]) -> float:
    return sum(values) / len(values)


# --- The tracepoints of the SMMU --------------------------------------------------------------------------------------


DEVICES = ("0000:75:00.0", "0000:76:00.0")


def at_once(module: Module, jobs: list[tuple[int, int, int, int]]) -> None:
    with ThreadPoolExecutor(len(jobs)) as pool:
        list(pool.map(lambda job: module.run(*job), jobs))


def smmu_times(module: Module) -> dict[tuple[str, int], list[int]]:
    found: dict[tuple[str, int], list[int]] = {}
    for event in module.log():
        times = found.setdefault((event["dev"], int(event["pasid"])), [])
        times.append(int(event["end_ns"]) - int(event["start_ns"]))
    return found


@pytest.mark.guest
def test_smmu_faults_of_several_address_spaces_at_once(smmu: Module) -> None:
    """Some are of one address space. Which is which is unknown, but count and times are right."""
    faults = 20
    delays = [(0, 1, 100), (0, 2, 1000), (0, 7, 5000), (1, 1, 2000), (1, 1, 3000), (1, 9, 10_000)]
    wanted = [(device, pasid, faults, us) for device, pasid, us in delays]
    with IopfTrace() as trace:
        at_once(smmu, wanted)
    assert {source["how"] for source in trace.lines[0]["stages"] if source["how"]} == {
        "raw_tp/io_fault_exit, raw_tp/io_fault_entry"
    }
    assert trace.summary["requests"]["started"] == trace.summary["requests"]["finished"] == faults * len(wanted)
    assert trace.summary["requests"]["lost"] == 0
    assert not any(trace.summary["loss"].values())
    truth = smmu_times(smmu)
    assert {(row["dev"], row["pasid"]) for row in trace.summary["rows"]} == set(truth)
    for (dev, pasid), times in truth.items():
        row = trace.row(dev, pasid)
        assert row["count"] == len(times)
        # Whichever exit is taken for whose, none takes less time than was set; on a busy machine it may take more.
        assert row["min_ns"] >= min(us for device, of, _, us in wanted if (DEVICES[device], of) == (dev, pasid)) * US
        assert row["sum_ns"] == trace.row(dev, pasid, "handle")["sum_ns"]


@pytest.mark.icount
def test_smmu_faults_take_as_long_as_set(smmu: Module) -> None:
    """Faults of all address spaces at the same time."""
    with IopfTrace() as trace:
        at_once(smmu, [(0, 1, 200, 100), (0, 2, 100, 1000), (0, 3, 20, 10_000), (1, 1, 50, 2000)])
    truth = smmu_times(smmu)
    for (dev, pasid), times in truth.items():
        row = trace.row(dev, pasid)
        assert row["count"] == len(times) >= 20
        assert row["mean_ns"] == pytest.approx(mean(times), rel=0.02)
        assert abs(row["max_ns"] - max(times)) <= 20 * US
    assert trace.row("0000:75:00.0", 3)["mean_ns"] == pytest.approx(10_000 * US, rel=0.02)


@pytest.mark.guest
def test_smmu_faults_without_an_end_are_listed(smmu: Module) -> None:
    with IopfTrace("--dev", "0000:76:00.0", "--stuck", "10ms", "0.1") as trace:
        smmu.run(1, 3, 2, NEVER)
        smmu.run(0, 3, 1, NEVER)
        wait_until(lambda: '"kind":"in_flight"' in trace.written(), "the unanswered faults to be listed")
    assert [(one["dev"], one["pasid"]) for one in trace.summary["unanswered"]] == [("0000:76:00.0", 3)] * 2
    assert trace.summary["requests"]["in_flight"] == 2
    reported = [line for line in trace.lines if line["kind"] == "in_flight"]
    assert {one["stage"] for line in reported for one in line["found"]} == {"handle"}


# --- The kernel's own queue of faults ---------------------------------------------------------------------------------


def groups(module: Module) -> dict[tuple[str, int, int], tuple[list[int], int]]:
    """Return when the pages of each group were reported, and when it was answered; 0 for never."""
    found: dict[tuple[str, int, int], Any] = {}
    for event in module.log():
        key = (event["dev"], int(event["pasid"]), int(event["group"]))
        pages, _ = found.setdefault(key, ([], 0))
        if event["event"] == "fault":
            pages.append(int(event["ns"]))
        else:
            found[key] = (pages, int(event["ns"]))
    return found


def run_groups(module: Module, jobs: list[tuple[int, int, int, int, int, int]]) -> None:
    for job in jobs:
        module.run(*job)
    wait_until(lambda: len(module.answers()) == len(jobs), "all answers")


@pytest.mark.guest
def test_faults_of_several_address_spaces_are_counted(iopf: Module) -> None:
    jobs = [
        (device, pasid, group, 1 + group, 1000 * group, group % 3)
        for device in (0, 1)
        for pasid in (1, 8)
        for group in (1, 2, 3, 4)
    ]
    with IopfTrace() as trace:
        run_groups(iopf, jobs)
    assert trace.summary["requests"]["started"] == trace.summary["requests"]["finished"] == len(jobs)
    assert trace.summary["requests"]["lost"] == trace.summary["requests"]["in_flight"] == 0
    assert trace.summary["requests"]["failed"] == (len(jobs) if OLD else sum(job[5] != 0 for job in jobs))
    assert trace.summary["bytes"] == sum(job[3] for job in jobs) * os.sysconf("SC_PAGE_SIZE")
    assert not any(trace.summary["loss"].values())
    for dev in ("wptest_iopf.0", "wptest_iopf.1"):
        for pasid in (1, 8):
            rows = {stage: trace.row(dev, pasid, stage) for stage in ("gather", "queue", "handle", "total")}
            assert {row["count"] for row in rows.values()} == {4}
            assert rows["total"]["sum_ns"] == sum(rows[stage]["sum_ns"] for stage in ("gather", "queue", "handle"))
            assert rows["total"]["max_ns"] >= 4000 * US


@pytest.mark.icount
def test_faults_take_as_long_as_set(iopf: Module) -> None:
    delays = {1: 100, 2: 1000, 3: 10_000}
    with IopfTrace() as trace:
        for pasid, us in delays.items():
            # One group at a time, so that none waits for another.
            for group in range(10):
                before = len(iopf.answers())
                iopf.run(0, pasid, group, 3, us, 0)
                wait_until(lambda before=before: len(iopf.answers()) > before, "the answer")
    for pasid in delays:
        times = [
            (end - pages[0], pages[-1] - pages[0])
            for (_, found, _), (pages, end) in groups(iopf).items()
            if found == pasid
        ]
        total, gather = trace.row("wptest_iopf.0", pasid), trace.row("wptest_iopf.0", pasid, "gather")
        assert total["count"] == len(times) == 10
        assert total["mean_ns"] == pytest.approx(mean([whole for whole, _ in times]), rel=0.02)
        assert gather["mean_ns"] == pytest.approx(mean([part for _, part in times]), rel=0.02, abs=10 * US)
    # On 6.1 the module sleeps before it passes the fault to the kernel's queue; later it handles the fault itself.
    stage = "queue" if OLD else "handle"
    assert trace.row("wptest_iopf.0", 3, stage)["min_ns"] == pytest.approx(10_000 * US, rel=0.02)


@pytest.mark.guest
def test_faults_without_an_answer_are_listed(iopf: Module) -> None:
    with IopfTrace() as trace:
        iopf.run(0, 3, 9, 2, NEVER, 0)
        iopf.run(0, 3, 10, 1, 0, 0)
        wait_until(lambda: iopf.answers(), "the answer to the second")
    (one,) = trace.summary["unanswered"]
    assert (one["dev"], one["pasid"], one["group"], one["faults"]) == ("wptest_iopf.0", 3, 9, 2)
    # If the kernel's handling cannot be seen, the wait for it is in `handle`. The address is that of the first page.
    seen = any(source["stage"] == "queue" and source["how"] for source in trace.lines[0]["stages"])
    assert (one["stage"], one["address"]) == ("queue" if seen else "handle", 0x10000)
    book = trace.summary["requests"]
    assert (book["started"], book["finished"], book["in_flight"]) == (2, 1, 1)


@pytest.mark.guest
def test_a_fault_that_the_kernel_refuses_is_lost(iopf: Module) -> None:
    if OLD:
        pytest.skip("this kernel learns of the PASID only when it handles the fault")
    with IopfTrace() as trace, pytest.raises(OSError, match="Invalid argument"):
        iopf.run(0, 9, 1, 1, 0, 0)
    assert trace.summary["loss"] == {"refused": 1}
    assert (trace.summary["requests"]["started"], trace.summary["requests"]["lost"]) == (1, 1)


# --- What no machine here has: programs run on made-up arguments ------------------------------------------------------

WAYS = {way.name: way for way in IopfFlow.hooks[0].ways}
SMMU, INTEL = WAYS["smmu"], WAYS["intel"]


@pytest.fixture
def started(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[IopfFlow, BpfObject]]:
    """The flow with these programs, loaded but not attached."""

    way: Way = request.param

    def load(name: str, hooks: Any, prepare: Any) -> Loaded:
        obj = open_object(name)
        for program in obj.progs.values():
            program.autoload = program.name in way.programs
        prepare(obj)
        obj.load()
        attempts = Attempts(hooks)
        attempts.chosen[flow_module._FAULT] = way
        return Loaded(obj, attempts)

    monkeypatch.setattr(flow_module, "load", load)
    flow = IopfFlow(Filter())
    flow.start(Reader())
    assert flow._loaded
    yield flow, flow._loaded.obj
    flow.close()


def smmu_fault(obj: BpfObject, program: str, pasid: int) -> None:
    run(obj, program, 0, pasid)


@pytest.mark.one_kernel
@pytest.mark.parametrize("started", [SMMU], indirect=True)
def test_more_faults_of_one_address_space_than_can_be_reported_apart(started: tuple[IopfFlow, BpfObject]) -> None:
    flow, obj = started
    for _ in range(10):
        smmu_fault(obj, "entry_raw_tp", 5)
    assert len(flow.in_flight(0)) == flow.snapshot().books[REQUESTS].in_flight == 8
    for _ in range(10):
        smmu_fault(obj, "exit_raw_tp", 5)
    found = flow.snapshot()
    assert (found.books[REQUESTS].started, found.books[REQUESTS].finished, found.books[REQUESTS].in_flight) == (
        10,
        8,
        0,
    )
    assert found.books[REQUESTS].lost == {STATE_FULL: 2}
    assert found.books[REQUESTS].noted == {UNMATCHED_END: 2}
    assert flow.in_flight(0) == []


@pytest.mark.one_kernel
@pytest.mark.parametrize("started", [SMMU], indirect=True)
def test_faults_that_are_not_asked_for_are_not_lost(started: tuple[IopfFlow, BpfObject]) -> None:
    flow, obj = started
    flow._filter = Filter(pasid=(6,))
    for pasid, count in ((5, 10), (6, 9)):
        for _ in range(count):
            smmu_fault(obj, "entry_raw_tp", pasid)
    found = flow.snapshot().books[REQUESTS]
    assert (found.started, found.in_flight, found.lost) == (9, 8, {STATE_FULL: 1})


@pytest.mark.one_kernel
@pytest.mark.parametrize("started", [SMMU], indirect=True)
def test_of_several_faults_of_one_address_space_the_oldest_ends_first(started: tuple[IopfFlow, BpfObject]) -> None:
    flow, obj = started
    for _ in range(3):
        smmu_fault(obj, "entry_raw_tp", 5)
    ages = {one.fields["group"]: one.age_ns for one in flow.in_flight(0)}
    assert sorted(ages, key=lambda lane: -ages[lane]) == [0, 1, 2]
    smmu_fault(obj, "exit_raw_tp", 5)
    assert [one.fields["group"] for one in flow.in_flight(0)] == [1, 2]
    # The newest one reuses the free slot, and ends last.
    smmu_fault(obj, "entry_raw_tp", 5)
    for left in ([2, 0], [0], []):
        smmu_fault(obj, "exit_raw_tp", 5)
        assert [one.fields["group"] for one in flow.in_flight(0)] == left


@pytest.mark.one_kernel
@pytest.mark.parametrize("started", [SMMU], indirect=True)
def test_more_address_spaces_than_there_are_rows(started: tuple[IopfFlow, BpfObject]) -> None:
    flow, obj = started
    rows = obj.maps["cells"].max_entries
    for pasid in range(rows + 10):
        smmu_fault(obj, "entry_raw_tp", pasid)
        smmu_fault(obj, "exit_raw_tp", pasid)
    found = flow.snapshot()
    assert found.books[REQUESTS].finished == found.books[REQUESTS].started == rows + 10
    assert sum(stages["total"].count for stages in found.cells.values()) == rows + 10
    # Some hash tables of the kernel reserve a few elements for each CPU.
    assert found.cells[flow_module.FAULT.group("other", "other")]["total"].count >= 10
    assert found.books[REQUESTS].noted[flow_module._NO_ROW] >= 10


def request(pasid: int | None, group: int, last: bool, requester: int = 0x7500, address: int = 0x1000) -> list[int]:
    """Return the arguments of prq_report. The device is NULL, because no valid pointer can be made up."""
    low = 1 | requester << 16 | (0 if pasid is None else 1 << 8 | pasid << 32)
    return [0xFFFF888100000000, 0, low, 1 | last << 2 | group << 3 | address, 0, 0, 1]


def response(pasid: int, group: int, code: int = 0, requester: int = 0x7500, kind: int = 9) -> list[int]:
    """Return the arguments of qi_submit."""
    return [0xFFFF888100000000, kind | 1 << 4 | code << 12 | requester << 16 | pasid << 32, 1 << 2 | group << 3, 0, 0]


@pytest.mark.one_kernel
@pytest.mark.parametrize("started", [INTEL], indirect=True)
def test_requests_of_intels_iommu(started: tuple[IopfFlow, BpfObject]) -> None:
    flow, obj = started
    run(obj, "request_raw_tp", *request(5, 3, last=False, address=0x7000))
    run(obj, "request_raw_tp", *request(5, 3, last=False))
    (gathering,) = flow.in_flight(0)
    assert (gathering.stage, gathering.group.label("pasid"), gathering.fields["faults"]) == ("gather", 5, 2)
    assert gathering.fields["address"] == 0x7000
    run(obj, "request_raw_tp", *request(5, 3, last=True))
    # Another group, address space or device, or none: each has an answer of its own.
    for other in (request(5, 4, True), request(6, 3, True), request(5, 3, True, 0x7600), request(None, 3, True)):
        run(obj, "request_raw_tp", *other)
    # Commands that are not page group responses.
    for kind in (1, 2, 5, 8):
        run(obj, "submit_raw_tp", *response(5, 3, kind=kind))
    assert flow.snapshot().books[REQUESTS].finished == 0
    run(obj, "submit_raw_tp", *response(5, 3))
    assert {(one.group.label("pasid"), one.fields["group"]) for one in flow.in_flight(0)} == {
        (5, 4),
        (6, 3),
        (5, 3),
        (None, 3),
    }
    for answer in (response(5, 4, code=1), response(6, 3), response(5, 3, requester=0x7600), response(0, 3, code=15)):
        run(obj, "submit_raw_tp", *answer)
    found = flow.snapshot()
    assert (found.books[REQUESTS].started, found.books[REQUESTS].finished, found.books[REQUESTS].failed) == (5, 5, 2)
    assert not found.books[REQUESTS].lost
    assert not found.books[REQUESTS].noted
    assert sum(counts[BYTES] for counts in found.counters.values()) == 7 * os.sysconf("SC_PAGE_SIZE")
    whole = {name: sum(stages[name].sum for stages in found.cells.values()) for name in ("gather", "handle", "total")}
    assert whole["gather"] + whole["handle"] == whole["total"] > 0


@pytest.mark.one_kernel
@pytest.mark.parametrize("started", [INTEL], indirect=True)
def test_a_number_that_is_used_again_had_no_answer(started: tuple[IopfFlow, BpfObject]) -> None:
    flow, obj = started
    for _ in range(2):
        run(obj, "request_raw_tp", *request(5, 3, last=True))
    run(obj, "submit_raw_tp", *response(5, 3))
    run(obj, "submit_raw_tp", *response(5, 3))
    found = flow.snapshot().books[REQUESTS]
    assert (found.started, found.finished, found.in_flight) == (2, 1, 0)
    assert found.lost == {UNMATCHED_START: 1}
    assert found.noted == {UNMATCHED_END: 1}


# --- What a kernel lacks ----------------------------------------------------------------------------------------------


def test_what_this_kernel_can_see() -> None:
    done = wptrace("iopf", "0.1", "1")
    if GUEST:
        assert done.returncode == 0, done.stderr
    else:
        # The kernel of the running machine is built without it.
        assert done.returncode == 4
        assert "this kernel shows no I/O page faults" in done.stderr
