# SPDX-License-Identifier: Apache-2.0
"""Stacked devices (dm, md), whose bios have rows of their own (bpf_src/block/path/layers.h)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress

from wptrace.bpf.object import BpfObject
from wptrace.engine.devices import Table
from wptrace.errors import UsageError
from wptrace.kernel import blockdev


def wanted(devices: Sequence[str]) -> list[str]:
    """Those of the devices that are stacked, and those below them; all that there are where none is named."""
    if not devices:
        return blockdev.layers()
    return list(dict.fromkeys(name for device in devices for name in blockdev.layers_of(blockdev.resolve(device))))


def wanted_now(devices: Sequence[str]) -> list[str]:
    """The same of those that are there now. One of them may go meanwhile."""
    if not devices:
        return blockdev.layers()
    found: list[str] = []
    for device in devices:
        with suppress(UsageError):
            found += wanted((device,))
    return list(dict.fromkeys(found))


def table(obj: BpfObject, slots: Sequence[str], there: Collection[str]) -> list[dict[str, int]]:
    """For the BPF side: by the number of the device, which row its bios have."""
    found = Table(obj, "layers")
    for slot, name in enumerate(slots):
        if name in there and not found.put(blockdev.extent(name).dev, slot=slot):
            raise UsageError(f"there is no room left for {name} among so many devices", hint="name those of interest")
    return found.entries
