# SPDX-License-Identifier: Apache-2.0
"""Rows by owner of the path flow (bpf_src/block/path/owner.h): `--by`."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from itertools import compress
from typing import Any, Callable, NamedTuple

from wptrace.analysis.owners import folded
from wptrace.bpf.layout import text
from wptrace.bpf.lib import libbpf
from wptrace.bpf.object import BpfObject
from wptrace.engine.cells import Cells
from wptrace.engine.devices import LABELS
from wptrace.flows.io.kinds import (
    HIT,
    OPERATION,
    OWNED_HIT,
    OWNED_OPERATION,
    OWNED_REQUEST,
    REQUEST,
    TEXT_LABELS,
    UNDER_WAY,
)
from wptrace.flows.io.operations import call
from wptrace.flows.io.options import CALL, CGROUP, COMM, DEVICE, DIR, FILE, PROCESS, STATEMENT, THREAD, UNIT
from wptrace.flows.io.parts.part import Distributions, Part, Tracing
from wptrace.flows.io.state import path_in, path_layout, values_in_flight
from wptrace.kernel import cpus
from wptrace.kernel.cgroup_names import CgroupNames
from wptrace.model import kind
from wptrace.model.kind import NOBODY, OTHERS, OWNER, TOTAL, UNTIMED_FIELD, Comm, Group, Kind, Label, Metric, Task
from wptrace.model.report import BYTES, Counters

# Limits of kernel memory: the rows, and the bytes of both cells of a row.
_ROWS = 4096
_ROW_BYTES = 64 << 20
# How much is remembered of owners that were freed.
_TASKS, _FOLDED = 1 << 14, 1 << 14
# Hashes of owners are odd.
_LEAVING = 2
# The key is valid; with the path of a file or directory, or the text of a statement or unit.
_KNOWN, _NAMED = 1, 3
_NAMED_BY_PROGRAMS = (FILE, DIR, STATEMENT, UNIT)


def _kinds(label: Label) -> tuple[Kind, Kind, Kind]:
    """The kinds of operations, hits and requests, with the nouns of the kinds without owners."""
    labels = (*LABELS, label)
    under_way = Metric(
        UNDER_WAY,
        "the driver and the device have it: from D, issued, to C, completed",
        "its share of that of all is its share of the device",
        start=REQUEST["driver"].start,
        end=REQUEST["complete"].end,
        part=False,
    )
    return (
        Kind(OWNED_OPERATION, OPERATION.noun, labels, book="", ranked=True, sized=True),
        Kind(OWNED_HIT, HIT.noun, labels, book="", ranked=True, sized=True),
        Kind(
            OWNED_REQUEST,
            REQUEST.noun,
            labels,
            metrics=(under_way,),
            book="",
            ranked=True,
            sized=True,
            counters=(UNTIMED_FIELD,),
        ),
    )


KINDS = {
    PROCESS: _kinds(Label("task", kind.TASK, OWNER)),
    THREAD: _kinds(Label("task", kind.TASK, OWNER)),
    COMM: _kinds(Label("comm", kind.COMM, OWNER)),
    CGROUP: _kinds(Label("cgroup", kind.CGROUP, OWNER)),
    FILE: _kinds(Label("file", kind.FILE, OWNER)),
    DIR: _kinds(Label("dir", kind.FILE, OWNER)),
    DEVICE: _kinds(Label("device", kind.DEVICE, OWNER)),
    CALL: _kinds(Label("call", kind.CALL, OWNER)),
    STATEMENT: _kinds(TEXT_LABELS[STATEMENT]),
    UNIT: _kinds(TEXT_LABELS[UNIT]),
}


class Element(NamedTuple):
    """A cell of an owner."""

    table: str
    number: int
    row: int
    slot: int
    what: int


class ByDevice(Part):
    """Rows by device, which the programs count in any case."""

    def __init__(self, top: int) -> None:
        super().__init__()
        self.kinds, self._top = KINDS[DEVICE], top

    @property
    def chosen(self) -> dict[str, Any]:
        return {"by": DEVICE}

    def add_copies(self, found: Distributions) -> None:
        for group, row in self._rows(list(found)):
            found[row] = {TOTAL: found[group][TOTAL]}

    def add_counters(self, found: dict[Group, Counter[str]]) -> None:
        for group, row in self._rows(list(found)):
            found[row] = Counter({BYTES: found[group][BYTES]})

    def _rows(self, groups: Sequence[Group]) -> Iterator[tuple[Group, Group]]:
        rows = dict(zip((OPERATION, HIT, REQUEST), self.kinds))
        for group in groups:
            if group.kind in rows:
                yield group, rows[group.kind].group(*group.values, group.values[0])

    def fold(self, cells: Distributions, counters: Counters) -> tuple[Distributions, Counters]:
        return folded(cells, counters, self._top)


class Owners(Part):
    """Rows that the programs count by owner.

    When the table is half full, the owners that have been idle for longest are freed, and their counts are added to the
    row of the others.
    """

    def __init__(self, by: str, cgroups: CgroupNames, top: int = 0, rows: int = 0) -> None:
        """`rows` is a power of two; 0: as large as the memory limit allows."""
        super().__init__()
        self.by, self._top, self._rows = by, top, rows
        self.kinds = KINDS[by]
        self.needs_rows = by in _NAMED_BY_PROGRAMS
        self._cgroups = cgroups if by == CGROUP else None
        self._labels: dict[int, Any] = {0: NOBODY}
        self._known: set[int] = set()
        self._tasks: OrderedDict[tuple[Task, int], Task] = OrderedDict()
        self._namesakes: Counter[Task] = Counter()
        self.kept = False
        """Owners are never freed, as others refer to them by number."""
        self.leaving: Callable[[Collection[int], dict[Group, int]], None] | None = None
        """Called before an owner's number is reused; adds to what was folded into the others."""
        self._folded: dict[Group, int] = {}
        self._counted: dict[Group, Counter[str]] = {}
        """The counters of each row, which snapshots share."""

    # --- The programs ---------------------------------------------------------------------------------------------

    @property
    def chosen(self) -> dict[str, Any]:
        return {"by": self.by}

    def make_room(self, obj: BpfObject, devices: int) -> None:
        ops, requests = obj.maps["owned_op_cells"], obj.maps["owned_request_cells"]
        of_both = (ops.value_codec.size + requests.value_codec.size) * libbpf().cpus
        rows = self._rows or min(_ROWS, 1 << max(_ROW_BYTES // of_both, 16).bit_length() - 1)
        obj.rodata.owner_row_mask = rows - 1
        ops.max_entries = requests.max_entries = rows + devices * obj.constants["OWNED_KINDS"]

    def prepare(self, obj: BpfObject) -> None:
        obj.rodata.owner_by = obj.enum("owner_by").index(self.by)
        if self.by in (FILE, DIR):
            obj.maps["owner_paths"].max_entries = obj.length("owners")

    def start(self, tracing: Tracing) -> None:
        obj = self._obj = tracing.obj
        names = self._names = tracing.names
        self._ops, self._op_kinds = obj.enum("block_op"), obj.enum("op_kind")
        stages = obj.enum("owned_request_stage")
        ops, requests = obj.maps["owned_op_cells"], obj.maps["owned_request_cells"]
        self.cells = {
            "owned_op": Cells(ops, [], [TOTAL], True, firsts=ops.firsts),
            "owned_request": Cells(requests, [], stages, True, firsts=requests.firsts),
        }
        self._elements: dict[int, list[Element]] = {}
        self._owner_of: dict[tuple[str, int], int] = {}
        self._reads = 0
        self._active: dict[int, int] = {}
        """By number of an owner: the number of reads before it was last active."""
        self._others = obj.constants["OWNER_OTHERS"]
        self._labels[self._others] = OTHERS
        for slot, name in enumerate(names):
            if name:
                self._follow_others(slot, name)

    def _follow_others(self, slot: int, name: str) -> None:
        first, kinds = self._obj.rodata.owner_row_mask + 1, self._obj.constants["OWNED_KINDS"]
        for what in range(kinds):
            self._follow(self._others, first + slot * kinds + what, slot, name, what)

    def rename(self, slot: int, name: str) -> None:
        if not any(one.slot == slot for one in self._elements[self._others]):
            self._follow_others(slot, name)
            return
        for owner, elements in self._elements.items():
            for one in (one for one in elements if one.slot == slot):
                group = self._group(one.table, name, one.what, self._labels[owner])
                if group is not None:
                    self.cells[one.table].regroup(one.number, group)

    def refresh(self, obj: BpfObject, devices_changed: bool) -> None:
        """Follow new rows: the kernel creates them, and their keys name the owner."""
        self._follow_new()
        if not self.kept:
            self._note_active()
            rows = self._obj.rodata.owner_row_mask + 1
            if 2 * len(self._known) > rows or 2 * len(self._active) > self._obj.length("owners"):
                self._free()

    def _follow_new(self, owners: Collection[int] | None = None) -> None:
        for row, key in enumerate(self._obj.view("owned_rows").cast("Q").tolist()):
            owner = key >> 32
            if not key or row in self._known or (owners is not None and owner not in owners):
                continue
            if self.label(owner) is not None:
                self._known.add(row)
                slot = key >> 16 & 0xFFFF
                self._follow(owner, row, slot, self._names[slot], key >> 8 & 0xFF)

    def _follow(self, owner: int, row: int, slot: int, name: str, what: int) -> None:
        for table, cells in self.cells.items():
            group = self._group(table, name, what, self._labels[owner])
            if group is not None:
                one = Element(table, cells.follow(row, group), row, slot, what)
                self._elements.setdefault(owner, []).append(one)
                self._owner_of[table, one.number] = owner

    # --- Owners that are gone -------------------------------------------------------------------------------------

    def _note_active(self) -> None:
        self._reads += 1
        layout = self._obj.struct("owner")
        keys = self._obj.view("owners").cast("Q")[:: layout.size // 8].tolist()
        there = set(compress(range(1, len(keys) + 1), keys))
        counted = {self._owner_of[table, number] for table, cells in self.cells.items() for number in cells.changed}
        self._active.update(dict.fromkeys(there & counted | there - self._active.keys(), self._reads))

    def _free(self) -> None:
        """Free those that were idle for longest, until half of them are left."""
        idle = sorted(
            (n for n, active in self._active.items() if active < self._reads and self.label(n) is not None),
            key=self._active.__getitem__,
        )
        if not idle:
            return
        held = self._held()
        some = [number for number in idle[: (len(self._active) + 1) // 2] if number not in held]
        words, stride = self._obj.view("owners").cast("Q"), self._obj.struct("owner").size // 8
        hashes = {number: words[(number - 1) * stride] for number in some}
        # From now on a lookup of the owner creates a new entry.
        for number in some:
            words[(number - 1) * stride] = _LEAVING
        cpus.barrier()
        held = self._held()
        self._follow_new(set(some))
        # Earlier snapshots keep the old one.
        now = dict(self._folded)
        gone = [number for number in some if number not in held]
        for number in gone:
            self._forget(number, now)
        if self.leaving is not None:
            self.leaving(set(gone), now)
        for number in gone:
            words[(number - 1) * stride + 1] = 0
            words[(number - 1) * stride] = 0
        for number in held.intersection(some):
            words[(number - 1) * stride] = hashes[number]
        for group in list(now)[:-_FOLDED]:
            del now[group]
        self._folded = now

    def _held(self) -> set[int]:
        """Owners of objects in flight, which will be counted by these numbers."""
        found = values_in_flight(self._obj, ops="owner", bios="owner")
        submitted = self._obj.struct("submission").size // 8
        keys = self._obj.view("submissions").cast("Q")[::submitted].tolist()
        found.update(compress(self._obj.view("submission_owners").cast("I").tolist(), keys))
        return found

    def _forget(self, number: int, folded: dict[Group, int]) -> None:
        rows = self._obj.view("owned_rows").cast("Q")
        elements = self._elements.pop(number, ())
        for one in elements:
            cells = self.cells[one.table]
            group = cells.leave(one.number)
            del self._owner_of[one.table, one.number]
            rest = self._rest_of(group)
            if rest is not group:
                cells.fold(group, rest)
                self._counted.pop(group, None)
                folded[group] = folded.pop(group, 0) + 1
        # Each row has a cell in both tables.
        for row in {one.row for one in elements}:
            rows[row] = 0
            self._known.discard(row)
        del self._active[number]
        self._left(self._labels.pop(number))

    def _rest_of(self, group: Group) -> Group:
        """The group that gets the counts of an owner that is freed."""
        return group.of_others

    def _left(self, label: Any) -> None:
        """Forget an owner with this label."""

    def _group(self, table: str, dev: str, what: int, label: Any) -> Group | None:
        operations, hits, requests = self.kinds
        if table == "owned_request":
            return requests.group(dev, self._ops[what], label) if what < len(self._ops) else None
        hit = self._obj.constants["OWNED_HIT"]
        number = what & (hit - 1)
        if number >= len(self._op_kinds):
            return None
        of = hits if what & hit else operations
        return of.group(dev, self._op_kinds[number], label)

    def label(self, number: int) -> Any:
        """The label of an owner; None if it is not known yet."""
        if number not in self._labels:
            values = self._values(number)
            if values["known"] < (_NAMED if self.by in _NAMED_BY_PROGRAMS else _KNOWN):
                return None
            self._labels[number] = self._named(number, values)
        return self._labels[number]

    def seen(self, number: int) -> str:
        """Return the name of one of its tasks (with --neighbours), unless the owner is a task."""
        values = self._values(number)
        return _name(values, "seen") if self.by in (CGROUP, FILE, DIR) else ""

    def last(self, number: int) -> tuple[int, int]:
        """Return the operation (block_op) and bytes of its last request (with --neighbours)."""
        values = self._values(number)
        return values["last_op"], values["last_bytes"]

    def _values(self, number: int) -> dict[str, Any]:
        layout, memory = self._obj.struct("owner"), self._obj.view("owners")
        return dict(zip(layout.fields, layout.struct.unpack_from(memory, (number - 1) * layout.size)))

    def _named(self, number: int, values: dict[str, Any]) -> Any:
        id = values["key.id"]  # noqa: A001 - as the program calls it
        if self._cgroups is not None:
            return self._cgroups.of(id)
        if self.by in (FILE, DIR):
            return self._path(number) or f"inode {id}"
        if self.by == CALL:
            return call(self._obj.enum("call_class")[id >> 32], id & 0xFFFFFFFF)
        comm = self._comm(values)
        if self.by == COMM:
            return Comm(comm)
        return self._task(Task(comm, id >> 32, id & 0xFFFFFFFF), values["key.more"])

    def _comm(self, values: dict[str, Any]) -> str:
        return _name(values, "key.comm")

    def _task(self, task: Task, started: int) -> Task:
        """Mark a task whose pid belonged to an earlier task of the same name."""
        key = task, started
        found = self._tasks.pop(key, None)
        if found is None:
            self._namesakes[task] += 1
            found = task._replace(again=self._namesakes[task]) if self._namesakes[task] > 1 else task
        self._tasks[key] = found
        if len(self._tasks) > _TASKS:
            _, oldest = self._tasks.popitem(last=False)
            del self._namesakes[oldest._replace(again=0)]
        return found

    @cached_property
    def _path_layout(self) -> Any:
        return path_layout(self._obj)

    def _path(self, number: int) -> str:
        memory = self._obj.maps["owner_paths"].raw(number - 1)
        if memory is None:
            return ""
        return path_in(self._path_layout, memory)

    # --- Rows -----------------------------------------------------------------------------------------------------

    def add_distributions(self, found: Distributions) -> None:
        # There may be thousands, each in one table only.
        for cells in self.cells.values():
            found.update(cells.shared())
            for group, counts in cells.counted(cells.copied).items():
                self._counted[group] = Counter(counts)

    def add_counters(self, found: dict[Group, Counter[str]]) -> None:
        found.update(self._counted)

    @property
    def folded(self) -> dict[Group, int]:
        return self._folded

    def fold(self, cells: Distributions, counters: Counters) -> tuple[Distributions, Counters]:
        return folded(cells, counters, self._top)


def _name(values: dict[str, Any], field: str) -> str:
    return text(b"".join(values[f"{field}[{half}]"].to_bytes(8, "little") for half in range(2)))
