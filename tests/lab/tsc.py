# SPDX-License-Identifier: Apache-2.0
"""The speed of this machine's time stamp counter, which an emulated one uses as well.

A guest's kernel calibrates it at boot with a timer. On a busy machine the result may be wrong by a factor of ten, and
the guest's clock too fast by the same: a limit of minutes becomes one of seconds.
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
    """Return the speed, or None if the machine has no such counter or does not let it be read."""
    if os.uname().machine != "x86_64":
        return None
    try:
        code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError:
        return None
    code.write(_READ)
    read = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(ctypes.c_char.from_buffer(code)))

    def both() -> tuple[int, int]:
        """Return the counter and the time, from the least disturbed of several readings."""
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
