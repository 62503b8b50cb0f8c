# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from wptrace.analysis import growth
from wptrace.analysis.history import Stretch, Sums

KEY: Any = ("operation", "read")
MS = 1_000_000


def sums(values: Sequence[int]) -> Sums:
    return Sums(len(values), sum(values), sum(value * value for value in values))


def stretches(*seconds: Mapping[str, Sequence[int]]) -> list[Stretch]:
    found = []
    for at, stages in enumerate(seconds):
        whole = sums([sum(values) for values in zip(*stages.values())])
        found.append(Stretch(at, at + 1, {KEY: {**{name: sums(one) for name, one in stages.items()}, "total": whole}}))
    return found


def noisy(mean: int, count: int, seed: int = 0) -> list[int]:
    pick = random.Random(seed)  # noqa: S311 - not a secret
    return [int(mean * pick.uniform(0.8, 1.2)) for _ in range(count)]


def largest(found: Sequence[Stretch]) -> growth.Growth | None:
    return growth.largest(found, KEY, ["queue", "device"], "total")


def grown(*seconds: Mapping[str, Sequence[int]]) -> growth.Growth:
    found = largest(stretches(*seconds))
    assert found is not None
    return found


def series(*means: int, count: int = 50, queue: int = MS // 10) -> list[Mapping[str, Sequence[int]]]:
    return [{"queue": noisy(queue, count, at), "device": noisy(mean, count, at)} for at, mean in enumerate(means)]


def test_the_stretch_in_which_a_stage_took_longer() -> None:
    found = grown(*series(MS, MS, MS, 4 * MS, MS))
    assert (found.stage, found.start_ns, found.end_ns) == ("device", 3, 4)
    assert found.factor == pytest.approx(4, rel=0.1)
    assert found.inside.mean == pytest.approx(4 * MS, rel=0.1)
    assert found.rest.mean == pytest.approx(MS, rel=0.1)


def test_a_slow_phase_of_many_stretches_is_one() -> None:
    found = grown(*series(MS, MS, MS, 4 * MS, 5 * MS, 4 * MS, MS))
    assert (found.start_ns, found.end_ns) == (3, 6)


def test_a_change_for_good_is_reported_from_where_it_began() -> None:
    found = grown(*series(MS, MS, MS, 3 * MS, 3 * MS, 3 * MS))
    assert (found.start_ns, found.end_ns) == (3, 6)
    assert found.factor == pytest.approx(3, rel=0.1)


def test_of_several_stages_the_one_that_cost_the_most_is_reported() -> None:
    quick = {"queue": noisy(MS, 50), "device": noisy(MS, 50)}
    slow = {"queue": noisy(9 * MS, 50), "device": noisy(3 * MS, 50)}
    assert grown(quick, quick, slow, quick).stage == "queue"


def test_cost_counts_and_not_the_factor() -> None:
    quick = {"queue": noisy(MS // 5, 50), "device": noisy(5 * MS, 50)}
    slow = {"queue": noisy(4 * MS, 50), "device": noisy(20 * MS, 50)}
    assert grown(quick, quick, slow, quick).stage == "device"


def test_a_stage_that_took_no_time_before_can_grow() -> None:
    found = grown(*[{"queue": [0] * 50, "device": [MS] * 50}] * 3, {"queue": [MS] * 50, "device": [MS] * 50})
    assert (found.stage, found.factor) == ("queue", MS)


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param([], id="no history"),
        pytest.param(series(MS), id="one stretch has nothing to compare with"),
        pytest.param(series(MS, MS, MS), id="nothing changed"),
        pytest.param(series(MS, int(1.8 * MS), MS), id="too little"),
        pytest.param(series(MS, MS // 9, MS), id="it got faster for a while"),
        pytest.param(series(MS, 4 * MS, MS, count=7), id="too few samples"),
        pytest.param(
            [{"queue": [queue] * 50, "device": [MS] * 50} for queue in (1000, 9000)], id="a stage that does not matter"
        ),
        pytest.param(
            [{"queue": [0] * 100, "device": [*[MS] * 99, last * MS]} for last in (1, 400, 1)], id="an outlier"
        ),
    ],
)
def test_what_is_no_growth(seconds: Sequence[Mapping[str, Sequence[int]]]) -> None:
    assert largest(stretches(*seconds)) is None


def test_nothing_grows_without_operations() -> None:
    assert largest([Stretch(0, 1, {}), Stretch(1, 2, {})]) is None


@pytest.mark.parametrize(
    ("costs", "at"),
    [
        ([1.0], (0, 1)),
        ([-1.0, 2.0, 3.0, -9.0, 4.0], (1, 3)),
        ([-1.0, 5.0, -1.0, 5.0, -1.0], (1, 4)),
        ([0.0, 0.0, 2.0, 0.0], (2, 3)),
        ([-3.0, -1.0, -2.0], (1, 2)),
    ],
)
def test_the_costliest_range(costs: list[float], at: tuple[int, int]) -> None:
    assert growth._costliest(costs) == at
