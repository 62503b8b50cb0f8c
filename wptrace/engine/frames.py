# SPDX-License-Identifier: Apache-2.0
"""Stacks of programs by function name: from the stack maps, and the symbols of the kernel and of processes."""

from __future__ import annotations

import os
import re

from wptrace.bpf.layout import text
from wptrace.bpf.object import BpfObject
from wptrace.kernel import privileges
from wptrace.kernel.symbols import UNKNOWN, KernelSymbols
from wptrace.kernel.tasks import name_of
from wptrace.kernel.user_symbols import ProcessSymbols
from wptrace.model.stack import Stack

_NONE = ("[no stack]",)
# The frames of the helper that takes the stack, and of the program itself, are on top of it.
_TRACING = re.compile(r"(__)?bpf_|__traceiter_|__SCT__tp_func_")
_TOP = 6


class Frames:
    def __init__(self, obj: BpfObject) -> None:
        self._stacks, self._more_stacks = obj.maps["stacks"], obj.maps["more_stacks"]
        self._second_chance = obj.constants["SECOND_CHANCE"]
        self._kernel = KernelSymbols()
        self._processes: dict[int, tuple[str, ProcessSymbols]] = {}
        self._known: dict[tuple[int, int, int], Stack] = {}

    def notes(self, user: bool) -> list[str]:
        notes = []
        if not self._kernel.known:
            why = privileges.hidden_addresses()
            notes.append(f"stacks have no names: /proc/kallsyms shows no addresses ({why})")
        if user:
            notes.append("user stacks follow frame pointers: code that was built without them shows few frames")
            if "CAP_SYS_PTRACE" not in privileges.effective():
                notes.append("names in user stacks of other users take CAP_SYS_PTRACE, which is missing")
        return notes

    def add_process(self, tgid: int, comm: bytes) -> None:
        """Read where the code of a process lies at its first I/O, while it is alive."""
        self._processes[tgid] = f"{text(comm)}[{tgid}]", ProcessSymbols(tgid)

    def stack(self, kernel: int, user: int, tgid: int) -> Stack:
        """Look up a stack by its ids in the maps; negative if there is none."""
        key = kernel, user, tgid
        if key not in self._known:
            self._known[key] = self._named(*key)
        return self._known[key]

    def _named(self, kernel: int, user: int, tgid: int) -> Stack:
        self._kernel.refresh()
        names = [self._kernel.name(address) for address in _calls(self._addresses(kernel))]
        above = [place for place, name in enumerate(names[:_TOP]) if _TRACING.match(name)]
        inside = tuple(names[above[-1] + 1 if above else 0 :]) or _NONE
        if not tgid:
            return Stack(inside)
        if tgid not in self._processes:
            # There was no room to report the process; if it has ended since, its name is lost.
            self.add_process(tgid, os.fsencode(name_of(tgid)) or b"?")
        process, symbols = self._processes[tgid]
        outside = [symbols.name(address) for address in _calls(self._addresses(user))]
        # Beyond the last frame pointer, addresses are random contents of the stack.
        outer = [name for name, before in zip(outside, [None, *outside]) if name != UNKNOWN or before != UNKNOWN]
        return Stack(inside, tuple(outer), process)

    def _addresses(self, stack_id: int) -> list[int]:
        if stack_id < 0:
            return []
        place = self._more_stacks if stack_id & self._second_chance else self._stacks
        memory = place.raw((stack_id & ~self._second_chance).to_bytes(4, "little"))
        return [address for address in memory.cast("Q") if address] if memory is not None else []


def _calls(addresses: list[int]) -> list[int]:
    """Map return addresses to their calls: a return address may lie beyond a function that never returns."""
    return [address - (place > 0) for place, address in enumerate(addresses)]
