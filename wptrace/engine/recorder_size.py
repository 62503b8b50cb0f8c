# SPDX-License-Identifier: Apache-2.0
"""The size of a flight recorder."""

from __future__ import annotations

from typing import NamedTuple

# The rate that `--recorder 30s` has room for; at a higher rate its window is shorter.
RECORDER_RATE, RECORD_BYTES = 20_000, 104
RECORDER_SMALLEST, RECORDER_LARGEST = 1 << 20, 1 << 32
# With a limit in bytes, the age of records is not limited.
LONGEST_NS = 1 << 62


class RecorderSize(NamedTuple):
    window_ns: int
    bytes: int

    @classmethod
    def of_time(cls, window_ns: int) -> RecorderSize:
        return cls(window_ns, window_ns * RECORDER_RATE * RECORD_BYTES // 1_000_000_000)

    @property
    def time_ns(self) -> int:
        """The time that it has room for at that rate."""
        return self.bytes * 1_000_000_000 // (RECORDER_RATE * RECORD_BYTES)
