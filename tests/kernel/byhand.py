# SPDX-License-Identifier: Apache-2.0
"""Running a program without its hook, on arguments that a test makes up."""

from __future__ import annotations

import ctypes
import os
import struct

from wptrace.bpf.object import BpfObject

_BPF = {"x86_64": 321, "aarch64": 280}
_PROG_TEST_RUN = 10


def run(obj: BpfObject, program: str, *arguments: int) -> None:
    """Run a raw_tp program once, on the CPU of this thread."""
    context = struct.pack(f"{len(arguments)}Q", *arguments)
    memory = ctypes.create_string_buffer(context, len(context))
    # union bpf_attr, test: prog_fd, retval, sizes and addresses of data, repeat, duration, then size and address of the
    # context.
    attribute = ctypes.create_string_buffer(80)
    struct.pack_into("I", attribute, 0, obj.progs[program].fd)
    struct.pack_into("I4xQ", attribute, 40, len(context), ctypes.addressof(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.syscall(_BPF[os.uname().machine], _PROG_TEST_RUN, attribute, len(attribute))
    assert done == 0, os.strerror(ctypes.get_errno())
