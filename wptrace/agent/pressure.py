# SPDX-License-Identifier: Apache-2.0
"""Pressure stall information of the kernel: /proc/pressure, which wakes a poller above a threshold."""

from __future__ import annotations

import os
from pathlib import Path

PROC = Path("/proc/pressure")
# d82caa273565 (sched/psi: Allow unprivileged polling of N*2s period, 6.5): other periods need CAP_SYS_RESOURCE.
_WINDOW_US = 2_000_000


def measured(name: str, whose: str, proc: Path = PROC) -> bool:
    try:
        return whose in _totals(proc / name)
    except (OSError, ValueError):
        return False


def _totals(path: Path) -> dict[str, int]:
    """Microseconds since boot, for `some` and `full`."""
    lines = [line.split() for line in path.read_text().splitlines()]
    return {words[0]: int(words[-1].removeprefix("total=")) for words in lines if words}


class Pressure:
    """A line of one of the files: `io.some` is the time in which at least one task waited for I/O."""

    def __init__(self, what: str, limit: float, now: float, proc: Path = PROC) -> None:
        """Have the kernel signal when tasks may wait for more than this share of a second."""
        name, self._whose = what.split(".")
        self._path = proc / name
        self._total, self._at = self._read(), now
        self.fd = -1
        """Ready for POLLPRI above the limit; -1 if the kernel does not let us."""
        self.refused = ""
        try:
            self.fd = os.open(self._path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            # All of it may be in one second of the kernel's two.
            os.write(self.fd, f"{self._whose} {max(int(limit * 1_000_000), 1)} {_WINDOW_US}\0".encode())
        except OSError as error:
            self.refused = error.strerror or str(error)
            self.close()

    def _read(self) -> int:
        return _totals(self._path)[self._whose]

    def share(self, now: float) -> tuple[float, float]:
        """The share of the time since the last call, and how long that was."""
        seconds, self._at = now - self._at, now
        before, self._total = self._total, self._read()
        return (self._total - before) / 1e6 / seconds if seconds > 0 else 0.0, seconds

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
