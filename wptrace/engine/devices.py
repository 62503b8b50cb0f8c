# SPDX-License-Identifier: Apache-2.0
"""The devices that a flow traces, and the table by which its programs find them (bpf_src/lib/block.h)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from wptrace.engine.hooks import Hook
from wptrace.errors import UsageError
from wptrace.kernel import blockdev, mounts
from wptrace.model.kind import DEVICE, OPERATION, Label

LABELS = (Label("dev", DEVICE), Label("op", OPERATION))
"""Of what is kept apart by the device and what is asked of it."""

# As in bpf_src/lib/block.h.
DEVICES = 256
PROBES = 16
HASH = 0x9E3779B1
UNLISTED = 0
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
            f"{paths} of an NVMe multipath can be told from other disks by the whole path alone",
            hint="use wptrace io without --level",
        )
    if len(found) > DEVICES // 2:
        raise UsageError(
            f"{len(found)} devices are more than wptrace can tell apart at once ({DEVICES // 2})",
            hint="name those of interest with --dev",
        )
    return found


def stacked(devices: Iterable[str]) -> dict[str, list[str]]:
    """Those of the wanted devices that are stacked, with the ones below."""
    found = {name: [extent.name for extent in blockdev.requests_of(name)] for name in map(blockdev.resolve, devices)}
    return {name: below for name, below in found.items() if below != [name]}


def names(found: Iterable[blockdev.Extent]) -> list[str]:
    """What each slot of the table is called in rows."""
    return [OTHER, *(extent.name for extent in found)]


def notes(devices: Iterable[str]) -> list[str]:
    """What a reader must know of the wanted devices."""
    return [
        f"{device} has no requests of its own: they are shown on {', '.join(below)}"
        for device, below in stacked(devices).items()
    ]


def plan(found: Iterable[blockdev.Extent], hooks: Iterable[Hook]) -> list[str]:
    """What a flow that is about to start would do."""
    lines = [f"trace {extent.name} (disk {extent.disk})" for extent in found]
    return [*lines, *(f"observe {hook.name} by {hook.by}" for hook in hooks)]


def table(wanted: list[blockdev.Extent], stateful: Collection[str]) -> list[dict[str, int]]:
    """The table for the BPF side; the first slot is for disks that are not in it."""
    entries: list[dict[str, int]] = [{} for _ in range(DEVICES)]
    for slot, extent in enumerate(wanted, start=UNLISTED + 1):
        if extent.hidden:
            continue
        start = (extent.dev * HASH & 0xFFFFFFFF) >> 24
        places = [(start + probe) % DEVICES for probe in range(PROBES)]
        place = next((place for place in places if not entries[place]), None)
        if place is None:
            raise _no_room(extent, [entries[place]["dev"] for place in places])
        entries[place] = {
            "dev": extent.dev,
            "slot": slot,
            "stateful": extent.disk in stateful,
            "first": extent.first,
            "end": extent.end,
        }
    return entries


def _no_room(extent: blockdev.Extent, taken: list[int]) -> UsageError:
    """Partitions of a disk share its number, by which the search begins."""
    what = f"there is no room left for {extent.name} among so many devices"
    if any(dev != extent.dev for dev in taken):
        return UsageError(what, hint="name those of interest with --dev")
    return UsageError(
        f"{what}: of a disk, {PROBES} partitions can be told apart at once",
        hint=f"name fewer of them, or the whole disk: --dev {extent.disk}",
    )


# As in bpf_src/block/path/hidden.h.
HIDDEN = 32


def hidden_table(wanted: list[blockdev.Extent]) -> list[dict[str, Any]]:
    """The same for those that the BPF side finds by their names."""
    found = [
        {"name": extent.name.encode(), "slot": slot}
        for slot, extent in enumerate(wanted, start=UNLISTED + 1)
        if extent.hidden
    ]
    if len(found) > HIDDEN:
        raise UsageError(
            f"{len(found)} paths of NVMe multipaths are more than wptrace can tell apart at once ({HIDDEN})",
            hint="name those of interest with --dev",
        )
    return found + [{} for _ in range(HIDDEN - len(found))]


# As in bpf_src/block/path/state.h.
FILE_DEVICES = 1024
_FILE_SHIFT = 22


def file_table(wanted: list[blockdev.Extent]) -> list[dict[str, int]]:
    """The rows of files by what they lie on, for operations that no request tells it of.

    What has no place left is not found: its page-cache hits are not counted, its requests are.
    """
    entries: list[dict[str, int]] = [{} for _ in range(FILE_DEVICES)]
    below = {**mounts.block_devices(), **blockdev.numbers()}
    for dev, name in below.items():
        slot = _slot_of(name, wanted)
        start = (dev * HASH & 0xFFFFFFFF) >> _FILE_SHIFT
        places = [(start + probe) % FILE_DEVICES for probe in range(PROBES)]
        place = next((place for place in places if not entries[place]), None)
        if slot and place is not None:
            entries[place] = {"dev": dev, "slot": slot}
    return entries


def file_systems(wanted: list[blockdev.Extent]) -> set[str]:
    """The kinds of what is mounted on the wanted devices, as far as this process sees it.

    An overlay is none: what is asked of it those below do.
    """
    below = mounts.block_devices()
    every = [one for one in mounts.mounts() if one.dev in below and one.kind != mounts.OVERLAY]
    return {one.kind for one in every if _slot_of(below[one.dev], wanted)}


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
