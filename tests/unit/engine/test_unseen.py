# SPDX-License-Identifier: Apache-2.0
"""Requests that disks have counted and no program saw, from files like sysfs's."""

from __future__ import annotations

from pathlib import Path

import pytest

from wptrace.engine.unseen import Unseen
from wptrace.flows.io.kinds import OPERATION, REQUEST
from wptrace.kernel.blockdev import Extent
from wptrace.model.kind import Group


def disk(sys: Path, name: str, **has: str) -> Extent:
    folder = sys / "block" / name
    for part in ("queue", "mq", *has):
        (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / "queue" / "iostats").write_text("1\n")
    (sys / "class" / "block").mkdir(parents=True, exist_ok=True)
    (sys / "class" / "block" / name).symlink_to(folder)
    done(sys, name, 0)
    return Extent(name, name, 8, 0, 1 << 40)


def done(sys: Path, name: str, reads: int, writes: int = 0, discards: int = 0) -> None:
    counts = [0] * 17
    counts[0], counts[4], counts[11] = 100 + reads, 50 + writes, discards
    (sys / "block" / name / "stat").write_text(" ".join(map(str, counts)) + "\n")


def row(op: str, finished: int, asked: int = 0, dev: str = "vda") -> tuple[Group, dict[str, int]]:
    return REQUEST.group(dev, op), {"finished": finished, "events.asked": asked}


def test_what_the_disk_did_beyond_what_began(tmp_path: Path) -> None:
    unseen = Unseen([disk(tmp_path, "vda")], tmp_path)
    done(tmp_path, "vda", 10, 5, 1)
    unseen.read_disks()
    unseen.note([row("read", 9), row("write", 4), row("discard", 1)], 14)
    assert unseen.count == 2
    # The count never shrinks, even if requests under way hide some.
    unseen.note([], 30)
    assert unseen.count == 2


@pytest.mark.parametrize(
    ("rows", "seen"),
    [
        # Flushes that began do not count; bios that ask for one do.
        ([row("write", 4), row("flush", 3, 2)], 7),
        # Devices that are not compared do not count either.
        ([row("read", 6), row("read", 20, dev="vdb")], 26),
        ([(OPERATION.group("vda", "read"), {"finished": 6})], 6),
    ],
)
def test_what_the_disk_counts_otherwise(tmp_path: Path, rows: list[tuple[Group, dict[str, int]]], seen: int) -> None:
    unseen = Unseen([disk(tmp_path, "vda")], tmp_path)
    done(tmp_path, "vda", 6)
    unseen.read_disks()
    unseen.note(rows, seen)
    assert unseen.count == 0
    unseen.note(rows, seen - 1)
    assert unseen.count == 1


def test_devices_whose_counts_tell_nothing(tmp_path: Path) -> None:
    """A multipath has no requests of its own, a stack counts bios, and a disk without statistics counts nothing."""
    names = [disk(tmp_path, "dm-0", dm=""), disk(tmp_path, "md0"), disk(tmp_path, "sda"), disk(tmp_path, "sdb")]
    (tmp_path / "block" / "md0" / "mq").rmdir()
    (tmp_path / "block" / "sda" / "queue" / "iostats").write_text("0\n")
    unseen = Unseen([*names[:3], names[3]._replace(hidden=True)], tmp_path)
    for one in names:
        done(tmp_path, one.name, 7)
    unseen.read_disks()
    unseen.note([], 0)
    assert unseen.count == 0


@pytest.mark.parametrize("reads", [None, -3])
def test_a_disk_that_goes_is_compared_no_more(tmp_path: Path, reads: int | None) -> None:
    unseen = Unseen([disk(tmp_path, "vda"), disk(tmp_path, "vdb")], tmp_path)
    done(tmp_path, "vda", 9)
    done(tmp_path, "vdb", 2)
    unseen.read_disks()
    if reads is None:
        (tmp_path / "block" / "vda" / "stat").unlink()
    else:
        done(tmp_path, "vda", reads)
    unseen.read_disks()
    unseen.note([], 0)
    assert unseen.count == 2


def test_a_disk_that_comes_is_compared_once_it_has_nothing_in_flight(tmp_path: Path) -> None:
    """Requests that began before it had a row of its own are counted in another row."""
    first, late = disk(tmp_path, "vda"), disk(tmp_path, "vdb")
    unseen = Unseen([first], tmp_path)
    in_flight = tmp_path / "block" / "vdb" / "inflight"
    in_flight.write_text("1 0\n")
    unseen.compare([first, late])
    done(tmp_path, "vdb", 5)
    unseen.read_disks()
    unseen.note([row("read", 3, dev="vdb"), row("read", 2, dev="other")], 5)
    assert unseen.count == 0
    in_flight.write_text("0 0\n")
    unseen.read_disks()
    done(tmp_path, "vdb", 5 + 4)
    unseen.read_disks()
    # Among four more requests, one began unseen.
    unseen.note([row("read", 3 + 3, dev="vdb"), row("read", 2, dev="other")], 8)
    assert unseen.count == 1


def test_a_disk_that_nobody_follows_any_more_is_not_compared(tmp_path: Path) -> None:
    first, second = disk(tmp_path, "vda"), disk(tmp_path, "vdb")
    unseen = Unseen([first, second], tmp_path)
    unseen.compare([first])
    done(tmp_path, "vdb", 50)
    unseen.read_disks()
    unseen.note([], 0)
    assert unseen.count == 0
