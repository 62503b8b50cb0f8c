# SPDX-License-Identifier: Apache-2.0
"""The irqoff flow against a module that keeps interrupts off and knows for how long."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.conftest import GUEST
from tests.kernel.modules import Module, inserted
from tests.kernel.trace import Line, Trace, wait_until, wptrace
from wptrace.bpf.ring import Reader
from wptrace.flows.irqoff import IrqoffFlow, Options
from wptrace.kernel.clock import wall_offset_ns

COMM = "wptest_irqoff"
CULPRIT = "wptest_keep_irqs_off+"
MS = 1_000_000


class IrqoffTrace(Trace):
    command = "irqoff"

    @property
    def periods(self) -> list[Line]:
        return [line for line in self.lines if line["kind"] == "irqoff"]


@pytest.fixture
def module() -> Iterator[Module]:
    with inserted("irqoff") as found:
        yield found


@pytest.fixture
def offline() -> Iterator[Path]:
    """Where CPU 1 is switched off and on."""
    switch = Path("/sys/devices/system/cpu/cpu1/online")
    yield switch
    switch.write_text("1")


# --- On the instruction clock, which nothing disturbs -----------------------------------------------------------------


@pytest.mark.icount
def test_each_period_is_found_once_with_its_length(module: Module) -> None:
    offset = wall_offset_ns()
    with IrqoffTrace("--min", "2ms", "--stats") as trace:
        for ms in (3, 20, 150):
            module.run(0, ms * 1000)
        trace.stop()
    log = module.log()
    assert len(trace.periods) == len(log) == 3, trace.periods
    for period, truth in zip(trace.periods, log):
        assert abs(period["total_ns"] - int(truth["length_ns"])) <= 1 * MS
        assert abs(period["start_ns"] - int(truth["start_ns"]) - offset) <= 1 * MS
        assert period["ts_ns"] - period["start_ns"] == period["total_ns"] == period["stages"]["irqoff_ns"]
        assert (period["cpu"], period["dev"], period["comm"], period["tid"]) == (0, "cpu0", COMM, int(truth["pid"]))
        assert period["stack"][0].startswith(CULPRIT), period["stack"]
        assert period["stack"][0].endswith(f" [{module.name}]")
        assert period["sampled"] == "end"
    (row,) = [row for row in trace.summary["rows"] if row["stage"] == "total"]
    assert (row["dev"], row["count"]) == ("cpu0", 3)
    assert row["sum_ns"] == sum(period["total_ns"] for period in trace.periods)
    assert trace.summary["requests"]["finished"] == 3
    assert trace.summary["loss"] == {}
    (offender,) = trace.summary["offenders"]
    assert (offender["comm"], offender["function"], offender["count"]) == (COMM, CULPRIT[:-1], 3)


@pytest.mark.icount
def test_what_is_shorter_is_not_found(module: Module) -> None:
    with IrqoffTrace() as trace:
        module.run(0, 8000)
        module.run(0, 12000)
        trace.stop()
    assert [round(period["total_ns"] / MS) for period in trace.periods] == [12]


@pytest.mark.icount
def test_nothing_is_found_in_a_quiet_minute() -> None:
    with IrqoffTrace("--min", "3ms", "-d", "1m") as trace:
        trace.wait()
    assert trace.periods == []
    assert trace.summary["duration_ns"] >= 60_000 * MS
    assert trace.summary["requests"]["started"] == 0
    assert trace.summary["loss"] == {}


# --- On two CPUs, of which one can look at the other ------------------------------------------------------------------


@pytest.mark.guest
def test_a_period_that_has_not_ended_is_in_flight(module: Module) -> None:
    def open_on_cpu_1(trace: IrqoffTrace) -> bool:
        return '"in_flight":1' in trace.written()

    with IrqoffTrace("--min", "100ms", "--cpu", "1", "0.2") as trace:
        thread = threading.Thread(target=module.run, args=(1, 4_000_000))
        thread.start()
        wait_until(lambda: open_on_cpu_1(trace) or not thread.is_alive(), "the CPU to be late")
        thread.join()
        trace.stop()
    assert any(line["requests"]["in_flight"] == 1 for line in trace.lines if line["kind"] == "interval")
    (period,) = [period for period in trace.periods if period["comm"] == COMM]
    assert period["total_ns"] >= 4_000 * MS - MS


@pytest.mark.guest
def test_a_cpu_that_goes_and_comes_is_no_period_and_is_watched_again(module: Module, offline: Path) -> None:
    with IrqoffTrace("--min", "100ms") as trace:
        offline.write_text("0")
        time.sleep(1)
        offline.write_text("1")
        away = 900 * MS
        # The flow looks for CPUs every half second.
        time.sleep(1.5)
        module.run(1, 300_000)
        trace.stop()
    on_cpu_1 = [period for period in trace.periods if period["cpu"] == 1]
    assert any(period["comm"] == COMM for period in on_cpu_1), on_cpu_1
    assert all(period["total_ns"] < away for period in on_cpu_1), on_cpu_1
    assert trace.summary["loss"]["hotplug"] >= 1


# --- What a kernel cannot do ------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.uname().machine != "aarch64", reason="x86's emulation has no counter of cycles")
def test_a_counter_of_cycles_keeps_time_and_is_no_nmi() -> None:
    """On Debian's arm64 it interrupts like any device: of no use, but everything else is as with NMIs."""
    done = wptrace("irqoff", "-d", "0.1")
    assert done.returncode == 0, done.stderr
    assert "the counter of cycles interrupts by no NMI here; software: a tick every 1000 us" in done.stdout
    flow = IrqoffFlow(Options(counter="cycles"))
    try:
        said = flow.start(Reader())
        assert "it sees a period when that is over" in said.notes[0]
        assert said.sources[0].how.endswith("perf_event/cycles")
        # A counter that is made to go wrong is put right: the emulated one counts a cycle each nanosecond.
        looks = flow._obj.progs["look_perf_event"]
        for cpu in flow._since:
            looks.set_period(cpu, 50_000)
        assert flow._looks
        flow._looks._cycles = dict.fromkeys(flow._since, 50_000)
        end = time.monotonic() + 10
        while time.monotonic() < end and min(flow._looks._cycles.values()) < 500_000:
            flow.requests()
            # Only a busy CPU counts cycles.
            os.sched_setaffinity(0, {int(time.monotonic() * 10) % len(flow._since)})
            sum(range(10_000))
        assert all(500_000 <= cycles <= 4_000_000 for cycles in flow._looks._cycles.values()), flow._looks._cycles
        assert all(cell.looks > 10 for cell in flow._cells())
    finally:
        flow.close()


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="arm64's emulation has a counter of cycles")
def test_without_a_counter_of_cycles_it_says_so() -> None:
    done = wptrace("irqoff", "--counter", "cycles")
    assert done.returncode == 4
    assert "look by a counter of cycles" in done.stderr
    done = wptrace("irqoff", "-d", "0.1")
    assert done.returncode == 0, done.stderr
    assert "no counter of cycles works here" in done.stdout
    assert "a tick every 1000 us" in done.stdout


def test_doctor_knows_the_ticks() -> None:
    lines = wptrace("doctor", "-v").stdout.splitlines()
    assert any(line.startswith("wptrace irqoff: works") for line in lines), GUEST
    assert "        tp_btf/hrtimer_expire_entry: works" in lines
    assert any("a clock event of perf" in line for line in lines)
