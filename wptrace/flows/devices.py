# SPDX-License-Identifier: Apache-2.0
"""The devices that a flow traces, and the table by which its programs find them (bpf_src/lib/block.h)."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from wptrace.errors import UsageError
from wptrace.kernel import blockdev

# As in bpf_src/lib/block.h.
DEVICES = 256
PROBES = 16
HASH = 0x9E3779B1
UNLISTED = 0


def extents(devices: Iterable[str]) -> list[blockdev.Extent]:
    """Where requests of the wanted devices are seen, without doubles; of all disks where none are named."""
    names = [blockdev.resolve(text) for text in devices] or blockdev.disks()
    found = blockdev.merged([extent for name in names for extent in blockdev.requests_of(name)])
    if len(found) > DEVICES // 2:
        raise UsageError(
            f"{len(found)} devices are more than wptrace can tell apart at once ({DEVICES // 2})",
            hint="name those of interest with --dev",
        )
    return found


def stacked(devices: Iterable[str]) -> dict[str, list[str]]:
    """Those of the wanted devices that are made of others, with the ones below."""
    found = {name: [extent.name for extent in blockdev.requests_of(name)] for name in map(blockdev.resolve, devices)}
    return {name: below for name, below in found.items() if below != [name]}


def table(wanted: list[blockdev.Extent], stateful: Collection[str]) -> list[dict[str, int]]:
    """The table for the BPF side; the first slot is for disks that are not in it."""
    entries: list[dict[str, int]] = [{} for _ in range(DEVICES)]
    for slot, extent in enumerate(wanted, start=UNLISTED + 1):
        start = (extent.dev * HASH & 0xFFFFFFFF) >> 24
        places = [(start + probe) % DEVICES for probe in range(PROBES)]
        place = next((place for place in places if not entries[place]), None)
        if place is None:
            raise UsageError(f"there is no room left for {extent.name} among so many devices")
        entries[place] = {
            "dev": extent.dev,
            "slot": slot,
            "stateful": extent.disk in stateful,
            "first": extent.first,
            "end": extent.end,
        }
    return entries
