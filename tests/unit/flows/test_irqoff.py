# SPDX-License-Identifier: Apache-2.0
"""The irqoff flow, from records, samples and cells to reports."""

from __future__ import annotations

import argparse
import errno
import time
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from wptrace.bpf.object import open_object
from wptrace.bpf.ring import Ring
from wptrace.engine.filters import Filter
from wptrace.engine.hooks import Way
from wptrace.engine.resolver import Attempts, Loaded
from wptrace.errors import LibbpfError, UnsupportedError, UsageError
from wptrace.flows import irqoff
from wptrace.flows.irqoff import EVENT, NONE, PERIOD, IrqoffFlow, Options, tick_ns
from wptrace.kernel import cpus
from wptrace.model.distribution import SLOTS
from wptrace.model.kind import REQUESTS

MS = 1_000_000
ALL = 100_000
"""Overflows a second that a kernel permits by default."""


@pytest.mark.parametrize(
    ("min_ms", "tick_us"), [(1, 250), (2, 500), (4, 1000), (10, 1000), (1000, 1000)], ids="{}ms".format
)
def test_the_tick_is_a_quarter_of_the_shortest_period_and_a_millisecond_at_most(min_ms: int, tick_us: int) -> None:
    assert tick_ns(min_ms * MS, ALL) == tick_us * 1000


def test_a_kernel_that_holds_events_back_gets_fewer_ticks() -> None:
    assert tick_ns(4 * MS, 2000) == MS
    assert tick_ns(10 * MS, 1000) == 2 * MS
    with pytest.raises(UnsupportedError, match="no more than 1000 overflows") as caught:
        tick_ns(MS, 1000)
    assert caught.value.hint == "sysctl kernel.perf_event_max_sample_rate=8000, or a longer --min"


def test_what_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="shorter than 1ms"):
        IrqoffFlow(Options(min_ns=MS - 1))
    monkeypatch.setattr(cpus, "online", lambda: [0, 1])
    with pytest.raises(UsageError, match="there is no CPU 7 online"):
        IrqoffFlow(Options(wanted=Filter(cpu=(1, 9, 7))))


def seen(cpu: int = 1, ticked: int = 500, tid: int = 8, comm: bytes = b"dd\0", stack: tuple[int, ...] = (1, 2)) -> Any:
    frames = {f"stack[{place}]": address for place, address in enumerate(stack)}
    return {"cpu": cpu, "ticked_ns": ticked, "pid": 7, "tid": tid, "comm": comm, "frames": len(stack), **frames}


def ended(length: int = 20 * MS, end: int = 100 * MS, **what: Any) -> Any:
    return {**seen(**what), "end_ns": end, "length_ns": length, "stolen_ns": 3}


class Symbols:
    """A stand-in for the kernel's symbols."""

    def refresh(self) -> None:
        pass

    def resolve(self, address: int) -> str:
        return {0: "asm_sysvec_apic_timer_interrupt+0x1a"}.get(address, f"f{address}+0x1")


def cell(ticked: int = 0, finished: int = 0, causes: tuple[int, ...] = (0,) * 5) -> Any:
    hist = argparse.Namespace(slots=(finished,) + (0,) * (SLOTS - 1), sum=0, low=0, max=0, squares=0, squares_high=0)
    return argparse.Namespace(ticked_ns=ticked, finished=finished, causes=causes, irqoff=hist)


@pytest.fixture
def flow(monkeypatch: pytest.MonkeyPatch) -> IrqoffFlow:
    """A flow on two CPUs without a kernel: its object is made up, and `cells` can be set."""
    monkeypatch.setattr(irqoff, "KernelSymbols", Symbols)
    monkeypatch.setattr(irqoff, "wall_offset_ns", lambda: 1000 * MS)
    monkeypatch.setattr(cpus, "online", lambda: [0, 1])
    monkeypatch.setattr(cpus, "possible", lambda: [0, 1])
    causes = ["ring_full", "nmi_ring_full", "stolen", "suspended", "hotplug"]
    obj = argparse.Namespace(maps={"cells": {0: [cell(), cell()]}, "moves": {}}, enum=lambda _: causes)
    made = IrqoffFlow(Options())
    made._loaded = Loaded(obj, Attempts(IrqoffFlow.hooks))  # type: ignore[arg-type]
    made._since = {0: 1, 1: 1}
    made._map_bytes = 0
    return made


def set_cells(flow: IrqoffFlow, *cells: Any) -> None:
    assert flow._loaded
    flow._loaded.obj.maps["cells"][0] = list(cells)


def test_a_period_is_reported_with_its_stack_at_the_end(flow: IrqoffFlow) -> None:
    flow._episodes.end(ended(stack=(9, 0, 1, 2)))
    (event,) = flow.events()
    assert event.group == EVENT.group(1)
    assert (event.end_ns, event.total_ns) == (1100 * MS, 20 * MS)
    assert event.fields == {
        "start_ns": 1080 * MS,
        "stolen_ns": 3,
        "error_ns": MS // 2,
        "sampled": "end",
        "cpu": 1,
        "comm": "dd",
        "pid": 7,
        "tid": 8,
        # Without the handler of the tick.
        "stack": ["f1+0x1", "f2+0x1"],
    }
    assert flow.events() == []


def test_what_an_nmi_saw_inside_is_better(flow: IrqoffFlow) -> None:
    flow._episodes.see(seen(comm=b"culprit\0", stack=(5,)))
    flow._episodes.end(ended(comm=b"later\0"))
    (event,) = flow.events()
    assert (event.fields["sampled"], event.fields["comm"], event.fields["stack"]) == (
        "inside",
        "culprit",
        ["f5+0x1"],
    )
    assert event.total_ns == 20 * MS


def test_a_cpu_that_does_not_tick_is_in_flight(flow: IrqoffFlow) -> None:
    now = time.monotonic_ns()
    # The first CPU's tick is in the future, so it is not late however slow the test is.
    set_cells(flow, cell(now + 600_000 * MS, finished=3), cell(now - 5000 * MS))
    book = flow.snapshot().books[REQUESTS]
    assert (book.started, book.finished, book.in_flight) == (4, 3, 1)
    (one,) = flow.in_flight(0)
    assert (one.group, one.fields) == (PERIOD.group(1), {"cpu": 1})
    assert 4999 * MS <= one.age_ns < 60_000 * MS
    assert flow.in_flight(600_000 * MS) == []
    flow._episodes.see(seen(ticked=now - 5000 * MS))
    (one,) = flow.in_flight(0)
    assert (one.fields["comm"], one.fields["stack"]) == ("dd", ["f1+0x1", "f2+0x1"])


def test_a_cpu_that_is_away_or_has_not_ticked_yet_is_not(flow: IrqoffFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    set_cells(flow, cell(0), cell(time.monotonic_ns() - 5000 * MS))
    assert len(flow.in_flight(0)) == 1
    monkeypatch.setattr(cpus, "online", lambda: [0])
    assert flow.in_flight(0) == []


def test_what_is_no_period_is_noted(flow: IrqoffFlow) -> None:
    set_cells(flow, cell(causes=(1, 2, 3, 4, 5)), cell(causes=(10, 0, 0, 0, 0)))
    book = flow.snapshot().books[REQUESTS]
    assert {cause.name: count for cause, count in book.noted.items()} == {
        "ring_full": 11,
        "nmi_ring_full": 2,
        "stolen": 3,
        "suspended": 4,
        "hotplug": 5,
    }
    assert book.started == book.lost_total == 0


def test_a_row_for_each_cpu_that_had_a_period(flow: IrqoffFlow) -> None:
    set_cells(flow, cell(), cell(finished=2))
    assert {group: stages["total"].count for group, stages in flow.snapshot().cells.items()} == {PERIOD.group(1): 2}


def test_a_cell_is_of_the_cpu_that_has_its_place(flow: IrqoffFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel packs the values of CPUs: a number that is of none has no value."""
    monkeypatch.setattr(cpus, "online", lambda: [0, 2])
    flow._possible = [0, 2]
    flow._since = {0: 1, 2: 1}
    now = time.monotonic_ns()
    set_cells(flow, cell(now + 600_000 * MS), cell(now - 5000 * MS, finished=2))
    assert list(flow.snapshot().cells) == [PERIOD.group(2)]
    assert [one.group for one in flow.in_flight(0)] == [PERIOD.group(2)]


def test_there_is_an_element_for_the_largest_number_of_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpus, "possible", lambda *_: [0, 3])
    with open_object("irqoff") as obj:
        IrqoffFlow(Options(counter=NONE))._prepare(obj)
        assert [obj.maps[name].max_entries for name in ("watched", "moves")] == [4, 4]


def test_a_cpu_that_came_is_watched(flow: IrqoffFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[int] = []
    monkeypatch.setattr(flow, "_watch", lambda _, cpu: watched.append(cpu))
    monkeypatch.setattr(cpus, "online", lambda: [0, 1, 2])
    flow._since = {0: 100, 1: 100, 3: 100}
    assert flow._loaded
    # CPU 0 never moved, 1 came back, 2 is new, 3 went away, 4 is not online yet.
    flow._loaded.obj.maps["moves"] = {0: 0, 1: 200, 2: 300, 3: 400, 4: 500}  # type: ignore[index]
    flow.events()
    assert watched == [1, 2]


def test_a_cpu_that_is_just_coming_is_watched_later(flow: IrqoffFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is online before perf allows events on it."""
    refusals = [errno.ENODEV, errno.EMFILE]

    def refuse(_: object, cpu: int) -> None:
        raise LibbpfError("an event cannot be opened", errno=refusals.pop(0))

    monkeypatch.setattr(flow, "_watch", refuse)
    monkeypatch.setattr(cpus, "online", lambda: [0, 1])
    assert flow._loaded
    flow._loaded.obj.maps["moves"] = {1: 200}  # type: ignore[index]
    flow.events()
    flow._cared_at = 0
    with pytest.raises(LibbpfError):
        flow.events()
    assert refusals == []


def test_of_chosen_cpus_alone(flow: IrqoffFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[int] = []
    monkeypatch.setattr(flow, "_watch", lambda _, cpu: watched.append(cpu))
    flow._options = Options(wanted=Filter(cpu=(1,)))
    assert flow._loaded
    flow._loaded.obj.maps["moves"] = {0: 200, 1: 200}  # type: ignore[index]
    flow.events()
    assert watched == [1]


class Program:
    name, section = irqoff._LOOK, "perf_event/cycles"

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


def counter(
    flow: IrqoffFlow, monkeypatch: pytest.MonkeyPatch, how: str, samples: int, nmis: int
) -> tuple[str, Program]:
    """Return the notes on a counter with these results of a trial, and its program."""
    program = Program()
    attempts = Attempts(IrqoffFlow.hooks)
    attempts.chosen[irqoff._LOOKS] = Way((irqoff._LOOK,))
    loaded = Loaded(argparse.Namespace(progs={irqoff._LOOK: program}), attempts)  # type: ignore[arg-type]
    flow._options = Options(counter=how)
    monkeypatch.setattr(flow, "_trial", lambda: (samples, nmis))
    said = flow._try_counter(loaded)
    assert (irqoff._LOOKS in attempts.chosen) is not program.closed
    return said, program


def test_a_counter_that_interrupts_by_nmi_is_used(flow: IrqoffFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    said, program = counter(flow, monkeypatch, "auto", 5, 5)
    assert said.startswith("hardware: a tick every 1000 us, stacks from inside")
    assert not program.closed
    assert flow._sampler is not None


@pytest.mark.parametrize(("samples", "why"), [(5, "does not interrupt by NMI here"), (0, "does not count here")])
def test_one_that_is_no_help_is_not(flow: IrqoffFlow, monkeypatch: pytest.MonkeyPatch, samples: int, why: str) -> None:
    said, program = counter(flow, monkeypatch, "auto", samples, 0)
    assert said.startswith(f"the cycle counter {why}; software: a tick every 1000 us")
    assert program.closed
    assert flow._sampler is None


def test_who_insists_gets_it_if_it_runs_at_all(flow: IrqoffFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    said, _ = counter(flow, monkeypatch, "cycles", 5, 0)
    assert "it sees a period when that is over" in said
    assert flow._sampler is not None
    with pytest.raises(UnsupportedError, match="the cycle counter does not count here"):
        counter(flow, monkeypatch, "cycles", 0, 0)


def test_without_one(flow: IrqoffFlow) -> None:
    attempts = Attempts(IrqoffFlow.hooks)
    attempts.refused[irqoff._LOOK] = "loads, but cannot be attached: No such device"
    loaded = Loaded(None, attempts)  # type: ignore[arg-type]
    said = "no cycle counter works here (loads, but cannot be attached: No such device); software"
    assert flow._try_counter(loaded).startswith(said)
    flow._options = Options(counter="none")
    assert flow._try_counter(loaded).startswith("software: a tick every 1000 us")


def test_offenders_go_by_function_and_task_the_longest_in_all_first(flow: IrqoffFlow) -> None:
    for length, comm, stack in ((20, b"dd\0", (1,)), (30, b"dd\0", (1,)), (15, b"cp\0", (1,)), (90, b"dd\0", ())):
        flow._episodes.end(ended(length * MS, comm=comm, stack=stack))
    assert len(flow.events()) == 4
    assert flow.lists() == {
        "offenders": [
            {"comm": "dd", "function": "(user space)", "count": 1, "sum_ns": 90 * MS, "max_ns": 90 * MS},
            {"comm": "dd", "function": "f1", "count": 2, "sum_ns": 50 * MS, "max_ns": 30 * MS},
            {"comm": "cp", "function": "f1", "count": 1, "sum_ns": 15 * MS, "max_ns": 15 * MS},
        ]
    }


def test_events_are_forgotten_unread(flow: IrqoffFlow) -> None:
    """To find the names of their stacks takes long, and more come meanwhile."""
    read: list[int] = []
    flow._rings = [cast(Ring, SimpleNamespace(read=partial(read.append, number))) for number in (1, 2)]
    flow.forget_events()
    assert read == [1, 2]
    assert flow.events() == []


@pytest.mark.parametrize(
    ("stack", "name"),
    [
        (["_raw_spin_unlock_irqrestore+0x19", "hold+0x20 [driver]", "ret_from_fork+0x10"], "hold"),
        (["hold+0x1 [driver]"], "hold"),
        (["_raw_spin_unlock_irq+0x1"], "_raw_spin_unlock_irq"),
        (["0xffffffffc0000000"], "0xffffffffc0000000"),
        ([], "(user space)"),
    ],
)
def test_who_is_named(stack: list[str], name: str) -> None:
    assert irqoff.offender({"comm": "dd", "stack": stack}) == ("dd", name)
