# SPDX-License-Identifier: Apache-2.0
"""The command lines of QEMU and of the guest's kernel."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.lab import tsc
from tests.lab.errors import UsageError

KERNEL_PARAMETERS = (
    "panic=-1",  # with -no-reboot: a panic ends QEMU at once
    "oops=panic",
    "random.trust_cpu=on",
    # Debian's hardening of allocations and system calls, and waits for RCU grace periods, take a seventh of a tracer's
    # start.
    "init_on_alloc=0",
    "lsm=capability",
    "rcupdate.rcu_expedited=1",
    # QEMU translates code once for each address at which it is mapped. With the same addresses in each process, the
    # guest takes a seventh less time.
    "norandmaps",
)
_MACHINES = {
    # Under emulation the kernel distrusts the TSC, and its fallback clock needs a device access for each reading.
    "amd64": (
        ("qemu-system-x86_64", "-machine", "q35", "-cpu", "max,-erms,-fsrm"),
        ("console=ttyS0", "tsc=reliable", "clocksource=tsc"),
    ),
    # Architected pointer authentication takes most of the time of an emulated CPU.
    "arm64": (
        ("qemu-system-aarch64", "-machine", "virt,gic-version=3", "-cpu", "max,pauth-impdef=on"),
        ("console=ttyAMA0",),
    ),
}
"""QEMU and what it emulates, and what that needs on the kernel's command line."""
_DISK = re.compile(r"(?P<kind>[a-z]+)(=(?P<count>\d+))?(:(?P<options>.+))?")
_DEVICES = {"nvme": "nvme", "virtio": "virtio-blk-pci", "scsi": "scsi-hd"}


@dataclass(frozen=True)
class Disk:
    kind: str
    options: str = ""
    """More properties of QEMU's device, as `logical_block_size=4096`."""


@dataclass(frozen=True)
class Image:
    """The file or device behind a disk."""

    path: Path
    options: str = ""
    """More properties of QEMU's drive, as `cache=none,aio=native`."""


@dataclass(frozen=True)
class Share:
    """A directory of this machine that a guest sees."""

    tag: str
    path: Path
    mode: str = "ro"


@dataclass(frozen=True)
class Machine:
    cpus: int = 2
    memory: str = "2G"
    icount: str = ""
    """"on" or "off": one instruction is one nanosecond, and idle time passes or is skipped."""
    append: str = ""


def parse_disk(text: str) -> list[Disk]:
    """KIND[=COUNT][:OPTIONS]"""
    match = _DISK.fullmatch(text)
    if not match or match["kind"] not in _DEVICES:
        raise UsageError(f"no such disk {text!r}: KIND[=COUNT][:OPTIONS], KIND one of {', '.join(_DEVICES)}")
    count = int(match["count"] or 1)
    if not 1 <= count <= 16:
        raise UsageError(f"{count} disks of one kind are not possible: 1 to 16")
    return [Disk(match["kind"], match["options"] or "")] * count


def parse_image(text: str) -> Image:
    """FILE[,OPTIONS]. The name cannot have a comma."""
    path, _, options = text.partition(",")
    if not Path(path).exists():
        raise UsageError(f"--image {path}: no such file")
    return Image(Path(path).absolute(), options)


def disk_names(disks: Iterable[Disk]) -> list[str]:
    """Return the names of disks in the guest's kernel."""
    seen: Counter[str] = Counter()
    names = []
    for disk in disks:
        number = seen[disk.kind]
        seen[disk.kind] += 1
        letter = chr(ord("a") + number)
        names.append({"nvme": f"nvme{number}n1", "virtio": f"vd{letter}", "scsi": f"sd{letter}"}[disk.kind])
    return names


def disk_arguments(disks: Sequence[Disk], images: Sequence[Image]) -> list[str]:
    arguments: list[str] = []
    if any(disk.kind == "scsi" for disk in disks):
        arguments += ["-device", "virtio-scsi-pci,id=scsi"]
    for number, (disk, image) in enumerate(zip(disks, images)):
        arguments += [
            "-drive",
            f"file={quoted(image.path)},if=none,id=disk{number},format=raw,discard=unmap"
            + (f",{image.options}" if image.options else ""),
            "-device",
            f"{_DEVICES[disk.kind]},drive=disk{number},serial=lab{number}"
            + (",bus=scsi.0" if disk.kind == "scsi" else "")
            + (f",{disk.options}" if disk.options else ""),
        ]
    return arguments


def share_arguments(shares: Iterable[Share]) -> list[str]:
    arguments: list[str] = []
    for share in shares:
        arguments += [
            "-fsdev",
            f"local,id={share.tag},path={quoted(share.path)},security_model=none,multidevs=remap"
            + (",readonly=on" if share.mode == "ro" else ""),
            "-device",
            f"virtio-9p-pci,fsdev={share.tag},mount_tag={share.tag}",
        ]
    return arguments


@dataclass(frozen=True)
class Port:
    """A port of virtio-serial with a name, and a unix socket at which this side or QEMU listens."""

    name: str
    socket: Path
    serves: bool = False


def port_arguments(ports: Iterable[Port]) -> list[str]:
    arguments = ["-device", "virtio-serial-pci"]
    for port in ports:
        name, waits = port.name, ",server=on,wait=off" if port.serves else ""
        arguments += [
            "-chardev",
            f"socket,id=port-{name},path={quoted(port.socket)}{waits}",
            "-device",
            f"virtserialport,chardev=port-{name},name={name}",
        ]
    return arguments


def vsock_arguments(machine: Machine, socket: Path) -> list[str]:
    """Return arguments for vsock by vhost-user, with which the listening process shares the guest's memory."""
    return [
        *("-object", f"memory-backend-memfd,id=memory,size={machine.memory},share=on"),
        *("-machine", "memory-backend=memory", "-chardev", f"socket,id=vsock,path={quoted(socket)}"),
        *("-device", "vhost-user-vsock-pci,chardev=vsock"),
    ]


def machine_arguments(machine: Machine, arch: str) -> list[str]:
    threads = "single" if machine.icount else "multi"
    arguments = [*_MACHINES[arch][0], "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
    arguments += ["-accel", f"tcg,thread={threads}", "-smp", str(machine.cpus), "-m", machine.memory]
    if machine.icount:
        arguments += ["-icount", f"shift=0,sleep={machine.icount}"]
    return arguments


def kernel_arguments(machine: Machine, arch: str, image: Path, initrd: Path, console: Path) -> list[str]:
    # On the instruction clock the TSC counts nanoseconds, so what the guest measures is right.
    khz = tsc.khz() if arch == "amd64" and not machine.icount else None
    measured = f"tsc_early_khz={khz}" if khz else ""
    line = " ".join(word for word in (*_MACHINES[arch][1], *KERNEL_PARAMETERS, measured, machine.append) if word)
    return [
        *("-chardev", f"file,id=console,path={quoted(console)}", "-serial", "chardev:console"),
        *("-kernel", str(image), "-initrd", str(initrd), "-append", line),
    ]


def quoted(path: Path) -> str:
    """Quote a path for QEMU's option syntax: a comma is written twice."""
    return str(path).replace(",", ",,")
