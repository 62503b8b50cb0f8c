# SPDX-License-Identifier: Apache-2.0
"""How much memory is available, in folders like /proc and the cgroups."""

from __future__ import annotations

from pathlib import Path

import pytest

from wptrace.kernel.memory import Room, room

_KIB = 1024


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    folder = tmp_path / "proc"
    (folder / "self").mkdir(parents=True)
    (folder / "meminfo").write_text("MemTotal: 9000 kB\nMemFree: 100 kB\nMemAvailable: 5000 kB\n")
    (folder / "self" / "cgroup").write_text("1:cpu:/elsewhere\n0::/system/one.service\n")
    return folder


def limited(folder: Path, most: str, now: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{most}\n")
    (folder / "memory.current").write_text(f"{now}\n")


def test_without_limits_it_is_that_of_the_machine(proc: Path, tmp_path: Path) -> None:
    limited(tmp_path / "cgroup" / "system" / "one.service", "max", 77)
    assert room(proc, tmp_path / "cgroup") == Room(5000 * _KIB, "the machine")
    assert room(proc, tmp_path / "none") == Room(5000 * _KIB, "the machine")


def test_the_tightest_limit_counts_also_one_above(proc: Path, tmp_path: Path) -> None:
    limited(tmp_path / "cgroup" / "system" / "one.service", str(900 * _KIB), 100 * _KIB)
    assert room(proc, tmp_path / "cgroup") == Room(800 * _KIB, "the cgroup /system/one.service")
    limited(tmp_path / "cgroup" / "system", str(700 * _KIB), 200 * _KIB)
    assert room(proc, tmp_path / "cgroup") == Room(500 * _KIB, "the cgroup /system")
    # Usage may exceed the limit for a moment.
    limited(tmp_path / "cgroup" / "system", str(100 * _KIB), 200 * _KIB)
    assert room(proc, tmp_path / "cgroup") == Room(0, "the cgroup /system")


def test_what_makes_no_sense_is_no_limit(proc: Path, tmp_path: Path) -> None:
    limited(tmp_path / "cgroup" / "system" / "one.service", "lots", 0)
    (proc / "self" / "cgroup").write_text("0::/../../system/one.service\n")
    assert room(proc, tmp_path / "cgroup") == Room(5000 * _KIB, "the machine")


def test_the_hierarchy_of_memory_alone(proc: Path, tmp_path: Path) -> None:
    (proc / "self" / "cgroup").write_text("4:memory,hugetlb:/one\n1:name=systemd:/other\n0::/\n")
    folder = tmp_path / "cgroup" / "memory" / "one"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (folder / "memory.usage_in_bytes").write_text(f"{100 * _KIB}\n")
    assert room(proc, tmp_path / "cgroup") == Room(5000 * _KIB, "the machine")
    (folder / "memory.limit_in_bytes").write_text(f"{300 * _KIB}\n")
    assert room(proc, tmp_path / "cgroup") == Room(200 * _KIB, "the cgroup /one")
