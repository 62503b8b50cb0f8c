# SPDX-License-Identifier: Apache-2.0
"""Stacks by names, from the innermost function outwards."""

from __future__ import annotations

from typing import NamedTuple


class Stack(NamedTuple):
    kernel: tuple[str, ...]
    user: tuple[str, ...] = ()
    process: str = ""
    """Name and pid of the process with the user's part."""

    def folded(self) -> str:
        """Return a line for flame graphs, from the outermost function inwards; a semicolon would split a name."""
        frames = (*self.kernel, *self.user, *((self.process,) if self.process else ()))
        return ";".join(frame.replace(";", ":") for frame in reversed(frames))
