# SPDX-License-Identifier: Apache-2.0
"""Differences of snapshots."""

from __future__ import annotations

from collections import Counter

from wptrace.flows.io.kinds import REQUEST
from wptrace.model.distribution import Distribution
from wptrace.model.report import BYTES, UNTIMED, Overhead, Snapshot, rows_of, since

FLUSH = REQUEST.group("sda", "flush")


def look(times: int, **counts: int) -> Snapshot:
    total = Distribution()
    for _ in range(times):
        total.add(1000)
    return Snapshot(0, {}, {FLUSH: {"total": total}}, {FLUSH: Counter(counts)}, Overhead(0, 0, 0, 0, 0, 0))


def test_what_happens_to_what_is_not_over_has_a_row() -> None:
    cells, counters = since(look(3, asked=5), look(3, asked=1))
    assert counters == {FLUSH: {"asked": 4}}
    (row,) = rows_of(cells, [REQUEST])
    assert (row.group, row.metric, row.distribution.count, row.share) == (FLUSH, "total", 0, 0.0)


def test_where_nothing_happened_there_is_no_row() -> None:
    cells, _ = since(look(3, asked=5), look(3, asked=5))
    assert cells == {}
    # How many bytes those had that are over, and were not timed, is nothing that happened.
    cells, _ = since(look(3, **{BYTES: 8, UNTIMED: 1}), look(3))
    assert cells == {}
