# SPDX-License-Identifier: Apache-2.0
"""Consumers that send all totals to a collector at intervals, and slow events soon after they come."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Sequence
from itertools import count
from typing import Callable

from wptrace.agent.collector import Collector
from wptrace.agent.config import Settings
from wptrace.agent.owner_names import OwnerNames
from wptrace.agent.process import Own
from wptrace.agent.scrape import Listener, sources
from wptrace.agent.sender import LIMIT, Sender
from wptrace.engine.session import Trace, next_due
from wptrace.kernel.clock import wall_offset_ns
from wptrace.model.report import Event
from wptrace.outputs.metrics import Delivery
from wptrace.outputs.otlp import METRICS, SIGNALS, TRACES, Otlp

# Making messages takes at most this fraction of a CPU.
_SPARED = 20
# Slow events of this time are sent together; of more than so many, the slowest.
_EVENTS_S = 5.0
_MOST_EVENTS = 512
_AT_CLOSE_S = 5.0


class Exporter:
    """A consumer of the first trace that sends the totals of all; `listeners` collect their events."""

    def __init__(self, traces: Sequence[Trace], own: Own, settings: Settings, now: float, say: Callable[[str], None]):
        self._traces, self._own = traces, own
        self._otlp = Otlp(sources(traces), traces[0].first.at_ns + wall_offset_ns())
        self._senders = {signal: Sender(signal, self._otlp.rejected, say) for signal in SIGNALS}
        self._by = ""
        self._names: OwnerNames | None = None
        self._wanted = frozenset[str]()
        """Signals that are sent."""
        self._events: list[tuple[int, int, int, Event]] = []
        """A heap of the slowest: time, a number that no other has, the flow."""
        self._numbers = count()
        self._metrics_due = self._events_due = math.inf
        self.change(settings, now)

    def change(self, settings: Settings | None, now: float) -> None:
        """Send elsewhere, or otherwise, from now on; None: nothing any more. Totals go on."""
        collector: Collector | None = None if settings is None else settings["collector"]
        targets = {} if collector is None else collector.targets
        self._wanted = frozenset(targets)
        for signal, sender in self._senders.items():
            sender.send_to(targets.get(signal), settings["queue"] // len(SIGNALS) if settings else 0)
        if TRACES not in targets:
            self._events.clear()
            self._events_due = math.inf
        if settings is None or collector is None:
            self._metrics_due = math.inf
            return
        host = self._traces[0].start.resource.host
        # Prometheus makes `instance` of the id: that of a machine stays the same.
        own = {"service.name": "wptrace", "service.instance.id": host, "host.name": host}
        self._otlp.resource = {name: value for name, value in {**own, **collector.resource}.items() if value}
        self._otlp.stage_histograms = settings["stages"]
        if settings["owners"] != self._by:
            self._by = settings["owners"]
            self._names = OwnerNames(self._by) if self._by else None
            self._otlp.restart()
        self._otlp.own(None if self._names is None else self._names.owners(settings["top"]))
        self._interval_s = settings["interval"]
        # A new collector gets the totals at once.
        self._metrics_due = now if METRICS in targets else math.inf

    @property
    def deliveries(self) -> list[Delivery]:
        return [sender.delivery for sender in self._senders.values()]

    def listeners(self) -> list[Listener]:
        """The consumers of events, in the order of the traces."""
        return [Listener(self.hear, number) for number in range(len(self._traces))]

    def hear(self, flow: int, events: Sequence[Event]) -> None:
        if TRACES not in self._wanted:
            return
        heap, left = self._events, 0
        for event in events:
            if len(heap) < _MOST_EVENTS:
                heapq.heappush(heap, (event.total_ns, next(self._numbers), flow, event))
                continue
            left += 1
            if event.total_ns > heap[0][0]:
                heapq.heapreplace(heap, (event.total_ns, next(self._numbers), flow, event))
        if left:
            self._senders[TRACES].lose(LIMIT, left)
        if heap and self._events_due == math.inf:
            self._events_due = time.monotonic() + _EVENTS_S

    @property
    def due(self) -> float:
        return min(self._metrics_due, self._events_due)

    def events(self, events: Sequence[Event]) -> None:
        pass

    def turn(self, now: float) -> None:
        if now >= self._events_due:
            self._send_events()
        if now >= self._metrics_due:
            before = time.process_time()
            self._send_metrics()
            cost = time.process_time() - before
            self._metrics_due = max(next_due(self._metrics_due, self._interval_s, now), now + _SPARED * cost)

    def _send_events(self) -> None:
        found, self._events, self._events_due = self._events, [], math.inf
        if found:
            found.sort(key=lambda one: one[3].end_ns)
            self._senders[TRACES].push(self._otlp.spans((flow, event) for _, _, flow, event in found))

    def _send_metrics(self) -> None:
        snapshots = [trace.snapshot() for trace in self._traces]
        for message in self._otlp.metrics(snapshots, self._own.now, time.time_ns()):
            self._senders[METRICS].push(message)

    def end(self) -> None:
        """Send the last totals and events."""
        self._send_events()
        if METRICS in self._wanted:
            self._send_metrics()
        until = time.monotonic() + _AT_CLOSE_S
        for sender in self._senders.values():
            sender.finish(until)

    def close(self) -> None:
        """After `end`: wait for a while until everything is sent."""
        for sender in self._senders.values():
            sender.close()
