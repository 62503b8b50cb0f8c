# SPDX-License-Identifier: Apache-2.0
"""Which system calls read and write, against the kernel's own tables in this system's headers."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import pytest

from wptrace.flows.io import syscalls
from wptrace.flows.io.syscalls import CALLS, SYNCS, calls

SOURCE = Path(__file__).resolve().parents[4] / "bpf_src/block/path/entry.h"
HEADERS = {
    "x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"),
    "aarch64": ("/usr/include/asm-generic/unistd.h",),
}
# What the kernel calls them.
NAMES = {
    "read": ("read",),
    "write": ("write",),
    "readv": ("readv",),
    "writev": ("writev",),
    "pread": ("pread64",),
    "pwrite": ("pwrite64",),
    "preadv": ("preadv", "preadv2"),
    "pwritev": ("pwritev", "pwritev2"),
    "fsync": ("fsync", "fdatasync"),
    "sync_file_range": ("sync_file_range",),
    "msync": ("msync",),
}


def kinds() -> list[str]:
    (body,) = re.findall(r"enum call_kind \{(.*?)\}", SOURCE.read_text(), re.S)
    return [name.lower() for name in re.findall(r"CALL_KIND_(\w+),", body)]


def test_the_table_is_as_large_as_the_programs_one() -> None:
    assert f"#define CALLS {CALLS}\n" in SOURCE.read_text()
    assert kinds()[0] == "none"
    assert set(kinds()[1:]) == set(NAMES)


@pytest.mark.parametrize("machine", HEADERS)
def test_numbers_are_those_of_the_kernel(machine: str) -> None:
    header = next((Path(path) for path in HEADERS[machine] if Path(path).exists()), None)
    if header is None:
        pytest.skip(f"the kernel's headers of {machine} are not installed")
    defined = {
        name: int(number)
        for name, number in re.findall(r"#define __NR(?:3264)?_(\w+) (\d+)$", header.read_text(), re.M)
    }
    table = calls(kinds(), True, True, machine)
    assert len(table) == CALLS
    expected = {defined[name]: kind for kind, names in NAMES.items() for name in names}
    assert {number: kinds()[kind] for number, kind in enumerate(table) if kind} == expected


def test_the_program_tells_reads_from_writes_by_the_kind() -> None:
    """`kind & 1` is a read, all from CALL_KIND_PREAD on have a position, and from CALL_KIND_FSYNC on they sync."""
    assert "begin(file, kind & 1 ? OP_KIND_READ : OP_KIND_WRITE," in SOURCE.read_text()
    plain = kinds()[1 : kinds().index("fsync")]
    assert kinds()[len(plain) + 1 :] == list(SYNCS)
    for number, kind in enumerate(plain, start=1):
        assert ("write" in kind) is not bool(number & 1)
        assert kind.startswith("p") is (number >= kinds().index("pread"))


def test_this_machine_is_meant_by_default() -> None:
    assert calls(kinds(), True, True) == calls(kinds(), True, True, platform.machine())
    assert calls(kinds(), True, True, "riscv64") == bytes(CALLS)
    assert set(syscalls._NUMBERS) == set(HEADERS)
