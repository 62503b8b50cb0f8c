# SPDX-License-Identifier: Apache-2.0
"""The folder of dumps: which files make room and which never do."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from wptrace.agent.dumps import Daily, Room


def made(folder: Path, *names: str, size: int = 100) -> None:
    for name in names:
        (folder / name).write_bytes(b"x" * size)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_oldest_make_room_with_their_pages(tmp_path: Path) -> None:
    dumps = [f"wptrace-20261127-12000{second}" for second in range(3)]
    numbered = [f"wptrace-20261127-110000{number}.wpt" for number in ("", "-2", "-10")]
    made(tmp_path, *(f"{dump}.wpt" for dump in dumps), *(f"{dump}.html" for dump in dumps), *numbered)
    assert Room(tmp_path, 900).make() == []
    # The order is by number, not by name: -2 comes before -10.
    assert sorted(Room(tmp_path, 750).make()) == sorted(numbered[:2])
    assert sorted(Room(tmp_path, 450).make()) == sorted([numbered[2], f"{dumps[0]}.wpt", f"{dumps[0]}.html"])
    assert len(names(tmp_path)) == 4


def test_what_was_just_made_stays_however_large_it_is(tmp_path: Path) -> None:
    """Even if the clock was set back."""
    new = tmp_path / "wptrace-20200101-000000.wpt"
    made(tmp_path, new.name, "wptrace-20261127-120000.wpt")
    assert Room(tmp_path, 1).make({new}) == ["wptrace-20261127-120000.wpt"]
    assert names(tmp_path) == [new.name]


def test_what_a_clock_dated_that_was_ahead_goes_first(tmp_path: Path) -> None:
    """Until then, each new dump would have to go for the next one."""
    ahead = "wptrace-20990101-000000.wpt"
    made(tmp_path, "wptrace-20200101-000000.wpt", "wptrace-20200101-000001.wpt", ahead)
    assert Room(tmp_path, 200).make() == [ahead]


def test_what_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    folder, other = tmp_path / "dumps", tmp_path / "other.wpt"
    folder.mkdir()
    made(tmp_path, other.name)
    made(folder, "notes.txt", "wptrace-1.wpt", "wptrace-20261127-120000.wpt.part", "xwptrace-20261127-120000.wpt")
    (folder / "wptrace-20261127-120000.wpt").symlink_to(other)
    (folder / "wptrace-20261127-120001.wpt").mkdir()
    os.mkfifo(folder / "wptrace-20261127-120002.wpt")
    before = names(folder)
    assert Room(folder, 1).make() == []
    assert names(folder) == before
    assert other.stat().st_size == 100
    assert Room(tmp_path / "none", 1).make() == []


def test_a_folder_that_cannot_be_listed_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: int) -> list[str]:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "listdir", fail)
    assert Room(tmp_path, 1).make() == []


def test_a_day_has_room_for_so_much() -> None:
    daily = Daily(100)
    daily.add(0.0, 60)
    assert daily.left(1.0)
    daily.add(50_000.0, 60)
    assert not daily.left(86_399.0)
    assert daily.left(86_400.0)
