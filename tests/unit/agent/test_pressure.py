# SPDX-License-Identifier: Apache-2.0
"""Pressure, from files like the kernel's; tests/kernel tests the wakeups by the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from wptrace.agent.pressure import Pressure, measured

TEXT = "some avg10=0.00 avg60=0.10 avg300=0.39 total={}\nfull avg10=0.01 avg60=0.07 avg300=0.34 total=7\n"


def test_the_share_is_what_grew_in_the_time_since_the_last_look(tmp_path: Path) -> None:
    file = tmp_path / "io"
    file.write_text(TEXT.format(1_000_000))
    found = Pressure("io.some", 0.1, 98.0, tmp_path)
    found.close()
    file.write_text(TEXT.format(1_100_000))
    assert found.share(100.0) == (0.05, 2.0)
    file.write_text(TEXT.format(1_600_000))
    assert found.share(102.0) == (0.25, 2.0)


def test_the_kernel_wakes_for_the_share_of_a_second(tmp_path: Path) -> None:
    """Its window has two, and the waits may be in one of them."""
    file = tmp_path / "io"
    file.write_text(TEXT.format(0))
    Pressure("io.some", 0.6, 0.0, tmp_path).close()
    assert file.read_text().startswith("some 600000 2000000\0")


@pytest.mark.parametrize(
    ("text", "whose", "there"),
    [
        (TEXT.format(5), "some", True),
        (TEXT.format(5), "none", False),
        ("some total=x", "some", False),
        ("", "some", False),
    ],
)
def test_what_is_measured(text: str, whose: str, there: bool, tmp_path: Path) -> None:
    (tmp_path / "io").write_text(text)
    assert measured("io", whose, tmp_path) == there
    assert not measured("memory", whose, tmp_path)
