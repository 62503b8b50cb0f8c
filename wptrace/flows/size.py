# SPDX-License-Identifier: Apache-2.0
"""`wptrace size`: how large the requests of each device and operation are, and which of them are sequential."""

from __future__ import annotations

from collections.abc import Sequence

from wptrace.bpf.maps import Map
from wptrace.bpf.object import BpfObject
from wptrace.bpf.ring import Reader
from wptrace.engine.cells import Changes
from wptrace.engine.devices import LABELS, Devices, by_operation
from wptrace.engine.differences import argument
from wptrace.engine.flow import DeviceFlow
from wptrace.engine.hooks import BOTH, DISK_OF_REQUEST, START, Field, probe
from wptrace.engine.resolver import load
from wptrace.model.book import RECURSION, Book, Cause
from wptrace.model.distribution import Distribution
from wptrace.model.kind import REQUESTS, Group, Kind, Metric, Noun
from wptrace.model.report import BYTES, Snapshot, Source, Start
from wptrace.model.tally import Tally

# A flush has no place on the disk and no length.
_FLUSH = "flush"

_NO_CELL = Cause("no_cell", "a request had no row to count in")
_NO_PLACE = Cause("no_place", "there were too many different sizes: a request is counted without its size")
_REQUEUES_FULL = Cause("requeues_full", "the table of requeued requests had no room: a request may count twice")
_CAUSES = {cause.name: cause for cause in (_NO_CELL, _NO_PLACE, _REQUEUES_FULL)}


REQUEST = Kind(
    "request",
    Noun("request"),
    LABELS,
    metrics=(
        Metric(
            "sequential",
            "requests that begin where the one before them ended",
            "the device is read or written in order",
            "bytes",
        ),
        Metric(
            "random",
            "the others",
            "each costs a disk with heads a seek, and small ones waste the bandwidth of any device",
            "bytes",
        ),
    ),
    unit="bytes",
    sized=True,
)


class SizeFlow(DeviceFlow):
    name = "size"
    object = "size"
    view = "sizes"
    kinds = (REQUEST,)
    hooks = (
        probe(
            "request.requeue",
            "requeue of a request",
            "requeue",
            ("sequential", "random"),
            "a request that the driver gives back counts again each time it is issued",
            START,
            required=False,
        ),
        # A request is counted in this moment.
        probe("request.issue", "issue of a request (D)", "issue", ("sequential", "random"), "no request can be seen"),
    )
    fields = (
        DISK_OF_REQUEST,
        Field(("request.state",), "a request that the driver gives back counts again each time it is issued"),
    )

    def __init__(self, wanted: tuple[str, ...] = (), memory: int | None = None) -> None:
        """`wanted` are devices as the user named them; none means all disks. Maps may take `memory` bytes."""
        self._devices, self._memory = Devices(wanted), memory

    @staticmethod
    def configure(obj: BpfObject) -> None:
        obj.rodata.request_is_second = argument("block_rq_issue", "request *") == 1

    def start(self, reader: Reader) -> Start:
        self._loaded = loaded = load(self.object, self.hooks, self._prepare)
        obj = loaded.obj
        self._sizes = Sizes(obj.maps["cells"], self._devices.names, obj.enum("block_op"))
        self._causes = [_CAUSES[name] for name in obj.enum("size_cause")]
        sections = ", ".join(program.section for program in loaded.programs)
        return self._started(
            self._devices.chosen,
            [Source(metric.name, sections) for metric in REQUEST.metrics],
            [*self._devices.notes(), *loaded.attempts.notes()],
        )

    def _prepare(self, obj: BpfObject) -> None:
        self.configure(obj)
        self._devices.place(obj, by_operation(obj), permitted=self._memory)

    def snapshot(self) -> Snapshot:
        loaded = self._running
        self._devices.refresh(loaded.obj, self._sizes.rename)
        self._sizes.read()
        ran = loaded.statistics()
        causes = dict(zip(self._causes, loaded.obj.bss.loss))
        lost = {_NO_CELL: causes.pop(_NO_CELL), RECURSION: loaded.misses(ran, BOTH)}
        # A request is counted in the moment that it is seen: nothing is ever in flight here.
        finished = self._sizes.count
        return self._snapshot(
            {REQUESTS: Book.read(finished + sum(lost.values()), finished, lost, causes)},
            self._sizes.copy(),
            {group: {BYTES: count} for group, count in self._sizes.bytes.items()},
            ran.values(),
        )


class Sizes:
    """The cells of all CPUs added up. Their counts have 32 bits and wrap, so it is differences that are added."""

    def __init__(self, cells: Map, names: Sequence[str], ops: Sequence[str]) -> None:
        self._changes = Changes(cells)
        self._ops = ops
        self._groups: dict[int, Group] = {}
        for slot, name in enumerate(names):
            if name:
                self.rename(slot, name)
        self._struct = cells.value_codec.struct
        fields = cells.value_codec.fields
        place = [name for name in fields if name.startswith("places[0].")]
        first, step = fields.index(place[0]), len(place)
        self._columns = {name.partition(".")[2]: slice(first + at, None, step) for at, name in enumerate(place)}
        self._unplaced, self._unplaced_bytes = fields.index("unplaced"), fields.index("unplaced_bytes")
        self._found: dict[Group, tuple[Tally, Tally]] = {}
        self.count = 0
        self.bytes: dict[Group, int] = {}

    def rename(self, slot: int, name: str) -> None:
        """Give a slot to another device."""
        for key, op in enumerate(self._ops, slot * len(self._ops)):
            if key in self._groups:
                for now, was in self._changes.finish(key, key):
                    self._add(self._groups[key], now, was)
            self._groups[key] = REQUEST.group(name, op)

    def read(self) -> None:
        for key, now, was in self._changes.read([(key, key) for key in self._groups]):
            self._add(self._groups[key], now, was)

    def _add(self, group: Group, new: bytes, old: bytes) -> None:
        now, was = self._struct.unpack(new), self._struct.unpack(old)
        tallies = self._found.setdefault(group, (Tally(), Tally()))
        keys = now[self._columns["key"]]
        for tally, name in zip(tallies, ("sequential", "random")):
            column = self._columns[name]
            for key, count, before in zip(keys, now[column], was[column]):
                if count != before:
                    size, grown = key - 1, (count - before) & 0xFFFFFFFF
                    tally.put(size, grown)
                    self.count += grown
                    self._grow(group, size * grown)
        self.count += now[self._unplaced] - was[self._unplaced]
        self._grow(group, now[self._unplaced_bytes] - was[self._unplaced_bytes])

    def _grow(self, group: Group, count: int) -> None:
        self.bytes[group] = self.bytes.get(group, 0) + count

    def copy(self) -> dict[Group, dict[str, Distribution]]:
        return {group: _stages(group, *found) for group, found in self._found.items()}


def _stages(group: Group, sequential: Tally, random: Tally) -> dict[str, Distribution]:
    total = sequential.copy()
    total.merge(random)
    if group.label("op") == _FLUSH:
        return {"total": total}
    return {"sequential": sequential.copy(), "random": random.copy(), "total": total}
