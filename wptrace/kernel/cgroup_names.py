# SPDX-License-Identifier: Apache-2.0
"""Control groups of the v2 hierarchy by their ids, as the kernel's objects have them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from wptrace.kernel import mounts
from wptrace.kernel.mounts import PROC


class CgroupNames:
    """Paths below the root of the hierarchy. A cgroup that is gone keeps the name by which it was looked up."""

    def __init__(self, proc: Path = PROC, known: Mapping[int, str] | None = None) -> None:
        """Those that are `known` are all, if they are given: of another machine, or another time."""
        self._all = known is not None
        if known is not None:
            self._root, self._known = "", dict(known)
            return
        self._root = next((mount.point for mount in mounts.mounts(proc) if mount.kind == "cgroup2"), "")
        # The root is the first that there is, also where nothing is mounted.
        self._known = {1: "/"}

    def of(self, number: int) -> str:
        if number not in self._known and self._root:
            self._read()
        name = self._known.get(number) or f"cgroup {number}"
        if not self._all:
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
