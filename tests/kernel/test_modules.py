# SPDX-License-Identifier: Apache-2.0
"""The test modules do what they say, by the kernel's own tracing."""

from __future__ import annotations

import errno
import os
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.kernel.conftest import GUEST
from tests.kernel.modules import NEVER, Event, Module, on_cpu
from tests.kernel.trace import wait_until
from tests.kernel.tracefs import probes, traced

pytestmark = pytest.mark.guest
# How long a thread may wait for the only CPU, on the instruction clock.
SCHEDULER_NS = 1_000_000
DELAYS_US = (100, 1000, 10_000)


def lasted(event: Event) -> int:
    return int(event["end_ns"]) - int(event["start_ns"])


@pytest.mark.parametrize("cpu", [0, pytest.param(1, marks=pytest.mark.smp)])
def test_interrupts_are_off(irqoff: Module, cpu: int) -> None:
    """The CPU gets none of its 250 ticks a second meanwhile."""
    wanted_ns = 200_000_000
    with traced("irq_vectors/local_timer_entry") as trace:
        irqoff.run(cpu, wanted_ns // 1000)
        ticks = trace.records()
    (period,) = irqoff.log()
    assert (period["cpu"], period["comm"]) == (str(cpu), "wptest_irqoff")
    assert wanted_ns <= int(period["length_ns"])
    start = int(period["start_ns"])
    end = start + int(period["length_ns"])
    assert [tick for tick in ticks if tick.cpu == cpu and start + 1000 <= tick.ns <= end - 1000] == []
    assert any(tick.cpu == cpu and end - 1000 <= tick.ns for tick in ticks)


@pytest.mark.smp
def test_interrupts_are_off_until_they_are_released(irqoff: Module) -> None:
    wanted_ns = 100_000_000
    with traced("irq_vectors/local_timer_entry") as trace, on_cpu(0):
        with irqoff.held(1):
            assert irqoff.log() == []
            with pytest.raises(OSError, match=os.strerror(errno.EBUSY)):
                irqoff.run(1, NEVER)
            time.sleep(wanted_ns / 1e9)
        ticks = trace.records()
    (period,) = irqoff.log()
    assert period["cpu"] == "1"
    # Clocks of two emulated CPUs were seen 0.2 ms apart, so only readings of the same CPU are compared.
    assert wanted_ns / 2 <= int(period["length_ns"])
    start = int(period["start_ns"])
    end = start + int(period["length_ns"])
    assert [tick for tick in ticks if tick.cpu == 1 and start + 1000 <= tick.ns <= end - 1000] == []


def test_the_function_is_on_the_list_of_the_kernel(irqoff: Module) -> None:
    assert f" wptest_keep_irqs_off\t[{irqoff.name}]\n" in Path("/proc/kallsyms").read_text()


def test_irqoff_refuses_nonsense(irqoff: Module) -> None:
    # A task cannot hold a CPU on which it may run itself.
    for command in ("0", "0 5000001", "4096 10", "x 10", "0 10" + 64 * " ", "0 -2", "0 -1", "release"):
        with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
            irqoff.run(command)
    assert irqoff.log() == []


@pytest.mark.icount
def test_interrupts_are_off_as_long_as_asked(irqoff: Module) -> None:
    wanted = (50, 1000, 30_000, 500_000)
    for us in wanted:
        irqoff.run(0, us)
    log = irqoff.log()
    assert len(log) == len(wanted)
    for us, period in zip(wanted, log):
        assert us * 1000 <= int(period["length_ns"]) < us * 1000 + 10_000


def test_smmu_faults_of_several_pasids(smmu: Module) -> None:
    """tracefs shows each fault twice; they overlap across PASIDs and devices."""
    names = ("0000:75:00.0", "0000:76:00.0")
    delays = {(0, 1): 100, (0, 2): 1000, (0, 7): 10_000, (1, 1): 5000}
    faults = 20
    rounds = 0

    def overlap() -> bool:
        """Tell whether faults overlap; a busy machine may need several attempts."""
        nonlocal rounds
        list(pool.map(lambda item: smmu.run(*item[0], faults, item[1]), delays.items()))
        rounds += 1
        log = smmu.log()
        ends = [int(event["end_ns"]) for event in log]
        return any(int(event["start_ns"]) < end < int(event["end_ns"]) for event in log for end in ends)

    with traced("smmu/io_fault_entry", "smmu/io_fault_exit") as trace, ThreadPoolExecutor(len(delays)) as pool:
        wait_until(overlap, "faults that overlap")
        seen = Counter((record.name, record.text) for record in trace.records())
    keys = {(names[device], str(pasid)): us for (device, pasid), us in delays.items()}
    for dev, pasid in keys:
        for event in ("io_fault_entry", "io_fault_exit"):
            assert seen.pop((event, f"dev={dev} pasid={pasid}")) == faults * rounds
    assert not seen
    log = smmu.log()
    assert Counter((event["dev"], event["pasid"]) for event in log) == dict.fromkeys(keys, faults * rounds)
    for fault in log:
        assert lasted(fault) >= keys[fault["dev"], fault["pasid"]] * 1000


def test_smmu_faults_without_an_end(smmu: Module) -> None:
    with traced("smmu/io_fault_entry", "smmu/io_fault_exit") as trace:
        smmu.run(1, 3, 2, NEVER)
        assert Counter(record.name for record in trace.records()) == {"io_fault_entry": 2}
    assert [event["end_ns"] for event in smmu.log()] == ["0", "0"]


@pytest.mark.icount
def test_smmu_faults_last_as_long_as_asked(smmu: Module) -> None:
    for pasid, us in enumerate(DELAYS_US):
        smmu.run(0, pasid, 10, us)
    log = smmu.log()
    assert len(log) == 10 * len(DELAYS_US)
    for event in log:
        us = DELAYS_US[int(event["pasid"])]
        assert us * 1000 <= lasted(event) < us * 1000 + SCHEDULER_NS


def test_types_of_modules(smmu: Module) -> None:
    """Programs can use a module's types if the kernel keeps them."""
    kept = Path("/sys/kernel/btf")
    if any(path.name != "vmlinux" for path in kept.iterdir()):
        assert (kept / smmu.name).stat().st_size > 0


# Before 6.9 another function answers, and the kernel chooses the code.
OLD = GUEST == "6.1"
ANSWER = "iommu_page_response" if OLD else "iopf_group_response"
INVALID = 1


@pytest.mark.realclock
def test_io_page_faults_are_answered(iopf: Module) -> None:
    """Each page of a group is reported, and each group is answered once, by two functions of the kernel."""
    groups = [(device, pasid, group) for device in (0, 1) for pasid in (1, 8) for group in (1, 2, 3)]
    pages = 4
    with (
        probes(report="iommu_report_device_fault", answer=ANSWER),
        traced("kprobes/report", "kprobes/answer") as trace,
    ):
        for number, key in enumerate(groups):
            iopf.run(*key, pages, 2000 * number, number % 3)
        wait_until(lambda: len(iopf.answers()) == len(groups), "all answers")
        counted = Counter(record.name for record in trace.records())
    assert counted == {"report": pages * len(groups), "answer": len(groups)}
    found = defaultdict(list)
    for event in iopf.log():
        found[event["dev"], event["pasid"], event["group"]].append(event)
    assert len(found) == len(groups)
    for number, (device, pasid, group) in enumerate(groups):
        *faults, answer = found[f"wptest_iopf.{device}", str(pasid), str(group)]
        assert [fault["last"] for fault in faults] == ["0"] * (pages - 1) + ["1"]
        assert [int(fault["addr"], 16) for fault in faults] == [0x10000 + 4096 * page for page in range(pages)]
        assert answer["code"] == str(INVALID if OLD else number % 3)
        assert int(answer["ns"]) - int(faults[-1]["ns"]) >= 2_000_000 * number


def test_io_page_faults_without_an_answer(iopf: Module) -> None:
    iopf.run(0, 3, 9, 2, NEVER, 0)
    iopf.run(0, 3, 10, 1, 0, 0)
    wait_until(lambda: iopf.answers(), "the answer to the second")
    assert [event["group"] for event in iopf.answers()] == ["10"]
    # The fixture then removes the module, which has to work as well.


HANDLER = "iopf_handle_group" if OLD else "iommu_sva_handle_iopf"


@pytest.mark.parametrize("code", [0, INVALID])
def test_io_page_faults_in_our_own_memory(iopf: Module, code: int) -> None:
    """The kernel's own handler answers if it can access the memory."""
    hold_us = 20_000
    if GUEST == "6.12":
        with pytest.raises(OSError, match=os.strerror(errno.EOPNOTSUPP)):
            iopf.run(1, 0, 1, 2, hold_us, code)
        pytest.skip("this kernel does not share memory with devices on this machine")
    with probes(handle=HANDLER), traced("kprobes/handle") as trace:
        iopf.run(1, 0, 1, 2, hold_us, code)
        assert len(trace.records()) == 1
    *faults, answer = iopf.log()
    assert [fault["last"] for fault in faults] == ["0", "1"]
    assert (answer["event"], answer["code"]) == ("answer", str(code))
    assert int(answer["pasid"]) > 8
    assert int(answer["ns"]) - int(faults[-1]["ns"]) >= hold_us * 1000


def test_an_unknown_pasid_is_refused(iopf: Module) -> None:
    if OLD:
        pytest.skip("this kernel learns of the PASID only when it handles the fault")
    with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
        iopf.run(0, 9, 1, 1, 0, 0)
    assert [event["error"] for event in iopf.log() if event["event"] == "fault"] == [str(-errno.EINVAL)]


@pytest.mark.icount
def test_io_page_faults_last_as_long_as_asked(iopf: Module) -> None:
    for pasid, us in enumerate(DELAYS_US, 1):
        iopf.run(0, pasid, 1, 3, us, 0)
    wait_until(lambda: len(iopf.answers()) == len(DELAYS_US), "all answers")
    reported = {event["pasid"]: int(event["ns"]) for event in iopf.log() if event.get("last") == "1"}
    for event in iopf.answers():
        us = DELAYS_US[int(event["pasid"]) - 1]
        assert us * 1000 <= int(event["ns"]) - reported[event["pasid"]] < us * 1000 + SCHEDULER_NS
