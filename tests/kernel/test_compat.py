# SPDX-License-Identifier: Apache-2.0
"""32-bit programs on a 64-bit kernel: a 32-bit task, from an ELF file that is made here."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.kernel.disks import Disk
from tests.kernel.trace import count, lossless
from tests.kernel.window import path_of
from wptrace.flows.io import hooks as io_hooks
from wptrace.flows.io import operations as io_operations

READS, WRITES, OTHERS, BLOCK = 40, 30, 25, 4096
# The address at which the file is mapped; its buffer follows.
_BASE = 0x10000
_MEMORY = 0x8000
_PATH, _CODE = 0x60, 0x100
_EXIT, _READ, _WRITE, _OPEN = 1, 3, 4, 5


class _Machine(NamedTuple):
    elf: int
    flags: int
    o_direct: int
    # 32-bit system calls whose numbers mean reads in 64-bit programs, with a first argument each.
    other: int
    call: Callable[[int, int | None, int, int], bytes]
    """A number, the file unless it is that of the first call, and two arguments."""
    keep: bytes
    """Files that are open for the next calls."""
    add: bytes
    """Add the bytes of a call to those of all."""
    leave: bytes
    """Exit with the number of blocks as code."""


def _arm(words: list[int]) -> bytes:
    return struct.pack(f"<{len(words)}I", *words)


def _arm_load(register: int, value: int) -> list[int]:
    """movw, movt"""
    low, high = value & 0xFFFF, value >> 16
    word = register << 12
    return [
        0xE3000000 | low >> 12 << 16 | word | low & 0xFFF,
        0xE3400000 | high >> 12 << 16 | word | high & 0xFFF,
    ]


def _arm_call(number: int, first: int | None, second: int, third: int) -> bytes:
    """The file is in r4."""
    place = [0xE1A00004] if first is None else _arm_load(0, first)
    return _arm([*_arm_load(7, number), *place, *_arm_load(1, second), *_arm_load(2, third), 0xEF000000])


def _i386_call(number: int, first: int | None, second: int, third: int) -> bytes:
    """The file is in edi, where a 64-bit program has its first argument."""
    place = b"\x89\xfb" if first is None else b"\xbb" + struct.pack("<I", first)
    return place + b"\xb8%b\xb9%b\xba%b\xcd\x80" % tuple(struct.pack("<I", one) for one in (number, second, third))


_MACHINES = {
    "aarch64": _Machine(
        elf=40,
        flags=0x05000400,
        o_direct=0o200000,
        other=63,  # dup2, read
        call=_arm_call,
        keep=_arm([0xE1A04000]),  # mov r4, r0
        add=_arm([0xE0888000]),  # add r8, r8, r0
        # mov r0, r8, lsr #12; mov r7, #1; svc 0
        leave=_arm([0xE1A00628, 0xE3A07000 | _EXIT, 0xEF000000]),
    ),
    "x86_64": _Machine(
        elf=3,
        flags=0,
        o_direct=0o40000,
        other=19,  # lseek, readv
        call=_i386_call,
        keep=b"\x89\xc7",  # mov edi, eax
        add=b"\x01\xc5",  # add ebp, eax
        # mov ebx, ebp; shr ebx, 12; mov eax, 1; int 0x80
        leave=b"\x89\xeb\xc1\xeb\x0c\xb8" + struct.pack("<I", _EXIT) + b"\xcd\x80",
    ),
}


def program(disk: Disk, to: Path) -> Path:
    """Build a program that reads and writes blocks of the disk with O_DIRECT; its exit code is how many."""
    machine = _MACHINES[os.uname().machine]
    buffer = _BASE + _MEMORY - BLOCK
    name = disk.path.encode() + b"\0"
    assert len(name) <= _CODE - _PATH
    code = machine.call(_OPEN, _BASE + _PATH, os.O_RDWR | machine.o_direct, 0) + machine.keep
    code += (machine.call(_READ, None, buffer, BLOCK) + machine.add) * READS
    code += (machine.call(_WRITE, None, buffer, BLOCK) + machine.add) * WRITES
    # dup2 or lseek, of which neither moves blocks.
    code += machine.call(machine.other, None, 10, 0) * OTHERS
    code += machine.leave
    size = _CODE + len(code)
    assert size <= _MEMORY - BLOCK
    ident = b"\x7fELF" + bytes([1, 1, 1]) + bytes(9)
    start = _BASE + _CODE
    header = ident + struct.pack("<HHIIIIIHHHHHH", 2, machine.elf, 1, start, 52, 0, machine.flags, 52, 32, 1, 0, 0, 0)
    segment = struct.pack("<IIIIIIII", 1, 0, _BASE, _BASE, size, _MEMORY, 7, 0x10000)
    to.write_bytes((header + segment).ljust(_PATH, b"\0") + name.ljust(_CODE - _PATH, b"\0") + code)
    to.chmod(0o755)
    return to


def _run(path: Path) -> int:
    try:
        return subprocess.run([path], check=False).returncode
    except OSError as error:
        pytest.skip(f"this kernel or CPU runs no program of 32 bits: {error}")


@pytest.mark.parametrize("way", ["best", io_operations.CALLS])
def test_a_program_of_32_bits(disk: Disk, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Function hooks see it like any other program; system call hooks do not, because its calls have other numbers."""
    if way == io_operations.CALLS:
        monkeypatch.setattr(io_operations, "ways", lambda kinds: (io_operations.BY_CALL,))
        monkeypatch.setattr(io_operations, "sync_ways", lambda kinds: (io_operations.BY_CALL,))
    elf = program(disk, tmp_path / "elf32")
    with path_of(disk) as flow:
        before = disk.completed()
        with flow.window() as trace:
            assert _run(elf) == READS + WRITES
        after = disk.completed()
        serving = flow.flow._running.way(io_hooks.OPERATION).name
    assert lossless(trace.summary), trace.summary["loss"]
    for op, made in (("read", READS), ("write", WRITES)):
        assert count(trace.summary, op=op) == after[op] - before[op] == made
        assert count(trace.summary, op=op, kind="operation") == (0 if serving == io_operations.CALLS else made)
    assert trace.summary["operations"]["finished"] == (0 if serving == io_operations.CALLS else READS + WRITES)
    note = any("32-bit programs" in one for one in trace.lines[0]["notes"])
    assert note == (serving == io_operations.CALLS)
