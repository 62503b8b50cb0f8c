# SPDX-License-Identifier: Apache-2.0
"""The clock of BPF (CLOCK_MONOTONIC) and the time of day."""

from __future__ import annotations

import time


def wall_offset_ns() -> int:
    """What to add to a monotonic time to get the time of day. Taken anew now and then, it follows clock steps."""
    before = time.monotonic_ns()
    wall = time.time_ns()
    return wall - (before + time.monotonic_ns()) // 2


def clock_seconds(wall_ns: int, date: bool) -> str:
    """Local time to the second, 12:03:44, with the date before it if wanted."""
    form = "%Y-%m-%d %H:%M:%S" if date else "%H:%M:%S"
    return time.strftime(form, time.localtime(wall_ns // 1_000_000_000))


def clock_time(wall_ns: int, date: bool) -> str:
    """The same to the microsecond, 12:03:44.123456."""
    return f"{clock_seconds(wall_ns, date)}.{wall_ns % 1_000_000_000 // 1000:06d}"
