# SPDX-License-Identifier: Apache-2.0
"""Events of a trace: concurrent ones, of several tasks and devices, some with several requests."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable

from tests.unit.outputs import path
from tests.unit.outputs.samples import NOON
from wptrace.model.report import Event

US = 1_000


def some(count: int = 200, seed: int = 1) -> list[Event]:
    """Make events in the order of their ends, in which they arrive."""
    chance = random.Random(seed)  # noqa: S311 - not a secret
    made = []
    for at in range(count):
        stages = {name: chance.randrange(0, 500 * US) if chance.random() < 0.8 else 0 for name in path.NAMES}
        pid = 100 + at % 3
        event = path.operation(
            pid=pid,
            tid=pid + at % 2,
            comm=f"task{pid}",
            dev=f"sd{'ab'[at % 2]}",
            requests=2 if at % 7 == 0 else 1,
            path=f"/srv/{at}",
        )
        if at % 5 == 0:
            event = path.request(pid=0, tid=0, comm="")
            stages = {name: stages[name] for name in path.BLOCK}
        end = NOON + at * 300 * US + chance.randrange(0, 200 * US)
        made.append(event._replace(end_ns=end, total_ns=sum(stages.values()), stages=stages))
    return sorted(made, key=lambda event: event.end_ns)


def sums(events: Iterable[Event]) -> tuple[Counter[str], Counter[str]]:
    """Return how often each stage took time, and how much in all."""
    counts: Counter[str] = Counter()
    times: Counter[str] = Counter()
    for event in events:
        for name, ns in event.stages.items():
            counts[name] += bool(ns)
            times[name] += ns
    return +counts, +times
