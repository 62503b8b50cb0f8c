# SPDX-License-Identifier: Apache-2.0
"""`wptrace io`: the whole path of reads and writes, from the system call to the device and back to the task.

Each option adds a part (wptrace/flows/io/parts/part.py); this module holds them together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from wptrace.bpf.object import BpfObject
from wptrace.bpf.ring import Reader
from wptrace.engine import devices, filters, functions
from wptrace.engine.filters import Filter
from wptrace.engine.flow import DeviceFlow
from wptrace.engine.hooks import DISK_OF_REQUEST, STATE_OF_TASK, Field, Hook, Way
from wptrace.engine.resolver import load
from wptrace.engine.sampling import Sampling
from wptrace.flows.io import calls, parts
from wptrace.flows.io import hooks as io_hooks
from wptrace.flows.io.books import Books
from wptrace.flows.io.kinds import KINDS, OPERATION, REQUEST
from wptrace.flows.io.options import FILTERS, Options
from wptrace.flows.io.parts import file_systems
from wptrace.flows.io.parts.counts import Counts
from wptrace.flows.io.parts.part import Distributions, Part, Tracing
from wptrace.flows.io.state import values_in_flight
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


class PathFlow(DeviceFlow):
    name = "io"
    level = "path"
    object = "io_path"
    without_options, with_rows, with_recorder = "io_path_plain", "io_path_rows", "io_path_recorder"
    kinds: tuple[Kind, ...] = KINDS
    verdict_kinds: tuple[Kind, ...] = (OPERATION, REQUEST)
    follows_operations = True
    hooks = io_hooks.HOOKS
    filters = FILTERS
    fields = (
        DISK_OF_REQUEST,
        Field(("bio.bi_bdev", "bio.bi_disk"), "bios cannot be assigned to disks"),
        STATE_OF_TASK,
    )

    def __init__(self, options: Options) -> None:
        self._options = options
        self._devices, places = file_systems.chosen(options)
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

    configure = staticmethod(io_hooks.configure)

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
        for name in parts.OPTIONAL if self._object == self.object else ():
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
        notes = self._devices.notes() + loaded.attempts.notes()
        for part in self._parts:
            chosen.update(part.chosen)
            notes += part.notes(loaded)
        notes += filters.notes(self._options.filter, self.filters)
        sources = [Source(name, loaded.serving(name)) for name in names(self.kinds)]
        fields = [field for part in self._parts for field in part.fields]
        return self._started(chosen, sources, notes)._replace(fields=fields)

    def begin(self) -> None:
        for part in self._parts:
            part.begin(self._obj)
        self._books.open()

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
        obj = self._obj
        changed = self._devices.refresh(obj, self._rename, lambda: values_in_flight(obj, ops="slot", bios="done.slot"))
        if changed:
            self._books.compare_disks()
        timed: Distributions = {}
        untimed = Counter[Group]()
        for part in self._parts:
            part.refresh(obj, changed)
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
        counters: dict[Group, Counter[str]] = {}
        for part in self._parts:
            part.add_counters(counters)
        counters.update(self._devices.loads.counters())
        return self._snapshot(books, found, counters, ran.values(), folded=folded)

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
        return self._books.in_flight(at_least_ns)

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
