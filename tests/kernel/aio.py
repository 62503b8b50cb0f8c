# SPDX-License-Identifier: Apache-2.0
"""Linux AIO by its system calls."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence

from wptrace.kernel import system_calls

READ, WRITE, FSYNC, FDSYNC = 0, 1, 2, 3  # include/uapi/linux/aio_abi.h
_SETUP, _GETEVENTS = {"x86_64": (206, 208), "aarch64": (0, 4)}[os.uname().machine]

_libc = ctypes.CDLL(None, use_errno=True)


class Aio:
    def __init__(self, most: int = 1) -> None:
        self._context = ctypes.c_ulong()
        assert not _libc.syscall(_SETUP, most, ctypes.byref(self._context))

    def do(self, opcode: int, fd: int, address: int = 0, length: int = 0, offset: int = 0) -> int:
        """Submit one request, wait for it and return its result."""
        return self.do_all([(opcode, fd, address, length, offset)])[0]

    def do_all(self, wanted: Sequence[tuple[int, int, int, int, int]]) -> list[int]:
        """Submit requests in one call, wait for all of them and return their results in the order of completion."""
        assert self._submit(wanted) == len(wanted)
        events, count = ctypes.create_string_buffer(32 * len(wanted)), ctypes.c_long(len(wanted))
        assert _libc.syscall(_GETEVENTS, self._context, count, count, events, None) == len(wanted)
        return [struct.unpack_from("q", events, 32 * number + 16)[0] for number in range(len(wanted))]

    def refused(self, opcode: int, fd: int, address: int, length: int, offset: int) -> int:
        """Submit one request that the kernel does not take, and return the error."""
        assert self._submit([(opcode, fd, address, length, offset)]) == -1
        return ctypes.get_errno()

    def _submit(self, wanted: Sequence[tuple[int, int, int, int, int]]) -> int:
        asked = [struct.pack("QIIHHIQQqQII", 0, 0, 0, op, 0, fd, *where, 0, 0, 0) for op, fd, *where in wanted]
        blocks = [ctypes.create_string_buffer(one) for one in asked]
        every, count = (ctypes.c_void_p * len(asked))(*map(ctypes.addressof, blocks)), ctypes.c_long(len(asked))
        return int(_libc.syscall(system_calls.numbers()["io_submit"], self._context, count, every))
