# SPDX-License-Identifier: Apache-2.0
"""docs/fleet.md has the panels of the dashboard and their metrics."""

from __future__ import annotations

import json
import re

from tests.unit.docs.pages import ROOT, section, tables

DASHBOARD = json.loads((ROOT / "contrib" / "grafana" / "hosts.json").read_text())
METRIC = r"wptrace_\w+?(?=_count\b|_sum\b|\W|$)"


def test_the_page_has_every_panel_with_its_metric() -> None:
    (rows,) = tables(section("fleet.md", "## The dashboard"))
    shown = {title: set(re.findall(METRIC, text)) for titles, text in rows for title in titles.split(", ")}
    asked = {panel["title"]: set(re.findall(METRIC, panel["targets"][0]["expr"])) for panel in DASHBOARD["panels"]}
    assert set(shown) == set(asked)
    plain = {title: {name.removesuffix("_bucket") for name in names} for title, names in asked.items()}
    assert {title: {name.removesuffix("_bucket") for name in names} for title, names in shown.items()} == plain


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)
