# SPDX-License-Identifier: Apache-2.0
"""The page of a difference: it draws the figures of both sides, and runs no scripts."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.unit.analysis.made_sides import Load, compared, seeded, side
from wptrace.analysis.diff import Difference
from wptrace.analysis.reasons import blame
from wptrace.outputs import page
from wptrace.outputs.export.file import ExportFile
from wptrace.outputs.text.diff import Ending

_QUICK = {"fs": (5_000.0, 0.1), "device": (100_000.0, 0.1), "throttle": (2_000.0, 0.1)}
_HOSTILE = "</style><script>alert(1)</script>"


class Balanced(HTMLParser):
    """A parser that checks that every element is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in ("meta", "line", "polygon"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            assert self.open.pop() == tag


@pytest.fixture(scope="module")
def found() -> Difference:
    rand = seeded(1)
    held = {**_QUICK, "throttle": (400_000.0, 0.1)}
    loads = [Load(100, _QUICK), Load(100, _QUICK, owner=_HOSTILE)]
    return compared(side(loads, rand), side([one._replace(stages=held) for one in loads], rand, name=_HOSTILE))


@pytest.fixture
def text(found: Difference, tmp_path: Path) -> str:
    file = tmp_path / "diff.html"
    page.write(found, Ending(blame(found, {})), ExportFile(file), False, 20)
    assert file.stat().st_mode & 0o777 == 0o600
    return file.read_text()


def test_nothing_runs_in_it_and_nothing_is_fetched(text: str) -> None:
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    checksum = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{checksum}'; base-uri 'none'; form-action 'none'"
    assert "<script" not in text
    assert " style=" not in text
    assert not re.search(r"https?://", text)


def test_names_are_text(text: str) -> None:
    assert "&lt;/style&gt;&lt;script&gt;" in text
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    assert "script" not in parser.seen


def test_the_verdict_stands_first(text: str) -> None:
    verdict, rest = (text.index(words) for words in ("verdict: reads", "What changed"))
    assert verdict < rest


def test_a_waterfall_leads_from_a_to_b(found: Difference, text: str) -> None:
    (change,) = [one for one in found.changes if not one.owner]
    drawing = text[text.index("From A to B") : text.index("How long they took")]
    rects = re.findall(r'<rect class="([^"]*)" x="([0-9.]*)" y="[0-9.]*" width="([0-9.]*)"', drawing)
    first, *steps, last = [(of, float(x), float(width)) for of, x, width in rects]
    assert (first[0], last[0]) == ("of-a area", "of-b area")
    assert last[2] / first[2] == pytest.approx(change.split.b_ns / change.split.a_ns, rel=0.02)
    (grown,) = [one for one in steps if one[0] == "up"]
    # The stage begins where A, or the stage before it, ends.
    assert grown[1] == pytest.approx(first[1] + first[2], abs=3)
    assert grown[1] + grown[2] == pytest.approx(last[1] + last[2], abs=3)


def test_both_maps_have_one_scale(text: str) -> None:
    maps = text[text.index("on one scale") :].split("<figure>")[1:3]
    shades = [[int(one) for one in re.findall(r'class="cell c([1-9])"', found)] for found in maps]
    assert max(max(one) for one in shades) == 9
    assert all(len(one) >= 10 for one in shades)
    axes = [re.findall(r"<text [^>]*>([^<]*)</text>", found) for found in maps]
    assert axes[0] == axes[1]
