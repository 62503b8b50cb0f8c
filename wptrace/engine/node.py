# SPDX-License-Identifier: Apache-2.0
"""One operation, bio or request in a tree of requests."""

from __future__ import annotations

from collections.abc import Iterator

from wptrace.engine.accounting import UNMATCHED_END, UNMATCHED_START, Cause

Key = tuple[str, int]
"""Kind and identity, unique among what is alive at one time: the kernel reuses its addresses."""

Mark = tuple[str, int]
"""The letter of a point that was passed, and when."""

UNSEEN = Cause("unseen", "a request was named as the origin of another and no record of its own came")
CROWDED_OUT = Cause("crowded_out", "the reader held too many requests and gave up the oldest unfinished ones")


class Node:
    """What the records told about one thing; a time that is not known is 0.

    A request merged from several bios is one node below each of them; `origins` are the keys of what a node
    is below, set when it leaves the builder. A request that was requeued passed a point more than once.
    """

    __slots__ = (
        "children",
        "closed",
        "complete",
        "details",
        "end_ns",
        "given_up",
        "key",
        "left",
        "marks",
        "open",
        "origins",
        "parents",
        "seen_ns",
        "start_ns",
    )

    def __init__(self, key: Key, seen_ns: int) -> None:
        self.key = key
        self.seen_ns = seen_ns
        self.start_ns = 0
        self.end_ns = 0
        self.marks: tuple[Mark, ...] = ()
        self.details: tuple[object, ...] = ()
        self.children: list[Node] = []
        self.origins: tuple[Key, ...] = ()
        # What follows belongs to the builder: the links up, how many children are not complete, whether no
        # end is awaited any more, whether that goes for all below it too, whether it has left.
        self.parents: tuple[Node, ...] = ()
        self.open = 0
        self.closed = False
        self.complete = False
        self.left = False
        self.given_up: Cause | None = None

    @property
    def kind(self) -> str:
        return self.key[0]

    @property
    def missing(self) -> Cause | None:
        """Why the node has no start or no end, if it lacks one."""
        if self.start_ns and self.end_ns:
            return None
        if self.given_up:
            return self.given_up
        return UNMATCHED_END if self.end_ns else UNMATCHED_START

    def times(self, letter: str) -> list[int]:
        """When the node passed a point, in order: more than once for a request that was requeued."""
        return [when for name, when in self.marks if name == letter]

    def walk(self) -> Iterator[Node]:
        """This node and all below it, each once, parents first."""
        seen: set[int] = set()
        waiting = [self]
        while waiting:
            node = waiting.pop()
            if id(node) not in seen:
                seen.add(id(node))
                yield node
                waiting.extend(reversed(node.children))
