# SPDX-License-Identifier: Apache-2.0
"""The difference of two recordings as a page: both heat maps on one scale, stages from A to B, histograms laid over
each other. It is drawn here, and nothing runs in it."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from wptrace.analysis.changes import Change
from wptrace.analysis.diff import Difference, Side
from wptrace.analysis.split import Sums
from wptrace.model import units
from wptrace.model.distribution import bounds, index
from wptrace.outputs.export.file import ExportFile
from wptrace.outputs.export.html import head, source
from wptrace.outputs.text import changes, diff
from wptrace.outputs.text.changes import signed
from wptrace.outputs.text.diff import Ending
from wptrace.outputs.text.words import printable

# The sizes of a drawing, in its own units.
_WIDTH, _HEIGHT, _LEFT, _BELOW = 560, 220, 64, 22
_LANE = 22
_SHADES = 9
# Buckets that a row of a heat map, or a step of a histogram, has: half a power of two.
_BUCKETS = 4
_MOST = 12
"""How many operations and owners are drawn; the tables have all."""


def write(difference: Difference, ending: Ending, file: ExportFile, dates: bool, top: int) -> None:
    title = f"{difference.a.name} and {difference.b.name}"
    style = source("report.css") + source("difference.css")
    body = "\n".join(_body(difference, ending, dates, top))
    file.write(f"{head(title, style)}<main>\n{body}\n</main>\n</body>\n</html>\n".encode("utf-8", "backslashreplace"))
    file.commit()


def _body(difference: Difference, ending: Ending, dates: bool, top: int) -> Iterator[str]:
    yield "<header><h1>wptrace diff</h1>"
    for line in diff.recordings(difference, dates):
        yield f"<p>{_plain(line)}</p>"
    yield "</header>"
    verdict = [] if ending.blame is None else list(changes.verdict(ending.blame, difference, dates))
    verdict = verdict or [changes.chance(difference)]
    yield f'<div class="verdict">{"".join(f"<p>{_plain(line)}</p>" for line in verdict)}</div>'
    unlike = list(diff.unlike(difference))
    if unlike:
        yield f'<div class="verdict lost">{"".join(f"<p>{_plain(line)}</p>" for line in unlike)}</div>'
    yield from _section("What changed", _list(diff.conclusion(difference)))
    outcomes = [changes.outcome(one) for one in ending.outcomes]
    if outcomes:
        yield from _section("Conditions", _list(outcomes))
    drawn = [one for one in difference.changes if not one.owner and one.kind.stages][:_MOST]
    for change in drawn:
        yield from _section(changes.subject(change), _of_change(difference, change))
    tables = "\n".join(map(printable, diff.lines(difference, dates, top)))
    yield from _section("All figures", [f"<pre>{_plain(tables)}</pre>"])
    yield "<footer>A <code>~</code> stands before a change that could be chance, or is too small to matter.</footer>"


def _section(title: str, lines: Sequence[str] | Iterator[str]) -> Iterator[str]:
    yield f"<section><h2>{_plain(title)}</h2>"
    yield from lines
    yield "</section>"


def _list(lines: Iterator[str] | Sequence[str]) -> Iterator[str]:
    yield f"<ul>{''.join(f'<li>{_plain(line)}</li>' for line in lines)}</ul>"


def _plain(text: str) -> str:
    return html.escape("\n".join(map(printable, text.split("\n"))))


def _of_change(difference: Difference, change: Change) -> Iterator[str]:
    yield '<div class="legend"><span><i class="of-a"></i>A</span><span><i class="of-b"></i>B</span></div>'
    yield '<div class="two">'
    yield f"<div><h3>From A to B, by stage</h3>{_waterfall(change)}</div>"
    yield f"<div><h3>How long they took</h3>{_histograms(change)}</div>"
    yield "</div>"
    maps = [_by_time(side, change) for side in (difference.a, difference.b)]
    slots = [slot for columns in maps for column in columns for slot in column]
    if slots:
        yield "<h3>Over time, on one scale</h3>"
        most = max(max(column.values()) for columns in maps for column in columns if column)
        drawn = "".join(_heat(columns, min(slots), max(slots), most) for columns in maps)
        yield f'<div class="two">{drawn}</div>'


# --- Drawings ---------------------------------------------------------------------------------------------------------


def _svg(height: float, about: str, parts: Sequence[str]) -> str:
    shown = html.escape(about, quote=True)
    box = f'viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{shown}"'
    return f"<figure><svg {box}>{''.join(parts)}</svg></figure>"


def _text(x: float, y: float, text: str, end: bool = False) -> str:
    anchor = ' text-anchor="end"' if end else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{anchor}>{_plain(text)}</text>'


def _rect(x: float, y: float, width: float, height: float, of: str, about: str = "") -> str:
    title = f"<title>{_plain(about)}</title>" if about else ""
    return (
        f'<rect class="{of}" x="{x:.1f}" y="{y:.1f}" width="{max(width, 1):.1f}" height="{height:.1f}">{title}</rect>'
    )


def _waterfall(change: Change) -> str:
    """The mean of A, what each stage adds or takes, the mean of B."""
    steps: list[tuple[str, float, float, str]] = [("A", 0.0, float(change.split.a_ns), "of-a area")]
    at = float(change.split.a_ns)
    for column, name in enumerate(change.columns, 1):
        ns = sum(part.ns for part in change.split.parts if part.column == column)
        if ns:
            figure = change.figures.get(name)
            sure = "" if figure is not None and figure.real else " maybe"
            steps.append((name, at, at + ns, ("up" if ns > 0 else "down") + sure))
            at += ns
    steps.append(("B", 0.0, float(change.split.b_ns), "of-b area"))
    most = max(max(one, other) for _, one, other, _ in steps) or 1.0
    left, room = _LEFT + 30, _WIDTH - _LEFT - 30 - 130
    parts = []
    for place, (name, one, other, of) in enumerate(steps):
        y = place * _LANE
        begin, end = sorted((one, other))
        parts.append(_text(left - 6, y + 15, name, end=True))
        parts.append(_rect(left + begin / most * room, y + 3, (end - begin) / most * room, _LANE - 6, of))
        whole = of.endswith("area")
        words = units.duration(other) if whole else signed(other - one)
        parts.append(_text(left + end / most * room + 6, y + 15, words))
    return _svg(len(steps) * _LANE, "the mean of A, the change of each stage, and the mean of B", parts)


def _histograms(change: Change) -> str:
    found = [_coarse([one]) for one in (change.a, change.b)]
    slots = [slot for one in found for slot in one]
    if not all(found):
        return "<p>not known for one of them: its times begin or end elsewhere</p>"
    first, last = min(slots), max(slots)
    shares = [{slot: count / one.count for slot, count in of.items()} for of, one in zip(found, (change.a, change.b))]
    most = max(max(one.values()) for one in shares)
    step = (_WIDTH - _LEFT - 10) / (last - first + 1)
    parts = list(_scale(first, last, step))
    for one, of in zip(shares, ("of-a area", "of-b area")):
        points = [f"{_LEFT},{_HEIGHT - _BELOW}"]
        for slot in range(first, last + 1):
            y = _HEIGHT - _BELOW - one.get(slot, 0.0) / most * (_HEIGHT - _BELOW - 10)
            x = _LEFT + (slot - first) * step
            points += [f"{x:.1f},{y:.1f}", f"{x + step:.1f},{y:.1f}"]
        points.append(f"{_LEFT + (last - first + 1) * step:.1f},{_HEIGHT - _BELOW}")
        parts.append(f'<polygon class="{of}" points="{" ".join(points)}"/>')
    parts.append(_text(_LEFT - 6, 16, f"{most:.0%}", end=True))
    return _svg(_HEIGHT, "histograms of A and B laid over each other", parts)


def _scale(first: int, last: int, step: float) -> Iterator[str]:
    """Times below, at powers of ten."""
    for slot, time in _powers(first, last):
        x = _LEFT + (slot - first) * step
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="6" y2="{_HEIGHT - _BELOW}"/>'
        yield _text(x + 2, _HEIGHT - 6, time)


def _powers(first: int, last: int) -> Iterator[tuple[int, str]]:
    for power in range(12):
        slot = index(10**power) // _BUCKETS
        if first <= slot <= last:
            yield slot, units.duration(10**power)


def _coarse(found: Iterable[Sums]) -> dict[int, int]:
    rows: dict[int, int] = {}
    for one in found:
        for slot, count in one.buckets.items():
            rows[slot // _BUCKETS] = rows.get(slot // _BUCKETS, 0) + count
    return rows


def _by_time(side: Side, change: Change) -> list[dict[int, float]]:
    """A column for each stretch: how many there were in a second, by bucket."""
    measured = side.measured[change.kind.name]
    columns = []
    for one in measured.stretches:
        if one.duration_ns:
            column = _coarse(one.classes.get(change.op, {}).values())
            columns.append({slot: count * 1e9 / one.duration_ns for slot, count in column.items()})
    return columns


def _heat(columns: Sequence[Mapping[int, float]], first: int, last: int, most: float) -> str:
    across = (_WIDTH - _LEFT - 10) / max(len(columns), 1)
    up = (_HEIGHT - 10) / (last - first + 1)
    parts = [_text(_LEFT - 6, _HEIGHT - (slot - first) * up - 2, time, end=True) for slot, time in _powers(first, last)]
    for place, column in enumerate(columns):
        for slot, rate in column.items():
            # Perceived brightness is not linear in the count.
            shade = 1 + round((_SHADES - 1) * math.sqrt(rate / most))
            low, high = bounds(slot * _BUCKETS)[0], bounds(slot * _BUCKETS + _BUCKETS - 1)[1]
            about = f"{units.rate(rate)} of {units.duration(low)} to {units.duration(high)}"
            y = _HEIGHT - (slot - first + 1) * up
            parts.append(_rect(_LEFT + place * across, y, across, up, f"cell c{shade}", about))
    return _svg(_HEIGHT, "how many took how long, over time", parts)
