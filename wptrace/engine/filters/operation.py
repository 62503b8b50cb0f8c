# SPDX-License-Identifier: Apache-2.0
"""Filters by operation and size (bpf_src/lib/filters/operation.h)."""

from __future__ import annotations

from typing import Any, Optional

from wptrace.engine.filters import Predicate
from wptrace.errors import UsageError
from wptrace.model.units import parse_bytes

_SWITCH = "filter_operation"
_MOST_BYTES = (1 << 64) - 1
OF_OPERATIONS = ("sync", "pagefault", "swapin")
"""Kinds of operations that no request can be."""


# The least and the most bytes; None for no limit.
Sizes = tuple[Optional[int], Optional[int]]


def _set_ops(bss: Any, wanted: str | None) -> None:
    bss.filter_ops = f"FILTER_OPS_{(wanted or 'both').upper()}"


def _sizes(text: str) -> Sizes:
    """Parse 4K-64K, 4K-, -1M, or a single size."""
    first, dash, second = text.partition("-")
    last = second if dash else first
    low, high = parse_bytes(first), parse_bytes(last)
    if (first and low is None) or (last and high is None) or not (first or last):
        raise UsageError(f"{text!r} is not a range of sizes such as 4K-64K, 4K- or -1M")
    if max(low or 0, high or 0) >= 1 << 63:
        raise UsageError(f"no request is as large as {text}")
    if low is not None and high is not None and low > high:
        raise UsageError(f"no size is in the range {text}: {first} is more than {last}")
    return low, high


def _set_sizes(bss: Any, wanted: Sizes | None) -> None:
    least, most = wanted or (None, None)
    bss.filter_min_bytes = least or 0
    bss.filter_max_bytes = _MOST_BYTES if most is None else most


def _describe_sizes(wanted: Sizes) -> dict[str, Any]:
    bounds = zip(("min_bytes", "max_bytes"), wanted)
    return {name: bound for name, bound in bounds if bound is not None}


# The two share a switch whose test checks both, so a flow has both or neither.
OP = Predicate(
    "op",
    "only reads (with page faults and swap-ins), only writes (with syncs), or only one of the others",
    str,
    _set_ops,
    _SWITCH,
    choices=("read", "write", *OF_OPERATIONS),
)
SIZE = Predicate(
    "size",
    "only requests of this many bytes: 4K-64K, 4K-, -1M, or just 64K",
    _sizes,
    _set_sizes,
    _SWITCH,
    metavar="MIN-MAX",
    describe=_describe_sizes,
)
