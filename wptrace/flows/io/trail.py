# SPDX-License-Identifier: Apache-2.0
"""With `--segments`: what an operation was at from when to when, and its requests (bpf_src/block/path/segments.h)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from wptrace.kernel.blkstatus import to_errno
from wptrace.model.report import Child, Segment


class Trails:
    """`letters` and `numbers` make words of an operation with flags, and of a device."""

    def __init__(
        self,
        codec: Any,
        stage_bits: int,
        stages: Sequence[str],
        letters: Callable[[int, int], str],
        numbers: Callable[[int], str],
    ) -> None:
        if not 0 < stage_bits < 64:
            raise ValueError("a stage takes some bits of a word")
        self._codec = codec
        self._bits = stage_bits
        self._stages = stages
        self._letters, self._numbers = letters, numbers
        self._nothing = bytes(codec.size)

    def decode(self, data: bytes, start_ns: int) -> tuple[list[Segment], int, list[Child]]:
        """Stretches, how many more there were, requests in the order in which they were queued.

        A ValueError where they go back in time, as those of no program do.
        """
        if data == self._nothing:
            return [], 0, []
        trail = self._codec.unpack(data)
        children = sorted(self._children(trail.children, start_ns), key=lambda one: one.times["queued"])
        return list(self._segments(trail.segments)), trail.more, children

    def _segments(self, words: Sequence[int]) -> Iterator[Segment]:
        begin, mask = 0, (1 << self._bits) - 1
        for word in words:
            if not word:
                return
            end = word >> self._bits
            if end <= begin:
                raise ValueError("a stretch ends before it begins")
            yield Segment(self._stages[word & mask], begin, end)
            begin = end

    def _children(self, found: Sequence[Any], start_ns: int) -> Iterator[Child]:
        for one in found:
            if not one.times.queued:
                continue
            yield Child(
                {name: at - start_ns for name, at in vars(one.times).items()},
                {
                    "maj_min": self._numbers(one.dev),
                    # A flush has none.
                    "sector": int(one.sector) if one.bytes else 0,
                    "bytes": int(one.bytes),
                    "rwbs": self._letters(one.op, one.flags),
                    "readahead": one.readahead != 0,
                    "error": to_errno(int(one.error)),
                },
            )


def of_request(stages: Mapping[str, int]) -> list[Segment]:
    """It passes its stages one after the other."""
    found, begin = [], 0
    for name, ns in stages.items():
        if ns:
            found.append(Segment(name, begin, begin + ns))
            begin += ns
    return found
