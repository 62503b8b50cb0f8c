# SPDX-License-Identifier: Apache-2.0
"""Symbols of this process, whose code shows where it is mapped, and of made-up processes."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from wptrace.kernel import user_symbols
from wptrace.kernel.symbols import UNKNOWN
from wptrace.kernel.user_symbols import ProcessSymbols, Region, regions

# The library is loaded by name: a non-PIE executable would resolve a function to its own PLT.
LIBC = ctypes.CDLL("libc.so.6")
SIZE = 0x1000000


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


def process(proc: Path, lines: str | bytes) -> ProcessSymbols:
    (proc / "7").mkdir(exist_ok=True)
    (proc / "7" / "maps").write_bytes(lines if isinstance(lines, bytes) else lines.encode())
    return ProcessSymbols(7, proc)


def line(start: int, path: str, access: str = "r-xp", offset: int = 0, file: str | Path = "") -> str:
    """Make a line of maps for the file at `path`, or for `file`, which the process sees there."""
    dev, inode = 0, 0
    with suppress(OSError):
        found = os.stat(file or path)  # noqa: PTH116 - either may be a string
        dev, inode = found.st_dev, found.st_ino
    place = f"{os.major(dev):02x}:{os.minor(dev):02x} {inode}"
    return f"{start:x}-{start + SIZE:x} {access} {offset:08x} {place} {path}\n"


def in_memory(proc: Path, start: int, path: str | Path) -> None:
    """Make a link of /proc/PID/map_files."""
    (proc / "7" / "map_files").mkdir(parents=True, exist_ok=True)
    (proc / "7" / "map_files" / f"{start:x}-{start + SIZE:x}").symlink_to(path)


@pytest.fixture
def patience() -> Iterator[None]:
    """Fail after a while, because a test may open a pipe without a writer."""

    def end(*unused: Any) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(5)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def test_the_file_is_the_one_that_the_process_sees(tmp_path: Path) -> None:
    """A container has another root. A file without symbols is shown by the offset in it."""
    region = library()
    root = tmp_path / "7" / "root"
    (root / "lib").mkdir(parents=True)
    mine = shutil.copy(region.path, root / "lib" / "mine.so")
    text = root / "lib" / "text"
    text.write_text("no ELF")
    found = process(
        tmp_path,
        line(0x10000000, "/lib/mine.so", offset=region.offset, file=mine)
        + line(0x20000000, "/lib/text", offset=0x3000, file=text)
        + line(0x30000000, "/lib/gone.so (deleted)")
        + line(0x40000000, "[vdso]")
        + line(0x50000000, "")
        + line(0x60000000, "/lib/mine.so", access="rw-p", file=mine),
    )
    assert found.name(0x10000000 + address("fsync") - region.start) == "fsync"
    assert found.name(0x20000010) == "[text+0x3010]"
    assert found.name(0x30000010) == "[gone.so (deleted)+0x10]"
    assert found.name(0x40000010) == found.name(0x50000010) == found.name(0x60000010) == UNKNOWN


def test_the_mapped_file_is_opened_where_it_is_not_at_its_path_any_more(tmp_path: Path) -> None:
    region = library()
    mine = shutil.copy(region.path, tmp_path / "kept")
    found = process(tmp_path, line(0x10000000, "/lib/gone.so (deleted)", offset=region.offset))
    in_memory(tmp_path, 0x10000000, mine)
    assert found.name(0x10000000 + address("fsync") - region.start) == "fsync"


def test_a_path_leads_to_the_mapped_file_or_to_nothing(tmp_path: Path) -> None:
    """If map_files cannot be followed, or the process has exited, another file may be at the path by now."""
    region = library()
    root = tmp_path / "7" / "root"
    root.mkdir(parents=True)
    other = shutil.copy(region.path, root / "other.so")
    (root / "link.so").symlink_to(region.path)
    shutil.copy(region.path, root / "gone.so (deleted)")
    found = process(
        tmp_path,
        line(0x10000000, "/other.so", offset=region.offset, file=region.path)
        + line(0x20000000, "/link.so", offset=region.offset, file=region.path)
        + line(0x30000000, "/gone.so (deleted)", offset=region.offset, file=root / "gone.so (deleted)")
        + line(0x40000000, "/other.so", offset=region.offset, file=other),
    )
    place = address("fsync") - region.start
    assert found.name(0x10000000 + place).startswith("[other.so+")
    assert found.name(0x20000000 + place).startswith("[link.so+")
    assert found.name(0x30000000 + place).startswith("[gone.so (deleted)+")
    assert found.name(0x40000000 + place) == "fsync"


@pytest.mark.usefixtures("patience")
def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    """A process may unlink its binary and put a pipe or a link in its place."""
    root = tmp_path / "7" / "root"
    root.mkdir(parents=True)
    pipe = root / "pipe (deleted)"
    os.mkfifo(pipe)
    os.mkfifo(root / "pipe")
    found = process(
        tmp_path,
        line(0x10000000, "/pipe (deleted)", file=pipe) + line(0x20000000, "/pipe") + line(0x30000000, "/terminal"),
    )
    in_memory(tmp_path, 0x20000000, root / "pipe")
    in_memory(tmp_path, 0x30000000, "/dev/tty")
    assert found.name(0x10000010) == "[pipe (deleted)+0x10]"
    assert found.name(0x20000010) == "[pipe+0x10]"
    assert found.name(0x30000010) == "[terminal+0x10]"


@pytest.mark.parametrize("byte", [b"\f", b"\v", b"\r", b"\x1c", b"\x85", "\x85".encode(), "\u2028".encode(), b"\xff"])
def test_any_byte_may_be_in_a_name(tmp_path: Path, byte: bytes) -> None:
    name = b"/lib/a" + byte + b"b"
    found = process(tmp_path, line(0x10000000, "@").encode().replace(b"@", name) + line(0x20000000, "/c").encode())
    assert found.name(0x10000010) == f"[{os.fsdecode(name[5:])}+0x10]"
    assert found.name(0x20000010) == "[c+0x10]"


def test_maps_are_read_anew_for_what_came_later(tmp_path: Path) -> None:
    region = library()
    found = process(tmp_path, "")
    assert found.name(0x10000000) == UNKNOWN
    process(tmp_path, line(0x10000000, region.path, offset=region.offset))
    assert found.name(0x10000000 + address("fsync") - region.start) == "fsync"


def test_a_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_symbols, "_tables", OrderedDict())
    region = library()
    lines = line(0x10000000, region.path, offset=region.offset) + line(0x20000000, region.path, offset=region.offset)
    found = process(tmp_path, lines)
    found.name(0x10000010)
    read = dict(user_symbols._tables)
    found.name(0x20000010)
    assert len(read) == 1
    assert next(iter(user_symbols._tables.values())) is next(iter(read.values()))


def test_tables_of_all_files_have_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The most recently used tables are kept."""
    monkeypatch.setattr(user_symbols, "_tables", OrderedDict())
    region = library()
    copies = [str(shutil.copy(region.path, tmp_path / f"copy{number}.so")) for number in range(3)]
    lines = [line(0x10000000 * (place + 1), path, offset=region.offset) for place, path in enumerate(copies)]
    found = process(tmp_path, "".join(lines))
    found.name(0x10000010)
    (first,) = user_symbols._tables.values()
    assert first is not None
    monkeypatch.setattr(user_symbols, "_LARGEST", 2 * first.bytes)
    for start in (0x20000010, 0x10000010, 0x30000010):
        found.name(start)
    assert [key[1] for key in user_symbols._tables] == [os.stat(copies[place]).st_ino for place in (0, 2)]  # noqa: PTH116
