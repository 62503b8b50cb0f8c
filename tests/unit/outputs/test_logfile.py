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


def numbers(*between: int) -> list[str]:
    return [f"{number:04}" for number in range(*between)]


def lines(*between: int) -> str:
    return "".join(f"{number}\n" for number in numbers(*between))


def logged(folder: Path, *records: str, largest: int = 10, kept: int = 2) -> LogFile:
    """Write records, of which each is a line, and close the log."""
    log = LogFile(folder / "log", largest, kept)
    for one in records:
        log.write([one])
    log.close()
    return log


def test_it_continues_a_file_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("before\n")
    log = LogFile(tmp_path / "log")
    log.write(["one", "two"])
    log.close()
    assert contents(tmp_path) == {"log": "before\none\ntwo\n"}
    assert log.lost == 0


def test_it_is_rotated_before_it_grows_too_large_and_the_oldest_goes(tmp_path: Path) -> None:
    # Two of five bytes each fit into a file.
    logged(tmp_path, *numbers(8))
    assert contents(tmp_path) == {"log": lines(6, 8), "log.1": lines(4, 6), "log.2": lines(2, 4)}


def test_its_files_are_their_owners_alone(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        logged(tmp_path, *numbers(6))
    finally:
        os.umask(mask)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == dict.fromkeys(("log", "log.1", "log.2"), 0o600)


def test_one_that_cannot_be_rotated_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No line is lost and no old file goes in vain. It is tried again after the log has grown by as much again."""
    log = LogFile(tmp_path / "log", largest=10, kept=2)
    for one in numbers(5):
        log.write([one])
    replace = Path.replace
    asked = []

    def refused(path: Path, target: Path) -> Path:
        asked.append(path.name)
        if path.name == "log":
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        return replace(path, target)

    # The same happens with an append-only file (chattr +a).
    monkeypatch.setattr(Path, "replace", refused)
    for one in numbers(5, 11):
        log.write([one])
    assert (log.lost, log.unrotated, log.problem) == (0, 3, os.strerror(errno.EPERM))
    assert asked == ["log.1", "log", "log", "log"]
    assert contents(tmp_path) == {"log": lines(4, 11), "log.2": lines(2, 4)}
    monkeypatch.setattr(Path, "replace", replace)
    for one in numbers(11, 14):
        log.write([one])
    log.close()
    assert contents(tmp_path) == {"log": lines(12, 14), "log.1": lines(4, 12), "log.2": lines(2, 4)}
    assert (log.lost, log.unrotated) == (0, 3)


def test_a_folder_in_which_an_old_one_should_be(tmp_path: Path) -> None:
    (tmp_path / "log.1").mkdir()
    (tmp_path / "log.1" / "file").write_text("")
    log = logged(tmp_path, *numbers(3), kept=1)
    assert (log.lost, log.unrotated) == (0, 1)
    assert (tmp_path / "log").read_text() == lines(3)


def test_one_record_larger_than_the_file_is_written_whole(tmp_path: Path) -> None:
    logged(tmp_path, "x" * 50, "y" * 50, kept=1)
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
    logged(tmp_path, "\udcff")
    assert contents(tmp_path) == {"log": "\\udcff\n"}
