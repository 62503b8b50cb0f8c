# SPDX-License-Identifier: Apache-2.0
"""`wptrace io`: the whole path of reads and writes, from the system call to the device and back to the task."""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Callable, NamedTuple

from wptrace.analysis import neighbours, owners
from wptrace.analysis.verdict import Rules
from wptrace.bpf import trial
from wptrace.bpf.object import BpfObject
from wptrace.bpf.perf import CPU_CLOCK
from wptrace.bpf.ring import RATE, RAW_RATE, Reader, Record, Ring
from wptrace.capture.records import Raw
from wptrace.engine import devices, filters, gone_cgroups
from wptrace.engine.cells import Cells, merge
from wptrace.engine.devices import DeviceCells
from wptrace.engine.filters import Filter
from wptrace.engine.filters.file import DIR, FILE
from wptrace.engine.filters.task import PID
from wptrace.engine.flow import Flow
from wptrace.engine.hooks import END, Field, Hook, Way
from wptrace.engine.resolver import Loaded, load
from wptrace.engine.sampling import Sampling
from wptrace.engine.tracepoints import argument
from wptrace.errors import UsageError
from wptrace.flows.io import controllers as io_controllers
from wptrace.flows.io import hooks as io_hooks
from wptrace.flows.io import layers, rules
from wptrace.flows.io import operations as io_operations
from wptrace.flows.io import signals as io_signals
from wptrace.flows.io import writeback as io_writeback
from wptrace.flows.io.by import CGROUP
from wptrace.flows.io.causes import (
    BIO_FULL,
    CAUSES,
    EXITED,
    FOREIGN,
    GHOST,
    NOTED,
    OP_FULL,
    OP_UNENDED,
    SHED,
    UNSEEN,
    UNWATCHED,
)
from wptrace.flows.io.filters import FILTERS
from wptrace.flows.io.hooks import HOOKS
from wptrace.flows.io.images import Images
from wptrace.flows.io.kinds import (
    CONTROLLERS,
    HIT,
    INTERFERENCES,
    KINDS,
    LAYER,
    OPERATION,
    REQUEST,
    REQUEST_STAGES,
    SPARSE,
    WRITEBACK_STAGES,
)
from wptrace.flows.io.neighbours import Neighbours
from wptrace.flows.io.operations import MODULES
from wptrace.flows.io.owners import OWNED, Owners
from wptrace.flows.io.records import OBJECT, Stories, as_asked, begun, in_use, unplaced, values_in_flight, waiting
from wptrace.flows.io.request_events import counted, timed_out_bit
from wptrace.flows.io.shed import PathShedder
from wptrace.flows.io.signals import Signals
from wptrace.flows.io.stale import StaleRequests
from wptrace.flows.io.syscalls import calls
from wptrace.flows.io.unseen import Unseen
from wptrace.kernel import blockdev, cpus, mounts, tasks
from wptrace.kernel.cgroup_names import CgroupNames
from wptrace.kernel.guests import Guest
from wptrace.model.book import INCONSISTENT, RECURSION, UNMATCHED_START, Book
from wptrace.model.diagnosis import DEGRADED, Check
from wptrace.model.distribution import Distribution
from wptrace.model.kind import OPERATIONS as OF_OPERATIONS
from wptrace.model.kind import REQUESTS, TOTAL, Group, Kind, names
from wptrace.model.report import BYTES, Counters, Event, InFlight, Snapshot, Source, Start

# The whole time of the request of an operation that made one (ONLY_STAGE_REQUEST of bpf_src/block/path/shared.h).
_REQUEST = "request"
# Reads and writes (PLAIN_KINDS, there).
_PLAIN_KINDS = 2
_TICK_NS = 1_000_000
# Cells whose objects a budget may have counted alone.
_SAMPLED = ("request", "writeback", "owned_request")
# Processes at once that descend from the one that is asked for.
_CHILDREN = 1 << 14
_NO_PROCESS = (1 << 32) - 1
# Bios of stacked devices that can be in flight.
_UPPERS = 16384
_LAST_MOMENT_S = 0.1
# A bio that was queued before tracing began gets its request within this time.
_SETTLES_NS = 1_000_000_000


class Options(NamedTuple):
    devices: tuple[str, ...] = ()
    """As the user named them; none means all disks."""
    filter: Filter = Filter()
    slow_ns: int | None = None
    """Operations, and requests that nobody waits for, that took at least this long are shown one by one."""
    sample: int = 0
    """One in this many is shown as well."""
    limit: int = 0
    """How many are shown per second at most; 0 for all."""
    children: bool = False
    """With --pid: what that process started as well."""
    interference: bool = False
    writeback: bool = False
    """Follow pages that are written back from the task that made them dirty."""
    by: str = ""
    """Rows by owner as well."""
    top: int = 0
    """Of so many owners, the largest ones; 0: all."""
    segments: bool = False
    """Single ones tell each stretch of a stage, and each of their requests."""
    neighbours: bool = False
    """Who had the device while others waited for it, by the same owners."""
    spare: int = 0
    """So many rows for devices that come later, and the programs of every file system; 0: as many rows as a little
    memory allows, and the programs of what is mounted."""
    owner_rows: int = 0
    """The size of the table in the kernel; 0: as many as the memory for them allows."""
    ring_bytes: int = 1 << 22
    guest: Guest | None = None
    """Told are those of the images of its disks alone."""
    kicks: bool = False
    """Which threads write and read the eventfds of the process."""

    @property
    def emits_records(self) -> bool:
        return self.slow_ns is not None or self.sample > 0


class PathFlow(Flow):
    name = "io"
    level = "path"
    object = OBJECT
    kinds: tuple[Kind, ...] = KINDS
    verdict_kinds = (OPERATION, REQUEST)
    hooks = HOOKS
    filters = FILTERS
    fields = (
        Field(("request.rq_disk", "request_queue.disk"), "requests cannot be assigned to disks"),
        Field(("bio.bi_bdev", "bio.bi_disk"), "bios cannot be assigned to disks"),
        Field(("task_struct.__state", "task_struct.state"), "sleep cannot be distinguished from preemption"),
    )

    _owners: Owners | None = None
    _neighbours: Neighbours | None = None
    _images: Images | None = None
    _signals: Signals | None = None

    def __init__(self, options: Options) -> None:
        self._options = options
        # Before: what comes meanwhile is a change.
        self._devices_changed = blockdev.Changes()
        self._extents = devices.extents(options.devices, hidden=True)
        if options.devices and FILE.name in options.filter:
            devices.check_file(options.filter[FILE.name], self._extents)
        self._mounted = mounts.Changes()
        self._file_systems = set(MODULES) if options.spare else io_hooks.file_systems(self._extents)
        self._below = devices.below_files()
        self._unwatched: set[int] = set()
        self._stacked = layers.wanted(options.devices)
        self._follows_layers = bool(self._stacked or options.spare)
        self._stopped = False
        self._process: tasks.Watched | None = None
        self._events: list[Event] = []
        self._in_the_way = rules.InTheWay()
        self._sampling = Sampling()
        self._shedder: PathShedder | None = None
        self._cgroups = CgroupNames()
        if options.by:
            self._owners = Owners(options.by, self._cgroups)
            self.kinds = (*KINDS, *self._owners.kinds)
            if options.neighbours:
                self._neighbours = Neighbours(self._owners)
                self._owners.kept = True
        if options.guest is not None:
            self.name = "host"
            self._images = Images(options.guest)

    @staticmethod
    def configure(obj: BpfObject) -> None:
        obj.rodata.request_is_second = argument("block_rq_issue", "request *") == 1
        obj.rodata.bio_is_second = argument("block_bio_queue", "bio *") == 1
        obj.rodata.without_exchange = not trial.exchanges()
        obj.rodata.page_shift = os.sysconf("SC_PAGE_SIZE").bit_length() - 1
        obj.rodata.uring_hands_event = io_operations.hands_event()
        obj.rodata.timed_out_bit = timed_out_bit()
        obj.progs["tick_perf"].run_on(CPU_CLOCK, _TICK_NS, cpus.online())

    def start(self, reader: Reader) -> Start:
        self._loaded = loaded = load(self.object, self._hooks(), self._prepare)
        obj = loaded.obj
        self._cells = self._counted(obj)
        by_slot = {name: cells for name, cells in self._cells.items() if isinstance(cells, DeviceCells)}
        self._layer_cells = by_slot.pop("layer")
        self._device_cells = [cells for cells in by_slot.values() if cells.followed]
        self._causes = [CAUSES[name] for name in obj.enum("path_cause")]
        if self._neighbours is not None:
            self._neighbours.begin(obj, self._names)
        what = self._records
        self._stories = Stories(obj, self._names, self._cgroups, neighbours=self._neighbours, end=what.end)
        if self._shows_cgroups:
            gone_cgroups.watch(obj, self._cgroups)
        self._stale = StaleRequests(obj)
        if self._options.emits_records:
            recorder, cgroup_of = self.recorder, self._stories.cgroups.of
            sink = None if recorder is None else recorder.raw(obj, what, self._names, cgroup_of)
            self._ring = Ring.of(obj.maps["records"], self._stories.layout, sink)
            rate = RAW_RATE if sink is not None and self._options.slow_ns == 0 else RATE
            reader.add(self._ring, self._take, rate=self._options.limit or rate)
        if self._options.kicks:
            self._signals = Signals(obj, reader, self.recorder)
        obj.bss.seen_by_handler = loaded.way(io_hooks.SEEN_BY_OTHERS).name == io_hooks.HANDLER
        obj.bss.calls = calls(
            len(obj.view("calls")),
            obj.enum("call_kind"),
            plain=loaded.way(io_hooks.OPERATION).name == io_operations.CALLS,
            syncs=loaded.way(io_hooks.SYNC).name == io_operations.CALLS,
        )
        chosen: dict[str, Any] = {"dev": [extent.name for extent in self._extents] if self._options.devices else []}
        chosen.update(filters.describe(self._options.filter, self.filters))
        if self._options.children:
            chosen["children"] = True
        if self._options.by:
            chosen["by"] = self._options.by
        if self._options.neighbours:
            chosen["neighbours"] = True
        if self._options.segments:
            chosen["segments"] = True
        if self._images is not None:
            chosen.update(self._images.described)
        if self._options.kicks:
            chosen["kicks"] = True
        sources = [Source(name, loaded.serving(name)) for name in names(self.kinds)]
        start = self._started(chosen, sources, self._notes(loaded))
        self._mark_children()
        pid = self._options.filter.get(PID.name)
        # When a guest ends its trace does.
        if pid and self._options.guest is None:
            self._process = tasks.Watched(pid)
        obj.bss.since_ns = time.monotonic_ns()
        obj.bss.settled_ns = obj.bss.since_ns + _SETTLES_NS
        obj.bss.tracing = True
        self._unseen = Unseen(self._watched_whole())
        return start

    def _watched_whole(self) -> list[blockdev.Extent]:
        """Of which each request has a row."""
        return [] if self._options.filter or self._options.guest is not None else self._extents

    @property
    def _records(self) -> Raw:
        return as_asked(self._options.interference, self._neighbours is not None, self._options.segments)

    def _counted(self, obj: BpfObject) -> dict[str, Cells]:
        """By kind: what the programs count, with the names of the devices."""
        ops, kinds = obj.enum("block_op"), obj.enum("op_kind")
        stages, only = obj.enum("op_stage"), obj.enum("only_stage")
        requests = obj.enum("request_stage")

        def groups(kind: Kind, of: list[str]) -> Callable[[str], list[Group]]:
            return lambda name: [kind.group(name, one) for one in of]

        every = self._names

        def cells(
            table: str, of: Callable[[str], list[Group]], stages: list[str], names: Sequence[str] = every, **more: Any
        ) -> DeviceCells:
            return DeviceCells(obj.maps[f"{table}_cells"], names, of, stages, True, **more)

        interfering = every if self._options.interference else []
        absent = [name for name in SPARSE if name not in only]
        return {
            "op": cells("op", groups(OPERATION, kinds), stages),
            "only": cells("only", groups(OPERATION, kinds[:_PLAIN_KINDS]), only, absent=absent),
            "hit": cells("hit", groups(HIT, kinds), [TOTAL]),
            "interference": cells("interference", groups(OPERATION, kinds), list(INTERFERENCES), interfering),
            "layer": cells("layer", groups(LAYER, ops), obj.enum("layer_stage"), self._layers),
            "request": cells("request", groups(REQUEST, ops), requests),
            "writeback": io_writeback.cells(obj, self._names if self._options.writeback else []),
            **io_controllers.cells(obj, self._names if self._options.interference else []),
            **({} if self._owners is None else self._owners.cells(obj, self._names)),
        }

    @staticmethod
    def checks(chosen: Mapping[str, Way]) -> list[Check]:
        kinds = io_hooks.file_systems(devices.extents((), hidden=True))
        notes = io_operations.notes(chosen[io_hooks.OPERATION], kinds) if chosen else []
        return [Check("operations", DEGRADED, note) for note in notes]

    @classmethod
    def hooks_here(cls) -> tuple[Hook, ...]:
        return io_hooks.seen_by(io_hooks.file_systems(devices.extents((), hidden=True)))

    def _hooks(self) -> tuple[Hook, ...]:
        unused = set() if self._options.interference else {*INTERFERENCES, *CONTROLLERS}
        unused |= set() if self._options.writeback else set(WRITEBACK_STAGES)
        unused |= set() if self._follows_layers else {"layers"}
        disks = {extent.disk for extent in self._extents} if self._options.devices else None
        found = io_hooks.needed(self._file_systems, disks, unused, self._options.emits_records)
        found += (io_hooks.KICKS,) if self._options.kicks else ()
        found += (io_hooks.CHILDREN,) if self._options.children else ()
        return (*found, gone_cgroups.HOOK) if self._shows_cgroups else found

    @property
    def _shows_cgroups(self) -> bool:
        return self._options.emits_records or self._options.by == CGROUP

    def _prepare(self, obj: BpfObject) -> None:
        options = self._options
        self.configure(obj)
        kinds, requests = len(obj.enum("op_kind")), len(obj.enum("block_op"))
        self._place_devices(obj, kinds, requests)
        slots = len(self._names)
        obj.maps["op_cells"].max_entries = slots * kinds
        obj.maps["only_cells"].max_entries = slots * _PLAIN_KINDS
        obj.maps["hit_cells"].max_entries = slots * kinds
        obj.maps["interference_cells"].max_entries = slots * kinds if options.interference else 1
        obj.maps["request_cells"].max_entries = slots * requests
        obj.rodata.following = options.writeback
        if options.writeback:
            io_writeback.prepare(obj, slots)
        if self._owners is not None:
            self._owners.prepare(obj, slots, self._options.owner_rows)
        if self._neighbours is not None:
            self._neighbours.prepare(obj, slots)
        if options.interference:
            io_controllers.prepare(obj, slots)
        if options.kicks:
            io_signals.prepare(obj, options.ring_bytes)
        obj.rodata.stacked = self._follows_layers
        if self._follows_layers:
            obj.maps["layer_cells"].max_entries = len(self._layers) * requests
            obj.maps["uppers"].max_entries = _UPPERS
            obj.bss.layers = layers.table(obj, self._layers, self._stacked)
            # A bio may be known before it is queued, as one that a limit holds.
            obj.bss.holding = bool(self._stacked)
        obj.rodata.emits_records = options.emits_records
        if options.emits_records:
            obj.maps["records"].max_entries = options.ring_bytes
            obj.rodata.record_bytes = obj.struct("io_record").before(self._records.end).size
            if options.segments:
                obj.rodata.segmented = True
                obj.maps["op_kept"].max_entries = obj.length("ops")
            obj.bss.sample = options.sample
            obj.bss.record_limit = options.limit
        if options.slow_ns is not None:
            obj.data.slow_ns = options.slow_ns
        obj.rodata.interference = obj.bss.interference_on = options.interference
        obj.bss.tick_ns = _TICK_NS if options.interference else 0
        obj.bss.trace_unlisted = not options.devices
        obj.bss.devices = devices.table(obj, self._extents, self._names)
        obj.bss.hidden_disks = devices.hidden_table(obj, self._extents, self._names)
        obj.bss.file_devices = devices.file_table(obj, self._extents, self._names, self._below)
        if options.children:
            obj.rodata.filter_children = True
            obj.maps["descendants"].max_entries = _CHILDREN
        if self._shows_cgroups:
            gone_cgroups.prepare(obj)
        filters.apply(obj.bss, options.filter, self.filters)

    def _place_devices(self, obj: BpfObject, kinds: int, requests: int) -> None:
        """Give each device a slot, and keep some for those that come."""
        sizes = {
            "op_cells": kinds,
            "only_cells": _PLAIN_KINDS,
            "hit_cells": kinds,
            "request_cells": requests,
            "interference_cells": kinds if self._options.interference else 0,
        }
        of_one = sum(obj.maps[name].value_size * count for name, count in sizes.items())
        of_layer = obj.maps["layer_cells"].value_size * requests
        wanted, room = self._options.devices, self._options.spare
        if room:
            self._slots = devices.Slots(devices.names(self._extents), room)
        else:
            self._slots = devices.Slots.of(obj, self._extents, wanted, of_one)
            room = devices.spare(of_layer) if self._follows_layers else 0
        self._names = self._slots.names
        self._layer_slots = devices.Slots(self._stacked, room)
        self._layers = self._layer_slots.names
        self._loads = devices.Loads([*self._names, *self._layers])

    def watch(self, wanted: Sequence[str]) -> None:
        """From now on these devices, without a new start. Others keep what was counted of them."""
        self._options = self._options._replace(devices=tuple(wanted))
        self._running.obj.bss.trace_unlisted = not wanted
        self._look_at_devices()
        self._look_at_mounts()

    def _look_at_devices(self) -> None:
        """Those that came have rows from now on, those that went have none any more."""
        obj, wanted, before = self._running.obj, self._options.devices, self._extents
        self._extents = devices.extents_of_now(wanted, hidden=True)
        self._stacked = layers.wanted_now(wanted) if self._follows_layers else []
        came = devices.update(obj, self._slots, before, self._extents, self._rename, held=self._slots_in_flight)
        layers_that_came = self._layer_slots.changes(self._stacked)
        self._layer_slots.rename(layers_that_came)
        for slot, name in layers_that_came.items():
            self._layer_cells.rename(slot, name)
        self._loads.add([*came, *layers_that_came.values()])
        self._unseen.compare(self._watched_whole())
        with suppress(UsageError):
            if self._stacked:
                obj.bss.layers = layers.table(obj, self._layers, self._stacked)
                obj.bss.holding = True
            obj.bss.hidden_disks = devices.hidden_table(obj, self._extents, self._names)

    def _rename(self, slot: int, name: str) -> None:
        if self._neighbours is not None:
            self._neighbours.counters()
        for cells in self._device_cells:
            cells.rename(slot, name)
        if self._owners is not None:
            self._owners.rename(slot, name)

    def _slots_in_flight(self) -> set[int]:
        return values_in_flight(self._obj, ops="slot", bios="done.slot")

    def retarget(self, wanted: Filter) -> None:
        """From now on other requests, without a new start. What is in flight keeps what was decided for it."""
        filters.apply(self._running.obj.bss, wanted, self.filters)
        self._options = self._options._replace(filter=wanted)
        self._unseen = Unseen(self._watched_whole())
        if self._process is not None:
            self._process.close()
            self._process = None
        self._mark_children()

    def _mark_children(self) -> None:
        """Those that are there; later ones are marked when they are forked."""
        pid = self._options.filter.get(PID.name)
        if self._options.children and pid and not tasks.namespace():
            marked = self._running.obj.maps["descendants"]
            for number in tasks.descendants(pid):
                marked[number] = 0

    def shedder(self) -> PathShedder:
        wanted = self._options
        self._shedder = PathShedder(
            self._running,
            wanted.slow_ns,
            wanted.sample,
            wanted.interference,
            _TICK_NS,
            self.look,
        )
        return self._shedder

    def plan(self) -> list[str]:
        """Describe a start without doing it."""
        return devices.plan(self._extents, self._hooks())

    def _notes(self, loaded: Loaded) -> list[str]:
        notes = loaded.attempts.notes()
        places = [self._options.filter[name] for name in (FILE.name, DIR.name) if name in self._options.filter]
        notes += io_operations.notes(loaded.way(io_hooks.OPERATION), self._file_systems, places)
        memory = [] if self._options.devices else blockdev.swaps_without_requests()
        if memory:
            notes.append(f"swap-ins from {', '.join(memory)} are in no row: they make no requests")
        if self._options.interference:
            notes += io_controllers.notes(loaded.obj)
        notes += filters.notes(self._options.filter, self.filters)
        if self._images is not None:
            notes += self._images.notes(io_operations.unseen_interfaces(loaded.way(io_hooks.OPERATION)))
        return devices.notes(self._options.devices) + notes

    def _take(self, records: list[Record]) -> None:
        events = list(self._stories.decode(records))
        self._events += events
        for one in events:
            self._in_the_way.add(one)

    def events(self) -> list[Event]:
        taken, self._events = self._events, []
        return taken if self._images is None else list(self._images.of(taken))

    @property
    def rules(self) -> Rules:
        pid = self._options.filter.get(PID.name)
        children = tasks.children(pid) if pid and not self._options.children else ()
        journal, filtered = bool(self._running.serving("journal")), bool(self._options.filter)
        partial = bool(self._options.devices) and any(extent.name != extent.disk for extent in self._extents)
        return rules.path(journal, children, filtered, bool(self._options.interference), partial)

    def in_flight(self, at_least_ns: int) -> list[InFlight]:
        self._stale.sweep()
        obj, anywhere = self._running.obj, not self._options.devices
        return waiting(obj, self._names, time.monotonic_ns(), at_least_ns, anywhere)

    def snapshot(self) -> Snapshot:
        loaded = self._running
        obj = loaded.obj
        if not self._stopped:
            self._stale.sweep()
            self._unseen.look()
        # Read before the ends: what begins and ends in between is not taken for being in flight.
        requests_begun, operations_begun = begun(obj, "bios"), begun(obj, "ops")
        # Of these most are of other devices, and the book has none of them until they are known to be of ours.
        elsewhere = unplaced(obj) if self._options.devices else 0
        held = self._stale.held()
        discarded = sum(cpu.discarded for cpu in obj.maps["op_counters"][0])
        found = self.look()
        ran = loaded.statistics()
        causes = dict(zip(self._causes, obj.bss.loss))
        ends_missed = loaded.misses(ran, END, io_hooks.ENDING)
        noted = {cause: causes[cause] for cause in NOTED}
        if self._options.writeback:
            noted[io_writeback.DIRTY_FULL] = causes[io_writeback.DIRTY_FULL]
        # A request whose end was skipped is in flight, until another one takes its memory.
        noted[RECURSION] = sum(found.recursion_misses for found in ran.values()) - ends_missed
        if self._ring is not None:
            noted[FOREIGN] = self._ring.foreign
        noted[UNWATCHED] = len(self._unwatched)
        if self._process is not None:
            if self._process.look():
                obj.bss.filter_tgid = _NO_PROCESS
            noted[EXITED] = int(self._process.ended)
        noted[INCONSISTENT] = sum(cells.shrunk for cells in self._cells.values())
        requests = self._cells["request"]
        requests_ended = requests.total("finished") + self._cells["only"].total("finished")
        shed = self._shedder
        given_up = causes[UNMATCHED_START] + (shed.given_up_requests if shed is not None else 0)
        self._stale.note(requests_begun, held, requests_ended + given_up, self._stopped)
        if shed is None:
            of_requests = (self._cells[name].counters.items() for name in ("request", "only"))
            seen = requests_begun + obj.bss.elsewhere + causes[BIO_FULL]
            self._unseen.note(itertools.chain.from_iterable(of_requests), seen)
        ops = [self._cells[name] for name in ("op", "only", "hit")]
        book = Book.read(
            requests_begun + causes[BIO_FULL] + self._unseen.count,
            requests_ended,
            {
                BIO_FULL: causes[BIO_FULL],
                UNMATCHED_START: causes[UNMATCHED_START],
                GHOST: self._stale.count,
                UNSEEN: self._unseen.count,
                SHED: shed.given_up_requests if shed is not None else 0,
            },
            noted,
            requests.total("failed") + self._cells["only"].total("request_failed"),
        )
        operations = Book.read(
            operations_begun + causes[OP_FULL] - discarded - elsewhere,
            sum(cells.total("finished") for cells in ops),
            {
                OP_FULL: causes[OP_FULL],
                OP_UNENDED: causes[OP_UNENDED],
                RECURSION: ends_missed,
                SHED: shed.given_up if shed is not None else 0,
            },
            {},
            sum(cells.total("failed") for cells in ops),
        )
        books = {REQUESTS: book, OF_OPERATIONS: operations}
        folded = None if self._owners is None else self._owners.folded
        return self._taken(books, found, self._counters(), ran.values(), folded=folded)

    def look(self) -> dict[Group, dict[str, Distribution]]:
        """Reads the cells, and what they say about all, including those that were only counted."""
        came = bool(self._devices_changed) or self._slots.waiting
        if came:
            self._look_at_devices()
        if self._mounted or came:
            self._look_at_mounts()
        if self._owners is not None:
            self._owners.look()
        for cells in self._cells.values():
            cells.read()
        found = self._sampling.whole(self._distributions(), self._untimed())
        if self._owners is not None:
            self._owners.of_devices(found)
        return found

    def _look_at_mounts(self) -> None:
        """Files of what is mounted while tracing have rows from then on. What is still there is found all the time."""
        loaded = self._running
        now = devices.below_files()
        # Numbers that are free again may be those of file systems without a device.
        self._below = {**{dev: now[dev] for dev in self._below if dev in now}, **now}
        loaded.obj.bss.file_devices = devices.file_table(loaded.obj, self._extents, self._names, self._below)
        ways = [loaded.way(hook) for hook in (io_hooks.OPERATION, io_hooks.SYNC)]
        self._unwatched |= {
            dev
            for dev, kind in devices.file_systems(self._extents).items()
            if not all(io_operations.is_watched(kind, way, self._file_systems) for way in ways)
        }

    def _untimed(self) -> dict[Group, int]:
        counted = (self._cells[name].counters.items() for name in _SAMPLED if name in self._cells)
        return {group: count["untimed"] for found in counted for group, count in found}

    def _distributions(self) -> dict[Group, dict[str, Distribution]]:
        found: dict[Group, dict[str, Distribution]] = {}
        for table, cells in self._cells.items():
            if table in OWNED:
                # There may be thousands, and each is in one table alone.
                found.update(cells.shared())
                continue
            for group, stages in cells.distributions.items():
                merge(found, group, {name: stage for name, stage in stages.items() if name != _REQUEST})
                if _REQUEST in stages:
                    shared = {name: stages[name] for name in REQUEST_STAGES}
                    merge(found, Group(REQUEST, group.values), {**shared, TOTAL: stages[_REQUEST]})
        for stages in found.values():
            io_controllers.leave_out(stages)
        # Interference is counted before the operation itself: one may be there without the other for a moment.
        return {group: stages for group, stages in found.items() if TOTAL in stages}

    def folded(
        self, cells: dict[Group, dict[str, Distribution]], counters: Counters
    ) -> tuple[dict[Group, dict[str, Distribution]], Counters]:
        if self._owners is None:
            return cells, counters
        # What neighbours had are counters alone.
        plain = {group: counts for group, counts in counters.items() if group.kind not in neighbours.KINDS}
        met = {group: counts for group, counts in counters.items() if group.kind in neighbours.KINDS}
        rows, sums = owners.folded(cells, plain, self._options.top)
        return rows, {**sums, **neighbours.folded(met, self._options.top)}

    def _counters(self) -> dict[Group, Counter[str]]:
        found: dict[Group, Counter[str]] = {}
        for cells in self._cells.values():
            for group, counts in counted(cells).items():
                found.setdefault(group, Counter()).update(counts)
        # Of an operation that made a single request both are in one cell.
        for group, counters in self._cells["only"].counters.items():
            found.setdefault(Group(REQUEST, group.values), Counter())[BYTES] += counters["request_bytes"]
        if self._owners is not None:
            self._owners.counters_of_devices(found)
        if self._neighbours is not None:
            found.update(self._neighbours.counters())
        found.update(self._loads.counters())
        found.update(self._in_the_way.counters())
        return found

    def stop(self) -> None:
        """Takes no new ones, gives those in flight a moment to end, and detaches."""
        loaded = self._running
        self._unseen.look()
        loaded.obj.bss.tracing = False
        self._stale.sweep()
        end = time.monotonic() + _LAST_MOMENT_S
        while time.monotonic() < end and next(in_use(loaded.obj), None) is not None:
            time.sleep(_LAST_MOMENT_S / 20)
        self._stale.sweep(int(_LAST_MOMENT_S / 2 * 1e9))
        loaded.detach()
        self._stopped = True

    def lists(self) -> dict[str, list[dict[str, Any]]]:
        return {} if self._signals is None else {"eventfds": self._signals.counts()}

    def close(self) -> None:
        self._mounted.close()
        if self._process is not None:
            self._process.close()
        if self._signals is not None:
            self._signals.close()
        super().close()
