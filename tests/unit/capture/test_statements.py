# SPDX-License-Identifier: Apache-2.0
"""Captures by statement: records have a number, the capture has each text once, and a replay has both."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from tests.unit.capture import made
from tests.unit.capture.made import ABOUT, START, entry, totals
from tests.unit.capture.test_overlap import BACKUP, DB, SECOND, one
from wptrace.bpf.object import BpfObject
from wptrace.capture import writer
from wptrace.capture.writer import CaptureOutput
from wptrace.cli.main import main
from wptrace.errors import UsageError
from wptrace.flows.io.kinds import KINDS, TEXT_FIELDS, UNREAD
from wptrace.flows.io.options import STATEMENT, UNIT
from wptrace.flows.io.parts import owners
from wptrace.flows.io.records import as_asked
from wptrace.model.book import Book
from wptrace.model.kind import NOBODY, OPERATIONS, REQUESTS, Comm
from wptrace.model.report import Overhead, Report, Start

QUERY, OTHER = 0x1234567890ABCDE2, 0xFEDCBA0987654322
LABELS = {
    0: NOBODY,
    1: None,
    4: UNREAD,
    QUERY: "select ? from orders",
    OTHER: "select '\udce9' from t",
    OTHER + 1: Comm("postgres: walwriter"),
}
LATIN = "select '\\xe9' from t"
"""As it is shown: invalid UTF-8 is escaped."""
FILTERS = {"dev": [], "by": "statement", "statement_text": "normalised"}
BY_STATEMENT = START._replace(
    filters=FILTERS, kinds=(*KINDS, *owners.KINDS[STATEMENT]), notes=[], fields=TEXT_FIELDS[STATEMENT]
)
BY_UNIT = BY_STATEMENT._replace(
    filters={**FILTERS, "by": "unit", "unit": "mariadb"},
    kinds=(*KINDS, *owners.KINDS[UNIT]),
    fields=TEXT_FIELDS[UNIT],
)
FOUND = (
    one(DB, 100, 200, 260, statement=QUERY),
    one(DB, 100, 400, 460, statement=QUERY),
    one(DB, 500, 500, 550, statement=OTHER),
    one(DB, 600, 600, 650, statement=4),
    one(DB, 700, 700, 750, statement=OTHER + 1),
    one(BACKUP, 100, 100, 200, statement=1),
)


@pytest.fixture
def asked() -> list[int]:
    """The numbers whose labels the writer asked for."""
    return []


@pytest.fixture
def capture(obj: BpfObject, tmp_path: Path, asked: list[int]) -> Path:
    return write(obj, tmp_path / "trace.wpt", asked)


def write(obj: BpfObject, path: Path, asked: list[int], times: int = 1, start: Start = BY_STATEMENT) -> Path:
    def statement_of(word: int) -> Any:
        asked.append(word)
        return LABELS[word]

    output = CaptureOutput(path, ABOUT)
    what = as_asked(True, True, True, texts=True)
    take = output.raw(obj, what, ["other", "sda"], {0: "", 10: "/batch", 20: "/app"}.__getitem__, dict, statement_of)
    output.start(start)
    for _ in range(times):
        for at, values in enumerate(FOUND):
            take(memoryview(entry(obj, at, **values)))
        output.in_flight([], SECOND)
    books = {REQUESTS: Book.read(0, 0, {}, {}), OPERATIONS: Book.read(6, 6, {}, {})}
    output.summary(Report("summary", SECOND, SECOND, books, {}, {}, Overhead(0, 0, 0, 0, 0, 0)))
    output.close()
    return path


def replayed(path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> list[dict[str, Any]]:
    return [one for one in made.replayed(path, capsys, *options) if one["kind"] != "in_flight"]


def test_events_have_their_statement(capture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, *events, _ = replayed(capture, capsys)
    assert [(one["owner"], one["statement"]) for one in events] == [
        ("select ? from orders", "select ? from orders"),
        ("select ? from orders", "select ? from orders"),
        (LATIN, LATIN),
        ("unread", None),
        ("postgres: walwriter", None),
        ("backup", None),
    ]


def test_events_have_their_unit(
    obj: BpfObject, tmp_path: Path, asked: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(obj, tmp_path / "trace.wpt", asked, start=BY_UNIT)
    _, *events, summary = replayed(path, capsys, "--by=unit", "--comm=db")
    assert {(one["owner"], one["unit"]) for one in events} == {
        ("select ? from orders", "select ? from orders"),
        (LATIN, LATIN),
        ("unread", None),
        ("postgres: walwriter", None),
    }
    assert all("statement" not in one for one in events)
    rows = {row["unit"] for row in summary["rows"] if row["kind"] == "owned_operation"}
    assert rows == {"select ? from orders", LATIN, None}
    # A column of lines has the name of what it is.
    assert main(["replay", str(path), "--line"]) == 0
    assert "UNIT" in capsys.readouterr().out.splitlines()[0].split()
    with pytest.raises(UsageError, match="its rows are by unit"):
        main(["replay", str(path), "--by=statement"])


def test_each_text_is_written_once_in_a_segment(
    obj: BpfObject,
    tmp_path: Path,
    asked: list[int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(obj, tmp_path / "one.wpt", asked, times=3)
    assert sorted(asked) == sorted({values["statement"] for values in FOUND})
    asked.clear()
    monkeypatch.setattr(writer, "_SEGMENT_BYTES", 1)
    path = write(obj, tmp_path / "many.wpt", asked, times=3)
    assert len(asked) == 3 * len({values["statement"] for values in FOUND})
    assert {one["owner"] for one in replayed(path, capsys)[1:-1]} >= {"select ? from orders", "unread"}


def test_rows_of_some_of_the_events(capture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows of the capture have no cgroup, but its records do."""
    start, summary = replayed(capture, capsys, "--by=statement", "--cgroup=/app", "--summary")
    assert start["notes"][-1] == "rows by statement are computed from the single operations and requests of the capture"
    rows = {one["owner"]: one for one in totals(summary) if one["kind"] == "owned_operation"}
    assert {name: (one["count"], one["statement"]) for name, one in rows.items()} == {
        "select ? from orders": (2, "select ? from orders"),
        LATIN: (1, LATIN),
        "unread": (1, None),
        "postgres: walwriter": (1, None),
    }


def test_neighbours_by_statement(capture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, summary = replayed(capture, capsys, "--by=statement", "--neighbours", "--summary")
    found = {one["owner"]: one for one in summary["neighbours"]}
    assert {name: one["requests"] for name, one in found.items()} == {
        "select ? from orders": 2,
        LATIN: 1,
        "unread": 1,
        "postgres: walwriter": 1,
        "backup": 1,
    }
    assert found["select ? from orders"]["meanwhile"][0] == {"owner": "backup", "ns": 200_000}


def test_lines_and_csv_have_a_column(capture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(capture), "--csv"]) == 0
    table = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(one["owner"], one["statement"]) for one in table][2:5] == [
        (LATIN, LATIN),
        ("unread", ""),
        ("postgres: walwriter", ""),
    ]
    assert main(["replay", str(capture), "--line"]) == 0
    title, *lines = capsys.readouterr().out.splitlines()
    at = title.index("STATEMENT")
    assert [line[at:].split("  ")[0] for line in lines[:4]] == [
        "select ? from orders",
        "select ? from orders",
        LATIN,
        "unread",
    ]


def test_stories_have_it(capture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(capture)]) == 0
    text = capsys.readouterr().out
    assert text.count("\n    select ? from orders\n") == 2
    assert text.count(f"\n    {LATIN}\n") == 1
    assert text.count("\n    postgres: walwriter\n") == 1
    assert text.count("\n    its statement could not be read\n") == 1
    assert "\n    backup\n" not in text


def test_traces_by_other_owners_have_no_statement(
    obj: BpfObject, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The field of the statement is ignored."""
    summary = made.report("summary", [1], SECOND)
    path = made.keep(
        obj, tmp_path / "trace.wpt", [entry(obj, 1, statement=QUERY)], summary, what=as_asked(True, True, True)
    )
    _, event, _ = made.replayed(path, capsys)
    assert not {"owner", "statement"} & event.keys()
    with pytest.raises(UsageError, match="--by statement cannot be answered"):
        main(["replay", str(path), "--by=statement"])
    assert main(["replay", str(path), "--csv"]) == 0
    assert "statement" not in capsys.readouterr().out.splitlines()[0]
