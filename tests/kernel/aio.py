# SPDX-License-Identifier: Apache-2.0
"""Linux AIO by its system calls, one request at a time."""

from __future__ import annotations

import ctypes
import os
import struct

from wptrace.kernel import system_calls

READ, FSYNC, FDSYNC = 0, 2, 3  # include/uapi/linux/aio_abi.h
_SETUP, _GETEVENTS = {"x86_64": (206, 208), "aarch64": (0, 4)}[os.uname().machine]

_libc = ctypes.CDLL(None, use_errno=True)


class Aio:
    def __init__(self) -> None:
        self._context = ctypes.c_ulong()
        assert not _libc.syscall(_SETUP, 1, ctypes.byref(self._context))

    def do(self, opcode: int, fd: int, address: int = 0, length: int = 0, offset: int = 0) -> int:
        """Ask for one, wait for it, and return its result."""
        asked = struct.pack("QIIHHIQQQQII", 0, 0, 0, opcode, 0, fd, address, length, offset, 0, 0, 0)
        block, event = ctypes.create_string_buffer(asked), ctypes.create_string_buffer(32)
        every = (ctypes.c_void_p * 1)(ctypes.addressof(block))
        assert _libc.syscall(system_calls.numbers()["io_submit"], self._context, ctypes.c_long(1), every) == 1
        assert _libc.syscall(_GETEVENTS, self._context, ctypes.c_long(1), ctypes.c_long(1), event, None) == 1
        (result,) = struct.unpack_from("q", event, 16)
        return int(result)
