# SPDX-License-Identifier: Apache-2.0
"""Compare-and-exchange, for kernels that have none: those before 5.12 (5ffa25502b5a), and on arm64 before 5.18.

They refuse every program that has such an instruction anywhere, also where it is never reached. For them it becomes a
plain store, which is what the sources expect of them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

_HEADER = struct.Struct("<40xQ10xHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_EXECUTABLE = 4  # SHF_EXECINSTR
_INSTRUCTION = 8
# BPF_STX with BPF_ATOMIC, of 8 or 4 bytes; registers and offset; BPF_CMPXCHG. And what stores as many bytes.
_EXCHANGE = re.compile(rb"([\xdb\xc3])(...)\xf1\0\0\0", re.DOTALL)
_STORES = {b"\xdb": b"\x7b", b"\xc3": b"\x63"}


def exchanges(data: bytes) -> list[int]:
    """Return the places of exchanges in an object file."""
    found = []
    for begin, end in _code(data):
        match = _EXCHANGE.search(data, begin, end)
        while match:
            if (match.start() - begin) % _INSTRUCTION:
                match = _EXCHANGE.search(data, match.start() + 1, end)
                continue
            found.append(match.start())
            match = _EXCHANGE.search(data, match.end(), end)
    return found


def as_stores(data: bytes) -> bytes:
    """The register that gets what was there keeps what was expected to be there: the exchange seems to succeed."""
    changed = bytearray(data)
    for at in exchanges(data):
        changed[at : at + 1] = _STORES[data[at : at + 1]]
        changed[at + 4 : at + 8] = bytes(4)
    return bytes(changed)


def _code(data: bytes) -> Iterator[tuple[int, int]]:
    """Begin and end of the sections with instructions; none in what is not an object file, which libbpf refuses."""
    if len(data) < _HEADER.size:
        return
    table, size, count, _ = _HEADER.unpack_from(data)
    if size != _SECTION.size or table + count * size > len(data):
        return
    for number in range(count):
        _, _, flags, _, begin, length, *_ = _SECTION.unpack_from(data, table + number * size)
        if flags & _EXECUTABLE:
            yield begin, min(begin + length, len(data))
