# SPDX-License-Identifier: Apache-2.0
"""Exchanges become stores in the code of an object, and nothing else changes."""

from __future__ import annotations

import struct

import pytest

from wptrace.bpf import atomics
from wptrace.bpf.object import find

EXCHANGE = struct.pack("<BBhi", 0xDB, 0x21, -8, 0xF1)
EXCHANGE_HALF = struct.pack("<BBhi", 0xC3, 0x21, 4, 0xF1)
STORE = struct.pack("<BBhi", 0x7B, 0x21, -8, 0)
STORE_HALF = struct.pack("<BBhi", 0x63, 0x21, 4, 0)
ADD = struct.pack("<BBhi", 0xDB, 0x21, -8, 0)
# The bytes of an exchange, but across two instructions.
ACROSS = bytes(4) + EXCHANGE + bytes(4)


def elf(code: bytes, data: bytes) -> bytes:
    """Build a file of two sections, one with instructions and one without."""
    table = 64 + len(code) + len(data)
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01", 1, 247, 1, 0, 0, table, 0, 64, 0, 0, 64, 2, 0)
    first = struct.pack("<IIQQQQIIQQ", 0, 1, 6, 0, 64, len(code), 0, 0, 8, 0)
    second = struct.pack("<IIQQQQIIQQ", 0, 1, 3, 0, 64 + len(code), len(data), 0, 0, 8, 0)
    return header + code + data + first + second


def test_exchanges_become_stores() -> None:
    made = elf(ADD + EXCHANGE + ACROSS + EXCHANGE_HALF, EXCHANGE)
    assert atomics.exchanges(made) == [72, 96]
    assert atomics.as_stores(made) == elf(ADD + STORE + ACROSS + STORE_HALF, EXCHANGE)


@pytest.mark.parametrize("data", [b"", b"\x7fELF", bytes(64), elf(EXCHANGE, b"")[:-1]])
def test_what_is_no_object_is_left_as_it_is(data: bytes) -> None:
    """libbpf reports what is wrong with it."""
    assert atomics.as_stores(data) == data


def test_the_path_object_has_some() -> None:
    """It has several exchanges, and each becomes a store."""
    data = find("io_path").read_bytes()
    found = atomics.exchanges(data)
    assert len(found) > 3
    changed = atomics.as_stores(data)
    assert atomics.exchanges(changed) == []
    different = [at for at, (old, new) in enumerate(zip(data, changed)) if old != new]
    assert {min(range(len(found)), key=lambda one: abs(found[one] - at)) for at in different} == set(range(len(found)))
    assert len(different) == 2 * len(found)
