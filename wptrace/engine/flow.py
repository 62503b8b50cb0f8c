# SPDX-License-Identifier: Apache-2.0
"""The base class of flows: stages, the hooks that observe them, and their life from start to end."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import TYPE_CHECKING, Any, Callable, Protocol

from wptrace.analysis.verdict import TIMED, Rules
from wptrace.bpf import trial
from wptrace.bpf.lib import libbpf
from wptrace.bpf.object import BpfObject
from wptrace.bpf.programs import Statistics
from wptrace.bpf.ring import Reader, Ring
from wptrace.engine import resource
from wptrace.engine.filters import Predicates
from wptrace.engine.hooks import Field, Hook, Way
from wptrace.engine.resolver import Loaded
from wptrace.errors import WptraceError
from wptrace.model import units
from wptrace.model.book import Book
from wptrace.model.budget import Saving, Step
from wptrace.model.diagnosis import Check
from wptrace.model.distribution import Distribution
from wptrace.model.kind import Group, Kind
from wptrace.model.report import Counters, Event, InFlight, Overhead, Snapshot, Source, Start

if TYPE_CHECKING:
    from wptrace.capture.writer import CaptureOutput
    from wptrace.engine.devices import Devices

NEVER_NS = (1 << 64) - 1
"""Nothing is as slow."""


class Counted(Protocol):
    """A program whose runs the kernel counts."""

    def statistics(self) -> Statistics: ...


class Shedder(Protocol):
    """Savings of a flow that costs too much."""

    @property
    def savings(self) -> tuple[Saving, ...]:
        """All that flows like this one may have."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """In the order in which they are shed."""

    def programs(self) -> Sequence[Counted]: ...
    def shed(self, step: Step) -> None: ...
    def restore(self, step: Step) -> None:
        """Raises where the kernel does not let it come back; then it is shed as before."""


class Dumped(Protocol):
    """A written dump of a flight recorder."""

    @property
    def path(self) -> Path: ...
    @property
    def records(self) -> int: ...
    @property
    def since_ns(self) -> int:
        """The time of day from which on it has all of them."""

    @property
    def until_ns(self) -> int: ...


class FlightRecorder(Protocol):
    """The most recent events, each kept in the kernel's memory."""

    @property
    def slow_seen_ns(self) -> int:
        """When something was slow last, by the monotonic clock; 0: nothing was."""

    def dump(self, path: Path, start: Start, view: str) -> Dumped: ...


class Flow:
    """One traced path. A subclass is all that a module in flows/ has to hold; it is found by itself.

    What it is are attributes of the class, its spec; an instance may have others of its own, by its options or because
    it was made of a file. What it does from the start to the end are methods.
    """

    name: str
    level: str = ""
    object: str
    kinds: tuple[Kind, ...]
    """The kinds that it follows, in the order in which they are shown."""
    view: str = "stages"
    """How it looks as text: a module of outputs/text/."""
    verdict_kinds: tuple[Kind, ...] = ()
    """Kinds for the verdict, which is about the first that anything happened to; without them there is none."""
    hooks: tuple[Hook, ...]
    """In the order in which they attach: ends before starts, so that no end is missed."""

    filters: Predicates = ()
    """Filters, in the order of --help."""
    fields: tuple[Field, ...] = ()

    recorder: CaptureOutput | None = None
    """Who takes records as they lie in the ring; set before the start."""

    _loaded: Loaded | None = None
    """From the start to the end."""
    _ring: Ring | None = None
    _map_bytes: int

    @classmethod
    def hooks_here(cls) -> tuple[Hook, ...]:
        """Those that a start without options has on this machine as it is now."""
        return cls.hooks

    @staticmethod
    def configure(obj: BpfObject) -> None:
        """Sets what the programs must know of this kernel before they load; `wptrace doctor` calls it as well."""

    @staticmethod
    def checks(chosen: Mapping[str, Way]) -> list[Check]:
        """Return further checks for `wptrace doctor`, where a start takes these ways."""
        return []

    def planned_memory(self, prepare: Callable[[BpfObject], None]) -> str:
        """Say what a start would take of the kernel's memory, without doing it; `prepare` is what it does before."""
        with trial.open_here(self.object) as obj:
            prepare(obj)
            return f"take {units.size(obj.planned_bytes)} of the kernel's memory, for {libbpf().cpus} CPUs"

    def start(self, reader: Reader) -> Start:
        """Loads, attaches, and adds its rings to the reader."""
        raise NotImplementedError

    def begin(self) -> None:
        """From now on things are counted, where programs take nothing before; else since they attached."""

    def snapshot(self) -> Snapshot:
        raise NotImplementedError

    def read_cells(self) -> dict[Group, dict[str, Distribution]]:
        """The cells of a snapshot, where they can be had without the rest of it."""
        return self.snapshot().cells

    def folded(
        self, cells: dict[Group, dict[str, Distribution]], counters: Counters
    ) -> tuple[dict[Group, dict[str, Distribution]], Counters]:
        """Fold what was counted in an interval into the rows that a report has."""
        return cells, counters

    def events(self) -> Sequence[Event]:
        """The records that came since the last call; a flow without records has none."""
        return ()

    @property
    def rules(self) -> Rules:
        """Of the verdict."""
        return TIMED

    def lists(self) -> dict[str, list[dict[str, Any]]]:
        """Return further parts of the summary, by their names in JSON."""
        return {}

    def in_flight(self, at_least_ns: int) -> list[InFlight]:
        """Return what has been in flight for so long, oldest first; a flow without state of each has none."""
        return []

    def shedder(self) -> Shedder | None:
        """After the start: what a budget may take off this flow; None where it has nothing of the kind."""
        return None

    @property
    def flight_recorder(self) -> FlightRecorder | None:
        """None where there is none, or none was asked for."""
        return None

    @property
    def devices(self) -> Devices | None:
        """Those that it follows, where `watch` can have it follow others."""
        return None

    def watch(self, wanted: Sequence[str]) -> None:
        """From now on these devices, without a new start. Others keep what was counted of them."""
        raise WptraceError(f"{self.name} cannot change its devices while it runs")

    @property
    def needed_hooks(self) -> tuple[Hook, ...]:
        """Before the start: those that it would attach."""
        return self.hooks

    @property
    def missing(self) -> dict[str, str]:
        """After the start: hooks that nothing can observe on this kernel, by name, and why."""
        return self._running.attempts.missing

    def stop(self) -> None:
        """Detaches; a snapshot is still possible."""
        if self._loaded is not None:
            self._loaded.detach()

    def close(self) -> None:
        if self._ring is not None:
            self._ring.close()
        if self._loaded is not None:
            self._loaded.obj.close()
            self._loaded = None

    @property
    def _running(self) -> Loaded:
        if self._loaded is None:
            raise WptraceError("the flow has not been started")
        return self._loaded

    def _started(self, chosen: Mapping[str, Any], sources: list[Source], notes: list[str]) -> Start:
        """Make the result of a start; `chosen` is what the user chose."""
        self._map_bytes = sum(found.memory() for found in self._obj.maps.values())
        kernel = os.uname().release
        return Start(self.name, self.level, kernel, chosen, sources, self.kinds, notes, resource=resource.here())

    def _snapshot(
        self,
        books: Mapping[str, Book],
        cells: dict[Group, dict[str, Distribution]],
        counters: Counters,
        ran: Iterable[Statistics],
        records: int | None = None,
        folded: Mapping[Group, int] | None = None,
    ) -> Snapshot:
        """Make a snapshot; `records` are those of its ring, unless it says so."""
        if records is None:
            records = self._ring.records if self._ring is not None else 0
        cost = overhead(ran, self._map_bytes, records)
        return Snapshot(time.monotonic_ns(), books, cells, counters, cost, folded or {})

    @property
    def _obj(self) -> BpfObject:
        return self._running.obj


def overhead(programs: Iterable[Statistics], map_bytes: int, records: int) -> Overhead:
    """Return the cost of a flow so far: its programs as the kernel counted them, and this process."""
    ran = list(programs)
    usage = getrusage(RUSAGE_SELF)
    return Overhead(
        bpf_ns=sum(program.run_time_ns for program in ran),
        bpf_runs=sum(program.run_count for program in ran),
        reader_cpu_ns=int((usage.ru_utime + usage.ru_stime) * 1e9),
        rss_bytes=usage.ru_maxrss * 1024,
        map_bytes=map_bytes,
        records=records,
    )
