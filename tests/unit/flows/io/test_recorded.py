# SPDX-License-Identifier: Apache-2.0
"""Records of the flight recorder as events and spans, with the layout of the object."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

import pytest

from tests.unit.flows.io.test_records import packed
from wptrace.analysis.overlap import Span
from wptrace.bpf.object import BpfObject
from wptrace.capture.layout import Described, facts
from wptrace.capture.records import Names
from wptrace.flows.io.options import PROCESS
from wptrace.flows.io.recorded import RECORDED, Recorded
from wptrace.flows.io.spans import OwnerNames
from wptrace.model.report import Event

WALL = 5_000_000_000_000
# The lower half is 3 ms, so an earlier beginning has a lower half of the lap before.
END = (7 << 32) + 3_000_000
TASKS = {12: (11, "/db.slice", "db")}
FLAGS = {"REQ_SYNC": 11, "REQ_META": 12, "REQ_FUA": 17}
DEV = 259 << 20


Decoded = Callable[..., tuple[Event, Optional[Span]]]


@pytest.fixture
def layout(obj: BpfObject) -> Described:
    return Described(facts(obj, RECORDED._replace(more=FLAGS), ["sda", "sdb"]))


@pytest.fixture
def decoded(obj: BpfObject, layout: Described) -> Decoded:
    """Decode a record. `ages` are times before its end."""

    def made(kind: str, **values: Any) -> tuple[Event, Span | None]:
        order, unit = layout.enum("recorded_time"), values.pop("unit", 0)
        for name, age in values.pop("ages", {}).items():
            values[f"times[{order.index(name)}]"] = (END - age >> unit) & 0xFFFFFFFF
        for place, charge in enumerate(values.pop("charges", ())):
            at = ["sector", "sector", "dev", "unused"][place - 8] if place >= 8 else f"times[{place}]"
            values[at] = charge << 32 | values[at] if place == 9 else charge
        interface = layout.enum("interface").index(values.pop("interface", "call"))
        bits = layout.enum("recorded_kind").index(kind) | interface << 2 | (0x80 if unit else 0)
        data = packed(obj.struct("recorded"), **{"end_ns": END, "slot": 1, "tid": 12, "kind": bits, **values})
        found = layout.struct("recorded").packed()[0].unpack(data)
        recorded = Recorded(layout)
        recorded.names = Names(TASKS, {(DEV, 131): "/srv/file"})
        (event,) = recorded.decode([found], WALL)
        (span,) = recorded.spans([found], OwnerNames(PROCESS, str, str))
        return event, span

    return made


def spent(event: Event) -> dict[str, int]:
    """Return the stages that took time."""
    return {name: ns for name, ns in event.stages.items() if ns}


def test_a_call_with_its_request(layout: Described, decoded: Decoded) -> None:
    ages = {"start": 9000, "queued": 8000, "got": 7990, "issued": 7000, "handed": 6900, "seen": 500, "completed": 400}
    op = layout.enum("block_op").index("write")
    event, span = decoded(
        "both", ages={**ages, "issued_to_fs": 100}, sector=64, dev=DEV, inode=131, file_dev=DEV,
        offset=4096, bytes=4096, result=4096, length=4096, stages=1, op=op, flags=1 << 11 - 8,
    )  # fmt: skip
    assert (event.group.kind.name, event.group.label("dev"), event.end_ns, event.total_ns) == (
        "operation", "sdb", END + WALL, 9000,
    )  # fmt: skip
    assert spent(event) == {
        "fs": 1000, "throttle": 10, "queue": 990, "driver": 100, "device": 6400, "complete": 100, "wakeup": 300,
        "return": 100,
    }  # fmt: skip
    fields = event.fields
    assert (fields["comm"], fields["pid"], fields["tid"], fields["cgroup"]) == ("db", 11, 12, "/db.slice")
    assert (fields["path"], fields["rwbs"], fields["maj_min"], fields["sector"]) == ("/srv/file", "WS", "259:0", 64)
    assert span is not None
    assert span == Span("sdb", "write", span.owner, 4096, END - 8000, END - 7000, END - 400)
    assert str(span.owner) == "db[11]"


def test_an_asynchronous_one_begins_before_it_is_in_the_file(decoded: Decoded) -> None:
    ages = {"queued": 800, "got": 800, "issued": 700, "handed": 700, "seen": 50, "completed": 50}
    for submitted, expected in ((950, {"submit": 50}), (900, {})):
        times = {**ages, "start": submitted, "issued_to_fs": 900}
        event, _ = decoded("both", interface="uring", stages=1, dev=DEV, ages=times)
        assert event.total_ns == submitted == sum(event.stages.values())
        rest = {"fs": 100, "queue": 100, "device": 650, "wakeup": 50}
        assert spent(event) == {**expected, **rest}
        assert ("submit" in event.stages) == bool(expected)
        assert event.fields["interface"] == "uring"


def test_what_seems_to_come_after_the_end_comes_with_it(decoded: Decoded) -> None:
    """Clocks of two CPUs may differ."""
    ages = {"start": 900, "queued": 800, "got": 700, "issued": 600, "handed": 600, "seen": -30, "completed": -20}
    event, span = decoded("both", stages=1, ages={**ages, "issued_to_fs": 0})
    assert spent(event) == {"fs": 100, "throttle": 100, "queue": 100, "device": 600}
    assert span is not None
    assert span.completed_ns == END


def test_what_seems_to_come_before_the_point_before_it_comes_with_that(decoded: Decoded) -> None:
    """Clocks of two CPUs may differ."""
    ages = {"start": 900, "queued": 800, "got": 850, "issued": 600, "handed": 650, "seen": 50, "completed": 40}
    event, _ = decoded("both", stages=1, ages={**ages, "issued_to_fs": 10})
    assert spent(event) == {"fs": 100, "queue": 200, "device": 550, "complete": 10, "wakeup": 30, "return": 10}
    assert sum(event.stages.values()) == event.total_ns == 900


@pytest.mark.parametrize("took", [0xFFEF_FFFF, 4_300_000_000, 3600 * 10**9])
def test_a_request_of_more_than_a_lower_half_is_in_coarse_units(layout: Described, decoded: Decoded, took: int) -> None:
    unit = layout.constants["RECORDED_COARSE_SHIFT"] if took >= 0xFFF0_0000 else 0
    issued = took - 5_000_000
    ages = {"queued": took, "got": took, "issued": issued, "handed": issued, "seen": 0, "completed": 0}
    event, span = decoded("request", stages=1, ages=ages, unit=unit)
    exact = 1 << unit
    assert abs(event.total_ns - took) < 2 * exact
    assert abs(event.stages["queue"] - 5_000_000) < 2 * exact
    assert sum(event.stages.values()) == event.total_ns
    assert span is not None
    assert abs(span.queued_ns - (END - took)) < 2 * exact
    assert abs(span.completed_ns - END) < 2 * exact


@pytest.mark.parametrize("unit", [0, 10])
def test_charges_are_those_of_the_stages_in_the_mask(layout: Described, decoded: Decoded, unit: int) -> None:
    names = layout.enum("op_stage")[:-1]
    some = names[:12]
    charges = [(1 << 31) + 1000 * (number + 1) for number in range(len(some))]
    mask = (1 << len(some)) - 1
    event, span = decoded("operation", charges=charges, unit=unit, stages=mask, bytes=3, flags=1, result=-5)
    assert span is None
    assert spent(event) == {name: ns << unit for name, ns in zip(some, charges)}
    assert event.total_ns == sum(charges) << unit
    assert (event.fields["requests"], event.fields["readahead"], event.fields["error"]) == (3, 1, 5)
    # Stages are in the order of the path.
    assert list(event.stages) == [name for name in names if name in event.stages]
