# SPDX-License-Identifier: Apache-2.0
"""The program of a point: a front end that reads what the definition names, before a prebuilt body.

The front end leaves `struct args` (bpf_src/generic/args.h) on the stack and the key in a register, and falls through
into the body. R6 is the context, R7 the current value, R9 the hash of a key's parts so far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from wptrace.engine.definition import assembler as asm
from wptrace.engine.definition import body as bodies
from wptrace.engine.definition import registers
from wptrace.engine.definition.assembler import FP, R0, R1, R2, R3, R6, R7, R8, R9, Code
from wptrace.engine.definition.recipe import (
    ARGUMENT,
    CONSTANT,
    CPU,
    EVENT,
    FEXIT,
    KPROBE,
    KRETPROBE,
    REGISTER,
    RETURNED,
    TASK,
    UPROBE,
    URETPROBE,
    Attachment,
    Load,
    Recipe,
    Test,
)
from wptrace.errors import WptraceError

# struct args
VALUE, OTHER, LABELS, MARK, FAILED, ARGS = 0, 8, 16, 48, 56, 64
_WORD = 8
TEXT_BYTES = 16
# Scratch space for the kernel's read helpers, below `args`: a text to compare, and below it a number.
_SCRATCH = TEXT_BYTES + _WORD
# The stack of a program; each subprogram of the body takes some of it.
_STACK, _FOR_SUBPROGRAMS = 512, 256

_GET_CPU, _GET_TASK, _GET_TYPED_TASK, _READ, _READ_TEXT, _READ_USER, _READ_USER_TEXT = 8, 35, 158, 113, 115, 112, 114
_NUMBER_BIT = 1 << 63
# Offsets in struct state, which is a word.
_LAST, _SEEN = 3, 8
# Odd, so that the multiplication loses no bits of a key.
_MIX = 0x9E3779B97F4A7C15
_WORD_BITS = (1 << 64) - 1

_CONDITIONS = {
    "==": (asm.EQUAL, asm.EQUAL),
    "!=": (asm.NOT_EQUAL, asm.NOT_EQUAL),
    "<": (asm.LESS, asm.SIGNED_LESS),
    "<=": (asm.LESS_EQUAL, asm.SIGNED_LESS_EQUAL),
    ">": (asm.GREATER, asm.SIGNED_GREATER),
    ">=": (asm.GREATER_EQUAL, asm.SIGNED_GREATER_EQUAL),
    "&": (asm.ANY_BIT, asm.ANY_BIT),
    "in": (asm.EQUAL, asm.EQUAL),
}
_FILTERED = "filtered"


class Constants(NamedTuple):
    """Facts about a point that the body knows before it runs."""

    point: int
    flags: int
    slot_bits: int
    """The binary logarithm of the number of slots."""
    stages: int = 0
    """The number of stages with distributions of their own."""
    words: Sequence[int] = ()
    """For each label of the attachment, the first of its words."""
    wanted: Sequence[bool] = ()
    """Whether each of these labels is wanted; empty: all are."""
    exchanges: bool = True
    """The kernel has atomic instructions that return the old value."""


def program(
    attachment: Attachment, constants: Constants, body: bytes, stand_ins: bodies.StandIns, machine: str
) -> bytes:
    state = 1 << constants.point + _SEEN | constants.point << _LAST
    used = asm.stack(body)
    before = front(attachment, constants, used, machine, bodies.key_register(body, stand_ins.marks))
    numbers = bodies.Numbers(constants.flags, state, constants.stages, constants.slot_bits, constants.exchanges)
    return bodies.joined(before, body, -(used + ARGS), stand_ins, numbers)


def front(attachment: Attachment, constants: Constants, used: int, machine: str, key: int) -> bytes:
    """Emit the front end of a body that uses so many bytes of stack and expects the key in this register."""
    return _Front(attachment, constants, used, machine, key).emit()


def flags_of(attachment: Attachment, bits: Mapping[str, int]) -> int:
    """The words of `args` that the front end of an attachment fills, as flags."""
    found = 0
    for name, given in (
        ("value", attachment.value),
        ("other", attachment.becomes),
        ("mark", attachment.mark),
        ("reached", attachment.reached),
        ("failed", attachment.failed),
    ):
        if given is not None:
            found |= 1 << bits[name]
    if any(one is not None and one.size <= 4 for one in (attachment.mark, attachment.reached)):
        found |= 1 << bits["narrow"]
    return found


class _Front:
    def __init__(self, attachment: Attachment, constants: Constants, used: int, machine: str, key: int) -> None:
        self._attachment = attachment
        self._constants = constants
        self._machine = machine
        self._wanted = key
        self._args = -(used + ARGS)
        self._compared = self._args - TEXT_BYTES
        self._scratch = self._args - _SCRATCH
        if -self._scratch > _STACK - _FOR_SUBPROGRAMS:
            raise WptraceError("the BPF object and the Python package are of different versions", "reinstall wptrace")
        self._code = Code()

    def emit(self) -> bytes:
        code, point, constants = self._code, self._attachment, self._constants
        if self._is_plain():
            # No call comes in between, so the register needs no saving.
            code.load(self._wanted, R1, point.keys[0].number * _WORD)
            code.jump_if(asm.EQUAL, self._wanted, 0, _FILTERED)
            return self._ended()
        code.move(R6, R1)
        for test in point.filters:
            self._pass_or(test, _FILTERED)
        if point.becomes is not None:
            self._part(point.becomes)
            self._put(OTHER)
        if point.value is not None:
            self._value(point.value)
            self._not_below_0(point.value)
            self._put(VALUE)
        number = point.mark or point.reached
        if number is not None:
            self._value(number)
            self._put(MARK)
        if point.failed is not None:
            succeeded = code.fresh("succeeded")
            code.store_number(FP, self._args + FAILED, 0)
            self._pass_or(point.failed, succeeded)
            code.store_number(FP, self._args + FAILED, 1)
            code.label(succeeded)
        for at, recipe in enumerate(point.labels):
            if not constants.wanted or constants.wanted[at]:
                self._label(recipe, LABELS + constants.words[at] * _WORD)
        self._key()
        return self._ended()

    def _ended(self) -> bytes:
        code = self._code
        if code.wanted(_FILTERED):
            # The verifier refuses an unreachable exit.
            code.jump("body")
            code.label(_FILTERED)
            code.set(R0, 0)
            code.exit()
        code.label("body")
        return code.bytes()

    def _is_plain(self) -> bool:
        """Whether the key is a plain argument, and there is nothing else to read."""
        point = self._attachment
        read = point.becomes, point.value, point.mark, point.reached, point.failed
        (key, *more) = point.keys
        plain = Recipe(ARGUMENT, key.number, pointer=True)
        at_hand = point.way not in (EVENT, KPROBE, KRETPROBE, UPROBE, URETPROBE)
        return at_hand and key == plain and not (more or point.filters or point.labels or any(read))

    def _put(self, place: int) -> None:
        self._code.store(FP, self._args + place, R7)

    # --- Keys and labels ----------------------------------------------------------------------------------------------

    def _key(self) -> None:
        code, keys = self._code, self._attachment.keys
        if len(keys) == 1:
            self._part(keys[0])
            code.move(self._wanted, R7)
            return
        # The number of parts is hashed first: otherwise CPU 0 and a number would equal that number alone.
        code.set(R9, len(keys) * _MIX & _WORD_BITS)
        for number, part in enumerate(keys):
            self._value(part)
            if part.pointer:
                code.jump_if(asm.EQUAL, R7, 0, _FILTERED)
                self._as_number()
            if number:
                code.set(R1, _MIX)
                code.compute_with(asm.MUL, R9, R1)
            code.compute_with(asm.ADD, R9, R7)
        code.set(R1, _NUMBER_BIT)
        code.compute_with(asm.OR, R9, R1)
        code.move(self._wanted, R9)

    def _part(self, recipe: Recipe) -> None:
        """A key of one part; 0 marks a free slot."""
        self._value(recipe)
        if recipe.pointer:
            self._code.jump_if(asm.EQUAL, R7, 0, _FILTERED)
            return
        self._code.set(R1, _NUMBER_BIT)
        self._code.compute_with(asm.OR, R7, R1)

    def _as_number(self) -> None:
        """The verifier forbids arithmetic on known pointers; a sum in memory is a plain number."""
        code = self._code
        code.store_number(FP, self._scratch, 0)
        code.add_atomically(FP, self._scratch, R7)
        code.load(R7, FP, self._scratch)

    def _label(self, recipe: Recipe, place: int) -> None:
        if recipe.text:
            self._text(recipe, self._args + place)
            return
        self._value(recipe)
        self._put(place)

    # --- Values -------------------------------------------------------------------------------------------------------

    def _value(self, recipe: Recipe) -> None:
        """Read a value into R7; behind a NULL pointer it is 0."""
        code = self._code
        known = code.fresh("known")
        self._reach(recipe, recipe.loads)
        self._shape(recipe)
        if recipe.otherwise is not None:
            code.jump_if(asm.NOT_EQUAL, R7, 0, known)
            self._value(recipe.otherwise)
            code.label(known)

    def _not_below_0(self, recipe: Recipe) -> None:
        """Sums only grow: an error in place of a number of bytes adds nothing."""
        code = self._code
        if _may_be_below_0(recipe):
            counted = code.fresh("counted")
            code.jump_if(asm.SIGNED_GREATER_EQUAL, R7, 0, counted)
            code.set(R7, 0)
            code.label(counted)

    def _reach(self, recipe: Recipe, loads: Sequence[Load]) -> None:
        code, null = self._code, self._code.fresh("null")
        self._source(recipe, loads)
        for load in loads:
            if load.direct:
                # The verifiers of 5.10 and 6.1 treat the register as a pointer even where it was found to be 0.
                there = code.fresh("there")
                code.jump_if(asm.NOT_EQUAL, R7, 0, there)
                code.set(R7, 0)
                code.jump(null)
                code.label(there)
                offset = load.offset
                if not -(1 << 15) <= offset < 1 << 15:
                    code.compute(asm.ADD, R7, offset)
                    offset = 0
                code.load(R7, R7, offset, load.size)
            else:
                self._read(R7, load.offset, load.size, load.user)
        if code.wanted(null):
            code.label(null)

    def _read(self, address: int, offset: int, size: int, user: bool) -> None:
        """Read through the helper, which leaves 0 on failure."""
        code = self._code
        code.move(R3, address)
        if offset:
            code.compute(asm.ADD, R3, offset)
        code.move(R1, FP)
        code.compute(asm.ADD, R1, self._scratch)
        code.set(R2, size)
        code.call(_READ_USER if user else _READ)
        code.load(R7, FP, self._scratch, size)

    def _source(self, recipe: Recipe, loads: Sequence[Load]) -> None:
        code, way = self._code, self._attachment.way
        if recipe.source == TASK:
            code.call(_GET_TYPED_TASK if loads and loads[0].direct else _GET_TASK)
            code.move(R7, R0)
        elif recipe.source == CPU:
            code.call(_GET_CPU)
            code.move(R7, R0)
        elif recipe.source == CONSTANT:
            code.set(R7, recipe.number)
        elif recipe.source == RETURNED and way in (KRETPROBE, URETPROBE):
            code.load(R7, R6, registers.RESULT[self._machine])
        elif recipe.source == REGISTER:
            code.load(R7, R6, recipe.number)
        elif recipe.source == RETURNED and way == FEXIT:
            # The return value follows the arguments.
            code.load(R7, R6, recipe.number * _WORD)
        elif recipe.source == ARGUMENT and way == EVENT:
            code.load(R7, R6, recipe.number, _WORD if loads else recipe.size)
        elif recipe.source == ARGUMENT and way in (KPROBE, UPROBE):
            places = registers.ARGUMENTS[self._machine]
            if recipe.number >= len(places):
                raise WptraceError(f"argument {recipe.number} of {self._attachment.target} is on the stack")
            code.load(R7, R6, places[recipe.number])
        elif recipe.source == ARGUMENT and way not in (KRETPROBE, URETPROBE):
            code.load(R7, R6, recipe.number * _WORD)
        else:
            raise WptraceError(f"{way} programs have no {recipe.source}")

    def _shape(self, recipe: Recipe) -> None:
        """Extend what was loaded to 64 bits."""
        code = self._code
        exact = bool(recipe.loads) or (recipe.source == ARGUMENT and self._attachment.way == EVENT)
        size = recipe.loads[-1].size if recipe.loads else recipe.size
        if recipe.bits:
            code.compute(asm.SHIFT_LEFT, R7, 64 - recipe.shift - recipe.bits)
            code.compute(asm.SHIFT_SIGNED if recipe.signed else asm.SHIFT_RIGHT, R7, 64 - recipe.bits)
        elif size < _WORD and recipe.source != CONSTANT and (recipe.signed or not exact) and not recipe.swap:
            # A register may hold garbage above a narrower argument.
            code.compute(asm.SHIFT_LEFT, R7, 64 - 8 * size)
            code.compute(asm.SHIFT_SIGNED if recipe.signed else asm.SHIFT_RIGHT, R7, 64 - 8 * size)
        if recipe.swap:
            code.swap(R7, recipe.swap)

    # --- Text ---------------------------------------------------------------------------------------------------------

    def _text(self, recipe: Recipe, place: int) -> None:
        """Copy up to 15 bytes, padded with zeros, so that equal texts are equal words."""
        code = self._code
        known = code.fresh("known")
        code.store_number(FP, place, 0)
        code.store_number(FP, place + _WORD, 0)
        if recipe.loads:
            self._reach(recipe, recipe.loads[:-1])
            offset = recipe.loads[-1].offset
            code.move(R3, R7)
        elif recipe.source == ARGUMENT and self._attachment.way == EVENT and recipe.located is not None:
            offset = recipe.located
            code.load(R7, R6, recipe.number, 4)
            code.compute(asm.AND, R7, 0xFFFF)
            code.move(R3, R6)
            code.compute_with(asm.ADD, R3, R7)
        elif recipe.source == ARGUMENT and self._attachment.way == EVENT:
            offset = recipe.number
            code.move(R3, R6)
        else:
            self._reach(recipe, ())
            offset = 0
            code.move(R3, R7)
        if offset:
            code.compute(asm.ADD, R3, offset)
        code.move(R1, FP)
        code.compute(asm.ADD, R1, place)
        code.set(R2, min(recipe.size, TEXT_BYTES))
        code.call(_READ_USER_TEXT if recipe.loads and recipe.loads[-1].user else _READ_TEXT)
        if recipe.otherwise is not None:
            code.load(R7, FP, place, 1)
            code.jump_if(asm.NOT_EQUAL, R7, 0, known)
            self._text(recipe.otherwise, place)
            code.label(known)

    # --- Tests --------------------------------------------------------------------------------------------------------

    def _pass_or(self, test: Test, otherwise: str) -> None:
        """Continue if the test holds, otherwise jump to a label."""
        code = self._code
        holds = code.fresh("holds")
        if test.left.text:
            self._text(test.left, self._compared)
            self._compare_texts(test, holds, otherwise)
        else:
            self._value(test.left)
            condition = _CONDITIONS[test.operator][test.left.signed]
            for right in test.right:
                if isinstance(right, bytes):
                    raise WptraceError("a number is compared with a text")
                code.jump_if(condition, R7, right, holds)
            code.jump(otherwise)
        code.label(holds)

    def _compare_texts(self, test: Test, holds: str, otherwise: str) -> None:
        code = self._code
        same, different = (otherwise, holds) if test.operator == "!=" else (holds, otherwise)
        for right in test.right:
            if not isinstance(right, bytes) or test.operator not in ("==", "!=", "in"):
                raise WptraceError("a text can be compared with texts alone, by ==, != and in")
            padded = right[: min(test.left.size, TEXT_BYTES) - 1].ljust(TEXT_BYTES, b"\0")
            another = code.fresh("another")
            for at in (0, _WORD):
                code.load(R7, FP, self._compared + at)
                code.jump_if(asm.NOT_EQUAL, R7, int.from_bytes(padded[at : at + _WORD], "little"), another, R8)
            code.jump(same)
            code.label(another)
        code.jump(different)


def _may_be_below_0(recipe: Recipe) -> bool:
    """A number of 64 bits may be, even if it has no sign: what a function of a program returns has no type."""
    wide = recipe.source != CONSTANT and not recipe.pointer and (recipe.bits or 8 * recipe.size) == 64
    return recipe.signed or wide or (recipe.otherwise is not None and _may_be_below_0(recipe.otherwise))
