# SPDX-License-Identifier: Apache-2.0
"""Pressure stall information of the kernel: /proc/pressure."""

from __future__ import annotations

from pathlib import Path

PROC = Path("/proc/pressure")


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

    def __init__(self, what: str, now: float, proc: Path = PROC) -> None:
        name, self._whose = what.split(".")
        self._path = proc / name
        self._total, self._at = self._read(), now

    def _read(self) -> int:
        return _totals(self._path)[self._whose]

    def share(self, now: float) -> tuple[float, float]:
        """The share of the time since the last call, and how long that was."""
        seconds, self._at = now - self._at, now
        before, self._total = self._total, self._read()
        return (self._total - before) / 1e6 / seconds if seconds > 0 else 0.0, seconds
