# SPDX-License-Identifier: Apache-2.0
"""The difference of two recordings as a summary for GitHub and its like: Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TextIO

from wptrace.analysis.diff import Difference, Pair
from wptrace.model import units
from wptrace.model.kind import TOTAL
from wptrace.outputs.text import changes, diff
from wptrace.outputs.text.changes import ratio, signed
from wptrace.outputs.text.diff import Ending
from wptrace.outputs.text.words import printable

# Characters with a meaning in Markdown, HTML or GitHub (mentions, numbers of issues).
_SPECIAL = re.compile(r"[&<>@#|`*_~\\\[\]]")


def write(difference: Difference, ending: Ending, stream: TextIO, dates: bool) -> None:
    for line in lines(difference, ending, dates):
        stream.write(line + "\n")


def lines(difference: Difference, ending: Ending, dates: bool) -> Iterator[str]:
    yield "### wptrace diff"
    yield ""
    for one in ending.outcomes:
        mark = "❔" if one.figure is None else "❌" if one.holds else "✅"
        yield f"- {mark} {_plain(changes.outcome(one))}"
    for _, sentences in changes.findings(difference):
        for sentence in sentences:
            # An indented one says more about the one before it.
            yield f"  - {_plain(sentence.strip())}" if sentence.startswith(" ") else f"- **{_plain(sentence)}**"
    if ending.blame is not None:
        for line in changes.verdict(ending.blame, difference, dates):
            yield f"- {_plain(line)}"
    for line in changes.came_and_went(difference):
        yield f"- {_plain(line)}"
    for line in (changes.chance(difference), *diff.few_stretches(difference)):
        yield f"- {_plain(line)}"
    for pairs in diff.by_kind(difference):
        if pairs[0].kind.total.unit == "ns" and pairs[0].kind.stages:
            for pair in diff.everywhere(pairs):
                if pair.a is not None and pair.b is not None:
                    yield from ["", *_table(difference, pair)]
    yield from ["", "<details><summary>What was compared</summary>", ""]
    for line in (*diff.recordings(difference, dates), *diff.unlike(difference)):
        yield f"- {_plain(line)}"
    yield from ["", "</details>"]


def _table(difference: Difference, pair: Pair) -> Iterator[str]:
    yield _plain(diff.title(difference, pair))
    yield ""
    yield "| stage | mean A | mean B | change | | p99 A | p99 B |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for metric in pair.kind.rows:
        found = [None if side is None else side.get(metric.name) for side in (pair.a, pair.b)]
        if metric.name in difference.joined or not any(one is not None and one.sum for one in found):
            continue
        figure = diff.figure(difference, pair, metric.name)
        means = [0.0 if one is None else one.mean for one in found]
        moved = means[1] - means[0]
        change = f"{signed(moved)} | {ratio(moved / means[0]) if means[0] else ''}"
        if figure is not None and figure.real:
            change = " | ".join(f"**{one}**" if one else "" for one in change.split(" | "))
        p99 = " | ".join(
            "" if one is None or not one.spread_known else units.duration(one.percentile(99)) for one in found
        )
        name = f"**{TOTAL}**" if metric.name == TOTAL else _plain(metric.name)
        yield f"| {name} | {' | '.join(map(units.duration, means))} | {change} | {p99} |"


def _plain(text: str) -> str:
    """Escape a text for Markdown, whatever names are in it."""
    return _SPECIAL.sub(lambda found: f"&#{ord(found[0])};", printable(text).replace("->", "→"))
