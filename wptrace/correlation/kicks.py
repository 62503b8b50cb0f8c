# SPDX-License-Identifier: Apache-2.0
"""The eventfds of a hypervisor: through which of them a disk's requests were kicked, picked up and given back.

Nobody says which eventfd is whose. So it is found by what was done alone: nothing else was under way in the process.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

_NEVER = 1 << 64
_NEARLY = 0.9
# The number of times that an eventfd was the one before, from which on it is taken for one of a disk.
_ENOUGH = 8


class Signal(NamedTuple):
    """A use of an eventfd, by the host's clock: a read when it returned, a write when it began."""

    ns: int
    tid: int
    fd: int
    read: bool


class Work(NamedTuple):
    """Work of the process for a disk of its guest."""

    image: str
    begin: int
    end: int
    tid: int


class Kick(NamedTuple):
    """The kick of a request that was alone, up to the eventfd that gives it back."""

    kicked: int
    """0: nobody's system call wrote the eventfd, as where the kernel's KVM does."""
    picked: int
    tid: int
    """The thread that picked it up."""
    given: int
    """0: not seen."""

    @property
    def first(self) -> int:
        return self.kicked or self.picked


class Tally(NamedTuple):
    """The counts of an image and of a thread that picks up its requests."""

    image: str
    tid: int
    kicks: int
    """How often it read an eventfd that the guest kicks."""
    alone: int
    """Requests that it picked up while nothing else was under way."""
    given_back: int
    """How many requests it gave back by writing an eventfd."""


class Kicks:
    def __init__(self, signals: Iterable[Signal], works: Iterable[Work]) -> None:
        self._works = sorted(works, key=lambda one: one.begin)
        self._reads: dict[int, list[Signal]] = defaultdict(list)
        self._writes: dict[int, list[int]] = defaultdict(list)
        self._given: dict[tuple[int, int], list[int]] = defaultdict(list)
        every = sorted(signals)
        self._every_read = [one for one in every if one.read]
        self._times = [one.ns for one in self._every_read]
        self._by_thread: dict[int, list[Signal]] = defaultdict(list)
        for one in every:
            if one.read:
                self._reads[one.fd].append(one)
            else:
                self._writes[one.fd].append(one.ns)
                self._given[one.tid, one.fd].append(one.ns)
                self._by_thread[one.tid].append(one)
        self._alone = list(self._gaps())
        self._fds = self._kicking()
        self._answers = self._answering()

    def _gaps(self) -> Iterable[tuple[Work, int, int]]:
        """Return work done alone: nothing ended after the first moment before it, or began before the second."""
        latest = 0
        for at, one in enumerate(self._works):
            after = self._works[at + 1].begin if at + 1 < len(self._works) else _NEVER
            if latest < one.begin and one.end <= after:
                yield one, latest, after
            latest = max(latest, one.end)

    def _latest(self, fds: Mapping[int, str] | None, image: str, since: int, until: int) -> Signal | None:
        """The last read in that time, of one of the image's eventfds where they are known."""
        place = bisect_right(self._times, until)
        while place and self._times[place - 1] > since:
            place -= 1
            if fds is None or fds.get(self._every_read[place].fd) == image:
                return self._every_read[place]
        return None

    def _kicking(self) -> dict[int, str]:
        """Eventfds that were nearly always the last one that was read before something of an image was done.

        What the threads that do it write themselves tells others that it is done.
        """
        workers = {one.tid for one in self._works}
        own = {fd for (tid, fd) in self._given if tid in workers}
        votes: Counter[tuple[int, str]] = Counter()
        read_before: Counter[int] = Counter()
        for one, since, _ in self._alone:
            last = self._latest(None, "", since, one.begin)
            if last is not None and last.fd not in own:
                votes[last.fd, one.image] += 1
            place = bisect_right(self._times, since)
            read_before.update({read.fd for read in self._every_read[place : bisect_right(self._times, one.begin)]})
        return {fd: image for (fd, image), count in votes.items() if count >= max(_ENOUGH, read_before[fd] / 2)}

    def _answering(self) -> dict[int, int]:
        """Return, by the eventfd of kicks, the one that its reader nearly always wrote once the request was done.

        An eventfd that others write as well only wakes that thread.
        """
        writers: dict[int, set[int]] = defaultdict(set)
        for tid, fd in self._given:
            writers[fd].add(tid)
        votes: dict[int, Counter[int]] = defaultdict(Counter)
        asked: Counter[int] = Counter()
        for one, since, after in self._alone:
            read = self._latest(self._fds, one.image, since, one.begin)
            if read is None:
                continue
            asked[read.fd] += 1
            written = {write.fd for write in self._written(read.tid, one.end, after)}
            votes[read.fd].update(fd for fd in written if writers[fd] == {read.tid})
        best = {fd: found.most_common(1)[0] for fd, found in votes.items() if found}
        return {fd: answer for fd, (answer, count) in best.items() if count >= max(_ENOUGH, asked[fd] * _NEARLY)}

    def _written(self, tid: int, since: int, until: int) -> Iterable[Signal]:
        found = self._by_thread.get(tid, [])
        # Not a slice: it would copy all up to the end each time.
        for place in range(bisect_right(found, (since,)), len(found)):
            if found[place].ns >= until:
                return
            yield found[place]

    def of_alone(self) -> dict[Work, Kick]:
        """Return the kicks of requests that were picked up after a kick of their own."""
        found = {}
        for one, since, after in self._alone:
            read = self._latest(self._fds, one.image, since, one.begin)
            if read is None:
                continue
            writes = self._writes.get(read.fd, [])
            before = bisect_left(writes, read.ns)
            kicked = writes[before - 1] if before and writes[before - 1] > since else 0
            answer = self._answers.get(read.fd)
            given = next((w.ns for w in self._written(read.tid, one.end, after) if w.fd == answer), 0)
            found[one] = Kick(kicked, read.ns, read.tid, given)
        return found

    def tallies(self, found: Mapping[Work, Kick]) -> Sequence[Tally]:
        kicks = Counter((image, read.tid) for fd, image in self._fds.items() for read in self._reads[fd])
        alone = Counter((one.image, kick.tid) for one, kick in found.items())
        given = Counter((one.image, kick.tid) for one, kick in found.items() if kick.given)
        return [Tally(*key, count, alone[key], given[key]) for key, count in sorted(kicks.items())]
