# SPDX-License-Identifier: Apache-2.0
"""The flow of a definition, for `wptrace flow`. Everything above treats it as a flow written in Python."""

from __future__ import annotations

import errno
import mmap
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from wptrace.bpf import trial
from wptrace.bpf.lib import libbpf
from wptrace.bpf.maps import Map
from wptrace.bpf.object import BpfObject
from wptrace.bpf.ring import RATE, Reader, Record, Ring
from wptrace.capture.records import Names as Named
from wptrace.engine import filters
from wptrace.engine.cells import Cells
from wptrace.engine.definition.definition import DROP, SYMBOL
from wptrace.engine.definition.kinds import REST, Names, kind_of
from wptrace.engine.definition.programs import Numbering, Programs, bodies, body_of
from wptrace.engine.definition.records import Decoder, kept_of, recorded
from wptrace.engine.definition.resolved import Label, Resolution, first_words
from wptrace.engine.filters import Filter, cgroup, task
from wptrace.engine.flow import NEVER_NS, Flow
from wptrace.engine.sampling import SampleShedder, Sampling
from wptrace.errors import LibbpfError, UsageError, WptraceError
from wptrace.kernel import privileges, symbols, tasks
from wptrace.kernel.clock import wall_offset_ns
from wptrace.model.book import (
    FOREIGN,
    INCONSISTENT,
    RECURSION,
    RING_FULL,
    STATE_FULL,
    UNMATCHED_END,
    UNRECORDED,
    Book,
    Cause,
)
from wptrace.model.budget import times_of
from wptrace.model.distribution import Distribution
from wptrace.model.kind import REQUESTS, TOTAL, Group
from wptrace.model.report import BYTES, UNTIMED, Event, InFlight, Snapshot, Source, Start

if TYPE_CHECKING:
    from wptrace.bpf.layout import Structure
    from wptrace.engine.recorder import Recorder
    from wptrace.engine.recorder_size import RecorderSize

_REPLACED = Cause("replaced", "another one was handed over to its key: its own end was never seen")
_UNSEEN_END = Cause("unseen_end", "its key began again before an end was seen")
_RESTARTED = Cause("restarted", "it began again before its end, as the definition allows")
_NO_CELL = Cause("no_cell", "it had no row to count in")
_COLLIDED = Cause("collided", "two CPUs took one slot at once, on a kernel without atomics that fetch")
_ROWS_FULL = Cause("rows_full", f"there were more labels than rows: it is counted in the row {REST}")
_RATE_LIMITED = Cause("rate_limited", "one was not shown because of --limit")
_LOST = {"state_full": STATE_FULL, "moved_full": STATE_FULL, "replaced": _REPLACED, "unseen_end": _UNSEEN_END}
_LOST |= {"restarted": _RESTARTED, "no_cell": _NO_CELL}
_NOTED = {"unmatched": UNMATCHED_END, "rows_full": _ROWS_FULL, "ring_full": RING_FULL, "rate_limited": _RATE_LIMITED}
_NOTED |= {"unrecorded": UNRECORDED}

SLOTS = 1024
MOST_SLOTS = 1 << 20
SLOTS_OF_OLD_KERNELS = 1 << 14
ROWS = 64
MOST_ROWS = 1 << 14
_SPENT_BYTES = 8
"""The bytes of a point's time."""
MEMORY = 256 << 20
"""The limit for all cells together, in case of a typo in the number of rows."""


class Options(NamedTuple):
    slow_ns: int | None = None
    """Objects that took at least this long are shown one by one."""
    sample: int = 0
    """One in this many is shown as well."""
    limit: int = 0
    """At most this many a second are shown; 0: all."""
    listing: bool = False
    """Objects in flight may be listed, so names are kept for them."""
    shedding: bool = False
    """A budget may reduce how many objects are timed."""
    by: tuple[str, ...] | None = None
    """Labels to distinguish rows by; None: all."""
    filter: Filter = Filter()
    slots: int = SLOTS
    rows: int = ROWS
    ring_bytes: int = 1 << 20
    recorder: RecorderSize | None = None
    """Keep the most recent objects in the kernel's memory."""
    recorder_slow_ns: int | None = None
    """The threshold at which slow objects are reported to the recorder's dumps."""

    @property
    def emits_records(self) -> bool:
        return self.slow_ns is not None or self.sample > 0


class DefinedFlow(Flow):
    object = "generic"
    view = "objects"
    filters = (
        task.PID._replace(words="only what this process begins"),
        task.TID._replace(words="only what this thread begins"),
        task.COMM._replace(words="only what threads with this name begin, its first 15 bytes"),
        cgroup.IN_CGROUP._replace(words="only what begins in this cgroup and those below it"),
    )

    def __init__(self, resolution: Resolution, options: Options) -> None:
        self._resolution = resolution
        self._options = options
        self.definition = definition = resolution.definition
        self._labels = _wanted(resolution, options.by)
        self._first = first_words(self._labels)
        self._words = sum(label.words for label in self._labels)
        self.name = definition.name
        self.kind = kind_of(definition, self._labels)
        self.kinds = self.verdict_kinds = (self.kind,)
        self._stages = [stage.name for stage in self.kind.stages]
        self._kept = kept_of(self._stages)
        self._asks = bool(options.filter)
        self._programs: Programs | None = None
        self._opened: BpfObject | None = None
        self._table: Slots | None = None
        self._names = Names()
        self._events: list[Event] = []
        self._sampling = Sampling()
        units = [definition.value.unit] if definition.value is not None else []
        self._decoder = Decoder(self._stages, definition.outcomes, units)
        self._flight: Recorder | None = None
        if options.recorder is not None:
            from wptrace.engine.recorder import Recorder

            raw = recorded(self._kept, definition.outcomes, units)
            nouns = definition.nouns
            self._flight = Recorder(
                options.recorder, options.recorder_slow_ns, self.kinds, raw, nouns, self._named_rows
            )
        self._groups: dict[int, Group] = {}
        self._stopped = False
        if options.slots & (options.slots - 1) or not 16 <= options.slots <= MOST_SLOTS:
            raise UsageError(f"--slots takes a power of two from 16 to {MOST_SLOTS:,}, not {options.slots}")
        if not 1 <= options.rows <= MOST_ROWS:
            raise UsageError(f"--rows takes a number from 1 to {MOST_ROWS:,}, not {options.rows}")

    # --- Start and end ------------------------------------------------------------------------------------------------

    def start(self, reader: Reader) -> Start:
        options = self._options
        # Only bodies that filter by task read the kernel's types.
        self._opened = obj = trial.open_here(self.object, own_types=not self._asks)
        self._prepare(obj)
        try:
            obj.load()
        except LibbpfError as error:
            # All slots are one value of a map, and 5.10 limits the size of values.
            if error.errno == errno.E2BIG and options.slots > SLOTS_OF_OLD_KERNELS:
                most = f"the limit is {SLOTS_OF_OLD_KERNELS:,}"
                raise UsageError(f"{options.slots:,} slots are not possible on this kernel: {most}") from None
            raise
        self._table = Slots(obj)
        self._cells = Cells(_Sized(obj, self._kept), [self._group(0)], [TOTAL, *self._stages[: self._kept]])
        if options.emits_records:
            layout = obj.struct("generic_record")
            self._fields = layout.fields
            self._ring = Ring.of(obj.maps["records"], layout.struct)
            reader.add(self._ring, self._take, rate=RATE)
        if self._flight is not None:
            self._flight.start(obj)
        slot_bits = options.slots.bit_length() - 1
        without = obj.rodata.without_exchange
        numbering = Numbering(
            self._resolution, self._first, slot_bits, self._emits_records, options.shedding, not without
        )
        self._programs = programs = Programs(self._resolution)
        programs.attach(numbering, bodies(obj), self._asks)
        wanted = options.filter
        self._watch_wanted(reader, wanted)
        notes = [*programs.notes(), *filters.notes(wanted, self.filters)]
        if any(label.type == SYMBOL for label in self._resolution.labels) and not symbols.shown():
            why = privileges.hidden_addresses()
            notes.append(f"functions have no names: /proc/kallsyms shows no addresses ({why})")
        notes += [] if self._flight is None else self._flight.notes()
        return self._started(filters.describe(wanted, self.filters), self._sources(), notes)

    @property
    def _emits_records(self) -> bool:
        return self._options.emits_records or self._options.listing or self._options.recorder is not None

    def _prepare(self, obj: BpfObject) -> None:
        options = self._options
        needed = {body_of(point.spec, self._asks) for point in self._resolution.points if point.attachments}
        for program in obj.progs.values():
            program.autoload = program.name in needed
        rows = options.rows if self._words else 0
        cells = obj.maps["cells"]
        cells.value_size = _Sized.layout(obj, self._kept).size
        cells.max_entries = rows + 1
        whole = cells.value_size * cells.max_entries * libbpf().cpus
        if whole > MEMORY:
            raise UsageError(
                f"{rows} rows would take {whole >> 20} MiB on {libbpf().cpus} CPUs: the limit is {MEMORY >> 20} MiB"
            )
        obj.maps["rows"].max_entries = rows + 1
        for name in ("row_numbers", "taken"):
            obj.maps[name].max_entries = max(rows, 1)
        Slots.reserve(obj, options.slots)
        obj.maps["records"].max_entries = options.ring_bytes if options.emits_records else mmap.PAGESIZE
        obj.rodata.without_exchange = not trial.exchanges()
        obj.rodata.label_words = self._words
        obj.rodata.row_count = rows
        obj.data.slow_ns = NEVER_NS if options.slow_ns is None else options.slow_ns
        obj.bss.sample = options.sample
        obj.bss.record_limit = options.limit
        filters.apply(obj.bss, options.filter, self.filters)
        if self._flight is not None:
            self._flight.prepare(obj)

    def _sources(self) -> list[Source]:
        found: dict[str, list[str]] = {name: [] for name in self._stages}
        loaded = {} if self._programs is None else self._programs.loaded
        columns = list(self.definition.columns)
        for number, point in enumerate(self._resolution.points):
            if number in loaded and point.spec.name in columns:
                found[self._stages[columns.index(point.spec.name)]].append(loaded[number].section)
        return [Source(stage, ", ".join(how)) for stage, how in found.items()]

    @property
    def missing(self) -> dict[str, str]:
        return {} if self._programs is None else self._programs.attempts.missing

    def shedder(self) -> SampleShedder | None:
        if self._programs is None or not self._options.shedding:
            return None
        programs, times = list(self._programs.loaded.values()), times_of(self.kind.noun.plural)
        each = self._options.slow_ns == 0
        return SampleShedder(self._obj, programs, times, each, "time_one_in", self.read_cells)

    @property
    def flight_recorder(self) -> Recorder | None:
        return self._flight

    def stop(self) -> None:
        if self._programs is not None:
            self._programs.detach()
            self._stopped = True

    def close(self) -> None:
        super().close()
        if self._table is not None:
            self._table.close()
        if self._programs is not None:
            self._programs.close()
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    @property
    def _obj(self) -> BpfObject:
        if self._opened is None:
            raise WptraceError("the flow has not been started")
        return self._opened

    # --- Rows ---------------------------------------------------------------------------------------------------------

    def _group(self, row: int) -> Group:
        """Row 0 is for all objects without labels, and for the rest with labels."""
        if row not in self._groups:
            values = [REST] * len(self._labels)
            if row:
                values = self._values(self._obj.maps["rows"][row].labels)
            self._groups[row] = self.kind.group(*values)
        return self._groups[row]

    def _values(self, words: Sequence[int]) -> list[Any]:
        places = ((label, self._first[label.name]) for label in self._labels)
        return [self._names.of(label, words[first : first + label.words]) for label, first in places]

    def _follow(self) -> None:
        if not self._words:
            return
        rows = self._obj.maps["rows"]
        following = min(self._obj.data.next_row, self._options.rows + 1)
        for number in range(1, following):
            if number not in self._groups and rows[number].used:
                self._cells.follow(number, self._group(number))

    def _named_rows(self) -> Named:
        """The values of labels of all rows so far."""
        self._follow()
        return Named(rows={number: group.values for number, group in {0: self._group(0), **self._groups}.items()})

    def snapshot(self) -> Snapshot:
        obj, table = self._obj, self._table
        if table is None or self._programs is None:
            raise WptraceError("the flow has not been started")
        # First, so that an object that ends meanwhile is not in flight.
        started = table.started()
        self._follow()
        self._cells.read()
        ran = [program.statistics() for program in self._programs.loaded.values()]
        losses = dict(zip(obj.enum("generic_cause"), obj.bss.loss))
        lost: dict[Cause, int] = {}
        for name, cause in _LOST.items():
            lost[cause] = lost.get(cause, 0) + losses[name]
        noted = {cause: losses[name] for name, cause in _NOTED.items()}
        dropped = list(obj.bss.dropped)
        for number, count in enumerate(dropped):
            noted[self._dropped(number)] = count
        noted[RECURSION] = sum(one.recursion_misses for one in ran)
        noted[INCONSISTENT] = self._cells.shrunk
        noted[FOREIGN] = self._ring.foreign if self._ring is not None else 0
        finished = self._cells.total("finished")
        # An object that was refused a slot was not counted as started.
        started = started + losses["state_full"] - sum(dropped)
        if not self._stopped:
            started = max(started, finished + sum(lost.values()))
        else:
            missing = started - finished - sum(lost.values()) - table.used()
            lost[_COLLIDED] = max(missing, 0)
        return self._snapshot(
            {REQUESTS: Book.read(started, finished, lost, noted, self._cells.total("failed"))},
            self._distributions(),
            {group: self._counted(group) for group in self._cells.counters},
            ran,
        )

    def read_cells(self) -> dict[Group, dict[str, Distribution]]:
        self._follow()
        self._cells.read()
        return self._distributions()

    def _distributions(self) -> dict[Group, dict[str, Distribution]]:
        found = self._cells.copy()
        for stages in found.values():
            if not self._kept:
                stages[self._stages[0]] = stages[TOTAL].copy()
        return self._sampling.whole(found, {group: one["untimed"] for group, one in self._cells.counters.items()})

    def _counted(self, group: Group) -> dict[str, int]:
        counters = self._cells.counters[group]
        found = {name: counters[f"outcomes[{number}]"] for number, name in enumerate(self.definition.outcomes, 1)}
        valued = self.definition.value
        if valued is not None:
            found[BYTES if valued.unit == "bytes" else valued.unit] = counters["value"]
        found[UNTIMED] = counters["untimed"]
        return {name: count for name, count in found.items() if count or name == BYTES}

    def _dropped(self, number: int) -> Cause:
        points = [point.spec for point in self._resolution.points if point.spec.role == DROP]
        outcomes = self.definition.outcomes
        name = outcomes[number - 1] if 0 < number <= len(outcomes) else "dropped"
        at = ", ".join(point.name for point in points if point.outcome == (name if number else "")) or "a point"
        return Cause(name, f"left at {at}, and counts neither as started nor as finished")

    # --- Records -----------------------------------------------------------------------------------------------------

    def _take(self, records: list[Record]) -> None:
        offset = wall_offset_ns()
        self._events += [self._event(dict(zip(self._fields, record)), offset) for record in records]

    def _event(self, record: dict[str, Any], offset: int) -> Event:
        words = [record[f"labels[{at}]"] for at in range(self._words)]
        return self._decoder.event(record, self.kind.group(*self._values(words)), offset)

    def events(self) -> list[Event]:
        found, self._events = self._events, []
        return found

    def in_flight(self, at_least_ns: int) -> list[InFlight]:
        if self._table is None:
            return []
        now = time.monotonic_ns()
        found = []
        for one in self._table.occupied():
            life = one.life
            age = now - life.start_ns
            if not life.start_ns or age < at_least_ns:
                continue
            fields: dict[str, Any] = {"key": f"{one.key:#x}", "cpu": life.cpu}
            fields |= {"comm": tasks.comm(life.comm), "pid": life.tgid, "tid": life.tid}
            last = life.state.last // _SPENT_BYTES
            stage = self._stages[last] if last < len(self._stages) else ""
            found.append(InFlight(self.kind.group(*self._values(life.labels)), age, stage, fields))
        return sorted(found, key=lambda one: -one.age_ns)


class Slots:
    """The table of objects in flight, read in place."""

    def __init__(self, obj: BpfObject) -> None:
        self._codec = obj.struct("object")
        objects = obj.maps["objects"]
        self._stride = int(self._codec.size)
        size = -(-objects.value_size // mmap.PAGESIZE) * mmap.PAGESIZE
        self._mapped = mmap.mmap(objects.fd, size, mmap.MAP_SHARED, mmap.PROT_READ)
        self._bytes = memoryview(self._mapped)[: objects.value_size]
        self._words = self._bytes.cast("Q")

    @staticmethod
    def reserve(obj: BpfObject, slots: int) -> None:
        """Set the size before the load."""
        obj.maps["objects"].value_size = slots * int(obj.struct("object").size)

    def started(self) -> int:
        """The number of started objects: the second word of each slot, summed up."""
        return sum(self._words[1 :: self._stride // 8])

    def used(self) -> int:
        return sum(1 for key in self._words[:: self._stride // 8] if key)

    def occupied(self) -> list[Any]:
        keys = self._words[:: self._stride // 8].tolist()
        return [self._codec.unpack(self._bytes, at * self._stride) for at, key in enumerate(keys) if key]

    def close(self) -> None:
        self._words.release()
        self._bytes.release()
        # Views that are still in use keep the pages, as with the variables of an object.
        with suppress(BufferError):
            self._mapped.close()


class _Sized:
    """The map of cells, with values shorter than their type."""

    def __init__(self, obj: BpfObject, stages: int) -> None:
        self._map: Map = obj.maps["cells"]
        self.value_codec = self.layout(obj, stages)

    @staticmethod
    def layout(obj: BpfObject, stages: int) -> Structure:
        """The layout of the total and so many stages."""
        whole: Structure = obj.struct("cell")
        return whole.shortened(stages + 1)

    def raw(self, key: int) -> memoryview | None:
        return self._map.raw(key.to_bytes(4, "little"))

    def clear(self, key: int) -> None:
        self._map.clear(key.to_bytes(4, "little"))


def _wanted(resolution: Resolution, by: Sequence[str] | None) -> list[Label]:
    known = {label.name: label for label in resolution.labels}
    for name in by or ():
        if name not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise UsageError(f"{resolution.definition.name} has no label {name}: {has}")
    return [label for label in resolution.labels if by is None or label.name in by]
