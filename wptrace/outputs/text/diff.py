# SPDX-License-Identifier: Apache-2.0
"""Two recordings beside each other as tables, and their differences in words."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TextIO

from wptrace.analysis import load
from wptrace.analysis.chance import STRETCHES
from wptrace.analysis.changes import Change, Figure
from wptrace.analysis.condition import Outcome
from wptrace.analysis.diff import NOT_BY_OWNER, Difference, Pair, Side
from wptrace.analysis.reasons import Blame
from wptrace.kernel.clock import clock_seconds
from wptrace.model import units
from wptrace.model.distribution import Distribution
from wptrace.model.kind import OPERATION, OPERATIONS, OTHERS, REQUESTS, STACK, TOTAL
from wptrace.model.report import of_one_row
from wptrace.outputs.text import changes, words
from wptrace.outputs.text.changes import ratio, signed
from wptrace.outputs.text.words import columns, durations, ends, padded, printable

_NAME = 12
_WIDEST = 34
_NOTHING = f"{'-':>8}"
CHANCE = "~"
"""Before a change that may be chance, or is too small to matter."""


class Ending(NamedTuple):
    """The lines below the tables, the same in all formats."""

    blame: Blame | None = None
    outcomes: Sequence[Outcome] = ()


def write(difference: Difference, ending: Ending, stream: TextIO, width: int, dates: bool, top: int) -> None:
    verdict = [] if ending.blame is None else changes.verdict(ending.blame, difference, dates)
    # Any part of a line may come from a forged capture.
    for line in map(printable, (*lines(difference, dates, top), *verdict, *map(changes.outcome, ending.outcomes))):
        if stream.isatty() and len(line) > width and not line.startswith("  "):
            stream.write("\n".join(textwrap.wrap(line, width, subsequent_indent="  ")) + "\n")
        else:
            stream.write(line + "\n")


def lines(difference: Difference, dates: bool, top: int) -> Iterator[str]:
    yield from recordings(difference, dates)
    yield from unlike(difference)
    for table in _tables(difference, top):
        if table:
            yield from ["", *table]
    yield ""
    yield from conclusion(difference)


def recordings(difference: Difference, dates: bool) -> Iterator[str]:
    for name, side in (("A", difference.a), ("B", difference.b)):
        yield f"{name}: {_about(side, dates)}"


def _about(side: Side, dates: bool) -> str:
    start, report = side.start, side.report
    level = f" (level {start.level})" if start.level else ""
    kind = next((kind for book in (OPERATIONS, REQUESTS) for kind in start.kinds if kind.book == book), start.kinds[0])
    count = sum(stages[TOTAL].count for group, stages in report.cells.items() if group.kind is kind and TOTAL in stages)
    when = clock_seconds(side.began_ns, dates)
    return (
        f"{printable(side.name)}: {start.flow}{level}{words.chosen(start)}, Linux {printable(start.kernel)}:"
        f" {kind.noun.of(count)} in {units.duration(report.duration_ns)} from {when}"
    )


def unlike(difference: Difference) -> Iterator[str]:
    """Differences of the recordings themselves."""
    for one in difference.unlike:
        if one.what == "note":
            yield f"not alike: only in {'A' if one.a else 'B'}: {printable(one.a or one.b)}"
            continue
        line = f"{'in both' if one.a == one.b else 'not alike'}: {printable(one.what)}: {printable(one.a)}"
        line += f" in A, {printable(one.b)} in B" if one.b else ""
        yield f"{line}: {one.therefore}" if one.therefore else line
    for name, side in (("A", difference.a), ("B", difference.b)):
        for note in side.notes:
            yield f"note: {name}: {printable(note)}"


# --- Tables -----------------------------------------------------------------------------------------------------------


def _tables(difference: Difference, top: int) -> Iterator[list[str]]:
    for pairs in by_kind(difference):
        kind = pairs[0].kind
        if kind.total.unit != "ns":
            yield from _of_values(difference, pairs)
        elif kind.stages:
            for one in everywhere(pairs):
                if one.unseen:
                    continue
                yield list(_of_stages(difference, one))
        else:
            yield list(_of_rows(difference, pairs, top))
    yield list(_owners(difference, top))
    yield list(_devices(difference))


def by_kind(difference: Difference) -> Iterable[list[Pair]]:
    """Pairs, those of each kind together; that one side has none by owner is said once."""
    found: dict[str, list[Pair]] = {}
    for pair in difference.pairs:
        if pair.unseen != NOT_BY_OWNER:
            found.setdefault(pair.kind.name, []).append(pair)
    return found.values()


def _op(pair: Pair) -> str:
    return next((value for label, value in zip(pair.kind.labels, pair.values) if label.type == OPERATION), "")


def everywhere(pairs: Sequence[Pair]) -> Iterator[Pair]:
    """Generate a pair for each operation, with other labels added up."""
    by_op: dict[str, list[Pair]] = {}
    for pair in pairs:
        by_op.setdefault(_op(pair), []).append(pair)
    for op, found in by_op.items():
        sides = ([one for one in side if one is not None] for side in zip(*((one.a, one.b) for one in found)))
        a, b = (of_one_row(rows) if rows else None for rows in sides)
        unseen = next((one.unseen for one in found if one.unseen), "") if a is None or b is None else ""
        values = tuple(op if label.type == OPERATION else "" for label in found[0].kind.labels)
        count = (sum(one.bytes[0] for one in found), sum(one.bytes[1] for one in found))
        yield Pair(found[0].kind, values, a, b, count, unseen)


def figure(difference: Difference, pair: Pair, stage: str) -> Figure | None:
    """Return the figure of a stage of all objects of an operation, if it was compared."""
    for one in difference.changes:
        if (one.kind.name, one.op, one.owner) == (pair.kind.name, _op(pair), ""):
            return one.figures.get("mean" if stage == TOTAL else stage)
    return None


def _of_stages(difference: Difference, pair: Pair) -> Iterator[str]:
    yield title(difference, pair)
    if pair.a is None or pair.b is None:
        return
    yield f"  {'stage':<{_NAME}} {'mean A':>8} {'mean B':>8}   {'change':>8} {'':>7} {_PERCENTILES}"
    for metric in pair.kind.rows:
        a, b = pair.a.get(metric.name), pair.b.get(metric.name)
        if a is None and b is None:
            continue
        name = metric.name
        if name in difference.joined:
            yield f"  {name:<{_NAME}} {_shown(a)} {_shown(b)}   part of {difference.joined[name]}"
            continue
        if not _some(a) and not _some(b):
            continue
        found = figure(difference, pair, name)
        yield _line(name, _NAME, a, b, found is not None and found.real)


_PERCENTILES = f"{'p50 A':>8} {'p50 B':>8} {'p99 A':>8} {'p99 B':>8}"


def _some(found: Distribution | None) -> bool:
    return found is not None and bool(found.sum)


def _shown(found: Distribution | None) -> str:
    return _NOTHING if found is None or not found.sum else f"{units.duration(found.mean):>8}"


def _line(name: str, width: int, a: Distribution | None, b: Distribution | None, real: bool) -> str:
    mean = [0.0 if one is None else one.mean for one in (a, b)]
    moved = mean[1] - mean[0]
    relative = ratio(moved / mean[0]) if mean[0] else "new" if mean[1] else ""
    mark = " " if real else CHANCE
    line = f"  {padded(name, width)} {_shown(a)} {_shown(b)} {mark} {signed(moved):>8} {relative:>7}"
    for percent in (50, 99):
        for one in (a, b):
            line += f" {_percentile(one, percent):>8}"
    return line


def _percentile(found: Distribution | None, percent: float) -> str:
    return "-" if found is None or not found.spread_known else units.duration(found.percentile(percent))


def title(difference: Difference, pair: Pair) -> str:
    seconds = [side.report.duration_ns / 1e9 for side in (difference.a, difference.b)]
    counts = [0 if one is None or TOTAL not in one else one[TOTAL].count for one in (pair.a, pair.b)]
    name = printable(" ".join(filter(None, pair.values)))
    line = f"{name}: " if name else ""
    line += f"{counts[0]:,} -> {pair.kind.noun.of(counts[1])}"
    if all(seconds):
        rates = [count / long for count, long in zip(counts, seconds)]
        line += f", {units.rate(rates[0])} -> {units.rate(rates[1])}"
        if pair.kind.sized:
            sizes = [count / long for count, long in zip(pair.bytes, seconds)]
            line += f", {units.size(sizes[0])}/s -> {units.size(sizes[1])}/s"
            if all(counts) and all(pair.bytes):
                each = [units.size(round(size / count)) for size, count in zip(pair.bytes, counts)]
                line += f", {each[0]} -> {each[1]} each" if each[0] != each[1] else ""
    return line + _state(pair)


def _state(pair: Pair) -> str:
    if pair.unseen:
        return f" ({pair.unseen} in {'A' if pair.a is None else 'B'})"
    return " (new)" if pair.a is None else " (gone)" if pair.b is None else ""


def _of_values(difference: Difference, pairs: Sequence[Pair]) -> Iterator[list[str]]:
    """Lines of values that are not times, such as sizes."""
    for pair in pairs:
        lines = [title(difference, pair)]
        if pair.a is not None and pair.b is not None:
            lines.append(f"  {'':<{_NAME}} {'count A':>11} {'count B':>11} {'mean A':>9} {'mean B':>9}")
            for metric in pair.kind.rows:
                a, b = pair.a.get(metric.name), pair.b.get(metric.name)
                if a is None and b is None:
                    continue
                counts = [0 if one is None else one.count for one in (a, b)]
                means = [0 if one is None else round(one.mean) for one in (a, b)]
                if any(counts):
                    shown = " ".join(f"{_value(mean, metric.unit):>9}" for mean in means)
                    lines.append(f"  {metric.name:<{_NAME}} {counts[0]:>11,} {counts[1]:>11,} {shown}")
        yield lines


def _value(value: int, unit: str) -> str:
    return units.size(value) if unit == "bytes" else f"{value:,}"


def _of_rows(difference: Difference, pairs: Sequence[Pair], top: int) -> Iterator[str]:
    """A line for each; of owners, those whose time changed the most."""
    kind = pairs[0].kind
    shown = (sorted(pairs, key=_weight, reverse=True) if kind.ranked else list(pairs))[: top or None]
    found = {(one.op, one.owner): one for one in difference.changes if one.kind.name == kind.name}
    names = [_name(pair) for pair in shown]
    width = min(max(len(kind.noun.plural) + 9, *map(columns, names)), _WIDEST)
    yield _row_title(f"{kind.noun.plural} by owner" if kind.ranked else kind.noun.plural, width)
    for name, pair in zip(names, shown):
        change = found.get((_op(pair), _owner(pair)))
        yield _row(difference, pair, ends(name, width), width, change)
    yield from _left(len(pairs) - len(shown))


def _left(count: int) -> Iterator[str]:
    if count:
        yield f"  and {count:,} more (--top 0 shows all)"


def _row_title(title: str, width: int) -> str:
    return (
        f"{padded(title, width + 2)} {'rate A':>9} {'rate B':>9} {'mean A':>8} {'mean B':>8}   {'change':>8} {'':>7}"
        f" {'p99 A':>8} {'p99 B':>8}"
    )


def _row(difference: Difference, pair: Pair, name: str, width: int, change: Change | None) -> str:
    cells = [None if one is None else one.get(TOTAL) for one in (pair.a, pair.b)]
    line = f"  {padded(name, width)}"
    for cell, side in zip(cells, (difference.a, difference.b)):
        duration = side.report.duration_ns
        rate = units.rate(cell.count * 1e9 / duration) if cell is not None and duration else "-"
        line += f" {rate:>9}"
    for cell in cells:
        line += f" {_NOTHING if cell is None else f'{units.duration(cell.mean):>8}'}"
    if cells[0] is None or cells[1] is None:
        line += f"   {_state(pair).strip().strip('()'):>16}"
    else:
        moved = cells[1].mean - cells[0].mean
        mark = " " if change is not None and change.figures["mean"].real else CHANCE
        relative = ratio(moved / cells[0].mean) if cells[0].mean else ""
        line += f" {mark} {signed(moved):>8} {relative:>7}"
    for cell in cells:
        line += f" {_percentile(cell, 99):>8}"
    return line


def _name(pair: Pair) -> str:
    return printable(" ".join(filter(None, pair.values))) or "all"


def _owner(pair: Pair) -> str:
    return next((value for label, value in zip(pair.kind.labels, pair.values) if label.alias == "owner"), "")


def _weight(pair: Pair) -> int:
    sums = [0 if one is None or TOTAL not in one else one[TOTAL].sum for one in (pair.a, pair.b)]
    return max(sums) if min(sums) == 0 else abs(sums[1] - sums[0]) + max(sums) // 10


def _owners(difference: Difference, top: int) -> Iterator[str]:
    """Generate the owners of operations whose classes have owners."""
    found = [one for one in difference.changes if one.owner and one.kind.stages and one.owner != OTHERS]
    if not found:
        return
    found.sort(key=lambda one: -abs(one.b.times[0] - one.a.times[0]))
    shown = found[: top or None]
    names = [changes.subject(one) for one in shown]
    width = min(max(20, *map(columns, names)), _WIDEST)
    yield _row_title("by owner", width)
    for name, one in zip(names, shown):
        mean = one.figures["mean"]
        mark = " " if mean.real else CHANCE
        line = f"  {padded(ends(name, width), width)}"
        line += "".join(f" {units.rate(rate):>9}" for rate in (one.figures["rate"].a, one.figures["rate"].b))
        line += f"{durations(mean.a, mean.b)} {mark} {signed(mean.change):>8} {changes.percent(mean):>7}"
        line += durations(one.a.percentile(99), one.b.percentile(99))
        yield line
    yield from _left(len(found) - len(shown))


def _devices(difference: Difference) -> Iterator[str]:
    found = [{one.dev: one for one in load.of(side.report)} for side in (difference.a, difference.b)]
    names = sorted({*found[0], *found[1]})
    if not names:
        return
    width = min(max(12, *(columns(printable(name)) for name in names)), _WIDEST)
    yield f"{padded('devices', width + 2)} {'util A':>7} {'util B':>7} {'depth A':>9} {'depth B':>9}"
    for name in names:
        there = [of.get(name) for of in found]
        line = f"  {padded(ends(printable(name), width), width)}"
        for one in there:
            share = "-" if one is None or one.utilisation is None else f"{one.utilisation:.1%}"
            line += f" {share:>7}"
        for one in there:
            line += f" {'-' if one is None else f'{one.queue_depth:.2f}':>9}"
        yield line


# --- Flame graphs ---------------------------------------------------------------------------------------------------


def folded(difference: Difference, weight: str) -> Iterator[str]:
    """A line for each stack with its weight in A and in B, both as of the duration of A."""
    weights: dict[str, list[int]] = {}
    for pair in difference.pairs:
        stack = next((value for label, value in zip(pair.kind.labels, pair.values) if label.type == STACK), "")
        for at, cells in enumerate((pair.a, pair.b)):
            if stack and cells is not None and TOTAL in cells:
                found = cells[TOTAL]
                weights.setdefault(stack, [0, 0])[at] += found.sum if weight == "time" else found.count
    a, b = difference.a.report.duration_ns, difference.b.report.duration_ns
    for stack, (one, other) in sorted(weights.items()):
        yield f"{printable(stack)} {one} {other * a // b if b else other}"


# --- The end ----------------------------------------------------------------------------------------------------------


def conclusion(difference: Difference) -> Iterator[str]:
    """Describe new and changed figures, the reasons, and what may be chance."""
    yield from changes.came_and_went(difference)
    for _, sentences in changes.findings(difference):
        yield from sentences
    yield changes.chance(difference)
    yield from few_stretches(difference)


def few_stretches(difference: Difference) -> Iterator[str]:
    short = [
        name
        for name, side in (("A", difference.a), ("B", difference.b))
        if side.measured and max(len(one.stretches) for one in side.measured.values()) < STRETCHES
    ]
    if short:
        yield (
            f"but: {' and '.join(short)} {'has' if len(short) == 1 else 'have'} fewer than {STRETCHES} intervals:"
            " the variation between intervals is unknown, so more of this may be chance"
        )
