# SPDX-License-Identifier: Apache-2.0
"""Effects of a budget, on a screen and in JSON."""

from __future__ import annotations

from tests.unit.outputs import path
from tests.unit.outputs.samples import SECOND, distribution, reported, written
from wptrace.flows.io.options import FS, INTERFERENCE, SAMPLE, SAVINGS
from wptrace.model.budget import EACH, Change, Cost, Saving, Spending, Step, ladder
from wptrace.model.kind import TOTAL, Group, Kind, Noun
from wptrace.model.report import UNTIMED, Report
from wptrace.outputs.registry import Wanted
from wptrace.outputs.text.budget import as_json, lines
from wptrace.outputs.text.stages import StagesView

STEPS = ladder(SAVINGS)
NOTHING = dict.fromkeys(SAVINGS, 0)
READS = path.REQUEST.group("nvme0n1", "read")
USUAL = Cost(0.02, 0.011)


def spending(shed: int = 0, off: dict[Saving, int] | None = None, cost: Cost = USUAL, refused: str = "") -> Spending:
    change = Change(5, 7, Step(FS), True, Cost(0.06, 0.0))
    off = {**NOTHING, **(off or {})}
    return Spending(0.05, cost, 0.06, STEPS[:shed], off, (change,), refused, shed == len(STEPS))


def report(found: Spending | None, untimed: dict[Group, int] | None = None) -> Report:
    made = path.report()._replace(budget=found)
    counters = {group: dict(counts) for group, counts in made.counters.items()}
    for group, count in (untimed or {}).items():
        counters[group][UNTIMED] = count
    return made._replace(counters=counters)


def test_without_a_budget_nothing_is_said() -> None:
    assert list(lines(report(None))) == []


def test_what_was_spent() -> None:
    assert list(lines(report(spending()))) == ["budget: 3.1% of 5% spent (programs 2%, reader 1.1%)"]
    (line,) = lines(report(spending(cost=Cost(None, 0.0005))))
    assert line == "budget: 0.05% of 5% spent (what programs cost is not known, reader 0.05%)"


def test_what_was_shed_and_for_how_long() -> None:
    found = spending(2, {INTERFERENCE: SECOND, EACH: SECOND // 2, FS: SECOND // 4})
    _, line = lines(report(found))
    assert line == (
        "shed to stay within it: interference, records but 1/100 for 500 ms, "
        "operations and page-cache hits for 250 ms, back now"
    )
    _, line = lines(report(spending(5, {SAMPLE: SECOND})))
    assert line == "shed to stay within it: times of requests (1/16 timed now)"


def test_nothing_more_to_shed() -> None:
    dear = Cost(0.06, 0.0)
    (line,) = lines(report(spending(len(STEPS), cost=dear)))
    assert line.endswith(", and nothing more to shed")
    for found in (spending(len(STEPS)), spending(len(STEPS) - 1, cost=dear)):
        (line,) = lines(report(found))
        assert "nothing more" not in line


def test_what_does_not_come_back_is_said() -> None:
    found = spending(3, {FS: SECOND}, refused="fs: \x1b no")
    assert list(lines(report(found)))[-1] == "note: it cannot come back here (fs: \\x1b no)"


def test_samples_are_marked() -> None:
    found = report(spending(7, {SAMPLE: SECOND}), {READS: 500})
    assert list(lines(found))[-1] == (
        "sampled: 20 of 520 block requests were timed and stand for all; counts are exact"
    )
    text = written(StagesView(Wanted(per_device=True)), path.start(), found)
    (title,) = [line for line in text if line.startswith("nvme0n1 read: 520 block requests")]
    assert "(20 timed)" in title
    assert len([line for line in text if "timed" in line and line.startswith("nvme0n1")]) == 1
    assert text[-1].startswith("sampled: ")


def test_they_are_marked_where_devices_are_added_up() -> None:
    text = "\n".join(written(StagesView(Wanted()), path.start(), report(spending(7), {READS: 500})))
    assert "read: 520 block requests (20 timed)" in text
    assert "sampled: 20 of 520 block requests" in text


def test_what_is_sampled_has_its_noun() -> None:
    packets = Kind("object", Noun("packet"), [], [])
    cells = {packets.group(): {TOTAL: distribution([SECOND] * 90)}}
    found = path.report()._replace(budget=spending(7), cells=cells, counters={packets.group(): {UNTIMED: 63}})
    assert list(lines(found))[-1].startswith("sampled: 27 of 90 packets were timed")


def test_the_live_screen_has_a_section_for_it() -> None:
    view = StagesView(Wanted(per_device=True))
    list(view.begin(path.start()))
    found = view.sections(report(spending(2, {FS: SECOND}), {READS: 500}), [], 100)["budget"]
    assert [len(form) for form in found] == [3, 1]
    assert "budget" not in view.sections(report(None), [], 100)


def test_json() -> None:
    assert as_json(spending(5, {SAMPLE: 9}, refused="x")) == {
        "limit": 0.05,
        "cost": 0.031,
        "programs": 0.02,
        "reader": 0.011,
        "worst": 0.06,
        "shed": ["interference", "each", "fs", "sample"],
        "request_sample": 16,
        "refused": "x",
        "off_ns": {"interference": 0, "each": 0, "fs": 0, "sample": 9},
        "changes": [{"ts_ns": 7, "step": "fs", "request_sample": 1, "shed": True, "cost": 0.06}],
    }
    assert as_json(spending(cost=Cost(None, 0.0)))["programs"] is None


def test_rows_of_a_sample_say_so_in_json() -> None:
    (line,) = reported(report(spending(5), {READS: 500}))
    assert line["budget"]["request_sample"] == 16
    for row in line["rows"]:
        if (row["kind"], row["op"]) == ("request", "read"):
            assert (row["count"], row["timed"]) == (520, 20)
        else:
            assert "timed" not in row
    assert any(row["kind"] == "hit" for row in line["rows"])
