# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from tests.unit.outputs import path
from tests.unit.outputs.samples import HOSTILE, NOON, SECOND
from wptrace.outputs.text import inflight
from wptrace.outputs.text import words as text

THREE = [
    path.waiting(12 * SECOND),
    path.waiting(3 * SECOND, path.REQUEST),
    path.waiting(2 * SECOND, path="", offset=None),
]


def test_a_table_of_what_is_in_flight() -> None:
    assert inflight.lines(THREE, NOON, 80, False) == [
        "in flight at 22:13:20: 3, the oldest for 12.0 s",
        "     age  stage   op    device   who                  what",
        "  12.0 s  device  read  nvme0n1  postgres[4711/4715]  /var/.../2619 at 1048576",
        "  3.00 s  device  read  nvme0n1  kworker/u8:1[71]     sector 123456 +16",
        "  2.00 s  device  read  nvme0n1  postgres[4711/4715]  sector 123456 +16",
    ]
    assert inflight.lines(THREE, NOON, 120, True)[0].startswith("in flight at 2023-11-14 22:13:20: 3")
    assert path.operation().fields["path"] in inflight.lines(THREE, NOON, 120, False)[2]


def test_nothing_in_flight_is_an_answer_as_well() -> None:
    assert inflight.lines([], NOON, 80, False) == ["in flight at 22:13:20: 0"]


def test_a_long_list_is_cut_to_the_oldest() -> None:
    found = [path.waiting(age * SECOND) for age in range(1000, 0, -1)]
    lines = inflight.lines(found, NOON, 80, False)
    assert len(lines) == inflight.MOST + 3
    assert lines[0] == "in flight at 22:13:20: 1,000, the oldest for 16.7 min"
    assert lines[-1] == "  and 950 more"
    assert inflight.lines(found, NOON, 80, False, 2)[-1] == "  and 998 more"


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_shown_escaped(name: str) -> None:
    one = path.waiting(comm=name, path=f"/{name}")._replace(group=path.OPERATION.group(name, "read"))
    lines = inflight.lines([one], NOON, 200, False)
    assert all(line.isprintable() for line in lines)
    assert lines[2].count(text.printable(name)) == 3


def test_what_a_flow_does_not_know_is_left_empty() -> None:
    lines = inflight.lines([path.waiting()._replace(fields={})], NOON, 80, False)
    assert lines[2] == "  12.0 s  device  read  nvme0n1"
