# SPDX-License-Identifier: Apache-2.0
"""Two recordings, or two stretches of one: what is different, by how much, and what may be chance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from wptrace.analysis import changes
from wptrace.analysis.changes import Change
from wptrace.analysis.measured import Measured, aligned, named, same_labels, seen_stages
from wptrace.analysis.points import Narrowing, narrowed, narrowed_rows, narrowing
from wptrace.analysis.unlike import Unlike, alike, observed, unlike
from wptrace.model.distribution import Distribution
from wptrace.model.kind import DEVICE, OPERATION, Kind
from wptrace.model.report import BYTES, Report, Start, of_one_row

BETWEEN_LEVELS_NS = 1000.0
"""Programs of two levels run at a point for different times, so that stages differ without a change of the machine."""
NOT_BY_OWNER = "not by owner"
"""One recording has no rows by owner: a single note says so."""


class Side(NamedTuple):
    """A recording, or a stretch of it."""

    name: str
    start: Start
    report: Report
    began_ns: int
    measured: Mapping[str, Measured]
    """Measurements by the name of the kind."""
    notes: tuple[str, ...] = ()
    damaged: int = 0
    """The number of frames of the capture that could not be read."""
    mixed: Mapping[str, str] = {}
    """Stages that lost time to others, to which it was counted."""


class Pair(NamedTuple):
    """A row on both sides; None where a side does not have it."""

    kind: Kind
    values: tuple[str, ...]
    a: Mapping[str, Distribution] | None
    b: Mapping[str, Distribution] | None
    bytes: tuple[int, int]
    unseen: str = ""
    """The recording that could not have seen it; if empty, the row is new or gone."""


class Difference(NamedTuple):
    a: Side
    b: Side
    unlike: Sequence[Unlike]
    pairs: Sequence[Pair]
    changes: Sequence[Change]
    joined: Mapping[str, str]
    """Stages that only one of both observes, and in which their time is there."""
    tested: int
    """The number of compared figures,"""
    few: int
    """and of rows with too few objects to compare."""
    span: Mapping[str, Measured] = {}
    """For two stretches of one recording: everything from the beginning of the first to the end of the last."""

    @property
    def found(self) -> int:
        return sum(figure.real for change in self.changes for figure in change.figures.values())


def difference(a: Side, b: Side, within: Mapping[str, str]) -> Difference:
    """`within` says in which stage the time of another one is where that is not observed."""
    recorded = (a.start, a.report), (b.start, b.report)
    a, b, ways = _between_points_of_both(a, b)
    pairs = [
        (mine, b.measured[name])
        for name, mine in a.measured.items()
        if name in b.measured and alike(mine.kind, b.measured[name].kind)
    ]
    columns = {name for pair in pairs for one in pair for name in one.columns}
    seen = [seen_stages(side.measured.values(), observed(side.start)) for side in (a, b)]
    joined = {
        stage: other for stage, other in within.items() if stage in columns and (stage in seen[0]) != (stage in seen[1])
    }
    for stage, other in {**a.mixed, **b.mixed}.items():
        if (stage in a.mixed) != (stage in b.mixed) and {stage, other} <= columns and stage in seen[0] | seen[1]:
            joined[stage] = other
    found = unlike(*recorded, joined, (a.mixed, b.mixed), ways)
    every: list[Change] = []
    few = 0
    for mine, theirs in pairs:
        some, left = changes.between(*same_labels(aligned(mine, joined), aligned(theirs, joined)))
        every += some
        few += left
    least_ns = BETWEEN_LEVELS_NS if a.start.level != b.start.level else 0.0
    every = changes.mark_real(every, any(one.counts for one in found), least_ns)
    tested = sum(len(change.figures) for change in every)
    return Difference(a, b, found, list(_pairs(a, b)), every, joined, tested, few)


def _between_points_of_both(a: Side, b: Side) -> tuple[Side, Side, list[Narrowing]]:
    """Return both with kinds between points that both see, where possible."""
    found = []
    for kind in a.start.kinds:
        other = next((one for one in b.start.kinds if one.name == kind.name), None)
        if other is None or alike(kind, other):
            continue
        way = narrowing(kind, other)
        if way is not None:
            a = _narrowed(a, way)
        else:
            way = narrowing(other, kind)
            b = b if way is None else _narrowed(b, way)
        found += [] if way is None else [way]
    return a, b, found


def _narrowed(side: Side, way: Narrowing) -> Side:
    kinds = [way.into if kind is way.kind else kind for kind in side.start.kinds]
    measured = {name: narrowed(one, way) if one.kind is way.kind else one for name, one in side.measured.items()}
    start, report = side.start._replace(kinds=kinds), narrowed_rows(side.report, way)
    return side._replace(start=start, report=report, measured=measured)


class _Row(NamedTuple):
    kind: Kind
    cells: Mapping[str, Distribution]
    bytes: int


def _pairs(a: Side, b: Side) -> Iterator[Pair]:
    in_a, in_b = _rows(a.report), _rows(b.report)
    for key in dict.fromkeys((*in_a, *in_b)):
        one, other = in_a.get(key), in_b.get(key)
        kind = one.kind if one is not None else in_b[key].kind
        missing = a if one is None else b
        theirs = next((there for there in missing.start.kinds if there.name == kind.name), None)
        if theirs is not None and not alike(kind, theirs):
            continue
        unseen = "" if one is not None and other is not None else _unseen(kind, key[1], missing)
        yield Pair(
            kind,
            key[1],
            None if one is None else one.cells,
            None if other is None else other.cells,
            (0 if one is None else one.bytes, 0 if other is None else other.bytes),
            unseen,
        )


def _rows(report: Report) -> dict[tuple[str, tuple[str, ...]], _Row]:
    found: dict[tuple[str, tuple[str, ...]], _Row] = {}
    for group, stages in report.cells.items():
        key = (group.kind.name, named(group))
        row = _Row(group.kind, stages, report.counter(group, BYTES))
        # Processes of one name have one row.
        found[key] = _together(found[key], row) if key in found else row
    return found


def _together(one: _Row, other: _Row) -> _Row:
    return _Row(one.kind, of_one_row((one.cells, other.cells)), one.bytes + other.bytes)


def _unseen(kind: Kind, values: tuple[str, ...], side: Side) -> str:
    """Why a recording without a row of this cannot have one; empty where there was none of it."""
    start = side.start
    if all(one.name != kind.name for one in start.kinds):
        if kind.owner_place is not None:
            return NOT_BY_OWNER
        return f"{kind.noun.plural} are not followed"
    types: dict[str, str] = {label.type: value for label, value in zip(kind.labels, values)}
    ops = start.filters.get("ops", (start.filters["op"],) if "op" in start.filters else ())
    if ops and types.get(OPERATION) not in (*ops, "", None):
        return "filtered out"
    devices, device = start.filters.get("dev", ()), types.get(DEVICE, "")
    # A partition has the name of its disk in its own.
    if devices and device and not any(device.startswith(str(one)) for one in devices):
        return "not traced"
    return ""
