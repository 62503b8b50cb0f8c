# SPDX-License-Identifier: Apache-2.0
"""Owners that had a device while others waited, from the counters of an interval."""

from __future__ import annotations

import json

from wptrace.analysis.neighbours import COUNT, HAD, MEANWHILE, NS, WAITED, Owner, as_json, folded, of
from wptrace.model.kind import OTHERS
from wptrace.model.report import BYTES

BATCH, APP, CRON = Owner("/batch"), Owner("/app"), Owner("/cron")
BATCH.seen = "backup"
COUNTERS = {
    HAD.group("sda", "read", BATCH): {COUNT: 90, NS: 900, BYTES: 90 * 65536},
    HAD.group("sda", "write", BATCH): {COUNT: 10, NS: 50, BYTES: 40960},
    HAD.group("sda", "read", APP): {COUNT: 5, NS: 50, BYTES: 20480},
    HAD.group("sdb", "read", CRON): {COUNT: 1, NS: 7, BYTES: 512},
    WAITED.group("sda", APP): {COUNT: 4, NS: 400, BYTES: 0},
    MEANWHILE.group("sda", APP, BATCH): {COUNT: 4, NS: 1500, BYTES: 0},
    MEANWHILE.group("sda", APP, APP): {COUNT: 4, NS: 100, BYTES: 0},
    MEANWHILE.group("sda", APP, CRON): {COUNT: 4, NS: 60, BYTES: 0},
}


def test_owners_by_device_those_who_had_most_first() -> None:
    batch, app, cron = of(COUNTERS)
    assert [one.owner for one in (batch, app, cron)] == [BATCH, APP, CRON]
    assert (batch.device_ns, batch.requests, batch.bytes) == (950, 100, 90 * 65536 + 40960)
    assert batch.named == "/batch (backup, 64 KiB reads)"
    assert (batch.waits, batch.meanwhile_ns) == (0, 0)
    assert (app.waits, app.waited_ns, app.meanwhile_ns) == (4, 400, 1660)
    assert list(app.meanwhile) == [BATCH, APP, CRON]
    assert cron.dev == "sdb"


def test_of_many_the_largest_and_one_of_all_others() -> None:
    found = of(folded(COUNTERS, 1))
    assert [(one.dev, one.owner) for one in found] == [("sda", BATCH), ("sda", OTHERS), ("sdb", OTHERS)]
    assert found[1].meanwhile == {BATCH: 1500, OTHERS: 160}
    assert sum(one.device_ns for one in found) == sum(one.device_ns for one in of(COUNTERS))
    assert folded(COUNTERS, 0) == COUNTERS


def test_a_name_that_is_seen_is_no_part_of_the_owner() -> None:
    other = Owner("/batch")
    assert other == BATCH
    assert {other: 1}[BATCH] == 1
    assert of({HAD.group("sda", "other", other): {COUNT: 1, NS: 1, BYTES: 0}})[0].named == "/batch"


def test_in_json() -> None:
    line = json.loads(json.dumps(as_json(COUNTERS)))
    assert line[1]["meanwhile"][0] == {"owner": "/batch", "ns": 1500}
    assert line[0]["seen"] == "backup"
    assert as_json({}) == []
