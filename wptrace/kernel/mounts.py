# SPDX-License-Identifier: Apache-2.0
"""Mounts: where a path lies as the kernel's objects know it, and which block device is below a file system."""

from __future__ import annotations

import os
import re
import select
import stat
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from wptrace.errors import UsageError
from wptrace.kernel import blockdev, procfs

PROC = Path("/proc")
OVERLAY, BTRFS = "overlay", "btrfs"
# File systems whose files another machine, the host or a process has.
_REMOTE = {"nfs", "nfs4", "cifs", "smb3", "ceph", "9p", "afs", "virtiofs", "fuse"}
_LONGEST_NAME = 128


class Mount(NamedTuple):
    """A line of mountinfo. `dev` is the superblock's s_dev, which stat(2) does not show for btrfs."""

    id: int
    dev: int
    root: str
    """The directory of the file system that is mounted."""
    point: str
    kind: str
    source: str
    options: tuple[str, ...]
    """The options of the superblock."""


class Place(NamedTuple):
    """A file or directory: `dev` and `inode` are the superblock's s_dev and the inode's i_ino."""

    path: str
    dev: int
    inode: int
    mode: int
    mount: Mount | None
    """None where this process does not see it, as for /proc/PID/root of a container."""
    subvolume: int = 0
    """The device number that stat(2) shows for a subvolume of btrfs: inodes of different ones have the same numbers."""


def mounts(proc: Path = PROC, process: str = "self") -> list[Mount]:
    """Return the mounts that a process sees, in the order in which they were mounted."""
    try:
        lines = procfs.lines(proc / process / "mountinfo")
    except OSError:  # no /proc
        return []
    return [_mount(os.fsdecode(line)) for line in lines if line]


class Remote(NamedTuple):
    """A mounted file system whose server is elsewhere. Whoever mounted it chose its name."""

    name: str
    dev: int
    kind: str


def remote(path: str, proc: Path = PROC) -> Remote | None:
    """The one that a path lies on, if it is one. It is not asked, as its server may have stopped; so links are not
    followed."""
    at = os.path.abspath(path)  # noqa: PTH100 - as above
    every = mounts(proc)
    mount = _nearest(at, every)
    if mount is None or mount.kind.partition(".")[0] not in _REMOTE:
        return None
    alike = {one.dev for one in every if one.source == mount.source}
    name = mount.point if mount.source in ("", "none") or len(alike) > 1 else mount.source
    # A disk has no name like this.
    name = name if ":/" in name else f"{mount.kind}:{name}"
    name = name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME // 4]}...{name[-_LONGEST_NAME // 2 :]}"
    shown = "".join(one if one.isprintable() else "?" for one in name)
    return Remote(shown, mount.dev, mount.kind)


def registered(proc: Path = PROC) -> set[str]:
    """The kinds of file systems that could be mounted now, without loading a module."""
    try:
        lines = procfs.lines(proc / "filesystems")
    except OSError:
        return set()
    return {os.fsdecode(line.split(b"\t")[-1]) for line in lines}


class Changes:
    """A watch on mounts; true after a change, which the kernel reports once, without any reading."""

    def __init__(self, proc: Path = PROC) -> None:
        self._poll = select.poll()
        try:
            self._fd = os.open(proc / "self" / "mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # no /proc
            self._fd = -1
            return
        self._poll.register(self._fd, select.POLLPRI)

    def __bool__(self) -> bool:
        return bool(self._poll.poll(0))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
        self._poll = select.poll()

    def __del__(self) -> None:
        # A flow that is never started, as one of a configuration that is read again, is not closed.
        self.close()


def _mount(line: str) -> Mount:
    # The source may be empty, so the blanks count. Optional fields end with a dash.
    fields = line.split(" ")
    end = fields.index("-", 6)
    major, minor = (int(part) for part in fields[2].split(":"))
    root, point, source = (_unescaped(text) for text in (fields[3], fields[4], fields[end + 2]))
    options = tuple(fields[end + 3].split(","))
    return Mount(int(fields[0]), blockdev.kernel_dev(major, minor), root, point, fields[end + 1], source, options)


def _unescaped(text: str) -> str:
    """Blanks, tabs, line feeds and backslashes stand there as \\040, \\011, \\012 and \\134."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), text)


def find(path: str, proc: Path = PROC) -> Place:
    """Find the place of a path, following links."""
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"{path or repr(path)} cannot be found: {os.strerror(error.errno or 0)}") from None
    try:
        found = os.fstat(fd)
        real = str(Path(f"/proc/self/fd/{fd}").readlink())
        info = proc / "self" / "fdinfo" / str(fd)
        mount_id, inode = procfs.field(info, "mnt_id"), procfs.field(info, "ino")
    finally:
        os.close(fd)
    mount = next((mount for mount in mounts(proc) if str(mount.id) == mount_id), None)
    shown = blockdev.kernel_dev(os.major(found.st_dev), os.minor(found.st_dev))
    dev = mount.dev if mount else shown
    # Since 5.14 (3845f256a8b5) the kernel shows i_ino; an overlay over several file systems has another st_ino.
    subvolume = shown if mount is not None and mount.kind == BTRFS else 0
    return Place(real, dev, int(inode or found.st_ino), found.st_mode, mount, subvolume)


def file(path: str, proc: Path = PROC) -> Place:
    """Anything but a directory."""
    found = find(path, proc)
    if stat.S_ISDIR(found.mode):
        raise UsageError(f"{path} is a directory", hint=f"all files below it: --dir {path}")
    return found


def directory(path: str, proc: Path = PROC) -> Place:
    found = find(path, proc)
    if not stat.S_ISDIR(found.mode):
        raise UsageError(f"{path} is not a directory", hint=f"only this file: --file {path}")
    return found


_LAYERS = ("lowerdir+", "datadir+", "upperdir")


def _mount_below(overlay: Mount, earlier: list[Mount]) -> Mount | None:
    """Return the mount of an overlay's layers, as far as this process sees it."""
    layers = dict(option.partition("=")[::2] for option in reversed(overlay.options))
    layer = layers.get("upperdir") or layers.get("lowerdir", layers.get("lowerdir+", "")).split(":")[0]
    path = _unescaped(layer)
    return _nearest(path, earlier)


def _nearest(path: str, every: list[Mount]) -> Mount | None:
    """The one that a path lies on, by its name alone."""
    above = [one for one in every if f"{path}/".startswith(f"{one.point.rstrip('/')}/")]
    return max(reversed(above), key=lambda one: len(one.point), default=None)


def overlays_of(path: str, proc: Path = PROC) -> list[str]:
    """Return where overlays show what lies at a path, in the order in which they were mounted."""
    real = os.path.realpath(path)
    found = []
    for mount in mounts(proc):
        if mount.kind != "overlay":
            continue
        for option in mount.options:
            name, _, value = option.partition("=")
            text = _unescaped(value)
            layers = re.split(r"(?<!\\):", text) if name == "lowerdir" else [text] if name in _LAYERS else []
            folders = [os.path.realpath(layer.replace("\\:", ":")) for layer in layers if layer]
            if any(f"{real}/".startswith(f"{folder}/") for folder in folders):
                found.append(mount.point)
                break
    return found


def block_devices(proc: Path = PROC, sys: Path = blockdev.SYS) -> dict[int, str]:
    """The sysfs name of the block device by the s_dev of each mounted file system that lies on one.

    Most have the number of their device. One that may lie on several (btrfs) has a number of no device, and names one
    of them as its source. An overlay lies on directories of others: what it can be written to, or the first one.
    """
    found: dict[int, str] = {}
    every = mounts(proc)
    for place, mount in enumerate(every):
        if mount.kind == OVERLAY:
            below = _mount_below(mount, every[:place])
            if below is not None and below.dev in found:
                found[mount.dev] = found[below.dev]
            continue
        major, minor = mount.dev >> blockdev.MINOR_BITS, mount.dev & (1 << blockdev.MINOR_BITS) - 1
        if major == 0 and not mount.source.startswith("/"):
            continue
        # The source of what is no btrfs may be any path, and a disk may be gone.
        with suppress(UsageError):
            found[mount.dev] = blockdev.resolve(f"{major}:{minor}" if major else mount.source, sys)
    return found
