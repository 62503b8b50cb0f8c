# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wptrace.kernel.clock import clock_seconds, clock_time, wall_offset_ns


@pytest.fixture(autouse=True)
def nepal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A zone that is off by 5 h 45 min: UTC taken for local time shows."""
    monkeypatch.setenv("TZ", "NPT-5:45")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


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
    looks = iter([100, 300])
    monkeypatch.setattr(time, "monotonic_ns", lambda: next(looks))
    monkeypatch.setattr(time, "time_ns", lambda: 5_000)
    assert wall_offset_ns() == 5_000 - 200
