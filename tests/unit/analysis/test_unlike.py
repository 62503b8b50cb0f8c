# SPDX-License-Identifier: Apache-2.0
"""What one recording could not see, or sees otherwise, is said in the order of its weight, and once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.unit.outputs.samples import KIND, OVERHEAD
from wptrace.analysis.unlike import unlike
from wptrace.model.book import RING_FULL, UNMATCHED_START, Book
from wptrace.model.budget import EACH, Cost, Spending
from wptrace.model.kind import REQUESTS, Kind
from wptrace.model.report import UNTIMED, Report, Resource, Source, Start

SECOND = 1_000_000_000
GROUP = KIND.group("sda", "read")
BY_DISK = Kind(KIND.name, KIND.noun, KIND.labels[:1], KIND.stages)


def start(**more: Any) -> Start:
    sources = [Source(stage.name, "tracepoint") for stage in KIND.stages]
    found = Start("io", "path", "6.12", {}, sources, (KIND,), [], resource=Resource("web1", "x86_64", "", "0.2.0", ()))
    return found._replace(**more)


def report(**more: Any) -> Report:
    return Report("summary", 0, 10 * SECOND, {REQUESTS: Book.read(1000, 1000, {}, {})}, {}, {}, OVERHEAD)._replace(
        **more
    )


def lost(count: int, started: int = 1000, noted: int = 0) -> dict[str, Any]:
    return {"books": {REQUESTS: Book.read(started, 0, {UNMATCHED_START: count}, {RING_FULL: noted})}}


def sourced(**how: str) -> list[Source]:
    return [Source(stage.name, how.get(stage.name, "tracepoint")) for stage in KIND.stages]


def said(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[tuple[str, str, str, bool]]:
    """The differences of two recordings that differ in these parts of their starts, or of their reports."""
    sides = [
        (
            start(**{name: value for name, value in side.items() if name in Start._fields}),
            report(**{name: value for name, value in side.items() if name in Report._fields}),
        )
        for side in (ours, theirs)
    ]
    return [(one.what, one.a, one.b, one.counts) for one in unlike(sides[0], sides[1])]


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ({}, {}, []),
        ({}, {"level": "block"}, [("level", "path", "block", False)]),
        ({}, {"kernel": "6.9"}, [("kernel", "6.12", "6.9", False)]),
        (
            {},
            {"resource": Resource("web2", "arm64", "another", "", ("wptrace", "io"))},
            [
                ("version", "0.2.0", "not known", False),
                ("host", "web1", "web2", False),
                ("machine", "x86_64", "arm64", False),
            ],
        ),
        ({}, {"duration_ns": 20 * SECOND}, []),
        ({}, {"duration_ns": 21 * SECOND}, [("duration", "10.0 s", "21.0 s", False)]),
        ({"duration_ns": 21 * SECOND}, {}, [("duration", "21.0 s", "10.0 s", False)]),
        ({}, {"kinds": (BY_DISK,)}, [("requests", "from G to C by dev, op", "from G to C by dev", False)]),
        ({}, {"kinds": ()}, []),
        # How it is shown, and of what.
        ({"filters": {"unit": "us", "command": "x"}}, {"filters": {"segments": True}}, []),
        ({"filters": {"dev": ["sda", "sdb"]}}, {}, [("filter dev", "sda, sdb", "none", False)]),
        ({"filters": {"ops": []}}, {"filters": {"op": "read"}}, [
            ("filter ops", "all", "none", False), ("filter op", "none", "read", False)
        ]),
        ({"filters": {"sync": True}}, {"filters": {"pid": 7}}, [
            ("filter sync", "yes", "none", True), ("filter pid", "none", "7", True)
        ]),
        ({"filters": {"by": "comm"}}, {}, [("rows by owner", "comm", "none", False)]),
        # Stages that nobody joins with others.
        ({"sources": sourced(queue="")}, {}, [("other stages", "no others", "queue", False)]),
        ({}, {"sources": sourced(queue="", device="")}, [("other stages", "device, queue", "no others", False)]),
        ({"notes": ["no waits (of 5.10)"]}, {"notes": ["no waits (of 5.15)"]}, []),
        ({"notes": ["no waits"]}, {"notes": ["no files"]}, [
            ("note", "no waits", "", False), ("note", "", "no files", False)
        ]),
        # Stages and notes follow from the level.
        ({"level": "block", "notes": ["x"], "sources": sourced(queue="")}, {}, [("level", "block", "path", False)]),
        # One of a hundred is too much for a count.
        (lost(10), {}, [("lost requests", "10 of 1,000", "0 of 1,000", True)]),
        ({}, lost(9), [("lost requests", "0 of 1,000", "9 of 1,000", False)]),
        (lost(0), {}, []),
        (lost(9), {"books": {}}, [("lost requests", "9 of 1,000", "none", False)]),
        (lost(0, noted=1234), {}, [("ring_full", "1,234", "0", False)]),
        ({}, {"counters": {GROUP: {UNTIMED: 5}, KIND.group("sda", "write"): {UNTIMED: 1500, "bytes": 9}}}, [
            ("counted and not timed", "0", "1,505", False)
        ]),
        (
            {"budget": Spending(0.05, Cost(None, 0.0), 0.0, (), {EACH: 2 * SECOND}, ())},
            {"budget": Spending(0.05, Cost(None, 0.0), 0.0, (), {EACH: 0}, ())},
            [("off for the budget: each", "for 2.00 s", "never", False)],
        ),
        ({"budget": Spending(0.05, Cost(None, 0.0), 0.0, (), {EACH: 0}, ())}, {}, []),
    ],
)  # fmt: skip
def test_what_is_different_is_said(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], expected: list[tuple[str, str, str, bool]]
) -> None:
    assert said(ours, theirs) == expected


def test_losses_make_figures_those_of_a_sample() -> None:
    def therefore(count: int) -> str:
        (found,) = unlike((start(), report(**lost(count))), (start(), report()))
        return found.therefore

    assert (therefore(9), therefore(10)) == ("the highest percentiles may not hold", "figures are those of a sample")
