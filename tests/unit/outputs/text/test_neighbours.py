# SPDX-License-Identifier: Apache-2.0
"""Owners of a device as lines: they fit the terminal, and hostile names are escaped."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.analysis.test_neighbours import COUNTERS
from tests.unit.outputs.samples import HOSTILE, MS, report
from wptrace.analysis.neighbours import COUNT, HAD, MEANWHILE, NS, WAITED, Owner
from wptrace.model.report import BYTES
from wptrace.outputs.text.neighbours import lines, story
from wptrace.outputs.text.tables import Style
from wptrace.outputs.text.words import columns


def test_a_line_for_each_owner() -> None:
    shown = report({}, {})._replace(counters=COUNTERS)
    title, *found = lines(shown.everywhere(), Style(100, False))
    assert title.split() == ["neighbours", "device", "waits", "mean", "meanwhile", "the", "device", "had"]
    assert found[0].split() == ["/batch", "(backup,", "64", "KiB", "reads)", "94.3%", "0"]
    assert found[1].endswith("4   100 ns /batch 90%, /app 6%, /cron 4%")
    assert [line.split()[-3] for line in lines(shown, Style(100, False))][3] == "sdb"
    assert list(lines(report({}, {}), Style(100, False))) == []


@pytest.mark.parametrize("width", [80, 120, 200])
def test_lines_fit(width: int) -> None:
    owners = [Owner(name * 3) for name in HOSTILE]
    for owner in owners:
        owner.seen = owner
    counters: Any = {}
    for owner in owners:
        counters[HAD.group("nvme0n1", "read", owner)] = {COUNT: 10**9, NS: 10**15, BYTES: 10**15}
        counters[WAITED.group("nvme0n1", owner)] = {COUNT: 10**6, NS: 10**15, BYTES: 0}
        for other in owners:
            counters[MEANWHILE.group("nvme0n1", owner, other)] = {COUNT: 1, NS: 10**14, BYTES: 0}
    shown = report({}, {})._replace(counters=counters)
    for one in (shown, shown.everywhere()):
        for line in lines(one, Style(width, False)):
            assert line.isprintable()
            assert columns(line) <= width


def neighbour_lines(
    waited_ns: int, device_ns: int, meanwhile: dict[str, int], beside: dict[str, int], **more: Any
) -> list[str]:
    def holders(had: dict[str, int]) -> list[dict[str, Any]]:
        return [{"owner": name, "seen": "backup", "op": "read", "bytes": 65536, "ns": ns} for name, ns in had.items()]

    neighbours = {
        "waited_ns": waited_ns,
        "device_ns": device_ns,
        "meanwhile": holders(meanwhile),
        "beside": holders(beside),
    }
    return list(story({"neighbours": neighbours, **more}, waited_ns + device_ns))


BATCH = "/batch (backup, 64 KiB reads)"


def test_the_story_of_a_wait() -> None:
    tag = {"throttled_by": [{"controller": "tag", "ns": 5 * MS}]}
    assert neighbour_lines(5 * MS, MS, {"/batch": 20 * MS}, {}, **tag) == [
        f"waited 5.00 ms for a tag: all 4 had {BATCH}"
    ]
    (line,) = neighbour_lines(5 * MS, MS, {"/batch": 15 * MS, "/app": 5 * MS}, {})
    assert line == f"waited 5.00 ms for the device: 3 of 4 had {BATCH}"
    assert neighbour_lines(5 * MS, MS, {}, {}) == ["waited 5.00 ms for the device: no owner that wptrace sees had it"]


def test_what_was_beside_it_where_the_device_took_the_time() -> None:
    (line,) = neighbour_lines(0, 5 * MS, {}, {"/batch": 155 * MS, "/app": 12 * MS})
    assert line == f"in the device for 5.00 ms, beside 31 of {BATCH} and 2.4 of others"
    assert neighbour_lines(0, 5 * MS, {}, {"/batch": MS}) == []
    (line,) = neighbour_lines(5 * MS, 4 * MS, {"/batch": 5 * MS}, {"/batch": 400 * MS})
    assert line.startswith("waited")
    assert neighbour_lines(0, 0, {}, {}) == []


def test_hostile_names_in_a_story() -> None:
    for name in HOSTILE:
        for line in neighbour_lines(MS, 0, {name: MS}, {}):
            assert line.isprintable()
