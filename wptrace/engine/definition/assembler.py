# SPDX-License-Identifier: Apache-2.0
"""BPF instructions with jumps to labels, and a listing of them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from wptrace.errors import WptraceError

_FORMAT = struct.Struct("<BBhi")
SIZE = _FORMAT.size

R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, FP = range(11)
_LOADS = {1: 0x71, 2: 0x69, 4: 0x61, 8: 0x79}
_STORE = 0x7B
_STORE_NUMBER, _ATOMIC_ADD = 0x7A, 0xDB
WIDE, CALL, EXIT, _SWAP = 0x18, 0x85, 0x95, 0xDC
# With an immediate number; with a register the bit REGISTER is set as well.
ADD, MUL, OR, AND, SHIFT_LEFT, SHIFT_RIGHT, SHIFT_SIGNED, MOVE = 0x07, 0x27, 0x47, 0x57, 0x67, 0x77, 0xC7, 0xB7
REGISTER = 0x08
# Arithmetic instructions: on whole registers, and on their lower halves.
_ALL, _HALF = 0x07, 0x04
ALWAYS = 0x05
EQUAL, NOT_EQUAL, ANY_BIT = 0x15, 0x55, 0x45
GREATER, GREATER_EQUAL, LESS, LESS_EQUAL = 0x25, 0x35, 0xA5, 0xB5
SIGNED_GREATER, SIGNED_GREATER_EQUAL, SIGNED_LESS, SIGNED_LESS_EQUAL = 0x65, 0x75, 0xC5, 0xD5
TO_SUBPROGRAM = 1  # BPF_PSEUDOCALL
_MAP, MAP_VALUE = 1, 2  # BPF_PSEUDO_MAP_FD, BPF_PSEUDO_MAP_VALUE
_HELPERS = {
    1: "map_lookup_elem",
    2: "map_update_elem",
    3: "map_delete_elem",
    5: "ktime_get_ns",
    7: "get_prandom_u32",
    8: "get_smp_processor_id",
    14: "get_current_pid_tgid",
    16: "get_current_comm",
    35: "get_current_task",
    112: "probe_read_user",
    113: "probe_read_kernel",
    114: "probe_read_user_str",
    115: "probe_read_kernel_str",
    131: "ringbuf_reserve",
    132: "ringbuf_submit",
    158: "get_current_task_btf",
}


class Instruction(NamedTuple):
    code: int
    to: int = 0
    source: int = 0
    offset: int = 0
    number: int = 0

    def packed(self) -> bytes:
        return _FORMAT.pack(self.code, self.to | self.source << 4, self.offset, self.number)


def half(operation: int) -> int:
    """The operation on the lower 32 bits, which clears the upper ones."""
    return operation & ~_ALL | _HALF


def fits(number: int) -> bool:
    return -(1 << 31) <= number < 1 << 31


def signed(number: int, bits: int = 64) -> int:
    number &= (1 << bits) - 1
    return number - (1 << bits) if number >> (bits - 1) else number


class Code:
    """Instructions in the order in which they are added."""

    def __init__(self) -> None:
        self._instructions: list[Instruction] = []
        self._jumps: dict[int, str] = {}
        self._labels: dict[str, int] = {}
        self._named = 0

    def __len__(self) -> int:
        return len(self._instructions)

    def fresh(self, name: str) -> str:
        self._named += 1
        return f"{name} {self._named}"

    def label(self, name: str) -> None:
        self._labels[name] = len(self)

    def wanted(self, name: str) -> bool:
        return name in self._jumps.values()

    def _add(self, code: int, to: int = 0, source: int = 0, offset: int = 0, number: int = 0) -> None:
        self._instructions.append(Instruction(code, to, source, offset, number))

    def load(self, to: int, address: int, offset: int, size: int = 8) -> None:
        self._add(_LOADS[size], to, address, offset)

    def store(self, address: int, offset: int, source: int) -> None:
        self._add(_STORE, address, source, offset)

    def store_number(self, address: int, offset: int, number: int) -> None:
        self._add(_STORE_NUMBER, address, 0, offset, number)

    def add_atomically(self, address: int, offset: int, source: int) -> None:
        self._add(_ATOMIC_ADD, address, source, offset)

    def compute(self, operation: int, to: int, number: int) -> None:
        self._add(operation, to, 0, 0, number)

    def compute_with(self, operation: int, to: int, source: int) -> None:
        self._add(operation | REGISTER, to, source)

    def move(self, to: int, source: int) -> None:
        self.compute_with(MOVE, to, source)

    def set(self, to: int, number: int) -> None:
        number = signed(number)
        if fits(number):
            self.compute(MOVE, to, number)
            return
        self._add(WIDE, to, number=signed(number, 32))
        self._add(0, number=signed(number >> 32, 32))

    def swap(self, to: int, bits: int) -> None:
        self._add(_SWAP, to, number=bits)

    def call(self, helper: int) -> None:
        self._add(CALL, number=helper)

    def exit(self) -> None:
        self._add(EXIT)

    def jump(self, label: str) -> None:
        self._jumps[len(self)] = label
        self._add(ALWAYS)

    def jump_if(self, condition: int, register: int, number: int, label: str, spare: int = R8) -> None:
        """Move a number that does not fit into an instruction through another register."""
        number = signed(number)
        if not fits(number):
            self.set(spare, number)
            self._jumps[len(self)] = label
            self._add(condition | REGISTER, register, spare)
            return
        self._jumps[len(self)] = label
        self._add(condition, register, number=number)

    def bytes(self) -> bytes:
        for at, label in self._jumps.items():
            distance = self._labels[label] - at - 1
            if distance >= 1 << 15:
                raise WptraceError("a point has more filters and fields than a program has room for")
            self._instructions[at] = self._instructions[at]._replace(offset=distance)
        return b"".join(instruction.packed() for instruction in self._instructions)


def parse(code: bytes) -> list[Instruction]:
    return [
        Instruction(operation, registers & 15, registers >> 4, offset, number)
        for operation, registers, offset, number in _FORMAT.iter_unpack(code)
    ]


@lru_cache(maxsize=64)
def stack(code: bytes) -> int:
    """The bytes of stack that a program uses, without its subprograms."""
    lowest, end = 0, len(code) // SIZE
    addresses: set[int] = set()
    for at, (operation, registers, offset, number) in enumerate(_FORMAT.iter_unpack(code)):
        if at >= end:
            break
        to, source, kind = registers & 15, registers >> 4, operation & 7
        if operation == CALL and source == TO_SUBPROGRAM:
            # Subprograms follow the program.
            end = min(end, at + 1 + number)
        if (kind == 1 and source == FP) or (kind in (2, 3) and to == FP):
            lowest = min(lowest, offset)
        if operation == MOVE | REGISTER and source == FP:
            addresses.add(to)
        elif operation == ADD and to in addresses:
            lowest = min(lowest, number)
            addresses.discard(to)
        elif kind in (0, 1, 4, 7):
            addresses.discard(to)
    return -lowest + 7 & ~7


# --- As text ----------------------------------------------------------------------------------------------------------

_SIGNS = {0x0: "+=", 0x1: "-=", 0x2: "*=", 0x3: "/=", 0x4: "|=", 0x5: "&=", 0x6: "<<=", 0x7: ">>="}
_SIGNS |= {0x9: "%=", 0xA: "^=", 0xB: "=", 0xC: "s>>="}
_TESTS = {0x1: "==", 0x2: ">", 0x3: ">=", 0x4: "&", 0x5: "!=", 0x6: "s>", 0x7: "s>=", 0xA: "<", 0xB: "<=", 0xC: "s<"}
_TESTS |= {0xD: "s<="}
_SIZES = {0x00: "u32", 0x08: "u16", 0x10: "u8", 0x18: "u64"}


def listing(code: bytes) -> Iterator[str]:
    """One line for each instruction, in the verifier's notation."""
    wide: Instruction | None = None
    for at, one in enumerate(parse(code)):
        if wide is not None:
            number = one.number << 32 | wide.number & 0xFFFFFFFF
            yield f"{at - 1:5}: r{wide.to} = {_of_map(wide, one) if wide.source else number} ll"
            wide = None
        elif one.code == WIDE:
            wide = one
        else:
            yield f"{at:5}: {_shown(at, one)}"


def _of_map(first: Instruction, second: Instruction) -> str:
    """A map by its descriptor, or a place in its value."""
    return f"map {first.number}" if first.source == _MAP else f"value of map {first.number} {second.number:+}"


def _shown(at: int, one: Instruction) -> str:
    kind, high = one.code & 7, one.code >> 4
    if one.code == CALL:
        return (
            f"call {_HELPERS.get(one.number, f'helper {one.number}') if not one.source else f'{at + 1 + one.number}'}"
        )
    if one.code == EXIT:
        return "exit"
    if one.code == ALWAYS:
        return f"goto {at + 1 + one.offset}"
    if kind in (1, 2, 3):
        return _memory(one, _SIZES[one.code & 0x18])
    register = "r" if kind == 7 or kind == 5 else "w"
    other = f"{register}{one.source}" if one.code & REGISTER else f"{one.number}"
    if kind in (5, 6):
        return f"if {register}{one.to} {_TESTS.get(high, '?')} {other} goto {at + 1 + one.offset}"
    if high == 0xD:
        return f"r{one.to} = be{one.number} r{one.to}"
    if high == 0x8:
        return f"{register}{one.to} = -{register}{one.to}"
    return f"{register}{one.to} {_SIGNS.get(high, '?')} {other}"


def _memory(one: Instruction, size: str) -> str:
    if one.code & 7 == 1:
        return f"r{one.to} = *({size} *)(r{one.source} {one.offset:+})"
    place = f"*({size} *)(r{one.to} {one.offset:+})"
    if one.code & 0xE0 == 0xC0:
        return f"lock {place} {'+=' if one.number == 0 else 'exchange'} r{one.source}"
    return f"{place} = {f'r{one.source}' if one.code & 7 == 3 else one.number}"
