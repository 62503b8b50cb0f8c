# SPDX-License-Identifier: Apache-2.0
"""The iopf flow, from rows and pending faults to reports."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.flows.test_discover import ARCHES, enum_names, parsed
from wptrace.bpf.object import open_object
from wptrace.engine.filters import Filter
from wptrace.engine.hooks import Way
from wptrace.engine.resolver import Attempts, Loaded
from wptrace.errors import UsageError
from wptrace.flows import iopf
from wptrace.flows.iopf import IopfFlow, device_named, rows
from wptrace.model.kind import TOTAL, names

MS = 1_000_000
OBJECT = open_object("iopf")


@pytest.mark.parametrize(("cpus", "count"), [(2, 256), (24, 256), (64, 97), (128, 48), (192, 32), (1024, 32)])
def test_there_are_as_many_rows_as_memory_is_for(cpus: int, count: int) -> None:
    assert rows(5360, cpus) == count


def row(dev: bytes = b"0000:75:00.0\0\0", pasid: int = 5) -> Any:
    return argparse.Namespace(dev=dev, pasid=pasid)


def test_an_address_space_has_a_number_or_none() -> None:
    group = flow(Filter())._group
    assert group(row()).values == ("0000:75:00.0", 5)
    assert group(row(pasid=0xFFFFFFFF)).values == ("0000:75:00.0", None)
    assert group(row(dev=b"\0", pasid=0)).values == ("other", "other")


def state(first: int, last: int = 0, handled: int = 0, **what: Any) -> Any:
    made = argparse.Namespace(first_ns=first, last_ns=last, handled_ns=handled, address=0x1000, faults=2)
    vars(made).update(vars(row(**what)))
    return made


def flow(wanted: Filter, *states: Any, handling: bool = True) -> IopfFlow:
    made = IopfFlow(wanted)
    pending = {number: (argparse.Namespace(group=number), one) for number, one in enumerate(states)}
    obj = argparse.Namespace(
        maps={"pending": argparse.Namespace(items=lambda: iter(pending.values()))},
        progs={"handle_fentry": argparse.Namespace(section="fentry/iommu_sva_handle_iopf")},
        constants=OBJECT.constants,
        struct=OBJECT.struct,
    )
    made._loaded = observed(obj, **{iopf._HANDLING: Way(("handle_fentry",))} if handling else {})
    return made


def observed(obj: Any, **ways: Way) -> Loaded:
    attempts = Attempts(IopfFlow.hooks)
    attempts.chosen.update(ways)
    return Loaded(obj, attempts)


def test_faults_without_an_answer_come_oldest_first_with_their_stage() -> None:
    now = time.monotonic_ns()
    states = [state(now - 20 * MS), state(now - 60 * MS, last=1, handled=1), state(now - 40 * MS, last=1)]
    found = flow(Filter(), *states).in_flight(0)
    assert [one.stage for one in found] == ["handle", "queue", "gather"]
    assert [one.fields["group"] for one in found] == [1, 2, 0]
    assert [one.group.label("dev") for one in found] == ["0000:75:00.0"] * 3
    assert 60 * MS <= found[0].age_ns < 60_000 * MS
    assert len(flow(Filter(), *states, state(now + 60_000 * MS)).in_flight(10 * MS)) == 3


def test_who_does_not_see_the_handling_has_the_wait_for_it_in_handle() -> None:
    states = [state(1), state(2, last=1)]
    assert [one.stage for one in flow(Filter(), *states, handling=False).in_flight(0)] == ["gather", "handle"]


def test_only_those_that_are_wanted() -> None:
    states = [state(1), state(1, pasid=6), state(1, dev=b"other\0")]
    assert [one.group.label("pasid") for one in flow(Filter(dev=("0000:75:00.0",)), *states).in_flight(0)] == [
        5,
        6,
    ]
    assert [one.group.label("pasid") for one in flow(Filter(pasid=(6, 7)), *states).in_flight(0)] == [6]
    assert len(flow(Filter(dev=("other",), pasid=(5,)), *states).in_flight(0)) == 1
    others = row(dev=b"\0", pasid=0)
    assert flow(Filter())._wanted(others)
    assert not flow(Filter(pasid=(0,)))._wanted(others)
    name = "a-name-that-is-longer-than-programs-keep"
    assert len(flow(Filter(dev=(name,)), state(1, dev=name[:31].encode())).in_flight(0)) == 1


@pytest.mark.parametrize("arch", ARCHES)
def test_names_are_those_of_the_object(arch: str) -> None:
    _, btf = parsed("iopf", arch)
    assert enum_names(btf, "iopf_stage") == [*names(IopfFlow.kinds), TOTAL]
    assert set(enum_names(btf, "iopf_cause")) == set(iopf._CAUSES)


@pytest.mark.parametrize(
    ("taken", "handling", "said"),
    [
        ("exit_raw_tp", "", "know neither groups nor handling"),
        ("submit_raw_tp", "", "Intel's IOMMU know no handling"),
        ("respond_fentry", "", "this kernel shows no handling of a fault: queue is in handle (no such function)"),
        ("respond_fentry", "handle_fentry", "shared virtual addressing"),
    ],
)
def test_the_notes_tell_what_is_not_seen(taken: str, handling: str, said: str) -> None:
    fault, hook = IopfFlow.hooks
    obj = argparse.Namespace(progs={"handle_fentry": argparse.Namespace(section="fentry/x")})
    found = observed(obj, fault=next(way for way in fault.ways if taken in way.ends))
    if handling:
        found.attempts.chosen[hook.id] = Way((handling,))
    found.attempts.refused.update(dict.fromkeys(hook.ways[-1].programs, "no such function"))
    (note,) = iopf._notes(found)
    assert said in note


# --- Devices ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    (tmp_path / "bus" / "pci" / "devices" / "0000:75:00.0").mkdir(parents=True)
    (tmp_path / "devices" / "rootless").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize("name", ["0000:75:00.0", "rootless"])
def test_a_device_of_a_bus_or_of_none(sys: Path, name: str) -> None:
    assert device_named(name, sys) == name


@pytest.mark.parametrize("name", ["0000:76:00.0", "", ".", "..", "*", "0000:75:00.?", "../bus", "/dev/null"])
def test_what_is_none(sys: Path, name: str) -> None:
    with pytest.raises(UsageError, match="there is no device"):
        device_named(name, sys)
