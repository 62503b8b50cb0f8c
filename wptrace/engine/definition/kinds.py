# SPDX-License-Identifier: Apache-2.0
"""Kinds, labels and stages of a definition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wptrace.engine.definition import labels as named
from wptrace.engine.definition.definition import BEGIN, END, PASS, Definition, PointSpec
from wptrace.engine.definition.resolved import Label
from wptrace.model.kind import (
    BYTES_FIELD,
    TASK_FIELDS,
    UNTIMED_FIELD,
    CounterField,
    EventField,
    Kind,
    Noun,
    Point,
    Stage,
)

_FIELDS = (
    *TASK_FIELDS,
    EventField("key", str),
    EventField("value"),
    EventField("unit", str),
    EventField("begin_cpu"),
    EventField("end_cpu"),
    EventField("outcome", str),
    EventField("failed", bool),
)


def kind_of(definition: Definition, labels: Sequence[Label]) -> Kind:
    """The kind with the wanted labels."""
    return Kind(
        "object",
        Noun(definition.noun, definition.nouns),
        [named.of_kind(label) for label in labels],
        _stages(definition),
        sized=definition.value is not None and definition.value.unit == "bytes",
        nested=True,
        fields=_FIELDS,
        counters=_counters(definition),
    )


def _counters(definition: Definition) -> Iterator[CounterField]:
    for name in definition.outcomes:
        (about, *_) = (point.description for point in definition.points if point.outcome == name)
        yield CounterField(name, about or f"{definition.nouns} that ended as {name}")
    valued = definition.value
    if valued is not None and valued.unit != BYTES_FIELD.name:
        yield CounterField(valued.unit, f"the value at {valued.name}, added up", valued.unit)
    yield UNTIMED_FIELD


def _stages(definition: Definition) -> list[Stage]:
    first: dict[str, PointSpec] = {}
    for point in definition.points:
        if point.role in (BEGIN, PASS):
            first.setdefault(point.name, point)
    ends = [point for point in definition.points if point.role == END]
    columns = list(first.values())
    after = [*columns[1:], ends[0]] if ends else [*columns[1:], columns[-1]]
    return [
        Stage(
            point.stage or point.name,
            _point(point),
            _point(following),
            point.description or f"from {point.name} to the next point that was seen",
            point.meaning or "what comes next is late",
            point.advice,
            rare=all(one.optional for one in definition.points if one.name == point.name),
        )
        for point, following in zip(columns, after)
    ]


def _point(point: PointSpec) -> Point:
    return Point(point.letter, point.name)
