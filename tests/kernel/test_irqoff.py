# SPDX-License-Identifier: Apache-2.0
"""The irqoff flow against a module that keeps interrupts off and knows for how long."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.byhand import run
from tests.kernel.modules import Module, on_cpu
from tests.kernel.trace import PATIENCE, Line, Trace, wait_until, wptrace
from wptrace.bpf.kernel_btf import vmlinux
from wptrace.bpf.lib import libbpf
from wptrace.bpf.object import BpfObject, find
from wptrace.bpf.ring import Reader, Ring
from wptrace.flows.irqoff import IrqoffFlow, Options
from wptrace.kernel.clock import wall_offset_ns
from wptrace.tools import doctor as diagnosis

COMM = "wptest_irqoff"
CULPRIT = "wptest_keep_irqs_off+"
MS = 1_000_000


class IrqoffTrace(Trace):
    command = "irqoff"

    @property
    def periods(self) -> list[Line]:
        return [line for line in self.lines if line["kind"] == "irqoff"]


@pytest.fixture
def offline() -> Iterator[Path]:
    """The file that switches CPU 1 off and on."""
    switch = Path("/sys/devices/system/cpu/cpu1/online")
    yield switch
    switch.write_text("1")


# --- On the instruction clock, which no load disturbs -----------------------------------------------------------------


# QEMU's x86 emulation has no cycle counter.
COUNTERS = ("auto", "cycles") if os.uname().machine == "aarch64" else ("auto",)


@pytest.mark.icount
@pytest.mark.parametrize("counter", COUNTERS)
def test_each_period_is_found_once_with_its_length(irqoff: Module, counter: str) -> None:
    offset = wall_offset_ns()
    with IrqoffTrace("--min", "2ms", "--stats", "--counter", counter) as trace:
        for ms in (3, 20, 150):
            irqoff.run(0, ms * 1000)
    log = irqoff.log()
    assert len(trace.periods) == len(log) == 3, trace.periods
    for period, truth in zip(trace.periods, log):
        assert abs(period["total_ns"] - int(truth["length_ns"])) <= 1 * MS
        assert abs(period["start_ns"] - int(truth["start_ns"]) - offset) <= 1 * MS
        assert period["ts_ns"] - period["start_ns"] == period["total_ns"] == period["stages"]["irqoff_ns"]
        assert (period["cpu"], period["dev"], period["comm"], period["tid"]) == (0, "cpu0", COMM, int(truth["pid"]))
        assert period["stack"][0].startswith(CULPRIT), period["stack"]
        assert period["stack"][0].endswith(f" [{irqoff.name}]")
        # A counter without NMIs takes its sample when interrupts are on again, before or after the tick.
        assert period["sampled"] == "end" or counter == "cycles"
    (row,) = [row for row in trace.summary["rows"] if row["stage"] == "total"]
    assert (row["dev"], row["count"]) == ("cpu0", 3)
    assert row["sum_ns"] == sum(period["total_ns"] for period in trace.periods)
    assert trace.summary["requests"]["finished"] == 3
    assert trace.summary["loss"] == {}
    (offender,) = trace.summary["offenders"]
    assert (offender["comm"], offender["function"], offender["count"]) == (COMM, CULPRIT[:-1], 3)


@pytest.mark.one_kernel
@pytest.mark.guest
@pytest.mark.icount
def test_what_is_shorter_is_not_found(irqoff: Module) -> None:
    with IrqoffTrace() as trace:
        irqoff.run(0, 8000)
        irqoff.run(0, 12000)
    assert [round(period["total_ns"] / MS) for period in trace.periods] == [12]


@pytest.mark.one_kernel
@pytest.mark.guest
@pytest.mark.icount
def test_nothing_is_found_in_a_quiet_minute() -> None:
    with IrqoffTrace("--min", "3ms", "-d", "1m") as trace:
        trace.wait()
    assert trace.periods == []
    assert trace.summary["duration_ns"] >= 60_000 * MS
    assert trace.summary["requests"]["started"] == 0
    assert trace.summary["loss"] == {}


# --- On two CPUs, so that one can watch the other ---------------------------------------------------------------------


@pytest.mark.smp
@pytest.mark.guest
def test_a_period_that_has_not_ended_is_in_flight(irqoff: Module) -> None:
    """The module keeps interrupts off until an interval has shown the period."""
    # Bind to CPU 0 first, because tasks that wait for CPU 1, as in unmapping memory, would wait for the module.
    with on_cpu(0), IrqoffTrace("--min", "100ms", "--cpu", "1", "0.2") as trace, irqoff.held(1):
        since, reported = time.monotonic_ns(), trace.written().count('"in_flight":1')
        # Wait until the period is long enough: the list may also have an earlier one, which a busy machine made.
        wait_until(lambda: time.monotonic_ns() > since + 300 * MS, "the CPU to be late")
        wait_until(lambda: trace.written().count('"in_flight":1') > reported, "an interval that has it")
        for_ns = time.monotonic_ns() - since
    (truth,) = irqoff.log()
    assert int(truth["length_ns"]) >= for_ns
    (period,) = [one for one in trace.periods if one["tid"] == int(truth["pid"])]
    assert (period["cpu"], period["comm"]) == (1, COMM)
    # Its beginning was not seen, so it is half a tick more or less.
    assert period["total_ns"] + period["error_ns"] >= int(truth["length_ns"]) - MS


@pytest.mark.smp
@pytest.mark.guest
def test_a_cpu_that_goes_and_comes_is_no_period_and_is_watched_again(irqoff: Module, offline: Path) -> None:
    with IrqoffTrace("--min", "100ms") as trace:
        offline.write_text("0")
        gone = time.time_ns()
        time.sleep(1)
        back = time.time_ns()
        offline.write_text("1")
        wait_until(lambda: irqoff.run(1, 300_000) or COMM in trace.written(), "the CPU to be watched again")
    on_cpu_1 = [period for period in trace.periods if period["cpu"] == 1]
    assert any(period["comm"] == COMM for period in on_cpu_1), on_cpu_1
    # No period includes the time in which the CPU was offline.
    assert all(one["ts_ns"] <= back or one["ts_ns"] - one["total_ns"] >= gone for one in on_cpu_1), on_cpu_1
    assert trace.summary["loss"]["hotplug"] >= 1


# --- Programs by hand: what no machine here does, or not at a given time ----------------------------------------------


class ByHand:
    """The flow without ticks: a timer expires when the test says so, on the CPU of the test."""

    def __init__(self, obj: BpfObject) -> None:
        self.obj = obj
        self.cpu = min(os.sched_getaffinity(0))
        layout = obj.struct("irqoff_record")
        self._names = layout.fields
        self._ring = Ring.of(obj.maps["records"], layout.struct)

    def tick(self) -> None:
        run(self.obj, "expire_raw_tp", 0, 0)

    def move(self, step: int) -> None:
        run(self.obj, "move_raw_tp", self.cpu, 0, step, 0)

    @property
    def cell(self) -> Any:
        return self.obj.maps["cells"][0][self.cpu]

    def change(self, name: str, **fields: int) -> None:
        """Change fields of this CPU's element of a map, as if the program had written them."""
        values = [value._asdict() for value in self.obj.maps[name][0]]
        values[self.cpu].update(fields)
        self.obj.maps[name][0] = values

    def periods(self) -> list[dict[str, Any]]:
        return [dict(zip(self._names, record)) for record in self._ring.read()]

    def causes(self) -> dict[str, int]:
        return {name: count for name, count in zip(self.obj.enum("irqoff_cause"), self.cell.causes) if count}

    def ago(self, ns: int) -> None:
        """Move the last tick back in time. A sleep would not be exact on a busy machine."""
        self.change("cells", ticked_ns=self.cell.ticked_ns - ns)

    def late(self, ns: int) -> None:
        self.tick()
        self.ago(ns)
        self.tick()

    def settle(self) -> None:
        time.sleep(0.005)
        self.tick()


# No test machine stands still for that long, and all have been up for longer.
MIN_NS, TICK_NS = 20_000 * MS, MS
LATE_NS = 25_000 * MS
# A CPU that has always been watched.
ALWAYS = 1


@pytest.fixture
def by_hand() -> Iterator[ByHand]:
    before = os.sched_getaffinity(0)
    with BpfObject(find("irqoff")) as obj:
        for program in obj.progs.values():
            program.autoload = program.name in ("expire_raw_tp", "move_raw_tp")
        obj.rodata.min_ns, obj.rodata.period_ns = MIN_NS, TICK_NS
        obj.rodata.settle_ns, obj.rodata.idle_settle_ns = 2 * MS, 2 * MS
        for name in ("watched", "moves"):
            obj.maps[name].max_entries = libbpf().cpus
        obj.load()
        made = ByHand(obj)
        os.sched_setaffinity(0, {made.cpu})
        obj.maps["watched"][made.cpu] = ALWAYS
        yield made
    os.sched_setaffinity(0, before)


@pytest.mark.one_kernel
def test_a_late_tick_is_a_period_when_it_has_settled(by_hand: ByHand) -> None:
    start = time.monotonic_ns()
    by_hand.late(LATE_NS)
    end = time.monotonic_ns()
    assert by_hand.periods() == []
    by_hand.settle()
    (period,) = by_hand.periods()
    assert start <= period["ticked_ns"] + LATE_NS < period["end_ns"] <= end
    whole = period["end_ns"] - period["ticked_ns"]
    # A hypervisor that reports stolen time may have stolen some.
    assert period["length_ns"] + period["stolen_ns"] + TICK_NS // 2 == whole
    assert (period["cpu"], period["pid"], period["tid"]) == (by_hand.cpu, os.getpid(), threading.get_native_id())
    assert period["comm"].rstrip(b"\0") == Path("/proc/self/comm").read_bytes().strip()
    assert period["frames"] > 3
    hist = by_hand.cell.irqoff
    assert (by_hand.cell.finished, sum(hist.slots), hist.sum) == (1, 1, period["length_ns"])
    by_hand.settle()
    assert by_hand.periods() == []
    assert by_hand.causes() == {}


@pytest.mark.one_kernel
def test_one_period_after_another(by_hand: ByHand) -> None:
    """The first period is over when the second one ends, settled or not."""
    by_hand.late(LATE_NS)
    by_hand.late(LATE_NS)
    assert len(by_hand.periods()) == 1
    by_hand.settle()
    assert len(by_hand.periods()) == 1


@pytest.mark.one_kernel
def test_a_tick_in_time_is_none(by_hand: ByHand) -> None:
    for _ in range(3):
        by_hand.late(MIN_NS - LATE_NS // 10)
    by_hand.settle()
    assert by_hand.periods() == []
    assert by_hand.cell.ticks == 7


@pytest.mark.one_kernel
def test_before_it_ticks_a_cpu_is_not_late(by_hand: ByHand) -> None:
    by_hand.obj.maps["watched"][by_hand.cpu] = 0
    by_hand.late(LATE_NS)
    by_hand.tick()
    by_hand.obj.maps["watched"][by_hand.cpu] = time.monotonic_ns()
    by_hand.ago(LATE_NS)
    by_hand.tick()
    by_hand.settle()
    assert by_hand.periods() == []
    assert by_hand.causes() == {}


@pytest.mark.one_kernel
def test_time_in_suspend_is_none(by_hand: ByHand) -> None:
    by_hand.tick()
    by_hand.change(
        "cells", asleep_ns=max(by_hand.cell.asleep_ns - 5_000 * MS, 0) or by_hand.cell.asleep_ns + 5_000 * MS
    )
    by_hand.ago(LATE_NS)
    by_hand.tick()
    by_hand.settle()
    assert by_hand.periods() == []
    assert by_hand.causes() == {"suspended": 1}


@pytest.mark.one_kernel
def test_a_cpu_that_moved_is_none_until_it_is_watched_again(by_hand: ByHand) -> None:
    steps = [vmlinux().enum_value("cpuhp_state", name) for name in ("CPUHP_TEARDOWN_CPU", "CPUHP_BRINGUP_CPU")]
    for step in steps:
        assert step is not None
        by_hand.tick()
        by_hand.ago(LATE_NS)
        by_hand.move(step + 1)
        assert by_hand.obj.maps["moves"][by_hand.cpu] == 0 or step == steps[1]
        by_hand.move(step)
        by_hand.tick()
        # Until it is watched again, no timer is due at a known time; also if it moved before the last tick.
        by_hand.obj.maps["moves"][by_hand.cpu] = ALWAYS + 1
        by_hand.late(LATE_NS)
        by_hand.settle()
        assert by_hand.periods() == []
    assert by_hand.causes() == {"hotplug": 2}
    by_hand.obj.maps["watched"][by_hand.cpu] = ALWAYS + 2
    by_hand.late(LATE_NS)
    by_hand.settle()
    assert len(by_hand.periods()) == 1


def stolen(by_hand: ByHand, ns: int) -> None:
    """Pretend that the kernel counted this much stolen time since before the period."""
    if by_hand.cell.stolen_ns < ns:
        pytest.skip("nobody has stolen as much time of this machine's CPU as the test pretends")
    by_hand.change("pending", stolen_ns=by_hand.cell.stolen_ns - ns)


@pytest.mark.one_kernel
def test_stolen_time_is_taken_from_a_period(by_hand: ByHand) -> None:
    by_hand.late(LATE_NS)
    stolen(by_hand, 30 * MS)
    by_hand.settle()
    (period,) = by_hand.periods()
    assert period["stolen_ns"] >= 30 * MS
    assert period["length_ns"] + period["stolen_ns"] == period["end_ns"] - period["ticked_ns"] - TICK_NS // 2


@pytest.mark.one_kernel
def test_what_is_stolen_but_for_a_little_is_none(by_hand: ByHand) -> None:
    by_hand.late(MIN_NS + 100 * MS)
    stolen(by_hand, 1_000 * MS)
    by_hand.settle()
    assert by_hand.periods() == []
    assert by_hand.causes() == {"stolen": 1}
    assert by_hand.cell.finished == 0


@pytest.mark.one_kernel
def test_a_full_ring_costs_the_record_and_not_the_period(by_hand: ByHand) -> None:
    room = by_hand.obj.maps["records"].max_entries // 560 + 2
    for _ in range(room):
        by_hand.late(LATE_NS)
    by_hand.settle()
    lost = by_hand.causes()["ring_full"]
    assert lost > 0
    assert len(by_hand.periods()) + lost == by_hand.cell.finished == sum(by_hand.cell.irqoff.slots) == room


# --- What a kernel lacks ----------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.uname().machine != "aarch64", reason="x86's emulation has no cycle counter")
def test_a_counter_of_cycles_keeps_time_and_is_no_nmi() -> None:
    """The counter's interrupt is ordinary on Debian's arm64, so it is no better than the tick; all else works."""
    done = wptrace("irqoff", "-d", "0.1")
    assert done.returncode == 0, done.stderr
    assert "the cycle counter does not interrupt by NMI here; software: a tick every 1000 us" in done.stderr
    with closing(IrqoffFlow(Options(counter="cycles"))) as flow:
        said = flow.start(Reader())
        assert "it sees a period when that is over" in said.notes[0]
        assert said.sources[0].how.endswith("perf_event/cycles")
        # A wrong period is corrected: the emulated counter counts one cycle per nanosecond.
        sampler = flow._obj.progs["look_perf_event"]
        for cpu in flow._since:
            sampler.set_period(cpu, 50_000)
        assert flow._sampler
        flow._sampler._cycles = dict.fromkeys(flow._since, 50_000)
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and min(flow._sampler._cycles.values()) < 500_000:
            flow.events()
            # Cycles are counted only while a CPU is busy.
            os.sched_setaffinity(0, {int(time.monotonic() * 10) % len(flow._since)})
            sum(range(10_000))
        assert all(cycles >= 500_000 for cycles in flow._sampler._cycles.values()), flow._sampler._cycles
        assert all(cell.looks > 10 for cell in flow._cells().values())


@pytest.mark.guest
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="arm64's emulation has a cycle counter")
def test_without_a_counter_of_cycles_it_says_so() -> None:
    done = wptrace("irqoff", "--counter", "cycles")
    assert done.returncode == 4
    assert "look by a cycle counter" in done.stderr
    done = wptrace("irqoff", "-d", "0.1")
    assert done.returncode == 0, done.stderr
    assert "no cycle counter works here" in done.stderr
    assert "a tick every 1000 us" in done.stderr


def test_doctor_knows_the_ticks() -> None:
    found = diagnosis._flow(IrqoffFlow)
    assert found.works
    ways = {way.section: way for hook in found.hooks for way in hook.ways}
    assert ways["tp_btf/hrtimer_expire_entry"].works
    assert any("a clock event of perf" in check.detail for check in found.checks)
