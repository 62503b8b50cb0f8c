# SPDX-License-Identifier: Apache-2.0
"""Files with a few damaged bytes, and programs for binaries and sdt."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

from wptrace.errors import UsageError

SIZE = 0x200000


def damaged(whole: bytes, chance: random.Random) -> bytearray:
    data = bytearray(whole)
    for _ in range(chance.choice((1, 4, 16))):
        data[chance.randrange(len(data))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
    return data


def written(folder: Path, data: bytes) -> str:
    """Write a program whose segments are as long as they say."""
    path = folder / "program"
    # ext4 writes a file out that is replaced, which takes much longer than to remove it.
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    os.truncate(path, SIZE)
    return str(path)


def assert_one_sentence(folder: Path, whole: bytes, places: Callable[[str], list[int]]) -> None:
    """Damage a program again and again: places in it are found, or refused in a sentence."""
    chance = random.Random(1)  # noqa: S311 - the same damage each time
    outcomes = set()
    for _ in range(500):
        try:
            found = places(written(folder, bytes(damaged(whole, chance))))
        except UsageError:
            outcomes.add("refused")
        else:
            outcomes.add("found")
            assert all(0 < place < SIZE for place in found)
    assert outcomes == {"found", "refused"}
