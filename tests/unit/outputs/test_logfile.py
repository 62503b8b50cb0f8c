# SPDX-License-Identifier: Apache-2.0
"""The log that is rotated, moved away, and on a disk that is full."""

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
        log.write([f"{number:04}"])  # two of five bytes each in a file
    log.close()
    assert contents(tmp_path) == {"log": "0006\n0007\n", "log.1": "0004\n0005\n", "log.2": "0002\n0003\n"}


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
