# SPDX-License-Identifier: Apache-2.0
"""Notifications to systemd (sd_notify(3)): ready, status and watchdog."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress

# A shorter timeout is a mistake and would cost wakeups.
_SHORTEST_S = 0.1


class Notify:
    """Sends only if the environment names a socket, and never blocks."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        path = environment.get("NOTIFY_SOCKET", "")
        # An abstract socket begins with @ in the environment, and with a zero byte for the kernel.
        self._path = f"\0{path[1:]}" if path[:1] == "@" else path if path[:1] == "/" else ""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) if self._path else None
        if self._socket is not None:
            self._socket.setblocking(False)
        self.watchdog_s = _watchdog(environment) if self._path else None
        """The watchdog timeout; None if there is no watchdog."""

    def send(self, *lines: str) -> None:
        if self._socket is not None:
            with suppress(OSError, ValueError):
                self._socket.sendto("\n".join(lines).encode(errors="replace"), self._path)

    def status(self, words: str) -> None:
        self.send(f"STATUS={' '.join(words.split())}")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


def _watchdog(environment: Mapping[str, str]) -> float | None:
    text = environment.get("WATCHDOG_USEC", "")
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()) or not text.isdecimal():
        return None
    return max(int(text[:18]) / 1e6, _SHORTEST_S) or None
