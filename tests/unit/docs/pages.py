# SPDX-License-Identifier: Apache-2.0
"""The documents as data: tables, code blocks, links, options of the man pages."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
MAN = DOCS / "man"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])


def script(name: str) -> ModuleType:
    """Import a script of packaging that generates parts of the documents."""
    found = importlib.util.spec_from_file_location(name, ROOT / "packaging" / f"{name}.py")
    assert found
    assert found.loader
    made = importlib.util.module_from_spec(found)
    found.loader.exec_module(made)
    return made


def text(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def section(page: str, heading: str) -> str:
    """Return the text below a heading, up to the next one of the same or a higher rank."""
    rank = len(heading) - len(heading.lstrip("#"))
    found = re.search(rf"^{re.escape(heading)}$(.*?)(?=^#{{1,{rank}}} |\Z)", text(page), re.M | re.S)
    assert found, f"{page} has no section {heading!r}"
    return found[1]


def tables(markdown: str) -> list[list[list[str]]]:
    """Return the rows of each table without its head, as cells without back quotes."""
    found = []
    for block in re.findall(r"(?:^\|.*\|\n)+", markdown + "\n", re.M):
        rows = [re.split(r"(?<!\\)\|", line.strip("|")) for line in block.splitlines()]
        found.append([[cell.strip().replace("`", "") for cell in row] for row in rows[2:]])
    return found


def blocks(markdown: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", markdown, re.M | re.S)


def links(page: Path) -> Iterator[str]:
    """Generate the targets of links outside code blocks."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    yield from re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", prose)


def anchors(page: Path) -> set[str]:
    """Return the headings as fragments, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def man_options(page: str) -> list[list[str]]:
    """Return the options of a man page, the spellings of each together: [["-d", "--dev"], ...]."""
    source = (MAN / page).read_text(encoding="utf-8")
    found = []
    for tag in re.findall(r"^\.TP\n(.*)$", source, re.M):
        plain = re.sub(r"^\.[A-Z]+ |\\f.", "", tag).replace("\\-", "-")
        if plain.startswith("-") and not plain.startswith("->"):
            found.append(re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", plain))
    return found


def man_text(page: str) -> str:
    """Return a man page without macros, as one line of words."""
    source = (MAN / page).read_text(encoding="utf-8")
    source = re.sub(r"^\.\\\".*$", "", source, flags=re.M)
    source = re.sub(r"^\.(?:TP|PP|IP.*)$", "", source, flags=re.M)
    source = re.sub(r"^\.(?:B|I|BR|RB|BI|IR|RI|SH|SS|TH) ", "", source, flags=re.M)
    return " ".join(source.replace("\\-", "-").replace('"', "").split())
