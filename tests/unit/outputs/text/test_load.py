# SPDX-License-Identifier: Apache-2.0
"""Devices as lines: they fit the terminal, and are shown if devices are kept apart."""

from __future__ import annotations

import pytest

from tests.unit.analysis.test_load import report
from tests.unit.outputs.samples import HOSTILE
from wptrace.analysis.load import BUSY_MS, LOAD, READS, STAMPED
from wptrace.flows.io.kinds import KINDS
from wptrace.model.report import Start
from wptrace.outputs.registry import Wanted
from wptrace.outputs.text.stages import StagesView, loads
from wptrace.outputs.text.tables import Style
from wptrace.outputs.text.words import columns


def test_a_line_for_each_device() -> None:
    title, stacked, first = loads(report(), Style(80, False))
    assert title.split() == ["devices", "util", "depth", "merged"]
    assert stacked.split() == ["dm-0", "-", "0.50", "-"]
    assert first.split() == ["sda", "25.0%", "0.40", "read", "7,", "write", "2"]
    assert list(loads(report().everywhere(), Style(80, False))) == []


@pytest.mark.parametrize("width", [80, 120])
def test_lines_fit(width: int) -> None:
    counters = {LOAD.group(name * 5): {READS: 1, STAMPED: 1, BUSY_MS: 900} for name in HOSTILE}
    for line in loads(report()._replace(counters=counters), Style(width, False)):
        assert line.isprintable()
        assert columns(line) <= width


@pytest.mark.parametrize(
    ("per_device", "by", "shown"),
    [(False, "", False), (True, "", True), (False, "device", True), (False, "comm", False)],
)
def test_where_devices_are_kept_apart(per_device: bool, by: str, shown: bool) -> None:
    view = StagesView(Wanted(per_device=per_device))
    list(view.begin(Start("io", "path", "6.12", {"by": by} if by else {}, [], KINDS, [])))
    found = report()
    assert any(line.startswith("devices") for line in view.report(found, 80)) is shown
    assert ("devices" in view.sections(found, (), 80)) is shown
    # On a live screen, a key decides it.
    assert "devices" in view.sections(found, (), 80, of=found)
    assert ("devices" in view.sections(found, (), 80, of=found.everywhere())) is (by == "device")
