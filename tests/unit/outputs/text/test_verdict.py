# SPDX-License-Identifier: Apache-2.0
"""The verdict in words; other tests are about its rules."""

from __future__ import annotations

import json

import pytest

from tests.unit.outputs.path import HIT, OPERATION, REQUEST
from tests.unit.outputs.samples import HOSTILE, MS, NOON, SECOND
from wptrace.analysis.neighbours import WAITED
from wptrace.flows.io import rules as of_io
from wptrace.model.kind import ALL, NUMBER, Kind, Label, Noun
from wptrace.model.report import Finding, Verdict
from wptrace.outputs.text import verdict
from wptrace.outputs.text import words as text

READ, HITS, WRITE = OPERATION.group(ALL, "read"), HIT.group(ALL, "read"), REQUEST.group(ALL, "write")
WAITS = Kind("object", Noun("wait"), [Label("op", NUMBER)], [])
LARGEST = {
    "count": 2000,
    "share": 0.834,
    "mean_ns": 4.6 * MS,
    "p99_ns": 9.1 * MS,
    "dev_share": 0.0,
    "queue_depth": 31.04,
}
GREW = {"factor": 4.18, "ts_ns": NOON, "duration_ns": 10 * SECOND, "mean_ns": 4.6 * MS, "rest_mean_ns": 1.1 * MS}
TAIL = {"ratio": 12.4, "p50_ns": 2 * MS, "p99_ns": 24 * MS, "stage_p99_ns": 22 * MS}
READS = {"share": 0.66, "sum_ns": 840 * MS, "count": 2311, "bytes": 2311 * 8192}
STATEMENT = {**READS, "hits": 20486, "device_ns": 600 * MS}


def neighbour(who: str, dev: str = "vda", **figures: float) -> Finding:
    figures = {"share": 0.38, "waited_ns": 1, "waits": 40, **figures}
    return Finding("neighbour", figures, WAITED.group(dev, "/app"), who=who)


def said(*findings: Finding, advice: str = "", dates: bool = False) -> list[str]:
    return list(verdict.lines(Verdict(findings, advice), dates))


def test_a_whole_verdict_has_a_line_for_each_finding_and_its_advice() -> None:
    findings = (
        Finding("largest", {**LARGEST, "dev_share": 0.9}, OPERATION.group("nvme0n1", "read"), "device"),
        Finding("grew", GREW, READ, "queue", advice="the scheduler"),
        Finding("tail", TAIL, READ, "device", advice="the disk itself"),
        Finding("inside", {"share": 0.25, "sum_ns": 3 * SECOND}, READ, "preempted"),
        Finding("lost", {"requests": 3, "requests_started": 2000, "operations": 1, "operations_started": 1}),
    )
    assert said(*findings, advice="the disk itself") == [
        "verdict: device takes 83% of the time of read operations, 90% of it on nvme0n1 (mean 4.60 ms, p99 9.10 ms,"
        " queue depth 31.0)",
        "look at: the disk itself",
        "also: queue grew 4.2x in the 10.0 s that ended 22:13:20 (mean 1.10 ms -> 4.60 ms)",
        "look at: the scheduler",
        "also: the p99 of the whole is 12x the median (24.0 ms, 2.00 ms), and device makes it (22.0 ms)",
        "also: preempted took 25% of the time (3.00 s) inside the stages",
        "but: 1 of 1 operation and 3 of 2,000 requests were lost, so the figures are those of a sample",
    ]


def test_a_statement_of_which_there_is_little_to_say() -> None:
    few = {**STATEMENT, "count": 1, "hits": 0, "device_ns": 0}
    found = Finding("statement", few, OPERATION.group(ALL, "sync"), who="commit")
    assert list(verdict.lines(Verdict((found,), ""), dates=False)) == [
        "verdict: commit took 66% of the time of operations (840 ms): 1 sync of 18.1 MiB"
    ]


@pytest.mark.parametrize(
    ("finding", "words"),
    [
        (Finding("idle", {"in_flight": 0}), "nothing finished"),
        (Finding("idle", {"in_flight": 5}), "nothing finished, 5 in flight"),
        (
            Finding("idle", {"in_flight": 5, "requests_in_flight": 4, "operations_in_flight": 1}),
            "nothing finished, 1 operation and 4 requests in flight",
        ),
        (
            Finding("cached", {"count": 1200, "mean_ns": 1500, "p99_ns": 3000}, HITS),
            "the page cache served everything: 1,200 read hits (mean 1.50 us, p99 3.00 us)",
        ),
        (
            Finding("cached", {"count": 1, "mean_ns": 9, "p99_ns": 9, "in_flight": 2, "operations_in_flight": 2}, HITS),
            "the page cache served everything that finished: 1 read hit (mean 9 ns, p99 9 ns), 2 operations in flight",
        ),
        (
            Finding("unmeasured", {"count": 3}, WRITE),
            "write requests finished, but none of their stages could be measured",
        ),
        (
            Finding("largest", LARGEST, WRITE, "queue"),
            "queue takes 83% of the time of write requests (mean 4.60 ms, p99 9.10 ms, queue depth 31.0)",
        ),
        (
            Finding(
                "largest", {**LARGEST, "dev_share": 1.0, "queue_depth": 0.0}, REQUEST.group("sda", "write"), "queue"
            ),
            "queue takes 83% of the time of write requests on sda (mean 4.60 ms, p99 9.10 ms)",
        ),
        (
            Finding("largest", {**LARGEST, "dev_share": 1.0}, WAITS.group(0), "asked"),
            "asked takes 83% of the time of waits on op 0 (mean 4.60 ms,",
        ),
        (
            Finding("largest", {**LARGEST, "count": 1}, OPERATION.group(ALL, "read"), "device"),
            "device takes 83% of the time of 1 read operation (mean 4.60 ms,",
        ),
        (Finding("largest", {**LARGEST, "count": 15}, WRITE, "device"), "device takes 83% of the time of 15 write req"),
        (
            Finding("outlier", {"share": 0.83, "max_ns": 5 * SECOND, "count": 1000, "rest_mean_ns": MS}, READ),
            "one of 1,000 read operations took 83% of their time (5.00 s), the mean of the others is 1.00 ms",
        ),
        (
            Finding("behind", {"share": 0.62, "sum_ns": 1.2 * SECOND}, stage="journal", who="cp[7]"),
            "62% of the time of operations (1.20 s) was spent waiting for commits to which cp[7] had contributed most",
        ),
        (
            Finding("owner", {"share": 0.92, "owners": 3}, who="backup[12]"),
            "backup[12] had 92% of the device's time, 2 other owners had the rest",
        ),
        (
            Finding("owner", {"share": 0.92, "owners": 2, "filtered": 1}, who="backup[12]"),
            "of what is traced, backup[12] had 92% of the device's time, 1 other owner had the rest",
        ),
        (
            Finding("owner", {"share": 0.9997, "owners": 2}, who="backup"),
            "backup had over 99% of the device's time, 1 other owner had the rest",
        ),
        (
            Finding("owner", {"share": 0.1, "owners": 2, "unknown": 0.9}, who="backup"),
            "backup had 10% of the device's time, who had 90% is not known by name",
        ),
        (
            Finding("owner", {"share": 0.1, "owners": 3, "unknown": 0.8}, who="backup"),
            "backup had 10% of the device's time, who had 80% is not known by name, 1 other owner had the rest",
        ),
        (Finding("owner", {"share": 1.0, "owners": 1}, who="a\nb[12]"), "a\\nb[12] had the device alone"),
        (
            Finding("unit", STATEMENT, OPERATION.group(ALL, "read"), who="job"),
            "job took 66% of the time of operations (840 ms): 2,311 reads of 18.1 MiB, 20,486 page-cache hits, 600 ms"
            " of its requests with the device",
        ),
        (
            Finding("statement", STATEMENT, OPERATION.group("vda", "read"), who="select '\x1b' from t"),
            "select '\\x1b' from t took 66% of the time of operations (840 ms): 2,311 reads of 18.1 MiB on vda,"
            " 20,486 page-cache hits, 600 ms of its requests with the device",
        ),
        (
            neighbour("/batch (backup, 64 KiB reads)", dev="nullb0", had=0.92, waits=1),
            "waiting for nullb0 takes 38% of the requests of /app: /batch (backup, 64 KiB reads) had 92% of it ",
        ),
        (
            neighbour("/one (a, 4 KiB reads) and /two (b, 4 KiB reads)", had=0.97, unknown=0.03),
            "waiting for vda takes 38% of the requests of /app: /one (a, 4 KiB reads) and /two (b, 4 KiB reads)"
            " had 97%",
        ),
        (
            neighbour("/one (a, 4 KiB reads)", had=0.6, unknown=0.3),
            "waiting for vda takes 38% of the requests of /app: /one (a, 4 KiB reads) had 60% of it meanwhile,"
            " and who had 30% is not known by name",
        ),
        (
            neighbour("many others", had=0.98, unknown=0.0, many=1),
            "waiting for vda takes 38% of the requests of /app: many others had 98% of it meanwhile,"
            " and no three of them had half of it",
        ),
        (
            neighbour("many others", had=0.98, unknown=0.75, many=1),
            "waiting for vda takes 38% of the requests of /app: many others had 98% of it meanwhile,"
            " and who had 75% is not known by name",
        ),
        (
            Finding("largest", {**LARGEST, "dev_share": 1.0}, OPERATION.group("vdb", "write"), "layers", "dm-0"),
            "layers takes 83% of the time of write operations, most of it in dm-0 (mean 4.60 ms,",
        ),
        (
            Finding("ran", {"share": 0.62, "sum_ns": 1.2 * SECOND}, stage="wakeup", who="hog[7]"),
            "hog[7] ran on their CPU for 62% of the time of operations (1.20 s)",
        ),
        (
            Finding("irq_off", {"share": 0.2, "sum_ns": 1.2 * SECOND}, stage="complete", who="kworker/0:1[7]"),
            "kworker/0:1[7] kept interrupts off for 20% of the time of operations (1.20 s)",
        ),
        (
            Finding("owner", {"share": 0.92, "owners": 3, "more": 1}, who="backup[12]"),
            "backup[12] had 92% of the device's time, many others had the rest",
        ),
        (
            Finding("owner", {"share": 1.0, "owners": 1, "partial": 1}, who="backup[12]"),
            "backup[12] had all of what is traced",
        ),
        (Finding("grew", {**GREW, "factor": 1234.5}, READ, "fs"), "fs grew 1,234x in the 10.0 s that ended 22:13:20"),
        (
            Finding("grew", {**GREW, "factor": 4.6 * MS, "rest_mean_ns": 0}, READ, "throttle"),
            "throttle grew from nothing in the 10.0 s that ended 22:13:20 (mean 0 ns -> 4.60 ms)",
        ),
    ],
)
def test_each_finding_in_words(finding: Finding, words: str) -> None:
    (line,) = said(finding)
    assert line.startswith(f"verdict: {words}")
    assert finding.rule != "owner" or line == f"verdict: {words}"


@pytest.mark.parametrize(
    ("lost", "started", "words"),
    [
        (7, 371_395, "7 of 371,395 requests were lost: too few to change any figure but the largest ones"),
        (1, 20_000, "1 of 20,000 requests was lost: too few to change any figure but the largest ones"),
        (2, 20_000, "2 of 20,000 requests were lost: counts and means hold, the highest percentiles may not"),
        (1, 2_109, "1 of 2,109 requests was lost: counts and means hold, the highest percentiles may not"),
        (200, 20_000, "200 of 20,000 requests were lost, so the figures are those of a sample"),
    ],
)
def test_so_few_lost_change_no_figure(lost: int, started: int, words: str) -> None:
    found = Finding("lost", {"requests": lost, "requests_started": started})
    assert said(Finding("idle", {"in_flight": 0}), found)[-1] == f"but: {words}"


def test_what_is_lost_of_operations_is_no_hit() -> None:
    cached = Finding("cached", {"count": 12, "mean_ns": 1500, "p99_ns": 3000}, HITS)
    found = Finding("lost", {"requests": 0, "requests_started": 0, "operations": 3, "operations_started": 9})
    assert said(cached, found)[-1].startswith("but: 3 of 9 operations were lost")


def test_dates_stand_before_the_time_if_wanted() -> None:
    assert "2023-11-14 22:13:20" in said(Finding("grew", GREW, READ, "fs"), dates=True)[0]


def test_there_are_words_for_every_rule() -> None:
    found = of_io.path()
    names = {rule.__name__ for rule in (*found.first, *found.more)}
    assert set(verdict._WORDS) | {"lost"} == names


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_shown_escaped(name: str) -> None:
    (line,) = said(Finding("largest", {**LARGEST, "dev_share": 1.0}, OPERATION.group(name, "read"), "device"))
    assert line.isprintable()
    assert text.printable(name) in line


def test_json_has_who_is_blamed() -> None:
    found = Verdict((Finding("behind", {"share": 0.5, "sum_ns": 7.0}, stage="journal", who="cp[7]"),), "")
    assert verdict.as_json(found)["findings"] == [
        {"rule": "behind", "stage": "journal", "share": 0.5, "sum_ns": 7, "who": "cp[7]"}
    ]


def test_json_has_the_words_and_the_figures() -> None:
    found = Verdict(
        (Finding("largest", LARGEST, READ, "device"), Finding("lost", {"requests": 1, "requests_started": 9})), "it"
    )
    made = json.loads(json.dumps(verdict.as_json(found)))
    assert made == {
        "text": "\n".join(verdict.lines(found, dates=True)),
        "stage": "device",
        "advice": "it",
        "findings": [
            {
                "rule": "largest",
                "stage": "device",
                "dev": "",
                "op": "read",
                "kind": "operation",
                "count": 2000,
                "share": 0.834,
                "mean_ns": 4_600_000,
                "p99_ns": 9_100_000,
                "dev_share": 0.0,
                "queue_depth": 31.04,
            },
            {"rule": "lost", "stage": "", "requests": 1, "requests_started": 9},
        ],
    }
