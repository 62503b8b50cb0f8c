# SPDX-License-Identifier: Apache-2.0
"""Captures of every release are readable, and show the same as with that release."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.unit.capture.releases import FOLDER, lines, write
from tests.unit.docs.pages import DOCS
from wptrace import __version__
from wptrace.capture.reader import Capture
from wptrace.cli.main import main
from wptrace.errors import UsageError
from wptrace.model.report import Report
from wptrace.outputs.export import FORMATS

KEPT = sorted(FOLDER.glob("*.wpt"))


def holds(found: Any, kept: Any) -> bool:
    """Tell whether all of `kept` is in `found`, which may have more fields."""
    if isinstance(kept, dict):
        return isinstance(found, dict) and all(name in found and holds(found[name], kept[name]) for name in kept)
    if isinstance(kept, list):
        return isinstance(found, list) and len(found) == len(kept) and all(map(holds, found, kept))
    return bool(found == kept)


def test_this_release_is_among_them() -> None:
    assert {path.stem for path in KEPT} >= {f"{__version__}-{name}" for name in ("cpu", "io", "size", "stacks")}


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_capture_of_a_release_tells_the_same(path: Path) -> None:
    found = [json.loads(line) for line in lines(path)]
    kept = [json.loads(line) for line in path.with_suffix(".json").read_text().splitlines()]
    assert len(kept) >= 3
    # The version is that of the reader.
    for one in kept:
        one.pop("version", None)
    assert holds(found, kept)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_capture_of_a_release_becomes_a_file_of_each_format(path: Path, form: str, tmp_path: Path) -> None:
    words = ["replay", str(path), "--to", form, "-o", str(tmp_path / "out")]
    if form == "speedscope" and "stacks" not in path.stem:
        with pytest.raises(UsageError, match="speedscope files hold stacks"):
            main(words)
        return
    assert main(words) == 0
    assert (tmp_path / "out").stat().st_size > 0


def test_a_real_capture_with_the_verdict_of_a_release_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    real = DOCS / "captures" / "old-kernel.wpt"
    assert main(["replay", str(real), "--summary"]) == 0
    assert "verdict: device takes 100% of the time of read operations on loop1 (" in capsys.readouterr().out
    assert main(["report", str(real), "-o", str(tmp_path / "page.html")]) == 0


def test_all_that_is_written_is_read_as_it_was(tmp_path: Path) -> None:
    for path in write(tmp_path)[:3]:
        with closing(Capture(path)) as capture:
            reports = [one for one in capture.items() if isinstance(one, Report)]
        interval, summary = reports
        assert (interval.kind, summary.kind) == ("interval", "summary")
        assert interval._replace(kind="summary").counters == summary.counters
        assert summary.budget is not None
        assert summary.budget.shed[0].kind.rates == (4, 16)
        assert summary.verdict is not None
        assert summary.verdict.findings[0].group in summary.cells
        assert summary.lists == {"more": [{"pid": 7}]}
        book = summary.book
        assert (book.started, book.finished, book.failed, book.lost_total) == (9, 7, 1, 1)
        assert {cause.name: count for cause, count in book.noted.items()} == {"ring_full": 2, "recursion": 3}
        owners = {str(value): value for group in summary.counters for value in group.values if hasattr(value, "seen")}
        assert owners["/b"].seen == "backup"
