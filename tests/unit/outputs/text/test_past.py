# SPDX-License-Identifier: Apache-2.0
"""The earlier intervals that a live screen keeps."""

from __future__ import annotations

import pytest

from tests.unit.outputs import path
from tests.unit.outputs.samples import MS, SECOND, distribution
from wptrace.model.report import Report
from wptrace.outputs.text import past
from wptrace.outputs.text.past import Past
from wptrace.outputs.text.words import columns

READ, WRITE = (path.OPERATION.group("sda", op) for op in ("read", "write"))


def interval(at: int, reads: list[int], writes: list[int] = ()) -> Report:  # type: ignore[assignment]
    cells = {group: {"total": distribution(times)} for group, times in ((READ, reads), (WRITE, writes)) if times}
    return path.report(cells, ts_ns=at * SECOND)


def of(*reports: Report) -> Past:
    made = Past()
    for one in reports:
        made.add(one, path.OPERATION)
    return made


def test_one_goes_back_as_far_as_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past, "_CELLS", 5)
    found = of(*(interval(at, [MS]) for at in range(9)))
    assert len(found) == 5
    assert [found.at(back).ts_ns // SECOND for back in range(5)] == [8, 7, 6, 5, 4]


def test_a_report_of_thousands_is_kept_while_it_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past, "_CELLS", 1)
    found = of(interval(0, [MS]), interval(1, [MS], [MS]))
    assert (len(found), found.at(0).ts_ns) == (1, SECOND)


def test_lines_say_how_p50_and_p99_went() -> None:
    """Higher means longer, a gap means no operation, and rows with the most time come first."""
    found = of(interval(0, [MS]), interval(1, [], [MS]), interval(2, [8 * MS, 8 * MS]), interval(3, [4 * MS]))
    read, write = found.lines(100)
    assert read == "read    p50 ▁ █▄ up to 8.00 ms  p99 ▁ █▄ up to 8.00 ms"
    assert write == "write   p50  █   up to 1.00 ms  p99  █   up to 1.00 ms"
    # The line is that of one interval earlier.
    assert next(found.lines(100, 1)) == "read    p50 ▁ █ up to 8.00 ms  p99 ▁ █ up to 8.00 ms"


def test_one_interval_is_no_line() -> None:
    assert not list(of(interval(0, [MS])).lines(100))
    assert not list(Past().lines(100))


@pytest.mark.parametrize("width", [1, 40, 63, 80, 120, 200])
def test_lines_fit(width: int) -> None:
    found = of(*(interval(at, [at * MS + 1]) for at in range(700)))
    lines = list(found.lines(width))
    assert all(columns(line) <= width for line in lines)
    assert len(lines) == (width > 63)
