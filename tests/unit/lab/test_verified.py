# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from tests.kernel import verified
from tests.kernel.verified import Size, Sizes, grown, listing, parse

SIZES: Sizes = {"io_path/queue_tp_btf": Size(541, 8950), "io_block/a_program_with_quite_a_long_name_tp": Size(16, 0)}


@pytest.fixture(autouse=True)
def written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(verified, "FILE", tmp_path / "verified.json")
    monkeypatch.delenv(verified.RENEWING, raising=False)
    verified.write({"running": {}, "6.12": SIZES})


def test_what_is_written_can_be_read() -> None:
    assert verified.read() == {"6.12": SIZES, "running": {}}


def test_what_the_tests_print_is_found_among_all_that_they_print() -> None:
    assert parse(f"..... [100%]\n{listing('6.12.95', SIZES)}\n\n5 passed in 3 s\n  no/program 1 2\n") == SIZES
    assert parse("5 passed") == {}


@pytest.mark.parametrize(
    ("size", "fails"),
    [
        (Size(541, 8950), False),
        (Size(300, 400), False),
        (Size(541 * 5 // 4, 8950 * 5 // 4), False),
        (Size(541, 8950 * 5 // 4 + 40), True),
        (Size(541 * 5 // 4 + 40, 8950), True),
    ],
)
def test_a_quarter_more_has_to_be_announced(size: Size, fails: bool) -> None:
    assert bool(grown("6.12", {"io_path/queue_tp_btf": size})) == fails


def test_a_new_program_has_to_be_announced() -> None:
    (problem,) = grown("6.12", {"io_path/new": Size(1, 1)})
    assert "io_path/new" in problem
    assert "python3 -m tests.kernel.verified" in problem


def test_nothing_is_too_large_while_it_is_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(verified.RENEWING, "1")
    assert grown("6.12", {"io_path/new": Size(1, 1)}) == []


def test_logs_of_the_last_tests_do_as_well(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(verified, "LOGS", tmp_path)
    (tmp_path / "6.1.log").write_text(listing("6.1.0", SIZES))
    assert verified.main(["--logs", "6.1"]) == 0
    assert verified.read()["6.1"] == SIZES
    assert verified.main(["--logs", "5.10"]) == 1
