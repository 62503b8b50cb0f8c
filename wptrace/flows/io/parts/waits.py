# SPDX-License-Identifier: Apache-2.0
"""`--waits`: why tasks slept inside of operations, by their stacks (bpf_src/block/path/waits.h)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from wptrace.analysis.waits import ASLEEP, COUNT, LIMIT, MACHINE, NS, OWNED_WAIT, RATE, WAIT, WAITS
from wptrace.bpf.object import BpfObject
from wptrace.engine.cells import Cells, merge
from wptrace.engine.resolver import Loaded
from wptrace.flows.io.causes import WAIT_FULL
from wptrace.flows.io.hooks import BY_STACK, JOURNAL_WAITS, READS_STACKS, SWITCH
from wptrace.flows.io.options import WAITS_NS
from wptrace.flows.io.part import Distributions, Part, Tracing
from wptrace.flows.io.parts.counts import Counts
from wptrace.flows.io.wait_reasons import DIRTY_LIMIT, SEVERAL, WaitStack, cleaned, reason_of
from wptrace.kernel import privileges, symbols
from wptrace.kernel.symbols import UNKNOWN, KernelSymbols
from wptrace.model.book import MISTAKEN_STACK, Cause
from wptrace.model.kind import TOTAL, Group, Kind, Label

if TYPE_CHECKING:
    from wptrace.flows.io.parts.owners import Owners

_PAGE = os.sysconf("SC_PAGE_SIZE")
_VMSTAT = Path("/proc/vmstat")
_LISTED = 64


def owned(label: Label) -> Kind:
    """The same by owner."""
    return Kind(OWNED_WAIT, WAIT.noun, (*WAIT.labels, label), book="", ranked=True)


class _Row(NamedTuple):
    number: int
    group: Group
    """By owner, where there are owners."""
    stack: int
    owner: int


class Waits(Part):
    def __init__(self, least_ns: int, counts: Counts, owners: Owners | None) -> None:
        super().__init__()
        self._least_ns, self._counts, self._owners = least_ns, counts, owners
        self._kind = WAIT if owners is None else owned(owners.kinds[0].labels[-1])
        self.kinds = tuple(dict.fromkeys((WAIT, self._kind)))
        if owners is not None:
            owners.waits = self
        self._symbols: KernelSymbols | None = None
        self._stacks: dict[int, WaitStack] = {}
        self._rows: dict[int, _Row] = {}
        self._limits: dict[Group, Counter[str]] = {}

    # --- The start ------------------------------------------------------------------------------------------------

    @property
    def chosen(self) -> dict[str, Any]:
        return {"waits_ns": self._least_ns} if self._least_ns != WAITS_NS else {}

    def prepare(self, obj: BpfObject, slots: int) -> None:
        obj.data.wait_ns = self._least_ns
        obj.maps["known_stacks"].max_entries = 2 * len(obj.enum("op_kind"))

    def start(self, tracing: Tracing) -> None:
        obj = self._obj = tracing.obj
        self._names, self._kinds, self._stages = tracing.names, obj.enum("op_kind"), obj.enum("op_stage")
        self._layout = obj.struct("wait_stack")
        first = self._layout.fields.index("frames[0]")
        self._frames = slice(first, first + sum(name.startswith("frames[") for name in self._layout.fields))
        self._known = self._layout.fields.index("known")
        constants = obj.constants
        self._stacks = {
            constants["WAIT_DIRTY_LIMIT"]: WaitStack(DIRTY_LIMIT, ()),
            constants["WAIT_OTHER"]: WaitStack(SEVERAL, ()),
        }
        self._waits = Cells(obj.maps["wait_cells"], [], [TOTAL])
        self.cells = {"wait": self._waits}
        by_stack = _journals_by_stack(tracing.loaded)
        if by_stack:
            found = list(symbols.code(by_stack).values())
            found += [(0, 0)] * (obj.length("journal_begin") - len(found))
            obj.bss.journal_begin = [begin for begin, _ in found]
            obj.bss.journal_bytes = [length for _, length in found]
            obj.bss.journal_by_stack = any(obj.bss.journal_begin)

    def notes(self, loaded: Loaded) -> list[str]:
        if READS_STACKS not in loaded.way(SWITCH).programs:
            return ["waits have no reasons: this kernel lets no program read the stack of a task that is switched in"]
        if not symbols.shown():
            fs = ", and those for a journal are part of fs" if _journals_by_stack(loaded) else ""
            hidden = f"/proc/kallsyms shows no addresses ({privileges.hidden_addresses()})"
            return [f"waits have addresses instead of reasons{fs}: {hidden}"]
        return []

    # --- A look ---------------------------------------------------------------------------------------------------

    def look(self, obj: BpfObject, devices_changed: bool) -> None:
        self._follow_new()

    def _follow_new(self) -> None:
        for row, key in enumerate(self._obj.view("wait_rows").cast("Q").tolist()):
            if key and row not in self._rows:
                stack, owner = key & 0xFFFF, key >> 16 & 0xFFFF
                values = self._names[key >> 48], self._kinds[key >> 40 & 0xFF], self._stages[key >> 32 & 0xFF]
                label = () if self._owners is None else (self._owners.label(owner),)
                if None not in label:
                    group = self._kind.group(*values, self.stack(stack).reason, *label)
                    self._rows[row] = _Row(self._waits.follow(row, group), group, stack, owner)

    def rename(self, slot: int, name: str) -> None:
        keys = self._obj.view("wait_rows").cast("Q")
        for row, one in self._rows.items():
            if keys[row] >> 48 == slot:
                group = self._kind.group(name, *one.group.values[1:])
                self._waits.regroup(one.number, group)
                self._rows[row] = one._replace(group=group)

    def forget(self, owner: int, folded: dict[Group, int]) -> None:
        """From now on the number of the owner is that of another one."""
        self._follow_new()
        keys = self._obj.view("wait_rows").cast("Q")
        for row, one in list(self._rows.items()):
            if one.owner == owner:
                del self._rows[row]
                group = self._waits.leave(one.number)
                self._waits.fold(group, group.of_others)
                folded[group] = folded.pop(group, 0) + 1
                keys[row] = 0

    def add_distributions(self, found: Distributions) -> None:
        super().add_distributions(found)
        if self._owners is not None:
            for group, stages in self._waits.distributions.items():
                merge(found, WAIT.group(*group.values[:-1]), stages)

    def add_counters(self, found: dict[Group, Counter[str]]) -> None:
        for group, counts in self._waits.counters.items():
            made = self._with_limits(group, counts)
            found.setdefault(WAITS.group(*group.values[: len(WAITS.labels)]), Counter()).update(made)
        for group, counts in self._counts.cells["op"].counters.items():
            found[ASLEEP.group(*group.values, "fs")] = Counter({NS: counts["fs_asleep_ns"]})

    def _with_limits(self, group: Group, counts: Mapping[str, int]) -> Counter[str]:
        made = Counter({COUNT: counts["waits"]})
        if not counts["limit"]:
            return made
        known = self._limits.setdefault(group, Counter())
        # That of the machine is a level, so it counts for the waits since the last look.
        if counts["waits"] != known[COUNT]:
            known[MACHINE] += (counts["waits"] - known[COUNT]) * _machine_limit() * _PAGE
            known[COUNT] = counts["waits"]
        return made + Counter({LIMIT: counts["limit"] * _PAGE, RATE: counts["rate"] * _PAGE, MACHINE: known[MACHINE]})

    def noted(self, obj: BpfObject) -> dict[Cause, int]:
        full = obj.bss.loss[obj.enum("path_cause").index(WAIT_FULL.name)]
        return {WAIT_FULL: full, MISTAKEN_STACK: obj.bss.mistaken_stacks}

    # --- Stacks ---------------------------------------------------------------------------------------------------

    def stack(self, number: int) -> WaitStack:
        """By the number that programs have for it."""
        found = self._stacks.get(number)
        if found is None:
            names = self._named(number)
            found = self._stacks[number] = WaitStack(reason_of(names), names)
        return found

    def _values(self, number: int) -> tuple[Any, ...]:
        found: tuple[Any, ...] = self._layout.struct.unpack_from(
            self._obj.view("wait_stacks"), (number - 1) * self._layout.size
        )
        return found

    def _named(self, number: int) -> tuple[str, ...]:
        if self._symbols is None:
            self._symbols = KernelSymbols()
        else:
            self._symbols.refresh()
        names = []
        for frame in filter(None, self._values(number)[self._frames]):
            # It is where its call returns to, which may be behind the end of a function that never returns.
            name = self._symbols.name(frame - 1)
            names.append(name if name != UNKNOWN else f"{frame:#x}")
        return cleaned(names)

    def stacks(self) -> dict[int, WaitStack]:
        """All that there are."""
        words = self._obj.view("wait_stacks").cast("Q")[:: self._layout.size // 8].tolist()
        for place, key in enumerate(words):
            # The frames come behind the key.
            if key and place + 1 not in self._stacks and self._values(place + 1)[self._known]:
                self.stack(place + 1)
        return self._stacks

    @property
    def lists(self) -> dict[str, list[dict[str, Any]]]:
        found = sorted(self._listed(), key=lambda one: -int(one["sum_ns"]))[:_LISTED]
        return {"wait_stacks": found} if found else {}

    def _listed(self) -> Iterator[dict[str, Any]]:
        for row, one in self._rows.items():
            functions = self._stacks[one.stack].functions
            if functions:
                cell = self._obj.maps["wait_cells"][row]
                yield {
                    **one.group.fields,
                    "count": cell.finished,
                    "waits": cell.waits,
                    "sum_ns": cell.stages[0].sum,
                    "stack": list(functions),
                }


def _journals_by_stack(loaded: Loaded) -> list[str]:
    """Functions that wait for one and cannot be observed themselves."""
    return [name for name in JOURNAL_WAITS if loaded.way(f"wait.{name}").name == BY_STACK]


def _machine_limit() -> int:
    """In pages."""
    words = dict(line.split() for line in _VMSTAT.read_text().splitlines())
    return int(words.get("nr_dirty_threshold", 0))
