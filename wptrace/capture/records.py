# SPDX-License-Identifier: Apache-2.0
"""Names that writers and readers of records share."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

HEADER = struct.Struct("<IIq")
"""Before the columns: the number of the layout, how many they are, what to add to their times for the time of day."""


class Tail(NamedTuple):
    """A text in a record, and the field that says how much of it is used; behind it lies what was there before."""

    text: str
    end: str

    def of(self, layout: Any) -> tuple[int, int, int]:
        places = {one.name: one for one in layout.places}
        text = places[self.text]
        return text.offset, places[self.end].offset, text.codec.size


class Raw(NamedTuple):
    """Records that a flow hands over as they lie in the ring, and what of its object one needs to understand them."""

    record: str
    """Their struct."""
    enums: Sequence[str] = ()
    constants: Sequence[str] = ()
    without: Sequence[str] = ()
    """Members that are not kept."""
    end: str = ""
    """Records end before this member, or with their struct."""
    last: int | None = None
    """The number of elements in the array that is the last member; None: all."""
    tail: Tail | None = None
    cgroup: str = ""
    """The member that has the id of a cgroup."""
    statement: str = ""
    """The member that stands for a statement."""
    more: Mapping[str, int] = {}
    """Constants of the kernel, and not of the object."""
    words: Mapping[str, Sequence[str]] = {}
    """Lists of names as an enum has them, and not of the object."""

    def struct(self, obj: Any) -> Any:
        whole = obj.struct(self.record).before(self.end)
        return whole if self.last is None else whole.shortened(self.last)


class Names(NamedTuple):
    """Names that records of a flight recorder refer to by number."""

    tasks: Mapping[int, tuple[int, str, str]] = {}
    """Pid, cgroup and name by tid."""
    files: Mapping[tuple[int, int], str] = {}
    """Paths by device and inode."""
    rows: Mapping[int, Sequence[Any]] = {}
    """Values of labels, by the number of a row."""
