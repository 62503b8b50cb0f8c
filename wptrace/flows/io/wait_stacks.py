# SPDX-License-Identifier: Apache-2.0
"""The stacks of sleeping tasks, as the programs keep them (bpf_src/block/path/waits.h), and their reasons."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from wptrace.bpf.object import BpfObject
from wptrace.flows.io.wait_reasons import (
    DIRTY_LIMIT,
    NOT_KNOWN,
    REASONS,
    SEVERAL,
    Reason,
    WaitStack,
    cleaned,
    reason_of,
)
from wptrace.kernel import cpus
from wptrace.kernel.symbols import UNKNOWN, KernelSymbols

_GENERATIONS = 63
# Records and operations in flight may refer to stacks that were freed up to this many generations ago.
_REMEMBERED = 16
_GONE = 1 << 63
"""A key that no stack has."""


class WaitStacks:
    """Stacks by the number that programs use: 1 + place + places * generation.

    The number of a freed stack is not reused: the next stack at its place has another generation.
    """

    def __init__(self, obj: BpfObject, readable: bool = True, reasons: Sequence[Reason] = REASONS) -> None:
        """If kernel stacks cannot be read, no wait has one."""
        self._obj, self._reasons = obj, reasons
        layout = self._layout = obj.struct("wait_stack")
        self.places = obj.length("wait_stacks")
        first = layout.fields.index("frames[0]")
        self._frames = slice(first, first + sum(name.startswith("frames[") for name in layout.fields))
        self._is_known, self._generation = (layout.fields.index(name) for name in ("known", "generation"))
        self._at = {one.name: one.offset for one in layout.places}
        self._symbols: KernelSymbols | None = None
        several = WaitStack(SEVERAL if readable else NOT_KNOWN, ())
        self._found = {
            obj.constants["WAIT_DIRTY_LIMIT"]: WaitStack(DIRTY_LIMIT, ()),
            obj.constants["WAIT_OTHER"]: several,
        }
        self._alike = {several.functions: several}
        """Stacks by functions, because several numbers may have the same."""

    def __getitem__(self, number: int) -> WaitStack:
        found = self._found.get(number)
        if found is None:
            names = self._names(number)
            found = self._alike.get(names) or WaitStack(reason_of(names, self._reasons), names)
            self._found[number] = self._alike[names] = found
        return found

    def _names(self, number: int) -> tuple[str, ...]:
        generation, place = divmod(number - 1, self.places)
        values = self._values(place)
        if values[self._generation] != generation:
            # The stack was freed long ago.
            return ()
        if self._symbols is None:
            self._symbols = KernelSymbols()
        else:
            self._symbols.refresh()
        names = []
        for frame in filter(None, values[self._frames]):
            # A return address may lie beyond a function that never returns, so look up the call.
            name = self._symbols.name(frame - 1)
            names.append(name if name != UNKNOWN else f"{frame:#x}")
        return cleaned(names)

    def _values(self, place: int) -> Sequence[Any]:
        layout = self._layout
        found: Sequence[Any] = layout.struct.unpack_from(self._obj.view("wait_stacks"), place * layout.size)
        return found

    @property
    def taken(self) -> int:
        return sum(map(bool, self._keys()))

    def _keys(self) -> list[int]:
        return self._obj.view("wait_stacks").cast("Q")[:: self._layout.size // 8].tolist()

    def all(self) -> dict[int, WaitStack]:
        for number in self.numbers():
            self[number]
        return self._found

    def numbers(self) -> list[int]:
        """Numbers of the stacks in the table; frames follow the key."""
        every = ((place, self._values(place)) for place, key in enumerate(self._keys()) if key)
        return [1 + place + self.places * of[self._generation] for place, of in every if of[self._is_known]]

    def hide(self, numbers: Collection[int]) -> None:
        """Hide stacks from the programs; those that have found them already end before the next barrier."""
        words = self._obj.view("wait_stacks").cast("Q")
        for number in numbers:
            self[number]  # Look it up while its frames are there.
            words[(number - 1) % self.places * self._layout.size // 8] = _GONE

    def give_up(self, numbers: Collection[int]) -> None:
        """Free the places of hidden stacks."""
        view, size = self._obj.view("wait_stacks"), self._layout.size
        for number in numbers:
            generation, place = divmod(number - 1, self.places)
            view[place * size + self._at["generation"]] = (generation + 1) % _GENERATIONS
            older = (generation - _REMEMBERED) % _GENERATIONS
            self._found.pop(1 + place + self.places * older, None)
        there = set(self._found.values())
        self._alike = {names: one for names, one in self._alike.items() if one in there}
        # Programs cache the place of some stacks, and check the generation.
        cpus.barrier()
        for number in numbers:
            start = (number - 1) % self.places * size
            view[start + self._at["known"]] = 0
            view.cast("Q")[start // 8] = 0
