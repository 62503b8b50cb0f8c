# SPDX-License-Identifier: Apache-2.0
"""A request as the letters that blktrace users read."""

from __future__ import annotations

from collections.abc import Collection

_OPERATIONS = {"read": "R", "write": "W", "flush": "F", "discard": "D", "zeroes": "WZ", "zone": "Z"}


def rwbs(op: str, flags: Collection[str]) -> str:
    letters = "F" if "preflush" in flags else ""
    letters += _OPERATIONS.get(op, "N")
    for flag, letter in (("fua", "F"), ("rahead", "A"), ("sync", "S"), ("meta", "M")):
        if flag in flags:
            letters += letter
    return letters
