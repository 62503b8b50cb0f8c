# SPDX-License-Identifier: Apache-2.0
"""The memory that this process may still take: of the machine, and within the limits of its cgroups."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from wptrace.kernel import procfs

CGROUPS = Path("/sys/fs/cgroup")
PROC = Path("/proc")


class Room(NamedTuple):
    bytes: int
    whose: str
    """The owner of the limit: the machine, or a cgroup by its path."""


def room(proc: Path = PROC, cgroups: Path = CGROUPS) -> Room:
    """The tightest of them."""
    return min((_machine(proc), *_limits(proc, cgroups)), key=lambda one: one.bytes)


def _machine(proc: Path) -> Room:
    for line in procfs.lines(proc / "meminfo"):
        if line.startswith(b"MemAvailable:"):
            return Room(int(line.split()[1]) * 1024, "the machine")
    return Room(1 << 62, "the machine")


def _limits(proc: Path, cgroups: Path) -> Iterator[Room]:
    """Generate the limits of this process's cgroup and those above it, in v2 or in v1's memory hierarchy."""
    for line in procfs.lines(proc / "self" / "cgroup"):
        _, names, path = line.decode(errors="surrogateescape").strip().split(":", 2)
        if not names:
            yield from _above(cgroups, path, "memory.max", "memory.current")
        elif "memory" in names.split(","):
            yield from _above(cgroups / "memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes")


def _above(top: Path, path: str, most: str, now: str) -> Iterator[Room]:
    # In a namespace of its own a path may lead out of what can be seen.
    parts = [part for part in path.split("/") if part not in ("", "..")]
    while parts:
        folder = top.joinpath(*parts)
        with suppress(OSError, ValueError):
            limit = (folder / most).read_text().strip()
            if limit != "max":
                yield Room(max(int(limit) - int((folder / now).read_text()), 0), f"the cgroup /{'/'.join(parts)}")
        parts.pop()
