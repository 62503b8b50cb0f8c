# SPDX-License-Identifier: Apache-2.0
"""How fast this machine's counter of cycles is, which an emulated one counts with.

A guest's kernel measures that while it boots, by a timer that interrupts. If the machine is busy then, it may be wrong
by a factor of ten, and its clock runs as much too fast: a patience of minutes is one of seconds.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from functools import lru_cache

# rdtsc; shl rdx, 32; or rax, rdx; ret
_READ = bytes.fromhex("0f31 48c1e220 4809d0 c3")
_APART_S = 0.1
_TRIES = 10


@lru_cache(maxsize=1)
def khz() -> int | None:
    """None where the machine has none, or does not let it be read."""
    if os.uname().machine != "x86_64":
        return None
    try:
        code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError:
        return None
    code.write(_READ)
    read = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(ctypes.c_char.from_buffer(code)))

    def both() -> tuple[int, int]:
        """The counter, and the time when it was read: the least disturbed of several readings."""
        readings = []
        for _ in range(_TRIES):
            before, counter, after = time.monotonic_ns(), read(), time.monotonic_ns()
            readings.append((after - before, counter, before))
        _, counter, at = min(readings)
        return counter, at

    first, begin = both()
    time.sleep(_APART_S)
    last, end = both()
    return round((last - first) * 1_000_000 / (end - begin))
