# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from pathlib import Path

import pytest

from wptrace.kernel import cpus


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0\n", [0]),
        ("0-3\n", [0, 1, 2, 3]),
        ("0-1,4,6-7\n", [0, 1, 4, 6, 7]),
        ("10-12", [10, 11, 12]),
    ],
)
def test_ranges(text: str, numbers: list[int]) -> None:
    assert cpus.ranges(text) == numbers


@pytest.mark.parametrize(
    "text", ["", "x", "-1", "0-2000000000", "70000", "0-" + "9" * 5000, ",".join(["0-65535"] * 999)]
)
def test_what_no_machine_has(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        cpus.ranges(text)


def test_some_numbers_may_be_of_no_cpu(tmp_path: Path) -> None:
    folder = tmp_path / "devices" / "system" / "cpu"
    folder.mkdir(parents=True)
    (folder / "online").write_text("0,2\n")
    (folder / "possible").write_text("0,2-3\n")
    assert (cpus.online(tmp_path), cpus.possible(tmp_path), cpus.numbers(tmp_path)) == ([0, 2], [0, 2, 3], 4)
    assert len(cpus.online()) == os.sysconf("SC_NPROCESSORS_ONLN")
    assert len(cpus.possible()) == os.sysconf("SC_NPROCESSORS_CONF")


@pytest.mark.parametrize(
    ("text", "virtual"),
    [
        ("flags\t\t: fpu hypervisor lm\n", True),
        ("flags\t\t: fpu lm\nbugs\t: hypervisor\n", False),
        ("Features\t: fp asimd\n", False),
        ("", False),
    ],
)
def test_a_hypervisor_is_a_flag_of_the_cpu(tmp_path: Path, text: str, virtual: bool) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    assert cpus.hypervisor(tmp_path) is virtual


def test_busy_time_is_that_of_all_but_idle_ones_and_thieves(tmp_path: Path) -> None:
    tick = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    (tmp_path / "stat").write_text("cpu  1 20 300 7777 7777 4000 50000 7777 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n")
    assert cpus.busy_ns(tmp_path) == 54321 * tick
    assert 0 < cpus.busy_ns() <= cpus.busy_ns()


def test_stolen_time_is_the_eighth_number(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu  1 2 3 4 5 6 7 88 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n")
    assert cpus.stolen(tmp_path) == 88
    assert cpus.stolen() >= 0
