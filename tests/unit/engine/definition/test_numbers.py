# SPDX-License-Identifier: Apache-2.0
"""What is constant at a point comes into the instructions of its body."""

from __future__ import annotations

import pytest

from wptrace.bpf.object import open_object
from wptrace.engine.definition import assembler, numbers
from wptrace.engine.definition.assembler import Code
from wptrace.engine.definition.programs import declared
from wptrace.errors import WptraceError

MARKS = {"flags": 0x77700001, "point": 0x77700002, "lacks": 0x77700003}


def put(code: Code, flags: int = 0, point: int = 0, stages: int = 0) -> list[str]:
    found = assembler.listing(numbers.put(code.bytes(), MARKS, flags, point, stages))
    return [line.partition(": ")[2] for line in found]


def test_flags_are_those_of_the_mask() -> None:
    code = Code()
    code.set(3, MARKS["flags"] << 32 | 0b0110)
    code.exit()
    assert put(code, flags=0b1100) == ["r3 = 4", "goto 2", "exit"]
    assert put(code, flags=0b1001) == ["r3 = 0", "goto 2", "exit"]


def test_points_and_stages() -> None:
    code = Code()
    code.set(1, MARKS["point"] << 32)
    code.set(2, MARKS["lacks"] << 32 | 2)
    assert put(code, point=0x30800, stages=3) == ["r1 = 198656", "goto 2", "r2 = 0", "goto 4"]
    assert put(code, point=0x30800, stages=2)[2] == "r2 = 1"


def test_other_numbers_stay() -> None:
    code = Code()
    code.set(1, 0x77700004 << 32 | 1)
    code.set(2, 1 << 40)
    # As the number of a single instruction it is no mark.
    code.compute(assembler.ADD, 3, MARKS["flags"])
    assert numbers.put(code.bytes(), MARKS, 1, 1, 1) == code.bytes()


def test_a_number_that_is_too_large() -> None:
    code = Code()
    code.set(1, MARKS["point"] << 32)
    with pytest.raises(WptraceError):
        put(code, point=1 << 31)


def test_all_of_the_object_are_found() -> None:
    with open_object("generic") as obj:
        found = declared(obj, {program.name: program.code for program in obj.progs.values()})
        assert found.marks == MARKS
        for name in ("begin", "pass", "end"):
            marks = {one.mark for one in numbers.numbers(found.code[name], tuple(MARKS.values()))}
            assert marks == set(MARKS.values()) - ({MARKS["point"]} if name == "end" else set())
        made = numbers.put(found.code["end"], found.marks, 0, 0, 7)
        assert not any(mark.to_bytes(4, "little") in made for mark in MARKS.values())
