# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import qemu, tsc
from tests.lab.errors import UsageError


def test_disks_are_named_as_the_guest_names_them() -> None:
    disks = [disk for text in ("scsi=2", "nvme", "virtio", "nvme") for disk in qemu.parse_disk(text)]
    assert qemu.disk_names(disks) == ["sda", "sdb", "nvme0n1", "vda", "nvme1n1"]


def test_a_disk_with_options() -> None:
    assert (
        qemu.parse_disk("nvme=2:logical_block_size=4096,max_ioqpairs=1")
        == [qemu.Disk("nvme", "logical_block_size=4096,max_ioqpairs=1")] * 2
    )


@pytest.mark.parametrize("text", ["", "floppy", "nvme=", "nvme=0", "nvme=17", "nvme:", "NVME"])
def test_a_disk_that_makes_no_sense(text: str) -> None:
    with pytest.raises(UsageError):
        qemu.parse_disk(text)


def test_disk_arguments() -> None:
    disks = [qemu.Disk("nvme"), qemu.Disk("scsi", "logical_block_size=4096"), qemu.Disk("scsi")]
    images = [qemu.Image(Path("/t/disk0")), qemu.Image(Path("/t/a,b"), "cache=none"), qemu.Image(Path("/t/disk2"))]
    words = qemu.disk_arguments(disks, images)
    assert words.count("virtio-scsi-pci,id=scsi") == 1
    assert "nvme,drive=disk0,serial=lab0" in words
    assert "scsi-hd,drive=disk1,serial=lab1,bus=scsi.0,logical_block_size=4096" in words
    assert "file=/t/a,,b,if=none,id=disk1,format=raw,discard=unmap,cache=none" in words
    assert qemu.disk_arguments([], []) == []


def test_the_root_file_system_is_read_only() -> None:
    words = qemu.share_arguments([qemu.Share("root", Path("/")), qemu.Share("s", Path("/out"), "rw")])
    assert words[1].endswith("readonly=on")
    assert "readonly" not in words[5]
    assert words[7] == "virtio-9p-pci,fsdev=s,mount_tag=s"


def test_ports() -> None:
    words = qemu.port_arguments([qemu.Port("out", Path("/t/out"))])
    assert "socket,id=port-out,path=/t/out" in words
    assert "virtserialport,chardev=port-out,name=out" in words


@pytest.mark.parametrize(
    ("machine", "there"),
    [
        (qemu.Machine(), ["tcg,thread=multi", "2", "2G"]),
        (qemu.Machine(1, "1G", "off"), ["tcg,thread=single", "1", "shift=0,sleep=off"]),
    ],
)
def test_machine(machine: qemu.Machine, there: list[str]) -> None:
    words = qemu.machine_arguments(machine, "amd64")
    assert words[0] == "qemu-system-x86_64"
    assert set(there) < set(words)
    assert "-no-reboot" in words
    assert ("-icount" in words) == bool(machine.icount)


def test_the_kernel_command_line() -> None:
    words = qemu.kernel_arguments(qemu.Machine(append="nokaslr"), "amd64", Path("/k"), Path("/i"), Path("/t/console"))
    line = words[words.index("-append") + 1].split()
    assert {"console=ttyS0", "tsc=reliable", "clocksource=tsc", "panic=-1"} < set(line)
    assert line[-1] == "nokaslr"
    assert (f"tsc_early_khz={tsc.khz()}" in line) == (tsc.khz() is not None)
    counted = qemu.kernel_arguments(qemu.Machine(icount="off"), "amd64", Path("/k"), Path("/i"), Path("/t/console"))
    assert "tsc_early_khz" not in " ".join(counted)
