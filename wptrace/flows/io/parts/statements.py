# SPDX-License-Identifier: Apache-2.0
"""Rows by statement of PostgreSQL: `--by statement`."""

from __future__ import annotations

from threading import Thread

from wptrace.bpf.object import BpfObject
from wptrace.engine.resolver import Loaded
from wptrace.flows.io.options import STATEMENT
from wptrace.flows.io.part import Tracing
from wptrace.flows.io.parts.texts import Texts
from wptrace.kernel.servers import PROGRAMS, VARIABLE, Program, Programs, map_texts

# For how long a trace waits for the memory of a server, which may be anybody's.
_PATIENCE_S = 1


class Statements(Texts):
    def __init__(self, how: str, top: int = 0, rows: int = 0) -> None:
        super().__init__(STATEMENT, how, top, rows)
        self._found: list[Program] = []

    def start(self, tracing: Tracing) -> None:
        super().start(tracing)
        self._programs = Programs(self._obj.length("servers"))
        self._mapping: Thread | None = None
        self._look()

    def _look(self) -> None:
        """Register the executables of servers, so that the programs find them."""
        self._found = self._programs.look()
        usable = [one for one in self._found if one.variables]
        found = [{"inode": one.inode, "size": one.size, **one.variables} for one in usable]
        self._obj.bss.servers = [*found, *({} for _ in range(self._obj.length("servers") - len(found)))]
        if self._programs.processes and (self._mapping is None or not self._mapping.is_alive()):
            arguments = (self._programs.processes, self._obj.constants)
            self._mapping = Thread(target=map_texts, args=arguments, name="texts", daemon=True)
            self._mapping.start()
            self._mapping.join(_PATIENCE_S)

    def notes(self, loaded: Loaded) -> list[str]:
        if any(one.variables for one in self._found):
            return []
        if self._found:
            return [f"{one.path} has no variable {VARIABLE}: what it does has no statements" for one in self._found]
        return [f"no server of PostgreSQL runs (no process executes {_either(PROGRAMS)}): one that comes is followed"]

    def refresh(self, obj: BpfObject, devices_changed: bool) -> None:
        if obj.bss.unknown_server:
            obj.bss.unknown_server = 0
            self._look()
        super().refresh(obj, devices_changed)


def _either(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
