# SPDX-License-Identifier: Apache-2.0
"""Checks that the points of a definition fit together, without a kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wptrace.engine.definition import definition as d
from wptrace.engine.definition.definition import Definition, PointSpec
from wptrace.engine.definition.faults import Fault, did_you_mean
from wptrace.model.report import BYTES, UNTIMED


def faults(definition: Definition) -> Iterator[Fault]:
    points = definition.points
    begins = [point for point in points if point.role == d.BEGIN or point.begins]
    ends = [point for point in points if point.role in (d.END, d.DROP)]
    first = points[0].at
    if not begins:
        yield Fault("no point begins an object", first)
    if not ends:
        yield Fault("no point ends an object: two points at least are needed, with different names", first)
    if len(definition.columns) > d.MAX_COLUMNS - 1:
        room = f"there is room for {d.MAX_COLUMNS} with the end"
        yield Fault(f"{len(definition.columns)} points begin or pass; {room}", points[-1].at)
    if len(definition.outcomes) > d.MAX_OUTCOMES:
        yield Fault(f"there are {len(definition.outcomes)} outcomes; there is room for {d.MAX_OUTCOMES}", points[-1].at)
    if len(definition.labels) > d.MAX_LABEL_WORDS:
        yield Fault(f"there are {len(definition.labels)} labels; there is room for {d.MAX_LABEL_WORDS}", points[-1].at)
    yield from _stages(definition)
    yield from _counts(definition)
    names = passed(points)
    for point in points:
        if point.after in definition.columns and point.after not in names:
            yield Fault(f"{point.name} comes after {point.after}, which no object can pass before", point.at)
    marks = any(point.mark for point in points)
    parts = {len(way) for point in points for way in point.keys}
    if len(parts) > 1 and all(len(point.keys) == 1 and not point.becomes for point in points):
        yield Fault("keys of some points have two parts and those of others one: they never meet", first)
    for point in points:
        yield from _alone(point, definition.columns, marks)
    if marks and not any(point.reached for point in points):
        yield Fault("there is a mark, and no point at which it is reached", first)


def passed(points: Sequence[PointSpec]) -> set[str]:
    """The names of points that an object can pass, where some come after others."""
    found: set[str] = set()
    while True:
        more = {point.name for point in points if not point.after or point.begins or point.after in found}
        if more == found:
            return found
        found = more


def _stages(definition: Definition) -> Iterator[Fault]:
    """Each name has one meaning."""
    roles: dict[str, PointSpec] = {}
    stages: dict[str, str] = {}
    for point in definition.points:
        known = roles.setdefault(point.name, point)
        passes = {d.BEGIN: True, d.PASS: True}
        if passes.get(known.role, False) != passes.get(point.role, False):
            yield Fault(f"{point.name} is the name of a point that passes and of one that ends", point.at)
        if point.stage in ("total", "unattributed"):
            yield Fault(f"no stage can be called {point.stage}", point.at)
        owner = stages.setdefault(point.stage, point.name) if point.stage else point.name
        if owner != point.name:
            yield Fault(f"the stage {point.stage} is that of the point {owner} already", point.at)
    names: set[str] = set()
    for point in definition.points:
        mine = [label.name for label in point.labels]
        for label in point.labels:
            if mine.count(label.name) > 1 and label.name not in names:
                names.add(label.name)
                yield Fault(f"two labels are called {label.name}: give one a name", label.at)


def _counts(definition: Definition) -> Iterator[Fault]:
    """Each count has a name of its own, and one unit."""
    valued = [point for point in definition.points if point.value]
    for point in valued:
        if point.unit != valued[0].unit:
            message = f"an object has one value: {point.name} has {point.unit}, and {valued[0].name} {valued[0].unit}"
            yield Fault(message, point.at)
    taken = (BYTES, UNTIMED, *(point.unit for point in valued))
    for point in definition.points:
        if point.outcome in taken:
            yield Fault(f"no outcome can be called {point.outcome}: that is another count", point.at)


def _alone(point: PointSpec, columns: tuple[str, ...], marks: bool) -> Iterator[Fault]:
    passes = point.role in (d.BEGIN, d.PASS)
    wrong = (
        (point.begins and point.role != d.PASS, "begins is for points that pass"),
        (point.repeat and not (point.role == d.BEGIN or point.begins), "repeat is for points that begin"),
        (point.becomes and point.role != d.PASS, "becomes is for points that pass"),
        (point.outcome and passes, "an outcome is for points that end"),
        (point.failed and point.role != d.END, "failed is for points that end"),
        (point.role == d.DROP and (point.value or point.labels), "value and labels are for points that do not drop"),
        (point.after and point.role == d.BEGIN, "after is for points that do not begin"),
        (point.mark and not passes, "a mark is for points that begin or pass"),
        (point.reached and point.role == d.BEGIN, "reached is for points that do not begin"),
        (point.reached and not marks, "no point has a mark that could be reached"),
    )
    for is_wrong, message in wrong:
        if is_wrong:
            yield Fault(f"{message}, and {point.name} is one that {_does(point)}", point.at)
    if point.mark and point.reached:
        yield Fault(f"a point has mark or reached, and {point.name} has both", point.at)
    if point.after and point.after not in columns:
        hint = did_you_mean(point.after, columns)
        yield Fault(f"no point that begins or passes is called {point.after}{hint}", point.at)
    expressions = [part for way in point.keys for part in way] + [label.value for label in point.labels]
    expressions += [one for one in (point.becomes, point.value, point.mark, point.reached) if one is not None]
    expressions += [one.left for one in (*point.filters, point.failed) if one is not None]
    if any(target.kind not in (d.FUNCTION, d.USER_FUNCTION) for target in point.targets):
        # A tracepoint may have an argument of that name.
        return
    for expression in expressions:
        if any(path.root == "ret" for choice in expression.choices for path in choice):
            message = "what the function returned is known only at ret: and uret:"
            yield Fault(message, expression.place)


def _does(point: PointSpec) -> str:
    return {d.BEGIN: "begins", d.PASS: "passes", d.END: "ends", d.DROP: "drops"}[point.role]
