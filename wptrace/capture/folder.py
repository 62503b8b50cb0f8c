# SPDX-License-Identifier: Apache-2.0
"""The captures of a folder as one, one behind the other in the order of their names."""

from __future__ import annotations

import os
from bisect import bisect_right
from pathlib import Path
from typing import BinaryIO

from wptrace.errors import WptraceError
from wptrace.kernel import files

_MOST = 10_000


def captures(path: Path) -> list[Path]:
    """The files of a folder that are read, in their order."""
    return sorted(one for one in path.iterdir() if one.name.endswith(".wpt"))


class Folder:
    """A folder that is read like a file. One of its files is open at a time; growing ones are read as they were."""

    def __init__(self, path: Path) -> None:
        self._paths = captures(path)
        if not self._paths:
            others = ", ".join(sorted(one.name for one in path.iterdir() if one.is_dir())[:8])
            raise WptraceError(f"{path} has no captures", f"name a folder in it: {others}" if others else None)
        if len(self._paths) > _MOST:
            raise WptraceError(f"{path} has {len(self._paths):,} captures; at most {_MOST:,} are read at once")
        self._begins, self.size = [], 0
        for one in self._paths:
            self._begins.append(self.size)
            fd, found = files.open_to_read(one, files.is_regular, os.O_NOFOLLOW)
            os.close(fd)
            self.size += found.st_size
        self._place = 0
        self._open: tuple[int, BinaryIO] | None = None

    def seek(self, place: int) -> None:
        self._place = place

    def read(self, length: int) -> bytes:
        """Less of it at the end of the last file alone."""
        found, end = b"", min(self._place + length, self.size)
        while self._place < end:
            number = bisect_right(self._begins, self._place) - 1
            begin = self._begins[number]
            stop = self._begins[number + 1] if number + 1 < len(self._begins) else self.size
            file = self._file(number)
            file.seek(self._place - begin)
            piece = file.read(min(end, stop) - self._place)
            if not piece:
                raise WptraceError(f"{self._paths[number]} was truncated: another command is writing it")
            found += piece
            self._place += len(piece)
        return found

    def _file(self, number: int) -> BinaryIO:
        if self._open is None or self._open[0] != number:
            self.close()
            fd, _ = files.open_to_read(self._paths[number], files.is_regular, os.O_NOFOLLOW)
            self._open = number, os.fdopen(fd, "rb")
        return self._open[1]

    def close(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None
