# SPDX-License-Identifier: Apache-2.0
"""Recipes: where a point of a definition attaches on one kernel, and how each of its values is read there.

Made by the resolver from the definition and the kernel's BTF; from it alone the programs are emitted.
"""

from __future__ import annotations

from typing import NamedTuple

ARGUMENT, RETURNED, TASK, CPU, CONSTANT = "argument", "returned", "task", "cpu", "constant"
"""Where a recipe begins: an argument of the hook, what the function returned, the current task, the CPU's number, or a
number."""

TP_BTF, RAW_TP, EVENT, FENTRY, FEXIT, KPROBE, KRETPROBE = (
    "tp_btf",
    "raw_tp",
    "event",
    "fentry",
    "fexit",
    "kprobe",
    "kretprobe",
)
"""How a program is attached, as the kernel takes it."""


class Load(NamedTuple):
    """The value at this offset of the object that was reached; unless it is the last, a pointer to the next object."""

    offset: int
    size: int
    """In bytes: 1, 2, 4 or 8."""
    direct: bool
    """The verifier knows the type of the object: a plain load. Else the kernel is asked to read it."""


class Recipe(NamedTuple):
    """How to read one value."""

    source: str
    number: int = 0
    """Of the argument, from 0; or the constant; with EVENT the offset in the record; of what was returned, how many
    arguments come before it."""
    loads: tuple[Load, ...] = ()
    """None: the source itself is the value."""
    signed: bool = False
    size: int = 8
    """Of the value in bytes, before it is widened to 64 bits; with text, at most so many bytes."""
    shift: int = 0
    bits: int = 0
    """A bit field: so many bits, shifted so far from the lowest of what was loaded; 0: no bit field."""
    swap: int = 0
    """In network order: so many bits are swapped (16, 32, 64)."""
    text: bool = False
    """Not a number but the text at the place that was reached: the last load's offset is that of its first byte."""
    located: int | None = None
    """Of a text in the record of an event: at its place are 16 bits that say where it begins, counted from here."""
    pointer: bool = False
    """An address: as a key it is never 0, and NULL is not an object. Numbers as keys have bit 63 set."""
    otherwise: Recipe | None = None
    """The recipe to use where this one gives 0."""


class Test(NamedTuple):
    """A filter: the point is not seen unless this holds."""

    left: Recipe
    operator: str
    """==, !=, <, <=, >, >=, & (a bit of these is set) or "in"."""
    right: tuple[int | bytes, ...]


class Attachment(NamedTuple):
    """One program of a point."""

    way: str
    target: str
    """Of a tracepoint, a function, or "category/name" of an event."""
    btf_id: int
    """The BTF id for tp_btf, fentry and fexit; else 0."""
    module: str
    """The module whose BTF that is; empty: the kernel itself."""
    keys: tuple[Recipe, ...]
    becomes: Recipe | None
    value: Recipe | None
    labels: tuple[Recipe, ...]
    filters: tuple[Test, ...]
    mark: Recipe | None
    reached: Recipe | None
    failed: Test | None
