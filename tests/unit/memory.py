# SPDX-License-Identifier: Apache-2.0
"""Memory that Python takes in a block."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager


class Memory:
    peak = 0
    """The most that there was, once the block has ended."""

    @property
    def now(self) -> int:
        return tracemalloc.get_traced_memory()[0]


@contextmanager
def traced() -> Iterator[Memory]:
    memory = Memory()
    tracemalloc.start()
    try:
        yield memory
    finally:
        memory.peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
