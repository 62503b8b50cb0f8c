# SPDX-License-Identifier: Apache-2.0
"""The metrics that a scraper gets: all counters of the session, read on demand."""

from __future__ import annotations

import time
from collections.abc import Sequence
from socket import socket
from typing import Callable

from wptrace.agent.config import Address
from wptrace.agent.endpoint import Answer, Endpoint, listen
from wptrace.agent.owner_names import OwnerNames
from wptrace.agent.process import Own
from wptrace.engine.session import QuietConsumer, Session, Trace
from wptrace.model.report import Event
from wptrace.outputs.metrics import Source
from wptrace.outputs.prometheus import OPENMETRICS, PLAIN, Metrics

# A new text is made only when so many times its cost have passed since the last one.
_SPARED = 20


class Scraped:
    """Reads a snapshot of each trace on demand, and takes at most a twentieth of a CPU."""

    def __init__(self, traces: Sequence[Trace], own: Own) -> None:
        self._traces, self._own = traces, own
        self._metrics = Metrics(sources(traces))
        self._made: dict[str, tuple[float, Answer]] = {}
        """Answers by content type, with the time until which each is valid."""
        self._by = ""
        self._names: OwnerNames | None = None

    def show(self, stage_histograms: bool, owners: str = "", top: int = 0) -> None:
        """Change what is exported from now on."""
        self._metrics.stage_histograms = stage_histograms
        if owners != self._by:
            self._by, self._names = owners, OwnerNames(owners) if owners else None
        self._metrics.own(None if self._names is None else self._names.owners(top))
        self._made.clear()

    def listeners(self) -> list[Listener]:
        """The consumers of events, in the order of the traces."""
        return [Listener(self._hear, number) for number in range(len(self._traces))]

    def _hear(self, number: int, events: Sequence[Event]) -> None:
        """Keep the latest slow events as exemplars."""
        for event in events:
            self._metrics.event(number, event)

    def ask(self, accepted: str) -> Answer:
        kind = OPENMETRICS if "application/openmetrics-text" in accepted else PLAIN
        now, before = time.monotonic(), time.process_time()
        until, answer = self._made.get(kind, (0.0, Answer(kind, "")))
        if now < until:
            return answer
        snapshots = [trace.snapshot() for trace in self._traces]
        answer = Answer(kind, self._metrics.text(snapshots, self._own.now, kind == OPENMETRICS))
        self._made[kind] = now + _SPARED * (time.process_time() - before), answer
        return answer


def sources(traces: Sequence[Trace]) -> list[Source]:
    flows = [trace.flow for trace in traces]
    return [Source(flow.name, flow.level, flow.kinds, flow.missing) for flow in flows]


class Listener(QuietConsumer):
    """A consumer of the events of one trace, the number of which is told with them."""

    def __init__(self, hear: Callable[[int, Sequence[Event]], None], number: int) -> None:
        self._hear, self._number = hear, number

    def events(self, events: Sequence[Event]) -> None:
        self._hear(self._number, events)


class Service:
    """Serves scrapers of a session, at an address that may change."""

    def __init__(self, session: Session, own: Own) -> None:
        self._session = session
        self.scraped = Scraped(session.traces, own)
        self._listeners = self.scraped.listeners()
        self._endpoint: Endpoint | None = None

    @property
    def url(self) -> str:
        """The address of the metrics; empty without an endpoint."""
        return f"http://{self._endpoint.address}/metrics" if self._endpoint is not None else ""

    def listen(self, address: Address) -> socket:
        """Make a socket to open."""
        return listen(address) if self._endpoint is None else self._endpoint.listen(address)

    def open(self, listening: socket) -> None:
        if self._endpoint is not None:
            self._endpoint.move(listening)
            return
        self._endpoint = Endpoint(listening, self.scraped.ask)
        self._session.traces[0].subscribe(self._endpoint)
        self._session.reader.attend(self._endpoint.fd, self._endpoint.serve)
        for trace, listener in zip(self._session.traces, self._listeners):
            trace.subscribe(listener)

    def close(self) -> None:
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            self._session.reader.leave(endpoint.fd)
            self._session.traces[0].unsubscribe(endpoint)
            for trace, listener in zip(self._session.traces, self._listeners):
                trace.unsubscribe(listener)
            endpoint.close()


def serving(listening: socket) -> Callable[[Session], Callable[[], None]]:
    """Serve scrapers until the end of a run."""

    def serve(session: Session) -> Callable[[], None]:
        service = Service(session, Own())
        service.open(listening)
        return service.close

    return serve
