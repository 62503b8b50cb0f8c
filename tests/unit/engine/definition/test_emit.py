# SPDX-License-Identifier: Apache-2.0
"""Programs of points, instruction by instruction, from attachments made by hand."""

from __future__ import annotations

import re
from typing import Any

import pytest

from wptrace.bpf.object import open_object
from wptrace.engine.definition import assembler, emit
from wptrace.engine.definition.assembler import Code
from wptrace.engine.definition.recipe import (
    ARGUMENT,
    CONSTANT,
    CPU,
    EVENT,
    FENTRY,
    FEXIT,
    KPROBE,
    KRETPROBE,
    RAW_TP,
    REGISTER,
    RETURNED,
    TASK,
    TP_BTF,
    UPROBE,
    URETPROBE,
    Attachment,
    Load,
    Recipe,
)
from wptrace.engine.definition.recipe import (
    Test as Filter,
)
from wptrace.errors import WptraceError

OBJECT = Recipe(ARGUMENT, 0, pointer=True)
NUMBER = Recipe(ARGUMENT, 1, size=4)


def attached(way: str = TP_BTF, keys: tuple[Recipe, ...] = (OBJECT,), **more: Any) -> Attachment:
    given: dict[str, Any] = dict.fromkeys(("becomes", "value", "mark", "reached", "failed"))
    given.update({"labels": (), "filters": (), **more})
    return Attachment(way, "somewhere", 0, "", keys, **given)


def lines(attachment: Attachment, constants: emit.Constants | None = None, machine: str = "x86_64") -> list[str]:
    """Return the listing, without line numbers, of what precedes a body that takes the key in R2."""
    code = emit.front(attachment, constants or emit.Constants(3, 5, 10), 0, machine, 2)
    return [line.partition(": ")[2] for line in assembler.listing(code)]


# `args` begin 64 bytes below the frame pointer, as if the body had no stack.


def test_a_pointer_is_a_key_as_it_is() -> None:
    assert lines(attached()) == ["r2 = *(u64 *)(r1 +0)", "if r2 == 0 goto 3", "goto 5", "r0 = 0", "exit"]


def test_a_pointer_is_a_key_where_more_is_read() -> None:
    found = lines(attached(value=NUMBER))
    assert found[-7:] == ["*(u64 *)(r10 -64) = r7", "r7 = *(u64 *)(r6 +0)", "if r7 == 0 goto 9", "r2 = r7", *found[-3:]]
    assert found[-3:] == ["goto 11", "r0 = 0", "exit"]


def test_a_number_as_a_key_has_bit_63() -> None:
    """0 marks a free slot, and a number may be 0. Nothing leaves early, so there is no exit."""
    assert lines(attached(keys=(NUMBER,))) == [
        "r6 = r1",
        "r7 = *(u64 *)(r6 +8)",
        "r7 <<= 32",
        "r7 >>= 32",
        f"r1 = {-1 << 63} ll",
        "r7 |= r1",
        "r2 = r7",
    ]


def test_a_key_of_parts() -> None:
    found = lines(attached(keys=(Recipe(CPU), NUMBER)))
    assert found[2:4] == ["call get_smp_processor_id", "r7 = r0"]
    assert "r9 *= r1" in found
    at = found.index("r9 *= r1") + 1
    assert found[at : at + 4] == ["r9 += r7", f"r1 = {-1 << 63} ll", "r9 |= r1", "r2 = r9"]


def key_of(parts: int, *values: int) -> int:
    """Compute the key that the instructions make of these parts."""
    registers = {"r7": 0, "r9": 0, "r1": 0, "r2": 0}
    left = list(values)
    recipes = (Recipe(CPU), NUMBER)[2 - parts :]
    for line in lines(attached(keys=recipes)):
        if line == "r7 = r0" or line == "r7 = *(u64 *)(r6 +8)":
            registers["r7"] = left.pop(0)
        elif found := re.fullmatch(r"(r\d) = (-?\d+)(?: ll)?", line):
            registers[found[1]] = int(found[2])
        elif found := re.fullmatch(r"(r[1279]) ([*+|]?)= (r[1279])", line):
            one, other = registers[found[1]], registers[found[3]]
            registers[found[1]] = {"": other, "*": one * other, "+": one + other, "|": one | other}[found[2]]
    assert not left
    return registers["r2"] & (1 << 64) - 1


def test_keys_of_one_part_and_of_two_never_meet() -> None:
    """A softirq of CPU 0 once had the same key as the CPU with its number."""
    alone = {key_of(1, number) for number in range(64)}
    pairs = {key_of(2, cpu, number) for cpu in range(64) for number in range(64)}
    assert (len(alone), len(pairs)) == (64, 64 * 64)
    assert not alone & pairs


def test_a_pointer_among_parts_becomes_a_number() -> None:
    found = lines(attached(keys=(OBJECT, NUMBER)))
    at = found.index("lock *(u64 *)(r10 -88) += r7")
    assert found[at - 1] == "*(u64 *)(r10 -88) = 0"
    assert found[at + 1] == "r7 = *(u64 *)(r10 -88)"


def test_fields_of_known_objects_are_plain_loads() -> None:
    value = Recipe(ARGUMENT, 0, (Load(16, 8, True), Load(24, 2, True)), size=2)
    found = lines(attached(value=value))
    at = found.index("r7 = *(u64 *)(r7 +16)")
    end = found.index("*(u64 *)(r10 -64) = r7")
    for place in (at - 3, at + 1):
        assert found[place].startswith("if r7 != 0 goto")
        assert found[place + 1 : place + 3] == ["r7 = 0", f"goto {end}"]
    assert found[end - 1] == "r7 = *(u16 *)(r7 +24)"


def test_fields_of_unknown_objects_are_copied() -> None:
    found = lines(attached(RAW_TP, value=Recipe(ARGUMENT, 0, (Load(24, 4, False),), signed=True, size=4)))
    at = found.index("call probe_read_kernel")
    assert found[at - 5 : at] == ["r3 = r7", "r3 += 24", "r1 = r10", "r1 += -88", "r2 = 4"]
    assert found[at + 1 : at + 4] == ["r7 = *(u32 *)(r10 -88)", "r7 <<= 32", "r7 s>>= 32"]


def test_memory_of_programs_is_copied_by_other_helpers() -> None:
    found = lines(attached(UPROBE, value=Recipe(ARGUMENT, 1, (Load(8, 8, False, True), Load(16, 4, False, True)))))
    assert found[1] == "r7 = *(u64 *)(r6 +104)"
    assert found.count("call probe_read_user") == 2
    assert "call probe_read_kernel" not in found
    text = Recipe(ARGUMENT, 0, (Load(0, 1, False, True),), text=True, size=16)
    found = lines(attached(UPROBE, (Recipe(TASK, pointer=True),), labels=(text,)), emit.Constants(3, 5, 10, words=(0,)))
    assert "call probe_read_user_str" in found


@pytest.mark.parametrize(("machine", "register"), [("x86_64", 80), ("aarch64", 0)])
def test_any_register_of_a_program(machine: str, register: int) -> None:
    """The upper bits of a narrow one are undefined."""
    value = Recipe(REGISTER, 152, signed=True, size=4)
    assert lines(attached(UPROBE, value=value))[1:4] == ["r7 = *(u64 *)(r6 +152)", "r7 <<= 32", "r7 s>>= 32"]
    found = lines(attached(URETPROBE, (Recipe(TASK, pointer=True),), value=Recipe(RETURNED)), machine=machine)
    assert found[1] == f"r7 = *(u64 *)(r6 +{register})"


@pytest.mark.parametrize(
    ("recipe", "shaped"),
    [
        (Recipe(ARGUMENT, 0, (Load(0, 4, True),), size=4, shift=3, bits=2), ["r7 <<= 59", "r7 >>= 62"]),
        (Recipe(ARGUMENT, 0, (Load(0, 4, True),), size=4, shift=3, bits=2, signed=True), ["r7 <<= 59", "r7 s>>= 62"]),
        (Recipe(ARGUMENT, 0, (Load(0, 2, True),), size=2, swap=16), ["r7 = be16 r7"]),
        (Recipe(ARGUMENT, 0, (Load(0, 1, True),), size=1, signed=True), ["r7 <<= 56", "r7 s>>= 56"]),
        (Recipe(ARGUMENT, 0, (Load(0, 1, True),), size=1), []),
    ],
)
def test_shapes(recipe: Recipe, shaped: list[str]) -> None:
    found = lines(attached(mark=recipe))
    at = next(at for at, line in enumerate(found) if line.endswith("*)(r7 +0)"))
    assert found[at + 1 : found.index("*(u64 *)(r10 -16) = r7")] == shaped


@pytest.mark.parametrize(
    ("recipe", "checked"),
    [
        (Recipe(RETURNED, 2, signed=True), True),
        (Recipe(RETURNED, 2, signed=True, size=4), True),
        (Recipe(RETURNED, 2), True),
        (Recipe(RETURNED, 2, size=4), False),
        (Recipe(RETURNED, 2, bits=32), False),
        (Recipe(RETURNED, 2, pointer=True), False),
        (Recipe(CONSTANT, 1), False),
        (Recipe(RETURNED, 2, size=4, otherwise=Recipe(ARGUMENT, 1, signed=True)), True),
    ],
)
def test_a_value_below_0_adds_nothing(recipe: Recipe, checked: bool) -> None:
    """A sum that shrinks would be one of 16 EiB."""
    found = lines(attached(FEXIT, value=recipe))
    at = found.index("*(u64 *)(r10 -64) = r7")
    assert (found[at - 2 : at] == [f"if r7 s>= 0 goto {at}", "r7 = 0"]) == checked


def test_a_far_field() -> None:
    found = lines(attached(value=Recipe(ARGUMENT, 0, (Load(1 << 16, 8, True),))))
    assert found[found.index("r7 += 65536") + 1] == "r7 = *(u64 *)(r7 +0)"


def test_what_is_read_where_the_first_is_null() -> None:
    key = Recipe(ARGUMENT, 0, (Load(56, 8, True),), pointer=True, otherwise=OBJECT)
    assert lines(attached(keys=(key,)))[1:8] == [
        "r7 = *(u64 *)(r6 +0)",
        "if r7 != 0 goto 5",
        "r7 = 0",
        "goto 6",
        "r7 = *(u64 *)(r7 +56)",
        "if r7 != 0 goto 8",
        "r7 = *(u64 *)(r6 +0)",
    ]


@pytest.mark.parametrize(
    ("way", "recipe", "machine", "line"),
    [
        (FENTRY, Recipe(ARGUMENT, 2), "x86_64", "r7 = *(u64 *)(r6 +16)"),
        (FEXIT, Recipe(RETURNED, 3), "x86_64", "r7 = *(u64 *)(r6 +24)"),
        (KPROBE, Recipe(ARGUMENT, 1), "x86_64", "r7 = *(u64 *)(r6 +104)"),
        (KPROBE, Recipe(ARGUMENT, 1), "aarch64", "r7 = *(u64 *)(r6 +8)"),
        (KRETPROBE, Recipe(RETURNED), "x86_64", "r7 = *(u64 *)(r6 +80)"),
        (EVENT, Recipe(ARGUMENT, 12, size=4), "x86_64", "r7 = *(u32 *)(r6 +12)"),
        (RAW_TP, Recipe(CONSTANT, 7), "x86_64", "r7 = 7"),
    ],
)
def test_sources(way: str, recipe: Recipe, machine: str, line: str) -> None:
    assert line in lines(attached(way, keys=(recipe,)), machine=machine)


def test_a_text_behind_the_record_of_an_event() -> None:
    text = Recipe(ARGUMENT, 12, text=True, size=16, located=20)
    found = lines(attached(EVENT, keys=(NUMBER,), labels=(text,)), emit.Constants(3, 5, 10, 0, (0,)))
    at = found.index("r7 = *(u32 *)(r6 +12)")
    assert found[at + 1 : at + 5] == ["r7 &= 65535", "r3 = r6", "r3 += r7", "r3 += 20"]


def test_the_current_task() -> None:
    assert "call get_current_task" in lines(attached(RAW_TP, keys=(Recipe(TASK, pointer=True),)))
    pid = Recipe(TASK, loads=(Load(100, 4, True),), size=4)
    assert "call get_current_task_btf" in lines(attached(keys=(pid,)))


@pytest.mark.parametrize(
    ("way", "recipe"), [(KRETPROBE, OBJECT), (TP_BTF, Recipe(RETURNED)), (KPROBE, Recipe(ARGUMENT, 6))]
)
def test_what_a_program_does_not_have(way: str, recipe: Recipe) -> None:
    with pytest.raises(WptraceError):
        lines(attached(way, keys=(recipe,)))


def test_filters_come_first() -> None:
    found = lines(attached(filters=(Filter(NUMBER, ">=", (7,)),)))
    assert found[4:6] == ["if r7 >= 7 goto 6", "goto 10"]
    assert found[6] == "r7 = *(u64 *)(r6 +0)"
    assert found[-2:] == ["r0 = 0", "exit"]


def test_signed_tests_and_large_numbers() -> None:
    negative = Recipe(ARGUMENT, 1, signed=True)
    assert "if r7 s< 0 goto 4" in lines(attached(filters=(Filter(negative, "<", (0,)),)))
    large = lines(attached(filters=(Filter(Recipe(ARGUMENT, 1), "==", (1 << 40,)),)))
    assert "if r7 == r8 goto 6" in large


def test_one_of_several() -> None:
    found = lines(attached(filters=(Filter(NUMBER, "in", (3, 5)),)))
    assert found[4:7] == ["if r7 == 3 goto 7", "if r7 == 5 goto 7", "goto 11"]


def test_texts_are_compared_by_words() -> None:
    name = Recipe(ARGUMENT, 0, (Load(12, 1, True),), size=16, text=True)
    found = lines(attached(filters=(Filter(name, "==", (b"loop0",)),)))
    assert "call probe_read_kernel_str" in found
    assert found.count("*(u64 *)(r10 -80) = 0") == 1
    assert f"r8 = {int.from_bytes(b'loop0', 'little')} ll" in found
    assert "if r7 != 0 goto" in " ".join(found)


def test_labels_have_their_words() -> None:
    name = Recipe(ARGUMENT, 0, (Load(12, 1, True),), size=16, text=True)
    constants = emit.Constants(3, 5, 10, 0, (1, 0), (True, False))
    found = lines(attached(labels=(name, NUMBER)), constants)
    assert found[1:3] == ["*(u64 *)(r10 -40) = 0", "*(u64 *)(r10 -32) = 0"]
    # The other label is not wanted.
    assert not any("(r10 -48)" in line for line in found)


def test_failures_and_marks() -> None:
    failed = Filter(Recipe(ARGUMENT, 1, signed=True), "<", (0,))
    found = lines(attached(failed=failed, mark=NUMBER))
    assert "*(u64 *)(r10 -16) = r7" in found
    assert found.index("*(u64 *)(r10 -8) = 0") < found.index("*(u64 *)(r10 -8) = 1")
    numbers = {name: at for at, name in enumerate(("value", "other", "mark", "reached", "failed", "narrow"))}
    assert emit.flags_of(attached(failed=failed, mark=NUMBER), numbers) == 1 << 2 | 1 << 4 | 1 << 5


def test_the_places_are_those_of_the_object() -> None:
    """Constants of C and of Python are the same."""
    with open_object("generic") as found:
        codec = found.struct("args")
        places = {place.name: place.offset for place in codec.places}
        names = {"value": emit.VALUE, "other": emit.OTHER, "labels": emit.LABELS}
        assert places == {**names, "mark": emit.MARK, "failed": emit.FAILED}
        state = {place.name: place.offset * 8 for place in found.struct("state").places}
        # The last point is in place of its time, which has 8 bytes.
        assert (state["seen"], state["last"] + 3) == (emit._SEEN, emit._LAST)
        assert codec.size == emit.ARGS
        for program in found.progs.values():
            assert assembler.stack(program.code) <= 128


def test_jumps_too_far_are_refused() -> None:
    code = Code()
    code.jump("end")
    for _ in range(1 << 15):
        code.move(0, 0)
    code.label("end")
    with pytest.raises(WptraceError):
        code.bytes()


def test_the_stack_of_a_program() -> None:
    code = Code()
    code.store_number(assembler.FP, -16, 0)
    code.move(assembler.R1, assembler.FP)
    code.compute(assembler.ADD, assembler.R1, -33)
    code.compute(assembler.ADD, assembler.R3, -400)
    assert assembler.stack(code.bytes()) == 40


def test_every_instruction_of_the_bodies_has_words() -> None:
    with open_object("generic") as found:
        for program in found.progs.values():
            listed = "\n".join(assembler.listing(program.code))
            assert "?" not in listed
            assert "helper" not in listed
