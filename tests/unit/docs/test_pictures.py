# SPDX-License-Identifier: Apache-2.0
"""The pictures of the documents are those that `make pictures` draws."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.unit.docs.pages import DOCS, PAGES, script
from wptrace.flows.io.kinds import STAGES

PICTURES = script("pictures")
FILES = sorted((DOCS / "pictures").glob("*.svg"))


def words(picture: str) -> list[str]:
    """Return the words of a picture in the order in which they are drawn."""
    made = ElementTree.fromstring(picture)  # noqa: S314 - our own document
    return ["".join(text.itertext()) for text in made.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("name", list(PICTURES.DRAWN))
def test_what_is_drawn_from_the_code_is_so(name: str) -> None:
    assert (DOCS / "pictures" / name).read_text() == PICTURES.DRAWN[name](), "run make pictures"


def test_the_path_has_the_points_of_a_request_in_their_order() -> None:
    drawn = words(PICTURES.path())
    assert "".join(word for word in drawn if len(word) == 1) == "EQGDHSCWX"
    assert {"fs", "throttle", "queue", "driver", "device", "complete", "wakeup", "return"} <= set(drawn)
    rare = {name for name, stage in STAGES.items() if stage.rare}
    assert set(STAGES) - rare <= set(drawn)


def test_the_screen_is_one_of_a_trace() -> None:
    drawn = words((DOCS / "pictures" / "screen.svg").read_text())
    assert drawn[0] == "$ sudo wptrace io -d loop0 --by cgroup --neighbours"
    assert {line.split()[0] for line in drawn if line.startswith("  ") and line.strip()} >= {"stage", "device", "total"}


def test_the_screen_says_what_stands_below_it() -> None:
    """The screen names a neighbour, and nothing is lost, as the README says."""
    picture = (DOCS / "pictures" / "screen.svg").read_text()
    drawn = words(picture)
    assert len(picture) < 1 << 20
    last = " ".join(line.strip() for line in drawn)
    assert PICTURES._CULPRIT.search(last)
    assert not PICTURES._LOST.search("\n".join(drawn))


@pytest.mark.parametrize(("name", "size"), [("report.png", PICTURES.PAGE), ("perfetto.png", PICTURES.PERFETTO)])
def test_what_a_browser_shows_is_a_picture_of_its_size(name: str, size: tuple[int, int]) -> None:
    data = (DOCS / "pictures" / name).read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", data[16:24]) == size
    assert len(data) < 300_000
    assert f"pictures/{name})" in (DOCS / "reports.md").read_text()


def test_the_timeline_has_the_caption_that_was_checked_when_it_was_drawn() -> None:
    assert PICTURES.CAPTION in (DOCS / "reports.md").read_text()


@pytest.mark.parametrize("picture", FILES, ids=lambda path: path.name)
def test_a_picture_is_whole_in_itself_and_on_a_page(picture: Path) -> None:
    source = picture.read_text()
    assert not re.search(r"(?:href|src|url\()=?[\"'(]?https?:", source)
    assert any(f"pictures/{picture.name})" in page.read_text() for page in PAGES)
