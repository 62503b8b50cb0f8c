# SPDX-License-Identifier: Apache-2.0
"""Arguments of tracepoints that differ between kernels, looked up in BTF (bpf_src/lib/arguments.h)."""

from __future__ import annotations

from wptrace.bpf.kernel_btf import vmlinux


def argument(tracepoint: str, kind: str) -> int:
    """The place, from 0, of the argument of this type ("bio *"); 0 if the tracepoint or the argument is missing.

    A wrong guess would read garbage without an error.
    """
    arguments = vmlinux().tracepoint(tracepoint) or ()
    return arguments.index(kind) if kind in arguments else 0
