# SPDX-License-Identifier: Apache-2.0
"""Places of requests that are freed when the kernel counts fewer requests in flight."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.flows.io.test_records import DELIVERED, HEAD, OP, QUEUED, Tables
from wptrace.flows.io import books as io_books
from wptrace.flows.io.books import GRACE_NS, StaleRequests
from wptrace.flows.io.state import give_up
from wptrace.kernel.blockdev import kernel_dev

SDA, SDB = kernel_dev(8, 0), kernel_dev(8, 16)
FLUSH = 2


class World:
    """Two tables, and the counts of two disks in sysfs."""

    def __init__(self, obj: Any, sys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tables = Tables(obj)
        self.sys = sys
        self.now = 10 * GRACE_NS
        monkeypatch.setattr(io_books, "time", SimpleNamespace(monotonic_ns=lambda: self.now))
        for number in ("8:0", "8:16"):
            (sys / "dev/block" / number / "queue").mkdir(parents=True)
            (sys / "dev/block" / number / "queue/iostats").write_text("1\n")
            self.counted(number, 0)
        self.stale = StaleRequests(self.tables, sys)  # type: ignore[arg-type]

    def counted(self, number: str, reads: int, writes: int = 0) -> None:
        (self.sys / "dev/block" / number / "inflight").write_text(f"{reads:8} {writes:8}\n")

    def put(self, place: int, dev: int = SDA, **values: Any) -> None:
        one = {"bio": 0xFFFF888000002000 + 256 * place, "begun": 3, "kind": HEAD, "done__dev": dev}
        self.tables.put("bios", place, **{**one, "done__times__queued": 4000, **values})

    def there(self) -> list[int]:
        stride = self.tables.stride("bio_state") // 8
        return [place for place, key in enumerate(self.tables.view("bios").cast("Q")[::stride].tolist()) if key]

    def sweep(self, after_ns: int = GRACE_NS) -> list[int]:
        self.stale.sweep()
        self.now += after_ns
        self.stale.sweep()
        return self.there()


@pytest.fixture
def world(obj: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(obj, tmp_path, monkeypatch)


def test_what_the_kernel_does_not_count_is_over_after_a_while(world: World) -> None:
    for place in (1, 2, 3):
        world.put(place)
    assert world.sweep(GRACE_NS - 1) == [1, 2, 3]
    world.now += 1
    world.counted("8:0", 1, 1)
    assert len(world.sweep(0)) == 2
    world.counted("8:0", 0)
    assert world.sweep(0) == []


def test_each_disk_for_itself(world: World) -> None:
    world.put(1)
    world.put(2, SDB)
    world.counted("8:16", 1)
    assert world.sweep() == [2]


def test_those_without_an_operation_go_first_and_then_the_oldest(world: World) -> None:
    world.tables.put("ops", 7, **OP)
    world.put(1, task=OP["task"], op=7)
    world.stale.sweep()
    world.now += 5
    world.put(2, task=OP["task"], op=7)
    world.stale.sweep()
    world.now += 5
    world.put(3, task=OP["task"] + 64, op=7)
    world.put(4, task=OP["task"], op=7, done__times__queued=10)  # of an earlier operation
    world.counted("8:0", 2)
    assert world.sweep() == [1, 2]
    world.counted("8:0", 1)
    assert world.sweep(0) == [2]


@pytest.mark.parametrize(
    "values",
    [
        {"kind": QUEUED},
        {"empty": True},
        {"op_kind": FLUSH},
        {"done__events__requeues": 1},
        {"done__dev": kernel_dev(9, 9)},
    ],
)
def test_of_what_the_kernel_does_not_count_nothing_is_said(world: World, values: dict[str, Any]) -> None:
    world.put(1, **values)
    assert world.sweep() == [1]


def test_without_statistics_nothing_is_said(world: World) -> None:
    (world.sys / "dev/block/8:0/queue/iostats").write_text("0\n")
    world.put(1)
    assert world.sweep() == [1]


def test_a_place_that_is_used_again_is_young(world: World) -> None:
    world.put(1)
    world.stale.sweep()
    world.now += GRACE_NS
    world.put(1, begun=4)
    world.stale.sweep()
    assert world.there() == [1]


def test_one_that_ends_while_the_kernel_is_asked_costs_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.put(1)
    world.put(2)
    world.stale.sweep()
    world.now += GRACE_NS
    asked = world.stale._with_driver

    def ends(dev: int) -> int | None:
        world.put(1, bio=0)
        world.counted("8:0", 1)
        return asked(dev)

    monkeypatch.setattr(world.stale, "_with_driver", ends)
    world.stale.sweep()
    assert world.there() == [2]


def test_what_began_and_is_in_no_place_is_counted(world: World) -> None:
    world.put(1)
    world.put(2, bio=DELIVERED)
    world.put(3, kind=QUEUED)
    world.put(4, empty=True)
    assert world.stale.held() == 2
    world.stale.note(12, 2, 10, False)
    assert world.stale.count == 0
    # One request may be missing for a moment, because it ends together with another.
    world.stale.note(13, 2, 10, False)
    assert world.stale.count == 0
    world.stale.note(13, 2, 11, False)
    assert world.stale.count == 0
    for _ in range(2):
        world.stale.note(16, 2, 11, False)
    assert world.stale.count == 3
    world.stale.note(17, 2, 11, True)
    assert world.stale.count == 4


def test_what_completed_waits_for_its_operation(world: World) -> None:
    world.tables.put("ops", 7, **OP, only=3)
    world.put(2, bio=DELIVERED, task=OP["task"], op=7)
    assert world.sweep() == [2]


@pytest.mark.parametrize("left", [{**OP, "task": 0, "only": 3}, {**OP, "only": 0}, {**OP, "only": 5}])
def test_what_was_left_to_an_operation_that_is_over_is_no_longer_in_flight(world: World, left: dict[str, int]) -> None:
    """It must not wait for a later operation, and the request of another operation must stay."""
    world.tables.put("ops", 7, **left)
    world.tables.put("ops", 8, **OP, only=5)
    world.put(2, bio=DELIVERED, task=OP["task"], op=7)
    world.put(4, bio=DELIVERED, task=OP["task"], op=8)
    assert world.sweep(GRACE_NS - 1) == [2, 4]
    world.now += 1
    assert world.sweep(0) == [4]
    layout = world.tables.struct("op_state")
    only = [
        layout.struct.unpack_from(world.tables.view("ops"), place * layout.size)[layout.fields.index("only")]
        for place in (7, 8)
    ]
    assert only == [left["only"] if left["only"] == 5 else 0, 5]


def test_an_operation_that_is_given_up_leaves_no_request_behind(world: World) -> None:
    world.tables.put("ops", 7, **OP, only=3)
    world.put(2, bio=DELIVERED)
    world.put(5)
    assert give_up(world.tables, 7)  # type: ignore[arg-type]
    assert world.there() == [5]
    world.tables.put("ops", 7, **OP, only=6)
    assert not give_up(world.tables, 7)  # type: ignore[arg-type]
    world.tables.put("ops", 7, **OP)
    assert not give_up(world.tables, 7)  # type: ignore[arg-type]
    assert world.there() == [5]
