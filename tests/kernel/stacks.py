# SPDX-License-Identifier: Apache-2.0
"""Stacked devices: device-mapper targets by dmsetup, arrays of md by sysfs."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kernel.disks import Disk, run
from tests.kernel.trace import wait_until


def _size(disk: Disk) -> int:
    return int(Path("/sys/block", disk.name, "size").read_text())


@contextmanager
def mapped(name: str, *lines: str, module: str = "") -> Iterator[Disk]:
    """A device of device-mapper with the given table."""
    if module:
        run("modprobe", module)
    subprocess.run(
        ["dmsetup", "create", "--noudevsync", f"wptest-{name}"], input="\n".join(lines), text=True, check=True
    )
    try:
        minor = run("dmsetup", "info", "-c", "--noheadings", "-o", "minor", f"wptest-{name}")
        yield Disk(f"dm-{minor}")
    finally:
        run("dmsetup", "remove", "--noudevsync", "--retry", f"wptest-{name}")


@contextmanager
def linear(*below: Disk) -> Iterator[Disk]:
    """Several disks, concatenated."""
    lines, at = [], 0
    for disk in below:
        lines.append(f"{at} {_size(disk)} linear {disk.path} 0")
        at += _size(disk)
    with mapped(f"linear-{below[0].name}", *lines) as disk:
        yield disk


def _name(disk: Disk) -> str:
    return Path("/sys/block", disk.name, "dm/name").read_text().strip()


@contextmanager
def suspended(disk: Disk) -> Iterator[None]:
    """Suspend a device of device-mapper, which holds its bios meanwhile."""
    name = _name(disk)
    run("dmsetup", "suspend", "--noudevsync", "--nolockfs", name)
    try:
        yield
    finally:
        run("dmsetup", "resume", "--noudevsync", name)


@contextmanager
def crypt(below: Disk) -> Iterator[Disk]:
    key = "0123456789abcdef" * 8
    line = f"0 {_size(below)} crypt aes-xts-plain64 {key} 0 {below.path} 0"
    with mapped(f"crypt-{below.name}", line, module="dm-crypt") as disk:
        yield disk


@contextmanager
def integrity(below: Disk) -> Iterator[Disk]:
    """Checksums of all sectors. It resubmits the bios that it got, with no event (drivers/md/dm-integrity.c)."""
    run("modprobe", "crc32c")
    rest = f"integrity {below.path} 0 4 D 1 internal_hash:crc32c"
    # At the first start dm-integrity writes the number of sectors into its superblock.
    with mapped(f"integrity-{below.name}", f"0 1 {rest}", module="dm-integrity"):
        pass
    with open(below.path, "rb") as disk:  # noqa: PTH123
        sectors = int.from_bytes(disk.read(24)[16:], "little")
    with mapped(f"integrity-{below.name}", f"0 {sectors} {rest}") as made:
        # Sectors have no checksum until they are written.
        run("dd", "if=/dev/zero", f"of={made.path}", "bs=1M", f"count={sectors >> 11}", "oflag=direct", "status=none")
        yield made


@contextmanager
def origin(below: Disk, copies: Disk) -> Iterator[Disk]:
    """A disk with a snapshot: the old data are copied before a block is first overwritten."""
    sectors = _size(below)
    with mapped(f"origin-{below.name}", f"0 {sectors} snapshot-origin {below.path}", module="dm-snapshot") as made:
        line = f"0 {sectors} snapshot {below.path} {copies.path} P 8"
        with mapped(f"snapshot-{below.name}", line):
            yield made


@contextmanager
def striped(*below: Disk) -> Iterator[Disk]:
    """Several disks with stripes of 64 KiB."""
    legs = " ".join(f"{disk.path} 0" for disk in below)
    sectors = min(map(_size, below)) * len(below)
    with mapped(f"stripe-{below[0].name}", f"0 {sectors} striped {len(below)} 128 {legs}") as disk:
        yield disk


@contextmanager
def delayed(below: Disk, read_ms: int, write_ms: int | None = None) -> Iterator[Disk]:
    """A delay of reads, and of writes if they have another one. Its timer counts ticks of 4 ms."""
    writes = "" if write_ms is None else f" {below.path} 0 {write_ms}"
    line = f"0 {_size(below)} delay {below.path} 0 {read_ms}{writes}"
    with mapped(f"delay-{below.name}", line, module="dm-delay") as disk:
        yield disk


def delay(disk: Disk, latency_ms: int) -> None:
    """Change the latency of a delayed device without one of its own for writes."""
    name = _name(disk)
    *table, _ = run("dmsetup", "table", name).split()
    run("dmsetup", "load", name, "--table", " ".join([*table, str(latency_ms)]))
    with suspended(disk):
        pass


@contextmanager
def thin(metadata: Disk, data: Disk, sectors: int) -> Iterator[tuple[Disk, Disk]]:
    """A thin volume, which gets blocks of 64 KiB when they are written, and its pool."""
    pool_line = f"0 {_size(data)} thin-pool {metadata.path} {data.path} 128 0"
    with mapped(f"pool-{data.name}", pool_line, module="dm-thin-pool") as pool:
        run("dmsetup", "message", f"wptest-pool-{data.name}", "0", "create_thin 0")
        with mapped(f"thin-{data.name}", f"0 {sectors} thin {pool.path} 0") as volume:
            yield volume, pool


_ARRAYS = itertools.count()


@contextmanager
def array(level: str, *below: Disk) -> Iterator[Disk]:
    """An array of md without metadata, whose disks are assumed to be in sync."""
    run("modprobe", {"raid5": "raid456"}.get(level, level))
    # An array that was just cleared may still have its name.
    name = f"md_wp{next(_ARRAYS)}"
    Path("/sys/module/md_mod/parameters/new_array").write_text(name)
    folder = Path("/sys/block", name, "md")
    kib = min(map(_size, below)) // 2 // 64 * 64
    (folder / "level").write_text(level)
    (folder / "raid_disks").write_text(str(len(below)))
    if level != "raid1":
        (folder / "chunk_size").write_text(str(64 << 10))
    for slot, disk in enumerate(below):
        (folder / "new_dev").write_text(Path("/sys/block", disk.name, "dev").read_text())
        member = folder / f"dev-{disk.name}"
        (member / "size").write_text(str(kib))
        (member / "slot").write_text(str(slot))
    if level != "raid0":
        (folder / "component_size").write_text(str(kib))
        (folder / "resync_start").write_text("none")
    (folder / "array_state").write_text("active")
    try:
        wait_until(Path("/dev", name).exists, "the array")
        # The first open scans for partitions.
        Path("/dev", name).open("rb").close()
        yield Disk(name)
    finally:
        wait_until(lambda: _cleared(folder), "the end of the array")


def _cleared(folder: Path) -> bool:
    try:
        (folder / "array_state").write_text("clear")
    except OSError:
        return False
    return True


_CONFIG = Path("/sys/kernel/config")
_HOST = "hostnqn=nqn.2014-08.org.nvmexpress:uuid:6f6bb6ba-4d0c-4d58-8a3b-2f1d4f6c6a01"
_HOST_ID = "hostid=6f6bb6ba-4d0c-4d58-8a3b-2f1d4f6c6a01"


@contextmanager
def nvme_target(disk: Disk, name: str, ports: int) -> Iterator[None]:
    """An NVMe over TCP subsystem with this disk, at several ports."""
    for module in ("configfs", "nvmet", "nvmet-tcp", "nvme-tcp"):
        run("modprobe", module)
    if not (_CONFIG / "nvmet").is_dir():
        run("mount", "-t", "configfs", "none", str(_CONFIG))
    run("ip", "link", "set", "lo", "up")
    subsystem = _CONFIG / "nvmet/subsystems" / name
    space = subsystem / "namespaces/1"
    space.mkdir(parents=True)
    (subsystem / "attr_allow_any_host").write_text("1")
    (space / "device_path").write_text(disk.path)
    (space / "enable").write_text("1")
    made = []
    for number in range(ports):
        port = _CONFIG / f"nvmet/ports/{number + 1}"
        port.mkdir()
        fields = {"trtype": "tcp", "adrfam": "ipv4", "traddr": "127.0.0.1", "trsvcid": str(4421 + number)}
        for field, value in fields.items():
            (port / f"addr_{field}").write_text(value)
        (port / "subsystems" / name).symlink_to(subsystem)
        made.append(port)
    try:
        yield
    finally:
        for port in made:
            (port / "subsystems" / name).unlink()
            port.rmdir()
        (space / "enable").write_text("0")
        space.rmdir()
        subsystem.rmdir()


@contextmanager
def multipath(disk: Disk, paths: int = 2) -> Iterator[tuple[Disk, list[Disk]]]:
    """The head of an NVMe multipath with the round-robin policy, and the hidden disks below it."""
    with nvme_target(disk, "wptest", paths):
        known = set(Path("/sys/class/nvme").iterdir())
        try:
            for number in range(paths):
                where = f"transport=tcp,traddr=127.0.0.1,trsvcid={4421 + number}"
                Path("/dev/nvme-fabrics").write_text(f"nqn=wptest,{where},{_HOST},{_HOST_ID}")
            hidden = Path("/sys/block")
            wait_until(lambda: len(list(hidden.glob("nvme*c*n1"))) == paths, "the paths")
            below = [Disk(path.name) for path in sorted(hidden.glob("nvme*c*n1"))]
            head = Disk(f"{below[0].name.partition('c')[0]}n1")
            wait_until(Path(head.path).exists, "the head")
            for policy in Path("/sys/class/nvme-subsystem").glob("*/iopolicy"):
                policy.write_text("round-robin")
            yield head, below
        finally:
            for controller in set(Path("/sys/class/nvme").iterdir()) - known:
                (controller / "delete_controller").write_text("1")
