# SPDX-License-Identifier: Apache-2.0
"""Differences between kernels, looked up in BTF: arguments of tracepoints (bpf_src/lib/arguments.h), and a flag."""

from __future__ import annotations

from wptrace.bpf.kernel_btf import vmlinux

# The bit before 6.12; later it is the value of an enum, which is looked up by name.
_TIMED_OUT_BEFORE = 21
_TIMED_OUT = "__RQF_TIMED_OUT"


def argument(tracepoint: str, kind: str) -> int:
    """The place, from 0, of the argument of this type ("bio *"); 0 if the tracepoint or the argument is missing.

    A wrong guess would read garbage without an error.
    """
    arguments = vmlinux().tracepoint(tracepoint) or ()
    return arguments.index(kind) if kind in arguments else 0


def timed_out_bit() -> int:
    """The flag of a request that timed out."""
    named = vmlinux().enum_value("rqf_flags", _TIMED_OUT)
    found = named if named is not None else vmlinux().nameless_value(_TIMED_OUT)
    return _TIMED_OUT_BEFORE if found is None else found
