# SPDX-License-Identifier: Apache-2.0
"""Differences between two recordings that are none of the machine: what one of them could not see is not zero."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from wptrace.analysis.points import Narrowing
from wptrace.model import units
from wptrace.model.kind import Kind
from wptrace.model.report import UNTIMED, Report, Start

SHARE = 0.01
"""With this share of losses figures are those of a sample."""
_LONGER = 2
_ALWAYS = ("version", "kernel", "host", "machine")
# They say how something is shown, and not of what.
_SHOWN = ("by", "command", "neighbours", "segments", "kicks", "statement_text", "unit")


class Unlike(NamedTuple):
    what: str
    a: str
    b: str
    therefore: str = ""
    """The consequence for the figures."""
    counts: bool = False
    """Counts and rates of both cannot be compared."""


def unlike(
    a: tuple[Start, Report],
    b: tuple[Start, Report],
    joined: Mapping[str, str] | None = None,
    mixed: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {}),
    narrowed: Sequence[Narrowing] = (),
) -> list[Unlike]:
    """The most important first. `joined` stages are compared as a part of others; `mixed` ones, of A and of B, lost
    time to these. `narrowed` kinds are compared from a later point on, or to an earlier one."""
    starts = a[0], b[0]
    found = [*_level(*starts), *_kinds(*starts, narrowed), *_filters(*starts), *_hooks(*starts, joined or {}, mixed)]
    return [*found, *_losses(a, b), *_of(a, b)]


def _level(a: Start, b: Start) -> Iterator[Unlike]:
    if a.level != b.level:
        therefore = (
            "what only one of them sees is not compared, and differences below 1 us may come from tracing itself"
        )
        yield Unlike("level", a.level, b.level, therefore)


def _kinds(a: Start, b: Start, narrowed: Sequence[Narrowing]) -> Iterator[Unlike]:
    theirs = {kind.name: kind for kind in b.kinds}
    ways = {way.kind.name: way for way in narrowed}
    for kind in a.kinds:
        other = theirs.get(kind.name)
        if other is not None and not alike(kind, other):
            way = ways.get(kind.name)
            therefore = "they are not compared" if way is None else _within(way)
            yield Unlike(kind.noun.plural, _way(kind), _way(other), therefore)


def _within(way: Narrowing) -> str:
    """Say how a kind was narrowed: `compared from G to C, with driver and complete in device`."""
    start, end = way.into.total.start, way.into.total.end
    words = "" if start is None or end is None else f"compared from {start.letter} to {end.letter}"
    for name, parts in way.parts.items():
        others = [one for one in parts if one != name]
        if others:
            words += f", with {' and '.join(others)} in {name}"
    return words


def alike(one: Kind, other: Kind) -> bool:
    """Whether figures of both mean the same."""
    points = [(kind.total.unit, kind.total.start, kind.total.end) for kind in (one, other)]
    labels = [[(label.name, label.type) for label in kind.labels] for kind in (one, other)]
    return points[0] == points[1] and labels[0] == labels[1]


def _way(kind: Kind) -> str:
    """Say from which point to which, and by which level."""
    labels = f"by {', '.join(label.name for label in kind.labels)}"
    start, end = kind.total.start, kind.total.end
    return labels if start is None or end is None else f"from {start.letter} to {end.letter} {labels}"


def _filters(a: Start, b: Start) -> Iterator[Unlike]:
    for name in dict.fromkeys((*a.filters, *b.filters)):
        one, other = a.filters.get(name), b.filters.get(name)
        if one == other or name in _SHOWN:
            continue
        sentence, counts = "rates are not compared", True
        if name == "dev":
            sentence, counts = "rows of a device that only one of them traces are not compared", False
        elif name in ("op", "ops"):
            sentence, counts = "what only one of them lets through is not compared", False
        yield Unlike(f"filter {name}", _filter(one), _filter(other), sentence, counts)
    by = tuple(start.filters.get("by", "") for start in (a, b))
    if by[0] != by[1]:
        yield Unlike("rows by owner", by[0] or "none", by[1] or "none", "they are not compared")


def _filter(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "all"
    return "yes" if value is True else str(value)


def observed(start: Start) -> Mapping[str, bool]:
    """Return by stage whether it is observed."""
    return {source.stage: bool(source.how) for source in start.sources}


def _hooks(
    a: Start, b: Start, joined: Mapping[str, str], mixed: tuple[Mapping[str, str], Mapping[str, str]]
) -> Iterator[Unlike]:
    seen = [{stage for stage, is_seen in observed(start).items() if is_seen} for start in (a, b)]
    for stage, other in joined.items():
        # Where both observe the stage, the driver of the disk decides.
        words = ["observed" if stage in one else "not observed" for one in seen]
        words = [f"partly in {other}" if stage in lost else word for word, lost in zip(words, mixed)]
        if words[0] == words[1]:
            words = ["seen on the disks of only one of them", ""]
        yield Unlike(f"stage {stage}", words[0], words[1], f"compared as a part of {other}")
    if a.level != b.level:
        # All that follows from that.
        return
    alone = [[stage for stage in seen[at] - seen[1 - at] if stage not in joined] for at in (0, 1)]
    if any(alone):
        words = [", ".join(sorted(found)) or "no others" for found in alone]
        yield Unlike("other stages", words[0], words[1], "they are not compared")
    # The same as sentences, of hooks that serve a stage beside others.
    mine, theirs = (list(dict.fromkeys(note.partition(" (")[0] for note in start.notes)) for start in (a, b))
    yield from (Unlike("note", note, "") for note in mine if note not in theirs)
    yield from (Unlike("note", "", note) for note in theirs if note not in mine)


def _losses(a: tuple[Start, Report], b: tuple[Start, Report]) -> Iterator[Unlike]:
    reports = (a[1], b[1])
    for name in dict.fromkeys((*a[1].books, *b[1].books)):
        books = [report.books.get(name) for report in reports]
        lost = [0 if book is None else book.lost_total for book in books]
        started = [0 if book is None else book.started for book in books]
        if not any(lost):
            continue
        heavy = any(count >= SHARE * whole for count, whole in zip(lost, started) if whole)
        means = "figures are those of a sample" if heavy else "the highest percentiles may not hold"
        words = [f"{count:,} of {whole:,}" if whole else "none" for count, whole in zip(lost, started)]
        yield Unlike(f"lost {name}", words[0], words[1], means, heavy)
    noted = [
        {cause.name: count for book in report.books.values() for cause, count in book.noted.items() if count}
        for report in reports
    ]
    for name in dict.fromkeys((*noted[0], *noted[1])):
        counts = [f"{found.get(name, 0):,}" for found in noted]
        yield Unlike(name, counts[0], counts[1], "some events are missing, or counts may be off")
    untimed = [sum(counts.get(UNTIMED, 0) for counts in report.counters.values()) for report in reports]
    if any(untimed):
        yield Unlike("counted and not timed", f"{untimed[0]:,}", f"{untimed[1]:,}", "times are those of a sample")
    off = [{} if report.budget is None else report.budget.off_ns for report in reports]
    for saving in dict.fromkeys((*off[0], *off[1])):
        words = [f"for {units.duration(found.get(saving, 0))}" if found.get(saving) else "never" for found in off]
        if any(found.get(saving) for found in off):
            yield Unlike(f"off for the budget: {saving.name}", words[0], words[1], "events of that time are missing")


def _of(a: tuple[Start, Report], b: tuple[Start, Report]) -> Iterator[Unlike]:
    facts = [{**start.resource._asdict(), "kernel": start.kernel} for start, _ in (a, b)]
    for name in _ALWAYS:
        one, other = (str(found[name]) for found in facts)
        if one != other:
            yield Unlike(name, one or "not known", other or "not known")
    long_a, long_b = a[1].duration_ns, b[1].duration_ns
    if max(long_a, long_b) > _LONGER * min(long_a, long_b):
        yield Unlike("duration", units.duration(long_a), units.duration(long_b), "rates are compared, and not counts")
