# SPDX-License-Identifier: Apache-2.0
"""Recipes: where a point of a definition attaches on one kernel, and how each of its values is read there.

The resolver makes them from the definition and the kernel's BTF; programs are emitted from nothing else.
"""

from __future__ import annotations

from typing import NamedTuple

from wptrace.kernel.binaries import Spot

ARGUMENT, RETURNED, TASK, CPU, CONSTANT, REGISTER = "argument", "returned", "task", "cpu", "constant", "register"
"""The source of a recipe: an argument of the hook, the return value, the current task, the number of the CPU, a
constant, or any register of the program that was interrupted."""

TP_BTF, RAW_TP, EVENT, FENTRY, FEXIT, KPROBE, KRETPROBE, UPROBE, URETPROBE = (
    "tp_btf",
    "raw_tp",
    "event",
    "fentry",
    "fexit",
    "kprobe",
    "kretprobe",
    "uprobe",
    "uretprobe",
)
"""The type of the program, as the kernel attaches it."""


class Load(NamedTuple):
    """A load at this offset of the current object; all but the last load a pointer to the next object."""

    offset: int
    size: int
    """1, 2, 4 or 8 bytes."""
    direct: bool
    """The verifier knows the object's type, so that a plain load works; otherwise a helper reads it."""
    user: bool = False
    """The object is in the memory of the program, and not in that of the kernel."""


class Recipe(NamedTuple):
    """How to read one value."""

    source: str
    number: int = 0
    """The index of the argument, or the constant; with EVENT the offset in the record; with RETURNED the number of
    arguments; with REGISTER the offset in the saved registers."""
    loads: tuple[Load, ...] = ()
    """The loads after the source; None: the source itself is the value."""
    signed: bool = False
    size: int = 8
    """The bytes of the value before it is widened to 64 bits; of a text, the most bytes."""
    shift: int = 0
    bits: int = 0
    """The bits of a bit field and its shift from the lowest bit loaded; 0 bits: not a bit field."""
    swap: int = 0
    """The bits to swap of a value in network order (16, 32, 64)."""
    text: bool = False
    """The value is the text at this place; the last load has the offset of its first byte."""
    located: int | None = None
    """For a text in an event's record: 16 bits at its place give its offset from here."""
    pointer: bool = False
    """The value is an address: as a key it is never 0, and NULL is no object. Number keys have bit 63 set."""
    otherwise: Recipe | None = None
    """The recipe to use if this one gives 0."""


class Test(NamedTuple):
    """A filter: the point is ignored unless it holds."""

    left: Recipe
    operator: str
    """==, !=, <, <=, >, >=, & (any of these bits is set) or "in"."""
    right: tuple[int | bytes, ...]


class Attachment(NamedTuple):
    """A program of a point."""

    way: str
    target: str
    """The tracepoint, the function, the event as "category/name", or the place in a program."""
    btf_id: int
    """The BTF id for tp_btf, fentry and fexit; otherwise 0."""
    module: str
    """The module of that BTF; empty: the kernel itself."""
    keys: tuple[Recipe, ...]
    becomes: Recipe | None
    value: Recipe | None
    labels: tuple[Recipe, ...]
    filters: tuple[Test, ...]
    mark: Recipe | None
    reached: Recipe | None
    failed: Test | None
    spot: Spot | None = None
    """In a program: the instruction."""
