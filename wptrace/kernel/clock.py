# SPDX-License-Identifier: Apache-2.0
"""The clock of BPF (CLOCK_MONOTONIC) and the time of day."""

from __future__ import annotations

import ctypes
import os
import struct
import time
from pathlib import Path
from typing import Callable

from wptrace.kernel.files import first_line


def wall_offset_ns() -> int:
    """Return the offset from monotonic times to the time of day. Taken anew now and then, it follows clock steps."""
    before = time.monotonic_ns()
    wall = time.time_ns()
    return wall - (before + time.monotonic_ns()) // 2


def clock_seconds(wall_ns: int, date: bool) -> str:
    """Local time to the second, 12:03:44, with the date before it if wanted."""
    form = "%Y-%m-%d %H:%M:%S" if date else "%H:%M:%S"
    return time.strftime(form, time.localtime(wall_ns // 1_000_000_000))


def clock_time(wall_ns: int, date: bool) -> str:
    """Format a time to the microsecond: 12:03:44.123456."""
    return f"{clock_seconds(wall_ns, date)}.{wall_ns % 1_000_000_000 // 1000:06d}"


def boot_id() -> str:
    """Since which start of the machine its monotonic clock runs."""
    return first_line(Path("/proc/sys/kernel/random/boot_id"))


# --- Other clocks -----------------------------------------------------------------------------------------------------

# struct timex of a machine with 64 bits.
_TIMEX = struct.Struct("<I4xqqqqi")
_TIMEX_BYTES = 208
_UNSYNC = 0x40
_MOST_WRONG_US = 16_000_000
_PTP = Path("/sys/class/ptp")
# The names that hypervisors give the clock with their own machine's time of day.
_OURS_BELOW = ("KVM virtual PTP", "hyperv")
_TRIES = 5


def realtime_error_ns() -> int | None:
    """Return the maximum error of the time of day, as its daemon has told the kernel; None without a daemon."""
    found = ctypes.create_string_buffer(_TIMEX_BYTES)
    try:
        if ctypes.CDLL(None).adjtimex(found) < 0:
            return None
    except (AttributeError, OSError):
        return None
    _, _, _, most, _, status = _TIMEX.unpack_from(found.raw)
    return None if status & _UNSYNC or not 0 <= most < _MOST_WRONG_US else most * 1000


def time_below() -> tuple[int, int, int] | None:
    """The time of day of the machine below, where a clock of PTP shows it, between two looks at the monotonic clock."""
    try:
        names = sorted(one.parent.name for one in _PTP.glob("*/clock_name") if one.read_text().strip() in _OURS_BELOW)
        if not names:
            return None
        fd = os.open(f"/dev/{names[0]}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        # A file descriptor is a clock as well (FD_TO_CLOCKID).
        return shortest(lambda: time.clock_gettime_ns(~fd << 3 | 3))
    except OSError:
        return None
    finally:
        os.close(fd)


def day_and_time() -> tuple[int, int]:
    """The time of day, and what the monotonic clock showed then."""
    day, before, after = shortest(time.time_ns)
    return day, (before + after) // 2


def shortest(read: Callable[[], int]) -> tuple[int, int, int]:
    """Return the fastest of several readings, and the times before and after it."""
    found = []
    for _ in range(_TRIES):
        before = time.monotonic_ns()
        seen = read()
        found.append((seen, before, time.monotonic_ns()))
    return min(found, key=lambda one: one[2] - one[1])
