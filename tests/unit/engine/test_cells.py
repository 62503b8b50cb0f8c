# SPDX-License-Identifier: Apache-2.0
"""Cells are added up over CPUs and reads, whatever the keys of their map are."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, cast

import pytest

from tests.unit.memory import traced
from tests.unit.outputs.samples import group
from wptrace.bpf.maps import Map
from wptrace.engine import cells as cells_module
from wptrace.engine.cells import Cells
from wptrace.errors import WptraceError
from wptrace.kernel import cpus
from wptrace.model.distribution import SLOTS, index
from wptrace.model.kind import Group

_HIST = ("sum", "low", "max", "squares", "squares_high")
_ALL_BITS = (1 << 64) - 1
FIELDS = ("finished", *(f"stages[0].{name}" for name in _HIST), *(f"stages[0].slots[{slot}]" for slot in range(SLOTS)))


class Head:
    struct = struct.Struct("<Q")
    size = struct.size


class Layout:
    struct = struct.Struct(f"<6Q{SLOTS}I")
    size = struct.size

    @staticmethod
    def before(name: str) -> type[Head]:
        assert name == "stages"
        return Head

    @staticmethod
    def spans() -> Iterator[tuple[str, int]]:
        return iter([*((name, 0) for name in FIELDS[:-SLOTS]), ("stages[0].slots", SLOTS)])


class FakeMap:
    """A map with elements on two CPUs."""

    value_codec = Layout()

    def __init__(self, squares: bool = True) -> None:
        self.elements: dict[Any, list[list[int]]] = {}
        self.squares = squares

    def raw(self, key: Any) -> memoryview | None:
        found = self.elements.get(key)
        return None if found is None else memoryview(b"".join(Layout.struct.pack(*cell) for cell in found))

    def firsts(self, wanted: int) -> list[int] | None:
        return [sum(cell[0] for cell in self.elements[key]) for key in range(max(self.elements) + 1)]

    def clear(self, key: Any) -> None:
        self.elements[key] = [[0] * len(FIELDS) for _ in range(2)]

    def count(self, key: Any, cpu: int, value: int) -> None:
        cells = self.elements.setdefault(key, [[0] * len(FIELDS) for _ in range(2)])
        cell = cells[cpu]
        cell[2] = max(cell[2], value ^ _ALL_BITS)
        cell[3] = max(cell[3], value)
        if self.squares:
            cell[5], cell[4] = divmod((cell[5] << 64) + cell[4] + value * value, 1 << 64)
        for place, amount in ((0, 1), (1, value), (6 + index(value), 1)):
            cell[place] += amount


A, B, LATE = map(group, ("a", "b", "late"))


def cells(made: FakeMap, *groups: Group, **more: Any) -> Cells:
    return Cells(cast("Map", made), list(groups), ["all"], **more)


@pytest.fixture
def made() -> FakeMap:
    return FakeMap()


def test_elements_are_numbered_as_their_groups(made: FakeMap) -> None:
    found = cells(made, A, B)
    made.count(0, 0, 5)
    made.count(0, 1, 7)
    made.count(1, 0, 100)
    found.read()
    made.count(0, 1, 9)
    found.read()
    all_of_a = found.distributions[A]["all"]
    assert (all_of_a.count, all_of_a.sum, all_of_a.min, all_of_a.max) == (3, 21, 5, 9)
    assert found.distributions[B]["all"].sum == 100
    assert found.counters == {A: {"finished": 3}, B: {"finished": 1}}
    assert found.total("finished") == 4


def test_elements_with_other_keys_are_followed(made: FakeMap) -> None:
    """They may appear at any time, and each has its own number and sums."""
    found = cells(made)
    made.count("a", 0, 5)
    found.read()
    assert found.distributions == {}
    found.follow("a", A)
    found.read()
    made.count("a", 0, 6)
    made.count("late", 1, 1000)
    found.follow("late", LATE)
    found.read()
    found.read()
    assert {group: stages["all"].sum for group, stages in found.distributions.items()} == {A: 11, LATE: 1000}
    found = cells(made, A, B)
    assert [found.follow(key, LATE) for key in ("a", "late")] == [2, 3]
    made.count(0, 0, 1)
    found.read()
    assert {group: stages["all"].sum for group, stages in found.distributions.items()} == {A: 1, LATE: 1011}


def test_squares_take_more_than_64_bits(made: FakeMap) -> None:
    """That of 5 s does."""
    found = cells(made, A)
    for times in (1, 2, 3):
        made.count(0, times % 2, 5_000_000_000)
        found.read()
        assert found.distributions[A]["all"].sumsq == times * 5_000_000_000**2


def test_a_map_of_another_version_is_refused() -> None:
    with pytest.raises(WptraceError, match="of different versions"):
        Cells(cast("Map", FakeMap()), [A], ["all", "more"])


def test_an_element_of_another_group_begins_with_nothing(made: FakeMap) -> None:
    """A new device gets the place of one that is gone, which keeps its counts."""
    found = cells(made, A)
    made.count(0, 0, 5)
    found.read()
    made.count(0, 1, 1000)
    found.regroup(0, LATE)
    assert made.raw(0) is not None
    made.count(0, 0, 70)
    found.read()
    all_of = {group: stages["all"] for group, stages in found.distributions.items()}
    assert {group: (one.count, one.min, one.max) for group, one in all_of.items()} == {
        A: (2, 5, 1000),
        LATE: (1, 70, 70),
    }
    found.regroup(0, LATE)
    found.read()
    assert found.total("finished") == 3
    assert found.shrunk == 0


def test_two_elements_of_one_group_are_added_up(made: FakeMap) -> None:
    found = cells(made)
    for key in ("one", "two"):
        found.follow(key, A)
        made.count(key, 0, 50)
    found.read()
    made.count("two", 0, 1)
    found.read()
    assert found.distributions[A]["all"].sum == 101


@pytest.mark.parametrize("ordered", [True, False])
def test_what_a_sparse_stage_is_short_of_took_no_time(
    made: FakeMap, monkeypatch: pytest.MonkeyPatch, ordered: bool
) -> None:
    monkeypatch.setattr(cells_module, "_ORDERED", ordered)
    monkeypatch.setattr(cpus, "barrier", lambda: None)
    found = cells(made, A, sparse=True)
    for value in (5, 9):
        made.count(0, 1, value)
    found.read()
    assert found.distributions[A]["all"].min == 5
    made.elements[0][0][0] += 3
    for _ in range(2):  # reading again adds nothing
        found.read()
        all_of_a = found.distributions[A]["all"]
        assert (all_of_a.count, all_of_a.buckets[0], all_of_a.sum, all_of_a.min) == (5, 3, 14, 0)
    made.count(0, 0, 2)
    found.read()
    assert (found.distributions[A]["all"].count, found.distributions[A]["all"].buckets[0]) == (6, 3)
    # A stage is updated before `finished`.
    made.elements[0][0][0] -= 1
    found = cells(made, A, sparse=True)
    found.read()
    assert (found.distributions[A]["all"].count, found.distributions[A]["all"].buckets[0]) == (5, 2)
    # In another element of the group as well.
    made.elements["more"] = [[2, *[0] * (len(FIELDS) - 1)], [1, *[0] * (len(FIELDS) - 1)]]
    found.follow("more", A)
    found.read()
    assert (found.distributions[A]["all"].count, found.distributions[A]["all"].buckets[0]) == (8, 5)


def test_what_took_no_time_and_ended_between_both_reads_is_seen_with_the_next(
    made: FakeMap, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Cells(cast("Map", made), [A], ["all"], sparse=True, firsts=made.firsts)
    monkeypatch.setattr(cells_module, "_ORDERED", False)
    made.count(0, 0, 5)

    def seen(ends: int) -> int:
        monkeypatch.setattr(cpus, "barrier", lambda: made.elements[0][0].__setitem__(0, made.elements[0][0][0] + ends))
        found.read()
        return found.shared()[A]["all"].count

    assert [seen(0), seen(1)] == [1, 1]
    last = found.shared()[A]["all"]
    assert [seen(0), seen(0)] == [2, 2]
    # Earlier results do not change.
    assert last.count == 1


def test_without_squares_the_deviation_is_estimated() -> None:
    values = [*range(1000, 3000, 7), 0, 50_000]
    found = {}
    for squares in (True, False):
        made = FakeMap(squares)
        read = cells(made, A)
        for place, value in enumerate(values):
            made.count(0, place % 2, value)
            if place == 100:
                read.read()
        read.read()
        found[squares] = read.distributions[A]["all"]
    assert found[True].sumsq == sum(value * value for value in values)
    assert found[False].stddev == pytest.approx(found[True].stddev, rel=0.02)


def test_zeros_alone() -> None:
    made = FakeMap(squares=False)
    found = cells(made, A)
    made.count(0, 0, 0)
    found.read()
    zeros = found.distributions[A]["all"]
    assert (zeros.count, zeros.min, zeros.max, zeros.stddev) == (1, 0, 0, 0)


def test_a_figure_that_shrank_adds_nothing_and_is_counted(made: FakeMap) -> None:
    """Two programs that count in the same cell may leave less than before."""
    found = cells(made, A)
    for _ in range(5):
        made.count(0, 0, 6)
    found.read()
    cell = made.elements[0][0]
    cell[0], cell[1], cell[6 + 6] = 3, 18, 3
    found.read()
    all_of_a = found.distributions[A]["all"]
    assert (all_of_a.count, all_of_a.sum, found.counters[A]["finished"]) == (5, 30, 5)
    assert found.shrunk == 3  # finished, the bucket and the sum
    made.count(0, 0, 6)
    made.count(0, 0, 7)
    found.read()
    assert (all_of_a.count, all_of_a.sum, all_of_a.buckets[6], found.total("finished")) == (7, 43, 6, 7)


def test_buckets_wrap(made: FakeMap) -> None:
    found = cells(made, A)
    made.count(0, 0, 6)
    made.elements[0][0][6 + 6] = (1 << 31) - 1
    found.read()
    made.elements[0][0][6 + 6] = (1 << 32) - 2
    found.read()
    made.elements[0][0][6 + 6] = 3
    found.read()
    assert found.distributions[A]["all"].buckets[6] == (1 << 32) + 3
    assert found.shrunk == 0


class WeakMap(FakeMap):
    """A CPU whose `finished` becomes visible before the stages that it wrote earlier, until there is a barrier."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden: list[tuple[int, int]] = []

    def ahead(self, value: int) -> None:
        self.hidden.append((1, value))
        self.elements.setdefault(0, [[0] * len(FIELDS) for _ in range(2)])[0][0] += 1

    def barrier(self) -> None:
        for count, value in self.hidden:
            self.count(0, 0, value)
            self.elements[0][0][0] -= count
        self.hidden.clear()


@pytest.mark.parametrize("ordered", [True, False])
def test_a_cpu_that_writes_in_another_order_gives_no_phantom_zeros(
    monkeypatch: pytest.MonkeyPatch, ordered: bool
) -> None:
    made = WeakMap()
    found = cells(made, A, sparse=True)
    monkeypatch.setattr(cells_module, "_ORDERED", ordered)
    monkeypatch.setattr(cpus, "barrier", made.barrier)
    made.ahead(5)
    found.read()
    made.barrier()
    found.read()
    all_of_a = found.distributions[A]["all"]
    # Where a barrier is needed and there is none, a stage that is not visible yet counts as no time.
    assert (all_of_a.count, all_of_a.buckets[0]) == ((2, 1) if ordered else (1, 0))
    # Another operation may end between both reads.
    monkeypatch.setattr(cpus, "barrier", lambda: made.ahead(7))
    found.read()
    made.barrier()
    monkeypatch.setattr(cpus, "barrier", made.barrier)
    found.read()
    if not ordered:
        assert (all_of_a.count, all_of_a.buckets[0], all_of_a.sum) == (2, 0, 12)


def test_what_leaves_is_added_to_others(made: FakeMap) -> None:
    found = cells(made, A, B, sparse=True)
    made.count(0, 0, 5)
    made.count(1, 0, 70)
    found.read()
    assert found.changed == {0, 1}
    first = found.shared()
    made.count(0, 1, 9)
    assert found.leave(0) == A
    found.fold(A, B)
    found.read()
    assert found.changed == set()
    second = found.shared()
    assert set(second) == {B}
    one = second[B]["all"]
    assert (one.count, one.sum, one.min, one.max) == (3, 84, 5, 70)
    assert found.counters == {B: {"finished": 3}}
    # Earlier results do not change.
    assert (first[A]["all"].sum, first[B]["all"].sum) == (5, 70)
    # The next owner gets its element.
    made.count(0, 1, 1000)
    found.follow(0, LATE)
    found.read()
    assert found.shared()[LATE]["all"].sum == 1000
    assert found.shared()[B] is second[B]


def test_the_last_of_what_took_no_time_is_added_to_others(made: FakeMap) -> None:
    """Zeros are what a stage lacks, no matter in whose row they end up."""
    found = cells(made, A, B, sparse=True)
    made.count(1, 0, 7)
    made.elements[0] = [[2, *[0] * (len(FIELDS) - 1)], [0] * len(FIELDS)]
    found.leave(0)
    found.fold(A, B)
    found.read()
    assert (found.shared()[B]["all"].count, found.shared()[B]["all"].min) == (3, 0)


def test_what_is_idle_takes_little_memory_and_changes_like_all_else(made: FakeMap) -> None:
    found = cells(made, A, B, sparse=True, firsts=made.firsts)

    def sums() -> dict[Group, tuple[int, int]]:
        found.read()
        return {group: (stages["all"].count, stages["all"].sum) for group, stages in found.shared().items()}

    for value in (5, 5, 70):
        made.count(0, 0, value)
        made.count(1, 1, value)
    for _ in range(4):
        assert sums() == {A: (3, 80), B: (3, 80)}
    before = found.shared()
    idle = before[A]["all"]
    made.count(0, 0, 1000)
    made.count(0, 1, 7)
    assert sums() == {A: (5, 1087), B: (3, 80)}
    assert found.changed == {0}
    assert (idle.count, idle.sum, idle.buckets[5], sum(idle.buckets)) == (3, 80, 2, 3)
    assert found.shared()[B] is before[B]
    # The same for the row of the others when an owner leaves.
    for _ in range(3):
        sums()
    last = found.shared()[B]["all"]
    found.leave(0)
    found.fold(A, B)
    assert sums() == {B: (8, 1167)}
    assert (last.count, last.sum) == (3, 80)


def test_what_is_idle_is_not_read(made: FakeMap, monkeypatch: pytest.MonkeyPatch) -> None:
    found = cells(made, A, B, firsts=made.firsts)
    asked: list[Any] = []

    def raw(key: Any) -> memoryview | None:
        asked.append(key)
        return FakeMap.raw(made, key)

    monkeypatch.setattr(made, "raw", raw)

    def reads() -> list[Any]:
        asked.clear()
        found.read()
        return list(asked)

    made.count(0, 0, 5)
    made.count(1, 1, 5)
    # A CPU without barriers: the first field was seen before the time that was counted ahead of it.
    made.elements[1][1][6 + index(5)] = 0
    assert reads() == [0, 1]
    assert found.distributions[B]["all"].buckets[5] == 0
    made.elements[1][1][6 + index(5)] = 1
    assert reads() == [0, 1]
    assert found.distributions[B]["all"].buckets[5] == 1
    assert reads() == []
    made.count(1, 0, 7)
    assert (reads(), reads(), reads()) == ([1], [1], [])
    # What comes later under the same key is another element.
    found.leave(1)
    made.count(1, 0, 9)
    found.follow(1, LATE)
    assert reads() == [1]
    assert {group: stages["all"].count for group, stages in found.shared().items()} == {A: 1, B: 2, LATE: 1}


def test_an_idle_group_takes_two_kilobytes(made: FakeMap) -> None:
    many = 200
    groups = [group(f"sd{number}") for number in range(many)]
    for number in range(many):
        for value in range(10):
            made.count(number, 0, 1000 + 300 * value)
    with traced() as memory:
        found = cells(made, *groups, sparse=True, firsts=made.firsts)
        for _ in range(3):
            found.read()
            found.shared()
        assert memory.now < 2500 * many
