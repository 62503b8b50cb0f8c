# SPDX-License-Identifier: Apache-2.0
"""Made-up ELF files, including hostile ones."""

from __future__ import annotations

import random
import struct
from tempfile import TemporaryFile

import pytest

from tests.unit.kernel.damage import damaged
from tests.unit.memory import traced
from wptrace.kernel import elf as elf_file
from wptrace.kernel.user_symbols import Functions, functions

ADDRESS = 0x400000
# The offset of the segment in the file.
CODE = 0x1000
SYMBOLS, NAMES = 2, 3


def elf(
    symbols: list[tuple[int, int, int]],
    names: bytes,
    kind: int = SYMBOLS,
    symbols_size: int | None = None,
    names_size: int | None = None,
    type: int = 2,  # noqa: A002 - as the symbols have it
) -> bytes:
    """Build a file with a segment of code and symbols of name offset, address and size."""
    table = b"".join(struct.pack("<IBBHQQ", name, type, 0, 1, value, size) for name, value, size in symbols)
    at = 64 + 56
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 2, 62, 1, 0, 64, at + len(table) + len(names), 0, 64, 56, 1, 64, 3, 0
    )
    segment = struct.pack("<IIQQQQQQ", 1, 5, CODE, ADDRESS, ADDRESS, 0x100000, 0x100000, 0x1000)
    sizes = len(table) if symbols_size is None else symbols_size, len(names) if names_size is None else names_size
    sections = [bytes(64)]
    sections.append(struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, at, sizes[0], 2, 0, 8, 24))
    sections.append(struct.pack("<IIQQQQIIQQ", 0, NAMES, 0, 0, at + len(table), sizes[1], 0, 0, 1, 0))
    return header + segment + table + names + b"".join(sections)


def read(data: bytes) -> Functions | None:
    with TemporaryFile() as file:
        file.write(data)
        file.flush()
        return functions(file.fileno())


def test_functions_by_their_place_in_the_file() -> None:
    found = read(elf([(1, ADDRESS + 0x20, 0x10), (5, ADDRESS, 0)], b"\0one\0two\0"))
    assert found is not None
    assert [found.name(CODE + offset) for offset in (0, 0x1F, 0x20, 0x2F, 0x30)] == ["two", "two", "one", "one", ""]
    assert found.name(0) == ""


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"\x7fELF\2\1" + b"\xff" * 100, b"\x7fELF\2\1" + bytes(100)])
def test_what_is_no_such_file_has_none(data: bytes) -> None:
    assert read(data) is None


def test_many_symbols_may_share_a_long_name() -> None:
    """The name would be stored once for each of them."""
    data = elf([(0, ADDRESS + number, 1) for number in range(20_000)], b"x" * (1 << 20))
    with traced() as memory:
        found = read(data)
        assert found is not None
        assert found.name(CODE + 1) == "x" * 1024
    assert memory.peak < 10 * len(data)


@pytest.mark.parametrize("size", [1 << 40, (1 << 64) - 1])
def test_no_size_is_believed(size: int) -> None:
    symbols = [(1, ADDRESS, 0x10)]
    for data in (elf(symbols, b"\0one\0", symbols_size=size), elf(symbols, b"\0one\0", names_size=size)):
        found = read(data)
        assert found is not None
        assert found.name(CODE) == "one"


def test_a_sparse_file_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    # To trace the memory of all that there may be takes seconds.
    monkeypatch.setattr(elf_file, "_MOST_SYMBOLS", elf_file._MOST_SYMBOLS >> 5)
    with TemporaryFile() as file:
        file.write(elf([(1, ADDRESS, 0x10)], b"\0one\0", symbols_size=1 << 40, names_size=1 << 40))
        file.truncate(1 << 42)
        with traced() as memory:
            found = functions(file.fileno())
            assert found is not None
            assert found.name(CODE) == "one"
    assert memory.peak < 80 << 20


def test_damage_is_no_error() -> None:
    whole = elf([(1, ADDRESS + 0x20, 0x10), (5, ADDRESS, 0)], b"\0one\0two\0")
    chance = random.Random(1)  # noqa: S311 - the same damage each time
    for _ in range(2000):
        data = damaged(whole, chance)
        found = read(bytes(data[: chance.choice((len(data), chance.randrange(len(data))))]))
        if found is not None:
            found.name(CODE + chance.randrange(64))
