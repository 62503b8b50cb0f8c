# SPDX-License-Identifier: Apache-2.0
"""The system calls that read and write, against the kernel's own tables in this system's headers."""

from __future__ import annotations

import platform
import re
from pathlib import Path
from typing import Callable

import pytest

from wptrace.flows.io.operations import SYNCS, call, calls
from wptrace.kernel import system_calls

SOURCE = Path(__file__).resolve().parents[4] / "bpf_src/block/path/entry.h"
KINDS = Path(__file__).resolve().parents[4] / "bpf_src/block/path/calls.h"
CALLS_OF = SOURCE.with_name("call.h")
HEADERS = {
    "x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"),
    "aarch64": ("/usr/include/asm-generic/unistd.h",),
}
COUNT = 512
# The kernel's names.
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
    "syncfs": ("syncfs",),
    "sync_file_range": ("sync_file_range",),
    "sync": ("sync",),
    "msync": ("msync",),
    "events": ("io_getevents", "io_pgetevents", "io_uring_enter"),
}


def kinds() -> list[str]:
    (body,) = re.findall(r"enum call_kind \{(.*?)\}", KINDS.read_text(), re.S)
    return [name.lower() for name in re.findall(r"CALL_KIND_(\w+),", body)]


def test_every_kind_of_the_program_has_its_calls() -> None:
    assert kinds()[0] == "none"
    assert set(kinds()[1:]) == set(NAMES)


def of_headers(machine: str) -> dict[str, int]:
    header = next((Path(path) for path in HEADERS[machine] if Path(path).exists()), None)
    if header is None:
        pytest.skip(f"the kernel's headers of {machine} are not installed")
    found = re.findall(r"#define __NR(?:3264)?_(\w+) (\d+)$", header.read_text(), re.M)
    return {name: int(number) for name, number in found}


@pytest.mark.parametrize("machine", HEADERS)
def test_numbers_are_those_of_the_kernel(machine: str) -> None:
    defined = of_headers(machine)
    table = calls(COUNT, kinds(), True, True, machine, events=True)
    assert len(table) == COUNT
    expected = {defined[name]: kind for kind, names in NAMES.items() for name in names}
    assert {number: kinds()[kind] for number, kind in enumerate(table) if kind} == expected


@pytest.mark.parametrize(
    ("name", "belongs"),
    [
        ("READ", lambda kind: "read" in kind),
        ("VECTOR", lambda kind: kind.endswith(("v", "v2"))),
        ("OFFSET", lambda kind: kind.startswith("p")),
        ("SYNC", lambda kind: kind in SYNCS),
    ],
)
def test_the_program_knows_what_each_kind_does(name: str, belongs: Callable[[str], bool]) -> None:
    source = SOURCE.read_text()
    listed = re.search(rf"#define {name}_CALLS (.*?)\n(?!\t)", source, re.S)
    assert listed
    found = {kind.lower() for kind in re.findall(r"1U << CALL_KIND_(\w+)", listed[1])}
    assert found == {kind for kind in kinds()[1:] if belongs(kind)}


def test_this_machine_is_meant_by_default() -> None:
    assert calls(COUNT, kinds(), True, True) == calls(COUNT, kinds(), True, True, platform.machine())
    assert calls(COUNT, kinds(), True, True, "riscv64") == bytes(COUNT)


@pytest.mark.parametrize("machine", HEADERS)
def test_names_are_those_of_the_kernel(machine: str) -> None:
    defined = of_headers(machine)
    known = system_calls.numbers(machine)
    assert len(known) > 80
    # The headers of an old system lack a few of them.
    old = {name for name in known if name not in defined}
    assert len(old) < 10
    # Two that 32-bit kernels also have with 64-bit arguments have another name in the generic table.
    assert {name: number for name, number in known.items() if name not in old} == {
        name: defined[name] for name in known if name not in old
    }
    assert len(set(known.values())) == len(known)
    assert not system_calls.numbers("riscv64")


def test_what_calls_are_called() -> None:
    numbers = system_calls.numbers("x86_64")
    words = {"pread64": "pread", "fdatasync": "fdatasync", "io_uring_enter": "io_uring", "io_submit": "aio"}
    for name, word in words.items():
        assert call("system_call", numbers[name], "x86_64") == word
    assert call("system_call", 999, "x86_64") == "call 999"
    assert call("system_call", 0, "riscv64") == "call 0"
    (body,) = re.findall(r"enum call_class \{(.*?)\}", CALLS_OF.read_text(), re.S)
    classes = [name.lower() for name in re.findall(r"CALL_CLASS_(\w+),", body)]
    assert classes[0] == "system_call"
    reported = {name: call(name, 0) for name in classes[1:]}
    assert (reported["pagefault"], reported["swapin"], reported["none"]) == ("page fault", "swap-in", "nobody")
    # All I/O of io_uring is one row, whichever task does it.
    assert reported["uring"] == call("system_call", numbers["io_uring_enter"], "x86_64")
