# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from wptrace.model.stages import Point, Stage, StageTable

Q, G, D, C = Point("Q", "queued"), Point("G", "got a request"), Point("D", "issued"), Point("C", "completed")
THROTTLE = Stage("throttle", Q, G, "waits for a tag", "no free tag")
QUEUE = Stage("queue", G, D, "waits in the scheduler", "scheduler or plug")
DEVICE = Stage("device", D, C, "the device works", "a slow disk")
HARDIRQ = Stage("hardirq", Q, C, "interrupts ran", "an interrupt took the CPU", partition=False)


@pytest.fixture
def table() -> StageTable:
    return StageTable([THROTTLE, QUEUE, HARDIRQ, DEVICE])


def test_order_and_lookup(table: StageTable) -> None:
    assert list(table) == [THROTTLE, QUEUE, HARDIRQ, DEVICE]
    assert len(table) == 4
    assert table.names == ("throttle", "queue", "hardirq", "device")
    assert table["queue"] is QUEUE
    assert "queue" in table
    assert "nonsense" not in table
    with pytest.raises(KeyError):
        table["nonsense"]


def test_the_total_goes_from_the_first_to_the_last_point_of_the_partition(table: StageTable) -> None:
    assert table.partition == (THROTTLE, QUEUE, DEVICE)
    assert table.total is table["total"]
    assert (table.total.start, table.total.end) == (Q, C)
    assert table.total.description == "the whole, from queued to completed"
    assert table.unattributed is table["unattributed"]
    assert table.rows == (*table.stages, table.unattributed, table.total)
    assert not table.total.partition
    assert not table.unattributed.partition


def test_the_unit_is_in_the_key(table: StageTable) -> None:
    assert [stage.key for stage in table.rows][-2:] == ["unattributed_ns", "total_ns"]
    assert THROTTLE._replace(unit="pages").key == "throttle_pages"


def test_remainder_counts_the_partition_only(table: StageTable) -> None:
    assert table.remainder(100, {"throttle": 10, "queue": 20, "device": 30, "hardirq": 15}) == 40
    assert table.remainder(100, {"device": 100}) == 0
    assert table.remainder(100, {"device": 101}) == -1


@pytest.mark.parametrize("name", ["queue", "total", "unattributed"])
def test_names_are_unique(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        StageTable([QUEUE, DEVICE._replace(name=name)])


def test_interference_lies_inside_and_what_lies_outside_does_not(table: StageTable) -> None:
    assert table.inside == (HARDIRQ,)
    assert StageTable([QUEUE, HARDIRQ._replace(outside=True)]).inside == ()


def test_a_table_of_something_else_than_times() -> None:
    assert StageTable([THROTTLE, HARDIRQ]).timed
    assert not StageTable([THROTTLE, QUEUE._replace(unit="bytes")]).timed


def test_a_table_needs_a_part_of_the_total() -> None:
    with pytest.raises(ValueError, match="part of the total"):
        StageTable([HARDIRQ])
