# SPDX-License-Identifier: Apache-2.0
"""Output of a guest: streams that mark their end, and the console."""

from __future__ import annotations

import re

TAIL_LINES = 60
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1bc|[^\t\n\x20-\x7e\u00a0-\uffff]")


class Marked:
    """A stream whose end is a mark, because a serial port has no end of file.

    `feed` returns what certainly comes before the mark, and keeps what may be its beginning.
    """

    def __init__(self, mark: bytes) -> None:
        self.mark = mark
        self.ended = False
        self._kept = b""

    def feed(self, data: bytes) -> bytes:
        if self.ended:
            return b""
        data = self._kept + data
        self._kept = b""
        end = data.find(self.mark)
        if end >= 0:
            self.ended = True
            return data[:end]
        for length in range(min(len(self.mark) - 1, len(data)), 0, -1):
            if data.endswith(self.mark[:length]):
                self._kept = data[-length:]
                return data[:-length]
        return data

    def rest(self) -> bytes:
        """Return what was kept, once it is known that there will be no mark."""
        kept, self._kept = self._kept, b""
        return kept


def console_tail(data: bytes, lines: int = TAIL_LINES) -> str:
    """Return the last lines of a console, without control characters."""
    text = _ESCAPES.sub("", data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n"))
    return "\n".join(line.rstrip() for line in text.rstrip().split("\n")[-lines:])


def panic(text: str) -> str:
    """Return the kernel's message of a panic, or nothing."""
    match = re.search(r"Kernel panic - not syncing: (.*)", text)
    return match.group(1).strip() if match else ""
