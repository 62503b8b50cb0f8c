# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.outputs.samples import distribution
from wptrace.model.distribution import Distribution
from wptrace.outputs.text.histogram import rows


def of(*numbers: int) -> Distribution:
    return distribution(numbers)


def test_powers_of_two() -> None:
    distribution = of(*[1024] * 4, *[2047] * 4, *[3000] * 3, 10_000)
    assert rows(distribution, 40) == [
        "1.02 us - 2.05 us : 8 ██████████████████",
        "2.05 us - 4.10 us : 3 ██████▊",
        "4.10 us - 8.19 us : 0",
        "8.19 us - 16.4 us : 1 ██▎",
    ]


def test_fine_shows_each_bucket() -> None:
    assert rows(of(8, 8, 10), 30, fine=True) == [
        " 8 ns - 9 ns  : 2 ████████████",
        " 9 ns - 10 ns : 0",
        "10 ns - 11 ns : 1 ██████",
    ]


def test_eighths_of_a_character() -> None:
    distribution = of(*[4] * 16, *[2] * 3, *[1])
    assert rows(distribution, 21) == [
        "1 ns - 2 ns :  1 ▎",
        "2 ns - 4 ns :  3 ▊",
        "4 ns - 8 ns : 16 ████",
    ]


def test_a_single_value_among_many_leaves_a_trace() -> None:
    assert rows(of(*[1] * 1000, 2), 30)[1] == "2 ns - 4 ns :    1 ▏"


def test_the_first_range_and_the_open_end() -> None:
    assert rows(of(4096, 1 << 50), 0)[-1] == "36.7 min - more     : 1"
    assert rows(of(0), 20) == ["0 ns - 1 ns : 1 ████"]
    assert rows(Distribution(), 40) == []


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 1 << 44), min_size=1, max_size=40),
    st.integers(0, 120),
    st.booleans(),
)
def test_rows_fit_and_count_everything(numbers: list[int], width: int, fine: bool) -> None:
    lines = rows(of(*numbers), width, fine)
    narrowest = max(len(line) for line in rows(of(*numbers), 0, fine))
    assert all(len(line) <= max(width, narrowest) for line in lines)
    counts = [int(line.split(" : ")[1].split()[0]) for line in lines]
    assert sum(counts) == len(numbers)
    assert counts[0]
    assert counts[-1]
    if width > narrowest + 1:
        assert all((len(line.split(" : ")[1].split()) == 2) == bool(count) for line, count in zip(lines, counts))
