# SPDX-License-Identifier: Apache-2.0
"""Messages of the exporter and when they are sent, to a sender that keeps them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.collector import points
from tests.unit.agent.conftest import play, stall
from tests.unit.engine.conftest import Time
from tests.unit.engine.test_run import Fake
from tests.unit.outputs.samples import MS, request
from wptrace.agent import otlp
from wptrace.agent.collector import Collector, Target, collector
from wptrace.agent.config import Settings
from wptrace.agent.otlp import Exporter
from wptrace.agent.process import Own
from wptrace.engine.session import Session
from wptrace.outputs.metrics import Delivery
from wptrace.outputs.otlp import Message

traces_pb2 = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")

COUNT = "wptrace.fake.duration"


class Kept:
    """A sender that keeps its messages."""

    def __init__(self, signal: str, *_: Any) -> None:
        self.signal = signal
        self.target: Target | None = None
        self.most = 0
        self.messages: list[Message] = []
        self.lost = Counter[str]()
        self.ended: list[float] = []

    def send_to(self, target: Target | None, most: int) -> None:
        self.target, self.most = target, most

    def push(self, message: Message) -> None:
        self.messages.append(message)

    def lose(self, cause: str, count: int) -> None:
        self.lost[cause] += count

    @property
    def delivery(self) -> Delivery:
        return Delivery(self.signal, 0, self.lost, 0)

    def finish(self, until: float) -> None:
        self.ended.append(until)

    def close(self) -> None:
        pass


def settings(found: Collector | None = None, **more: Any) -> Settings:
    rest = {"interval": 10.0, "queue": 1000, "stages": False, "owners": "", "top": 20}
    return {"collector": found or collector(None, {}), **rest, **more}


Make = Callable[..., tuple[Exporter, Kept, Kept]]


@pytest.fixture
def exporting(session: Session, clock: Time, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setattr(Fake, "missing", {}, raising=False)
    kept: dict[str, Kept] = {}

    def make_sender(signal: str, *_: Any) -> Kept:
        kept[signal] = Kept(signal)
        return kept[signal]

    monkeypatch.setattr(otlp, "Sender", make_sender)

    def make(**more: Any) -> tuple[Exporter, Kept, Kept]:
        exporter = Exporter(session.traces, Own(), settings(**more), clock.now, lambda _: None)
        session.traces[0].subscribe(exporter)
        for trace, listener in zip(session.traces, exporter.listeners()):
            trace.subscribe(listener)
        return exporter, kept["metrics"], kept["traces"]

    return make


def counts(kept: Kept) -> list[int]:
    return [point.count for _, point in points([one.body for one in kept.messages], COUNT)]


def spans(kept: Kept) -> list[Any]:
    return [
        span
        for message in kept.messages
        for resource in traces_pb2.ExportTraceServiceRequest.FromString(message.body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def test_totals_are_sent_at_once_and_then_at_intervals(session: Session, clock: Time, exporting: Make) -> None:
    exporter, metrics, traces = exporting()
    play(session, clock, 35)
    found = counts(metrics)
    assert len(found) == 4
    assert found == sorted(found)
    assert traces.messages == []
    exporter.end()
    (now,) = (cell["total"].count for cell in session.traces[0].snapshot().cells.values())
    # Each look finds one more request.
    assert counts(metrics)[-1] == now - 1
    assert metrics.ended == traces.ended == [clock.now + 5]


def test_after_a_stall_no_message_follows_at_once(session: Session, clock: Time, exporting: Make) -> None:
    _, metrics, _ = exporting(interval=10.0)
    stall(clock, 1.0, 19.996)
    play(session, clock, 25)
    assert len(metrics.messages) == 2


def test_messages_that_cost_much_are_made_less_often(
    session: Session, clock: Time, exporting: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, metrics, _ = exporting(interval=1.0)
    ticks = iter(range(10_000))
    monkeypatch.setattr(time, "process_time", lambda: next(ticks) * 1.0)
    play(session, clock, 100)
    # Each message takes at least 1 s of this clock.
    assert 1 <= len(metrics.messages) <= 100 / 20


def test_the_resource_says_which_machine_and_what_the_environment_says(session: Session, exporting: Make) -> None:
    start = session.traces[0].start
    session.traces[0].start = start._replace(resource=start.resource._replace(host="db1"))
    exporter, _, _ = exporting(found=collector(None, {"OTEL_RESOURCE_ATTRIBUTES": "a=b,service.name=disks"}))
    assert exporter._otlp.resource == {
        "service.name": "disks",
        "service.instance.id": "db1",
        "host.name": "db1",
        "a": "b",
    }


def test_slow_events_are_sent_together_soon_after_they_come(
    session: Session, fake: Fake, clock: Time, exporting: Make
) -> None:
    _, _, traces = exporting()
    clock.at(2, lambda: fake.pending.append(request(dev="sda")))
    clock.at(3, lambda: fake.pending.append(request(dev="sdb")))
    play(session, clock, 30)
    (message,) = traces.messages
    assert message.items == 6
    assert [span.name for span in spans(traces)] == ["write request", "queue", "device"] * 2
    clock.at(31, lambda: fake.pending.append(request(dev="sdc")))
    play(session, clock, 60)
    assert len(traces.messages) == 2


def test_of_many_at_once_the_slowest_are_sent_and_the_rest_is_counted(exporting: Make) -> None:
    exporter, _, traces = exporting()
    times = [(number * 7919) % 2000 for number in range(2000)]
    exporter.hear(0, [request(queue=0, device=at * MS) for at in times])
    exporter._send_events()
    found = sorted(
        span.end_time_unix_nano - span.start_time_unix_nano for span in spans(traces) if not span.parent_span_id
    )
    assert found == [at * MS for at in range(2000 - 512, 2000)]
    assert traces.lost == {"limit": 2000 - 512}


def test_without_a_target_for_spans_events_are_not_kept(exporting: Make) -> None:
    exporter, _, traces = exporting(found=collector(None, {"OTEL_TRACES_EXPORTER": "none"}))
    exporter.hear(0, [request()] * 1000)
    exporter._send_events()
    assert (traces.target, traces.messages, dict(traces.lost)) == (None, [], {})


def test_a_change_sends_the_totals_at_once_and_they_go_on(session: Session, clock: Time, exporting: Make) -> None:
    exporter, metrics, traces = exporting(interval=3600.0)
    play(session, clock, 5)
    assert len(metrics.messages) == 1
    other = collector(None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://other:1"})
    exporter.change(settings(other, interval=3600.0, stages=True, queue=5000), clock.now)
    play(session, clock, 10)
    assert (metrics.target, metrics.most) == (other.targets["metrics"], 2500)
    found = points([one.body for one in metrics.messages], COUNT)
    assert len(found) == 2
    first, second = (point for _, point in found)
    assert first.count < second.count
    assert first.start_time_unix_nano == second.start_time_unix_nano
    stages = points([metrics.messages[-1].body], "wptrace.fake.stage")
    assert all(point.scale == 3 for _, point in stages)
    exporter.change(None, clock.now)
    assert metrics.target is traces.target is None
    play(session, clock, 7300)
    assert len(metrics.messages) == 2
    exporter.end()
    assert len(metrics.messages) == 2
