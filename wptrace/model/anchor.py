# SPDX-License-Identifier: Apache-2.0
"""A reading of a machine's monotonic clock, paired with one of another clock."""

from __future__ import annotations

from typing import NamedTuple


class Outer(NamedTuple):
    """The time of day of the machine below, as a guest learned it between two looks at its own monotonic clock."""

    realtime_ns: int
    before_ns: int
    after_ns: int


class Anchor(NamedTuple):
    monotonic_ns: int
    realtime_ns: int
    error_ns: int | None = None
    """The maximum error of the time of day, by the kernel; None if nothing synchronises it."""
    outer: Outer | None = None

    @property
    def wall_ns(self) -> int:
        """The time of day minus the monotonic clock: only a step changes it."""
        return self.realtime_ns - self.monotonic_ns
