# SPDX-License-Identifier: Apache-2.0
"""A folder of captures is read like a single file."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.unit.outputs.samples import SECOND, cell, group, report, start
from tests.unit.zone import zone
from wptrace.capture.folder import Folder
from wptrace.capture.reader import Capture
from wptrace.capture.writer import About, CaptureOutput
from wptrace.cli.main import main
from wptrace.cli.replay import moment
from wptrace.errors import UsageError, WptraceError
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
    with pytest.raises(WptraceError, match=r"a\.wpt was truncated"):
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


def intervals(folder: Path) -> list[Report]:
    capture = Capture(folder)
    found = [item for item in capture.items(False, True) if isinstance(item, Report) and item.kind == "interval"]
    capture.close()
    return found


def counted(folder: Path) -> int:
    return sum(one["total"].count for item in intervals(folder) for one in item.cells.values())


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


@pytest.mark.parametrize(
    "words",
    [
        ["replay", "DIR", "--summary", "-o", "DIR/2.wpt"],
        ["replay", "DIR", "--json", "-o", "DIR/1.wpt"],
        ["replay", "DIR", "--to", "json", "-o", "DIR/1.wpt"],
        ["replay", "DIR", "--report", "DIR/1.wpt"],
        ["report", "DIR", "-o", "DIR/1.wpt"],
        ["diff", "DIR", "DIR/../other.wpt", "-o", "DIR/2.wpt"],
        ["diff", "DIR/../other.wpt", "DIR", "--to", "html", "-o", "DIR/2.wpt"],
        ["join", "DIR/../other.wpt", "DIR", "--capture", "DIR/1.wpt"],
        ["join", "DIR/../other.wpt", "DIR", "--export", "json=DIR/1.wpt"],
    ],
)
def test_a_capture_of_a_folder_that_is_read_is_not_overwritten(words: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "io"
    folder.mkdir()
    for file in (folder / "1.wpt", folder / "2.wpt", tmp_path / "other.wpt"):
        written(file, 2)
    before = [file.read_bytes() for file in sorted(folder.iterdir())]
    with pytest.raises(UsageError, match="one would overwrite the other"):
        main([word.replace("DIR", str(folder)) for word in words])
    assert [file.read_bytes() for file in sorted(folder.iterdir())] == before


@pytest.mark.parametrize(("name", "place"), [("v.1", "."), (".", "v.1"), ("..", "v.1/below"), ("../v.1", "v.1")])
def test_the_page_of_a_folder_is_beside_it(
    name: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "v.1" / "below").mkdir(parents=True)
    written(tmp_path / "v.1" / "1.wpt", 1)
    monkeypatch.chdir(tmp_path / place)
    assert main(["report", name]) == 0
    page = tmp_path / "v.1.html"
    assert capsys.readouterr().out == f"{page}\n"
    assert page.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(("name", "words"), [("", "report needs the name of a file"), ("/", "/ has no captures")])
def test_a_report_of_nothing_is_one_sentence(name: str, words: str) -> None:
    with pytest.raises(WptraceError, match=words):
        main(["report", name])


@pytest.fixture
def berlin() -> Iterator[None]:
    with zone("Europe/Berlin"):
        yield


@pytest.mark.usefixtures("berlin")
def test_times_of_a_folder_are_those_of_its_last_days(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Including the night with an hour that comes twice."""
    (tmp_path / "io").mkdir()
    written(tmp_path / "io" / "1.wpt", 1)
    written(tmp_path / "one.wpt", 1)
    heads = []
    for one in (tmp_path / "io", tmp_path / "one.wpt"):
        with closing(Capture(one)) as capture:
            heads.append(capture.head._replace(began_ns=0))
    folder, file = heads
    now = int(time.mktime((2026, 10, 25, 15, 0, 0, 0, 0, -1)))
    monkeypatch.setattr(time, "time", lambda: float(now))

    def ago(text: str, since: str | None = None, head: object = folder) -> float:
        """Return how many hours ago a time was."""
        since_ns = None if since is None else moment(since, head, "--since")  # type: ignore[arg-type]
        return (now - moment(text, head, "--until", since_ns) / 1e9) / 3600  # type: ignore[arg-type]

    assert (ago("14:00"), ago("today 14:00"), ago("yesterday 14:00")) == (1, 1, 26)
    assert (ago("15:30"), ago("2026-10-24 15:30"), ago("yesterday 15:30:30.5")) == (24.5, 24.5, 24.5 - 30.5 / 3600)
    # The end follows the begin: on the same day or the next.
    assert (ago("14:10", "yesterday 14:00"), ago("00:30", "yesterday 23:00")) == (26 - 1 / 6, 15.5)
    assert ago("13:00", "today 14:00") == 2
    # Times of a single capture are of the day on which it began.
    assert ago("01:00", head=file) == now / 3600
    for wrong in ("yesterday", "tomorrow 14:00", "yesterday 30s", "today 24:00"):
        with pytest.raises(UsageError, match="takes a time such as"):
            moment(wrong, folder, "--since")
