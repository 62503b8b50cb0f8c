# SPDX-License-Identifier: Apache-2.0
"""Owners that had the device meanwhile: `--neighbours` (bpf_src/block/path/neighbours.h)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from wptrace.analysis.neighbours import COUNT, HAD, KINDS, MEANWHILE, NS, WAITED, Owner, folded
from wptrace.bpf.object import BpfObject
from wptrace.flows.io.causes import OWNER_FULL
from wptrace.flows.io.parts.owners import Owners
from wptrace.flows.io.parts.part import Distributions, Part, Tracing
from wptrace.model.kind import NOBODY, OTHERS, Group
from wptrace.model.report import BYTES, Counters


class Neighbours(Part):
    """Sums of rows that the kernel creates; they only grow."""

    needs_rows = True

    def __init__(self, owners: Owners, top: int = 0) -> None:
        super().__init__()
        self._owners, self._top = owners, top
        # Names and records refer to owners by number.
        owners.kept = True
        self._names: dict[int, Owner] = {0: Owner(NOBODY)}

    # --- The programs ---------------------------------------------------------------------------------------------

    @property
    def chosen(self) -> dict[str, Any]:
        return {"neighbours": True}

    def make_room(self, obj: BpfObject, devices: int) -> None:
        obj.maps["neighbour_cells"].max_entries = _rows(obj) + devices * obj.constants["NEIGHBOUR_KINDS"]

    def prepare(self, obj: BpfObject) -> None:
        obj.rodata.neighbours = True
        obj.maps["watches"].max_entries = obj.length("bios")
        obj.maps["op_watches"].max_entries = obj.length("ops")

    def start(self, tracing: Tracing) -> None:
        obj = self._obj = tracing.obj
        self._devices = tracing.names
        self._ops, self._kinds = obj.enum("block_op"), obj.enum("neighbour_row")
        self._others = obj.constants["OWNER_OTHERS"]
        self._sums: dict[Group, Counter[str]] = {}
        self._before: dict[int, dict[str, int]] = {}
        """By row: the part that is already in the sums."""
        self._nameless: dict[Group, Counter[str]] = {}

    # --- What is counted ------------------------------------------------------------------------------------------

    def rename(self, slot: int, name: str) -> None:
        self._read()

    def add_counters(self, found: dict[Group, Counter[str]]) -> None:
        self._read()
        found.update({group: counts.copy() for group, counts in {**self._sums, **self._nameless}.items()})

    def fold(self, cells: Distributions, counters: Counters) -> tuple[Distributions, Counters]:
        others = {group: counts for group, counts in counters.items() if group.kind not in KINDS}
        mine = {group: counts for group, counts in counters.items() if group.kind in KINDS}
        return cells, {**others, **folded(mine, self._top)}

    def _read(self) -> None:
        self._nameless = {}
        rows, kinds = _rows(self._obj), self._obj.constants["NEIGHBOUR_KINDS"]
        for place, key in enumerate(self._obj.view("neighbour_rows").cast("Q").tolist()):
            if key:
                self._add(place, key >> 48, key >> 8 & 0xFF, key >> 32 & 0xFFFF, key >> 16 & 0xFFFF)
        full = self._obj.enum("path_cause").index(OWNER_FULL.name)
        for slot in range(len(self._devices)) if self._obj.bss.loss[full] else ():
            for what in range(kinds):
                self._add(rows + slot * kinds + what, what, slot, self._others, self._others)

    def _add(self, place: int, what: int, slot: int, waiter: int, holder: int) -> None:
        cells = self._obj.maps["neighbour_cells"][place]
        sums = {field: sum(getattr(cpu, field) for cpu in cells) for field in (COUNT, NS, BYTES)}
        before = self._before.get(place, {})
        if not sums[COUNT] or sums == before:
            return
        dev, had = self._devices[slot], self._kinds.index("had")
        if what == self._kinds.index("waited"):
            group = WAITED.group(dev, self.name(waiter))
        elif what == self._kinds.index("met"):
            group = MEANWHILE.group(dev, self.name(waiter), self.name(holder))
        elif what - had < len(self._ops):
            group = HAD.group(dev, self._ops[what - had], self.name(holder))
        else:
            return
        # A cell has the counters of all kinds.
        declared = {one.name for one in group.kind.counters}
        grown = {field: sums[field] - before.get(field, 0) for field in sums if field in declared}
        if all(number in self._names for number in (waiter, holder)):
            self._before[place] = sums
            self._sums.setdefault(group, Counter()).update(grown)
        else:
            # Its name may be known in the next read.
            self._nameless.setdefault(group, Counter()).update(grown)

    def name(self, number: int) -> Owner:
        if number >= self._others:
            return self._names.setdefault(number, Owner(OTHERS))
        found = self._names.get(number)
        if found is None:
            label = self._owners.label(number)
            if label is None:
                return Owner(f"owner {number}")
            found = self._names[number] = Owner(label)
        if number:
            found.seen = self._owners.seen(number)
        return found

    # --- What a request met ---------------------------------------------------------------------------------------

    def decode(self, met: Any) -> dict[str, Any]:
        """Decode a `struct met`: who had the device while the request waited, and who shared it afterwards."""
        both = {"meanwhile": met.wait, "beside": met.device}
        return {
            "waited_ns": met.waited,
            "device_ns": met.under_way,
            **{
                name: [
                    {"owner": str(owner), "seen": owner.seen, "op": op, "bytes": size, "ns": ns}
                    for ns, owner, (op, size) in self._holders(met.owners, had)
                ]
                for name, had in both.items()
            },
        }

    def _holders(self, numbers: Sequence[int], had: Sequence[int]) -> list[tuple[int, Owner, tuple[str, int]]]:
        """The owners with the most time first, with their last request."""
        times: Counter[int] = Counter()
        for number, ns in zip(numbers, had):
            times[number] += ns
        found = [(ns, self.name(number), self._last(number)) for number, ns in times.items() if ns]
        return sorted(found, key=lambda one: (-one[0], one[1]))

    def _last(self, number: int) -> tuple[str, int]:
        if not 0 < number < self._others:
            return "", 0
        op, size = self._owners.last(number)
        return (self._ops[op] if size else ""), size


def _rows(obj: BpfObject) -> int:
    return obj.length("neighbour_rows")
