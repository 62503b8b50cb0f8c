# SPDX-License-Identifier: Apache-2.0
"""Control groups: what the user calls one, and how the kernel's objects know it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from wptrace.errors import AbsentError, UsageError
from wptrace.kernel import mounts, procfs
from wptrace.kernel.mounts import PROC, Mount, Place

# PROC_CGROUP_INIT_INO of include/linux/proc_ns.h
_FIRST_NAMESPACE = "cgroup:[4026531835]"
_HINT = "systemd-cgls and /proc/PID/cgroup show the cgroups"


class Cgroup(NamedTuple):
    """A cgroup of the v2 hierarchy, or of the v1 hierarchy that has `controller`."""

    path: str
    id: int
    """kernfs_node.id, which is the inode number of its directory."""
    level: int | None
    """0 is the root; None in a cgroup namespace, which hides how many levels are above it."""
    controller: str | None

    @property
    def is_gone(self) -> bool:
        """Whether it was removed. One with its path may be there by now, as after a restart of a service."""
        try:
            return Path(self.path).stat().st_ino != self.id
        except FileNotFoundError:
            return True
        except OSError:
            return False


def resolve(text: str, proc: Path = PROC) -> Cgroup:
    """The cgroup of a path below a mount of cgroups, below the root of v2, or of CONTROLLER:PATH (v1)."""
    known = [mount for mount in mounts.mounts(proc) if mount.kind in ("cgroup", "cgroup2")]
    for candidate in _candidates(text, known):
        try:
            place = mounts.find(candidate, proc)
        except UsageError:
            continue
        if stat.S_ISDIR(place.mode) and place.mount in known:
            return _cgroup(text, place, place.mount, proc)
    if not known:
        raise UsageError(f"there is no cgroup {text}: no hierarchy of cgroups is mounted")
    raise AbsentError(f"there is no cgroup {text or repr(text)}", hint=_HINT)


def _candidates(text: str, known: list[Mount]) -> Iterator[str]:
    """Generate the paths that may be meant. A name may have a colon, so CONTROLLER:PATH comes last."""
    if not text:
        return
    if text.startswith("/"):
        yield text
    for mount in known:
        if mount.kind == "cgroup2":
            yield f"{mount.point}/{text}"
    controller, colon, path = text.partition(":")
    for mount in known:
        if colon and mount.kind == "cgroup" and controller in mount.options:
            yield f"{mount.point}/{path}"


def _cgroup(text: str, place: Place, mount: Mount, proc: Path) -> Cgroup:
    controller = None
    if mount.kind == "cgroup":
        controller = next((name for name in mount.options if name in _controllers(proc)), None)
        if controller is None:
            raise UsageError(
                f"{text} is in a hierarchy without a controller, by which a task's cgroup cannot be found",
                hint="name a cgroup of v2, or of a controller such as memory",
            )
    below = os.path.relpath(place.path, mount.point)
    level = len([name for name in f"{mount.root}/{below}".split("/") if name not in ("", ".")])
    return Cgroup(place.path, place.inode, level if _sees_the_root(proc) else None, controller)


def _controllers(proc: Path) -> set[str]:
    lines = procfs.lines(proc / "cgroups")
    return {os.fsdecode(line.split()[0]) for line in lines if line and not line.startswith(b"#")}


def _sees_the_root(proc: Path) -> bool:
    try:
        return str((proc / "self" / "ns" / "cgroup").readlink()) == _FIRST_NAMESPACE
    except OSError:  # a kernel without these namespaces
        return True
