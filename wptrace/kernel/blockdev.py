# SPDX-License-Identifier: Apache-2.0
"""Block devices as sysfs shows them: disks, partitions, stacks, and what the kernel stamps on their requests."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from wptrace.errors import AbsentError, UsageError

# The kernel's own dev_t (MKDEV) has 20 bits of minor; what stat(2) returns is packed differently.
MINOR_BITS = 20
EVERYTHING = (1 << 64) - 1

SYS = Path("/sys")
DEV = Path("/dev")


class Extent(NamedTuple):
    """A device as a range of sectors of a disk: a whole disk, or a partition of it."""

    name: str
    disk: str
    dev: int
    first: int
    end: int
    hidden: bool = False
    """A path of an NVMe multipath: its number is 0 here, as the kernel does not show it."""

    def covers(self, other: Extent) -> bool:
        return self.disk == other.disk and self.first <= other.first and other.end <= self.end


def _missing(name: str, why: str = "") -> AbsentError:
    what = f"there is no block device {name or repr(name)}{why}"
    return AbsentError(what, hint="lsblk lists the devices of this machine")


def kernel_dev(major: int, minor: int) -> int:
    return major << MINOR_BITS | minor


def maj_min(dev: int) -> str:
    return f"{dev >> MINOR_BITS}:{dev & (1 << MINOR_BITS) - 1}"


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def disks(sys: Path = SYS) -> list[str]:
    """The names of all disks that have a queue of requests and a medium, in natural order.

    A stacked device (dm, md) or without a queue (zram, brd) sees bios only.
    """
    try:
        found = list((sys / "block").iterdir())
    except OSError:  # sysfs is not mounted
        return []
    # The paths below a multipath NVMe namespace are hidden: they have a queue, but no number.
    names = [path.name for path in found if (path / "mq").is_dir() and (path / "dev").exists()]
    return sorted((name for name in names if _read(sys / "block" / name / "size") != "0"), key=_natural)


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part or 0), text) for text, part in re.findall(r"(\D+)(\d*)", name)]


def extent(name: str, sys: Path = SYS) -> Extent:
    """The disk or partition that sysfs has under `name`."""
    folder = (sys / "class" / "block" / name).resolve()
    if not (folder / "partition").exists():
        number = _read(folder / "dev")
        if not number and _is_hidden(folder):
            return Extent(name, name, 0, 0, EVERYTHING, True)
        if not number:
            raise _missing(name)
        major, minor = (int(part) for part in number.split(":"))
        return Extent(name, name, kernel_dev(major, minor), 0, EVERYTHING)
    disk = extent(folder.parent.name, sys)
    first, length = int(_read(folder / "start") or 0), int(_read(folder / "size") or 0)
    return Extent(name, disk.name, disk.dev, first, first + length)


def _is_hidden(folder: Path) -> bool:
    return _read(folder / "hidden") == "1"


def _whole(name: str, sys: Path) -> Path:
    """A device, or that of which it is a partition."""
    folder = (sys / "class" / "block" / name).resolve()
    return folder.parent if (folder / "partition").exists() else folder


def _below(whole: Path, sys: Path) -> list[str]:
    """Return the devices below a device."""
    slaves = [path.name for path in (whole / "slaves").glob("*")]
    head = re.fullmatch(r"(nvme\d+)(n\d+)", whole.name)
    paths = (sys / "block").glob(f"{head[1]}c*{head[2]}") if head else ()
    return sorted([*slaves, *(path.name for path in paths if _is_hidden(path))])


def heads(sys: Path = SYS) -> list[str]:
    """The heads of NVMe multipaths, in natural order. The paths below them are hidden."""
    found = [path.name for path in (sys / "block").glob("nvme*") if not (path / "mq").is_dir()]
    return sorted((name for name in found if _below(sys / "block" / name, sys)), key=_natural)


def resolve(text: str, sys: Path = SYS) -> str:
    """The sysfs name of what the user calls `/dev/x` (any path to a device node), `x` or `MAJ:MIN`."""
    if re.fullmatch(r"\d+:\d+", text):
        folder = sys / "dev" / "block" / text
        if not folder.exists():
            raise _missing(text)
        return folder.resolve().name
    if "/" not in text:
        # The folder itself is not enough: "" and ".." are folders as well.
        if not (sys / "class" / "block" / text / "dev").exists():
            raise _missing(text)
        return text
    try:
        found = os.stat(text)  # noqa: PTH116 - follows links, as /dev/mapper and /dev/disk are full of them
    except FileNotFoundError as error:
        # A service may have links of /dev, and not the devices.
        named = Path(os.path.realpath(text))
        if named.parent == DEV and (sys / "class" / "block" / named.name / "dev").exists():
            return named.name
        raise _missing(text, f": {os.strerror(error.errno or 0)}") from None
    except OSError as error:
        raise _missing(text, f": {os.strerror(error.errno or 0)}") from None
    if not stat.S_ISBLK(found.st_mode):
        raise UsageError(f"{text} is not a block device", hint=_instead(text, found.st_mode))
    return resolve(f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}", sys)


def _instead(text: str, mode: int) -> str:
    if stat.S_ISDIR(mode):
        return f"wptrace io --dir {text} traces the files below it"
    return f"wptrace io --file {text} traces it" if stat.S_ISREG(mode) else "name a disk or partition, such as /dev/sda"


def requests_of(name: str, sys: Path = SYS) -> Iterator[Extent]:
    """Generate the devices on which the requests of a device are seen: itself, or those below a stacked device."""
    # A partition of a stack lies on the same devices; which of their sectors are its own, the stack knows.
    whole = _whole(name, sys)
    below = _below(whole, sys)
    if not below:
        found = extent(name, sys)
        if not (whole / "mq").is_dir():
            raise UsageError(
                f"{name} has no queue of requests: like zram it works on bios",
                hint="trace the disks below it; lsblk lists the devices of this machine",
            )
        yield found
    for lower in below:
        yield from requests_of(lower, sys)


def layers(sys: Path = SYS) -> list[str]:
    """The names of all stacked devices, in natural order."""
    try:
        found = [path.name for path in (sys / "block").iterdir() if _below(path, sys)]
    except OSError:
        return []
    # A multipath of dm has a queue, and hands on requests.
    return sorted((name for name in found if not (sys / "block" / name / "mq").is_dir()), key=_natural)


def layers_of(name: str, sys: Path = SYS) -> Iterator[str]:
    """The stacked devices of which one is, from itself downwards."""
    whole = _whole(name, sys)
    below = _below(whole, sys)
    if below and not (whole / "mq").is_dir():
        yield whole.name
    for lower in below:
        yield from layers_of(lower, sys)


def merged(extents: list[Extent]) -> list[Extent]:
    """Without those that another one covers."""
    kept: list[Extent] = []
    for one in sorted(set(extents), key=lambda one: one.first - one.end):
        if not any(other.covers(one) for other in kept):
            kept.append(one)
    return sorted(kept, key=lambda one: (one.dev, one.first, one.name))


class Changes:
    """A watch on devices and partitions that come, go or get another number; true after a change.

    The look after a change reports one again, because a disk has its name before it has its queue.
    """

    def __init__(self, sys: Path = SYS, proc: Path = Path("/proc")) -> None:
        self._sys, self._proc = sys, proc
        self._before = self._now()
        self._again = False

    def __bool__(self) -> bool:
        now, again = self._now(), self._again
        self._again = now != self._before
        self._before = now
        return self._again or again

    def _now(self) -> tuple[set[str], str]:
        """Hidden disks have no number, and those without a medium are in the folder alone."""
        try:
            names = {path.name for path in (self._sys / "block").iterdir()}
        except OSError:
            names = set()
        return names, _read(self._proc / "partitions") or ""


def is_stamped(disk: str, sys: Path = SYS) -> bool:
    """Whether the kernel stamps the disk's requests both when they are made and when they are issued.

    The first needs iostats. The second depends on somebody collecting statistics of the queue (blk_mq_start_request
    tests QUEUE_FLAG_STATS); the one such user that sysfs shows is writeback throttling.
    """
    queue = sys / "class" / "block" / disk / "queue"
    return _read(queue / "iostats") == "1" and int(_read(queue / "wbt_lat_usec") or 0) > 0


def swaps_without_requests(proc: Path = Path("/proc"), sys: Path = SYS) -> list[str]:
    """Return memory devices that the kernel swaps to (zram, brd), whose pages come back without a request."""
    found = []
    for line in (_read(proc / "swaps") or "").split("\n")[1:]:
        folder = sys / "block" / line.split()[0].rpartition("/")[2]
        # A stacked device makes requests of those below it.
        if folder.is_dir() and not (folder / "mq").is_dir() and not any(folder.glob("slaves/*")):
            found.append(folder.name)
    return sorted(found)


def in_flight(name: str, sys: Path = SYS) -> int:
    """Return how many requests the driver has now, by the kernel's count."""
    counts = _read(sys / "class" / "block" / name / "inflight")
    return sum(int(count) for count in counts.split()) if counts else 0


# Documentation/block/stat.rst
_IO_TICKS = 9
_READS, _WRITES, _DISCARDS = 0, 4, 11


def busy_ms(name: str, sys: Path = SYS) -> int | None:
    """Return how long the device has had requests, in ticks; None if it is gone or keeps no statistics."""
    fields = _statistics(name, sys)
    return int(fields[_IO_TICKS]) if len(fields) > _IO_TICKS else None


def completed(name: str, sys: Path = SYS) -> int | None:
    """Return how many reads, writes and discards it has completed; None if it is gone or keeps no statistics."""
    fields = _statistics(name, sys)
    return sum(int(fields[at]) for at in (_READS, _WRITES, _DISCARDS)) if len(fields) > _DISCARDS else None


def _statistics(name: str, sys: Path) -> list[str]:
    if _read(_whole(name, sys) / "queue" / "iostats") != "1":
        return []
    return (_read(sys / "class" / "block" / name / "stat") or "").split()


def numbers(sys: Path = SYS) -> dict[int, str]:
    """The sysfs name of every disk, partition and stack by its number."""
    found = {}
    for path in (sys / "class" / "block").glob("*"):
        major, _, minor = (_read(path / "dev") or "").partition(":")
        if minor:
            found[kernel_dev(int(major), int(minor))] = path.name
    return found
