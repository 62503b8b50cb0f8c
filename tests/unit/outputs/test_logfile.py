# SPDX-License-Identifier: Apache-2.0
"""A log that is rotated, moved away, or on a full disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from wptrace.errors import WptraceError
from wptrace.outputs.logfile import LogFile


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_it_continues_a_file_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("before\n")
    log = LogFile(tmp_path / "log")
    log.write(["one", "two"])
    log.close()
    assert contents(tmp_path) == {"log": "before\none\ntwo\n"}
    assert log.lost == 0


def test_it_is_rotated_before_it_grows_too_large_and_the_oldest_goes(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "log", largest=10, kept=2)
    for number in range(8):
        log.write([f"{number:04}"])  # two of five bytes each fit into a file
    log.close()
    assert contents(tmp_path) == {"log": "0006\n0007\n", "log.1": "0004\n0005\n", "log.2": "0002\n0003\n"}


def test_its_files_are_their_owners_alone(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        log = LogFile(tmp_path / "log", largest=10, kept=2)
        for number in range(6):
            log.write([f"{number:04}"])
        log.close()
    finally:
        os.umask(mask)
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == dict.fromkeys(
        ("log", "log.1", "log.2"), 0o600
    )


def test_one_that_cannot_be_rotated_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No line is lost and no old file goes in vain. It is tried again after the log has grown by as much again."""
    log = LogFile(tmp_path / "log", largest=10, kept=2)
    for number in range(5):
        log.write([f"{number:04}"])
    replace = Path.replace
    asked = []

    def refused(path: Path, target: Path) -> Path:
        asked.append(path.name)
        if path.name == "log":
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        return replace(path, target)

    # The same happens with an append-only file (chattr +a).
    monkeypatch.setattr(Path, "replace", refused)
    for number in range(5, 11):
        log.write([f"{number:04}"])
    assert (log.lost, log.unrotated, log.problem) == (0, 3, os.strerror(errno.EPERM))
    assert asked == ["log.1", "log", "log", "log"]
    assert contents(tmp_path) == {"log": "".join(f"{one:04}\n" for one in range(4, 11)), "log.2": "0002\n0003\n"}
    monkeypatch.setattr(Path, "replace", replace)
    for number in range(11, 14):
        log.write([f"{number:04}"])
    log.close()
    assert contents(tmp_path) == {
        "log": "0012\n0013\n",
        "log.1": "".join(f"{one:04}\n" for one in range(4, 12)),
        "log.2": "0002\n0003\n",
    }
    assert (log.lost, log.unrotated) == (0, 3)


def test_a_folder_in_which_an_old_one_should_be(tmp_path: Path) -> None:
    (tmp_path / "log.1").mkdir()
    (tmp_path / "log.1" / "file").write_text("")
    log = LogFile(tmp_path / "log", largest=10, kept=1)
    for number in range(3):
        log.write([f"{number:04}"])
    log.close()
    assert (log.lost, log.unrotated) == (0, 1)
    assert (tmp_path / "log").read_text() == "0000\n0001\n0002\n"


def test_one_record_larger_than_the_file_is_written_whole(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "log", largest=10, kept=1)
    log.write(["x" * 50])
    log.write(["y" * 50])
    log.close()
    assert contents(tmp_path) == {"log": "y" * 50 + "\n", "log.1": "x" * 50 + "\n"}


def test_one_that_was_moved_away_is_made_anew(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "log")
    log.write(["one"])
    (tmp_path / "log").rename(tmp_path / "old")
    log.write(["two"])
    (tmp_path / "log").unlink()
    log.write(["three"])
    log.close()
    assert contents(tmp_path) == {"old": "one\n", "log": "three\n"}


def test_a_full_disk_costs_records_and_no_more() -> None:
    log = LogFile(Path("/dev/full"))
    for _ in range(3):
        log.write(["lost"])
    log.close()
    assert log.lost == 3
    assert log.problem == os.strerror(errno.ENOSPC)


def test_it_goes_on_when_there_is_room_again_and_keeps_no_half_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LogFile(tmp_path / "log")
    log.write(["first"])
    write, room = os.write, [3, 0]

    def nearly_full(fd: int, data: bytes) -> int:
        if not room:
            return write(fd, data)
        left = room.pop(0)
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data[:left])

    monkeypatch.setattr(os, "write", nearly_full)
    log.write(["second"])
    log.write(["third"])
    log.close()
    assert contents(tmp_path) == {"log": "first\nthird\n"}
    assert log.lost == 1


def test_a_folder_that_went_costs_records_until_it_is_back(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    log = LogFile(folder / "log")
    (folder / "log").unlink()
    folder.rmdir()
    log.write(["lost"])
    folder.mkdir()
    log.write(["kept"])
    log.close()
    assert log.lost == 1
    assert contents(folder) == {"log": "kept\n"}


def test_a_file_that_cannot_be_written_is_found_out_at_once(tmp_path: Path) -> None:
    with pytest.raises(WptraceError, match="no/log cannot be written: No such file"):
        LogFile(tmp_path / "no" / "log")


def test_names_that_are_no_text_do_not_stop_it(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "log")
    log.write(["\udcff"])
    log.close()
    assert contents(tmp_path) == {"log": "\\udcff\n"}
