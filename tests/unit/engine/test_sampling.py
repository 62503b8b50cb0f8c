# SPDX-License-Identifier: Apache-2.0
"""Distributions of all objects from those of a sample."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.outputs.samples import distribution, group
from wptrace.engine.sampling import Sampling
from wptrace.model.distribution import Distribution

SDA, SDB = group("sda"), group("sdb", "write")


def of(*values: int) -> Distribution:
    return distribution(values)


class Cell:
    """A cell that counts as the kernel does."""

    def __init__(self) -> None:
        self.timed = Distribution()
        self.untimed = 0

    def count(self, values: list[int], untimed: int = 0) -> None:
        for value in values:
            self.timed.add(value)
        self.untimed += untimed


def whole_of(sampling: Sampling, cell: Cell) -> Distribution:
    whole = sampling.whole({SDA: {"total": cell.timed.copy()}}, {SDA: cell.untimed})
    return whole[SDA]["total"]


# --- Scaling one distribution -----------------------------------------------------------------------------------------


values = st.lists(st.integers(0, 1 << 45), max_size=60)


@given(values, st.integers(0, 10_000))
def test_a_scaled_distribution_has_the_count_and_the_shape(found: list[int], count: int) -> None:
    one = of(*found)
    made = one.scaled(count)
    if not found or not count:
        assert made.count == made.sum == 0
        return
    assert made.count == sum(made.buckets) == count
    assert made.sum == one.sum * count // len(found)
    assert (made.min, made.max) == (one.min, one.max)
    for had, has in zip(one.buckets, made.buckets):
        # The exact share, rounded up or down.
        assert abs(has * len(found) - had * count) < len(found)


@given(values.filter(bool), st.integers(1, 50))
def test_whole_numbers_scale_exactly(found: list[int], factor: int) -> None:
    one = of(*found)
    made = one.scaled(factor * len(found))
    assert made.buckets == [count * factor for count in one.buckets]
    assert made.sum == one.sum * factor
    assert made.sumsq == one.sumsq * factor
    assert made.mean == one.mean
    assert made.percentile(50) == one.percentile(50) or one.percentile(50) in (one.min, one.max)


# --- Several reads ----------------------------------------------------------------------------------------------------


def test_what_was_never_sampled_is_handed_through() -> None:
    stages = {"total": of(1, 2, 3)}
    assert Sampling().whole({SDA: stages}, {})[SDA] is stages
    assert Sampling().whole({SDA: stages}, {SDA: 0})[SDA] is stages


def test_phases_have_the_weights_that_they_had() -> None:
    """All of the fast objects were timed, and one in ten of the slow ones."""
    sampling, cell = Sampling(), Cell()
    cell.count([100] * 50)
    assert whole_of(sampling, cell).count == 50
    cell.count([9000] * 5, 45)
    whole = whole_of(sampling, cell)
    assert whole.count == 100
    assert whole.sum == 50 * 100 + 50 * 9000
    assert whole.percentile(50) < 110
    assert whole.percentile(51) > 8000
    # Now all are timed again.
    cell.count([100] * 100)
    whole = whole_of(sampling, cell)
    assert (whole.count, whole.sum) == (200, 150 * 100 + 50 * 9000)
    assert (whole.min, whole.max) == (100, 9000)


def test_where_none_was_timed_those_of_before_stand_for_them() -> None:
    sampling, cell = Sampling(), Cell()
    cell.count([], 7)
    assert whole_of(sampling, cell).count == 0
    cell.count([1000], 2)
    assert (whole_of(sampling, cell).count, whole_of(sampling, cell).sum) == (10, 10_000)
    cell.count([], 5)
    assert (whole_of(sampling, cell).count, whole_of(sampling, cell).sum) == (15, 15_000)


phases = st.lists(st.tuples(st.lists(st.integers(0, 1 << 40), max_size=8), st.integers(0, 300)), max_size=12)


@given(phases)
def test_the_count_is_exact_after_every_look(found: list[tuple[list[int], int]]) -> None:
    sampling, cell = Sampling(), Cell()
    before = Distribution()
    for timed, untimed in found:
        cell.count(timed, untimed)
        whole = whole_of(sampling, cell)
        assert whole.count == (cell.timed.count + cell.untimed if cell.timed.count else 0)
        assert sum(whole.buckets) == whole.count
        assert (whole.min, whole.max) == (cell.timed.min, cell.timed.max)
        # Counts only grow, so differences are never negative.
        assert whole.delta(before).count >= 0
        before = whole.copy()


def test_groups_and_stages_are_apart() -> None:
    sampling = Sampling()
    cells = {SDA: {"queue": of(1), "total": of(5)}, SDB: {"queue": of(2, 2), "total": of(9, 9)}}
    whole = sampling.whole(cells, {SDA: 3})
    assert [found.count for found in whole[SDA].values()] == [4, 4]
    assert [found.sum for found in whole[SDA].values()] == [4, 20]
    assert whole[SDB] is cells[SDB]


def test_what_was_handed_in_is_not_changed() -> None:
    sampling, total = Sampling(), of(5)
    sampling.whole({SDA: {"total": total}}, {SDA: 1})
    whole = sampling.whole({SDA: {"total": total}}, {SDA: 9})
    assert whole[SDA]["total"].count == 10
    assert (total.count, total.sum) == (1, 5)
