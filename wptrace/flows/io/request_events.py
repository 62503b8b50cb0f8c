# SPDX-License-Identifier: Apache-2.0
"""Events of requests on their way (`struct event_counts` and `struct events` of bpf_src/lib/block.h)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from wptrace.bpf.kernel_btf import vmlinux
from wptrace.engine.cells import Cells
from wptrace.model.kind import Group

_EVENTS = "events."
# Events that link stacked devices, and notes of the path level for itself.
_NO_EVENTS = ("below", "inline_")


def counted(cells: Cells, groups: Iterable[Group] | None = None) -> dict[Group, dict[str, int]]:
    """The counters of rows, else of each row, that its kind declares, if these cells have them."""
    found: dict[Group, dict[str, int]] = {}
    for group in cells.counters if groups is None else groups:
        counts = cells.counters[group]
        row = found[group] = {}
        for name in (field.name for field in group.kind.counters):
            place = name if name in counts else _EVENTS + name
            if place in counts:
                row[name] = counts[place]
    return found


class Events:
    """Decodes the events of single requests, which records pack into a few bytes."""

    def __init__(self, codec: Any) -> None:
        self._codec = codec
        self._nothing = bytes(codec.size)

    def fields(self, data: bytes) -> dict[str, Any]:
        """Return the fields for the events of a request; empty if there were none."""
        if data == self._nothing:
            return {}
        found = dict(zip(self._codec.fields, self._codec.struct.unpack(data)))
        events = {name: count for name, count in found.items() if count and name not in _NO_EVENTS}
        return {"events": events} if events else {}


# The bit before 6.12; later it is the value of an enum, which is looked up by name.
_TIMED_OUT_BEFORE = 21
_TIMED_OUT = "__RQF_TIMED_OUT"


def timed_out_bit() -> int:
    """The flag of a request that timed out."""
    named = vmlinux().enum_value("rqf_flags", _TIMED_OUT)
    found = named if named is not None else vmlinux().nameless_value(_TIMED_OUT)
    return _TIMED_OUT_BEFORE if found is None else found
