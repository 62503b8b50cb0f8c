# SPDX-License-Identifier: Apache-2.0
"""The devices that a flow traces, and the table by which its programs find them (bpf_src/lib/block.h)."""

from __future__ import annotations

import stat
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from wptrace.analysis.load import BUSY_MS, LOAD, LOOKS, STAMPED
from wptrace.bpf.object import BpfObject
from wptrace.engine.hooks import Hook
from wptrace.errors import UsageError
from wptrace.kernel import blockdev, mounts
from wptrace.model.kind import DEVICE, OPERATION, Group, Label

LABELS = (Label("dev", DEVICE), Label("op", OPERATION))
"""Of what is kept apart by the device and what is asked of it."""

# The slot of those that are not in the table.
UNLISTED = 0
_HINT = "name those of interest with --dev"
# Disks that appear while tracing share a row until the next start.
OTHER = "other"


def extents(devices: Iterable[str], hidden: bool = False) -> list[blockdev.Extent]:
    """Where requests of the wanted devices are seen, without doubles; of all disks where none are named.

    Disks that are `hidden` have no number to find them by in the table.
    """
    names = [blockdev.resolve(text) for text in devices]
    names = names or [*blockdev.disks(), *(blockdev.heads() if hidden else ())]
    found = blockdev.merged([extent for name in names for extent in blockdev.requests_of(name)])
    if not hidden and any(extent.hidden for extent in found):
        paths = ", ".join(extent.name for extent in found if extent.hidden)
        raise UsageError(
            f"{paths} of an NVMe multipath can be distinguished from other disks only at level path",
            hint="use wptrace io without --level",
        )
    return found


def stacked(devices: Iterable[str]) -> dict[str, list[str]]:
    """Those of the wanted devices that are stacked, with the ones below."""
    found = {name: [extent.name for extent in blockdev.requests_of(name)] for name in map(blockdev.resolve, devices)}
    return {name: below for name, below in found.items() if below != [name]}


def names(found: Iterable[blockdev.Extent]) -> list[str]:
    """Return the name in rows of each slot of the table."""
    return [OTHER, *(extent.name for extent in found)]


class Loads:
    """How busy devices were so far, as the kernel counts it for all of their requests."""

    def __init__(self, names: Iterable[str]) -> None:
        self._counts = {name: Counter[str]() for name in names if name != OTHER}

    def counters(self) -> dict[Group, Counter[str]]:
        for name, counts in self._counts.items():
            busy = blockdev.busy_ms(name)
            counts[LOOKS] += 1
            if busy is not None:
                counts[STAMPED] += 1
                counts[BUSY_MS] = busy
        return {LOAD.group(name): counts.copy() for name, counts in self._counts.items()}


def notes(devices: Iterable[str]) -> list[str]:
    """Return the notes on the wanted devices."""
    return [
        f"{device} has no requests of its own: they are shown on {', '.join(below)}"
        for device, below in stacked(devices).items()
    ]


def plan(found: Iterable[blockdev.Extent], hooks: Iterable[Hook]) -> list[str]:
    """Describe what a start would do."""
    lines = [f"trace {extent.name} (disk {extent.disk})" for extent in found]
    return [*lines, *(f"observe {hook.name} by {hook.by}" for hook in hooks)]


class Table:
    """An array of the programs that is searched by numbers of devices (`device_place` in bpf_src/lib/block.h)."""

    def __init__(self, obj: BpfObject, name: str) -> None:
        self.entries: list[dict[str, int]] = [{} for _ in range(obj.length(name))]
        self._hash, self._probes = obj.constants["DEVICE_HASH"], obj.constants["DEVICE_PROBES"]

    def places(self, dev: int) -> list[int]:
        """Where a device may be, in the order of the search."""
        length = len(self.entries)
        start = (dev * self._hash & 0xFFFFFFFF) * length >> 32
        return [(start + probe) % length for probe in range(self._probes)]

    def put(self, dev: int, **entry: int) -> bool:
        """False if there is no place left."""
        place = next((place for place in self.places(dev) if not self.entries[place]), None)
        if place is not None:
            self.entries[place] = {"dev": dev, **entry}
        return place is not None


def table(obj: BpfObject, wanted: list[blockdev.Extent], stateful: Collection[str]) -> list[dict[str, int]]:
    """The table for the BPF side; the first slot is for disks that are not in it."""
    found = Table(obj, "devices")
    most = len(found.entries) // 2
    if len(wanted) > most:
        raise UsageError(f"{len(wanted)} devices are more than wptrace can follow at once ({most})", hint=_HINT)
    for slot, one in enumerate(wanted, start=UNLISTED + 1):
        room = one.hidden or found.put(one.dev, slot=slot, stateful=one.disk in stateful, first=one.first, end=one.end)
        if not room:
            raise _no_room(one, [found.entries[place]["dev"] for place in found.places(one.dev)])
    return found.entries


def _no_room(extent: blockdev.Extent, taken: list[int]) -> UsageError:
    """Partitions of a disk share its number, by which the search begins."""
    what = f"there is no room left for {extent.name} among so many devices"
    if any(dev != extent.dev for dev in taken):
        return UsageError(what, hint=_HINT)
    return UsageError(
        f"{what}: at most {len(taken)} partitions of a disk can be followed at once",
        hint=f"name fewer of them, or the whole disk: --dev {extent.disk}",
    )


def hidden_table(obj: BpfObject, wanted: list[blockdev.Extent]) -> list[dict[str, Any]]:
    """The same for those that the BPF side finds by their names."""
    most = obj.length("hidden_disks")
    found = [
        {"name": extent.name.encode(), "slot": slot}
        for slot, extent in enumerate(wanted, start=UNLISTED + 1)
        if extent.hidden
    ]
    if len(found) > most:
        raise UsageError(
            f"{len(found)} paths of NVMe multipaths are more than wptrace can follow at once ({most})", hint=_HINT
        )
    return found + [{} for _ in range(most - len(found))]


def below_files() -> dict[int, str]:
    """Of what files lie on, the device by the number that the file knows."""
    return {**mounts.block_devices(), **blockdev.numbers()}


def check_file(file: mounts.Place, wanted: Sequence[blockdev.Extent], sys: Path = blockdev.SYS) -> None:
    """Of a file on another device nothing would be seen.

    One that is a device itself is let through, and so is what may lie on several (btrfs, an overlay): its file system
    has no device's number.
    """
    major, minor = file.dev >> blockdev.MINOR_BITS, file.dev & (1 << blockdev.MINOR_BITS) - 1
    if not major or stat.S_ISBLK(file.mode):
        return
    try:
        name = blockdev.resolve(f"{major}:{minor}", sys)
        below = list(blockdev.requests_of(name, sys))
    except UsageError:
        return  # it has no requests, or is gone
    if any(one.disk == other.disk and one.first < other.end and other.first < one.end
           for one in below for other in wanted):  # fmt: skip
        return
    raise UsageError(f"{file.path} lies on {name}, which is not one of the devices of --dev", hint=f"--dev {name}")


def file_table(obj: BpfObject, wanted: list[blockdev.Extent], below: Mapping[int, str]) -> list[dict[str, int]]:
    """The rows of files by the device they lie on, for operations without a request.

    What has no place left is not found: its page-cache hits are not counted, its requests are. Those that come first
    have their places whatever comes behind.
    """
    found = Table(obj, "file_devices")
    for dev, name in below.items():
        slot = _slot_of(name, wanted)
        if slot:
            found.put(dev, slot=slot)
    return found.entries


def file_systems(wanted: list[blockdev.Extent]) -> dict[int, str]:
    """The kind of each file system that is mounted on the wanted devices, as far as this process sees it.

    An overlay is none: what is asked of it those below do.
    """
    below = mounts.block_devices()
    every = [one for one in mounts.mounts() if one.dev in below and one.kind != mounts.OVERLAY]
    return {one.dev: one.kind for one in every if _slot_of(below[one.dev], wanted)}


def _slot_of(name: str, wanted: list[blockdev.Extent]) -> int:
    """The slot of the first wanted extent in which requests of a device may be seen; 0 if none is."""
    try:
        own = list(blockdev.requests_of(name))
    except UsageError:  # a device without a queue, or one that is gone
        return 0
    for slot, extent in enumerate(wanted, start=UNLISTED + 1):
        if any(extent.covers(one) for one in own):
            return slot
    return 0
