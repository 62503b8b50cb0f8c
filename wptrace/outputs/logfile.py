# SPDX-License-Identifier: Apache-2.0
"""A log of bounded size that survives a full disk and a rename by others."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from wptrace.errors import WptraceError
from wptrace.kernel import files

LARGEST = 10 << 20
KEPT = 4


class LogFile:
    """FILE, and when it is full FILE.1 (the newest) to FILE.4. What could not be written is counted in `lost`."""

    def __init__(self, path: Path, largest: int = LARGEST, kept: int = KEPT) -> None:
        self._path = path
        self._largest = largest
        self._kept = kept
        self._fd = -1
        # The size at which it is rotated; beyond LARGEST where that failed.
        self._full = largest
        self.lost = 0
        self.unrotated = 0
        """How often it could not be rotated, and went on beyond its size."""
        self.problem = ""
        """Why something was lost, or not rotated, the last time."""
        # A file that cannot be written at all is found out before anything is attached.
        self._open()

    def _open(self) -> None:
        self._fd = files.open_to_write(self._path, "a log", os.O_APPEND)

    def write(self, lines: Iterable[str]) -> None:
        """Write all of these lines, or none."""
        data = "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace")
        try:
            self._ready(len(data))
            self._append(data)
        except WptraceError as error:
            self.lost += 1
            self.problem = error.message
        except OSError as error:
            self.lost += 1
            self.problem = error.strerror or str(error)

    def _ready(self, room: int) -> None:
        """Open, at its path, and with that much room."""
        if self._fd < 0 or not self._in_place():
            self.close()
            self._open()
        size = os.fstat(self._fd).st_size
        if size and size + room > max(self._full, self._largest):
            self._rotate(size)

    def _in_place(self) -> bool:
        """Whether the path still leads to the open file; logrotate and people move it away."""
        try:
            there = os.stat(self._path)  # noqa: PTH116 - beside fstat
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(self._fd))

    def _rotate(self, size: int) -> None:
        """A file that cannot be moved is written on, and moved when it has grown by as much again."""
        # A move that failed half way has left a gap: no older file has to go for it.
        free = next((number for number in range(1, self._kept) if not self._numbered(number).exists()), self._kept)
        try:
            for number in range(free, 0, -1):
                with suppress(FileNotFoundError):
                    (self._numbered(number - 1) if number > 1 else self._path).replace(self._numbered(number))
        except OSError as error:
            self.unrotated += 1
            self.problem = error.strerror or str(error)
            self._full = size + self._largest
            return
        self._full = self._largest
        self.close()
        self._open()

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def _append(self, data: bytes) -> None:
        start = os.fstat(self._fd).st_size
        written = 0
        try:
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError:
            # A disk that is nearly full takes a part.
            if written:
                with suppress(OSError):
                    os.ftruncate(self._fd, start)
            raise

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
