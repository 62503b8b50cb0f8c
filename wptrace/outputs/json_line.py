# SPDX-License-Identifier: Apache-2.0
"""A line of JSON that every parser accepts, whatever names are in it."""

from __future__ import annotations

import json
import re
from typing import Any

# One encoder serves all lines: json.dumps makes a new one for each, which takes a fifth of the time.
_ENCODER = json.JSONEncoder(separators=(",", ":"), check_circular=False, allow_nan=False)
# Bytes that are no UTF-8 are surrogates in Python's names (0xff is U+DCFF), which are no characters elsewhere.
_SURROGATE = re.compile("[\ud800-\udfff]")
_FIRST_BYTE, _LAST_BYTE = 0xDC80, 0xDCFF


def encoded(line: Any) -> str:
    """Return a line, or a part of one.

    Control characters and all that is not ASCII are escaped; of bytes that are no UTF-8 the names are: `\\xff`.
    """
    text = _ENCODER.encode(line)
    # A character beyond U+FFFF takes two surrogates, and is sound.
    return _ENCODER.encode(sound(line)) if "\\ud" in text else text


def sound(value: Any) -> Any:
    """Return it with characters alone in its texts, so that names of different bytes stay different."""
    if isinstance(value, str):
        return _SURROGATE.sub(_byte, value)
    if isinstance(value, dict):
        return {sound(key): sound(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [sound(one) for one in value]
    return value


def _byte(match: re.Match[str]) -> str:
    number = ord(match[0])
    # Any other comes from a forged capture.
    return f"\\x{number - 0xDC00:02x}" if _FIRST_BYTE <= number <= _LAST_BYTE else "\ufffd"
