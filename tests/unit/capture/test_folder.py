# SPDX-License-Identifier: Apache-2.0
"""A folder of captures is read as if they were one file."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.unit.outputs.samples import SECOND, cell, group, report, start
from wptrace.capture.folder import Folder
from wptrace.capture.reader import Capture
from wptrace.capture.writer import About, CaptureOutput
from wptrace.errors import WptraceError
from wptrace.model.report import Report


def test_it_is_what_its_files_are_one_behind_the_other(tmp_path: Path) -> None:
    pieces = [b"abc", b"", b"defghij", b"k" * 1000, b"l"]
    for number, piece in enumerate(pieces):
        (tmp_path / f"{number}.wpt").write_bytes(piece)
    (tmp_path / "other.html").write_bytes(b"x")
    whole, folder = b"".join(pieces), Folder(tmp_path)
    assert folder.size == len(whole)
    rng = random.Random(3)  # noqa: S311
    for _ in range(500):
        place, length = rng.randrange(len(whole) + 5), rng.randrange(40)
        folder.seek(place)
        assert folder.read(length) == whole[place : place + length]
    folder.seek(0)
    assert folder.read(10**6) == whole
    folder.close()


def test_what_grows_meanwhile_is_as_it_was_and_what_shrinks_is_said(tmp_path: Path) -> None:
    for name in ("a.wpt", "b.wpt"):
        (tmp_path / name).write_bytes(b"abc")
    folder = Folder(tmp_path)
    (tmp_path / "a.wpt").write_bytes(b"abcdef")
    assert folder.read(6) == b"abcabc"
    (tmp_path / "a.wpt").write_bytes(b"a")
    folder.seek(0)
    with pytest.raises(WptraceError, match=r"a\.wpt has become shorter"):
        folder.read(6)
    folder.close()


def written(path: Path, count: int, end: bool = True) -> None:
    output = CaptureOutput(path, About("stages"))
    output.start(start())
    for _ in range(count):
        output.interval(report({group("sda"): cell([1000], [3000])}, duration_ns=SECOND))
    if end:
        output.summary(report({group("sda"): cell([1000] * count, [3000] * count)}, kind="summary"))
    output.close()


def counted(folder: Path) -> int:
    capture = Capture(folder)
    found = [item for item in capture.items(False, True) if isinstance(item, Report) and item.kind == "interval"]
    capture.close()
    return sum(one["total"].count for item in found for one in item.cells.values())


def test_captures_of_a_folder_are_read_on_behind_one_that_was_cut_off(tmp_path: Path) -> None:
    written(tmp_path / "1.wpt", 5)
    written(tmp_path / "2.wpt", 7, end=False)
    written(tmp_path / "3.wpt", 11)
    assert counted(tmp_path) == 23
    cut = tmp_path / "2.wpt"
    cut.write_bytes(cut.read_bytes()[:-20])
    assert counted(tmp_path) == 22


def test_links_are_not_followed_and_a_folder_without_captures_is_said(tmp_path: Path) -> None:
    inside = tmp_path / "io"
    inside.mkdir()
    with pytest.raises(WptraceError, match="has no captures") as caught:
        Capture(tmp_path)
    assert caught.value.hint == "name a folder in it: io"
    written(tmp_path / "x.wpt", 1)
    (inside / "1.wpt").symlink_to(tmp_path / "x.wpt")
    with pytest.raises(WptraceError):
        Capture(inside)
