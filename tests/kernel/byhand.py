# SPDX-License-Identifier: Apache-2.0
"""Running a program without its hook, on arguments that a test makes up."""

from __future__ import annotations

import os
import struct

from wptrace.bpf.lib import libbpf
from wptrace.bpf.object import BpfObject

_BPF = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
_TEST_RUN = 10
# prog_fd, retval, four words of packets, repeat, duration, sizes and addresses of contexts
_ATTRIBUTE = struct.Struct("=II24xIIIIQQIII4x")
_ARGUMENTS = 12


class Run:
    """A raw_tp program that runs once per call, on the CPU of this thread."""

    def __init__(self, fd: int) -> None:
        self._lib = libbpf()
        self._context = self._lib.ffi.new("__u64[]", _ARGUMENTS)
        address = int(self._lib.ffi.cast("uintptr_t", self._context))
        attribute = _ATTRIBUTE.pack(fd, 0, 0, 0, _ARGUMENTS * 8, 0, address, 0, 0, 0, 0)
        self._attribute = self._lib.ffi.from_buffer(bytearray(attribute), require_writable=True)
        self._call = [self._lib.ffi.cast("long", value) for value in (_TEST_RUN, len(attribute))]

    def __call__(self, *arguments: int) -> None:
        for place, value in enumerate(arguments):
            self._context[place] = value
        command, size = self._call
        result = self._lib.lib.syscall(_BPF, command, self._attribute, size)
        self._lib.check(result if result >= 0 else -self._lib.ffi.errno, "a program cannot be run")


def run(obj: BpfObject, program: str, *arguments: int) -> None:
    Run(obj.progs[program].fd)(*arguments)
