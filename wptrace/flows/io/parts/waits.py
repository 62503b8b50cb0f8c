# SPDX-License-Identifier: Apache-2.0
"""`--waits`: why tasks slept inside of operations, by their stacks (bpf_src/block/path/waits.h)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from wptrace.analysis.waits import ASLEEP, COUNT, LIMIT, MACHINE, NS, OWNED_WAIT, RATE, RUNNABLE, WAIT, WAITS, WORK
from wptrace.bpf.object import BpfObject
from wptrace.engine.cells import Cells
from wptrace.engine.resolver import Loaded
from wptrace.flows.io.hooks import BY_STACK, JOURNAL_WAITS, READS_STACKS, SWITCH
from wptrace.flows.io.options import WAITS_NS
from wptrace.flows.io.parts.counts import Counts
from wptrace.flows.io.parts.part import Distributions, Part, Tracing
from wptrace.flows.io.wait_reasons import (
    DIRTY_LIMIT,
    NOT_KNOWN,
    REASONS,
    SEVERAL,
    SLEEPS,
    Reason,
    WaitStack,
    cleaned,
    reason_of,
    work_of,
)
from wptrace.kernel import cpus, privileges, symbols
from wptrace.kernel.symbols import UNKNOWN, KernelSymbols
from wptrace.model.book import MISTAKEN_STACK, Cause
from wptrace.model.distribution import merge_stages
from wptrace.model.kind import TOTAL, Group, Kind, Label

if TYPE_CHECKING:
    from wptrace.flows.io.parts.owners import Owners

_PAGE = os.sysconf("SC_PAGE_SIZE")
_VMSTAT = Path("/proc/vmstat")
_LISTED = 64
# Stacks of rows that left, of which the longest are kept.
_LEFT = 1024
# The fill level of a table from which on room is made, before others find none.
FULL = 1 / 2
_GONE = 1 << 63
"""The key of no row, and of no stack."""
_GENERATIONS = 63
# Records and operations in flight may refer to stacks that were freed up to this many generations ago.
_REMEMBERED = 16
_NOBODY = -1
"""The owner of what is counted for all of them."""
_OF_OPERATIONS = "op_kind", "op_stage", REASONS


def owned(label: Label) -> Kind:
    """Return the kind of waits by owner."""
    return Kind(OWNED_WAIT, WAIT.noun, (*WAIT.labels, label), book="", ranked=True)


class _Row(NamedTuple):
    number: int
    group: Group
    """The group, with the owner if there are owners."""
    functions: tuple[str, ...]
    owner: int


_Times = dict[tuple[Group, tuple[str, ...]], Counter[str]]
"""Times by group and stack."""


class Waits(Part):
    def __init__(self, least_ns: int, counts: Counts | None, owners: Owners | None, ticks: bool) -> None:
        """Report sleeps of operations, and with `ticks` also what they did while they ran.

        Without `counts` of operations, sleeps are those of tasks for requests of their own.
        """
        super().__init__()
        self._least_ns, self._counts, self._owners = least_ns, counts, owners
        self._kind = WAIT if owners is None else owned(owners.kinds[0].labels[-1])
        self.kinds = (*dict.fromkeys((WAIT, self._kind)), *((WORK,) if ticks and counts is not None else ()))
        if owners is not None:
            owners.leaving = self.forget
        self._rows: dict[int, _Row] = {}
        self._finished: dict[int, int] = {}
        """Counts of rows when room was last made."""
        self._left: _Times = {}
        """Times of rows that left."""
        self._limits: dict[Group, Counter[str]] = {}

    # --- The start ------------------------------------------------------------------------------------------------

    @property
    def chosen(self) -> dict[str, Any]:
        return {"waits_ns": self._least_ns} if self._least_ns != WAITS_NS else {}

    def prepare(self, obj: BpfObject) -> None:
        obj.data.wait_ns = self._least_ns
        obj.maps["known_stacks"].max_entries = 2 * len(obj.enum("block_op" if self._counts is None else "op_kind"))

    def functions(self, loaded: Loaded) -> Mapping[str, str]:
        """Those that wait for a journal and cannot be observed themselves."""
        return {name: one for name, one in JOURNAL_WAITS.items() if loaded.way(f"wait.{name}").name == BY_STACK}

    def start(self, tracing: Tracing) -> None:
        obj = self._obj = tracing.obj
        of, stages, reasons = ("block_op", "sleep_stage", SLEEPS) if self._counts is None else _OF_OPERATIONS
        self._names, self._kinds, self._stages = tracing.names, obj.enum(of), obj.enum(stages)
        self.stacks = WaitStacks(obj, _reads_stacks(tracing.loaded), reasons)
        self._runs = obj.constants["WAIT_RUNS"]
        self._waits = Cells(obj.maps["wait_cells"], [], [TOTAL])
        self.cells = {"wait": self._waits}
        by_stack = self.functions(tracing.loaded)
        if by_stack:
            tracing.set_code("journal", list(by_stack))
            obj.bss.journal_by_stack = any(name in tracing.code for name in by_stack)

    def notes(self, loaded: Loaded) -> list[str]:
        if not _reads_stacks(loaded):
            return ["waits have no reasons: this kernel lets no program read the stack of a task that is switched in"]
        found = [] if self._least_ns else ["every wait gets its reason: some 1,600 instructions for each sleep"]
        if not symbols.shown():
            fs = ", and those for a journal are part of fs" if self.functions(loaded) else ""
            hidden = f"/proc/kallsyms shows no addresses ({privileges.hidden_addresses()})"
            found.append(f"waits have addresses instead of reasons{fs}: {hidden}")
        return found

    # --- A look ---------------------------------------------------------------------------------------------------

    def refresh(self, obj: BpfObject, devices_changed: bool) -> None:
        self._follow_new()
        self._make_room()

    def _follow_new(self) -> None:
        for row, key in enumerate(self._obj.view("wait_rows").cast("Q").tolist()):
            if key and row not in self._rows and (group := self._group(key)) is not None:
                owner = _NOBODY if group.kind is WORK else key >> 16 & 0xFFFF
                functions = self.stacks[key & 0xFFFF].functions
                self._rows[row] = _Row(self._waits.follow(row, group), group, functions, owner)

    def _group(self, key: int) -> Group | None:
        """None where the owner has no name yet."""
        stack, owner, stage = self.stacks[key & 0xFFFF], key >> 16 & 0xFFFF, key >> 32 & 0xFF
        values = self._names[key >> 48], self._kinds[key >> 40 & 0xFF], self._stages[stage & ~self._runs]
        if stage & self._runs:
            return WORK.group(*values, work_of(stack.functions) if stack.functions else SEVERAL)
        if self._owners is None:
            return self._kind.group(*values, stack.reason)
        label = self._owners.label(owner)
        return None if label is None else self._kind.group(*values, stack.reason, label)

    def rename(self, slot: int, name: str) -> None:
        keys = self._obj.view("wait_rows").cast("Q")
        for row, one in self._rows.items():
            if keys[row] >> 48 == slot:
                group = one.group.kind.group(name, *one.group.values[1:])
                self._waits.regroup(one.number, group)
                self._rows[row] = one._replace(group=group)

    def forget(self, owners: Collection[int], folded: dict[Group, int]) -> None:
        """Fold the rows of these owners, whose numbers will be those of others."""
        self._follow_new()
        keys = self._obj.view("wait_rows").cast("Q")
        for row, one in list(self._rows.items()):
            if one.owner in owners:
                group, others = one.group, one.group.of_others
                self._leave(row, one._replace(group=others))
                self._waits.fold(group, others)
                if (limits := self._limits.pop(group, None)) is not None:
                    self._limits.setdefault(others, Counter()).update(limits)
                folded[group] = folded.pop(group, 0) + 1
                keys[row] = 0

    def _leave(self, row: int, one: _Row) -> None:
        """Before another one may have the row."""
        self._add_times(self._left, row, one)
        if len(self._left) > 2 * _LEFT:
            self._left = dict(sorted(self._left.items(), key=lambda found: -found[1]["sum_ns"])[:_LEFT])
        self._waits.leave(one.number)
        del self._rows[row]

    def _make_room(self) -> None:
        """Let the half of the rows leave that counted least lately, and stacks that are in none of the others."""
        keys = self._obj.view("wait_rows").cast("Q")
        if self.stacks.taken < FULL * self.stacks.places and len(self._rows) < FULL * len(keys):
            return
        cells = self._obj.maps["wait_cells"]
        finished = {row: cells[row].finished for row in self._rows}
        by_use = sorted(finished, key=lambda row: finished[row] - self._finished.get(row, 0))
        rows, self._finished = by_use[: (len(by_use) + 1) // 2], finished
        for row in rows:
            keys[row] = _GONE
        used = {key & 0xFFFF for key in keys.tolist()}
        stacks = [number for number in self.stacks.numbers() if number not in used]
        self.stacks.hide(stacks)
        # After this no program counts in these rows or has just found one of these stacks.
        cpus.barrier()
        for row in rows:
            self._leave(row, self._rows[row])
            self._finished.pop(row)
            keys[row] = 0
        self.stacks.give_up(stacks)

    def add_distributions(self, found: Distributions) -> None:
        super().add_distributions(found)
        if self._owners is not None:
            for group, stages in self._waits.distributions.items():
                if group.kind is not WORK:
                    merge_stages(found, WAIT.group(*group.values[:-1]), stages)

    def add_counters(self, found: dict[Group, Counter[str]]) -> None:
        for group, counts in self._waits.counters.items():
            if group.kind is WORK:
                continue
            made = self._with_limits(group, counts)
            found.setdefault(WAITS.group(*group.values[: len(WAITS.labels)]), Counter()).update(made)
        for group, counts in self._counts.cells["op"].counters.items() if self._counts is not None else ():
            for stage in RUNNABLE:
                found[ASLEEP.group(*group.values, stage)] = Counter({NS: counts[f"{stage}_asleep_ns"]})

    def _with_limits(self, group: Group, counts: Mapping[str, int]) -> Counter[str]:
        made = Counter({COUNT: counts["waits"]})
        if not counts["limit"]:
            return made
        known = self._limits.setdefault(group, Counter())
        # The machine's limit is a level, so it counts for the waits since the last look.
        if counts["waits"] != known[COUNT]:
            known[MACHINE] += (counts["waits"] - known[COUNT]) * _machine_limit() * _PAGE
            known[COUNT] = counts["waits"]
        return made + Counter({LIMIT: counts["limit"] * _PAGE, RATE: counts["rate"] * _PAGE, MACHINE: known[MACHINE]})

    def noted(self, obj: BpfObject) -> dict[Cause, int]:
        return {MISTAKEN_STACK: obj.bss.mistaken_stacks}

    @property
    def lists(self) -> dict[str, list[dict[str, Any]]]:
        found = sorted(self._stacks_with_times().items(), key=lambda one: -one[1]["sum_ns"])[:_LISTED]
        listed = [{**group.fields, **times, "stack": list(stack)} for (group, stack), times in found]
        return {"wait_stacks": listed} if listed else {}

    def _stacks_with_times(self) -> _Times:
        found = {key: Counter(times) for key, times in self._left.items()}
        for row, one in self._rows.items():
            self._add_times(found, row, one)
        return found

    def _add_times(self, found: _Times, row: int, one: _Row) -> None:
        if one.functions and one.group.kind is not WORK:
            cell = self._obj.maps["wait_cells"][row]
            times = {"count": cell.finished, "waits": cell.waits, "sum_ns": cell.stages[0].sum}
            found.setdefault((one.group, one.functions), Counter()).update(times)


class WaitStacks:
    """Stacks by the number that programs use: 1 + place + places * generation.

    The number of a freed stack is not reused: the next stack at its place has another generation.
    """

    def __init__(self, obj: BpfObject, readable: bool, reasons: Sequence[Reason]) -> None:
        """If kernel stacks cannot be read, no wait has one."""
        self._obj, self._reasons = obj, reasons
        layout = self._layout = obj.struct("wait_stack")
        self.places = obj.length("wait_stacks")
        first = layout.fields.index("frames[0]")
        self._frames = slice(first, first + sum(name.startswith("frames[") for name in layout.fields))
        self._is_known, self._generation = (layout.fields.index(name) for name in ("known", "generation"))
        self._at = {one.name: one.offset for one in layout.places}
        self._symbols: KernelSymbols | None = None
        several = WaitStack(SEVERAL if readable else NOT_KNOWN, ())
        self._found = {
            obj.constants["WAIT_DIRTY_LIMIT"]: WaitStack(DIRTY_LIMIT, ()),
            obj.constants["WAIT_OTHER"]: several,
        }
        self._alike = {several.functions: several}
        """Stacks by functions, because several numbers may have the same."""

    def __getitem__(self, number: int) -> WaitStack:
        found = self._found.get(number)
        if found is None:
            names = self._names(number)
            found = self._alike.get(names) or WaitStack(reason_of(names, self._reasons), names)
            self._found[number] = self._alike[names] = found
        return found

    def _names(self, number: int) -> tuple[str, ...]:
        generation, place = divmod(number - 1, self.places)
        values = self._values(place)
        if values[self._generation] != generation:
            # The stack was freed long ago.
            return ()
        if self._symbols is None:
            self._symbols = KernelSymbols()
        else:
            self._symbols.refresh()
        names = []
        for frame in filter(None, values[self._frames]):
            # A return address may lie beyond a function that never returns, so look up the call.
            name = self._symbols.name(frame - 1)
            names.append(name if name != UNKNOWN else f"{frame:#x}")
        return cleaned(names)

    def _values(self, place: int) -> Sequence[Any]:
        layout = self._layout
        found: Sequence[Any] = layout.struct.unpack_from(self._obj.view("wait_stacks"), place * layout.size)
        return found

    @property
    def taken(self) -> int:
        return sum(map(bool, self._keys()))

    def _keys(self) -> list[int]:
        return self._obj.view("wait_stacks").cast("Q")[:: self._layout.size // 8].tolist()

    def all(self) -> dict[int, WaitStack]:
        for number in self.numbers():
            self[number]
        return self._found

    def numbers(self) -> list[int]:
        """Numbers of the stacks in the table; frames follow the key."""
        every = ((place, self._values(place)) for place, key in enumerate(self._keys()) if key)
        return [1 + place + self.places * of[self._generation] for place, of in every if of[self._is_known]]

    def hide(self, numbers: Collection[int]) -> None:
        """Hide stacks from the programs; those that have found them already end before the next barrier."""
        words = self._obj.view("wait_stacks").cast("Q")
        for number in numbers:
            self[number]  # Look it up while its frames are there.
            words[(number - 1) % self.places * self._layout.size // 8] = _GONE

    def give_up(self, numbers: Collection[int]) -> None:
        """Free the places of hidden stacks."""
        view, size = self._obj.view("wait_stacks"), self._layout.size
        for number in numbers:
            generation, place = divmod(number - 1, self.places)
            view[place * size + self._at["generation"]] = (generation + 1) % _GENERATIONS
            older = (generation - _REMEMBERED) % _GENERATIONS
            self._found.pop(1 + place + self.places * older, None)
        there = set(self._found.values())
        self._alike = {names: one for names, one in self._alike.items() if one in there}
        # Programs cache the place of some stacks, and check the generation.
        cpus.barrier()
        for number in numbers:
            start = (number - 1) % self.places * size
            view[start + self._at["known"]] = 0
            view.cast("Q")[start // 8] = 0


def _reads_stacks(loaded: Loaded) -> bool:
    return READS_STACKS in loaded.way(SWITCH).programs


def _machine_limit() -> int:
    """Return the machine's dirty limit in pages."""
    words = dict(line.split() for line in _VMSTAT.read_text().splitlines())
    return int(words.get("nr_dirty_threshold", 0))
