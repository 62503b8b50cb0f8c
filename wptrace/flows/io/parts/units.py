# SPDX-License-Identifier: Apache-2.0
"""Rows by unit of work of any program: `--by unit`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Callable

from wptrace.analysis import statements
from wptrace.bpf.object import BpfObject
from wptrace.bpf.perf import InFile
from wptrace.engine.definition import unit as units
from wptrace.engine.definition.unit import Unit
from wptrace.engine.resolver import Loaded
from wptrace.flows.io.hooks import UNIT_BEGIN, UNIT_END, UNIT_LATER
from wptrace.flows.io.kinds import NO_UNIT
from wptrace.flows.io.options import UNIT
from wptrace.flows.io.parts.part import Tracing
from wptrace.flows.io.parts.texts import Texts
from wptrace.kernel import binaries
from wptrace.kernel.binaries import Spot

# Tasks with a unit at a time.
_TASKS = 1 << 13

_PLACES = {units.POINTER: "pointer", units.ARRAY: "array", units.NUMBER: "number"}


class Units(Texts):
    empty = NO_UNIT

    def __init__(self, unit: Unit, how: str, top: int = 0, rows: int = 0) -> None:
        super().__init__(UNIT, how, top, rows)
        self._unit = unit
        self._found = units.look_up(unit, os.uname().machine)
        if self._found.begins:
            # The end first, so that none is missed.
            self.hooks = (UNIT_END, *((UNIT_LATER,) if self._found.laters else ()), UNIT_BEGIN)

    @property
    def chosen(self) -> dict[str, Any]:
        return {**super().chosen, "unit": self._unit.name}

    def notes(self, loaded: Loaded) -> list[str]:
        if not self._unit.later or self._found.laters:
            return []
        names = " or ".join(self._unit.later)
        return [f"{self._found.path} has no {names}: units without a text at their begin have none"]

    def prepare(self, obj: BpfObject) -> None:
        super().prepare(obj)
        unit, found = self._unit, self._found
        if not found.begins:
            return
        obj.progs["unit_begin"].run_in(_opened(found.begins), on_return=False)
        obj.progs["unit_end"].run_in(_opened(found.ends), found.at_return)
        if found.laters:
            obj.progs["unit_named_later"].run_in(_opened(found.laters), on_return=False)
        obj.maps["units"].max_entries = _TASKS
        for name in ("label", "length", "choice", "later_label", "later_length"):
            setattr(obj.rodata, f"unit_{name}", getattr(found, name)._asdict())
        obj.rodata.unit_is_text = unit.label is not None and unit.label.text
        obj.rodata.unit_chosen = 0 if unit.only is None else unit.only.value

    def start(self, tracing: Tracing) -> None:
        super().start(tracing)
        found, places = self._found, self._obj.enum("text_place")
        server = {"inode": found.file.inode, "size": found.file.size, "place": places.index("probes")}
        if found.variable is not None:
            server["place"] = places.index(_PLACES[self._unit.type])
            server["text"], server["bytes"] = found.variable
        self._obj.bss.servers = [server, *({} for _ in range(self._obj.length("servers") - 1))]

    def _shown(self, text: str) -> str:
        return statements.shown(text, self._how, UNIT, self._unit.quotes)

    def _number(self, in_key: int) -> Any:
        found = super()._number(in_key)
        return found if self._unit.only is None else self._unit.others.get(int(found), NO_UNIT)


def _opened(spots: Sequence[Spot]) -> list[Callable[[], InFile]]:
    def opening(spot: Spot) -> Callable[[], InFile]:
        return lambda: InFile(binaries.reopened(spot), spot.offset, spot.counter)

    return [opening(spot) for spot in spots]
