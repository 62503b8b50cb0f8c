# SPDX-License-Identifier: Apache-2.0
"""Static probes of programs and libraries (USDT), as the macros of <sys/sdt.h> leave them in `.note.stapsdt`.

A file may be anybody's: nothing in it is trusted (wptrace/kernel/elf.py).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

from wptrace.errors import UsageError
from wptrace.kernel import elf
from wptrace.kernel.binaries import Binary, Spot, UnknownNameError

_ADDRESSES = struct.Struct("<QQQ")
_OWNER, _TYPE = b"stapsdt\0", 3
_NOTES, _BASE = b".note.stapsdt", b".stapsdt.base"
_SHT_NOTE = 7
_LARGEST_NOTES = 1 << 22
_LONGEST = 1 << 12
MOST_PLACES = 16
MOST_ARGUMENTS = 12


class Operand(NamedTuple):
    """The location of a probe's argument: a constant, a register, or memory at a register."""

    size: int
    signed: bool
    register: str = ""
    """The name in struct pt_regs on x86-64, that of the whole register on arm64; empty: a constant."""
    number: int = 0
    """The constant, or the distance from the register."""
    in_memory: bool = False


class Site(NamedTuple):
    """A place of a probe; inlining makes several."""

    spot: Spot
    operands: tuple[Operand | str, ...]
    """A text is an argument that was not understood."""


class _Note(NamedTuple):
    address: int
    base: int
    counter: int
    provider: bytes
    name: bytes
    arguments: bytes


def sites(binary: Binary, provider: str, name: str, machine: str) -> list[Site]:
    """All places of a probe."""
    base, notes = _notes(binary)
    wanted = provider.encode(), name.encode()
    found = [note for note in notes if (note.provider, note.name) == wanted]
    if not found:
        kind = "has no static probes" if not notes else f"has no static probe {provider}:{name}"
        raise UnknownNameError(f"{binary.path} {kind}")
    if len(found) > MOST_PLACES:
        raise UsageError(f"{provider}:{name} of {binary.path} is at {len(found)} places; the limit is {MOST_PLACES}")
    made = []
    for note in found:
        # The file was moved to other addresses after it was linked (prelink), which nobody told the notes.
        shift = base - note.base if base and note.base else 0
        counter = note.counter + shift if note.counter else 0
        spot = binary.spot(note.address + shift, f"{provider}:{name}", counter)
        made.append(Site(spot, tuple(operands(note.arguments.decode("ascii", "replace"), machine))))
    return made


def names(binary: Binary) -> list[str]:
    """All probes as provider:name, for suggestions."""
    found = (f"{_text(note.provider)}:{_text(note.name)}" for note in _notes(binary)[1])
    return list(dict.fromkeys(found))


def _text(name: bytes) -> str:
    return name.decode("ascii", "replace")


# --- Notes ------------------------------------------------------------------------------------------------------------


def _notes(binary: Binary) -> tuple[int, list[_Note]]:
    """The address of the section that says whether the file was moved (0: there is none), and the notes."""
    base = next((one.address for one in binary.sections(_BASE)), 0)
    for one in binary.sections(_NOTES):
        if one.type == _SHT_NOTE:
            return base, list(_parsed(elf.content(binary.fd, one, _LARGEST_NOTES)))
    return base, []


def _parsed(data: bytes) -> Iterator[_Note]:
    for owner, kind, content in elf.notes(data):
        if (owner, kind) == (_OWNER, _TYPE) and len(content) > _ADDRESSES.size:
            texts = content[_ADDRESSES.size : _ADDRESSES.size + _LONGEST].split(b"\0")
            if len(texts) >= 4:
                yield _Note(*_ADDRESSES.unpack_from(content), *texts[:3])


# --- Arguments --------------------------------------------------------------------------------------------------------

# The letters that all names of a register share: %eax, %ax and %al are parts of %rax, which struct pt_regs calls ax.
_X86 = {
    **{part.format(letter): f"{letter}x" for letter in "abcd" for part in ("r{}x", "e{}x", "{}x", "{}l")},
    **{name: full for full in ("si", "di", "bp", "sp") for name in (f"r{full}", f"e{full}", full, f"{full}l")},
    **{f"r{number}{part}": f"r{number}" for number in range(8, 16) for part in ("", "d", "w", "b")},
}
_ARM = {
    **{f"{letter}{number}": f"x{number}" for number in range(31) for letter in "xw"},
    "sp": "sp",
    "wsp": "sp",
}
_NUMBER = r"[-+]?(?:0x[0-9a-f]{1,16}|[0-9]{1,20})"
_ARGUMENT = re.compile(r"(?P<signed>-?)(?P<size>[1248])@(?P<operand>.+)", re.ASCII)
_FORMS = {
    "x86_64": (
        re.compile(rf"\$(?P<constant>{_NUMBER})", re.ASCII),
        re.compile(r"%(?P<register>[a-z0-9]+)", re.ASCII),
        re.compile(rf"(?P<number>{_NUMBER})?\(%(?P<at>[a-z0-9]+)\)", re.ASCII),
    ),
    "aarch64": (
        re.compile(rf"(?P<constant>{_NUMBER})", re.ASCII),
        re.compile(r"(?P<register>[a-z0-9]+)", re.ASCII),
        re.compile(rf"\[(?P<at>[a-z0-9]+)(?:, ?#?(?P<number>{_NUMBER}))?\]", re.ASCII),
    ),
}
_REGISTERS = {"x86_64": _X86, "aarch64": _ARM}
# A blank within brackets does not separate.
_BLANK = re.compile(r" +(?![^\[]*\])")


def operands(text: str, machine: str) -> Iterator[Operand | str]:
    words = [word for word in _BLANK.split(text.strip()) if word]
    for word in words[:MOST_ARGUMENTS]:
        yield _operand(word, machine) or word


def _operand(word: str, machine: str) -> Operand | None:
    whole = _ARGUMENT.fullmatch(word)
    if whole is None:
        return None
    size, signed = int(whole["size"]), bool(whole["signed"])
    for form in _FORMS.get(machine, ()):
        found = form.fullmatch(whole["operand"])
        if found is None:
            continue
        named = found.groupdict()
        if named.get("constant"):
            return Operand(size, signed, number=_integer(named["constant"]) & (1 << 64) - 1)
        register = _REGISTERS[machine].get(named.get("register") or named.get("at") or "")
        distance = _integer(named.get("number") or "0")
        if register is None or not -(1 << 31) <= distance < 1 << 31:
            return None
        return Operand(size, signed, register, distance, bool(named.get("at")))
    return None


def _integer(text: str) -> int:
    return int(text, 16 if "x" in text else 10)
