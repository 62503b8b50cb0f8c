# SPDX-License-Identifier: Apache-2.0
"""Conditions of triggers: meaning, errors, and values between two snapshots."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.unit.outputs.samples import OVERHEAD, SECOND, cell, distribution
from wptrace.agent.condition import OPERATIONS, STUCK, VERDICT, Condition, oldest, parse
from wptrace.engine.flow import Flow
from wptrace.errors import UsageError
from wptrace.flows.cpu import KINDS as TURNS
from wptrace.flows.io import block, kinds
from wptrace.flows.io.parts.owners import KINDS as OWNED
from wptrace.flows.size import REQUEST as SIZES
from wptrace.model.book import STATE_FULL, Book
from wptrace.model.distribution import Distribution
from wptrace.model.kind import REQUESTS, Kind
from wptrace.model.report import InFlight, Snapshot
from wptrace.model.tally import Tally

MS = 1_000_000
SOURCES = Path(__file__).parents[3] / "bpf_src"


class Of(Flow):
    def __init__(self, name: str, *of: Kind) -> None:
        self.name, self.kinds, self.verdict_kinds = name, of, of[:1]


class Listed(Of):
    def in_flight(self, at_least_ns: int) -> list[InFlight]:
        return []


BLOCK = Of("io", block.REQUEST)
PATH = Listed("io", *kinds.KINDS, *OWNED["comm"])
SIZE, CPU = Of("size", SIZES), Of("cpu", *TURNS["cpu"])
REQUEST = block.REQUEST


def snapshot(
    cells: Mapping[Any, Mapping[str, Distribution]], at_s: float = 0, counters: Any = None, book: Book | None = None
) -> Snapshot:
    books = {REQUESTS: book or Book()}
    rows = {group: dict(of) for group, of in cells.items()}
    return Snapshot(int(at_s * SECOND), books, rows, counters or {}, OVERHEAD)


EMPTY = snapshot({})


def of(text: str, *flows: Flow) -> Condition:
    return parse(text, flows or (BLOCK,))


def test_a_condition_has_parts() -> None:
    found = of(" io.read.total.p99  > 50ms for 30s ")
    assert (found.flow, found.kind, found.operation, found.what) == (0, REQUEST, "read", "total")
    assert found.text == "io.read.total.p99 > 50ms for 30s"
    assert (found.statistic, found.limit, found.for_s) == ("p99", 50 * MS, 30)
    assert found.holds(51 * MS)
    assert not found.holds(50 * MS)


@pytest.mark.parametrize(
    ("sign", "holds"),
    [
        (">", [False, False, True]),
        (">=", [False, True, True]),
        ("<", [True, False, False]),
        ("<=", [True, True, False]),
    ],
)
def test_signs(sign: str, holds: list[bool]) -> None:
    found = of(f"io.total.mean {sign} 2us")
    assert [found.holds(value) for value in (1999, 2000, 2001)] == holds
    assert found.for_s == 0


@pytest.mark.parametrize(
    ("text", "kind", "operation", "what"),
    [
        ("io.total.p50 > 1ms", kinds.OPERATION, "", "total"),
        ("io.write.fs.max > 1ms", kinds.OPERATION, "write", "fs"),
        ("io.request.write.device.p90 > 1ms", kinds.REQUEST, "write", "device"),
        ("io.hit.read.total.rate > 5", kinds.HIT, "read", "total"),
        ("io.request.timeouts.rate > 0", kinds.REQUEST, "", "timeouts"),
        ("io.dirty.p99 > 30s", kinds.WRITEBACK, "", "dirty"),
    ],
)
def test_the_first_kind_that_has_it_is_meant_unless_one_is_named(
    text: str, kind: Kind, operation: str, what: str
) -> None:
    found = of(text, SIZE, PATH)
    assert (found.flow, found.kind, found.operation, found.what) == (1, kind, operation, what)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a condition is FLOW.OPERATION.STAGE.STATISTIC > VALUE for TIME"),
        ("io.read.total.p99 = 5ms", "a condition is FLOW"),
        ("io.read.total.p99 > 5ms for", "a condition is FLOW"),
        ("io > 5ms", "a condition is FLOW"),
        ("oi.read.total.p99 > 5ms", "no flow oi is traced; there is io"),
        ("sise.read.total.p99 > 5ms", "no flow sise is traced; there is io"),
        ("io.p99 > 5ms", "io needs a metric and a statistic"),
        ("io.read.total.p98 > 5ms", "there is no statistic p98; did you mean p9"),
        ("io.read.fs.p99 > 5ms", "io has no metric fs; it has queue, device, unattributed, total, bytes"),
        ("io.read.devise.p99 > 5ms", "io has no metric devise; did you mean device?"),
        ("io.raed.total.p99 > 5ms", "io has no kind or operation raed; did you mean read?"),
        ("io.read.write.total.p99 > 5ms", "io has no kind or operation write"),
        ("io.read.bytes.p99 > 5", "bytes is a count: use bytes.rate"),
        ("io.lost.p99 > 5", "io.lost is a count: use io.lost.rate"),
        ("io.read.total.p99 > 5", "the duration '5' has no unit"),
        ("io.read.total.rate > 5ms", "total.rate is compared with a number, not 5ms"),
        ("io.read.total.p99 > 5ms for 10ms", "a condition holds for 1s to 24h, not 10ms"),
        ("io.read.total.p99 > 5ms for 25h", "a condition holds for 1s to 24h"),
        ("io.read.total.p99", "io.read.total.p99 needs a value to compare with: FLOW"),
        ("io.read.total.p99 < 4x", "a multiple of the usual value is compared by >, not <"),
        ("io.stuck < 5s", "stuck is compared with a time in flight by >, such as io.stuck > 30s"),
        ("io.stuck > 5s", "io does not track what is in flight; io does, at the levels path and request"),
        ("io.verdict.tail > 5", "a finding has no value: write io.verdict.RULE for TIME"),
        ("io.verdict.tial", "the verdict has no finding tial; did you mean tail?; it has unmeasured, grew"),
        ("io.verdict.largest", "the verdict has no finding largest; it has"),
        ("pressure.disk.some > 5%", "pressure is that of io, memory, cpu, of some or full: pressure.io.some"),
        ("pressure.io > 5%", "pressure is that of"),
        ("pressure.io.some > 100%", "pressure is compared with a share"),
        ("pressure.io.some < 5%", "pressure is compared with a share"),
        (f"io.{'x' * 5000}.total.p99 > 5ms", "io has no kind or operation"),
    ],
)
def test_what_there_is_not_is_said(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        of(text)
    assert caught.value.message.startswith(said)


def test_what_is_not_traced_by_operation_has_none() -> None:
    with pytest.raises(UsageError, match="cpu has no metric total"):
        of("cpu.read.total.p99 > 5ms", CPU)
    assert of("cpu.wait.p99 > 5ms", CPU).operation == ""


def test_operations_are_those_of_the_programs() -> None:
    block_ops = re.findall(r"^\tBLOCK_OP_(\w+),", (SOURCES / "lib/block.h").read_text(), re.M)
    ops = re.findall(r"^\tOP_KIND_(\w+),", (SOURCES / "block/path/shared.h").read_text(), re.M)
    assert {name.lower() for name in (*block_ops, *ops)} == set(OPERATIONS)


def test_values_are_those_of_the_window_by_device() -> None:
    slow, quick, written = REQUEST.group("sda", "read"), REQUEST.group("sdb", "read"), REQUEST.group("sda", "write")
    before = snapshot({slow: cell([0] * 9, [MS] * 9), written: cell([0], [MS])})
    more = cell([0] * 11, [*[MS] * 9, 80 * MS, 80 * MS])
    now = snapshot({slow: more, quick: cell([0], [2 * MS]), written: cell([0], [MS])}, 2)
    found = of("io.read.total.p50 > 50ms").values(now, before)
    assert found == {"sda": pytest.approx(80 * MS, rel=0.07), "sdb": pytest.approx(2 * MS, rel=0.07)}
    assert of("io.total.rate > 1").values(now, before) == {"sda": 1, "sdb": 0.5}
    assert of("io.device.max > 1s").values(now, before)["sdb"] == 2 * MS
    assert of("io.read.device.mean > 1s").values(now, before)["sda"] == 80 * MS
    # There were no writes.
    assert of("io.write.total.p99 > 1ms").values(now, before) == {}
    assert of("io.write.total.p99 > 1ms").values(before, EMPTY._replace(at_ns=-SECOND)) == {
        "sda": pytest.approx(MS, rel=0.07)
    }


def test_operations_of_a_device_are_one_where_none_is_named() -> None:
    cells = {REQUEST.group("sda", op): cell([0], [value * MS]) for op, value in (("read", 1), ("write", 9))}
    found = of("io.total.mean > 1ms").values(snapshot(cells, 1), EMPTY)
    assert found == {"sda": 5 * MS}
    assert [one["total"].count for one in cells.values()] == [1, 1]


def test_counters_and_books() -> None:
    group = REQUEST.group("sda", "read")
    now = snapshot({}, 4, {group: {"bytes": 4096 * 5, "timeouts": 2}}, Book.read(30, 20, {STATE_FULL: 8}, {}, 4))
    before = snapshot({}, 0, {group: {"bytes": 4096}})
    found = of("io.bytes.rate > 1M")
    assert (found.limit, found.values(now, before), found.shown(4096.0)) == (1 << 20, {"sda": 4096}, "4 KiB/s")
    assert of("io.read.timeouts.rate > 0").values(now, before) == {"sda": 0.5}
    assert of("io.lost.rate > 0.5").values(now, before) == {"": 2}
    assert of("io.failed.rate > 0").values(now, before) == {"": 1}
    assert of("io.finished.rate > 0").values(now, before) == {"": 5}


def test_the_rate_of_an_idle_disk_is_0_and_other_values_are_not_there() -> None:
    group = REQUEST.group("sda", "read")
    before = snapshot({group: cell([5], [5])}, 1, {group: {"bytes": 4096}})
    # Cells that did not change are read again, or kept.
    for now in (snapshot(before.cells, 2, before.counters), before._replace(at_ns=2 * SECOND)):
        for what in ("bytes", "total"):
            assert of(f"io.read.{what}.rate < 1").values(now, before) == {"sda": 0.0}
        assert of("io.read.total.p99 < 1s").values(now, before) == {}


def test_other_units_and_places() -> None:
    sizes = snapshot({SIZES.group("sda", "read"): {"total": Tally({4096: 3})}}, 1)
    found = of("size.read.total.p50 >= 4K", SIZE)
    assert found.values(sizes, EMPTY) == {"sda": 4096}
    assert (found.limit, found.shown(4096)) == (4096, "4 KiB")
    (turn, _) = TURNS["cpu"]
    assert of("cpu.wait.p50 > 1ms", CPU).values(snapshot({turn.group(3): {"wait": distribution([5])}}, 1), EMPTY) == {
        "cpu3": 5
    }


def test_what_is_no_figure_of_a_window() -> None:
    found = of("io.stuck >= 90s for 5s", PATH)
    assert (found.sort, found.limit, found.for_s, found.shown(90e9)) == (STUCK, 90e9, 5.0, "1.50 min")
    found = of("size.total.p50 > 4K", PATH, SIZE)
    assert (found.sort, found.flow) == ("", 1)
    for text, for_s in (("io.verdict.grew", 10.0), ("io.verdict.grew for 1m", 60.0)):
        found = of(text, PATH)
        assert (found.sort, found.what, found.for_s, found.shown(1.0)) == (VERDICT, "grew", for_s, "")
    found = of("io.read.total.p99 > 4x for 1m", PATH)
    assert (found.times, found.limit, found.holds(39.0, 10.0), found.holds(41.0, 10.0)) == (True, 4.0, False, True)


def test_the_oldest_of_each_place_is_the_one_that_is_stuck() -> None:
    waiting = [InFlight(REQUEST.group(dev, "read"), age, "", {}) for dev, age in (("sda", 5), ("sda", 9), ("sdb", 3))]
    assert oldest(waiting) == {"sda": 9.0, "sdb": 3.0}
