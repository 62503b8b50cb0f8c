# SPDX-License-Identifier: Apache-2.0
"""Control groups of the v2 hierarchy by their ids, as the kernel's objects have them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Callable

from wptrace.kernel import mounts
from wptrace.kernel.mounts import PROC

_MOST = 1 << 16


class CgroupNames:
    """Paths below the root of the hierarchy. A cgroup that is gone keeps the name by which it was looked up."""

    def __init__(self, proc: Path = PROC, known: Mapping[int, str] | None = None) -> None:
        """Those that are `known` are all, if they are given: of another machine, or another time."""
        self._all = known is not None
        self.gone: Callable[[int], str] = lambda _number: ""
        """The path of one that was removed, below the root of the whole hierarchy; empty where it is not known."""
        if known is not None:
            self._root, self._whole, self._known = "", False, dict(known)
            return
        found = next((mount for mount in mounts.mounts(proc) if mount.kind == "cgroup2"), None)
        self._root = found.point if found else ""
        # A part of the hierarchy has other paths.
        self._whole = found is None or found.root == "/"
        # The root is the first that there is, also where nothing is mounted.
        self._known = {1: "/"}

    def of(self, number: int) -> str:
        if number in self._known:
            return self._known[number]
        name = self.gone(number) if self._whole else ""
        if not name and self._root:
            self._read()
            name = self._known.get(number, "")
        name = name or f"cgroup {number}"
        if not self._all:
            if len(self._known) >= _MOST:
                # Those that are still there are read again.
                self._known = {1: "/"}
            self._known[number] = name
        return name

    def all(self) -> dict[int, str]:
        """Those of now."""
        if self._root:
            self._read()
        return self._known

    def _read(self) -> None:
        """An id is the inode number of the directory."""
        for folder, _, _ in os.walk(self._root):
            try:
                number = os.stat(folder).st_ino  # noqa: PTH116 - one call for each of maybe thousands
            except OSError:
                continue  # it just went
            self._known.setdefault(number, folder[len(self._root) :] or "/")
