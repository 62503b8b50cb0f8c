# SPDX-License-Identifier: Apache-2.0
"""`wptrace io`: the whole path of reads and writes, from the system call to the device and back to the task.

Each option adds a part (wptrace/flows/io/parts/part.py); this module holds them together.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from wptrace.bpf import trial
from wptrace.bpf.object import BpfObject
from wptrace.bpf.perf import CPU_CLOCK
from wptrace.bpf.ring import Reader
from wptrace.engine import devices, filters, functions
from wptrace.engine.devices import Devices
from wptrace.engine.differences import argument, timed_out_bit
from wptrace.engine.filters import Filter
from wptrace.engine.filters.file import DIR, FILE
from wptrace.engine.flow import DeviceFlow
from wptrace.engine.hooks import DISK_OF_REQUEST, STATE_OF_TASK, Field, Hook, Way
from wptrace.engine.resolver import Loaded, load
from wptrace.engine.sampling import Sampling
from wptrace.flows.io import calls, parts
from wptrace.flows.io import hooks as io_hooks
from wptrace.flows.io import operations as io_operations
from wptrace.flows.io.books import Books
from wptrace.flows.io.hooks import HOOKS, TICK_NS
from wptrace.flows.io.kinds import KINDS, OPERATION, REQUEST
from wptrace.flows.io.options import FILTERS, Options
from wptrace.flows.io.parts import file_systems
from wptrace.flows.io.parts.counts import Counts
from wptrace.flows.io.parts.part import Distributions, Part, Tracing
from wptrace.flows.io.state import values_in_flight, waiting
from wptrace.kernel import cpus
from wptrace.kernel.mounts import Place
from wptrace.model.book import INCONSISTENT, Cause
from wptrace.model.diagnosis import Check
from wptrace.model.distribution import Distribution
from wptrace.model.kind import TOTAL, Group, Kind, names
from wptrace.model.report import Counters, Event, InFlight, Snapshot, Source, Start

if TYPE_CHECKING:
    from wptrace.analysis.verdict import Rules
    from wptrace.engine.recorder import Recorder
    from wptrace.flows.io.parts.shed import PathShedder

# Options that parts turn on. The object has them on by default, so that a plain load verifies all of it.
_OPTIONAL = ("emits_records", "interference", "following", "stacked", "watches_remote")


class PathFlow(DeviceFlow):
    name = "io"
    level = "path"
    object = "io_path"
    without_options, with_rows, with_recorder = "io_path_plain", "io_path_rows", "io_path_recorder"
    kinds: tuple[Kind, ...] = KINDS
    verdict_kinds: tuple[Kind, ...] = (OPERATION, REQUEST)
    follows_operations = True
    hooks = HOOKS
    filters = FILTERS
    fields = (
        DISK_OF_REQUEST,
        Field(("bio.bi_bdev", "bio.bi_disk"), "bios cannot be assigned to disks"),
        STATE_OF_TASK,
    )

    def __init__(self, options: Options) -> None:
        self._options = options
        places = [options.filter[name] for name in (FILE.name, DIR.name) if name in options.filter]
        self._devices = Devices(*devices.chosen(options.devices, places), hidden=True)
        if options.devices and FILE.name in options.filter:
            devices.check_file(options.filter[FILE.name], self._devices.extents)
        self._counts = Counts(self.follows_operations, self._devices.everything)
        self._parts: list[Part] = [self._counts, *self._parts_of_files(places)]
        self._parts += parts.chosen(options, self._devices, self._counts, self.follows_operations)
        self.kinds = (*self.kinds, *(kind for part in self._parts for kind in part.kinds))
        if options.guest is not None:
            self.name = "host"
        self._sampling = Sampling()
        self._shedder: PathShedder | None = None

    def _parts_of_files(self, places: Sequence[Place]) -> list[Part]:
        self._file_systems = file_systems.FileSystems(self._devices, places, every=bool(self._options.spare))
        return [self._file_systems]

    # --- The start ------------------------------------------------------------------------------------------------

    @staticmethod
    def configure(obj: BpfObject) -> None:
        obj.rodata.request_is_second = argument("block_rq_issue", "request *") == 1
        obj.rodata.bio_is_second = argument("block_bio_queue", "bio *") == 1
        obj.rodata.without_exchange = not trial.exchanges()
        obj.rodata.dirty_limit_is_object = argument("balance_dirty_pages", "dirty_throttle_control *") == 1
        obj.rodata.page_shift = os.sysconf("SC_PAGE_SIZE").bit_length() - 1
        obj.rodata.uring_hands_event = io_operations.hands_event()
        obj.rodata.timed_out_bit = timed_out_bit()
        obj.progs["tick_perf"].run_on(CPU_CLOCK, TICK_NS, cpus.online())

    @staticmethod
    def checks(chosen: Mapping[str, Way]) -> list[Check]:
        from wptrace.engine import recorder

        found = file_systems.checks(chosen[io_hooks.OPERATION]) if chosen else []
        with closing(PathFlow(Options())) as flow:
            return [*found, flow.check_memory(), recorder.check()]

    @classmethod
    def hooks_here(cls) -> tuple[Hook, ...]:
        return io_hooks.seen_by(io_hooks.file_systems(devices.extents((), hidden=True)))

    @property
    def is_remote(self) -> bool:
        """Whether wanted files are served by other machines or processes."""
        return bool(self._devices.remotes)

    @property
    def needed_hooks(self) -> tuple[Hook, ...]:
        wanted = {stage for part in self._parts for stage in part.stages}
        disks = {extent.disk for extent in self._devices.extents} if not self._devices.everything else None
        found = io_hooks.needed(self._offered(), disks, wanted)
        return (*found, *(hook for part in self._parts for hook in part.hooks))

    def _offered(self) -> tuple[Hook, ...]:
        return io_hooks.of_files(self._file_systems.watched, self._options.emits_records)

    def _prepare(self, obj: BpfObject) -> None:
        self.configure(obj)
        for name in _OPTIONAL if self._object == self.object else ():
            setattr(obj.rodata, name, False)
        for part in self._parts:
            part.prepare(obj)
        self._devices.place(obj, lambda rows: self._make_room(obj, rows), self._options.spare, self._options.memory)
        if self._object == self.object:
            filters.apply(obj.bss, self._options.filter, self.filters)

    def _make_room(self, obj: BpfObject, rows: int) -> None:
        for part in self._parts:
            part.make_room(obj, rows)

    @property
    def _object(self) -> str:
        """The smallest object that is sufficient."""
        rows, recorder = any(part.needs_rows for part in self._parts), self._options.recorder is not None
        if self._options.filter or any(part.needs_options for part in self._parts) or (rows and recorder):
            return self.object
        return self.with_rows if rows else self.with_recorder if recorder else self.without_options

    def start(self, reader: Reader) -> Start:
        # Before any program is loaded.
        self._slow_path_ns = calls.slow_path_ns() if self.follows_operations else 0.0
        self._loaded = loaded = load(self._object, self.needed_hooks, self._prepare)
        self._books = Books(loaded, self._options, self._devices, self._counts)
        code = functions.places(dict(item for part in self._parts for item in part.functions(loaded).items()))
        tracing = Tracing(loaded, self._devices.slots, reader, self.recorder, code)
        for part in self._parts:
            part.start(tracing)
            if part.ring is not None:
                self._ring = part.ring
        chosen = {**self._devices.chosen, **filters.describe(self._options.filter, self.filters)}
        for part in self._parts:
            chosen.update(part.chosen)
        sources = [Source(name, loaded.serving(name)) for name in names(self.kinds)]
        fields = [field for part in self._parts for field in part.fields]
        return self._started(chosen, sources, self._notes(loaded))._replace(fields=fields)

    def begin(self) -> None:
        for part in self._parts:
            part.begin(self._obj)
        self._books.open()

    def _notes(self, loaded: Loaded) -> list[str]:
        found = self._devices.notes() + loaded.attempts.notes()
        for part in self._parts:
            found += part.notes(loaded)
        return found + filters.notes(self._options.filter, self.filters)

    # --- Other filters ----------------------------------------------------------------------------------------------

    def retarget(self, wanted: Filter) -> None:
        """Change the filter without a restart. Objects in flight keep the earlier decision."""
        filters.apply(self._obj.bss, wanted, self.filters)
        self._options = self._options._replace(filter=wanted)
        self._books.retarget(self._options)
        for part in self._parts:
            part.retarget(self._obj, wanted)

    def emit_records(self, slow_ns: int | None, sample: int = 0, limit: int = 0) -> None:
        """Change which operations get a record: those that take this long, one in `sample`, or none.

        The flow has to be started with `records_later`. An operation that is already in flight keeps what was decided.
        """
        for part in self._parts:
            part.emit(slow_ns, sample, limit)

    # --- Reading --------------------------------------------------------------------------------------------------

    def read_cells(self) -> dict[Group, dict[str, Distribution]]:
        """Read the cells, extrapolated to objects that were only counted."""
        changed = self._devices.refresh(
            self._obj, self._rename, lambda: values_in_flight(self._obj, ops="slot", bios="done.slot")
        )
        if changed:
            self._books.compare_disks()
        timed: Distributions = {}
        untimed = Counter[Group]()
        for part in self._parts:
            part.refresh(self._obj, changed)
        for part in self._parts:
            for cells in part.cells.values():
                cells.read()
            part.add_distributions(timed)
            untimed.update(part.untimed())
        # Interference is counted before its operation, and may be there without it for a moment.
        for group in [group for group, stages in timed.items() if TOTAL not in stages]:
            del timed[group]
        found = self._sampling.whole(timed, untimed)
        for part in self._parts:
            part.add_copies(found)
        return found

    def _rename(self, slot: int, name: str) -> None:
        for part in self._parts:
            part.rename(slot, name)

    def _counters(self) -> dict[Group, Counter[str]]:
        found: dict[Group, Counter[str]] = {}
        for part in self._parts:
            part.add_counters(found)
        found.update(self._devices.loads.counters())
        return found

    def snapshot(self) -> Snapshot:
        starts = self._books.starts()
        found = self.read_cells()
        ran = self._running.statistics()
        noted: dict[Cause, int] = {}
        folded: dict[Group, int] = {}
        for part in self._parts:
            noted.update(part.noted(self._obj))
            folded.update(part.folded)
        noted[INCONSISTENT] = sum(cells.shrunk for part in self._parts for cells in part.cells.values())
        books = self._books.read(starts, ran, noted, self._shedder)
        books = {kind.book: books[kind.book] for kind in self.verdict_kinds}
        return self._snapshot(books, found, self._counters(), ran.values(), folded=folded)

    def folded(self, cells: Distributions, counters: Counters) -> tuple[Distributions, Counters]:
        for part in self._parts:
            cells, counters = part.fold(cells, counters)
        return cells, counters

    def events(self) -> Sequence[Event]:
        found: Sequence[Event] = ()
        for part in self._parts:
            found = part.events(found)
        return found

    def in_flight(self, at_least_ns: int) -> list[InFlight]:
        self._books.stale.sweep()
        return waiting(
            self._obj, self._devices.names, time.monotonic_ns(), at_least_ns, anywhere=self._devices.everything
        )

    def lists(self) -> dict[str, list[dict[str, Any]]]:
        return {name: found for part in self._parts for name, found in part.lists.items()}

    @property
    def rules(self) -> Rules:
        from wptrace.flows.io import rules

        return rules.of_trace(self._options, self._devices)

    @property
    def flight_recorder(self) -> Recorder | None:
        return next((part.recorder for part in self._parts if part.recorder is not None), None)

    def shedder(self) -> PathShedder:
        from wptrace.flows.io.parts.shed import PathShedder

        self._shedder = PathShedder(
            self._running, self._options, self._parts, self.follows_operations, self.read_cells, self._slow_path_ns
        )
        return self._shedder

    # --- The end --------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        self._books.close()
        super().stop()

    def close(self) -> None:
        for part in self._parts:
            part.close()
        super().close()
