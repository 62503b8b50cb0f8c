# SPDX-License-Identifier: Apache-2.0
"""The devices that a flow traces, and the table by which its programs find them (bpf_src/lib/block.h)."""

from __future__ import annotations

import stat
import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable, NamedTuple

from wptrace.analysis.load import BUSY_MS, LOAD, READS, STAMPED
from wptrace.bpf.object import BpfObject
from wptrace.engine.cells import Cells, Elements
from wptrace.engine.hooks import Hook
from wptrace.errors import UsageError
from wptrace.kernel import blockdev, cpus, memory, mounts
from wptrace.kernel.mounts import Remote
from wptrace.model import units
from wptrace.model.kind import DEVICE, OPERATION, Group, Kind, Label

LABELS = (Label("dev", DEVICE), Label("op", OPERATION))
"""The labels of cells by device and operation."""

# The slot of devices that are not in the table.
UNLISTED = 0
_HINT = "name those of interest with --dev"
# Disks without a row of their own share this one.
OTHER = "other"

# Where rows are too few, they go to devices with so many requests in this time.
_RANKED_S, _BUSY = 10.0, 100

# The number of changes of rows to remember.
_CHANGES = 1 << 10

# Spare rows for disks that appear later: limited by kernel memory, though at least one, and by number.
_SPARE_BYTES, _SPARE = 4 << 20, 8


def extents(devices: Iterable[str], hidden: bool = False) -> list[blockdev.Extent]:
    """The extents in which requests of the wanted devices are seen, each once; those of all disks if none is named.

    `hidden` disks have no number to look them up by.
    """
    names = [blockdev.resolve(text) for text in devices] or _every(hidden)
    found = blockdev.merged([extent for name in names for extent in blockdev.requests_of(name)])
    if not hidden and any(extent.hidden for extent in found):
        paths = ", ".join(extent.name for extent in found if extent.hidden)
        raise UsageError(
            f"{paths} of an NVMe multipath can be distinguished from other disks only at the levels path and request",
            hint="use wptrace io without --level",
        )
    return found


def _every(hidden: bool) -> list[str]:
    return [*blockdev.disks(), *(blockdev.heads() if hidden else ())]


def stacked(devices: Iterable[str]) -> dict[str, list[str]]:
    """The wanted devices that are stacked, with those below them."""
    found = {name: [extent.name for extent in blockdev.requests_of(name)] for name in map(blockdev.resolve, devices)}
    return {name: below for name, below in found.items() if below != [name]}


def extents_of_now(devices: Sequence[str], hidden: bool = False) -> list[blockdev.Extent]:
    """The extents of the wanted devices that exist now; a device may go away meanwhile."""
    there = []
    for device in devices or _every(hidden):
        with suppress(UsageError):
            there += extents((device,), hidden)
    return blockdev.merged(there)


def names(found: Iterable[blockdev.Extent | Remote]) -> list[str]:
    """Return the name in rows of each slot of the table."""
    return [OTHER, *(one.name for one in found)]


def by_operation(obj: BpfObject) -> Callable[[int], None]:
    """Set the size of `cells`, of which a device has one for each operation."""
    cells, ops = obj.maps["cells"], len(obj.enum("block_op"))

    def make_room(devices: int) -> None:
        cells.max_entries = devices * ops

    return make_room


def spare(row_bytes: int) -> int:
    """The number of spare rows for devices that appear later, given the bytes of a row on all CPUs."""
    return max(min(_SPARE_BYTES // max(row_bytes, 1), _SPARE), 1)


class Change(NamedTuple):
    """A row that was given to another device."""

    ns: int
    """By the monotonic clock. Nothing of the earlier device ended later, and nothing of the other one began before."""
    row: int
    earlier: str
    """The name of the earlier device; empty if the row was a spare one."""


class Slots:
    """The row of each device. A new device gets a spare row, or that of the device that went away first.

    `names` is changed in place. A device that has gone keeps its row until it is needed.
    """

    def __init__(self, names: Iterable[str], spare: int = 0, reused: bool = True) -> None:
        self.names = [*names, *[""] * spare]
        self._changes = deque[Change](maxlen=_CHANGES)
        self.known_since_ns = 0
        """From when on it is known which device had which row."""
        self._reused = reused
        self._gone: list[int] = []
        self.waiting = False
        """A device has no row yet, and may get one in the next check."""

    def changes(self, there: Collection[str], held: Collection[int] = ()) -> dict[int, str]:
        """Return rows that are given to other devices, none of them held. They change when `rename` is called."""
        free = [row for row, name in enumerate(self.names) if not name]
        # A device that has just gone may still have requests in flight.
        gone = [row for row in self._gone if self.names[row] not in there]
        free += [row for row in gone if row not in held] if self._reused else []
        gone = [row for row, name in enumerate(self.names) if name not in ("", OTHER, *there)]
        come = [name for name in there if name not in self.names]
        found = dict(zip(free, come))
        self._gone = [row for row in self._gone if row in gone and row not in found]
        self._gone += [row for row in gone if row not in self._gone and row not in found]
        self.waiting = self._reused and len(come) > len(found) and bool(self._gone)
        return found

    def rename(self, changes: Mapping[int, str]) -> None:
        now = time.monotonic_ns()
        for row, name in changes.items():
            if len(self._changes) == _CHANGES:
                self.known_since_ns = self._changes[0].ns
            self._changes.append(Change(now, row, self.names[row]))
            self.names[row] = name

    def since(self, ns: int) -> Iterator[tuple[int, list[str]]]:
        """Yield the names of the rows, newest first, and since when they had them: until those of `ns` are there."""
        names = list(self.names)
        for change in reversed(self._changes):
            if change.ns < ns:
                break
            yield change.ns, list(names)
            names[change.row] = change.earlier
        yield ns, names


def _completed(names: Iterable[str]) -> dict[str, int]:
    return {name: blockdev.completed(name) or 0 for name in names}


class Ranking:
    """Which devices have rows where there are too few: a busy device takes the row of an idle one."""

    def __init__(self, counts: Mapping[str, int], without: Iterable[str]) -> None:
        """`counts` are what each device has completed; `without` are those that have no row at first."""
        self.without = set(without)
        self._counts = counts
        self._due = time.monotonic() + _RANKED_S

    def changes(self, names: Collection[str], rows: Sequence[str]) -> bool:
        """Rank the devices when that is due; return whether one is to have a row. `rows` are the names of all rows."""
        if time.monotonic() < self._due:
            return False
        before, self._counts = self._counts, _completed(names)
        self._due = time.monotonic() + _RANKED_S
        made = {name: count - before.get(name, count) for name, count in self._counts.items()}
        self.without &= made.keys()
        listed = sorted(made.keys() - self.without, key=made.__getitem__)
        idle = deque(name for name in listed if name in rows)
        # All rows but that of the others.
        free = len(rows) - 1 - len(listed)
        # Those that came later than the last row went.
        self.without.update([name for name in listed if name not in rows][: max(-free, 0)])
        found = 0
        for name in sorted((name for name in self.without if made[name] >= _BUSY), key=lambda name: -made[name]):
            if free > 0:
                free -= 1
            elif idle and made[name] >= 2 * made[idle[0]]:
                self.without.add(idle.popleft())
            else:
                break
            self.without.remove(name)
            found += 1
        return found > 0


class DeviceCells(Cells):
    """Cells by device and operation, in the order of the slots."""

    def __init__(
        self,
        cells: Elements,
        names: Iterable[str],
        kind: Kind,
        ops: Sequence[str],
        stages: list[str],
        sparse: bool = False,
        absent: Iterable[str] = (),
    ) -> None:
        super().__init__(cells, [], stages, sparse, absent)
        self._kind, self._ops = kind, ops
        self._places: dict[int, int] = {}
        for slot, name in enumerate(names):
            if name:
                self.rename(slot, name)

    def rename(self, slot: int, name: str) -> None:
        """Give a slot to another device."""
        groups = [self._kind.group(name, op) for op in self._ops]
        if slot in self._places:
            for place, group in enumerate(groups, self._places[slot]):
                self.regroup(place, group)
            return
        numbers = [self.follow(key, group) for key, group in enumerate(groups, slot * len(groups))]
        self._places[slot] = numbers[0]


class Loads:
    """The load of devices, by the kernel's count of all their requests."""

    def __init__(self, names: Iterable[str]) -> None:
        self._counts: dict[str, Counter[str]] = {}
        self._busy: dict[str, int] = {}
        self.add(names)

    def add(self, names: Iterable[str]) -> None:
        for name in names:
            if name and name != OTHER:
                self._counts.setdefault(name, Counter())
                self._busy[name] = blockdev.busy_ms(name) or 0

    def counters(self) -> dict[Group, Counter[str]]:
        for name, counts in self._counts.items():
            busy = blockdev.busy_ms(name)
            counts[READS] += 1
            if busy is not None:
                counts[STAMPED] += 1
                # A new device of the same name begins at 0.
                counts[BUSY_MS] += busy - self._busy[name] if busy >= self._busy[name] else busy
                self._busy[name] = busy
        return {LOAD.group(name): counts.copy() for name, counts in self._counts.items()}


class Devices:
    """The devices that a flow traces, their rows in its programs, and how busy they are."""

    def __init__(
        self,
        wanted: Sequence[str],
        remotes: Sequence[Remote] = (),
        hidden: bool = False,
        stateful: Callable[[Sequence[blockdev.Extent]], Collection[str]] = lambda _: (),
    ) -> None:
        """`wanted` holds the names that the user gave; none means all disks, or no disk if there are `remotes`.
        `stateful` returns the disks that need wptrace's own times."""
        # First: changes that happen meanwhile must be seen.
        self._changes = blockdev.Changes()
        self.wanted, self._hidden, self._find_stateful = tuple(wanted), hidden, stateful
        self.remotes = tuple(remotes)
        self.extents = [] if self._no_disk else extents(wanted, hidden)
        self.stateful = stateful(self.extents)
        self.changing = False
        """Set before the start if the devices may be changed while they are traced, so that there is room for more."""
        self._aimed = False
        self._ranking: Ranking | None = None
        self.shortage: list[str] = []
        """A note if memory was too short for rows of all devices."""

    @property
    def _no_disk(self) -> bool:
        return bool(self.remotes) and not self.wanted

    @property
    def everything(self) -> bool:
        """Whether every device is wanted."""
        return not self.wanted and not self.remotes

    @property
    def chosen(self) -> dict[str, Any]:
        return {"dev": [] if self.everything else [one.name for one in self._followed]}

    @property
    def _followed(self) -> list[blockdev.Extent | Remote]:
        return [*self.extents, *self.remotes]

    @property
    def listed(self) -> list[blockdev.Extent]:
        """The extents that have rows of their own, or will have some."""
        without = self._ranking.without if self._ranking is not None and self.everything else ()
        return [one for one in self.extents if one.name not in without]

    @property
    def with_rows(self) -> list[blockdev.Extent]:
        """The extents that have rows of their own now."""
        return [one for one in self.listed if one.name in self.names]

    def plan(self, hooks: Iterable[Hook]) -> list[str]:
        """Describe what a start would do."""
        lines = [f"trace {extent.name} (disk {extent.disk})" for extent in self.extents]
        lines += [f"trace {one.name} ({one.kind})" for one in self.remotes]
        return [*lines, *(f"observe {hook.name} by {hook.by}" for hook in hooks)]

    def notes(self) -> list[str]:
        found = [
            f"{device} has no requests of its own: they are shown on {', '.join(below)}"
            for device, below in stacked(self.wanted).items()
        ]
        return found + self.shortage

    @property
    def may_come(self) -> bool:
        """Whether wanted devices may still appear."""
        return self.everything or bool(stacked(self.wanted))

    def layers(self) -> list[str]:
        """Stacked devices and those below them, as far as they exist now."""
        if self.everything:
            return blockdev.layers()
        found: list[str] = []
        for device in self.wanted:
            with suppress(UsageError):
                found += blockdev.layers_of(blockdev.resolve(device))
        return list(dict.fromkeys(found))

    def place(
        self,
        obj: BpfObject,
        make_room: Callable[[int], None] = lambda _rows: None,
        room: int = 0,
        permitted: int | None = None,
        reused: bool = True,
    ) -> None:
        """Give each device a row in the programs, which are not loaded yet, and keep spare ones.

        `make_room` sets the sizes of maps for so many rows. `room` is the number of spare ones; 0: as many as a small
        memory limit allows, if devices may come. All maps may take the `permitted` bytes, and else rows half of what
        is free besides; if that is too little, only the busiest of all devices get rows: those of the moment, if rows
        may be `reused`.
        """
        make_room(1)
        least = obj.planned_bytes
        make_room(2)
        row = obj.planned_bytes - least
        room = room or (spare(row) if self.may_come or self.changing else 0)
        room = max(min(room, most(obj) - len(self.extents)), 0)
        followed = [one.name for one in self._followed]
        count = self._fitting(len(followed), least + room * row, row, permitted)
        counts = _completed(followed) if count < len(followed) else {}
        busiest = sorted(counts, key=lambda name: -counts[name])
        self.slots = Slots(names(one for one in self._followed if one.name not in busiest[count:]), room, reused)
        if busiest and reused:
            self._ranking = Ranking(counts, busiest[count:])
        self.names = self.slots.names
        make_room(len(self.names))
        self.loads = Loads(one.name for one in self.extents if one.name in self.names)
        obj.bss.trace_unlisted = self.everything
        obj.bss.devices = table(obj, self.extents, self.names, self.stateful)
        if self._hidden:
            obj.bss.hidden_disks = hidden_table(obj, self.extents, self.names)

    def _fitting(self, devices: int, least: int, row: int, permitted: int | None) -> int:
        """Return how many devices get a row; all if they are named."""
        if permitted is None and not self.everything:
            return devices
        whole = least + devices * row
        limit = least + max(memory.room().bytes - least, 0) // 2 if permitted is None else permitted
        if whole <= limit:
            return devices
        if permitted is not None and (not self.everything or least + row > limit):
            raise UsageError(
                f"this takes {units.size(whole)} of the kernel's memory, and --memory permits {units.size(limit)}",
                hint="permit more, name fewer devices or use fewer options",
            )
        count = max((limit - least) // row, 1)
        self.shortage = [
            f"{devices - count} of {devices} devices are counted as {OTHER}: rows for all of them take "
            f"{units.size(whole)} of the kernel's memory, and {units.size(limit)} are permitted"
        ]
        return count

    def aim(self, obj: BpfObject, wanted: Sequence[str]) -> None:
        """Trace these devices from the next check on. The counts of others are kept."""
        self.wanted, self._aimed = tuple(wanted), True
        obj.bss.trace_unlisted = self.everything

    def without_room(self, wanted: Sequence[blockdev.Extent]) -> list[str]:
        """The devices that would get no row. A device that is no longer wanted frees its row."""
        there = [*(one.name for one in wanted), *(one.name for one in self.remotes)]
        free = sum(name not in (OTHER, *there) for name in self.slots.names)
        return [name for name in there if name not in self.slots.names][free:]

    def refresh(
        self,
        obj: BpfObject,
        rename: Callable[[int, str], None] = lambda _slot, _name: None,
        held: Callable[[], Collection[int]] = tuple,
    ) -> bool:
        """Give rows to new devices and take those of removed ones; return whether anything changed.

        A slot is renamed while no program counts in it. Slots that are `held` by objects in flight are left alone.
        """
        aimed, self._aimed = self._aimed, False
        changed = bool(self._changes) or self.slots.waiting or aimed
        if self._ranking is not None and self.everything and not aimed:
            changed |= self._ranking.changes([one.name for one in self.extents], self.names)
        if not changed:
            return False
        before = self.extents
        self.extents = [] if self._no_disk else extents_of_now(self.wanted, self._hidden)
        listed = self.listed
        # Without hooks for its own times wptrace uses the kernel's, as for all devices without a row.
        if self.stateful:
            self.stateful = self._find_stateful(self.extents)
        with suppress(UsageError):
            obj.bss.devices = table(obj, [one for one in before if one in listed], self.names, self.stateful)
        cpus.barrier()
        there = [*(one.name for one in listed), *(one.name for one in self.remotes)]
        changes = self.slots.changes(there, held())
        for slot, name in changes.items():
            rename(slot, name)
        self.slots.rename(changes)
        with suppress(UsageError):
            obj.bss.devices = table(obj, listed, self.names, self.stateful)
            if self._hidden:
                obj.bss.hidden_disks = hidden_table(obj, listed, self.names)
        self.loads.add(changes.values())
        return True


class Table:
    """An array of the programs, searched by device number (`device_place` in bpf_src/lib/block.h)."""

    def __init__(self, obj: BpfObject, name: str) -> None:
        self.entries: list[dict[str, int]] = [{} for _ in range(obj.length(name))]
        self._hash, self._probes = obj.constants["DEVICE_HASH"], obj.constants["DEVICE_PROBES"]

    def places(self, dev: int) -> list[int]:
        """The candidate entries of a device, in the order of the search."""
        length = len(self.entries)
        start = (dev * self._hash & 0xFFFFFFFF) * length >> 32
        return [(start + probe) % length for probe in range(self._probes)]

    def put(self, dev: int, **entry: int) -> bool:
        """Add a device; false if there is no room."""
        place = next((place for place in self.places(dev) if not self.entries[place]), None)
        if place is not None:
            self.entries[place] = {"dev": dev, **entry}
        return place is not None


def most(obj: BpfObject) -> int:
    """The number of devices that a flow can follow at once."""
    return obj.length("devices") // 2


def table(
    obj: BpfObject, wanted: Sequence[blockdev.Extent], slots: Sequence[str], stateful: Collection[str] = ()
) -> list[dict[str, int]]:
    """Fill the table of the programs with the slot of each device; slot 0 is for disks that are not in it."""
    if len(wanted) > most(obj):
        raise UsageError(f"{len(wanted)} devices are more than wptrace can follow at once ({most(obj)})", hint=_HINT)
    found = Table(obj, "devices")
    for one, slot in _placed(wanted, slots):
        room = one.hidden or found.put(one.dev, slot=slot, stateful=one.disk in stateful, first=one.first, end=one.end)
        if not room:
            raise _no_room(one, [found.entries[place]["dev"] for place in found.places(one.dev)])
    return found.entries


def _no_room(extent: blockdev.Extent, taken: list[int]) -> UsageError:
    """Partitions share the number of their disk, where the search begins."""
    what = f"there is no room left for {extent.name} among so many devices"
    if any(dev != extent.dev for dev in taken):
        return UsageError(what, hint=_HINT)
    return UsageError(
        f"{what}: at most {len(taken)} partitions of a disk can be followed at once",
        hint=f"name fewer of them, or the whole disk: --dev {extent.disk}",
    )


def _placed(wanted: Iterable[blockdev.Extent], slots: Sequence[str]) -> list[tuple[blockdev.Extent, int]]:
    """The extents that have a slot, with it."""
    numbers = {name: slot for slot, name in enumerate(slots)}
    return [(one, numbers[one.name]) for one in wanted if one.name in numbers]


def hidden_table(obj: BpfObject, wanted: Sequence[blockdev.Extent], slots: Sequence[str]) -> list[dict[str, Any]]:
    """The table of devices that the programs find by name."""
    most = obj.length("hidden_disks")
    found = [{"name": extent.name.encode(), "slot": slot} for extent, slot in _placed(wanted, slots) if extent.hidden]
    if len(found) > most:
        raise UsageError(
            f"{len(found)} paths of NVMe multipaths are more than wptrace can follow at once ({most})", hint=_HINT
        )
    return found + [{} for _ in range(most - len(found))]


def below_files() -> dict[int, str]:
    """Devices below file systems, by the number that files carry."""
    return {**mounts.block_devices(), **blockdev.numbers()}


def chosen(wanted: Sequence[str], places: Sequence[mounts.Place]) -> tuple[list[str], list[Remote]]:
    """The wanted devices, and the remote file systems: those that are named by a path on them, or that have the files
    and directories of `places`."""
    by_text = {text: mounts.remote(text) if "/" in text else None for text in wanted}
    found = [one for one in by_text.values() if one is not None]
    of_places = {place.path: mounts.remote(place.path) for place in places}
    if not wanted:
        found += [one for one in of_places.values() if one is not None]
    for path, one in of_places.items():
        if one is not None and one not in found:
            raise UsageError(f"{path} lies on {one.name}, which is not one of --dev", hint=f"--dev {path}")
    return [text for text, one in by_text.items() if one is None], list(dict.fromkeys(found))


def check_file(file: mounts.Place, wanted: Sequence[blockdev.Extent], sys: Path = blockdev.SYS) -> None:
    """Refuse a file on a device that is not traced: nothing would be seen of it.

    A device file is let through, and so is a file of a file system that may span devices (btrfs, an overlay) and has
    no device number.
    """
    if not file.dev >> blockdev.MINOR_BITS or stat.S_ISBLK(file.mode):
        return
    try:
        name = blockdev.resolve(blockdev.maj_min(file.dev), sys)
        below = list(blockdev.requests_of(name, sys))
    except UsageError:
        return  # It has no requests, or is gone.
    if any(one.disk == other.disk and one.first < other.end and other.first < one.end
           for one in below for other in wanted):  # fmt: skip
        return
    raise UsageError(f"{file.path} lies on {name}, which is not one of the devices of --dev", hint=f"--dev {name}")


def file_table(
    obj: BpfObject,
    wanted: Sequence[blockdev.Extent],
    slots: Sequence[str],
    below: Mapping[int, str],
    remotes: Sequence[Remote] = (),
) -> list[dict[str, int]]:
    """The slots of files by the device number of their file system, for operations without a request.

    If the table is full, the last ones are left out: their page-cache hits are not counted, but their requests are.
    """
    found = Table(obj, "file_devices")
    placed = _placed(wanted, slots)
    numbers = {name: slot for slot, name in enumerate(slots)}
    for one in remotes:
        found.put(one.dev, slot=numbers[one.name], remote=True)
    for dev, name in below.items():
        slot = _slot_of(name, placed)
        if slot:
            found.put(dev, slot=slot)
    return found.entries


def file_systems(wanted: Iterable[blockdev.Extent]) -> dict[int, str]:
    """The type of each file system that is mounted on the wanted devices, as far as this process sees them.

    Overlays are left out: the file systems below them do their I/O.
    """
    below = mounts.block_devices()
    every = [one for one in mounts.mounts() if one.dev in below and one.kind != mounts.OVERLAY]
    ours = [(one, 1) for one in wanted]
    return {one.dev: one.kind for one in every if _slot_of(below[one.dev], ours)}


def _slot_of(name: str, placed: Iterable[tuple[blockdev.Extent, int]]) -> int:
    """The slot of the first wanted extent that may see requests of a device; 0 if there is none."""
    try:
        own = list(blockdev.requests_of(name))
    except UsageError:  # A device without a queue, or one that is gone.
        return 0
    for extent, slot in placed:
        if any(extent.covers(one) for one in own):
            return slot
    return 0
