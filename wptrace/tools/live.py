# SPDX-License-Identifier: Apache-2.0
"""`wptrace join --live`: the guest's records come through a channel while the host is traced.

The guest may be anybody's: nothing that comes is trusted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from wptrace.capture.channel import Channel
from wptrace.capture.reader import Arriving
from wptrace.capture.writer import CaptureOutput
from wptrace.engine import resource
from wptrace.errors import WptraceError
from wptrace.flows.io.guests.join import Following
from wptrace.flows.io.guests.joined import JOINED, whose
from wptrace.flows.io.records import RECORDS
from wptrace.kernel.clock import day_and_time, realtime_error_ns
from wptrace.model.anchor import Anchor
from wptrace.model.report import Event, Output, QuietOutput, Report, Start
from wptrace.tools import join
from wptrace.tools.singles import NONSENSE, NonsenseError, Singles

# The interval of joins, and how long the rest of a channel is awaited at the end.
_PACE_S = 0.25
_LAST_S = 1.0
# After this long, the ring of the host and signals have their turn.
_AT_ONCE_S = 0.1


class LiveJoin(QuietOutput):
    """An output of the host's trace that also reads the guest's channel."""

    def __init__(
        self,
        channel: Channel,
        named: Mapping[str, str],
        output: Output,
        recorder: CaptureOutput | None,
        slow_ns: int | None,
    ) -> None:
        """The recorder gets all events, the output those of at least `slow_ns`; none if that is None."""
        self._channel, self._output, self._recorder, self._slow_ns = channel, output, recorder, slow_ns
        self._path = Path(channel.name)
        self._guest = Arriving(self._path)
        self._singles: Singles | None = None
        self._following = Following(self._path, named)
        self._host: Start | None = None
        self._anchors: list[Anchor] = []
        self._ended = False
        self._due = 0.0
        self._unread: Iterator[None] | None = None
        """Bytes that are not decoded yet. Until they are, nothing more is read, so that no guest starves."""
        self._always, write = os.pipe()
        os.write(write, b"!")
        os.close(write)
        self.trouble: WptraceError | None = None
        """Why the guest's side ended before its trace did."""

    # --- The guest's channel ------------------------------------------------------------------------------------------

    def of_other_guest(self) -> Output:
        """Return an output for the trace of another guest of this host."""
        return _Other(self._following)

    @property
    def fd(self) -> int:
        return self._channel.fd if self._unread is None else self._always

    def take(self) -> bool:
        """Read the channel; return False at its end."""
        if self._unread is None:
            data = self._channel.read()
            if data:
                self._unread = self._hear(data)
            elif self._channel.ended:
                self._end(WptraceError(f"{self._path} ended before the guest's trace did"))
        self._go_on(time.monotonic() + _AT_ONCE_S)
        now = time.monotonic()
        if now >= self._due or self._following.full:
            self._due = now + _PACE_S
            self._settle()
        return self._unread is not None or not self._channel.ended

    def leave(self) -> None:
        """Do nothing: the channel is read once more, for the summary."""

    def _go_on(self, until: float) -> None:
        """Decode bytes that arrived, until this time."""
        if self._unread is None:
            return
        with self._guarded():
            try:
                for _ in self._unread:
                    if time.monotonic() >= until:
                        return
            except WptraceError as error:
                self._end(error)
        self._unread = None
        if self._guest.ended:
            self._channel.close()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """End the guest's side if a part of it cannot be read, joined or shown."""
        try:
            yield
        except NONSENSE:
            self._end(NonsenseError(self._path))

    def _hear(self, data: bytes) -> Iterator[None]:
        for records in self._guest.feed(data):
            if self._singles is None:
                self._singles = self._singles_of_guest()
            if self._guest.layouts[records.number].record == RECORDS.record:
                for event in join.checked(self._singles.of(records), self._path):
                    found = join.of_disk(event)
                    if found is not None:
                        self._following.ask(found)
                    if self._following.full:
                        self._settle()
                    yield

    def _singles_of_guest(self) -> Singles:
        head = self._guest.head
        if head is None:
            raise NonsenseError(self._path)
        join.require(head, self._path, "io")
        return Singles(self._guest, head)

    def _end(self, why: WptraceError) -> None:
        self._channel.close()
        self._unread = None
        if not self._guest.ended and self.trouble is None:
            self.trouble = why

    # --- The host's trace ---------------------------------------------------------------------------------------------

    def start(self, start: Start) -> None:
        self._host = start
        self._following.host_since_ns = time.monotonic_ns()
        self._anchors.append(_anchor())
        # The order matters: the host has to be traced when the guest's first record arrives.
        self._channel.open()

    def event(self, event: Event) -> None:
        self._following.serve(join.of_image(event))

    def interval(self, report: Report) -> None:
        self._settle()
        if self._ended:
            found = self._following.interval(report.ts_ns, report.duration_ns)
            for one in self._every:
                one.interval(found)

    def summary(self, report: Report) -> None:
        end = time.monotonic() + _LAST_S
        while (self._unread is not None or not self._channel.ended) and time.monotonic() < end:
            if self._unread is None:
                data = self._channel.read()
                if not data:
                    break
                self._unread = self._hear(data)
            self._go_on(end)
        if self._unread is not None:
            self._end(WptraceError(f"{self._path} sent more than could be processed before the end"))
        self._settle(last=True)
        self._begin()
        found = self._following.summary(report.ts_ns, report.duration_ns)
        # Losses of the host's trace are missing here as well.
        for book in report.books.values():
            for cause, count in {**book.noted, **book.lost}.items():
                found.book.note(cause._replace(description=f"on the host: {cause.description}"), count)
        for one in self._every:
            with self._guarded():
                one.summary(found)

    def close(self) -> None:
        self._channel.close()
        if self._always >= 0:
            os.close(self._always)
            self._always = -1
        try:
            if self._recorder is not None:
                self._recorder.close()
        finally:
            self._output.close()

    # --- Both ---------------------------------------------------------------------------------------------------------

    @property
    def _every(self) -> list[Output]:
        return [self._output] if self._recorder is None else [self._recorder, self._output]

    def _settle(self, last: bool = False) -> None:
        if self._guest.anchors:
            self._following.guest_since_ns = self._guest.anchors[0].monotonic_ns
            self._following.anchor(self._guest.anchors, [*self._anchors, _anchor()])
        with self._guarded():
            found = self._following.settle(last)
            if found or self._following.known:
                self._begin()
            for event in found:
                if self._recorder is not None:
                    self._recorder.event(event)
                    self._recorder.flush()
                if self._slow_ns is not None and event.total_ns >= self._slow_ns:
                    self._output.event(event)
            self._output.flush()

    def _begin(self) -> None:
        """Start the outputs, once there is something to show."""
        if self._ended or self._host is None:
            return
        self._ended = True
        head, host = self._guest.head, self._host
        dev = [] if head is None else head.start.filters.get("dev")
        filters = {"dev": list(dev)} if isinstance(dev, list) and all(isinstance(one, str) for one in dev) else {}
        kernel = f"{'an unknown kernel' if head is None else head.start.kernel} on {host.kernel}"
        if self._recorder is not None:
            self._recorder.about = self._recorder.about._replace(
                began_ns=time.time_ns() if head is None else head.began_ns
            )
        start = Start(
            "join",
            "live",
            kernel,
            filters,
            [],
            (JOINED,),
            [*self._following.notes(), *host.notes],
            resource=resource.here(),
        )
        for one in self._every:
            one.start(start)


class _Other(QuietOutput):
    """An output for the host's requests for another guest."""

    def __init__(self, following: Following) -> None:
        self._following = following

    def event(self, event: Event) -> None:
        self._following.others.other(whose(event), join.of_image(event))


def _anchor() -> Anchor:
    day, now = day_and_time()
    return Anchor(now, day, realtime_error_ns())
