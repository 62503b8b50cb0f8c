# SPDX-License-Identifier: Apache-2.0
"""All links in the documents have a target."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.docs.pages import PAGES, ROOT, anchors, links


def dead(page: Path) -> list[str]:
    """Return the relative links of a page without a target."""
    found = []
    for link in links(page):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, fragment = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (fragment and fragment not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert dead(page) == []


def test_a_dead_link_would_be_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Some heading\n[a](#some-heading) [b](#no) [c](no.md) [d](page.md#no) [e](https://no)\n")
    assert dead(page) == ["#no", "no.md", "page.md#no"]


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        targets = [(page.parent / link.partition("#")[0]).resolve() for link in links(page) if "://" not in link]
        waiting += [target for target in targets if target.suffix == ".md"]
    assert sorted(reached) == PAGES
