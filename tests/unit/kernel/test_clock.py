# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ctypes
import re
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.zone import zone
from wptrace.kernel import clock
from wptrace.kernel.clock import clock_seconds, clock_time, realtime_error_ns, shortest, time_below, wall_offset_ns


@pytest.fixture(autouse=True)
def nepal() -> Iterator[None]:
    """A time zone with an offset of 5 h 45 min, in which UTC cannot be mistaken for local time."""
    with zone("NPT-5:45"):
        yield


def test_time_of_day_is_local_and_to_the_microsecond() -> None:
    assert clock_time(1_700_000_000_123_456_789, date=False) == "03:58:20.123456"
    assert clock_time(1_700_000_000_000_000_999, date=True) == "2023-11-15 03:58:20.000000"
    assert clock_time(1_700_000_000_999_999_999, date=False) == "03:58:20.999999"
    assert clock_seconds(1_700_000_000_999_999_999, date=True) == "2023-11-15 03:58:20"


@given(ns=st.integers(0, 1 << 62))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_time_has_the_same_form(ns: int) -> None:
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{6}", clock_time(ns, date=False))
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}", clock_time(ns, date=True))


def test_offset_is_taken_in_the_middle_of_two_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([100, 300])
    monkeypatch.setattr(time, "monotonic_ns", lambda: next(readings))
    monkeypatch.setattr(time, "time_ns", lambda: 5_000)
    assert wall_offset_ns() == 5_000 - 200


def test_of_some_looks_the_shortest_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([0, 90, 100, 110, 200, 290, 300, 390, 400, 490])
    monkeypatch.setattr(time, "monotonic_ns", lambda: next(readings))
    seen = iter(range(5))
    assert shortest(lambda: next(seen)) == (1, 100, 110)


def test_the_kernel_says_how_wrong_the_time_of_day_is() -> None:
    """The clock of a machine without a network is not synchronised."""
    found = realtime_error_ns()
    assert found is None or 0 <= found < 16 * 10**9


@pytest.mark.parametrize(
    ("status", "most", "expected"), [(0x40, 5, None), (0x1, 5, 5000), (0x1, 16_000_000, None), (0x2041, 5, None)]
)
def test_what_nobody_keeps_right_has_no_error(
    status: int, most: int, expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Library:
        @staticmethod
        def adjtimex(found: ctypes.Array[ctypes.c_char]) -> int:
            struct.pack_into("<I4xqqqqi", found, 0, 0, 1, 2, most, 3, status)
            return 0

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library)
    assert realtime_error_ns() == expected


def test_a_clock_of_another_machine_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "_PTP", tmp_path)
    assert time_below() is None
    (tmp_path / "ptp0").mkdir()
    (tmp_path / "ptp0/clock_name").write_text("a card\n")
    assert time_below() is None
    # The name fits, but there is no such device.
    (tmp_path / "ptp9999").mkdir()
    (tmp_path / "ptp9999/clock_name").write_text("KVM virtual PTP\n")
    assert time_below() is None
