# SPDX-License-Identifier: Apache-2.0
"""The expressions of definitions: their syntax, not their meaning on a kernel.

    expression = path { "||" path-or-choice }       the first that is not 0 when the point is passed
    choice     = path { "|" path }                  the first that this kernel has
    path       = primary { "->" name | "." name | "[" number "]" } [ ":" number | ":" "str" ]
                                                    so many of its lowest bits, or the text at this address
    primary    = name | number | "(" path ")" | "(" "struct" name "*" ")" primary | "ntohs" "(" path ")"
    comparison = choice operator ( literal | "[" literal { "," literal } "]" )
    operator   = "==" | "!=" | "<" | "<=" | ">" | ">=" | "&" | "in"

A cast binds to what follows it at once, more tightly than in C: `(struct tcp_sock *)sk->write_seq` is the write_seq of
a tcp_sock. Nothing here can do more than read.
"""

from __future__ import annotations

from typing import NamedTuple, Union

from wptrace.engine.definition.faults import Place


class Step(NamedTuple):
    """A step to a field, or to an element of an array."""

    name: str
    element: int | None
    at: int
    """The position in the text, from 0."""


class Path(NamedTuple):
    """A root, the type it is cast to, and the steps from there."""

    root: str | int | Path
    steps: tuple[Step, ...] = ()
    cast: str = ""
    """Before the steps, the root is cast to a pointer to this struct."""
    swap: int = 0
    """The number of bits of a value in network order; 0: host order."""
    bits: int = 0
    """The number of lowest bits to use; 0: all."""
    string: bool = False
    """It is the address of a text, which is meant."""
    at: int = 0
    text: str = ""
    """The expression as it was written."""


Choice = tuple[Path, ...]
"""Alternatives, of which the first one that this kernel has is used."""


class Expression(NamedTuple):
    choices: tuple[Choice, ...]
    """Alternatives, of which the first one that is not 0 is used when the point is passed."""
    text: str
    place: Place

    def __str__(self) -> str:
        return self.text


class Name(NamedTuple):
    """A value of an enum by its name."""

    name: str
    at: int


Literal = Union[int, str, Name]


class Comparison(NamedTuple):
    """A filter."""

    left: Expression
    operator: str
    right: tuple[Literal, ...]
    text: str
    place: Place

    def __str__(self) -> str:
        return self.text
