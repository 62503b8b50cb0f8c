# SPDX-License-Identifier: Apache-2.0
"""--report and --export of a trace: what is refused before anything is attached, and what an early end leaves."""

from __future__ import annotations

import signal
import stat
from pathlib import Path

import pytest

from tests.unit.cli.command import FAKE, begun, ended, run
from tests.unit.outputs.export.test_html import data
from wptrace.cli import irqoff
from wptrace.cli.main import Parser, main, parser
from wptrace.errors import UsageError


def test_ctrl_c_leaves_a_whole_report_and_shows_no_more_than_without(tmp_path: Path) -> None:
    place = tmp_path / "report.html"
    process, _ = begun("io", "--slow", "1ms", "--report", str(place))
    assert process.stdout is not None
    while not process.stdout.readline().startswith(b"    "):
        """Until the first event."""
    process.send_signal(signal.SIGINT)
    code, rest, _ = ended(process)
    assert (code, rest.count(b"requests in")) == (0, 1)
    found = data(place.read_text())
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert found["events"]["seen"] == 1
    counts = [series["cells"]["total"][0] for series in found["series"]]
    assert counts == [sum(cells["0"]["total"][0] for _, _, cells, _ in found["columns"])]
    assert counts[0] > 0


def test_a_trace_that_fails_leaves_none(tmp_path: Path) -> None:
    done = run(FAKE, "io", "0.05", "9", "--report", str(tmp_path / "report.html"), FAKE_FAULT="1")
    assert done.returncode != 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--export", "html"], "FORMAT=FILE"),
        (["--export", "pdf=x"], "FORMAT=FILE"),
        (["--export", "html="], "name of a file"),
        (["--report", ""], "name of a file"),
        (["--report", "x", "--export", "html=./x"], "named twice"),
        (["--report", "x", "-o", "x"], "named twice"),
        (["--report", "x", "--report", "y"], "--report takes one value, not both x and y"),
        (["--report", "x", "--each", "--capture", "x"], "named twice"),
        (["--export", "csv=x", "--each", "--capture", "y"], "use --export with wptrace replay"),
        (["--report", "x", "--slow", "1ms", "--capture", "y"], "use --export with wptrace replay"),
        (["--line", "--slow", "1ms", "--capture", "y"], "use --line with wptrace replay"),
    ],
)
def test_what_is_refused(words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=sentence):
        main(["io", *words])
    assert list(tmp_path.iterdir()) == []


def test_several_flows_have_no_report_in_common() -> None:
    with pytest.raises(UsageError, match="takes one definition"):
        main(["net", "--report", "x"])


@pytest.mark.parametrize(
    ("words", "ends"),
    [
        ([], (None, None)),
        (["--report", "x"], (1.0, None)),
        (["-d", "90s"], (90.0, 1)),
        (["-d", "90s", "--report", "x"], (1.0, 90)),
        (["-d", "500ms", "--report", "x"], (0.5, 1)),
        (["5", "--report", "x"], (5.0, None)),
    ],
)
def test_a_report_has_columns_of_a_second(words: list[str], ends: tuple[float | None, int | None]) -> None:
    made: Parser = parser(["irqoff"], ["irqoff"])
    assert irqoff._ends(made.parse_args(["irqoff", *words])) == ends
