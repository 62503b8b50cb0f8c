# SPDX-License-Identifier: Apache-2.0
"""Books of requests: started = finished + in flight + lost, in a total and in every interval."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Cause(NamedTuple):
    """Why something was lost; `name` is its key in JSON."""

    name: str
    description: str


UNMATCHED_START = Cause("unmatched_start", "a request started and its end was never seen")
UNMATCHED_END = Cause("unmatched_end", "a request ended whose start was not seen")
STATE_FULL = Cause("state_full", "the table of what is in flight had no room")
RING_FULL = Cause("ring_full", "the ring had no room for a record")
FOREIGN = Cause("foreign_record", "a record had another size than its ring's")
READER_OVERLOAD = Cause("reader_overload", "the reader dropped a record to keep up")
RECURSION = Cause("recursion", "the kernel skipped a program that was already running on that CPU")
INCONSISTENT = Cause("inconsistent", "a figure of the kernel was smaller than before, and added nothing")

EXITED = Cause("exited", "the process of --pid has ended: what another one with its number does is not counted")
REMOVED = Cause("removed", "the cgroup of --cgroup is gone: what is in another one with its path is not counted")
MISTAKEN_STACK = Cause("mistaken_stack", "one of 128 stacks is walked to check it: it had been taken for another one")
OVERWRITTEN = Cause("overwritten", "in a dump: newer records took its place")
TORN = Cause("torn", "in a dump: a record was being written while the recorder was read")
EARLIER = Cause("earlier", "in a dump: a record is older than the start of the dump, after which nothing is missing")
UNNAMED = Cause("unnamed", "in a dump: the name of a thread or the path of a file is not known")
UNRECORDED = Cause("unrecorded", "the recorder lost a record: an interrupt came while one was begun")
CAUSES = (UNMATCHED_START, UNMATCHED_END, STATE_FULL, RING_FULL, READER_OVERLOAD, RECURSION, INCONSISTENT)


class Book:
    """Counts of requests by what became of them.

    `lost` counts requests, each under one cause, and is part of the law. `noted` counts what went wrong
    without costing a request of its own, such as a finished request whose record found no room, or a skipped
    program, whose victim shows later as unmatched.

    In flight is what remains, so the law holds by construction; what can be checked is that it is never
    negative.
    """

    __slots__ = ("carried", "failed", "finished", "lost", "noted", "started")

    def __init__(self) -> None:
        self.started = 0
        self.finished = 0
        self.failed = 0
        """Finished objects that ended with an error."""
        self.lost: dict[Cause, int] = {}
        self.noted: dict[Cause, int] = {}
        self.carried = 0
        """How many of `started` were already in flight when the interval began."""

    @classmethod
    def read(
        cls, started: int, finished: int, lost: Mapping[Cause, int], noted: Mapping[Cause, int], failed: int = 0
    ) -> Book:
        """Make a book from the kernel's counters, which are not read at one moment.

        `started` includes the lost. An end may be counted without its start; that request did start, so it counts as
        started.
        """
        book = cls()
        book.finished = finished
        book.failed = failed
        book.lost = {cause: count for cause, count in lost.items() if count}
        book.noted = {cause: count for cause, count in noted.items() if count}
        book.started = max(started, finished + book.lost_total)
        return book

    @property
    def lost_total(self) -> int:
        return sum(self.lost.values())

    @property
    def in_flight(self) -> int:
        return self.started - self.finished - self.lost_total

    def start(self, count: int = 1) -> None:
        self.started += count

    def finish(self, count: int = 1) -> None:
        self.finished += count

    def lose(self, cause: Cause, count: int = 1) -> None:
        """Requests that were in flight are given up."""
        self.lost[cause] = self.lost.get(cause, 0) + count

    def note(self, cause: Cause, count: int = 1) -> None:
        self.noted[cause] = self.noted.get(cause, 0) + count

    def copy(self) -> Book:
        return Book.total([self])

    @classmethod
    def total(cls, books: Iterable[Book]) -> Book:
        """The sum of several, such as one for each CPU or flow."""
        whole = cls()
        for book in books:
            whole.started += book.started
            whole.finished += book.finished
            whole.failed += book.failed
            whole.carried += book.carried
            for cause, count in book.lost.items():
                whole.lose(cause, count)
            for cause, count in book.noted.items():
                whole.note(cause, count)
        return whole

    def interval(self, earlier: Book) -> Book:
        """Return what happened since `earlier`.

        In flight is a level, not a counter. For the law to hold in each interval, an interval starts with
        what it found in flight: `started` counts those as well, and `carried` says how many they are.
        """
        recent = Book()
        recent.carried = earlier.in_flight
        recent.started = self.started - earlier.started + recent.carried
        recent.finished = self.finished - earlier.finished
        recent.failed = self.failed - earlier.failed
        recent.lost = _grown(self.lost, earlier.lost)
        recent.noted = _grown(self.noted, earlier.noted)
        return recent

    def as_dict(self) -> dict[str, int | dict[str, int]]:
        """Every cause by its name; `started` equals `finished` + `in_flight` + `lost`."""
        return {
            "started": self.started,
            "carried": self.carried,
            "finished": self.finished,
            "in_flight": self.in_flight,
            "lost": self.lost_total,
            "failed": self.failed,
            "lost_by_cause": {cause.name: count for cause, count in self.lost.items()},
            "noted_by_cause": {cause.name: count for cause, count in self.noted.items()},
        }


def _grown(now: Mapping[Cause, int], before: Mapping[Cause, int]) -> dict[Cause, int]:
    grown = {cause: count - before.get(cause, 0) for cause, count in now.items()}
    return {cause: count for cause, count in grown.items() if count}
