# SPDX-License-Identifier: Apache-2.0
"""Numbers of a body that stand for what is constant at a point (bpf_src/generic/args.h), and what comes in their place.

Instructions that load 64 bits take two places, so nothing moves: a number that fits one instruction leaves the other
one a jump to the next, which the verifier takes out.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from wptrace.engine.definition import assembler as asm
from wptrace.errors import WptraceError

_WIDE = struct.Struct("<BBhiBBhI")
_NEXT = asm.Instruction(asm.ALWAYS).packed()


class Number(NamedTuple):
    at: int
    """In bytes."""
    register: int
    mark: int
    low: int
    """What is in the lower half: a mask, or the number of a stage."""


@lru_cache(maxsize=64)
def numbers(body: bytes, marks: tuple[int, ...]) -> tuple[Number, ...]:
    """All in a body."""
    found = []
    for mark in marks:
        # The second half of an instruction: nothing but the number.
        sign = bytes(4) + mark.to_bytes(4, "little")
        at = body.find(sign)
        while at >= 0:
            code, registers, _, low, *_ = _WIDE.unpack_from(body, max(at - asm.SIZE, 0))
            if at % asm.SIZE == 0 and code == asm.WIDE and not registers >> 4:
                found.append(Number(at - asm.SIZE, registers, mark, low & 0xFFFFFFFF))
            at = body.find(sign, at + 1)
    return tuple(found)


def put(body: bytes, marks: Mapping[str, int], flags: int, point: int, stages: int) -> bytes:
    """A body for one point; `stages` are kept apart."""
    found = bytearray(body)
    for at, register, mark, low in numbers(body, tuple(marks.values())):
        if mark == marks["flags"]:
            number = flags & low
        elif mark == marks["point"]:
            number = point
        else:
            number = int(low >= stages)
        if not asm.fits(number):
            raise WptraceError("a number of a point does not fit an instruction")
        found[at : at + asm.SIZE] = asm.Instruction(asm.MOVE, register, number=number).packed()
        found[at + asm.SIZE : at + 2 * asm.SIZE] = _NEXT
    return bytes(found)
