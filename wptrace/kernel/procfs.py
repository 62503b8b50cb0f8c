# SPDX-License-Identifier: Apache-2.0
"""Files of /proc as lines.

Names of tasks and files stand in them, whatever bytes their owners chose; the kernel escapes line feeds and nothing
else that text has for the end of a line. So they are read as bytes.
"""

from __future__ import annotations

from pathlib import Path


def lines(path: Path) -> list[bytes]:
    """Without the line feeds; raises OSError where it cannot be read."""
    return path.read_bytes().removesuffix(b"\n").split(b"\n")


def field(path: Path, name: str) -> str:
    """The first word of the line `NAME:`, empty where there is none."""
    start = name.encode() + b":"
    words = next((line[len(start) :].split() for line in lines(path) if line.startswith(start)), [])
    return words[0].decode(errors="replace") if words else ""
