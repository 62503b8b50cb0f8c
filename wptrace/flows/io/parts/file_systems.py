# SPDX-License-Identifier: Apache-2.0
"""The file systems on the traced devices: which are mounted, and which of them the programs watch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wptrace.bpf.object import BpfObject
from wptrace.engine import devices
from wptrace.engine.devices import Devices
from wptrace.engine.filters.file import DIR, FILE
from wptrace.engine.hooks import Way
from wptrace.engine.resolver import Loaded
from wptrace.flows.io import hooks
from wptrace.flows.io.causes import UNWATCHED
from wptrace.flows.io.operations import FILES, MODULES, is_watched, notes
from wptrace.flows.io.options import Options
from wptrace.flows.io.parts.part import Part, Tracing
from wptrace.kernel import mounts
from wptrace.kernel.mounts import Place
from wptrace.model.book import Cause
from wptrace.model.diagnosis import DEGRADED, Check


def chosen(options: Options) -> tuple[Devices, list[Place]]:
    """The wanted devices, and the wanted files and directories."""
    places = [options.filter[name] for name in (FILE.name, DIR.name) if name in options.filter]
    found = Devices(*devices.chosen(options.devices, places), hidden=True)
    if options.devices and FILE.name in options.filter:
        devices.check_file(options.filter[FILE.name], found.extents)
    return found, places


def checks(way: Way) -> list[Check]:
    """Checks for the way to observe operations on the file systems of all disks."""
    kinds = hooks.file_systems(devices.extents((), hidden=True))
    return [Check("operations", DEGRADED, note) for note in notes(way, kinds)]


class FileSystems(Part):
    """Gives rows to files of file systems that are mounted later. File systems that stay mounted are always found."""

    def __init__(self, of: Devices, places: Sequence[Place], every: bool = False) -> None:
        """`places` are the wanted files and directories; with `every`, all kinds are watched."""
        super().__init__()
        self._devices, self._places = of, places
        self.needs_options = bool(of.remotes)
        # First: mounts that happen meanwhile must be seen.
        self._changes = mounts.Changes()
        self.watched = set(MODULES) if every else hooks.file_systems(of.extents, of.remotes)
        self._below = devices.below_files()
        self._unwatched: set[int] = set()

    def prepare(self, obj: BpfObject) -> None:
        if self.needs_options:
            obj.rodata.watches_remote = True

    def functions(self, loaded: Loaded) -> Mapping[str, str]:
        by_files = loaded.way(hooks.OPERATION).name == FILES
        return dict.fromkeys(hooks.WRITES, "") if by_files and loaded.way(hooks.FROZEN).programs else {}

    def start(self, tracing: Tracing) -> None:
        self._place(tracing.obj)
        self._ways = [tracing.loaded.way(hooks.OPERATION), tracing.loaded.way(hooks.SYNC)]
        if writes := self.functions(tracing.loaded):
            tracing.set_code("write", list(writes))

    def notes(self, loaded: Loaded) -> list[str]:
        return notes(loaded.way(hooks.OPERATION), self.watched, self._places)

    def refresh(self, obj: BpfObject, devices_changed: bool) -> None:
        if not self._changes and not devices_changed:
            return
        now = devices.below_files()
        # A freed number may be reused by a file system without a device.
        self._below = {**{dev: now[dev] for dev in self._below if dev in now}, **now}
        self._place(obj)
        self._unwatched |= {
            dev
            for dev, kind in devices.file_systems(self._devices.extents).items()
            if not all(is_watched(kind, way, self.watched) for way in self._ways)
        }

    def _place(self, obj: BpfObject) -> None:
        extents, names = self._devices.listed, self._devices.names
        obj.bss.file_devices = devices.file_table(obj, extents, names, self._below, self._devices.remotes)

    def noted(self, obj: BpfObject) -> dict[Cause, int]:
        return {UNWATCHED: len(self._unwatched)}

    def close(self) -> None:
        self._changes.close()
