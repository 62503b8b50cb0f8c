# SPDX-License-Identifier: Apache-2.0
"""`wptrace stacks`: the stacks that start block I/O, with the count, bytes and latency of what each started."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from wptrace.bpf import trial
from wptrace.bpf.layout import text
from wptrace.bpf.object import BpfObject
from wptrace.bpf.ring import Reader, Record, Ring
from wptrace.engine import filters
from wptrace.engine.devices import LABELS, Devices
from wptrace.engine.differences import argument
from wptrace.engine.filters.task import PID
from wptrace.engine.flow import Flow
from wptrace.engine.hooks import DISK_OF_REQUEST, END, START, Field, Hook, probe
from wptrace.engine.resolver import load
from wptrace.kernel import privileges
from wptrace.kernel.symbols import UNKNOWN, KernelSymbols
from wptrace.kernel.tasks import name_of, namespace
from wptrace.kernel.user_symbols import ProcessSymbols
from wptrace.model.book import MISTAKEN_STACK, RECURSION, STATE_FULL, UNMATCHED_END, UNMATCHED_START, Book, Cause
from wptrace.model.distribution import Distribution
from wptrace.model.kind import REQUESTS, STACK, TOTAL, Group, Kind, Label, Noun, Point, Stage
from wptrace.model.report import BYTES, Snapshot, Source, Start
from wptrace.model.stack import Stack

_G = Point("G", "request allocated, or merged into one")
_C = Point("C", "completed")

# Disks that come later.
_SPARE = 64
# Rows of different stacks.
_CELLS = 2048
_STACKS = 4096
_MORE_STACKS = 1024
_PROCESSES = 4096

_NO_CELL = Cause("no_cell", "there were too many different stacks: an I/O finished and is in no row")
_NO_STACK = Cause("no_stack", "the kernel could not keep a stack: an I/O is charged to none")
_LONG_CHAIN = Cause("long_chain", "a request had more parts than can be looked at: the last of them stay in flight")
_CAUSES = {
    cause.name: cause for cause in (STATE_FULL, _NO_CELL, UNMATCHED_START, UNMATCHED_END, _NO_STACK, _LONG_CHAIN)
}
# Causes that cost an I/O; the others are noted.
_LOST = (STATE_FULL, _NO_CELL, UNMATCHED_START)

_NONE = ("[no stack]",)
# The frames of the helper that takes the stack, and of the program itself, are on top of it.
_TRACING = re.compile(r"(__)?bpf_|__traceiter_|__SCT__tp_func_")
_TOP = 6


class Options(NamedTuple):
    devices: tuple[str, ...] = ()
    """Devices as the user named them; none means all disks."""
    wanted: filters.Filter = filters.Filter()
    """A filter of I/Os."""
    min_ns: int = 0
    """I/O that takes less is counted, but charged to no stack."""
    user: bool = False
    """The stack of the process as well."""


def _start_hook(id: str, name: str, tracepoint: str, without: str) -> Hook:  # noqa: A002 - of a hook
    return probe(id, name, tracepoint, ("io",), without, START, required=tracepoint == "getrq")


IO = Kind(
    "request",
    Noun("I/O"),
    (*LABELS, Label("stack", STACK)),
    (
        Stage(
            "io",
            _G,
            _C,
            "an I/O waits in the plug and the I/O scheduler, and the device works on it",
            "what the stack started was slow: wptrace io says in which stage",
        ),
    ),
    ranked=True,
    sized=True,
    squares=False,
)


class StacksFlow(Flow):
    name = "stacks"
    object = "stacks"
    view = "stacks"
    kinds = (IO,)
    hooks = (
        probe("request.complete", "completion of a request (C)", "complete", ("io",), "no I/O is seen to end", END),
        _start_hook(
            "request.frontmerge",
            "merge in front of a request",
            "frontmerge",
            "what is merged in front of a request is not seen",
        ),
        _start_hook(
            "request.backmerge", "merge behind a request", "backmerge", "what is merged behind a request is not seen"
        ),
        _start_hook("request.alloc", "allocation of a request (G)", "getrq", "no I/O is seen to start"),
    )
    filters = (PID._replace(words="only I/O that this process starts itself"),)
    fields = (
        DISK_OF_REQUEST,
        Field(("bio.bi_bdev", "bio.bi_disk"), "I/O cannot be assigned to disks"),
        Field(("request.end_io",), "a write with flushes ends with its data"),
    )

    def __init__(self, options: Options) -> None:
        self._options = options
        self._devices = Devices(options.devices)

    @staticmethod
    def configure(obj: BpfObject) -> None:
        obj.rodata.bio_is_second = argument("block_getrq", "bio *") == 1
        obj.rodata.bio_is_third = argument("block_bio_backmerge", "bio *") == 2

    def plan(self) -> list[str]:
        """Describe a start without doing it."""
        return [*self._devices.plan(self.hooks), self.planned_memory(self._prepare)]

    def start(self, reader: Reader) -> Start:
        self._loaded = loaded = load(self.object, self.hooks, self._prepare)
        obj = loaded.obj
        self._names, self._ops = self._devices.names, obj.enum("block_op")
        self._causes = [_CAUSES[name] for name in obj.enum("stacks_cause")]
        self._frames = Frames(obj)
        if self._options.user:
            layout = obj.struct("process_record")
            self._place = layout.fields.index("tgid"), layout.fields.index("comm")
            self._ring = Ring.of(obj.maps["records"], layout.struct)
            reader.add(self._ring, self._add_processes, rare=True)
        self._watch_wanted(reader, self._options.wanted)
        least = {"min_ns": self._options.min_ns} if self._options.min_ns else {}
        how = ", ".join(program.section for program in loaded.programs)
        return self._started(
            {**self._devices.chosen, **filters.describe(self._options.wanted, self.filters), **least},
            [Source(stage.name, how) for stage in IO.stages],
            [
                *self._devices.notes(),
                *loaded.attempts.notes(),
                *self._frames.notes(self._options.user),
                *filters.notes(self._options.wanted, self.filters),
            ],
        )

    def _prepare(self, obj: BpfObject) -> None:
        self.configure(obj)
        obj.rodata.with_user = self._options.user
        obj.rodata.without_exchange = not trial.exchanges()
        sizes = {"cells": _CELLS, "stacks": _STACKS, "more_stacks": _MORE_STACKS}
        if self._options.user:
            sizes["processes"] = _PROCESSES
        for name, size in sizes.items():
            obj.maps[name].max_entries = size
        obj.bss.min_ns = self._options.min_ns
        # Rows refer to a device by its slot forever.
        self._devices.place(obj, room=_SPARE if self._devices.may_come else 0, reused=False)
        filters.apply(obj.bss, self._options.wanted, self.filters)

    def forget_events(self) -> None:
        """Keep all: its records are of processes, and the programs send each once."""

    def _add_processes(self, records: list[Record]) -> None:
        tgid, comm = self._place
        for record in records:
            self._frames.add_process(record[tgid], record[comm])

    def snapshot(self) -> Snapshot:
        loaded = self._running
        obj = loaded.obj
        self._devices.refresh(obj)
        ran = [program.statistics() for program in loaded.programs]
        totals = obj.maps["totals"].summed(0)
        causes = dict(zip(self._causes, obj.bss.loss))
        lost = {cause: causes.pop(cause) for cause in _LOST}
        # An I/O whose end was skipped is in flight, until another one takes its memory.
        causes[RECURSION] = sum(found.recursion_misses for found in ran)
        causes[MISTAKEN_STACK] = obj.bss.mistaken_stacks
        cells: dict[Group, dict[str, Distribution]] = {}
        sizes: dict[Group, dict[str, int]] = {}
        counted = list(obj.maps["cells"].items())
        # A process is reported before its first I/O is charged, and a row keeps the name that it gets now.
        if self._ring is not None:
            self._add_processes(self._ring.read())
        for key, cell in counted:
            group = IO.group(
                self._names[key.slot], self._ops[key.op], self._frames.stack(key.kernel, key.user, key.tgid)
            )
            found = cells.setdefault(group, {TOTAL: Distribution()})[TOTAL]
            found.add_counts(cell.slots, cell.count, cell.sum, cell.min, cell.max, 0)
            size = sizes.setdefault(group, {BYTES: 0})
            size[BYTES] += cell.bytes
        return self._snapshot(
            {REQUESTS: Book.read(totals.started, totals.finished, lost, causes)},
            cells,
            sizes,
            ran,
        )


class Frames:
    """Stacks of programs by function name: from the stack maps, and the symbols of the kernel and of processes."""

    def __init__(self, obj: BpfObject) -> None:
        self._stacks, self._more_stacks = obj.maps["stacks"], obj.maps["more_stacks"]
        self._second_chance = obj.constants["SECOND_CHANCE"]
        self._kernel = KernelSymbols()
        self._processes: dict[int, tuple[str, ProcessSymbols | None]] = {}
        self._known: dict[tuple[int, int, int], Stack] = {}

    def notes(self, user: bool) -> list[str]:
        notes = []
        if not self._kernel.known:
            why = privileges.hidden_addresses()
            notes.append(f"stacks have no names: /proc/kallsyms shows no addresses ({why})")
        if user:
            notes.append("user stacks follow frame pointers: code that was built without them shows few frames")
            if namespace():
                notes.append("functions of processes have no names here: /proc has the ids of this pid namespace alone")
            elif "CAP_SYS_PTRACE" not in privileges.effective():
                notes.append("names in user stacks of other users need CAP_SYS_PTRACE, which is missing")
        return notes

    def add_process(self, tgid: int, comm: bytes) -> None:
        """Read where the code of a process lies at its first I/O, while it is alive."""
        # The id is the machine's, which another process may have in this pid namespace.
        self._processes[tgid] = f"{text(comm)}[{tgid}]", None if namespace() else ProcessSymbols(tgid)

    def stack(self, kernel: int, user: int, tgid: int) -> Stack:
        """Look up a stack by its ids in the maps; negative if there is none."""
        key = kernel, user, tgid
        if key not in self._known:
            self._known[key] = self._named(*key)
        return self._known[key]

    def _named(self, kernel: int, user: int, tgid: int) -> Stack:
        self._kernel.refresh()
        names = [self._kernel.name(address) for address in _calls(self._addresses(kernel))]
        above = [place for place, name in enumerate(names[:_TOP]) if _TRACING.match(name)]
        inside = tuple(names[above[-1] + 1 if above else 0 :]) or _NONE
        if not tgid:
            return Stack(inside)
        if tgid not in self._processes:
            # There was no room to report the process; if it has ended since, its name is lost.
            self.add_process(tgid, os.fsencode(name_of(tgid)) or b"?")
        process, symbols = self._processes[tgid]
        calls = _calls(self._addresses(user))
        outside = [UNKNOWN if symbols is None else symbols.name(address) for address in calls]
        # Beyond the last frame pointer, addresses are random contents of the stack.
        outer = [name for name, before in zip(outside, [None, *outside]) if name != UNKNOWN or before != UNKNOWN]
        return Stack(inside, tuple(outer), process)

    def _addresses(self, stack_id: int) -> list[int]:
        if stack_id < 0:
            return []
        place = self._more_stacks if stack_id & self._second_chance else self._stacks
        memory = place.raw((stack_id & ~self._second_chance).to_bytes(4, "little"))
        return [address for address in memory.cast("Q") if address] if memory is not None else []


def _calls(addresses: list[int]) -> list[int]:
    """Map return addresses to their calls: a return address may lie beyond a function that never returns."""
    return [address - (place > 0) for place, address in enumerate(addresses)]
