# SPDX-License-Identifier: Apache-2.0
"""Names of pods and containers, as the folders of their logs have them: no API is asked.

kubelet has /var/log/pods/NAMESPACE_POD_UID/ and links /var/log/containers/POD_NAMESPACE_CONTAINER-ID.log. podman and
docker have files of state, which root alone may read. kubelet mounts volumes at .../pods/UID/volumes/PLUGIN/NAME.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from wptrace.errors import UsageError
from wptrace.kernel import blockdev, mounts
from wptrace.kernel.files import is_regular, open_to_read

LOG = Path("/var/log")
LIB = Path("/var/lib")
_MOST = 1 << 16
"""The number of a folder's entries that are read."""
_LARGEST = 4 << 20
_MOST_VOLUMES = 4096
# The names that Kubernetes allows: no underscores.
_NAME = r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?"
_UID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32}"
_POD = re.compile(rf"({_NAME})_({_NAME})_({_UID})")
_CONTAINER = re.compile(rf"({_NAME})_({_NAME})_({_NAME})-([0-9a-f]{{64}})\.log")
_ID = re.compile(r"[0-9a-f]{64}")
_VOLUME = re.compile(rf"/.*/pods/({_UID})/volumes/kubernetes\.io~[a-z-]{{1,63}}/({_NAME})(?:/mount)?")
_PLAIN = re.compile(r"/?([A-Za-z0-9][A-Za-z0-9_.-]{0,127})")

# The errors of a file that is not there, may not be read, or has other contents.
_WRONG = (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError)


class Pod(NamedTuple):
    namespace: str
    name: str


class Volume(NamedTuple):
    """A volume of a pod, mounted from a device."""

    device: str
    name: str
    pod: str
    """Its uid."""


def pods(log: Path = LOG) -> dict[str, Pod]:
    """Return the current pods by their uids."""
    found = (_POD.fullmatch(name) for name in _names(log / "pods"))
    return {one.group(3): Pod(one.group(1), one.group(2)) for one in found if one}


def containers(log: Path = LOG) -> dict[str, tuple[Pod, str]]:
    """The pod and the name of each, by their ids."""
    found = (_CONTAINER.fullmatch(name) for name in _names(log / "containers"))
    return {one.group(4): (Pod(one.group(2), one.group(1)), one.group(3)) for one in found if one}


def container_name(id: str, lib: Path = LIB) -> str:  # noqa: A002 - as runtimes call it
    """Return the name of a docker or podman container; empty if it cannot be found."""
    if not _ID.fullmatch(id):
        return ""
    with suppress(*_WRONG):
        return _plain(_json(lib / "docker" / "containers" / id / "config.v2.json")["Name"])
    with suppress(*_WRONG):
        for one in _json(lib / "containers" / "storage" / "overlay-containers" / "containers.json"):
            if one["id"] == id:
                return _plain(one["names"][0])
    return ""


def volumes(proc: Path = mounts.PROC, sys: Path = blockdev.SYS) -> list[Volume]:
    """Return volumes on block devices, one for each device on which their requests are seen."""
    # A container has mounts of its own; with the host's processes it sees the host's.
    every = mounts.mounts(proc, "1") or mounts.mounts(proc)
    found = [(mount.dev, where) for mount in every if (where := _VOLUME.fullmatch(mount.point))]
    found = found[:_MOST_VOLUMES]
    names = blockdev.numbers(sys) if found else {}
    # Once for each device, of which there may be many mounts.
    devices = {dev: _devices(names[dev], sys) for dev in {dev for dev, _ in found} & names.keys()}
    return sorted({Volume(device, where[2], where[1]) for dev, where in found for device in devices.get(dev, ())})


def _devices(name: str, sys: Path) -> set[str]:
    """A device, its disk, and the disks below a stack."""
    found = {name}
    with suppress(OSError, UsageError):
        found.update(extent.disk for extent in blockdev.requests_of(name, sys))
    return found


def _plain(name: object) -> str:
    found = _PLAIN.fullmatch(name) if isinstance(name, str) else None
    return found.group(1) if found else ""


def _json(path: Path) -> Any:
    fd, _ = open_to_read(path, is_regular, os.O_NOFOLLOW)
    with os.fdopen(fd, "rb") as file:
        return json.loads(file.read(_LARGEST))


def _names(folder: Path) -> list[str]:
    found = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            found.append(entry.name)
            if len(found) == _MOST:
                break
    return found
