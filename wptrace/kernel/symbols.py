# SPDX-License-Identifier: Apache-2.0
"""Names of kernel functions by address, from /proc/kallsyms."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

KALLSYMS = Path("/proc/kallsyms")
MODULES = Path("/proc/modules")

UNKNOWN = "[unknown]"
# A line is the address in 16 digits, a blank, the kind, a blank, the name, and the module in brackets after a tab.
_ADDRESS, _KIND, _NAME = slice(0, 16), slice(17, 18), 19
_FUNCTIONS = b"tTwW"
# No function is longer: an address so far behind the last one was in a module that has left since.
_LONGEST = 1 << 20
# Variables of CPUs may stand first, at 0 and behind; functions of the kernel itself are not far. In lines.
_HEAD = 6000
_FUNCTION = re.compile(rb"(?!0{16})([0-9a-f]{16}) [tT] ([^\t\n]+)(\t\[\w+\])?\n")
# The bytes that surely reach the next symbol that is no other name of the same function.
_LINES = 1 << 12
_PIECE = 1 << 20


class KernelSymbols:
    """The addresses have a fixed width, so sorted lines are sorted addresses: no other index is needed."""

    def __init__(self, kallsyms: Path = KALLSYMS, modules: Path = MODULES) -> None:
        self._kallsyms = kallsyms
        self._modules = modules
        self._present: frozenset[tuple[bytes, ...]] = frozenset()
        self._lines: list[bytes] = []
        self.refresh()

    def refresh(self) -> None:
        """Reads the symbols anew if a module came or went."""
        # Name, size and address; how many use a module changes all the time.
        modules = (line.split() for line in _read(self._modules).split(b"\n"))
        present = frozenset((*words[:2], *words[5:6]) for words in modules)
        if self._lines and present == self._present:
            return
        self._present = present
        lines = _read(self._kallsyms).split(b"\n")
        self._lines = sorted(line for line in lines if line[_KIND] and line[_KIND] in _FUNCTIONS)

    @property
    def known(self) -> bool:
        """A kernel that hides its addresses shows all of them as 0."""
        return bool(self._lines) and self._lines[-1][_ADDRESS].strip(b"0") != b""

    def name(self, address: int) -> str:
        """The function that an address lies in; aliases at one address go by the last of their names."""
        return self._find(address)[0] or UNKNOWN

    def resolve(self, address: int) -> str:
        """Return `function+0x12 [module]` for an address, or the address itself."""
        name, module, offset = self._find(address)
        return f"{name}+{offset:#x} {module}".rstrip() if name else f"{address:#x}"

    def _find(self, address: int) -> tuple[str, str, int]:
        place = bisect_right(self._lines, b"%016x\xff" % address)
        if not place or not self.known:
            return "", "", 0
        line = self._lines[place - 1]
        offset = address - int(line[_ADDRESS], 16)
        name, _, module = line[_NAME:].decode(errors="backslashreplace").partition("\t")
        return (name, module, offset) if offset < _LONGEST else ("", "", 0)


def code(names: Mapping[str, str], kallsyms: Path = KALLSYMS) -> dict[str, tuple[int, int]]:
    """Return address and size of functions, if they exist and are shown. The values are the modules that they may be
    in; empty for the kernel's own."""
    found: dict[str, tuple[int, int]] = {}
    left = dict(names)
    for text, last, whole in _pieces(kallsyms) if names else ():
        for name in left:
            if place := _code(text, name, whole, last):
                found[name] = place
        # The kernel spends most of the time here on names: its own functions come first.
        left = {name: module for name, module in left.items() if name not in found and (module or not last)}
        if not left:
            break
    return found


def _pieces(path: Path) -> Iterator[tuple[bytes, bytes, bool]]:
    """Pieces of a file, with the module of the last line, and whether it is the last one. Each begins with symbols
    whose next one may not have been in the piece before: those of that module, or the last lines."""
    text = b""
    with suppress(OSError), path.open("rb") as file:
        while piece := file.read(_PIECE):
            text += piece
            if len(piece) == _PIECE:
                module = _module_of_last(text)
                yield text, module, False
                rest = text.find(module) if module else max(0, len(text) - 2 * _LINES)
                text = text[text.rfind(b"\n", 0, rest) + 1 :]
        yield text, _module_of_last(text), True


def _module_of_last(text: bytes) -> bytes:
    """The module of the last whole line, as it is written there; empty for the kernel itself."""
    end = text.rfind(b"\n")
    tab = text.rfind(b"\t", 0, max(end, 0))
    return text[tab : end + 1] if tab > text.rfind(b"\n", 0, max(end, 0)) else b""


def _code(text: bytes, name: str, whole: bool, last: bytes) -> tuple[int, int] | None:
    word = b" %s" % name.encode()
    place = text.find(word)
    # An expression for whole lines takes four times as long as looking for the word.
    while place >= 0:
        match = _FUNCTION.match(text, text.rfind(b"\n", 0, place) + 1)
        # The line behind it may not be read yet.
        is_name = match and match.start(2) == place + 1 and match[2] == word[1:]
        if match and is_name and (whole or _is_followed(match, text, last)):
            # The kernel's own symbols come by address, those of a module do not.
            behind = _of_module(text, match[3]) if match[3] else _addresses(text[match.end() : match.end() + _LINES])
            end = next((address for address in behind if address > match[1]), match[1])
            return int(match[1], 16), int(end, 16) - int(match[1], 16)
        place = text.find(word, place + 1)
    return None


def _is_followed(match: re.Match[bytes], text: bytes, last: bytes) -> bool:
    """Whether the next symbol is in the text: all of a module stand together, in any order."""
    return match[3] + b"\n" != last if match[3] else match.end() + _LINES <= len(text)


def _addresses(text: bytes) -> list[bytes]:
    return [line[_ADDRESS] for line in text.split(b"\n")]


def _of_module(text: bytes, module: bytes) -> list[bytes]:
    return sorted(re.findall(rb"^([0-9a-f]{16}) .*%s$" % re.escape(module), text, re.MULTILINE))


def shown(kallsyms: Path = KALLSYMS) -> bool:
    """Whether functions have addresses: without reading all of them."""
    try:
        with kallsyms.open("rb") as file:
            return any(map(_FUNCTION.match, islice(file, _HEAD)))
    except OSError:
        return False


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


# The functions where an interrupt enters the kernel. x86: by the vector, from Xen, and by FRED (6.9). arm64: 5.12 split
# up what were el1_irq and el0_irq.
_ENTRIES = (
    "asm_sysvec_",
    "asm_common_interrupt",
    "asm_exc_xen_",
    "asm_fred_entrypoint_",
    "el1h_64_irq",
    "el1h_64_fiq",
    "el0t_64_irq",
    "el0t_64_fiq",
    "el0t_32_irq",
    "el1_irq",
    "el0_irq",
)


def interrupted(stack: Sequence[str]) -> list[str]:
    """Return the function that was interrupted by the handler at the top of a stack; empty for user space.

    A stack that was not taken in a handler is that by itself.
    """
    entries = [place for place, frame in enumerate(stack) if frame.startswith(_ENTRIES)]
    if not entries:
        return list(stack)
    # Two entry functions of arm64 lie on each other.
    first = entries[0]
    while first + 1 in entries:
        first += 1
    return list(stack[first + 1 :])
