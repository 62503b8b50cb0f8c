# SPDX-License-Identifier: Apache-2.0
"""Files that a replay writes instead of showing something, and samples of events."""

from __future__ import annotations

import csv
import json
import stat
from pathlib import Path

import pytest

from tests.unit.capture.made import replayed, write
from wptrace.bpf.object import BpfObject
from wptrace.cli.main import main
from wptrace.errors import UsageError


@pytest.fixture
def file(obj: BpfObject, tmp_path: Path) -> Path:
    return write(obj, tmp_path / "trace.wpt")


def test_a_replay_to_a_format_writes_it_and_shows_nothing(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = replayed(file, capsys)
    table, rows = tmp_path / "out.csv", tmp_path / "out.json"
    assert main(["replay", str(file), "--to", "csv", "-o", str(table), "--export", f"json={rows}"]) == 0
    assert capsys.readouterr() == ("", "")
    with table.open() as opened:
        assert [int(row["total_ns"]) for row in csv.DictReader(opened)] == list(range(8))
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    # There are intervals of a second as well, with buckets.
    assert [one["kind"] for one in found].count("interval") == 3
    assert found[-1]["operations"] == lines[-1]["operations"]
    assert stat.S_IMODE(table.stat().st_mode) == 0o600
    # Options leave out the same events as in other outputs.
    assert main(["replay", str(file), "--to", "csv", "-o", str(table), "--slow", "6ns"]) == 0
    with table.open() as opened:
        assert [int(row["total_ns"]) for row in csv.DictReader(opened)] == [6, 7]


def test_a_report_is_a_page_beside_the_capture(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(file)]) == 0
    page = tmp_path / "trace.html"
    assert capsys.readouterr() == (f"{page}\n", "")
    other = tmp_path / "other.html"
    assert main(["report", str(file), "--op", "read", "-o", str(other)]) == 0
    assert capsys.readouterr() == ("", "")
    for found in (page, other):
        assert found.read_text().startswith("<!doctype html>")
    # A replay writes the same page.
    assert main(["replay", str(file), "--summary", "--report", str(other)]) == 0
    assert other.read_text().startswith("<!doctype html>")


def test_the_name_of_a_page_does_not_move_the_cursor(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(file.rename(tmp_path / "\x1b[2J\n.wpt"))]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/\\x1b[2J\\n.html\n"
    assert (tmp_path / "\x1b[2J\n.html").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--to", "html"], "--to html needs the name of a file: -o FILE"),
        (["--to", "html", "-o", "FILE"], "FILE and FILE are the same file: one would overwrite the other"),
        (["--to", "html", "-o", "out", "--json"], "--to html shows nothing, but --json does: choose one"),
        (["--to", "html", "-o", "out", "--report", "out"], "out is named twice: one would overwrite the other"),
        (["--report", "FILE"], "FILE is named twice: one would overwrite the other"),
        (["--summary", "--sample", "1/2"], "--summary shows no events, but --sample does: choose one"),
        (["--sample", "2"], "'2' is not a share such as 1/100"),
    ],
)
def test_what_cannot_be_written_is_one_sentence(
    words: list[str], sentence: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = file.read_bytes()
    with pytest.raises(UsageError) as raised:
        main(["replay", str(file), *(word.replace("FILE", str(file)) for word in words)])
    assert str(raised.value) == sentence.replace("FILE is", f"{file} is").replace("FILE and FILE", f"{file} and {file}")
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_a_sample_tells_one_in_so_many_of_those_that_are_not_slow(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def reported(*options: str) -> list[int]:
        _, *found, summary = replayed(file, capsys, *options)
        assert summary["operations"]["finished"] == 8
        return [one["total_ns"] for one in found]

    assert reported("--sample=1/3") == [2, 5]
    assert reported("--sample=1/1") == list(range(8))
    assert reported("--sample=1/2", "--slow=5ns") == [1, 3, 5, 6, 7]
