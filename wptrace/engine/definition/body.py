# SPDX-License-Identifier: Apache-2.0
"""The program of a point: a front end, and the parts of its body that the point uses.

A body (bpf_src/generic/) is compiled against stand-ins: marked numbers for the constants of a point, and variables for
`args` and the slots. They are replaced here. Branches on constants are resolved, which leaves out dead code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from wptrace.engine.definition import assembler as asm
from wptrace.engine.definition.assembler import FP, Instruction
from wptrace.errors import WptraceError

_CONDITIONAL = {5, 6}
"""Classes of jumps."""
_HALF_BITS = 32


class StandIns(NamedTuple):
    marks: Mapping[str, int]
    """Numbers that are replaced, by name."""
    args: tuple[int, int] = (-1, 0)
    """The map that holds the variable, and the offset in it."""
    slot: tuple[int, int] = (-1, 0)
    slots: int = -1
    """The map that replaces the stand-in."""


class Numbers(NamedTuple):
    """Constants of a point."""

    flags: int
    state: int
    stages: int
    slot_bits: int
    exchanges: bool
    """The kernel has atomic instructions that return the old value."""


def key_register(body: bytes, marks: Mapping[str, int]) -> int:
    """The register in which the body expects the key."""
    first, second = _parsed(body)[:2]
    if first.code != asm.WIDE or second.number != marks["key"]:
        raise WptraceError("the BPF object and the Python package are of different versions", "reinstall wptrace")
    return first.to


def joined(front: bytes, body: bytes, args: int, stand_ins: StandIns, numbers: Numbers) -> bytes:
    """The program; `args` lies so many bytes below the frame pointer."""
    # The front end supplies the key.
    return _Joined((*_parsed(front), *_parsed(body)[2:]), args, stand_ins, numbers).bytes()


@lru_cache(maxsize=64)
def _parsed(code: bytes) -> tuple[Instruction, ...]:
    return tuple(asm.parse(code))


class _Joined:
    def __init__(self, code: Sequence[Instruction], args: int, stand_ins: StandIns, numbers: Numbers) -> None:
        self._code = code
        self._args = args
        self._stand_ins = stand_ins
        self._numbers = numbers
        self._names = {mark: name for name, mark in stand_ins.marks.items()}
        self._made: list[Instruction] = []
        self._targets: dict[int, int] = {}
        """Targets of emitted jumps and calls, in the original code."""
        self._placed: dict[int, int] = {}

    def bytes(self) -> bytes:
        functions = [0]
        # Subprograms follow, each in one piece.
        for function in functions:
            pending = [function]
            while pending:
                start = pending.pop()
                if start not in self._placed:
                    self._follow(start, pending, functions)
        for at, target in self._targets.items():
            one, distance = self._made[at], self._placed[target] - at - 1
            self._made[at] = one._replace(**{"number" if one.code == asm.CALL else "offset": distance})
        return b"".join(one.packed() for one in self._made)

    def _follow(self, at: int, pending: list[int], functions: list[int]) -> None:
        """Emit code up to the next exit, or up to code that is emitted already."""
        while at not in self._placed:
            one = self._code[at]
            self._placed[at] = len(self._made)
            if one.code == asm.WIDE:
                at = self._wide(at)
            elif one.code == asm.ALWAYS:
                at += 1 + one.offset
            else:
                if one.code == asm.CALL and one.source == asm.TO_SUBPROGRAM:
                    functions.append(at + 1 + one.number)
                    self._targets[len(self._made)] = functions[-1]
                elif one.code & 7 in _CONDITIONAL and one.code not in (asm.CALL, asm.EXIT):
                    pending.append(at + 1 + one.offset)
                    self._targets[len(self._made)] = pending[-1]
                self._made.append(one)
                if one.code == asm.EXIT:
                    return
                at += 1
        if self._placed[at] != len(self._made):
            self._targets[len(self._made)] = at
            self._made.append(Instruction(asm.ALWAYS))

    def _wide(self, at: int) -> int:
        """Emit a 64-bit load, and return the place after it."""
        first, second = self._code[at : at + 2]
        name = "" if first.source else self._names.get(second.number, "")
        if name in ("flags", "lacks", "exchanges"):
            number = self._number(name, first.number & 0xFFFFFFFF)
            branch = self._code[at + 2]
            if branch.code == asm.NOT_EQUAL and branch.to == first.to and not branch.number:
                return at + 3 + (branch.offset if number else 0)
            self._made.append(Instruction(asm.MOVE, first.to, number=_fitting(number)))
        elif name:
            self._made.append(self._constant(name, first.to))
        elif first.source == asm.MAP_VALUE and (first.number, second.number) == self._stand_ins.args:
            self._made.append(Instruction(asm.MOVE | asm.REGISTER, first.to, FP))
            self._made.append(Instruction(asm.ADD, first.to, number=self._args))
        elif first.source == asm.MAP_VALUE and (first.number, second.number) == self._stand_ins.slot:
            self._made += first._replace(number=self._stand_ins.slots), second._replace(number=0)
        else:
            self._made += first, second
        return at + 2

    def _number(self, name: str, low: int) -> int:
        if name == "flags":
            return self._numbers.flags & low
        return int(low >= self._numbers.stages if name == "lacks" else self._numbers.exchanges)

    def _constant(self, name: str, register: int) -> Instruction:
        numbers = self._numbers
        if name == "begun":
            return Instruction(asm.MOVE, register, number=_fitting(numbers.state))
        if name == "passed":
            return Instruction(asm.OR, register, number=_fitting(numbers.state))
        if name == "home":
            return Instruction(asm.half(asm.SHIFT_RIGHT), register, number=_HALF_BITS - numbers.slot_bits)
        if name == "slots":
            return Instruction(asm.MOVE, register, number=(1 << numbers.slot_bits) - 1)
        raise WptraceError(f"a body has the number {name} where it has no place")


def _fitting(number: int) -> int:
    if not asm.fits(number):
        raise WptraceError("a number of a point does not fit an instruction")
    return number
