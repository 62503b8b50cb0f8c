# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.outputs.samples import distribution as of
from wptrace.model.distribution import BEYOND, SLOTS, Distribution, bounds, index, rank_of

examples = settings(max_examples=60, deadline=None)

# Uniform in powers of two: otherwise nearly all values would be huge.
values = st.integers(0, 42).flatmap(lambda bits: st.integers(0, (1 << bits) - 1))
samples = st.lists(values, max_size=60)
percents = st.one_of(st.sampled_from([0, 0.1, 1, 25, 50, 90, 95, 99, 99.9, 99.99, 100]), st.floats(0, 100))


def state(distribution: Distribution) -> tuple[object, ...]:
    return tuple(getattr(distribution, name) for name in Distribution.__slots__)


def nearest_rank(numbers: list[int], percent: float) -> int:
    return sorted(numbers)[rank_of(percent, len(numbers)) - 1]


def test_bucket_scheme_as_the_kernel_side_has_it() -> None:
    for value in range(1 << 14):
        if value < 8:
            expected = value
        else:
            exponent = int(math.log2(value))
            expected = (exponent - 2) * 8 + ((value >> (exponent - 3)) & 7)
        assert index(value) == expected
    assert index((1 << 42) - 1) == SLOTS - 1
    assert index((1 << 42) - (1 << 38)) == SLOTS - 1
    assert index((1 << 42) - (1 << 38) - 1) == SLOTS - 2
    assert index(1 << 42) == index((1 << 64) - 1) == SLOTS - 1


def test_every_slot_round_trips_and_they_join_up() -> None:
    for slot in range(SLOTS):
        low, high = bounds(slot)
        assert index(low) == index(high - 1) == slot
        if slot + 1 < SLOTS:
            assert bounds(slot + 1)[0] == high
            assert high - low == 1 or (high - low) * 8 <= low
    assert bounds(0) == (0, 1)
    assert bounds(SLOTS - 1)[1] == BEYOND == 1 << 64


@examples
@given(st.integers(0, (1 << 64) - 1))
def test_any_value_lies_in_its_bucket(value: int) -> None:
    low, high = bounds(index(value))
    assert low <= value < high
    assert of([value]).buckets[index(value)] == 1


@examples
@given(samples)
def test_the_exact_parts(numbers: list[int]) -> None:
    distribution = of(numbers)
    assert distribution.count == len(numbers) == sum(distribution.buckets)
    assert distribution.sum == sum(numbers)
    assert distribution.sumsq == sum(number * number for number in numbers)
    assert distribution.min == min(numbers, default=0)
    assert distribution.max == max(numbers, default=0)
    assert distribution.exact
    if numbers:
        assert distribution.mean == pytest.approx(statistics.fmean(numbers))
        assert distribution.stddev == pytest.approx(statistics.pstdev(numbers), rel=1e-9, abs=1e-6)


def test_empty() -> None:
    empty = Distribution()
    assert (empty.mean, empty.stddev, empty.percentile(50), empty.min, empty.max) == (0, 0, 0, 0, 0)
    assert list(empty.filled()) == []


def test_no_negative_value() -> None:
    distribution = Distribution()
    with pytest.raises(ValueError, match="-1"):
        distribution.add(-1)
    assert state(distribution) == state(Distribution())


@examples
@given(samples, percents)
def test_percentile_is_within_a_sixteenth(numbers: list[int], percent: float) -> None:
    if not numbers:
        return
    exact = nearest_rank(numbers, percent)
    distribution = of(numbers)
    assert abs(distribution.percentile(percent) - exact) <= exact / 16
    assert min(numbers) <= distribution.percentile(percent) <= max(numbers)
    assert distribution.percentile(0) == min(numbers)
    assert distribution.percentile(100) == max(numbers)


@examples
@given(samples, percents, percents)
def test_percentiles_do_not_fall(numbers: list[int], one: float, other: float) -> None:
    low, high = sorted((one, other))
    distribution = of(numbers)
    assert distribution.percentile(low) <= distribution.percentile(high)


def test_nearest_rank() -> None:
    assert [rank_of(percent, 4) for percent in (0, 25, 25.1, 50, 75, 99.9, 100)] == [1, 1, 2, 2, 3, 4, 4]
    # 99.9 as a float is a little more than 99.9.
    assert rank_of(99.9, 1000) == 999
    assert rank_of(99.99, 10_000) == 9999


def test_the_last_bucket_stays_inside_the_extremes() -> None:
    distribution = of([1 << 42, (1 << 42) + 2, 1 << 43])
    assert distribution.percentile(50) == ((1 << 42) + (1 << 43)) // 2


@pytest.mark.parametrize("percent", [-0.1, 100.1, math.nan])
def test_a_percentile_outside_its_range(percent: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 100"):
        of([1]).percentile(percent)


@examples
@given(samples, samples, samples)
def test_merging_is_adding_in_any_order(first: list[int], second: list[int], third: list[int]) -> None:
    left = of(first)
    left.merge(of(second))
    left.merge(of(third))
    right = of(third)
    tail = of(second)
    tail.merge(of(first))
    right.merge(tail)
    assert state(left) == state(right) == state(of(first + second + third))


@examples
@given(samples)
def test_a_copy_is_equal_and_apart(numbers: list[int]) -> None:
    original = of(numbers)
    twin = original.copy()
    assert state(twin) == state(original)
    twin.add(5)
    assert state(original) == state(of(numbers))


@examples
@given(samples)
def test_what_was_packed_is_as_it_was(numbers: list[int]) -> None:
    packed = of(numbers)
    for _ in range(2):
        packed.pack()
    packed.merge(of([5]))
    assert packed.buckets == of([*numbers, 5]).buckets
    assert state(packed) == state(of([*numbers, 5]))


def test_zeros_that_were_left_out() -> None:
    made = of([7, 9])
    made.add_zeros(3)
    assert state(made) == state(of([0, 0, 0, 7, 9]))
    made.add_zeros(-1)
    assert made.count == 5


def test_a_scaled_one_has_the_same_spread() -> None:
    """Of what does not divide evenly, the largest remainders are rounded up."""
    made = of([1, 1, 1, 5, 7, 7])
    for count, buckets in ((12, [6, 2, 4]), (4, [2, 1, 1]), (2, [1, 0, 1]), (1, [1, 0, 0])):
        found = made.scaled(count)
        assert [found.buckets[slot] for slot in (1, 5, 7)] == buckets
        assert (found.count, found.sum, found.sumsq) == (count, 22 * count // 6, 126 * count // 6)
        assert (found.min, found.max, found.exact) == (1, 7, True)
    assert state(made.scaled(0)) == state(of([]).scaled(5)) == state(Distribution())


def test_cells_that_saw_nothing_are_ignored() -> None:
    cell = of([700, 900])
    whole = Distribution()
    for _ in range(2):
        whole.add_counts([0] * SLOTS, 0, 0, 0, 0, 0)
        whole.add_counts(cell.buckets, cell.count, cell.sum, cell.min, cell.max, cell.sumsq)
    assert state(whole) == state(of([700, 900, 700, 900]))
    whole.buckets[0] += 1
    assert cell.buckets[0] == 0


@given(samples, samples, st.booleans())
def test_counts_of_few_buckets_are_added_like_all_others(first: list[int], then: list[int], squares: bool) -> None:
    cell = of(then)
    filled = {slot: count for slot, count in enumerate(cell.buckets) if count}
    sumsq = cell.sumsq if squares else None
    dense, sparse = of(first), of(first)
    dense.add_counts(cell.buckets, cell.count, cell.sum, cell.min, cell.max, sumsq)
    sparse.add_slots(filled, cell.sum, cell.min, cell.max, sumsq)
    assert state(sparse) == state(dense)


def test_a_cell_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="320"):
        Distribution().add_counts([1], 1, 1, 1, 1, 1)


@examples
@given(samples, samples, percents)
def test_delta(before: list[int], since: list[int], percent: float) -> None:
    earlier = of(before)
    later = earlier.copy()
    later.merge(of(since))
    recent = later.delta(earlier)
    truth = of(since)
    assert (recent.buckets, recent.count, recent.sum, recent.sumsq) == (
        truth.buckets,
        truth.count,
        truth.sum,
        truth.sumsq,
    )
    if not since:
        assert state(recent) == state(Distribution())
        return
    assert min(since) * 8 / 9 <= recent.min <= min(since)
    assert max(since) <= recent.max <= max(since) * 9 / 8
    if recent.exact:
        assert (recent.min, recent.max) == (min(since), max(since))
    exact = nearest_rank(since, percent)
    assert abs(recent.percentile(percent) - exact) <= exact / 16


def test_when_the_extremes_of_an_interval_are_known() -> None:
    earlier = of([100, 200])

    def recent(*numbers: int) -> Distribution:
        later = earlier.copy()
        later.merge(of(numbers))
        return later.delta(earlier)

    assert recent(50, 300).exact
    assert not recent(50).exact
    assert not recent(300).exact
    assert (recent(50).min, recent(50).max) == (50, 51)
    assert (recent(300).min, recent(300).max) == (288, 300)
    assert (recent(101, 198).min, recent(101, 198).max) == (100, 200)
    assert [recent(111, 150, 120).percentile(percent) for percent in (0, 100)] == [107, 151]
    assert of([5, 9]).delta(Distribution()).exact
    assert of([0, 0]).delta(Distribution()).exact
    merged = of([5])
    merged.merge(recent(150))
    assert not merged.exact
    assert not merged.delta(Distribution()).exact
    merged = of([5])
    merged.merge(Distribution())
    assert merged.exact


def test_a_bucket_that_shrank_adds_nothing_and_is_counted() -> None:
    """A wrong figure of the kernel must not end a trace."""
    recent = of([1, 2]).delta(of([3]))
    assert (recent.count, recent.buckets[1], recent.buckets[2], recent.buckets[3], recent.shrunk) == (2, 1, 1, 0, 1)
    recent = of([1]).delta(of([1, 1]))
    assert (recent.count, recent.sum, recent.sumsq, recent.shrunk) == (0, 0, 0, 1)
    recent = of([1, 1, 9]).delta(of([1, 1, 1]))
    assert (recent.count, recent.sum, recent.shrunk) == (1, 8, 1)
    assert recent.stddev >= 0
    assert recent.percentile(50) == 9
    assert of([1, 1]).delta(of([1])).shrunk == 0


@pytest.mark.parametrize(
    "values", [[1_000_000, 1_100_000], [7, 900], [0, 0], [5, 5], [1_000_000, 1_010_000], [123_456_789], [1 << 40, 3]]
)
def test_the_deviation_of_two_values_is_that_of_the_extremes(values: list[int]) -> None:
    """Both values could be in the same bucket, whose middle says nothing."""
    made = of(values)
    estimated = Distribution()
    estimated.add_counts(made.buckets, made.count, made.sum, made.min, made.max, None)
    assert estimated.stddev == pytest.approx(statistics.pstdev(values), rel=1e-6, abs=1)


def test_the_deviation_is_no_larger_than_what_lies_between_the_extremes() -> None:
    """All are in the lowest hundredth of their bucket."""
    made = of([1_000_000 + 60 * (number % 10) for number in range(100)])
    estimated = Distribution()
    estimated.add_counts(made.buckets, made.count, made.sum, made.min, made.max, None)
    assert estimated.stddev <= 540 / 2


def test_extremes_that_came_before_are_no_values_of_now() -> None:
    now = of([1_000_000, 1_000_000, 1_000_000])
    estimated = Distribution()
    estimated.add_counts(now.buckets, 3, now.sum, 8, 1 << 40, None, among=(False, False))
    assert estimated.stddev == 0
    torn = Distribution()
    torn.add_counts(now.buckets, 3, now.sum, 8, 1 << 40, None)
    assert torn.stddev == 0


@given(st.lists(st.integers(0, 1 << 41), min_size=1, max_size=30))
def test_the_estimated_deviation_is_near(values: list[int]) -> None:
    made = of(values)
    estimated = Distribution()
    estimated.add_counts(made.buckets, made.count, made.sum, made.min, made.max, None)
    assert estimated.stddev == pytest.approx(statistics.pstdev(values), rel=1e-3, abs=max(values) * 0.0625 + 1)


def test_a_torn_cell_gives_no_negative_variance() -> None:
    distribution = Distribution()
    buckets = [0] * SLOTS
    buckets[index(10)] = 1
    distribution.add_counts(buckets, 2, 20, 10, 10, 100)
    assert distribution.stddev == 0
    assert distribution.percentile(100) == distribution.percentile(99) == 10
