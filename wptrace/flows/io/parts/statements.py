# SPDX-License-Identifier: Apache-2.0
"""Rows by statement of PostgreSQL: `--by statement`."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Thread
from typing import Any

from wptrace.analysis.statements import OFF
from wptrace.bpf.object import BpfObject
from wptrace.engine.resolver import Loaded
from wptrace.flows.io.options import STATEMENT
from wptrace.flows.io.parts.origins import Origins
from wptrace.flows.io.parts.part import Distributions, Tracing
from wptrace.flows.io.parts.texts import Texts
from wptrace.flows.io.records import OwnersOfRecords
from wptrace.kernel.servers import PROGRAMS, VARIABLE, Program, Programs, visit
from wptrace.model.kind import Group
from wptrace.model.report import Counters

# For how long a trace waits for the memory of a server, which may be anybody's.
_PATIENCE_S = 1
# Of an owner: somebody writes down whose it is; that is done.
_BEING_DESCRIBED, _DESCRIBED = 4, 5


class Statements(Texts):
    def __init__(self, how: str, top: int = 0, rows: int = 0) -> None:
        super().__init__(STATEMENT, how, top, rows)
        self._found: list[Program] = []
        self._origins = Origins()
        self._undescribed: dict[int, tuple[Any, int]] = {}
        """By number of an owner whose origin may not be complete: its label, and how often programs had looked."""
        self._shown_last: list[Any] = []

    def prepare(self, obj: BpfObject) -> None:
        super().prepare(obj)
        obj.maps["statement_origins"].max_entries = obj.length("owners")

    def start(self, tracing: Tracing) -> None:
        super().start(tracing)
        self._programs = Programs(self._obj.length("servers"))
        self._visit: Thread | None = None
        self._look()

    def _look(self) -> None:
        """Register the executables of servers, so that the programs find them."""
        self._found = self._programs.look()
        usable = [one for one in self._found if one.variables]
        found = [{"inode": one.inode, "size": one.size, **one.variables} for one in usable]
        self._obj.bss.servers = [*found, *({} for _ in range(self._obj.length("servers") - len(found)))]
        if self._programs.processes and (self._visit is None or not self._visit.is_alive()):
            arguments = (self._programs.processes, self._obj.constants, self._origins.learn)
            self._visit = Thread(target=visit, args=arguments, name="servers", daemon=True)
            self._visit.start()
            self._visit.join(_PATIENCE_S)

    def notes(self, loaded: Loaded) -> list[str]:
        if any(one.variables for one in self._found):
            return []
        if self._found:
            return [f"{one.path} has no variable {VARIABLE}: what it does has no statements" for one in self._found]
        programs = _either(PROGRAMS)
        return [f"no PostgreSQL server is running (no process executes {programs}): one that starts later is followed"]

    def refresh(self, obj: BpfObject, devices_changed: bool) -> None:
        if obj.bss.unknown_server or self._origins.unknown:
            obj.bss.unknown_server = self._origins.unknown = 0
            self._look()
        super().refresh(obj, devices_changed)
        self._describe_new()

    # --- Whose they are ---------------------------------------------------------------------------------------------

    @property
    def of_records(self) -> OwnersOfRecords:
        return super().of_records._replace(lists=self._of_all)

    def _of_all(self) -> dict[str, list[dict[str, Any]]]:
        self._describe_new()
        return self._lists(self._origins.labels)

    def _describe_new(self) -> None:
        for number in list(self._undescribed):
            self._describe(number)

    def _named(self, number: int, values: dict[str, Any]) -> Any:
        found = super()._named(number, values)
        self._undescribed[number] = found, -1
        return found

    def _describe(self, number: int) -> None:
        values = self._values(number)
        if values["known"] == _BEING_DESCRIBED:
            return
        label, tries = self._undescribed[number]
        if values["known"] == _DESCRIBED:
            del self._undescribed[number]
        elif values["tries"] == tries:
            return
        else:
            self._undescribed[number] = label, values["tries"]
        origin = self._obj.maps["statement_origins"].get(number - 1)
        if origin is not None and origin.known:
            self._origins.add(label if isinstance(label, str) else None, origin)

    def _forget(self, number: int, folded: dict[Group, int]) -> None:
        if number in self._undescribed:
            self._describe(number)
            self._undescribed.pop(number, None)
        super()._forget(number, folded)

    def fold(self, cells: Distributions, counters: Counters) -> tuple[Distributions, Counters]:
        cells, counters = super().fold(cells, counters)
        labels = (group.values[-1] for group in cells if group.kind in self.kinds)
        self._shown_last = list(dict.fromkeys(labels))
        return cells, counters

    @property
    def lists(self) -> dict[str, list[dict[str, Any]]]:
        return self._lists(self._shown_last)

    def _lists(self, labels: Iterable[Any]) -> dict[str, list[dict[str, Any]]]:
        found = self._origins.of(labels, self._how != OFF)
        return {"statements": found} if found else {}


def _either(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
