# SPDX-License-Identifier: Apache-2.0
"""Reports of a capture and of parts of it, against the numbers that were written into it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.unit.capture.made import write
from wptrace.bpf.object import BpfObject
from wptrace.capture.reader import Capture
from wptrace.capture.recording import report
from wptrace.flows.io.kinds import OPERATION
from wptrace.model.kind import OPERATIONS, TOTAL

SECOND = 1_000_000_000


@pytest.mark.parametrize("end", [True, False])
@pytest.mark.parametrize(
    ("since", "until", "numbers"),
    [
        (None, None, range(8)),
        (None, 2 * SECOND, range(4)),
        (2 * SECOND, 2 * SECOND, range(3, 4)),
        (2 * SECOND, None, range(3, 8)),
        (4 * SECOND, None, range(0)),
    ],
)
def test_a_window_has_what_its_intervals_have(
    obj: BpfObject, tmp_path: Path, since: int | None, until: int | None, numbers: range, end: bool
) -> None:
    with closing(Capture(write(obj, tmp_path / "some.wpt", end=end))) as capture:
        found = report(capture, since, until)
    if not numbers:
        assert found is None
        return
    assert found is not None
    (stages,) = (cells for group, cells in found.cells.items() if group.kind.name == OPERATION.name)
    assert (stages[TOTAL].count, stages[TOTAL].sum) == (len(numbers), sum(numbers))
    assert found.books[OPERATIONS].finished == len(numbers)
    whole = range((since or SECOND) // SECOND, (until or 3 * SECOND) // SECOND + 1)
    assert found.duration_ns == len(whole) * SECOND
