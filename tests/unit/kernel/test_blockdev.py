# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.kernel.sysfs import Sysfs
from wptrace.errors import UsageError
from wptrace.kernel import blockdev
from wptrace.kernel.blockdev import EVERYTHING, Extent, kernel_dev

SDA, SDB, NVME = kernel_dev(8, 0), kernel_dev(8, 16), kernel_dev(259, 0)


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    made = Sysfs(tmp_path)
    made.disk("sda", "8:0")
    made.partition("sda1", "sda", "8:1", 2048, 4096)
    made.partition("sda2", "sda", "8:2", 6144, 1000)
    made.disk("sdb", "8:16")
    made.disk("nvme0n1", "259:0")
    return made


@pytest.fixture
def stacks(sysfs: Sysfs) -> Sysfs:
    """A mirror of a partition and a disk, a volume on it, and a volume on that and on whole disks."""
    sysfs.disk("md0", "9:0", queue=False, slaves=("sda2", "sdb"))
    sysfs.partition("md0p1", "md0", "259:7", 128, 500)
    sysfs.disk("dm-0", "253:0", queue=False, slaves=("md0",))
    sysfs.disk("dm-1", "253:1", queue=False, slaves=("dm-0", "sda", "nvme0n1"))
    return sysfs


def test_swaps_that_make_no_requests(stacks: Sysfs, tmp_path: Path) -> None:
    stacks.disk("zram0", "252:0", queue=False)
    swaps = tmp_path / "swaps"
    swaps.write_text(
        "Filename\tType\tSize\tUsed\tPriority\n"
        "/dev/zram0 partition 1 0 100\n/dev/dm-0 partition 1 0 1\n/dev/sda1 partition 1 0 1\n/a\\040b file 1 0 1\n"
    )
    assert blockdev.swaps_without_requests(tmp_path, stacks.root) == ["zram0"]
    swaps.unlink()
    assert blockdev.swaps_without_requests(tmp_path, stacks.root) == []


@pytest.mark.parametrize(
    ("major", "minor", "number"),
    [
        (8, 0, 0x800000),
        (8, 17, 0x800011),
        (259, 0, 0x10300000),
        (253, 0xFFFFF, 0xFDFFFFF),
        (0xFFF, 0, 0xFFF00000),
    ],
)
def test_the_kernels_own_numbers_have_20_bits_of_minor(major: int, minor: int, number: int) -> None:
    assert kernel_dev(major, minor) == number


def test_a_disk_is_all_of_its_sectors_and_a_partition_some_of_them(sysfs: Sysfs) -> None:
    assert blockdev.extent("sda", sysfs.root) == Extent("sda", "sda", SDA, 0, EVERYTHING)
    assert blockdev.extent("nvme0n1", sysfs.root) == Extent("nvme0n1", "nvme0n1", NVME, 0, EVERYTHING)
    assert blockdev.extent("sda1", sysfs.root) == Extent("sda1", "sda", SDA, 2048, 2048 + 4096)
    assert blockdev.extent("sda2", sysfs.root) == Extent("sda2", "sda", SDA, 6144, 7144)


@pytest.mark.parametrize("name", ["sdz", "", ".", ".."])
def test_a_device_that_is_gone_has_no_extent(sysfs: Sysfs, name: str) -> None:
    with pytest.raises(UsageError, match="there is no block device "):
        blockdev.extent(name, sysfs.root)


def test_names_and_numbers_are_resolved(stacks: Sysfs) -> None:
    for name, number in {"sda": "8:0", "sda2": "8:2", "dm-1": "253:1", "nvme0n1": "259:0"}.items():
        assert blockdev.resolve(name, stacks.root) == name
        assert blockdev.resolve(number, stacks.root) == name


def test_a_link_of_dev_is_enough(stacks: Sysfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service may have links without the devices."""
    monkeypatch.setattr(blockdev, "DEV", tmp_path / "dev")
    (tmp_path / "dev" / "disk").mkdir(parents=True)
    link, other = tmp_path / "dev" / "disk" / "by-id", tmp_path / "dev" / "other"
    link.symlink_to("../dm-1")
    other.symlink_to(tmp_path / "sda")
    assert blockdev.resolve(str(link), stacks.root) == "dm-1"
    assert blockdev.resolve(str(tmp_path / "dev" / "sda"), stacks.root) == "sda"
    for text in (other, tmp_path / "dev" / "sdz"):
        with pytest.raises(UsageError, match="there is no block device"):
            blockdev.resolve(str(text), stacks.root)


@pytest.mark.parametrize("text", ["sdz", "8:99", "sda3", "", ".", "..", "8:", ":0", "8:0:0", "sda\n", "\u0668:\u0660"])
def test_unknown_devices_are_refused_in_one_sentence(sysfs: Sysfs, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        blockdev.resolve(text, sysfs.root)
    assert caught.value.message == f"there is no block device {text or repr(text)}"
    assert caught.value.hint == "lsblk lists the devices of this machine"


def test_paths_that_are_no_block_device_are_refused(sysfs: Sysfs, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    hints = (
        (file, f"wptrace io --file {file} traces it"),
        (tmp_path, f"wptrace io --dir {tmp_path} traces the files below it"),
        (Path("/dev/null"), "name a disk or partition, such as /dev/sda"),
    )
    for path, hint in hints:
        with pytest.raises(UsageError) as caught:
            blockdev.resolve(str(path), sysfs.root)
        assert (caught.value.message, caught.value.hint) == (f"{path} is not a block device", hint)
    with pytest.raises(UsageError, match=r"there is no block device /dev/none: No such file or directory$"):
        blockdev.resolve("/dev/none", sysfs.root)
    with pytest.raises(UsageError, match=r"there is no block device .*/file/below: Not a directory$"):
        blockdev.resolve(f"{file}/below", sysfs.root)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(UsageError, match=r"there is no block device .*/loop: Too many levels of symbolic links$"):
        blockdev.resolve(str(loop), sysfs.root)


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A /dev in which each file contains its device number, because real device nodes need root."""
    real = os.stat

    def fake(path: Any, **options: Any) -> Any:
        if isinstance(path, str) and path.startswith(f"{tmp_path}/dev/"):
            real(path)
            major, minor = Path(path).read_text().split(":")
            return SimpleNamespace(st_mode=stat.S_IFBLK | 0o660, st_rdev=os.makedev(int(major), int(minor)))
        return real(path, **options)

    monkeypatch.setattr(os, "stat", fake)
    (tmp_path / "dev/mapper").mkdir(parents=True)
    return tmp_path / "dev"


def test_device_nodes_are_resolved_by_their_number(tmp_path: Path, nodes: Path) -> None:
    sysfs = Sysfs(tmp_path / "sys")
    sysfs.disk("sda", "8:0")
    sysfs.partition("sda1", "sda", "8:1", 2048, 4096)
    sysfs.disk("dm-300", "253:300", queue=False)
    sysfs.disk("cciss!c0d0", "104:0")
    (nodes / "sda1").write_text("8:1")
    (nodes / "mapper/root").write_text("253:300")  # stat(2) stores a minor over 255 in two parts
    (nodes / "smart-array").write_text("104:0")
    (nodes / "by-label").symlink_to(nodes / "sda1")
    (nodes / "gone").write_text("7:7")
    assert blockdev.resolve(str(nodes / "sda1"), sysfs.root) == "sda1"
    assert blockdev.resolve(str(nodes / "by-label"), sysfs.root) == "sda1"
    assert blockdev.resolve(str(nodes / "mapper/root"), sysfs.root) == "dm-300"
    assert blockdev.resolve(str(nodes / "smart-array"), sysfs.root) == "cciss!c0d0"
    with pytest.raises(UsageError, match="there is no block device 7:7"):
        blockdev.resolve(str(nodes / "gone"), sysfs.root)


def names(extents: Any) -> list[str]:
    return [one.name for one in extents]


def test_requests_of_a_plain_device_are_seen_on_itself(sysfs: Sysfs) -> None:
    for name in ("sda", "sda1", "nvme0n1"):
        assert list(blockdev.requests_of(name, sysfs.root)) == [blockdev.extent(name, sysfs.root)]


def test_requests_of_a_stack_are_seen_below_it(stacks: Sysfs) -> None:
    for name in ("md0", "md0p1", "dm-0"):
        assert names(blockdev.requests_of(name, stacks.root)) == ["sda2", "sdb"]
    assert names(blockdev.requests_of("dm-1", stacks.root)) == ["sda2", "sdb", "nvme0n1", "sda"]
    assert names(blockdev.merged(list(blockdev.requests_of("dm-1", stacks.root)))) == [
        "sda",
        "sdb",
        "nvme0n1",
    ]


def test_a_device_without_requests_is_an_error(sysfs: Sysfs) -> None:
    """Tracing it would never show anything."""
    sysfs.disk("zram0", "252:0", queue=False)
    with pytest.raises(UsageError, match="zram0 has no queue of requests") as caught:
        list(blockdev.requests_of("zram0", sysfs.root))
    assert caught.value.hint


def test_requests_of_a_missing_device_are_an_error(sysfs: Sysfs) -> None:
    with pytest.raises(UsageError, match="there is no block device sdz"):
        list(blockdev.requests_of("sdz", sysfs.root))
    sysfs.disk("dm-9", "253:9", queue=False)
    (sysfs.root / "devices/dm-9/slaves/gone").symlink_to(sysfs.root / "devices/gone")
    with pytest.raises(UsageError, match="there is no block device gone"):
        list(blockdev.requests_of("dm-9", sysfs.root))


def test_disks_are_those_with_a_queue_and_a_medium(stacks: Sysfs) -> None:
    stacks.disk("zram0", "254:0", queue=False)
    stacks.disk("sr0", "11:0", size=0)
    stacks.disk("sdaa", "65:160")
    stacks.disk("nvme0n10", "259:8")
    stacks.disk("nvme0n2", "259:9")
    stacks.disk("nvme0c0n1", None)  # hidden
    assert blockdev.disks(stacks.root) == ["nvme0n1", "nvme0n2", "nvme0n10", "sda", "sdaa", "sdb"]
    assert blockdev.disks(stacks.root / "none") == []


def test_the_head_of_a_multipath_is_made_of_hidden_disks(sysfs: Sysfs) -> None:
    sysfs.disk("nvme1n1", "259:20", queue=False)
    sysfs.disk("nvme1n11", "259:21")
    for path in ("nvme1c0n1", "nvme1c12n1"):
        (sysfs.disk(path, None) / "hidden").write_text("1\n")
    (sysfs.disk("nvme1c0n11", None) / "hidden").write_text("0\n")
    below = [Extent(path, path, 0, 0, EVERYTHING, True) for path in ("nvme1c0n1", "nvme1c12n1")]
    assert list(blockdev.requests_of("nvme1n1", sysfs.root)) == below
    assert blockdev.merged(below) == below
    assert blockdev.heads(sysfs.root) == blockdev.layers(sysfs.root) == ["nvme1n1"]
    assert list(blockdev.layers_of("nvme1n1", sysfs.root)) == ["nvme1n1"]
    assert blockdev.heads(sysfs.root / "nowhere") == []


@pytest.mark.parametrize(
    ("iostats", "wbt", "stamped"),
    [("1", "75000", True), ("1", "2000", True), ("0", "75000", False), ("1", "0", False), ("1", None, False)],
)
def test_stamps_need_iostats_and_writeback_throttling(
    sysfs: Sysfs, iostats: str, wbt: str | None, stamped: bool
) -> None:
    sysfs.disk("vda", "254:0", iostats=iostats, wbt=wbt)
    assert blockdev.is_stamped("vda", sysfs.root) is stamped
    assert not blockdev.is_stamped("sdz", sysfs.root)


def test_in_flight_adds_reads_and_writes(sysfs: Sysfs) -> None:
    assert blockdev.in_flight("sda", sysfs.root) == 0
    (sysfs.root / "devices/sda/inflight").write_text("       3       14\n")
    (sysfs.root / "devices/sda/sda1/inflight").write_text("       1        0\n")
    assert blockdev.in_flight("sda", sysfs.root) == 17
    assert blockdev.in_flight("sda1", sysfs.root) == 1
    assert blockdev.in_flight("sdz", sysfs.root) == 0
    (sysfs.root / "devices/sda/inflight").write_text("")
    assert blockdev.in_flight("sda", sysfs.root) == 0


ranges = st.tuples(st.integers(0, 12), st.integers(1, 12)).map(lambda pair: (pair[0], pair[0] + pair[1]))
extents = st.builds(
    lambda dev, reach: Extent(f"{dev}:{reach[0]}-{reach[1]}", f"{dev}", dev, *reach),
    st.sampled_from([1, 2]),
    ranges,
)


@given(given_extents=st.lists(extents, max_size=12))
def test_merged_keeps_what_no_other_covers(given_extents: list[Extent]) -> None:
    def sectors(some: list[Extent]) -> set[tuple[int, int]]:
        return {(one.dev, sector) for one in some for sector in range(one.first, one.end)}

    kept = blockdev.merged(given_extents)
    assert sectors(kept) == sectors(given_extents)
    assert set(kept) <= set(given_extents)
    assert not any(one is not other and one.covers(other) for one in kept for other in kept)
    assert kept == sorted(kept, key=lambda one: (one.dev, one.first))
    maximal = {one for one in given_extents if not any(o != one and o.covers(one) for o in given_extents)}
    assert set(kept) == maximal


def test_a_disk_covers_its_partitions_and_no_others(sysfs: Sysfs) -> None:
    def of(*wanted: str) -> list[str]:
        return names(blockdev.merged([blockdev.extent(name, sysfs.root) for name in wanted]))

    assert of("sda1", "sda", "sda2", "sdb") == ["sda", "sdb"]
    assert of("sda2", "sda1", "sda1") == ["sda1", "sda2"]
    assert of("sdb", "sda1") == ["sda1", "sdb"]


def test_every_device_by_its_number(stacks: Sysfs) -> None:
    stacks.disk("nvme0c0n1", None)  # a path of a multipath disk, without a number
    assert blockdev.numbers(stacks.root) == {
        SDA: "sda",
        kernel_dev(8, 1): "sda1",
        kernel_dev(8, 2): "sda2",
        SDB: "sdb",
        NVME: "nvme0n1",
        kernel_dev(9, 0): "md0",
        kernel_dev(259, 7): "md0p1",
        kernel_dev(253, 0): "dm-0",
        kernel_dev(253, 1): "dm-1",
    }
    assert blockdev.numbers(stacks.root / "none") == {}


def test_layers_are_devices_that_are_made_of_others(stacks: Sysfs) -> None:
    # A dm multipath has a queue, even if it is on a disk without one.
    stacks.disk("dm-2", "253:2", slaves=("dm-0",))
    assert blockdev.layers(stacks.root) == ["dm-0", "md0", "dm-1"]
    assert list(blockdev.layers_of("dm-1", stacks.root)) == ["dm-1", "dm-0", "md0"]
    assert list(blockdev.layers_of("dm-2", stacks.root)) == ["dm-0", "md0"]
    assert list(blockdev.layers_of("md0p1", stacks.root)) == ["md0"]
    assert list(blockdev.layers_of("sda2", stacks.root)) == []
    assert blockdev.layers(stacks.root / "nowhere") == []


def test_what_comes_and_goes_is_a_change_and_so_is_the_look_after_it(sysfs: Sysfs, tmp_path: Path) -> None:
    """A disk has its name before it has its queue."""
    proc = tmp_path / "proc"
    proc.mkdir()
    partitions = proc / "partitions"
    partitions.write_text("   8  0  1000 sda\n")
    changes = blockdev.Changes(sysfs.root, proc)
    assert not changes
    hidden = sysfs.disk("nvme0c1n1", None)
    assert [bool(changes) for _ in range(3)] == [True, True, False]
    # Another number or another size.
    partitions.write_text("   8  16  1000 sda\n")
    assert [bool(changes) for _ in range(3)] == [True, True, False]
    (sysfs.root / "block" / hidden.name).unlink()
    assert changes
    partitions.write_text("")
    assert [bool(changes) for _ in range(3)] == [True, True, False]


def test_without_sysfs_and_proc_nothing_ever_changes(tmp_path: Path) -> None:
    changes = blockdev.Changes(tmp_path / "sys", tmp_path / "proc")
    assert not changes
    assert not changes
