# SPDX-License-Identifier: Apache-2.0
"""The table of devices, which Python fills and BPF reads. Both have to agree on the places."""

from __future__ import annotations

import stat
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.kernel.sysfs import Sysfs
from wptrace.bpf.object import BpfObject
from wptrace.engine import devices
from wptrace.errors import UsageError
from wptrace.kernel import blockdev, memory, mounts
from wptrace.kernel.blockdev import EVERYTHING, Extent, kernel_dev

SOURCE = (Path(__file__).resolve().parents[3] / "bpf_src/lib/block.h").read_text()
DEVICES, FILES, PROBES, HASH = 256, 1024, 16, 0x9E3779B1
Table = list[dict[str, int]]


class Match(NamedTuple):
    slot: int
    stateful: int


def entries_of(table: Table, dev: int) -> Iterator[dict[str, int]]:
    """Generate the entries of a number in the order in which BPF finds them, as device_place() and its callers do."""
    at = (dev * HASH & 0xFFFFFFFF) >> 32 - (len(table) - 1).bit_length()
    for probe in range(PROBES):
        entry = table[(at + probe) & (len(table) - 1)]
        if not entry or not entry["dev"]:
            break
        if entry["dev"] == dev:
            yield entry


def find_device(table: Table, dev: int, sector: int, any_sector: bool = False) -> Match | None:
    """find_device() of bpf_src/lib/block.h."""
    for entry in entries_of(table, dev):
        if any_sector or entry["first"] <= sector < entry["end"]:
            return Match(entry["slot"], entry["stateful"])
    return None


def slot_of(table: Table, dev: int) -> int | None:
    """row_of_file() of bpf_src/block/path/operation.h, and layer_of() of layers.h."""
    return next((entry["slot"] for entry in entries_of(table, dev)), None)


def test_the_source_still_says_what_is_tested_here(obj: BpfObject) -> None:
    assert (obj.constants["DEVICE_HASH"], obj.constants["DEVICE_PROBES"]) == (HASH, PROBES)
    assert (obj.length("devices"), obj.length("file_devices")) == (DEVICES, FILES)
    assert f"#define MINOR_BITS {blockdev.MINOR_BITS} " in SOURCE
    assert f"#define UNLISTED_SLOT {devices.UNLISTED}\n" in SOURCE
    assert "return dev * DEVICE_HASH >> (32 - __builtin_ctz(places));" in SOURCE
    assert "at = device_place(dev, DEVICES);" in SOURCE
    assert "devices[(at + probe) & (DEVICES - 1)]" in SOURCE
    assert "if (!entry->dev)\n\t\t\tbreak;" in SOURCE
    assert "entry->dev == dev && (any_sector ? dev != 0 : sector >= entry->first && sector < entry->end)" in SOURCE


@pytest.mark.parametrize(
    ("number", "fits"),
    [
        (kernel_dev(8, 1), {"sda", "sda1", "dm-0"}),
        (kernel_dev(8, 2), {"sda", "sda2"}),
        (kernel_dev(8, 16), {"sdb", "dm-0"}),
        (kernel_dev(253, 0), {"sda", "sda1", "sdb", "dm-0"}),
        # btrfs, and a disk that is gone.
        (kernel_dev(0, 35), {"sda", "sda1", "sda2", "sdb", "dm-0"}),
        (kernel_dev(8, 99), {"sda", "sda1", "sda2", "sdb", "dm-0"}),
    ],
)
def test_a_file_lies_on_the_devices_that_are_traced(tmp_path: Path, number: int, fits: set[str]) -> None:
    sysfs = Sysfs(tmp_path)
    sysfs.disk("sda", "8:0", size=100_000)
    sysfs.partition("sda1", "sda", "8:1", 2048, 4096)
    sysfs.partition("sda2", "sda", "8:2", 6144, 4096)
    sysfs.disk("sdb", "8:16")
    sysfs.disk("dm-0", "253:0", queue=False, slaves=("sda1", "sdb"))
    file = mounts.Place("/srv/file", number, 7, stat.S_IFREG, None)
    for name in ("sda", "sda1", "sda2", "sdb", "dm-0"):
        wanted = list(blockdev.requests_of(name, sysfs.root))
        if name in fits:
            devices.check_file(file, wanted, sysfs.root)
            continue
        with pytest.raises(UsageError, match=r"^/srv/file lies on (sda1|sda2|sdb|dm-0), which is not one of the"):
            devices.check_file(file, wanted, sysfs.root)


def place(dev: int) -> int:
    return (dev * HASH & 0xFFFFFFFF) >> 24


# Device numbers with the same place or the one before, of disks as they are usually numbered.
_ALL = [kernel_dev(major, minor) for major in (7, 8, 65, 253, 254, 259) for minor in range(0, 4096, 1)]
CROWD = [dev for dev in _ALL if place(dev) in (250, 251, 255, 0)]

numbers = st.one_of(
    st.sampled_from(CROWD),
    st.builds(kernel_dev, st.integers(1, 4095), st.integers(0, (1 << 20) - 1)),
)
cuts = st.lists(st.integers(1, 1 << 40), min_size=2, max_size=6, unique=True).map(sorted)


@st.composite
def extents(draw: st.DrawFn, most: int = 60) -> list[Extent]:
    """Draw whole disks, and disks of which some partitions are traced."""
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
def test_every_device_is_found_where_bpf_looks_for_it(
    obj: BpfObject, wanted: list[Extent], data: st.DataObject
) -> None:
    stateful = data.draw(st.sets(st.sampled_from([one.disk for one in wanted]))) if wanted else set()
    try:
        table = devices.table(obj, wanted, devices.names(wanted), sorted(stateful))
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
    """Tell whether the devices, added one after the other, fill all places of one of them."""
    taken: set[int] = set()
    for one in wanted:
        free = [at for at in ((place(one.dev) + probe) % DEVICES for probe in range(PROBES)) if at not in taken]
        if not free:
            return True
        taken.add(free[0])
    return False


def test_sixteen_partitions_of_a_disk_have_room_and_no_more(obj: BpfObject) -> None:
    parts = [Extent(f"sda{number}", "sda", kernel_dev(8, 0), number * 10, number * 10 + 10) for number in range(17)]
    table = devices.table(obj, parts[:16], devices.names(parts[:16]))
    found = [find_device(table, kernel_dev(8, 0), number * 10 + 5) for number in range(17)]
    assert found == [*(Match(slot, 0) for slot in range(1, 17)), None]
    with pytest.raises(UsageError, match="no room left for sda16 among so many devices: at most 16 part") as caught:
        devices.table(obj, parts, devices.names(parts))
    assert caught.value.hint == "name fewer of them, or the whole disk: --dev sda"
    disks = [Extent(f"{dev:x}", f"{dev:x}", dev, 0, EVERYTHING) for dev in _ALL if place(dev) == 77][:17]
    with pytest.raises(UsageError, match=r"among so many devices$") as caught:
        devices.table(obj, disks, devices.names(disks))
    assert caught.value.hint == "name those of interest with --dev"


def test_a_table_wraps_around_its_end(obj: BpfObject) -> None:
    last = [dev for dev in _ALL if place(dev) == 255][:3]
    wanted = [Extent(f"{dev:x}", f"{dev:x}", dev, 0, EVERYTHING) for dev in last]
    table = devices.table(obj, wanted, devices.names(wanted))
    assert table[255]
    assert table[0]
    assert table[1]
    assert [find_device(table, dev, 7) for dev in last] == [Match(slot, 0) for slot in (1, 2, 3)]


def test_an_empty_table_knows_no_device(obj: BpfObject) -> None:
    table = devices.table(obj, [], devices.names([]))
    assert table == [{}] * DEVICES
    assert find_device(table, kernel_dev(8, 0), 0) is None


def test_too_many_devices_are_refused(obj: BpfObject) -> None:
    found = [Extent(f"sd{number}", f"sd{number}", number, 0, EVERYTHING) for number in range(1, 130)]
    with pytest.raises(UsageError, match=r"129 devices are more than wptrace can follow at once \(128\)"):
        devices.table(obj, found, devices.names(found))
    assert sum(map(bool, devices.table(obj, found[1:], devices.names(found[1:])))) == 128


def test_doubles_are_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Extent("sda", "sda", kernel_dev(8, 0), 0, EVERYTHING)
    part = Extent("sda1", "sda", kernel_dev(8, 0), 2048, 4096)
    below = {"dm-0": [part], "sda": [disk], "sda1": [part]}
    monkeypatch.setattr(blockdev, "resolve", lambda text: text)
    monkeypatch.setattr(blockdev, "requests_of", lambda name: iter(below[name]))
    assert devices.extents(["dm-0", "sda1"]) == [part]
    assert devices.extents(["dm-0", "sda", "sda"]) == [disk]


def test_hidden_disks_are_found_by_their_names(obj: BpfObject, monkeypatch: pytest.MonkeyPatch) -> None:
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
    table = devices.hidden_table(obj, every, devices.names(every))
    assert table[:3] == [{"name": b"nvme1c0n1", "slot": 1}, {"name": b"nvme1c1n1", "slot": 2}, {}]
    assert len(table) == 32
    assert [entry["slot"] for entry in devices.table(obj, every, devices.names(every)) if entry] == [3]
    with pytest.raises(UsageError, match=r"33 paths of NVMe multipaths are more than wptrace can .* \(32\)"):
        devices.hidden_table(obj, paths, devices.names(paths))


# --- Devices that come and go ---------------------------------------------------------------------------------


def slots(*names: str, spare: int = 2, reused: bool = True) -> devices.Slots:
    return devices.Slots(["other", *names], spare, reused)


def come(made: devices.Slots, *there: str) -> dict[int, str]:
    changes = made.changes(there)
    made.rename(changes)
    return changes


def test_a_device_that_comes_gets_a_spare_slot() -> None:
    made = slots("sda")
    assert come(made, "sda") == {}
    assert come(made, "sda", "sdb") == {2: "sdb"}
    assert come(made, "sdc", "sdb", "sda") == {3: "sdc"}
    assert made.names == ["other", "sda", "sdb", "sdc"]
    assert come(made, "sda", "sdb", "sdc", "sdd") == {}
    assert not made.waiting


def test_one_that_comes_back_has_the_slot_that_it_had() -> None:
    made = slots("sda", "sdb", spare=0)
    assert come(made, "sda") == come(made, "sda", "sdb") == {}
    assert made.names == ["other", "sda", "sdb"]


def test_the_slot_of_who_is_gone_longest_is_given_away_and_not_at_once() -> None:
    made = slots("sda", "sdb", spare=0)
    assert come(made, "sdb", "sdc") == {}
    assert made.waiting
    assert come(made, "sdb", "sdc") == {1: "sdc"}
    assert not made.waiting
    come(made, "sdc")
    come(made)
    assert come(made, "sdd") == {2: "sdd"}
    assert made.names == ["other", "sdc", "sdd"]


def test_a_slot_that_something_in_flight_holds_is_not_given_away() -> None:
    made = slots("sda", spare=0)
    assert come(made) == {}
    assert made.changes(["sdb"], held={1}) == {}
    assert made.waiting
    assert made.changes(["sdb"]) == {1: "sdb"}


def test_where_rows_keep_what_they_have_no_slot_is_given_away() -> None:
    made = slots("sda", spare=1, reused=False)
    come(made)
    assert come(made, "sdb") == {2: "sdb"}
    assert come(made, "sdc") == {}
    assert not made.waiting


def test_rows_have_the_names_of_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    made = slots("sda", spare=1)
    for now[0], there in ((20, ["sda", "sdb"]), (30, ["sdb"]), (40, ["sdb", "sdc"]), (50, []), (60, ["sdd"])):
        come(made, *there)
    assert made.names == ["other", "sdd", "sdb"]
    assert list(made.since(0)) == [
        (60, ["other", "sdd", "sdb"]),
        (40, ["other", "sdc", "sdb"]),
        (20, ["other", "sda", "sdb"]),
        (0, ["other", "sda", ""]),
    ]
    assert list(made.since(41)) == [(60, ["other", "sdd", "sdb"]), (41, ["other", "sdc", "sdb"])]
    assert list(made.since(61)) == [(61, ["other", "sdd", "sdb"])]


def test_names_are_known_since_the_first_change_that_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_CHANGES", 2)
    now = [0]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    made = slots(spare=4)
    there: list[str] = []
    since = []
    for now[0], name in ((10, "sda"), (20, "sdb"), (30, "sdc"), (40, "sdd")):
        there.append(name)
        come(made, *there)
        since.append(made.known_since_ns)
    assert since == [0, 0, 10, 20]
    assert list(made.since(20))[-1] == (20, ["other", "sda", "sdb", "", ""])


@given(scans=st.lists(st.sets(st.sampled_from("abcdefgh")), max_size=30), spare=st.integers(0, 4))
def test_no_two_devices_have_one_slot(scans: list[set[str]], spare: int) -> None:
    made = slots("a", "b", spare=spare)
    for there in scans:
        before = list(made.names)
        changes = come(made, *sorted(there))
        named = [name for name in made.names if name]
        assert len(named) == len(set(named))
        assert made.names[0] == "other"
        assert set(changes.values()) <= there
        assert all(before[slot] not in there for slot in changes)


def fake(obj: BpfObject) -> Any:
    """Programs that are said to be loaded."""
    bss = SimpleNamespace(trace_unlisted=False, devices=[])
    return SimpleNamespace(constants=obj.constants, length=obj.length, planned_bytes=0, bss=bss)


def test_who_comes_is_found_and_who_went_is_not(obj: BpfObject, monkeypatch: pytest.MonkeyPatch) -> None:
    def disk(name: str, minor: int) -> Extent:
        return Extent(name, name, kernel_dev(8, minor), 0, EVERYTHING)

    running = fake(obj)
    there = [disk("sda", 0)]
    monkeypatch.setattr(devices, "extents", lambda wanted, hidden: there)
    monkeypatch.setattr(devices, "extents_of_now", lambda wanted, hidden: there)
    made = devices.Devices(())
    made.place(running, room=1)
    monkeypatch.setattr(made, "_changes", True)
    renamed: list[tuple[int, str, list[str]]] = []

    def rename(slot: int, name: str) -> None:
        # Nothing is counted there meanwhile, and the slot still has its old name.
        assert find_device(running.bss.devices, kernel_dev(8, 0), 7) is None
        renamed.append((slot, name, list(made.names)))

    assert find_device(running.bss.devices, kernel_dev(8, 0), 7) == Match(1, 0)
    there = [disk("sdb", 16)]
    assert made.refresh(running, rename)
    assert renamed == [(2, "sdb", ["other", "sda", ""])]
    assert find_device(running.bss.devices, kernel_dev(8, 16), 7) == Match(2, 0)
    assert find_device(running.bss.devices, kernel_dev(8, 0), 7) is None
    # A disk that was reset has the same name and another number.
    there = [disk("sdb", 32)]
    assert made.refresh(running, rename)
    assert renamed[1:] == []
    assert find_device(running.bss.devices, kernel_dev(8, 32), 7) == Match(2, 0)
    monkeypatch.setattr(made, "_changes", False)
    assert not made.refresh(running, rename)
    made.aim(running, ["sdb"])
    assert made.refresh(running, rename)


def test_who_is_busy_has_the_row_of_who_is_idle(obj: BpfObject, monkeypatch: pytest.MonkeyPatch) -> None:
    running = fake(obj)
    there = [Extent(f"sd{at}", f"sd{at}", kernel_dev(8, 16 * at), 0, EVERYTHING) for at in range(4)]
    made = {"sd0": 4000, "sd1": 3000, "sd2": 0, "sd3": 0}
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(devices, "extents", lambda wanted, hidden: there)
    monkeypatch.setattr(
        devices, "extents_of_now", lambda wanted, hidden: [one for one in there if not wanted or one.name in wanted]
    )
    monkeypatch.setattr(blockdev, "completed", made.__getitem__)
    monkeypatch.setattr(memory, "room", lambda: memory.Room(0, "the cgroup /a"))
    rows = devices.Devices(())
    monkeypatch.setattr(rows, "_changes", False)

    def make_room(devices: int) -> None:
        running.planned_bytes = devices << 20

    rows.place(running, make_room, room=1, permitted=4 << 20)
    # So many rows as if there were no spare one.
    monkeypatch.setattr(rows.slots, "names", rows.slots.names[:3])
    rows.names = rows.slots.names
    assert rows.names == ["other", "sd0", "sd1"]
    assert rows.shortage != []
    held: set[int] = {1}
    renamed: list[tuple[int, str]] = []

    def look(seconds: float) -> list[int | None]:
        """Return the rows in which the programs count each of the devices."""
        nonlocal now
        now += seconds

        def rename(slot: int, name: str) -> None:
            assert slot not in {match.slot for match in found() if match}
            renamed.append((slot, name))

        rows.refresh(running, rename, lambda: held)
        return [match.slot if match else None for match in found()]

    def found() -> list[Match | None]:
        return [find_device(running.bss.devices, one.dev, 7) for one in there]

    made["sd3"] += 5000
    assert look(5.0) == [1, 2, None, None]
    made["sd0"] += 10
    made["sd1"] += 2501
    # sd3 has most, and sd0 has least, whose last request still is in flight. What is in no row is in that of others.
    assert look(5.0) == [None, 2, None, None]
    assert look(1.0) == [None, 2, None, None]
    held.clear()
    assert look(1.0) == [None, 2, None, 1]
    assert renamed == [(1, "sd3")]
    # Nobody gives way to one that is hardly busier, or does next to nothing.
    made.update({name: count + 60 for name, count in made.items()})
    made["sd2"] += 39
    assert look(9.0) == [None, 2, None, 1]
    made["sd2"] += 200
    made["sd1"] += 101
    made["sd3"] += 300
    assert look(10.0) == [None, 2, None, 1]
    assert renamed == [(1, "sd3")]
    # One that came when there was no row for it.
    there.append(Extent("sd4", "sd4", kernel_dev(8, 64), 0, EVERYTHING))
    made["sd4"] = 0
    monkeypatch.setattr(rows, "_changes", True)
    assert look(1.0) == [None, 2, None, 1, None]
    monkeypatch.setattr(rows, "_changes", False)
    assert look(10.0) == [None, 2, None, 1, None]
    made["sd4"] += 100
    made["sd3"] += 1
    assert look(10.0) == [None, None, None, 1, None]
    assert look(1.0) == [None, None, None, 1, 2]
    # A named device has a row, whatever it does.
    rows.aim(running, ["sd0"])
    assert look(1.0) == [None, None, None, None, None]
    assert look(10.0) == [1, None, None, None, None]
    rows.aim(running, [])
    assert look(1.0) == [None, None, None, None, 2]
    assert look(1.0) == [None, None, None, 1, 2]


def test_one_that_goes_while_somebody_looks_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Extent("sda", "sda", kernel_dev(8, 0), 0, EVERYTHING)

    def requests_of(name: str) -> Iterator[Extent]:
        if name != "sda":
            raise UsageError(f"there is no block device {name}")
        return iter([disk])

    monkeypatch.setattr(blockdev, "resolve", lambda text: text)
    monkeypatch.setattr(blockdev, "disks", lambda: ["sda", "sdb"])
    monkeypatch.setattr(blockdev, "requests_of", requests_of)
    assert devices.extents_of_now([]) == devices.extents_of_now(["sdb", "sda"]) == [disk]
    # No devices are not all devices.
    assert devices.extents_of_now(["sdb"]) == []


def test_a_device_that_begins_anew_is_busy_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = {"sda": 1000, "sdb": 70}
    monkeypatch.setattr(blockdev, "busy_ms", busy.get)
    loads = devices.Loads(["other", "sda"])
    busy["sda"] += 5
    loads.counters()
    busy["sda"] = 3
    loads.add(["sdb"])
    busy["sdb"] += 2
    found = {group.label("dev"): counts["busy_ms"] for group, counts in loads.counters().items()}
    assert found == {"sda": 8, "sdb": 2}


# --- Rows of files --------------------------------------------------------------------------------------------

PATH_SOURCE = (Path(__file__).resolve().parents[3] / "bpf_src/block/path/operation.h").read_text()


def test_the_source_still_looks_for_files_as_is_tested_here() -> None:
    assert "at = device_place(dev, FILE_DEVICES);" in PATH_SOURCE
    assert "file_devices[(at + probe) & (FILE_DEVICES - 1)]" in PATH_SOURCE
    assert "probe < DEVICE_PROBES" in PATH_SOURCE


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Extent]]:
    """Two disks, one with partitions, a stack on both, and a btrfs whose number is no device's."""
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


def test_a_file_is_shown_on_what_it_lies_on(obj: BpfObject, machine: dict[str, list[Extent]]) -> None:
    sda, sdb, dm, btrfs = (kernel_dev(*number) for number in ((8, 0), (8, 16), (253, 0), (0, 41)))
    both = [*machine["sda"], *machine["sdb"]]
    disks = devices.file_table(obj, both, devices.names(both), devices.below_files())
    assert [slot_of(disks, dev) for dev in (sda, sda + 1, sda + 2, sdb, dm, btrfs)] == [1, 1, 1, 2, 1, 1]
    assert slot_of(disks, kernel_dev(251, 0)) is None
    both = [*machine["sda1"], *machine["sdb"]]
    parts = devices.file_table(obj, both, devices.names(both), devices.below_files())
    # The whole disk is more than the traced partition.
    assert [slot_of(parts, dev) for dev in (sda, sda + 1, sda + 2, sdb, dm, btrfs)] == [None, 1, None, 2, 2, 1]
    assert not any(devices.file_table(obj, [], devices.names([]), devices.below_files()))


@given(found=st.lists(numbers, max_size=400, unique=True), later=st.lists(numbers, max_size=400, unique=True))
def test_what_is_mounted_later_takes_no_place_of_another_one(
    obj: BpfObject, found: list[int], later: list[int]
) -> None:
    disk = Extent("sda", "sda", kernel_dev(8, 0), 0, EVERYTHING)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blockdev, "requests_of", lambda name: iter([disk]))
        before = devices.file_table(obj, [disk], ["other", "sda"], dict.fromkeys(found, "sda"))
        after = devices.file_table(obj, [disk], ["other", "sda"], dict.fromkeys([*found, *later], "sda"))
    assert all(now == was for now, was in zip(after, before) if was)


@given(found=st.lists(numbers, max_size=400, unique=True))
def test_every_file_system_is_found_where_bpf_looks_for_it(obj: BpfObject, found: list[int]) -> None:
    disk = Extent("sda", "sda", kernel_dev(8, 0), 0, EVERYTHING)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blockdev, "requests_of", lambda name: iter([disk]))
        patch.setattr(blockdev, "numbers", lambda: dict.fromkeys(found, "sda"))
        patch.setattr(mounts, "block_devices", dict)
        table = devices.file_table(obj, [disk], ["other", "sda"], devices.below_files())
    assert len(table) == FILES
    kept = [dev for dev in found if slot_of(table, dev) == 1]
    assert len(kept) == sum(map(bool, table))
    # A file system is left out only if all of its places are taken.
    for dev in set(found) - set(kept):
        at = (dev * HASH & 0xFFFFFFFF) >> 22
        assert all(table[(at + probe) % FILES] for probe in range(PROBES))
