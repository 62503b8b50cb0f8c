# SPDX-License-Identifier: Apache-2.0
"""Files with a few damaged bytes."""

from __future__ import annotations

import random


def damaged(whole: bytes, chance: random.Random) -> bytearray:
    data = bytearray(whole)
    for _ in range(chance.choice((1, 4, 16))):
        data[chance.randrange(len(data))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
    return data
