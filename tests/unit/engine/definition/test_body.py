# SPDX-License-Identifier: Apache-2.0
"""The program of a point has the parts of its body that the point uses, with constants in its instructions."""

from __future__ import annotations

from typing import Any

import pytest

from wptrace.bpf.object import open_object
from wptrace.engine.definition import assembler, body
from wptrace.engine.definition.assembler import FP, Code
from wptrace.engine.definition.programs import declared
from wptrace.errors import WptraceError

NAMES = ("flags", "lacks", "exchanges", "key", "begun", "passed", "home", "slots")
MARKS = {name: 0x77700001 + at for at, name in enumerate(NAMES)}
ARGS, SLOT, SLOTS = (7, 48), (7, 640), 9
STAND_INS = body.StandIns(MARKS, ARGS, SLOT, SLOTS)


def code_with_key() -> Code:
    code = Code()
    code.set(3, MARKS["key"] << 32)
    return code


def marked(code: Code, register: int, mark: str, low: int = 0) -> None:
    code.set(register, MARKS[mark] << 32 | low)


def joined(code: Code, front: Code | None = None, **more: Any) -> list[str]:
    numbers = body.Numbers(**{"flags": 0, "state": 0, "stages": 0, "slot_bits": 10, "exchanges": True, **more})
    before = Code() if front is None else front
    found = assembler.listing(body.joined(before.bytes(), code.bytes(), -64, STAND_INS, numbers))
    return [line.partition(": ")[2] for line in found]


def test_the_key_is_in_the_register_that_the_body_wants() -> None:
    code = code_with_key()
    assert body.key_register(code.bytes(), MARKS) == 3
    other = Code()
    other.set(3, MARKS["begun"] << 32)
    with pytest.raises(WptraceError):
        body.key_register(other.bytes(), MARKS)


def test_a_flag_as_a_number_is_that_of_the_mask() -> None:
    code = code_with_key()
    marked(code, 3, "flags", 0b0110)
    code.exit()
    assert joined(code, flags=0b1100) == ["r3 = 4", "exit"]
    assert joined(code, flags=0b1001) == ["r3 = 0", "exit"]


@pytest.mark.parametrize(
    ("mark", "low", "numbers", "there"),
    [
        ("flags", 0b0110, {"flags": 0b1100}, True),
        ("flags", 0b0110, {"flags": 0b1001}, False),
        ("lacks", 2, {"stages": 2}, True),
        ("lacks", 2, {"stages": 3}, False),
        ("exchanges", 0, {"exchanges": True}, True),
        ("exchanges", 0, {"exchanges": False}, False),
    ],
)
def test_of_a_known_branch_one_side_is_there(mark: str, low: int, numbers: dict[str, Any], there: bool) -> None:
    code = code_with_key()
    marked(code, 0, mark, low)
    code.jump_if(assembler.NOT_EQUAL, 0, 0, "yes")
    code.set(1, 10)
    code.exit()
    code.label("yes")
    code.set(1, 20)
    code.exit()
    assert joined(code, **numbers) == ["r1 = 20" if there else "r1 = 10", "exit"]


def test_what_is_behind_an_unknown_branch_is_there_and_comes_back() -> None:
    code = code_with_key()
    code.jump_if(assembler.EQUAL, 3, 5, "seldom")
    code.label("again")
    code.set(1, 10)
    code.exit()
    code.label("seldom")
    code.set(1, 20)
    code.jump("again")
    assert joined(code) == ["if r3 == 5 goto 3", "r1 = 10", "exit", "r1 = 20", "goto 1"]


def test_the_end_of_a_front_end_does_not_stand_before_the_body() -> None:
    front, code = Code(), code_with_key()
    front.jump_if(assembler.EQUAL, 3, 0, "filtered")
    front.jump("body")
    front.label("filtered")
    front.set(0, 0)
    front.exit()
    front.label("body")
    code.set(1, 10)
    code.exit()
    assert joined(code, front) == ["if r3 == 0 goto 3", "r1 = 10", "exit", "r0 = 0", "exit"]


def test_subprograms_come_behind_all_that_calls_them() -> None:
    code = code_with_key()
    code._add(assembler.CALL, 0, assembler.TO_SUBPROGRAM, 0, 2)
    code.exit()
    code.set(1, 30)  # nothing jumps here
    code.set(1, 40)
    code.exit()
    assert joined(code) == ["call 2", "exit", "r1 = 40", "exit"]


def test_constants_of_a_point() -> None:
    code = code_with_key()
    for register, mark in enumerate(("begun", "passed", "home", "slots"), 1):
        marked(code, register, mark)
    code.exit()
    made = joined(code, state=0x810, slot_bits=12)
    assert made == ["r1 = 2064", "r2 |= 2064", "w3 >>= 20", "r4 = 4095", "exit"]


def test_variables_that_stand_for_others() -> None:
    code = code_with_key()
    for register, (descriptor, offset) in enumerate((ARGS, SLOT, (7, 8)), 1):
        code._add(assembler.WIDE, register, assembler.MAP_VALUE, 0, descriptor)
        code._add(0, number=offset)
    code.exit()
    assert joined(code) == [
        f"r1 = r{FP}",
        "r1 += -64",
        "r2 = value of map 9 +0 ll",
        "r3 = value of map 7 +8 ll",
        "exit",
    ]


def test_other_numbers_stay() -> None:
    code = code_with_key()
    code.set(1, 0x77700011 << 32 | 1)
    # The same value as an immediate of another instruction is no mark.
    code.compute(assembler.ADD, 3, MARKS["flags"])
    code.exit()
    assert joined(code) == [f"r1 = {0x77700011 << 32 | 1} ll", f"r3 += {MARKS['flags']}", "exit"]


def test_a_number_that_is_too_large() -> None:
    code = code_with_key()
    marked(code, 1, "begun")
    code.exit()
    with pytest.raises(WptraceError):
        joined(code, state=1 << 31)


def test_all_of_the_object_are_found() -> None:
    with open_object("generic") as obj:
        found = declared(obj, {program.name: program.code for program in obj.progs.values()})
        assert found.stand_ins.marks == MARKS
        there: set[int] = set()
        for code in found.code.values():
            assert body.key_register(code, MARKS) in range(1, 10)
            there |= {one.number for one in assembler.parse(code)}
        assert set(MARKS.values()) <= there
