# SPDX-License-Identifier: Apache-2.0
"""Consumers of a session: each has its own pace and windows, and none takes anything from another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from tests.unit.engine.conftest import Time
from tests.unit.engine.test_run import Fake
from tests.unit.outputs.samples import request
from wptrace.bpf.ring import Ring
from wptrace.engine.session import Session, Trace
from wptrace.model.book import INCONSISTENT
from wptrace.model.report import Event, Report, Snapshot


class Windows:
    """A consumer with a report of each window."""

    def __init__(self, trace: Trace, step: float) -> None:
        self._trace, self._step = trace, step
        self._last = trace.first
        self.due = 1000.0 + step
        self.reports: list[Report] = []
        self.seen: list[str] = []

    def events(self, events: Sequence[Event]) -> None:
        self.seen += [str(event.group.label("dev")) for event in events]

    def turn(self, now: float) -> None:
        self.due += self._step
        snapshot = self._trace.snapshot()
        self.reports.append(self._trace.window(self._last, snapshot, "interval"))
        self._last = snapshot

    def end(self) -> None:
        self.reports.append(self._trace.window(self._trace.first, self._trace.snapshot(), "summary"))

    @property
    def finished(self) -> int:
        return sum(report.book.finished for report in self.reports[:-1])


def play(session: Session, clock: Time, seconds: float) -> None:
    while clock.now < 1000.0 + seconds:
        session.wait()
        session.turn()
    session.end()


@pytest.fixture
def session(clock: Time) -> Session:
    made = Session([Fake(clock, [])])
    made.start()
    return made


def test_each_consumer_has_windows_of_its_own(session: Session, clock: Time) -> None:
    (trace,) = session.traces
    often, seldom = Windows(trace, 2.0), Windows(trace, 5.0)
    for consumer in (often, seldom):
        trace.subscribe(consumer)
    play(session, clock, 20.0)
    assert [report.duration_ns for report in often.reports[:-1]] == [2_000_000_000] * 10
    assert [report.duration_ns for report in seldom.reports[:-1]] == [5_000_000_000] * 4
    # Both end at the same moment.
    assert often.finished == seldom.finished
    assert often.reports[-1].book.finished == seldom.reports[-1].book.finished
    assert sum(report.bytes for report in often.reports[:-1]) == sum(report.bytes for report in seldom.reports[:-1])


def test_consumers_that_are_due_at_once_share_a_snapshot(session: Session, clock: Time) -> None:
    (trace,) = session.traces
    for _ in range(50):
        trace.subscribe(Windows(trace, 1.0))
    flow = trace.flow
    assert isinstance(flow, Fake)
    before = flow.reads
    play(session, clock, 10.0)
    assert flow.reads - before == 11


def test_one_that_comes_late_has_a_window_from_then_on(session: Session, clock: Time) -> None:
    (trace,) = session.traces
    first = Windows(trace, 1.0)
    trace.subscribe(first)
    between: list[Report] = []

    def ask() -> None:
        earlier = trace.snapshot()
        later = trace.snapshot()
        between.append(trace.window(earlier, later, "interval"))

    clock.at(2.5, ask)
    play(session, clock, 4.0)
    # A snapshot in between shows the counts of that moment, not those of the last turn.
    assert between[0].book.finished == 1
    assert first.finished == first.reports[-1].book.finished - 1 == 6


def test_a_verdict_is_about_its_window_alone(session: Session, clock: Time) -> None:
    (trace,) = session.traces
    flow = trace.flow
    assert isinstance(flow, Fake)
    flow.slow_after = 100.0
    trace.subscribe(Windows(trace, 1.0))
    before: list[Snapshot] = []
    clock.at(90.5, lambda: before.append(trace.snapshot()))
    play(session, clock, 200.0)

    def rules(now: Snapshot) -> list[str]:
        verdict = trace.window_with_verdict(trace.first, now, "interval").verdict
        assert verdict is not None
        return [finding.rule for finding in verdict.findings]

    assert "grew" not in rules(before[0])
    assert "grew" in rules(trace.snapshot())


def test_what_shrank_is_noted_in_the_book_of_its_window(session: Session) -> None:
    (trace,) = session.traces
    earlier = trace.snapshot()
    (group,) = earlier.cells
    more = {name: found.copy() for name, found in earlier.cells[group].items()}
    more["total"].add(5)
    assert trace.window(earlier, earlier._replace(cells={group: more}), "interval").book.noted == {}
    shrank = trace.window(earlier._replace(cells={group: more}), earlier, "interval")
    assert shrank.book.noted == {INCONSISTENT: 1}


def test_all_consumers_get_all_events(session: Session, clock: Time) -> None:
    (trace,) = session.traces
    flow = trace.flow
    assert isinstance(flow, Fake)
    consumers = [Windows(trace, math.inf), Windows(trace, 1.0)]
    for consumer in consumers:
        trace.subscribe(consumer)
    clock.at(0.5, lambda: flow.pending.append(request(dev="sda")))
    play(session, clock, 3.0)
    assert [consumer.seen for consumer in consumers] == [["sda", "last"]] * 2


def test_events_before_the_first_snapshot_are_left_out(clock: Time) -> None:
    """Those that ended while the programs were attached are in no figures."""
    done: list[str] = []
    flow = Fake(clock, done)
    flow._ring = cast(Ring, SimpleNamespace(read=lambda: done.append("read")))
    Session([flow]).start()
    assert done == ["start", "read", "snapshot"]


def test_what_came_is_delivered_in_pieces(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    left, delivered = [40], []

    class Behind:
        def drain(self, most: int) -> None:
            left[0] -= 1

        @property
        def behind(self) -> bool:
            return left[0] > 0

        def wait(self, at_most: float) -> None: ...

    monkeypatch.setattr(session, "reader", Behind())
    monkeypatch.setattr(session.traces[0], "deliver", lambda: delivered.append(left[0]))
    session.wait()
    # Others have their turn meanwhile.
    assert len(delivered) == 16
    session.end()
    assert delivered == list(range(39, -1, -1))
