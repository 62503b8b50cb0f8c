# SPDX-License-Identifier: Apache-2.0
"""The folder of dumps: limits its size, and how much is written to it in a day."""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from wptrace.kernel.files import is_regular

_DAY_S = 86_400.0
# The names that engine/dumps.py makes: date and time, and a number if there are several in a second.
_NAME = re.compile(r"(wptrace-[0-9]{8}-[0-9]{6})(?:-([0-9]{1,3}))?\.(?:wpt|html)", re.ASCII)


class Room:
    """Counts and removes only files with names of ours, and follows no links."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder, self.keep = folder, keep

    def make(self, kept: Collection[Path] = ()) -> list[str]:
        """Remove the oldest dumps with their pages until the rest fits, but none of these."""
        try:
            folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return []
        try:
            return self._make(folder, {path.name for path in kept})
        except OSError:
            # The disk may fail that has the folder.
            return []
        finally:
            os.close(folder)

    def _make(self, folder: int, kept: set[str]) -> list[str]:
        dumps: dict[tuple[str, int], dict[str, int]] = {}
        for name in os.listdir(folder):
            found = _NAME.fullmatch(name)
            if found is None:
                continue
            with suppress(OSError):
                of = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if is_regular(of) and of.st_uid == os.geteuid():
                    dumps.setdefault((found.group(1), int(found.group(2) or 0)), {})[name] = of.st_size
        whole = sum(sum(files.values()) for files in dumps.values())
        removed, now = [], time.strftime("wptrace-%Y%m%d-%H%M%S")
        # What a clock dated that was ahead would be the newest for long, and all that comes now the oldest.
        for _, files in sorted(dumps.items(), key=lambda one: (one[0][0] <= now, one[0])):
            if whole <= self.keep:
                break
            if kept & files.keys():
                continue
            for name, size in files.items():
                with suppress(OSError):
                    os.unlink(name, dir_fd=folder)
                    removed.append(name)
                    whole -= size
        return removed


class Daily:
    """The amount that was written in the last 24 hours."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._written: deque[tuple[float, int]] = deque()

    def add(self, now: float, size: int) -> None:
        self._written.append((now, size))

    def left(self, now: float) -> int:
        while self._written and now - self._written[0][0] >= _DAY_S:
            self._written.popleft()
        return max(self.most - sum(size for _, size in self._written), 0)
