# SPDX-License-Identifier: Apache-2.0
"""Man pages as other systems render them: with mandoc, which is stricter than groff."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.packages.installed import ROOT, run

PAGES = sorted((ROOT / "docs/man").iterdir())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_mandoc_has_nothing_to_say(page: Path) -> None:
    done = run("mandoc", "-T", "lint", "-W", "warning", str(page))
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_its_date(page: Path) -> None:
    """`make release-check` needs it, and readers of several versions."""
    name = re.escape(page.stem.upper().replace("-", r"\-"))
    assert re.match(rf'\.TH {name} 1 "20\d\d-\d\d-\d\d" "wptrace ', page.read_text().splitlines()[1])
