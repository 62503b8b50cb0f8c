# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.outputs.samples import distribution
from wptrace.model.distribution import Distribution, rank_of
from wptrace.model.tally import Tally

examples = settings(max_examples=60, deadline=None)
values = st.lists(st.one_of(st.integers(0, 40), st.integers(0, 1 << 32)), max_size=40)


def of(numbers: list[int]) -> Tally:
    made = Tally()
    for number in numbers:
        made.add(number)
    return made


def state(found: Distribution) -> list[object]:
    return [getattr(found, name) for name in Distribution.__slots__]


@examples
@given(values)
def test_it_is_a_distribution_that_knows_each_value(numbers: list[int]) -> None:
    plain = distribution(numbers)
    found = of(numbers)
    assert state(found) == state(plain)
    assert found.counts == {number: numbers.count(number) for number in numbers}
    merged = Distribution()
    merged.merge(found)
    assert state(merged) == state(plain)


@examples
@given(values, st.one_of(st.sampled_from([0, 50, 99, 100]), st.floats(0, 100)))
def test_percentiles_are_exact(numbers: list[int], percent: float) -> None:
    expected = sorted(numbers)[rank_of(percent, len(numbers)) - 1] if numbers else 0
    assert of(numbers).percentile(percent) == expected


@examples
@given(values, values)
def test_what_came_since_is_exact_with_its_extremes(before: list[int], after: list[int]) -> None:
    earlier = of(before)
    now = earlier.copy()
    now.merge(of(after))
    assert now.counts == of(before + after).counts
    assert earlier.counts == of(before).counts
    recent = now.delta(earlier)
    assert recent.counts == of(after).counts
    assert state(recent) == state(of(after))
    assert recent.exact


def test_a_value_that_shrank_adds_nothing_and_is_counted() -> None:
    recent = Tally({1: 3, 5: 2}).delta(Tally({1: 4, 5: 1}))
    assert (recent.counts, recent.count, recent.shrunk) == ({5: 1}, 1, 1)


def test_only_its_like_can_be_merged() -> None:
    other = Distribution()
    with pytest.raises(ValueError, match="does not know its values"):
        Tally().merge(other)
    with pytest.raises(ValueError, match="not an earlier copy"):
        Tally().delta(other)
    with pytest.raises(ValueError, match="between 0 and 100"):
        Tally({1: 1}).percentile(101)
