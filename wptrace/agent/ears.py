# SPDX-License-Identifier: Apache-2.0
"""Descriptors at which something may be heard, all of them behind one that the reader waits on."""

from __future__ import annotations

import select
from typing import Callable


class Ears:
    def __init__(self) -> None:
        self._poll = select.epoll()
        self._hearers: dict[int, Callable[[], None]] = {}

    @property
    def fd(self) -> int:
        return self._poll.fileno()

    def add(self, fd: int, hear: Callable[[], None], events: int = select.EPOLLIN) -> None:
        self._poll.register(fd, events)
        self._hearers[fd] = hear

    def remove(self, fd: int) -> None:
        """Before it is closed."""
        self._poll.unregister(fd)
        del self._hearers[fd]

    def hear(self) -> None:
        """Does all that can be done now."""
        for fd, _ in self._poll.poll(0):
            # One may have removed another.
            if fd in self._hearers:
                self._hearers[fd]()

    def close(self) -> None:
        self._poll.close()
