# SPDX-License-Identifier: Apache-2.0
"""Kinds, stages and labels of a definition, and names for the values of labels."""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from wptrace.engine.definition import definition as spec
from wptrace.engine.definition.definition import BEGIN, END, PASS, Definition, PointSpec
from wptrace.engine.definition.resolved import Label
from wptrace.kernel import tasks
from wptrace.kernel.blockdev import maj_min
from wptrace.model import kind as model
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

if TYPE_CHECKING:
    from wptrace.kernel.cgroup_names import CgroupNames
    from wptrace.kernel.symbols import KernelSymbols

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
        [_label(label) for label in labels],
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
            # A meaning is advice as well, but not this one.
            point.advice or ("" if point.meaning else f"what happens after {point.name}"),
            rare=all(one.optional for one in definition.points if one.name == point.name),
        )
        for point, following in zip(columns, after)
    ]


def _point(point: PointSpec) -> Point:
    return Point(point.letter, point.name)


def _label(label: Label) -> model.Label:
    types = {spec.CPU: model.CPU, spec.CGROUP: model.CGROUP, spec.DEVICE: model.DEVICE}
    return model.Label(label.name, types.get(label.type, label.type))


# --- Values of labels -------------------------------------------------------------------------------------------------

REST = "(rest)"
"""The value for all objects that found no row of their own."""


class Names:
    """Decodes labels as the programs store them."""

    @cached_property
    def _cgroups(self) -> CgroupNames:
        from wptrace.kernel.cgroup_names import CgroupNames

        return CgroupNames()

    @cached_property
    def _symbols(self) -> KernelSymbols:
        from wptrace.kernel.symbols import KernelSymbols

        return KernelSymbols()

    def of(self, label: Label, words: Sequence[int]) -> Hashable:
        """Decode a label from its words."""
        if label.type == spec.TEXT:
            return tasks.comm(b"".join(word.to_bytes(8, "little") for word in words))
        return self._known.get(label.type, self._number)(label, words[0])

    @cached_property
    def _known(self) -> dict[str, Callable[[Label, int], Hashable]]:
        return {
            spec.HEX: lambda _, value: f"{value:#x}",
            spec.SYMBOL: lambda _, value: self._symbol(value),
            spec.CGROUP: lambda _, value: self._cgroups.of(value),
            spec.ENUM: self._enumerator,
            spec.SYSCALL: lambda label, value: label.names.get(value, f"call {value}"),
            spec.DEVICE: lambda _, value: maj_min(value),
            spec.ADDRESS: lambda _, value: ".".join(map(str, struct.pack("=I", value & 0xFFFFFFFF))),
            spec.CPU: lambda _, value: value,
        }

    @staticmethod
    def _number(_: Label, value: int) -> int:
        return value - (1 << 64) if value >> 63 else value

    def _enumerator(self, label: Label, value: int) -> str:
        number = self._number(label, value)
        # An int below 0 may be that of an enum without a sign.
        low = value & 0xFFFFFFFF if -(1 << 31) <= number < 0 else value
        return label.names.get(value) or label.names.get(low, str(number))

    def _symbol(self, address: int) -> str:
        self._symbols.refresh()
        return self._symbols.resolve(address)
