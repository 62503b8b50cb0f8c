# SPDX-License-Identifier: Apache-2.0
"""Objects of a definition as events, from the records of a ring or of the flight recorder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from wptrace.capture.records import Raw
from wptrace.kernel import tasks
from wptrace.model.kind import Group, Kind
from wptrace.model.report import Event

if TYPE_CHECKING:
    from wptrace.capture.layout import Described

RECORDED = Raw("recorded_object")


def recorded(stages: int, outcomes: Sequence[str], units: Sequence[str]) -> Raw:
    """Records of the flight recorder with this many stages; `units` has that of the value, if there is one."""
    return RECORDED._replace(last=stages, words={"outcome": outcomes, "unit": units})


def kept_of(stages: Sequence[str]) -> int:
    """The number of stages with times of their own; with a single stage the total is enough."""
    return len(stages) if len(stages) > 1 else 0


class Decoder:
    def __init__(self, stages: Sequence[str], outcomes: Sequence[str], units: Sequence[str]) -> None:
        self._stages, self._kept, self._unit = stages, kept_of(stages), next(iter(units), None)
        self._outcomes = ("", *outcomes)

    def event(self, record: Mapping[str, Any], group: Group, offset: int) -> Event:
        seen = record["seen"]
        if self._kept:
            stages = {name: record[f"spent[{at}]"] for at, name in enumerate(self._stages) if seen >> at & 1}
        else:
            stages = {self._stages[0]: record["total_ns"]}
        fields: dict[str, Any] = {"key": f"{record['key']:#x}"}
        if self._unit is not None:
            fields |= {"value": record["value"], "unit": self._unit}
        fields |= {"begin_cpu": record["begin_cpu"], "end_cpu": record["end_cpu"]}
        fields |= {"comm": tasks.comm(record["comm"]), "pid": record["tgid"], "tid": record["tid"]}
        if record["outcome"]:
            outcomes = self._outcomes
            fields["outcome"] = outcomes[record["outcome"]] if record["outcome"] < len(outcomes) else "?"
        if record["failed"]:
            fields["failed"] = True
        return Event(group, record["end_ns"] + offset, record["total_ns"], stages, fields)


class Recorded:
    """Makes events from records of the flight recorder."""

    def __init__(self, layout: Described, kind: Kind) -> None:
        self.layout, self._fields = layout.struct(layout.record).packed()
        kept = sum(name.startswith("spent[") for name in self._fields)
        stages = [stage.name for stage in kind.stages]
        if not stages or kept != kept_of(stages):
            raise ValueError("records have other stages than the flow")
        self._kind = kind
        self._decoder = Decoder(stages, layout.enum("outcome"), layout.enum("unit"))

    def decode(
        self, records: Sequence[Sequence[Any]], rows: Mapping[int, Sequence[Any]], wall_offset_ns: int
    ) -> Iterator[Event]:
        """`rows` has values of labels by the number of a row."""
        fields, event, groups = self._fields, self._decoder.event, dict[int, Group]()
        for values in records:
            record = dict(zip(fields, values))
            row = record["row"]
            if row not in groups:
                groups[row] = self._kind.group(*rows[row])
            yield event(record, groups[row], wall_offset_ns)
