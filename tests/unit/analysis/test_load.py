# SPDX-License-Identifier: Apache-2.0
"""The load of devices, from rows and counters."""

from __future__ import annotations

import json

from tests.unit.outputs import path
from tests.unit.outputs.samples import MS, SECOND, distribution
from wptrace.analysis.load import BUSY_MS, LOAD, READS, STAMPED, as_json, busy, of
from wptrace.flows.io.kinds import KINDS, REQUEST
from wptrace.flows.io.kinds import LAYER as BELOW
from wptrace.model.report import BYTES, Report, arranged

READ, WRITE = REQUEST.group("sda", "read"), REQUEST.group("sda", "write")
LAYER = BELOW.group("dm-0", "read")
COUNTERS = {
    LOAD.group("sda"): {READS: 1, STAMPED: 1, BUSY_MS: 250},
    LOAD.group("dm-0"): {READS: 1},
    LOAD.group("sdb"): {READS: 1, STAMPED: 1},
    READ: {BYTES: 4096, "merged": 7},
    WRITE: {BYTES: 4096, "merged": 2, "split": 1},
}


def report(duration_ns: int = SECOND) -> Report:
    """Four requests of 150 ms on sda, which include 50 waits for a request; a bio of 500 ms on dm-0."""
    cells = {
        group: {"throttle": distribution([50 * MS] * 2), "total": distribution([150 * MS] * 2)}
        for group in (READ, WRITE)
    }
    cells[LAYER] = {"total": distribution([500 * MS])}
    found = path.report({})
    return found._replace(cells=arranged(cells, KINDS), counters=COUNTERS, duration_ns=duration_ns)


def test_figures_of_each_device() -> None:
    stacked, first, second = of(report())
    assert (first.dev, first.utilisation, first.merged) == ("sda", 0.25, {"read": 7, "write": 2})
    assert round(first.queue_depth, 6) == 0.4
    assert (stacked.dev, stacked.utilisation, stacked.queue_depth) == ("dm-0", None, 0.5)
    # An idle device with statistics differs from one without.
    assert (second.dev, second.utilisation, second.queue_depth) == ("sdb", 0.0, 0.0)
    assert [one.dev for one in busy(report())] == ["dm-0", "sda"]
    assert [one.dev for one in busy(report(), {"sda", "sdb"})] == ["sda"]


def test_no_share_is_more_than_the_whole() -> None:
    """The kernel counts in ticks."""
    assert of(report(249 * MS))[1].utilisation == 1.0
    assert of(report(0)) == []


def test_devices_that_are_added_up_have_no_figures() -> None:
    assert of(report().everywhere()) == []
    assert as_json(report().everywhere()) == []


def test_in_json() -> None:
    found = json.loads(json.dumps(as_json(report())))
    assert found[1] == {"dev": "sda", "utilisation": 0.25, "queue_depth": 0.4, "merged": {"read": 7, "write": 2}}
    assert found[0]["utilisation"] is None
