# SPDX-License-Identifier: Apache-2.0
"""Symbols of this very process, whose code tells where it lies, and of processes made of files."""

from __future__ import annotations

import ctypes
import os
import shutil
from pathlib import Path

import pytest

from wptrace.kernel import user_symbols
from wptrace.kernel.symbols import UNKNOWN
from wptrace.kernel.user_symbols import ProcessSymbols, Region, regions

LIBC = ctypes.CDLL(None)


def address(function: str) -> int:
    found = ctypes.cast(getattr(LIBC, function), ctypes.c_void_p).value
    assert found
    return found


def library() -> Region:
    (found,) = [one for one in regions(os.getpid()) if one.start <= address("fsync") < one.end]
    return found


@pytest.mark.parametrize("function", ["fsync", "fdatasync", "sync"])
def test_functions_of_a_library(function: str) -> None:
    found = ProcessSymbols(os.getpid())
    assert found.name(address(function)) == function
    assert found.name(address(function) + 5) == function


def test_what_lies_in_no_file_has_no_name() -> None:
    assert ProcessSymbols(os.getpid()).name(8) == UNKNOWN


def test_a_process_that_has_gone() -> None:
    found = ProcessSymbols(1 << 30)
    assert found.name(address("fsync")) == UNKNOWN


def process(proc: Path, lines: str) -> ProcessSymbols:
    (proc / "7").mkdir(exist_ok=True)
    (proc / "7" / "maps").write_text(lines)
    return ProcessSymbols(7, proc)


def line(start: int, path: str, access: str = "r-xp", offset: int = 0) -> str:
    return f"{start:x}-{start + 0x1000000:x} {access} {offset:08x} 08:01 123 {path}\n"


def test_the_file_is_the_one_that_the_process_sees(tmp_path: Path) -> None:
    """In a container it has another root; what has no table is told by its place in the file."""
    region = library()
    root = tmp_path / "7" / "root"
    (root / "lib").mkdir(parents=True)
    shutil.copy(region.path, root / "lib" / "mine.so")
    (root / "lib" / "text").write_text("no ELF")
    found = process(
        tmp_path,
        line(0x10000000, "/lib/mine.so", offset=region.offset)
        + line(0x20000000, "/lib/text", offset=0x3000)
        + line(0x30000000, "/lib/gone.so (deleted)")
        + line(0x40000000, "[vdso]")
        + line(0x50000000, "")
        + line(0x60000000, "/lib/mine.so", access="rw-p"),
    )
    assert found.name(0x10000000 + address("fsync") - region.start) == "fsync"
    assert found.name(0x20000010) == "[text+0x3010]"
    assert found.name(0x30000010) == "[gone.so (deleted)+0x10]"
    assert found.name(0x40000010) == found.name(0x50000010) == found.name(0x60000010) == UNKNOWN


def test_maps_are_read_anew_for_what_came_later(tmp_path: Path) -> None:
    region = library()
    found = process(tmp_path, "")
    assert found.name(0x10000000) == UNKNOWN
    process(tmp_path, line(0x10000000, region.path, offset=region.offset))
    assert found.name(0x10000000 + address("fsync") - region.start) == "fsync"


def test_a_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_symbols, "_tables", {})
    region = library()
    lines = line(0x10000000, region.path, offset=region.offset) + line(0x20000000, region.path, offset=region.offset)
    found = process(tmp_path, lines)
    found.name(0x10000010)
    read = dict(user_symbols._tables)
    found.name(0x20000010)
    assert len(read) == 1
    assert next(iter(user_symbols._tables.values())) is next(iter(read.values()))
