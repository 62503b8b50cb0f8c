# SPDX-License-Identifier: Apache-2.0
"""A scrape gets the counts of its moment, as often as it is made."""

from __future__ import annotations

import time

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as classic

from tests.unit.agent.conftest import play
from tests.unit.engine.conftest import Time
from tests.unit.engine.test_run import Fake
from tests.unit.outputs.samples import request
from wptrace.agent.process import Own
from wptrace.agent.scrape import Scraped
from wptrace.engine.session import Session

COUNT = "wptrace_fake_duration_seconds_count"


@pytest.fixture
def scraped(session: Session, monkeypatch: pytest.MonkeyPatch) -> Scraped:
    monkeypatch.setattr(Fake, "missing", {}, raising=False)
    return Scraped(session.traces, Own())


def count(text: str) -> float:
    return sum(one.value for family in classic(text) for one in family.samples if one.name == COUNT)


def test_it_has_what_is_there_now_and_never_less(session: Session, clock: Time, scraped: Scraped) -> None:
    (trace,) = session.traces
    last = 0.0
    for seconds in (1.0, 5.0, 20.0):
        play(session, clock, seconds)
        found = count(scraped.ask("").body.decode())
        (now,) = (cell["total"].count for cell in trace.snapshot().cells.values())
        # Each look finds one more request.
        assert last < found == now - 1
        last = found


def test_who_asks_all_the_time_costs_a_twentieth(
    fake: Fake, clock: Time, scraped: Scraped, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = iter(range(1000))
    monkeypatch.setattr(time, "process_time", lambda: next(cpu) * 0.002)
    before = fake.reads
    for _ in range(200):
        scraped.ask("")
        clock.now += 0.01
    # Each text takes at least three readings of this clock.
    assert 10 <= fake.reads - before <= 200 * 0.01 / (20 * 0.006)


def test_the_form_is_the_one_that_is_accepted(scraped: Scraped) -> None:
    plain, rich = scraped.ask("text/plain"), scraped.ask("application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1")
    assert plain.type.startswith("text/plain; version=0.0.4")
    assert rich.type.startswith("application/openmetrics-text; version=1.0.0")
    assert rich.body.decode().endswith("# EOF\n")
    assert {family.name for family in openmetrics(rich.body.decode())} == {
        family.name for family in classic(plain.body.decode())
    }


def test_slow_ones_are_exemplars(session: Session, scraped: Scraped) -> None:
    (listener,) = scraped.listeners()
    listener.events([request(dev="sda")])
    assert listener.due == float("inf")
    assert " # {" not in scraped.ask("").body.decode()
