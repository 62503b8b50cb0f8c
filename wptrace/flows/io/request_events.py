# SPDX-License-Identifier: Apache-2.0
"""Events of requests on their way (`struct event_counts` and `struct events` of bpf_src/lib/block.h)."""

from __future__ import annotations

from typing import Any

from wptrace.bpf.kernel_btf import vmlinux
from wptrace.engine.cells import Cells
from wptrace.model.kind import Group

_EVENTS = "events."
# How those of a stack hang together, and what the path level notes for itself.
_NO_EVENTS = ("below", "inline_")


def counted(cells: Cells) -> dict[Group, dict[str, int]]:
    """Of each row the counters that its kind declares, as far as these cells have them."""
    found: dict[Group, dict[str, int]] = {}
    for group, counts in cells.counters.items():
        row = found[group] = {}
        for name in (field.name for field in group.kind.counters):
            place = name if name in counts else _EVENTS + name
            if place in counts:
                row[name] = counts[place]
    return found


class Events:
    """Of single requests, as records have them in a few bytes."""

    def __init__(self, codec: Any) -> None:
        self._codec = codec
        self._nothing = bytes(codec.size)

    def fields(self, data: bytes) -> dict[str, Any]:
        """Return the fields of a request for its events; empty where nothing happened."""
        if data == self._nothing:
            return {}
        found = dict(zip(self._codec.fields, self._codec.struct.unpack(data)))
        events = {name: count for name, count in found.items() if count and name not in _NO_EVENTS}
        return {"events": events} if events else {}


# Before 6.12; then it is a value of an enum, named only later.
_TIMED_OUT_BEFORE = 21
_TIMED_OUT = "__RQF_TIMED_OUT"


def timed_out_bit() -> int:
    """Which of a request's flags says that its time ran out."""
    named = vmlinux().enum_value("rqf_flags", _TIMED_OUT)
    found = named if named is not None else vmlinux().nameless_value(_TIMED_OUT)
    return _TIMED_OUT_BEFORE if found is None else found
