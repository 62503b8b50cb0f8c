# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wptrace.errors import UsageError
from wptrace.model.units import NS_PER, duration, parse_bytes, parse_duration, parse_share, rate, size

examples = settings(max_examples=60, deadline=None)


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (850, "850 ns"),
        (999.4, "999 ns"),
        (999.5, "1.00 us"),
        (9_994, "9.99 us"),
        (9_996, "10.0 us"),
        (99_960, "100 us"),
        (1_234_567, "1.23 ms"),
        (999_499_999, "999 ms"),
        (999_500_000, "1.00 s"),
        (12_345_000_000, "12.3 s"),
        (59_949_000_000, "59.9 s"),
        (59_950_000_000, "1.00 min"),
        (150_000_000_000, "2.50 min"),
        (3_597_000_000_000, "1.00 h"),
        (360_000_000_000_000, "100 h"),
    ],
)
def test_duration(ns: float, text: str) -> None:
    assert duration(ns) == text


@examples
@given(st.integers(0, 62).flatmap(lambda bits: st.integers(0, 1 << bits)))
def test_what_is_written_can_be_read(ns: int) -> None:
    assert abs(parse_duration(duration(ns)) - ns) <= ns / 190


@examples
@given(st.integers(0, 10**6), st.sampled_from(list(NS_PER)), st.sampled_from(["", " "]))
def test_whole_numbers_of_units(number: int, unit: str, blank: str) -> None:
    assert parse_duration(f"{number}{blank}{unit}") == number * NS_PER[unit]
    assert parse_duration(str(number), default_unit=unit) == number * NS_PER[unit]


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("5ms", 5_000_000),
        ("1.5s", 1_500_000_000),
        ("200us", 200_000),
        ("200µs", 200_000),
        ("2m", 120_000_000_000),
        ("2 min", 120_000_000_000),
        (" .5us ", 500),
        ("0.1us", 100),
        ("0s", 0),
        ("0", 0),
        ("0.0", 0),
        (f"{2**63 - 1}ns", 2**63 - 1),
    ],
)
def test_parse(text: str, ns: int) -> None:
    assert parse_duration(text) == ns
    assert parse_duration(text, default_unit="h") == ns


@pytest.mark.parametrize("text", ["", "ms", "-5ms", "5.ms", "1e3ms", "5ms5", "٣ms", "1,5s", "9" * 5000 + "s"])
def test_not_a_duration(text: str) -> None:
    with pytest.raises(UsageError, match="not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("5", "the duration '5' has no unit: the units are ns, us, ms, s, m, h"),
        ("5\x1b[J", r"the duration '5\x1b[J' has an unknown unit: the units are ns, us, ms, s, m, h"),
        ("5MS", "the duration '5MS' has an unknown unit: the units are ns, us, ms, s, m, h"),
        ("0.5ns", "the duration '0.5ns' is not a whole number of nanoseconds"),
        ("99999999h", "the duration '99999999h' is longer than 292 years"),
        (f"{2**63}ns", f"the duration '{2**63}ns' is longer than 292 years"),
    ],
)
def test_what_is_wrong_is_said(text: str, complaint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_duration(text)
    assert caught.value.message == complaint


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (1023, "1023 B"),
        (1023.6, "1 KiB"),
        (4096, "4 KiB"),
        (100 * 1024, "100 KiB"),
        (1.5 * 2**20, "1.5 MiB"),
        (2**50 * 5000, "5000 PiB"),
    ],
)
def test_size(count: float, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("per_second", "text"),
    [
        (0, "0 /s"),
        (0.5, "0.5 /s"),
        (850, "850 /s"),
        (999.6, "1 k/s"),
        (12_345, "12.3 k/s"),
        (1.234e6, "1.23 M/s"),
    ],
)
def test_rate(per_second: float, text: str) -> None:
    assert rate(per_second) == text


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("512", 512),
        ("64K", 65_536),
        ("1m", 1_048_576),
        ("2G", 2_147_483_648),
        ("9" * 18, int("9" * 18)),
        *((wrong, None) for wrong in ("", "K", "1.5K", "-1", "1T", "64 K", "9" * 19, "٣")),
    ],
)
def test_bytes(text: str, count: int | None) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("5%", 0.05),
        ("5", 0.05),
        ("0.5%", 0.005),
        ("100%", 1.0),
        *((wrong, None) for wrong in ("", "%", "0", "0.0%", "100.5", "101%", "-5", "5%%", "1e1", "٣")),
    ],
)
def test_a_share(text: str, share: float | None) -> None:
    assert parse_share(text) == share
