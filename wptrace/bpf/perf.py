# SPDX-License-Identifier: Apache-2.0
"""Perf events that BPF programs run on."""

from __future__ import annotations

import os

from wptrace.bpf.lib import libbpf
from wptrace.errors import UnsupportedError

_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
# include/uapi/linux/perf_event.h
_SOFTWARE, _CPU_CLOCK = 1, 0
_ATTRIBUTE_SIZE = 64  # PERF_ATTR_SIZE_VER0 is the smallest that every kernel takes
_CLOSE_ON_EXEC = 1 << 3


def open_clock(cpu: int, period_ns: int, pid: int = -1) -> int:
    """A descriptor of a software clock that overflows every `period_ns` on a CPU, or in a process on any (cpu -1)."""
    lib = libbpf()
    attribute = bytearray(_ATTRIBUTE_SIZE)
    for offset, size, value in ((0, 4, _SOFTWARE), (4, 4, _ATTRIBUTE_SIZE), (8, 8, _CPU_CLOCK), (16, 8, period_ns)):
        attribute[offset : offset + size] = value.to_bytes(size, "little")
    number = _PERF_EVENT_OPEN.get(os.uname().machine)
    if number is None:
        raise UnsupportedError(f"perf events are not known on {os.uname().machine}")
    ffi = lib.ffi
    arguments = [ffi.cast("long", value) for value in (pid, cpu, -1, _CLOSE_ON_EXEC)]
    fd = lib.lib.syscall(number, ffi.from_buffer(attribute), *arguments)
    if fd < 0:
        lib.fail(ffi.errno, f"a clock event on CPU {cpu} cannot be opened")
    return int(fd)
