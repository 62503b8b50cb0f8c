# SPDX-License-Identifier: Apache-2.0
"""Where kernel functions lie: the kernel finds them by name (bpf_src/functions.bpf.c), or /proc/kallsyms is read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress

from wptrace.bpf import trial
from wptrace.errors import WptraceError
from wptrace.kernel import symbols

# With the index of names (60443c88f3a8, 6.2). Before that, the kernel goes through all symbols for each name.
_INDEXED = (6, 2)
_LENGTH = re.compile(rb"[^+]+\+0x0/0x([0-9a-f]+)")


def places(names: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """Return address and length of functions, if they exist and are shown. The values are the modules that they may be
    in; empty for the kernel's own."""
    if names and _release() >= _INDEXED:
        with suppress(WptraceError):
            return _find(names)
    return symbols.code(names)


def _find(names: Iterable[str]) -> dict[str, tuple[int, int]]:
    found = {}
    with trial.open_here("functions", own_types=True) as obj:
        obj.load()
        for name in names:
            obj.bss.name = name
            obj.progs["find_function"].run()
            if obj.bss.address and (length := _LENGTH.match(obj.bss.text)):
                found[name] = obj.bss.address, int(length[1], 16)
    return found


def _release() -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"[0-9]+", os.uname().release)[:2]))
