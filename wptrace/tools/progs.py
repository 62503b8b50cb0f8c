# SPDX-License-Identifier: Apache-2.0
"""`wptrace progs`: loaded BPF programs and maps, their cost, and their owners."""

from __future__ import annotations

import math
import time
from typing import Protocol

from wptrace.bpf import loaded
from wptrace.bpf.programs import run_statistics
from wptrace.bpf.ring import Reader
from wptrace.engine.signals import Stop
from wptrace.kernel import holders
from wptrace.kernel.clock import wall_offset_ns
from wptrace.kernel.holders import MAP, PROGRAM, Held
from wptrace.model.inventory import Activity, Holder, Inventory, Map, Program, between


class Output(Protocol):
    def show(self, activity: Activity) -> None: ...
    def close(self) -> None: ...


class Watch:
    """Takes inventories; who holds what is looked up again only when there is something new to be held."""

    def __init__(self) -> None:
        self._ids: set[tuple[str, int]] = set()
        self._held = Held({}, [])
        self._attached: dict[int, tuple[str, ...]] = {}

    def take(self) -> Inventory:
        programs, maps, links = list(loaded.programs()), list(loaded.maps()), list(loaded.links())
        at_ns = time.monotonic_ns()
        ids = {
            *((PROGRAM, one.id) for one in programs),
            *((MAP, one.id) for one in maps),
            *(("link", one.id) for one in links),
        }
        if ids != self._ids:
            self._held = holders.held()
            self._ids = ids
            events = [found for pid, fd in self._held.events if (found := loaded.of_perf_event(pid, fd)) is not None]
            self._attached = _by_program([*links, *events])
        return Inventory(at_ns, tuple(map(self._program, programs)), tuple(self._map(one) for one in maps))

    def _program(self, one: loaded.LoadedProgram) -> Program:
        where = self._attached.get(one.id, ())
        if one.type == "tracing":
            # A link to a tracepoint is the same for both kinds of programs.
            where = tuple(f"tp_btf/{place[7:]}" if place.startswith("raw_tp/") else place for place in where)
        owners, own = self._holders(PROGRAM, one.id)
        return Program(
            one.id, one.type, one.name, where, one.memory, one.map_ids, owners, own, one.run_count, one.run_time_ns
        )

    def _map(self, one: loaded.LoadedMap) -> Map:
        owners, own = self._holders(MAP, one.id)
        return Map(*one, owners, own)

    def _holders(self, kind: str, number: int) -> tuple[tuple[Holder, ...], bool]:
        found = self._held.by.get((kind, number), [])
        return tuple(Holder(process.pid, process.comm) for process in found), any(process.own for process in found)


def _by_program(links: list[loaded.LoadedLink]) -> dict[int, tuple[str, ...]]:
    found: dict[int, set[str]] = {}
    for link in links:
        found.setdefault(link.program, set()).add(link.where)
    for places in found.values():
        if len(places) > 1:
            # From 5.15 to 6.5 a link to a perf event does not say what the event is, but the event does.
            places.discard(loaded.SOME_EVENT)
    return {program: tuple(sorted(places)) for program, places in found.items()}


def watch(output: Output, interval_s: float, count: int | None, watch_fd: int) -> None:
    """Run-time statistics cost each program some time, and are on just as long as this runs."""
    with Stop() as stop, run_statistics():
        try:
            _watch(output, stop, interval_s, count, watch_fd)
        finally:
            output.close()


def _watch(output: Output, stop: Stop, interval_s: float, count: int | None, watch_fd: int) -> None:
    reader = Reader(stop.fd)
    reader.watch_hangup(watch_fd)
    machine = Watch()
    earlier = machine.take()
    due = time.monotonic() + interval_s
    left = math.inf if count is None else count
    while left and not stop.asked and not reader.hung_up:
        reader.wait(due - time.monotonic())
        if time.monotonic() < due:
            continue
        now = machine.take()
        output.show(between(earlier, now, wall_offset_ns()))
        earlier = now
        left -= 1
        due = max(due + interval_s, time.monotonic())
