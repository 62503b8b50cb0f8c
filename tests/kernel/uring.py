# SPDX-License-Identifier: Apache-2.0
"""An io_uring ring for links and for requests without a completion event on success, which fio does not make."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from types import TracebackType
from typing import NamedTuple

# include/uapi/linux/io_uring.h
_SETUP, _ENTER = 425, 426
_SQES, _GETEVENTS = 0x10000000, 1
READ = 22
LINK, ASYNC, SKIP = 1 << 2, 1 << 4, 1 << 6
_PARAMS = struct.Struct("10I10I10I")
_SQE = struct.Struct("<BBHiQQIIQ24x")
_CQE = struct.Struct("<QiI")

_libc = ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: object) -> int:
    result = _libc.syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(result)


class Event(NamedTuple):
    user_data: int
    result: int


class Ring:
    def __init__(self, entries: int = 8) -> None:
        params = ctypes.create_string_buffer(_PARAMS.size)
        self._fd = _call(_SETUP, entries, params)
        words = _PARAMS.unpack(params.raw)
        entries, completions = words[0], words[1]
        self._submit, self._done = words[10:20], words[20:30]
        size = max(self._submit[6] + 4 * entries, self._done[5] + _CQE.size * completions)
        self._memory = mmap.mmap(self._fd, size)
        self._sqes = mmap.mmap(self._fd, entries * _SQE.size, offset=_SQES)

    def __enter__(self) -> Ring:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sqes.close()
        self._memory.close()
        os.close(self._fd)

    def _word(self, place: int) -> int:
        return int(struct.unpack_from("<I", self._memory, place)[0])

    def _set(self, place: int, value: int) -> None:
        struct.pack_into("<I", self._memory, place, value & 0xFFFFFFFF)

    def read(self, fd: int, address: int, length: int, offset: int, user_data: int, flags: int = 0) -> None:
        """Prepare a read, which the next `enter` submits."""
        tail = self._word(self._submit[1])
        place = tail & self._word(self._submit[2])
        _SQE.pack_into(self._sqes, place * _SQE.size, READ, flags, 0, fd, offset, address, length, 0, user_data)
        self._set(self._submit[6] + 4 * place, place)
        self._set(self._submit[1], tail + 1)

    def submit(self, count: int) -> None:
        """Submit `count` requests, and leave their completions where they are."""
        _call(_ENTER, self._fd, count, 0, 0, None, 0)

    def enter(self, count: int, events: int) -> list[Event]:
        """Submit `count` requests, wait for `events` completions and return all that are there."""
        _call(_ENTER, self._fd, count, events, _GETEVENTS, None, 0)
        head, tail = self._word(self._done[0]), self._word(self._done[1])
        found = []
        while head != tail:
            place = self._done[5] + _CQE.size * (head & self._word(self._done[2]))
            user_data, result, _ = _CQE.unpack_from(self._memory, place)
            found.append(Event(user_data, result))
            head += 1
        self._set(self._done[0], head)
        return found
