# SPDX-License-Identifier: Apache-2.0
"""docs/rights.md names the capabilities in the code, and shows the unit in packaging."""

from __future__ import annotations

import re

from tests.unit.docs.pages import ROOT, blocks, section, tables, text
from wptrace.cli.main import command_names
from wptrace.kernel.privileges import CAPABILITIES

UNIT = (ROOT / "packaging" / "wptrace-io.service").read_text()


def test_every_capability_of_the_page_is_one_that_is_looked_for() -> None:
    # CAP_SYS_RESOURCE is never required; it lifts the limit on locked memory.
    assert set(re.findall(r"CAP_[A-Z_]+", text("rights.md"))) == set(CAPABILITIES) - {"CAP_SYS_RESOURCE"}


def test_every_command_has_a_row() -> None:
    (rows,) = tables(section("rights.md", "# Rights"))
    words = set(re.findall(r"\w+", " ".join(row[0] for row in rows)))
    assert set(command_names()) - {"doctor"} <= words


def test_the_unit_is_that_of_the_page_and_grants_no_more() -> None:
    (shown,) = blocks(text("rights.md"), "ini")
    lines = UNIT.splitlines()
    assert [line for line in shown.splitlines() if line not in lines] == []
    granted = re.findall(r"^(?:AmbientCapabilities|CapabilityBoundingSet)=(.*)$", UNIT, re.M)
    assert granted == ["CAP_BPF CAP_PERFMON"] * 2
