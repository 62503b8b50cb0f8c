# SPDX-License-Identifier: Apache-2.0
"""The table of devices: Python fills it, BPF looks things up in it. Both sides have to agree on the places."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wptrace.engine import devices
from wptrace.errors import UsageError
from wptrace.kernel import blockdev, mounts
from wptrace.kernel.blockdev import EVERYTHING, Extent, kernel_dev

SOURCE = (Path(__file__).resolve().parents[3] / "bpf_src/lib/block.h").read_text()
DEVICES, PROBES, HASH = 256, 16, 0x9E3779B1
Table = list[dict[str, int]]


class Match(NamedTuple):
    slot: int
    stateful: int


def find_device(table: Table, dev: int, sector: int, any_sector: bool = False) -> Match | None:
    """find_device() of bpf_src/lib/block.h, line by line."""
    at = (dev * HASH & 0xFFFFFFFF) >> 24
    for probe in range(PROBES):
        entry = table[(at + probe) & (DEVICES - 1)] or dict.fromkeys(("dev", "slot", "stateful", "first", "end"), 0)
        if not entry["dev"]:
            break
        if entry["dev"] == dev and (any_sector or entry["first"] <= sector < entry["end"]):
            return Match(entry["slot"], entry["stateful"])
    return None


def test_the_source_still_says_what_is_tested_here() -> None:
    def constant(name: str) -> int:
        found = re.search(rf"#define {name} (\d+)", SOURCE)
        assert found
        return int(found.group(1))

    assert constant("DEVICES") == devices.DEVICES == DEVICES
    assert constant("DEVICE_PROBES") == devices.PROBES == PROBES
    assert constant("MINOR_BITS") == blockdev.MINOR_BITS
    assert constant("UNLISTED_SLOT") == devices.UNLISTED
    assert f"at = (dev * {HASH:#x}u) >> 24;" in SOURCE
    assert devices.HASH == HASH
    assert "devices[(at + probe) & (DEVICES - 1)]" in SOURCE
    assert "if (!entry->dev)\n\t\t\tbreak;" in SOURCE
    assert "entry->dev == dev && (any_sector || (sector >= entry->first && sector < entry->end))" in SOURCE


def place(dev: int) -> int:
    return (dev * HASH & 0xFFFFFFFF) >> 24


# Numbers that all begin at the same place or just before it, of disks as they are numbered in real life.
_ALL = [kernel_dev(major, minor) for major in (7, 8, 65, 253, 254, 259) for minor in range(0, 4096, 1)]
CROWD = [dev for dev in _ALL if place(dev) in (250, 251, 255, 0)]

numbers = st.one_of(
    st.sampled_from(CROWD),
    st.builds(kernel_dev, st.integers(1, 4095), st.integers(0, (1 << 20) - 1)),
)
cuts = st.lists(st.integers(1, 1 << 40), min_size=2, max_size=6, unique=True).map(sorted)


@st.composite
def extents(draw: st.DrawFn, most: int = 60) -> list[Extent]:
    """Whole disks and disks of which some partitions are traced."""
    found = []
    for dev in draw(st.lists(numbers, max_size=most, unique=True)):
        if draw(st.booleans()):
            found.append(Extent(f"{dev:x}", f"{dev:x}", dev, 0, EVERYTHING))
            continue
        edges = draw(cuts)
        for number, (first, end) in enumerate(zip(edges, edges[1:])):
            found.append(Extent(f"{dev:x}p{number}", f"{dev:x}", dev, first, end))
    return found


@given(wanted=extents(), data=st.data())
def test_every_device_is_found_where_bpf_looks_for_it(wanted: list[Extent], data: st.DataObject) -> None:
    stateful = data.draw(st.sets(st.sampled_from([one.disk for one in wanted]))) if wanted else set()
    try:
        table = devices.table(wanted, sorted(stateful))
    except UsageError:
        assert crowded(wanted)
        return
    assert len(table) == DEVICES
    assert sum(map(bool, table)) == len(wanted)
    for slot, one in enumerate(wanted, start=1):
        expected = Match(slot, one.disk in stateful)
        for sector in {one.first, one.end - 1, (one.first + one.end) // 2}:
            assert find_device(table, one.dev, sector) == expected
        found = find_device(table, one.dev, 0, any_sector=True)
        assert found is not None
        assert wanted[found.slot - 1].dev == one.dev
    listed = {one.dev: [other for other in wanted if other.dev == one.dev] for one in wanted}
    for dev, ranges in listed.items():
        for sector in {ranges[0].first - 1, ranges[-1].end}:
            if 0 <= sector < EVERYTHING:
                assert find_device(table, dev, sector) is None
    for dev in data.draw(st.lists(numbers, max_size=10)):
        if dev not in listed:
            assert find_device(table, dev, 0) is None
            assert find_device(table, dev, 0, any_sector=True) is None


def crowded(wanted: list[Extent]) -> bool:
    """Whether the devices, put in one after the other, fill all the places of one of them."""
    taken: set[int] = set()
    for one in wanted:
        free = [at for at in ((place(one.dev) + probe) % DEVICES for probe in range(PROBES)) if at not in taken]
        if not free:
            return True
        taken.add(free[0])
    return False


def test_sixteen_partitions_of_a_disk_have_room_and_no_more() -> None:
    parts = [Extent(f"sda{number}", "sda", kernel_dev(8, 0), number * 10, number * 10 + 10) for number in range(17)]
    table = devices.table(parts[:16], [])
    found = [find_device(table, kernel_dev(8, 0), number * 10 + 5) for number in range(17)]
    assert found == [*(Match(slot, 0) for slot in range(1, 17)), None]
    with pytest.raises(UsageError, match="no room left for sda16 among so many devices: of a disk, 16 part") as caught:
        devices.table(parts, [])
    assert caught.value.hint == "name fewer of them, or the whole disk: --dev sda"
    disks = [Extent(f"{dev:x}", f"{dev:x}", dev, 0, EVERYTHING) for dev in _ALL if place(dev) == 77][:17]
    with pytest.raises(UsageError, match=r"among so many devices$") as caught:
        devices.table(disks, [])
    assert caught.value.hint == "name those of interest with --dev"


def test_a_table_wraps_around_its_end() -> None:
    last = [dev for dev in _ALL if place(dev) == 255][:3]
    wanted = [Extent(f"{dev:x}", f"{dev:x}", dev, 0, EVERYTHING) for dev in last]
    table = devices.table(wanted, [])
    assert table[255]
    assert table[0]
    assert table[1]
    assert [find_device(table, dev, 7) for dev in last] == [Match(slot, 0) for slot in (1, 2, 3)]


def test_an_empty_table_knows_no_device() -> None:
    table = devices.table([], [])
    assert table == [{}] * DEVICES
    assert find_device(table, kernel_dev(8, 0), 0) is None


def test_too_many_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {f"sd{number}": Extent(f"sd{number}", f"sd{number}", number, 0, EVERYTHING) for number in range(1, 130)}
    monkeypatch.setattr(blockdev, "disks", lambda: list(found))
    monkeypatch.setattr(blockdev, "requests_of", lambda name: iter([found[name]]))
    with pytest.raises(UsageError, match=r"129 devices are more than wptrace can tell apart at once \(128\)"):
        devices.extents([])
    del found["sd1"]
    assert len(devices.extents([])) == 128


def test_doubles_are_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Extent("sda", "sda", kernel_dev(8, 0), 0, EVERYTHING)
    part = Extent("sda1", "sda", kernel_dev(8, 0), 2048, 4096)
    below = {"dm-0": [part], "sda": [disk], "sda1": [part]}
    monkeypatch.setattr(blockdev, "resolve", lambda text: text)
    monkeypatch.setattr(blockdev, "requests_of", lambda name: iter(below[name]))
    assert devices.extents(["dm-0", "sda1"]) == [part]
    assert devices.extents(["dm-0", "sda", "sda"]) == [disk]


def test_hidden_disks_are_found_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Extent("sda", "sda", kernel_dev(8, 0), 0, EVERYTHING)
    paths = [Extent(f"nvme1c{number}n1", f"nvme1c{number}n1", 0, 0, EVERYTHING, True) for number in range(33)]
    below = {"sda": [disk], "nvme1n1": paths[:2]}
    monkeypatch.setattr(blockdev, "resolve", lambda text: text)
    monkeypatch.setattr(blockdev, "disks", lambda: ["sda"])
    monkeypatch.setattr(blockdev, "heads", lambda: ["nvme1n1"])
    monkeypatch.setattr(blockdev, "requests_of", lambda name: iter(below[name]))
    assert devices.extents([]) == [disk]
    with pytest.raises(UsageError, match=r"^nvme1c0n1, nvme1c1n1 of an NVMe multipath"):
        devices.extents(["nvme1n1"])
    every = devices.extents([], hidden=True)
    assert every == [*paths[:2], disk]
    table = devices.hidden_table(every)
    assert table[:3] == [{"name": b"nvme1c0n1", "slot": 1}, {"name": b"nvme1c1n1", "slot": 2}, {}]
    assert len(table) == devices.HIDDEN
    assert [entry["slot"] for entry in devices.table(every, []) if entry] == [3]
    with pytest.raises(UsageError, match=r"33 paths of NVMe multipaths are more than wptrace can .* \(32\)"):
        devices.hidden_table(paths)


# --- Rows of files --------------------------------------------------------------------------------------------

PATH_SOURCE = "\n".join(
    (Path(__file__).resolve().parents[3] / "bpf_src/block" / name).read_text()
    for name in ("path/operation.h", "path/state.h")
)


def row_of_file(table: Table, dev: int) -> int | None:
    """row_of_file() of bpf_src/block/path/operation.h, line by line."""
    at = (dev * HASH & 0xFFFFFFFF) >> 22
    for probe in range(PROBES):
        entry = table[(at + probe) & (devices.FILE_DEVICES - 1)] or {"dev": 0, "slot": 0}
        if not entry["dev"]:
            break
        if entry["dev"] == dev:
            return entry["slot"]
    return None


def test_the_source_still_looks_for_files_as_is_tested_here() -> None:
    assert f"#define FILE_DEVICES {devices.FILE_DEVICES}\n" in PATH_SOURCE
    assert f"at = (dev * {HASH:#x}u) >> 22;" in PATH_SOURCE
    assert "file_devices[(at + probe) & (FILE_DEVICES - 1)]" in PATH_SOURCE
    assert "probe < DEVICE_PROBES" in PATH_SOURCE


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Extent]]:
    """Two disks, one with partitions, a stack on both, and a btrfs whose number is that of no device."""
    sda, sdb = kernel_dev(8, 0), kernel_dev(8, 16)
    below = {
        "sda": [Extent("sda", "sda", sda, 0, EVERYTHING)],
        "sda1": [Extent("sda1", "sda", sda, 2048, 4096)],
        "sda2": [Extent("sda2", "sda", sda, 4096, 8192)],
        "sdb": [Extent("sdb", "sdb", sdb, 0, EVERYTHING)],
    }
    below["dm-0"] = [*below["sda2"], *below["sdb"]]
    numbered = {sda: "sda", sda + 1: "sda1", sda + 2: "sda2", sdb: "sdb", kernel_dev(253, 0): "dm-0"}
    numbered[kernel_dev(251, 0)] = "zram0"

    def requests_of(name: str) -> Iterator[Extent]:
        if name not in below:
            raise UsageError("it has no queue")
        return iter(below[name])

    monkeypatch.setattr(blockdev, "requests_of", requests_of)
    monkeypatch.setattr(blockdev, "numbers", lambda: numbered)
    monkeypatch.setattr(mounts, "block_devices", lambda: {kernel_dev(0, 41): "sda1", kernel_dev(8, 1): "sda1"})
    return below


def test_a_file_is_shown_on_what_it_lies_on(machine: dict[str, list[Extent]]) -> None:
    sda, sdb, dm, btrfs = (kernel_dev(*number) for number in ((8, 0), (8, 16), (253, 0), (0, 41)))
    disks = devices.file_table([*machine["sda"], *machine["sdb"]])
    assert [row_of_file(disks, dev) for dev in (sda, sda + 1, sda + 2, sdb, dm, btrfs)] == [1, 1, 1, 2, 1, 1]
    assert row_of_file(disks, kernel_dev(251, 0)) is None
    parts = devices.file_table([*machine["sda1"], *machine["sdb"]])
    # The whole disk is more than the partition that is traced.
    assert [row_of_file(parts, dev) for dev in (sda, sda + 1, sda + 2, sdb, dm, btrfs)] == [None, 1, None, 2, 2, 1]
    assert not any(devices.file_table([]))


@given(found=st.lists(numbers, max_size=400, unique=True))
def test_every_file_system_is_found_where_bpf_looks_for_it(found: list[int]) -> None:
    disk = Extent("sda", "sda", kernel_dev(8, 0), 0, EVERYTHING)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blockdev, "requests_of", lambda name: iter([disk]))
        patch.setattr(blockdev, "numbers", lambda: dict.fromkeys(found, "sda"))
        patch.setattr(mounts, "block_devices", dict)
        table = devices.file_table([disk])
    assert len(table) == devices.FILE_DEVICES
    kept = [dev for dev in found if row_of_file(table, dev) == 1]
    assert len(kept) == sum(map(bool, table))
    # Only one whose places are all taken is left out.
    for dev in set(found) - set(kept):
        at = (dev * HASH & 0xFFFFFFFF) >> 22
        assert all(table[(at + probe) % devices.FILE_DEVICES] for probe in range(PROBES))
