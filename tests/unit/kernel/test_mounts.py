# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.unit.kernel.procfs import Procfs
from tests.unit.kernel.sysfs import Sysfs
from wptrace.errors import UsageError
from wptrace.kernel import mounts
from wptrace.kernel.blockdev import kernel_dev
from wptrace.kernel.mounts import Mount

BTRFS = "0:35"


@pytest.fixture
def proc(tmp_path: Path) -> Procfs:
    return Procfs(tmp_path / "proc")


def test_changes_that_nobody_asks_for_any_more_hold_no_descriptor() -> None:
    changes = mounts.Changes()
    fd = changes._fd
    assert os.fstat(fd)
    del changes
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


# --- mountinfo ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "mount"),
    [
        (
            "36 35 98:17 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue",
            Mount(36, kernel_dev(98, 17), "/mnt1", "/mnt2", "ext3", "/dev/root", ("rw", "errors=continue")),
        ),
        (
            "23 27 0:22 / /sys rw,relatime - sysfs sysfs rw",
            Mount(23, 22, "/", "/sys", "sysfs", "sysfs", ("rw",)),
        ),
        (
            r"40 27 259:1048575 / /a\040b\011c\134d\012e rw shared:1 master:2 - ext4 /dev/x\040y rw",
            Mount(40, kernel_dev(259, (1 << 20) - 1), "/", "/a b\tc\\d\ne", "ext4", "/dev/x y", ("rw",)),
        ),
        (
            "41 27 0:44 / /empty rw - tmpfs  rw",
            Mount(41, 44, "/", "/empty", "tmpfs", "", ("rw",)),
        ),
        (
            "42 27 0:45 / /dash rw - - none rw",
            Mount(42, 45, "/", "/dash", "-", "none", ("rw",)),
        ),
    ],
)
def test_a_line_of_mountinfo(proc: Procfs, line: str, mount: Mount) -> None:
    (proc.root / "self" / "mountinfo").write_text(line + "\n")
    assert mounts.mounts(proc.root) == [mount]


def test_a_mount_point_may_be_any_bytes(proc: Procfs) -> None:
    (proc.root / "self" / "mountinfo").write_bytes(b"40 27 8:1 / /\xff\xc3\xa9 rw - ext4 /dev/sda1 rw\n")
    (found,) = mounts.mounts(proc.root)
    assert os.fsencode(found.point) == b"/\xff\xc3\xa9"


def test_what_may_be_mounted(tmp_path: Path) -> None:
    (tmp_path / "filesystems").write_text("nodev\tsysfs\nnodev\ttmpfs\n\text4\n\txfs\n")
    assert mounts.registered(tmp_path) == {"sysfs", "tmpfs", "ext4", "xfs"}
    assert mounts.registered(tmp_path / "none") == set()


def test_without_proc_there_are_none(tmp_path: Path) -> None:
    assert mounts.mounts(tmp_path) == []
    assert mounts.block_devices(tmp_path) == {}


# --- Places ---------------------------------------------------------------------------------------------------


def test_the_mount_tells_the_superblock(proc: Procfs, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    proc.mount(7, "8:1", "/", "ext4", "/dev/sda1", "rw")
    proc.mount(77, BTRFS, tmp_path, "btrfs", "/dev/sdb", "rw,subvolid=256", root="/@home")
    proc.opens_on(77)
    found = mounts.find(str(path), proc.root)
    assert (found.dev, found.inode, found.path) == (35, path.stat().st_ino, str(path))
    assert stat.S_ISREG(found.mode)
    assert found.mount is not None
    assert found.mount.kind == "btrfs"
    assert found.dev != path.stat().st_dev


def test_the_kernel_tells_its_own_inode_number_where_it_can(proc: Procfs, tmp_path: Path) -> None:
    proc.mount(7, "0:50", "/", "overlay", "overlay", "rw")
    proc.opens_on(7, "ino:\t123456789012\n")
    assert mounts.find(str(tmp_path), proc.root).inode == 123456789012


def test_a_mount_that_is_not_seen_leaves_the_number_of_stat(proc: Procfs, tmp_path: Path) -> None:
    """Paths below /proc/PID/root of a container are such a case."""
    proc.mount(7, "8:1", "/", "ext4", "/dev/sda1", "rw")
    proc.opens_on(70)
    found = mounts.find(str(tmp_path), proc.root)
    number = tmp_path.stat().st_dev
    assert found.mount is None
    assert found.dev == kernel_dev(os.major(number), os.minor(number))


def test_links_are_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.touch()
    (tmp_path / "link").symlink_to(target)
    hard = tmp_path / "hard"
    os.link(target, hard)
    found = mounts.find(str(tmp_path / "link"))
    assert found.path == str(target)
    assert mounts.find(str(hard)).inode == found.inode == target.stat().st_ino
    assert mounts.find(f"{tmp_path}/../{tmp_path.name}/./target") == found


def test_nothing_stays_open_and_nothing_is_read(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    assert stat.S_ISFIFO(mounts.file(str(fifo)).mode)
    with pytest.raises(UsageError):
        mounts.directory(str(fifo))
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_a_place_of_this_machine() -> None:
    found = mounts.find("/proc/self/mountinfo")
    assert found.mount is not None
    assert (found.mount.kind, found.mount.point) == ("proc", "/proc")
    assert found.dev == found.mount.dev


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("none", "none cannot be found: No such file or directory"),
        ("", "'' cannot be found: No such file or directory"),
        ("file/below", "file/below cannot be found: Not a directory"),
        ("loop", "loop cannot be found: Too many levels of symbolic links"),
    ],
)
def test_what_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    for question in (mounts.find, mounts.file, mounts.directory):
        with pytest.raises(UsageError) as caught:
            question(path)
        assert caught.value.message == message


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    assert mounts.file(str(path)) == mounts.find(str(path))
    assert mounts.directory(str(tmp_path)) == mounts.find(str(tmp_path))
    with pytest.raises(UsageError, match=f"^{tmp_path} is a directory$") as caught:
        mounts.file(str(tmp_path))
    assert caught.value.hint == f"all files below it: --dir {tmp_path}"
    with pytest.raises(UsageError, match=f"^{path} is not a directory$") as caught:
        mounts.directory(str(path))
    assert caught.value.hint == f"only this file: --file {path}"


# --- Block devices --------------------------------------------------------------------------------------------


def test_block_devices_below_file_systems(proc: Procfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sys").mkdir()
    sysfs = Sysfs(tmp_path / "sys")
    sysfs.disk("sda", "8:0")
    sysfs.partition("sda1", "sda", "8:1", 2048, 4096)
    sysfs.disk("dm-0", "253:0", queue=False)
    sysfs.disk("nvme0n1", "259:0")
    proc.mount(1, "8:1", "/", "ext4", "/dev/root", "rw")
    proc.mount(2, "253:0", "/data", "xfs", "/dev/mapper/data", "rw")
    proc.mount(3, "253:0", "/bind", "xfs", "/dev/mapper/data", "rw", root="/part")
    proc.mount(4, BTRFS, "/pool", "btrfs", "/dev/nvme0n1", "rw")
    proc.mount(5, BTRFS, "/home", "btrfs", "/dev/nvme0n1", "rw", root="/@home")
    proc.mount(6, "0:22", "/sys", "sysfs", "sysfs", "rw")
    proc.mount(7, "0:60", "/nfs", "nfs4", "server:/export", "rw")
    proc.mount(8, "0:61", "/fuse", "fuse.x", "/home/x/image", "rw")
    proc.mount(9, "8:99", "/gone", "ext4", "/dev/sdz", "rw")
    number = os.makedev(259, 0)
    real = os.stat

    def fake(path: Any, **options: Any) -> os.stat_result:
        if path == "/dev/nvme0n1":
            return os.stat_result((stat.S_IFBLK | 0o600, *[0] * 9), {"st_rdev": number})
        if path == "/home/x/image":
            return os.stat_result((stat.S_IFREG | 0o600, *[0] * 9), {"st_rdev": 0})
        return real(path, **options)

    monkeypatch.setattr(os, "stat", fake)
    assert mounts.block_devices(proc.root, sysfs.root) == {
        kernel_dev(8, 1): "sda1",
        kernel_dev(253, 0): "dm-0",
        kernel_dev(0, 35): "nvme0n1",
    }


def test_overlays_that_show_what_lies_at_a_path(proc: Procfs, tmp_path: Path) -> None:
    for name in ("low", "low:2", "lower", "up"):
        (tmp_path / name / "in").mkdir(parents=True)
    (tmp_path / "link").symlink_to("low")
    low, up = tmp_path / "low", tmp_path / "up"
    proc.mount(1, "0:70", "/a", "overlay", "overlay", f"rw,lowerdir=/x:{tmp_path}/link,upperdir={up},workdir=/w")
    proc.mount(2, "0:71", "/b", "overlay", "overlay", f"ro,lowerdir={tmp_path}/low\\134:2:/x")
    proc.mount(3, "0:72", "/c", "overlay", "overlay", f"ro,lowerdir+={low}/in,lowerdir+=/x")
    proc.mount(4, "8:0", "/d", "ext4", "/dev/sda", "rw")

    def shown(path: Path) -> list[str]:
        return mounts.overlays_of(str(path), proc.root)

    assert shown(low / "in") == ["/a", "/c"]
    assert shown(low) == ["/a"]
    assert shown(tmp_path / "link" / "other") == ["/a"]
    assert shown(up / "in" / "file") == ["/a"]
    assert shown(tmp_path / "low:2" / "in") == ["/b"]
    assert shown(tmp_path / "lower" / "in") == shown(Path("/d")) == []


def test_an_overlay_lies_where_it_is_written_to(proc: Procfs, tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    sysfs = Sysfs(tmp_path / "sys")
    for name, number in (("sda", "8:0"), ("sdb", "8:16"), ("sdc", "8:32")):
        sysfs.disk(name, number)
    proc.mount(1, "8:0", "/", "ext4", "/dev/sda", "rw")
    proc.mount(2, "8:16", "/var/lib", "ext4", "/dev/sdb", "rw")
    proc.mount(
        3, "0:70", "/a", "overlay", "overlay", "rw,lowerdir=/low:/var/lib/x,upperdir=/var/lib/up,workdir=/var/lib/w"
    )
    proc.mount(4, "0:71", "/b", "overlay", "overlay", "ro,lowerdir=/var/lib/x:/low")
    proc.mount(5, "0:72", "/c", "overlay", "overlay", "rw,lowerdir=/a/low,upperdir=/a/up,workdir=/a/w")
    proc.mount(
        6, "0:73", "/d", "overlay", "overlay", "rw,lowerdir+=/low,lowerdir+=/var/lib/x,upperdir=/variable,workdir=/w"
    )
    proc.mount(7, "0:74", "/e", "overlay", "overlay", "ro,lowerdir+=/var/lib/x,lowerdir+=/low")
    proc.mount(8, "0:75", "/shm", "tmpfs", "tmpfs", "rw")
    proc.mount(9, "0:76", "/f", "overlay", "overlay", "rw,lowerdir=/low,upperdir=/shm/up,workdir=/shm/w")
    # Mounted over the path on which the overlays above are.
    proc.mount(10, "8:32", "/var/lib", "ext4", "/dev/sdc", "rw")
    found = mounts.block_devices(proc.root, sysfs.root)
    assert {dev & 0xFFFFF: name for dev, name in found.items() if not dev >> 20} == {
        70: "sdb",
        71: "sdb",
        72: "sdb",
        73: "sda",
        74: "sdb",
    }


def test_block_devices_of_this_machine_are_in_sysfs() -> None:
    for dev, name in mounts.block_devices().items():
        if dev >> 20:
            assert Path("/sys/class/block", name, "dev").read_text() == f"{dev >> 20}:{dev & 0xFFFFF}\n"


def test_nothing_is_mounted_or_it_cannot_be_known(tmp_path: Path) -> None:
    """Tests of the kernel show that real mounts are noticed."""
    proc = Procfs(tmp_path)
    proc.mount(1, "8:0", "/a", "ext4", "/dev/sda", "rw")
    for place in (proc.root, tmp_path / "nothing"):
        changes = mounts.Changes(place)
        assert not changes
        changes.close()
        assert not changes
