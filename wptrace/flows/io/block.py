# SPDX-License-Identifier: Apache-2.0
"""`wptrace io --level block`: every request of the block layer from G through D to C, at the lowest cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from wptrace.analysis.neighbours import Owner
from wptrace.analysis.overlap import Span
from wptrace.bpf import trial
from wptrace.bpf.kernel_btf import vmlinux
from wptrace.bpf.object import BpfObject
from wptrace.bpf.ring import RATE, Reader, Record, Ring
from wptrace.capture.records import Raw
from wptrace.engine import filters
from wptrace.engine.devices import LABELS, DeviceCells, Devices, by_operation
from wptrace.engine.differences import argument, timed_out_bit
from wptrace.engine.filters import Filter, task
from wptrace.engine.flow import DeviceFlow
from wptrace.engine.hooks import BOTH, DISK_OF_REQUEST, END, START, Field, Hook, Way, probe
from wptrace.engine.recorder_size import RecorderSize
from wptrace.engine.resolver import Loaded, load
from wptrace.engine.sampling import SampleShedder, Sampling
from wptrace.engine.unseen import Unseen
from wptrace.flows.io.causes import UNSEEN
from wptrace.flows.io.kinds import FIELDS, REQUEST_EVENTS, STAGES, Events
from wptrace.flows.io.options import SAMPLE, SAVINGS
from wptrace.kernel import blockdev, cpus, tasks
from wptrace.kernel.blkstatus import to_errno
from wptrace.kernel.clock import wall_offset_ns
from wptrace.kernel.rwbs import rwbs
from wptrace.model.book import FOREIGN, INCONSISTENT, RECURSION, RING_FULL, STATE_FULL, UNMATCHED_END, Book, Cause
from wptrace.model.diagnosis import DEGRADED, OK, Check
from wptrace.model.distribution import Distribution
from wptrace.model.kind import REQUESTS, UNTIMED_FIELD, Group, Kind, Noun, Point, Stage
from wptrace.model.report import Event, Snapshot, Source, Start
from wptrace.model.rows import Number, Rows, Shape, items, numbered

if TYPE_CHECKING:
    from wptrace.analysis.verdict import Rules
    from wptrace.bpf.layout import Structure
    from wptrace.capture.layout import Described
    from wptrace.engine.recorder import Recorder

_D = Point("D", "issued to the driver")
_C = Point("C", "completed")

_NO_CELL = Cause("no_cell", "a request had no row to count in")
_NO_STAMP = Cause("no_stamp", "a request finished without usable time stamps: counted, and in no stage")
_NO_START = Cause("no_start", "the table of bios had no room: a request lacks its start")
_UNRECORDED = Cause(
    "unrecorded", "the recorder lacks a request: an interrupt came while one was begun, or it was not timed"
)
_CAUSES = {
    cause.name: cause
    for cause in (STATE_FULL, RING_FULL, _NO_CELL, _NO_STAMP, _NO_START, UNMATCHED_END, _UNRECORDED, RECURSION)
}
# Losses that cost a request; the others are only noted.
_LOST = (STATE_FULL, _NO_CELL, RECURSION, UNSEEN)
# Requests that a program saw at their end, and that are in no row.
_UNCOUNTED = (_NO_CELL, UNMATCHED_END, RECURSION)

_STAMPS = "the kernel's stamps"
_OWN = "own times"

AUTO, KERNEL, OWN = "auto", "kernel", "own"

ONE_STAMP = "this kernel stamps requests of one batch with one time"
"""How a note begins: time of `queue` is in `device`."""


class Options(NamedTuple):
    devices: tuple[str, ...] = ()
    """Devices by the names that the user gave; none means all disks."""
    slow_ns: int | None = None
    """Requests that took at least this long are shown one by one."""
    memory: int | None = None
    """The bytes that all maps may take; None: half of what is free."""
    ring_bytes: int = 1 << 20
    filter: Filter = Filter()
    """A filter for requests; needs wptrace's own times."""
    recorder: RecorderSize | None = None
    """Keep the most recent requests in the kernel's memory."""
    recorder_slow_ns: int | None = None
    """The threshold at which slow requests are reported to the recorder's dumps."""
    times: str = AUTO
    """KERNEL: the kernel's time stamps, OWN: wptrace's times, AUTO: the kernel's on each disk that has them."""


REQUEST = Kind(
    "request",
    Noun("request"),
    LABELS,
    (
        STAGES["queue"]._replace(description="a request waits in the plug and the I/O scheduler"),
        Stage(
            "device",
            _D,
            _C,
            "the driver and the device work on it, and its completion is handled",
            "the disk, the fabric or the hypervisor is slow, or the completion interrupt is held up",
            advice=STAGES["device"].advice,
        ),
    ),
    sized=True,
    fields=FIELDS,
    counters=(UNTIMED_FIELD, *REQUEST_EVENTS),
)


def _stateful_hook(id: str, name: str, role: str, tracepoint: str) -> Hook:  # noqa: A002 - of a hook
    return probe(
        id,
        name,
        tracepoint,
        ("queue", "device"),
        "devices without iostats or writeback throttling have no stages",
        role,
        required=False,
    )


def _set_maker(bss: Any, process: int | None) -> None:
    """Filter by the task that makes the request, at G: it is not known later (docs/decisions/own-times.md)."""
    bss.pid_namespace = tasks.namespace()
    bss.target_tgid = process or 0


def _notes_of_maker(process: int) -> list[str]:
    note = f"only requests that process {process} makes itself: others write out what it leaves in the page cache"
    return [*task.notes(process), note]


class BlockFlow(DeviceFlow):
    name = "io"
    level = "block"
    object = "io_block"
    kinds = verdict_kinds = (REQUEST,)
    hooks = (
        probe(
            "request.complete",
            "completion of a request (C)",
            "complete",
            ("queue", "device"),
            "no request can be seen",
            END,
        ),
        probe(
            "request.requeue", "request given back (requeue)", "requeue", (), "requeues are not counted", required=False
        ),
        probe("bio.split", "bio split in two", "split", (), "splits are not counted", required=False),
        _stateful_hook("request.merge", "merge of two requests", BOTH, "merge"),
        _stateful_hook("request.issue", "issue of a request (D)", BOTH, "issue"),
        _stateful_hook("request.alloc", "allocation of a request (G)", START, "getrq"),
    )
    filters = (task.PID._replace(set=_set_maker, notes=_notes_of_maker, switch=""),)

    fields = (
        DISK_OF_REQUEST,
        Field(("bio.bi_bdev", "bio.bi_disk"), "devices without the kernel's stamps cannot be traced"),
        Field(("request.start_time_ns",), "requests are not stamped when they are made"),
        Field(("request.io_start_time_ns",), "requests are not stamped when they are issued"),
    )

    @staticmethod
    def checks(chosen: Mapping[str, Way]) -> list[Check]:
        found = []
        for disk in blockdev.disks():
            if blockdev.is_stamped(disk):
                found.append(Check(disk, OK, f"traced with {_STAMPS}, the cheapest way"))
            else:
                detail = f"iostats or writeback throttling is off: traced with {_OWN}, at a higher cost"
                found.append(Check(disk, DEGRADED, detail, _stamp_advice(disk)))
        return found

    def __init__(self, options: Options) -> None:
        self._options = options
        self._devices = Devices(options.devices, stateful=self._unstamped)
        self._records: list[Record] = []
        self._unseen: tuple[Unseen, ...] = ()
        self._stopped = False
        self._sampling = Sampling()
        self._flight: Recorder | None = None
        if options.recorder is not None:
            from wptrace.engine.recorder import Recorder

            self._flight = Recorder(options.recorder, options.recorder_slow_ns, self.kinds, RECORDS, "requests")

    @staticmethod
    def configure(obj: BpfObject) -> None:
        obj.rodata.request_is_second = argument("block_rq_issue", "request *") == 1
        obj.rodata.bio_is_second = argument("block_getrq", "bio *") == 1
        obj.rodata.timed_out_bit = timed_out_bit()

    def start(self, reader: Reader) -> Start:
        self._loaded = loaded = load(self.object, self.needed_hooks, self._prepare)
        obj = loaded.obj
        self._ops = obj.enum("block_op")
        self._causes = [_CAUSES[name] for name in obj.enum("block_cause")]
        names = self._devices.names
        self._cells = DeviceCells(obj.maps["cells"], names, REQUEST, self._ops, obj.enum("block_stage"))
        if self._options.slow_ns is not None:
            self._requests = Requests(obj, names)
            sink = None if self.recorder is None else self.recorder.raw(obj, RECORDS, names)
            self._ring = Ring.of(obj.maps["records"], self._requests.layout, sink)
            reader.add(self._ring, self._take, rate=RATE)
        if self._flight is not None:
            self._flight.start(obj, self._devices.slots)
        self._watch_wanted(reader, self._options.filter)
        return self._started(self._filters(), self._sources(loaded), self._notes(loaded))

    def begin(self) -> None:
        super().begin()
        self._obj.bss.tracing = True
        # Disks have counted by then what ended before.
        cpus.barrier()
        self._unseen = tuple(map(Unseen, self._watched_whole()))

    def _watched_whole(self) -> tuple[list[blockdev.Extent], list[blockdev.Extent]]:
        """Extents with a row for each request: those with the kernel's stamps, and those with wptrace's own times."""
        found, stateful = [] if self._options.filter else self._devices.with_rows, self._devices.stateful
        return [one for one in found if one.disk not in stateful], [one for one in found if one.disk in stateful]

    def stop(self) -> None:
        for one in self._unseen:
            one.read_disks()
        self._stopped = True
        super().stop()

    def _filters(self) -> dict[str, Any]:
        return {**self._devices.chosen, **filters.describe(self._options.filter, self.filters)}

    def _prepare(self, obj: BpfObject) -> None:
        self.configure(obj)
        # Since 6.9 (da4c8c3d0975) one time stamp serves all requests that a task submits at a time.
        self._has_one_stamp = self._stamped() and vmlinux().has_field("blk_plug", "cur_ktime")
        if self._devices.stateful:
            obj.maps["starts"].max_entries = obj.maps["requests"].max_entries = obj.constants["STATES"]
            obj.rodata.own_times = True
        if self._flight is not None:
            self._flight.prepare(obj)
        if self._devices.stateful or self._flight is not None:
            obj.rodata.without_exchange = not trial.exchanges()
        if self._options.slow_ns is not None:
            obj.maps["records"].max_entries = self._options.ring_bytes
            obj.data.slow_ns = self._options.slow_ns
        filters.apply(obj.bss, self._options.filter, self.filters)
        self._devices.place(obj, by_operation(obj), permitted=self._options.memory)
        if self._options.filter:
            obj.bss.trace_unlisted = False

    def plan(self) -> list[str]:
        """Describe a start without doing it."""
        lines = [
            f"trace {extent.name} (disk {extent.disk}), {self._kind(extent.disk)}" for extent in self._devices.extents
        ]
        return self._planned([*lines, *(f"observe {hook.name} by {hook.by}" for hook in self.needed_hooks)])

    def _kind(self, disk: str) -> str:
        return _OWN if disk in self._devices.stateful else _STAMPS

    @property
    def needed_hooks(self) -> tuple[Hook, ...]:
        return (
            self.hooks
            if self._devices.stateful
            else tuple(hook for hook in self.hooks if hook.required or not hook.serves)
        )

    def _sources(self, loaded: Loaded) -> list[Source]:
        sections = loaded.sections(*(hook.id for hook in self.needed_hooks if hook.serves))
        kinds = sorted({self._kind(extent.disk) for extent in self._devices.extents})
        how = f"{sections} with {' or '.join(kinds)}"
        return [Source(stage.name, how) for stage in REQUEST.stages]

    def _notes(self, loaded: Loaded) -> list[str]:
        notes = self._devices.notes()
        notes += loaded.attempts.notes()
        notes += filters.notes(self._options.filter, self.filters)
        if not self._options.filter and self._devices.stateful and self._options.times == AUTO:
            notes.append(
                f"{', '.join(self._devices.stateful)}: iostats or writeback throttling is off, so the kernel stamps no"
                " requests and wptrace keeps times of its own, which costs more"
            )
        if self._has_one_stamp:
            notes.append(
                f"{ONE_STAMP}: a short wait in queue reads as 0 and counts to device (--times own is exact and costs"
                " more)"
            )
        notes.append("throttle, fs, wakeup and return are not seen at this level; driver and complete are in device")
        return [*notes, *(self._flight.notes() if self._flight is not None else ())]

    def _take(self, records: list[Record]) -> None:
        self._records += records

    def events(self) -> Sequence[Event]:
        records, self._records = self._records, []
        return Rows(records, self._requests) if records else ()

    @property
    def flight_recorder(self) -> Recorder | None:
        return self._flight

    @property
    def rules(self) -> Rules:
        from wptrace.flows.io import rules

        return rules.BLOCK

    def snapshot(self) -> Snapshot:
        loaded = self._running
        obj, counters = loaded.obj, self._cells.counters
        for one in self._unseen if not self._stopped else ():
            one.read_disks()
        found = self.read_cells()
        ran = loaded.statistics()
        causes = dict(zip(self._causes, obj.bss.loss))
        causes[RECURSION] = loaded.misses(ran, END)
        finished = self._cells.total("finished")
        seen = finished + obj.bss.elsewhere + sum(causes[cause] for cause in _UNCOUNTED)
        for one in self._unseen:
            one.note(counters.items(), seen)
        causes[UNSEEN] = sum(one.count for one in self._unseen)
        lost = {cause: causes[cause] for cause in _LOST}
        noted = {cause: count for cause, count in causes.items() if cause not in lost}
        noted[INCONSISTENT] = self._cells.shrunk
        if self._options.filter:
            # A request whose start is missing is nobody's, and its end does not count.
            starts = [hook.id for hook in self.hooks if hook.serves]
            noted[RECURSION] = sum(loaded.misses(ran, role, starts) for role in (START, BOTH))
        if self._ring is not None:
            noted[FOREIGN] = self._ring.foreign
        # Without a hook at the start, the kernel says what is in flight; requests whose end it skipped had started,
        # too. A group counts all of its starts or none of them.
        started = sum(count["started"] or count["finished"] for count in counters.values())
        stamped = self._stamped()
        started += sum(map(blockdev.in_flight, stamped)) + (causes[RECURSION] if stamped else 0)
        # Those of disks with own times have a start.
        started += sum(one.count for one in self._unseen[:1])
        return self._snapshot(
            {REQUESTS: Book.read(started, finished, lost, noted, self._cells.total("failed"))},
            found,
            {**self._cells.counted(), **self._devices.loads.counters()},
            ran.values(),
        )

    def _slots_in_flight(self) -> set[int]:
        """The slots of devices with wptrace's own times: each request knows its slot."""
        if not self._devices.stateful:
            return set()
        return {one.slot for name in ("starts", "requests") for one in self._obj.maps[name].used()}

    def _stamped(self) -> list[str]:
        return [one.name for one in self._devices.extents if one.disk not in self._devices.stateful]

    def _unstamped(self, extents: Sequence[blockdev.Extent]) -> list[str]:
        times = OWN if self._options.filter else self._options.times
        return sorted({one.disk for one in extents if not _trusts_stamps(one.disk, times)})

    def read_cells(self) -> dict[Group, dict[str, Distribution]]:
        if self._devices.refresh(self._obj, self._cells.rename, self._slots_in_flight):
            for one, extents in zip(self._unseen, self._watched_whole()):
                one.compare(extents)
        self._cells.read()
        untimed = {group: count["untimed"] for group, count in self._cells.counters.items()}
        found = self._cells.copy()
        for stages in found.values():
            at_once = stages.pop("at_once")
            stages["queue"].add_zeros(at_once.count)
            stages["device"].merge(at_once)
            stages["total"].merge(at_once)
        return self._sampling.whole(found, untimed)

    def shedder(self) -> _Shedder:
        stateless = bool(self._devices.stateful) and not self._options.filter
        return _Shedder(self._running, self._options.slow_ns == 0, stateless, self.read_cells)


_NOT_KNOWN = Owner()
RECORDS = Raw("block_record", enums=("block_op", "block_flag"))


class Requests:
    """Makes events from records."""

    def __init__(self, obj: BpfObject | Described, names: Sequence[str]) -> None:
        self._ops, self._flags = obj.enum("block_op"), obj.enum("block_flag")
        self._names = names
        layout: Structure = obj.struct("block_record")
        self._events = Events(layout.member("events"))
        self.layout, self._fields = layout.packed("events")
        self.wall_offset_ns: int | None = None
        """The offset from monotonic time to the time of day; None for the current one."""
        at = {name: place for place, name in enumerate(self._fields)}
        self._numbers = frozenset(at[name] for name in ("end_ns", "sector", "queue_ns", "device_ns", "bytes", "cpu"))
        alike = items(at[name] for name in ("dev", "flags", "error", "op"))
        self.shape = Shape(
            ("wall", "names"),
            {"nothing": bytes(layout.member("events").size)},
            f"r[{at['events']}] == nothing",
            f"names[r[{at['slot']}]], {alike}",
            {},
        )

    def variables(self) -> tuple[Any, ...]:
        wall = wall_offset_ns() if self.wall_offset_ns is None else self.wall_offset_ns
        return wall, self._names

    def made(self, rows: Sequence[Record], variables: tuple[Any, ...]) -> Iterator[Event]:
        return self.decode(rows, variables[0])

    def numbered(self, row: Record, variables: tuple[Any, ...]) -> Event:
        (found,) = self.decode([numbered(row, self._numbers)], Number.of(variables[0], "wall"))
        return found

    def decode(self, records: Sequence[Record], wall_offset_ns: int) -> Iterator[Event]:
        ops = self._ops
        # Made for each call: a slot may have been given to another device.
        groups = [REQUEST.group(name, op) for name in self._names for op in ops]
        at = self._fields.index
        end, sector, queue, device, size, dev, bits, cpu, slot, error, op, events = (
            at(name)
            for name in (
                "end_ns", "sector", "queue_ns", "device_ns", "bytes", "dev", "flags", "cpu", "slot", "error", "op",
                "events",
            )
        )  # fmt: skip
        for record in records:
            flags = [name for place, name in enumerate(self._flags) if record[bits] >> place & 1]
            fields = {
                "sector": record[sector],
                "bytes": record[size],
                "rwbs": rwbs(ops[record[op]], flags),
                "maj_min": blockdev.maj_min(record[dev]),
                "complete_cpu": record[cpu],
                "error": to_errno(record[error]),
                "clock": {"end_ns": record[end]},
                **self._events.fields(record[events]),
            }
            stages = {"queue": record[queue], "device": record[device]}
            group = groups[record[slot] * len(ops) + record[op]]
            yield Event(group, record[end] + wall_offset_ns, sum(stages.values()), stages, fields)

    def spans(self, records: Sequence[Record]) -> Iterator[Span]:
        """Requests have no owner here."""
        at = self._fields.index
        end, queue, device, size, slot, op = map(at, ("end_ns", "queue_ns", "device_ns", "bytes", "slot", "op"))
        for record in records:
            completed, on_device = record[end], record[device]
            issued = completed - on_device
            dev, kind = self._names[record[slot]], self._ops[record[op]]
            yield Span(dev, kind, _NOT_KNOWN, record[size], issued - record[queue], issued, completed)


class _Shedder(SampleShedder):
    def __init__(self, loaded: Loaded, each: bool, stateless: bool, read_cells: Callable[[], object]) -> None:
        super().__init__(loaded.obj, loaded.programs, SAMPLE, each, "request_sample", read_cells)
        self.savings, self._stateless = SAVINGS, stateless

    def _time_one_in(self, rate: int) -> None:
        self._read_cells()
        # It stays set: requests that were not timed are still in flight when all are timed again.
        self._obj.bss.stateless = self._stateless
        self._obj.bss.request_sample = rate


def _trusts_stamps(disk: str, times: str) -> bool:
    return times == KERNEL or (times == AUTO and blockdev.is_stamped(disk))


def _stamp_advice(disk: str) -> str:
    queue = f"/sys/block/{disk}/queue"
    return f"echo 1 > {queue}/iostats; echo -1 > {queue}/wbt_lat_usec (the kernel's default)"
