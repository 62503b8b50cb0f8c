# SPDX-License-Identifier: Apache-2.0
"""Control groups of the v2 hierarchy by their ids, as the kernel's objects have them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Callable

from wptrace.kernel import mounts
from wptrace.kernel.mounts import PROC

_MOST = 1 << 16
# The tracepoint of a removal passes after the directory is gone. Of those gone for long few are waited for.
_REMOVAL_S = (0, 0.002, 0.02)
_WAITED_FOR = 10


class CgroupNames:
    """Paths below the root of the hierarchy. A cgroup that is gone keeps the name by which it was looked up."""

    def __init__(self, proc: Path = PROC, known: Mapping[int, str] | None = None) -> None:
        """Use only the names in `known`, if given: those of another machine or time."""
        self._all = known is not None
        self.gone: Callable[[int], str] | None = None
        """The path of one that was removed, below the root of the whole hierarchy; empty where it is not known."""
        self._waited = 0
        if known is not None:
            self._root, self._whole, self._known = "", False, dict(known)
            return
        found = next((mount for mount in mounts.mounts(proc) if mount.kind == "cgroup2"), None)
        self._root = found.point if found else ""
        # A part of the hierarchy has other paths.
        self._whole = found is None or found.root == "/" or _is_root(found.point)
        # The root is the first that there is, also where nothing is mounted.
        self._known = {1: "/"}

    def of(self, number: int) -> str:
        """Return the path of a cgroup; empty for requests that no task submitted."""
        if not number:
            return ""
        if number in self._known:
            return self._known[number]
        name = self._removed(number) or self._there(number) or self._removed(number, _REMOVAL_S) or f"cgroup {number}"
        if not self._all:
            if len(self._known) >= _MOST:
                # The cgroups that still exist are read again.
                self._known = {1: "/"}
            self._known[number] = name
        return name

    def all(self) -> dict[int, str]:
        """Return all current names by id."""
        if self._root:
            self._read()
        return self._known

    def _removed(self, number: int, waits: tuple[float, ...] = (0,)) -> str:
        if self.gone is None or not self._whole:
            return ""
        for wait_s in waits if self._waited < _WAITED_FOR else (0,):
            time.sleep(wait_s)
            if name := self.gone(number):
                return name
        self._waited += len(waits) > 1
        return ""

    def _there(self, number: int) -> str:
        if not self._root:
            return ""
        self._read()
        return self._known.get(number, "")

    def _read(self) -> None:
        """An id is the inode number of the directory."""
        for folder, _, _ in os.walk(self._root):
            try:
                number = os.stat(folder).st_ino  # noqa: PTH116 - one call for each of maybe thousands
            except OSError:
                continue  # it just went
            self._known.setdefault(number, folder[len(self._root) :] or "/")


def _is_root(folder: str) -> bool:
    """Whether it is the root of its hierarchy, which a cgroup namespace shows as `/..`; its inode number is 1."""
    try:
        return os.stat(folder).st_ino == 1  # noqa: PTH116 - as above
    except OSError:
        return False
