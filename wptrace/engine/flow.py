# SPDX-License-Identifier: Apache-2.0
"""The base class of flows: stages, the hooks that observe them, and their life from start to end."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from resource import RUSAGE_SELF, getrusage
from typing import TYPE_CHECKING, Any, Callable, Protocol

from wptrace.bpf import trial
from wptrace.bpf.lib import libbpf
from wptrace.bpf.object import BpfObject
from wptrace.bpf.programs import Statistics
from wptrace.bpf.ring import Reader, Ring
from wptrace.engine import resource
from wptrace.engine.filters import Filter, Predicates
from wptrace.engine.filters.task import NO_PROCESS, PID, Wanted
from wptrace.engine.hooks import Field, Hook, Way
from wptrace.engine.resolver import Loaded
from wptrace.errors import WptraceError
from wptrace.model import units
from wptrace.model.book import EXITED, REMOVED, Book
from wptrace.model.budget import Saving, Step
from wptrace.model.diagnosis import DEGRADED, OK, Check
from wptrace.model.distribution import Distribution
from wptrace.model.kind import REQUESTS, Group, Kind
from wptrace.model.report import Counters, Event, InFlight, Overhead, Snapshot, Source, Start

if TYPE_CHECKING:
    from wptrace.analysis.verdict import Rules
    from wptrace.capture.writer import CaptureOutput
    from wptrace.engine.devices import Devices
    from wptrace.engine.recorder import Recorder
    from wptrace.kernel.cgroups import Cgroup

NEVER_NS = (1 << 64) - 1
"""A threshold that nothing reaches."""


class Counted(Protocol):
    """A program whose runs the kernel counts."""

    def statistics(self) -> Statistics: ...


class Shedder(Protocol):
    """Sheds parts of a flow that costs too much."""

    @property
    def savings(self) -> tuple[Saving, ...]:
        """Everything that flows of this class can shed."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps, in the order in which they are shed."""

    def programs(self) -> Sequence[Counted]: ...
    def shed(self, step: Step) -> None: ...
    def restore(self, step: Step) -> None:
        """Restore a step, or raise if the kernel does not allow it; then it stays shed."""


class Flow:
    """A flow. A module in flows/ defines a subclass, which needs no registration.

    The attributes of the class are its spec; an instance may override them, by its options or by a definition. The
    methods are its life from start to end.
    """

    name: str
    level: str = ""
    object: str
    kinds: tuple[Kind, ...]
    """The kinds that it follows, in the order of display."""
    view: str = "stages"
    """The module of outputs/text/ that shows it."""
    verdict_kinds: tuple[Kind, ...] = ()
    """Kinds for the verdict, which is about the first one with activity; without any there is no verdict."""
    hooks: tuple[Hook, ...]
    """The hooks in the order in which they attach: ends before starts, so that no end is missed."""

    filters: Predicates = ()
    """Filters, in the order of --help."""
    fields: tuple[Field, ...] = ()

    recorder: CaptureOutput | None = None
    """Receives records as they lie in the ring; set before the start."""

    _loaded: Loaded | None = None
    """Set while the flow runs."""
    _ring: Ring | None = None
    _process: Wanted | None = None
    """The process of --pid."""
    _cgroup: Cgroup | None = None
    """The cgroup of --cgroup."""
    _map_bytes: int

    @classmethod
    def hooks_here(cls) -> tuple[Hook, ...]:
        """The hooks that a start without options has on this machine."""
        return cls.hooks

    @staticmethod
    def configure(obj: BpfObject) -> None:
        """Set facts of this kernel that the programs need before they load; `wptrace doctor` calls it as well."""

    @staticmethod
    def checks(chosen: Mapping[str, Way]) -> list[Check]:
        """Return further checks for `wptrace doctor`, given the chosen ways."""
        return []

    @property
    def _object(self) -> str:
        """The object that serves these options."""
        return self.object

    def planned_memory(self, prepare: Callable[[BpfObject], None]) -> str:
        """Describe the kernel memory that a start would take, without doing it; `prepare` is called before."""
        with trial.open_here(self._object) as obj:
            prepare(obj)
            return f"take {units.size(obj.planned_bytes)} of the kernel's memory, for {libbpf().cpus} CPUs"

    def start(self, reader: Reader) -> Start:
        """Load and attach the programs, and add the rings to the reader."""
        raise NotImplementedError

    def forget_events(self) -> None:
        """Drop the events so far."""
        if self._ring is not None:
            self._ring.read()

    def begin(self) -> None:
        """Start counting, for programs that are attached but idle before; others count once attached."""
        if self._process is not None:
            self._process.begin()

    def snapshot(self) -> Snapshot:
        raise NotImplementedError

    def read_cells(self) -> dict[Group, dict[str, Distribution]]:
        """The cells of a snapshot, if they can be read without the rest of it."""
        return self.snapshot().cells

    def folded(
        self, cells: dict[Group, dict[str, Distribution]], counters: Counters
    ) -> tuple[dict[Group, dict[str, Distribution]], Counters]:
        """Fold the counts of an interval into the rows of a report."""
        return cells, counters

    def events(self) -> Sequence[Event]:
        """The records since the last call; none for a flow without records."""
        return ()

    @property
    def rules(self) -> Rules:
        """The rules of the verdict, which a start does without."""
        from wptrace.analysis.verdict import TIMED

        return TIMED

    def lists(self) -> dict[str, list[dict[str, Any]]]:
        """Return further parts of the summary, by their names in JSON."""
        return {}

    def in_flight(self, at_least_ns: int) -> list[InFlight]:
        """Return what has been in flight for at least so long, oldest first; none for a flow that keeps no state."""
        return []

    def shedder(self) -> Shedder | None:
        """After the start: the means to shed load for a budget; None if there are none."""
        return None

    @property
    def flight_recorder(self) -> Recorder | None:
        """The flight recorder; None if there is none or it is off."""
        return None

    @property
    def devices(self) -> Devices | None:
        """The devices that it follows, if `watch` can change them."""
        return None

    def watch(self, wanted: Sequence[str]) -> None:
        """Follow these devices from now on, without a restart. The counts of others are kept."""
        raise WptraceError(f"{self.name} cannot change its devices while it runs")

    @property
    def needed_hooks(self) -> tuple[Hook, ...]:
        """Before the start: the hooks that it would attach."""
        return self.hooks

    @property
    def missing(self) -> dict[str, str]:
        """After the start: hooks that cannot be observed on this kernel, by name, with the reason."""
        return self._running.attempts.missing

    def stop(self) -> None:
        """Detach; a snapshot is still possible."""
        if self._loaded is not None:
            self._loaded.detach()

    def close(self) -> None:
        if self._process is not None:
            self._process.close()
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

    def _watch_wanted(self, reader: Reader, wanted: Filter) -> None:
        """Notice when the wanted process ends, whose number another one may get, and that the cgroup is removed."""
        # Most flows do without.
        from wptrace.engine.filters.cgroup import IN_CGROUP

        self._cgroup = wanted.get(IN_CGROUP.name)
        if PID.name in wanted:
            (set_process,) = (one.set for one in self.filters if one.name == PID.name)
            bss = self._obj.bss
            self._process = Wanted(wanted[PID.name], reader, lambda: set_process(bss, NO_PROCESS))

    def _started(self, chosen: Mapping[str, Any], sources: list[Source], notes: list[str]) -> Start:
        """Make the result of a start; `chosen` is what the user chose."""
        self._map_bytes = sum(found.memory() for found in self._obj.maps.values())
        kernel = os.uname().release
        # Two filters, or two points of a definition, may say the same.
        notes = list(dict.fromkeys(notes))
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
        """Make a snapshot; `records` defaults to those of its ring."""
        if records is None:
            records = self._ring.records if self._ring is not None else 0
        cost = overhead(ran, self._map_bytes, records)
        if self._process is not None and self._process.has_ended():
            books[REQUESTS].note(EXITED)
        if self._cgroup is not None and self._cgroup.is_gone:
            books[REQUESTS].note(REMOVED)
        return Snapshot(time.monotonic_ns(), books, cells, counters, cost, folded or {})

    @property
    def _obj(self) -> BpfObject:
        return self._running.obj


class DeviceFlow(Flow):
    """A flow whose devices can change while it runs."""

    _devices: Devices

    @property
    def devices(self) -> Devices:
        return self._devices

    def _prepare(self, obj: BpfObject) -> None:
        """Set constants of the programs and sizes of maps before the load."""
        raise NotImplementedError

    def plan(self) -> list[str]:
        """Describe a start without doing it."""
        return self._planned(self._devices.plan(self.needed_hooks))

    def _planned(self, lines: list[str]) -> list[str]:
        # The memory first: it shows whether there is enough for all devices.
        return [*lines, self.planned_memory(self._prepare), *self._devices.shortage]

    def check_memory(self) -> Check:
        """Check for the memory that a start takes."""
        planned = self.planned_memory(self._prepare)
        if self._devices.shortage:
            return Check("memory", DEGRADED, self._devices.shortage[0], "name the devices of interest with --dev")
        return Check("memory", OK, planned.replace("take", "takes", 1))

    def watch(self, wanted: Sequence[str]) -> None:
        self._devices.aim(self._obj, wanted)
        self.read_cells()


def overhead(programs: Iterable[Statistics], map_bytes: int, records: int) -> Overhead:
    """Return the cost of a flow so far: of its programs as the kernel counted it, and of this process."""
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
