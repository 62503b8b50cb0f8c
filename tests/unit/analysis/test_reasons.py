# SPDX-License-Identifier: Apache-2.0
"""The owner, device, stage, wait and moment to which the largest change leads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import pytest

from tests.unit.analysis.made_sides import SECOND, Load, compared, seeded, side
from tests.unit.outputs.samples import distribution
from wptrace.analysis.diff import Difference, Side
from wptrace.analysis.load import BUSY_MS, LOAD, STAMPED
from wptrace.analysis.measured import REST
from wptrace.analysis.reasons import Blame, _Level, blame, parts_of, since
from wptrace.analysis.split import SAME
from wptrace.analysis.waits import WAIT
from wptrace.flows.io.kinds import HIT, KINDS, REQUEST
from wptrace.model.distribution import Distribution
from wptrace.model.kind import TOTAL
from wptrace.outputs.text import changes

_QUICK = {"fs": (5_000.0, 0.1), "device": (100_000.0, 0.1), "throttle": (2_000.0, 0.1)}
_HELD = {**_QUICK, "throttle": (400_000.0, 0.1)}
_SLOW = {**_QUICK, "device": (150_000.0, 0.1)}


def blame_of(found: Difference, advice: Mapping[str, str] = MappingProxyType({})) -> Blame:
    blamed = blame(found, advice)
    assert blamed is not None
    return blamed


def levels(*means: float) -> list[_Level]:
    return [_Level((at + 1) * SECOND, 100, math.log(mean)) for at, mean in enumerate(means)]


@pytest.mark.parametrize(
    ("means", "second"),
    [
        ([100, 101, 99, 200, 201, 199, 200], 3),
        ([100, 101, 99, 100, 101, 200, 201], 5),
        # The value was high from the start, or rises slowly, or came back.
        ([200, 201, 199, 200, 201, 199, 200], None),
        ([100, 101, 99, 100, 101, 99, 100], None),
        ([100, 101, 200, 201, 100, 101, 99], None),
        ([100, 200, 200], None),
    ],
)
def test_when_a_level_began(means: list[float], second: int | None) -> None:
    assert since(levels(*means), 100, 200) == (None if second is None else second * SECOND)


def test_of_a_mean_that_was_nothing_there_is_no_level() -> None:
    assert since(levels(1, 1, 2, 2), 0, 2) is None


def test_owner_device_stage_and_who_is_new() -> None:
    rand = seeded(1)
    app, log = Load(100, _QUICK, owner="app"), Load(100, _QUICK, owner="log")
    held = app._replace(stages=_HELD)
    batch = Load(50, _QUICK, op="write", owner="batch")
    found = compared(side([app, log], rand), side([held, log, batch], rand))
    blamed = blame_of(found)
    assert (blamed.change.op, blamed.owner, blamed.device, blamed.part.stage) == ("read", "app", "sda", "throttle")
    assert blamed.new == ["batch"]
    assert blamed.began_ns is None
    first, second = changes.verdict(blamed, found, False)
    assert first == (
        "verdict: reads, mostly those of app, take 2.9x as long, 99% of it in throttle of sda: batch is new there"
    )
    assert second.startswith("look at: what holds requests back: io.max")


def with_waits(one: Side, reason: str, ns: int) -> Side:
    cells = {**one.report.cells, WAIT.group("sda", "read", "fs", reason): {TOTAL: distribution([ns])}}
    kinds = (*KINDS, WAIT)
    return one._replace(report=one.report._replace(cells=cells), start=one.start._replace(kinds=kinds))


def test_the_wait_that_a_stage_is_made_of() -> None:
    rand = seeded(2)
    a = side([Load(100, _QUICK)], rand)
    b = side([Load(100, {**_QUICK, "fs": (1_000_000.0, 0.1)})], rand)
    found = compared(with_waits(a, "lock of the file", 1_000), with_waits(b, "lock of the file", 900_000_000))
    blamed = blame_of(found, {"lock of the file": "who else writes to it"})
    assert (blamed.part.stage, blamed.wait, blamed.advice) == ("fs", "lock of the file", "who else writes to it")
    assert "in fs, where they wait for lock of the file" in next(changes.verdict(blamed, found, False))
    # A small part of it is no reason.
    found = compared(with_waits(a, "lock of the file", 1_000), with_waits(b, "lock of the file", 90_000_000))
    assert blame_of(found).wait == ""


def test_other_work_is_no_slower_device() -> None:
    rand = seeded(3)
    small, large = Load(90, _QUICK), Load(10, {"device": (900_000.0, 0.1)}, bytes=1 << 20)
    found = compared(side([small, large], rand), side([small._replace(rate=10), large._replace(rate=90)], rand))
    blamed = blame_of(found)
    assert (blamed.part.reason, blamed.part.stage, blamed.began_ns) == ("size", "", None)
    assert list(changes.verdict(blamed, found, False))[1] == (
        "look at: who sends different work than before; nothing shows that the same work became slower"
    )


def test_parts_that_are_told_add_up() -> None:
    rand = seeded(4)
    found = compared(side([Load(100, _QUICK)], rand), side([Load(100, _HELD)], rand))
    (change,) = found.changes
    parts = parts_of(change)
    assert sum(part.ns for part in parts) == change.split.b_ns - change.split.a_ns
    assert (parts[0].reason, parts[0].stage, parts[0].sure) == (SAME, "throttle", True)


def test_a_kind_without_stages_takes_longer_as_a_whole() -> None:
    rand = seeded(6)
    quick, slow = Load(100, {REST: (50_000.0, 0.1)}), Load(100, {REST: (120_000.0, 0.1)})
    found = compared(side([quick], rand, kind=HIT), side([slow], rand, kind=HIT))
    blamed = blame_of(found)
    assert (blamed.change.kind, blamed.part.reason, blamed.advice) == (HIT, SAME, "")
    (first,) = changes.verdict(blamed, found, False)
    assert first == "verdict: read page-cache hits take 2.4x as long, 100% of it because the same work takes longer"


def test_nothing_is_blamed_for_chance() -> None:
    rand = seeded(5)
    assert blame(compared(side([Load(100, _QUICK)], rand), side([Load(100, _QUICK)], rand)), {}) is None


def with_queue(one: Side, requests_at_a_time: float) -> Side:
    """Add the kernel's statistics of the device, with this many requests at a time."""
    total = Distribution()
    total.add(round(requests_at_a_time * one.report.duration_ns))
    cells = {**one.report.cells, REQUEST.group("sda", "read"): {TOTAL: total}}
    counters = {**one.report.counters, LOAD.group("sda"): {STAMPED: 1, BUSY_MS: 10}}
    return one._replace(report=one.report._replace(cells=cells, counters=counters))


@pytest.mark.parametrize("threads", [2, 8])
def test_a_slower_device_is_to_blame_however_deep_its_queue_is(threads: int) -> None:
    """The same load on a device that is 1.5 times as slow: its deeper queue is a consequence."""
    rand = seeded(7)
    a, b = side([Load(200, _QUICK)], rand), side([Load(200, _SLOW)], rand)
    found = compared(with_queue(a, 1.0), with_queue(b, threads))
    blamed = blame_of(found)
    assert (blamed.part.reason, blamed.part.stage, blamed.device) == (SAME, "device", "sda")
    assert blamed.part.ns > 0.95 * (blamed.change.split.b_ns - blamed.change.split.a_ns)
    verdict = list(changes.verdict(blamed, found, False))
    assert "in device of sda" in verdict[0]
    assert verdict[1] == (
        f"also: the queue of sda is deeper (1.00 -> {threads}.00 requests at a time): more are sent at once, or each"
        " takes longer"
    )
    assert changes.as_verdict(blamed, found)["queue_depth"] == {"a": 1.0, "b": threads}


def test_a_queue_that_is_as_deep_as_before_is_not_named() -> None:
    rand = seeded(7)
    a, b = side([Load(200, _QUICK)], rand), side([Load(200, _SLOW)], rand)
    for one, other in ((1.0, 1.2), (0.0, 3.0)):
        found = compared(with_queue(a, one), with_queue(b, other))
        blamed = blame_of(found)
        assert blamed.deeper is None
        assert changes.as_verdict(blamed, found)["queue_depth"] is None
    # The same holds if something else is slower, or the device faster.
    later = {**_QUICK, "fs": (90_000.0, 0.1)}
    for before, after in ((a, side([Load(200, later)], rand)), (b, a)):
        found = compared(with_queue(before, 1.0), with_queue(after, 3.0))
        assert blame_of(found).deeper is None
