# SPDX-License-Identifier: Apache-2.0
"""Two recordings compared: chance is no finding, real changes are found, and an unobserved stage is not zero."""

from __future__ import annotations

import pytest

from tests.thorough import cases
from tests.unit.analysis.made_sides import COLUMNS, LABELS, SECOND, Load, compared, of_stretches, seeded, side
from wptrace.analysis.chance import NEVER
from wptrace.analysis.changes import Change
from wptrace.analysis.diff import NOT_BY_OWNER, Difference, Side
from wptrace.analysis.measured import STRETCHES, Stretch, joined_stretches
from wptrace.analysis.split import Sums
from wptrace.flows.io.kinds import KINDS, OPERATION, STAGES, WITHIN
from wptrace.flows.io.parts.owners import KINDS as OWNED
from wptrace.model.kind import TASK, TOTAL, Kind, Label, Noun, Task
from wptrace.model.report import BYTES, Source

# Medians in nanoseconds, and their spread.
_FS, _DEVICE = (5_000.0, 0.8), (80_000.0, 0.5)


def whole(found: Difference) -> Change:
    (change,) = [one for one in found.changes if not one.owner]
    return change


def test_one_steady_load_has_no_findings() -> None:
    """At most 5 % of 200 pairs have a finding, even if each second differs from the next."""
    rand, pairs = seeded(35), cases(100, 40)
    for unsteady in (0.0, 0.05):
        load = [Load(60, {"fs": _FS, "device": _DEVICE})]
        sides = [side(load, rand, unsteady=unsteady) for _ in range(2 * pairs)]
        found = [compared(*sides[at : at + 2]).found for at in range(0, 2 * pairs, 2)]
        assert len(found) == pairs
        assert sum(map(bool, found)) <= pairs * 0.05


def test_a_stage_that_is_slower_by_10_percent_is_found() -> None:
    """It is found in 95 of 100 pairs of 2,000 requests each."""
    rand, pairs = seeded(35), cases(100, 40)
    before = [side([Load(200, {"device": _DEVICE})], rand) for _ in range(20)]
    hits = 0
    for at in range(pairs):
        after = side([Load(200, {"device": (88_000.0, 0.5)})], rand)
        hits += whole(compared(before[at % 20], after)).figures["device"].real
    assert hits >= pairs * 0.95


def test_where_seconds_differ_it_takes_more_of_them() -> None:
    """2,000 requests each, of a load whose times are 5 % longer or shorter from second to second."""
    hits, pairs = [], cases(50, 20)
    for seconds in (10, 30):
        rand, found = seeded(35), 0
        for _ in range(pairs):
            a, b = (
                side([Load(2000 / seconds, {"device": (median, 0.5)})], rand, seconds, unsteady=0.05)
                for median in (80_000.0, 88_000.0)
            )
            found += whole(compared(a, b)).figures["device"].real
        hits.append(found)
    assert hits[0] >= pairs * 0.88
    assert hits[1] >= pairs * 0.94


def test_where_it_is_slower_is_said() -> None:
    rand = seeded(1)
    before = side([Load(200, {"fs": _FS, "device": _DEVICE})], rand)
    found = whole(compared(before, side([Load(200, {"fs": _FS, "device": (160_000.0, 0.5)})], rand)))
    assert found.figures.keys() == {"mean", "p99", "rate", "fs", "device"}
    # Two ways to estimate the same error.
    assert found.errors["same", 0] == pytest.approx(found.figures["mean"].odds.error, rel=0.2)
    assert {name for name, figure in found.figures.items() if figure.real} == {"mean", "p99", "device"}
    assert found.split.of("same") == found.split.b_ns - found.split.a_ns
    (cells,) = before.report.cells.values()
    assert found.figures["p99"].a == pytest.approx(cells[TOTAL].percentile(99), rel=0.07)
    assert found.p99 is not None
    assert found.p99.mix_ns == 0


@pytest.mark.parametrize(
    ("fs", "device", "expected"),
    [
        # 0.5 %, 2.5 % and 5 %; a stage has to differ by 3 %, and by 0.1 % of the whole.
        (100.0, 84_420.0, set()),
        (100.0, 86_100.0, {"mean"}),
        (100.0, 88_200.0, {"mean", "device"}),
        (170.0, 84_000.0, set()),
        (190.0, 84_000.0, {"fs"}),
    ],
)
def test_what_is_sure_and_small_is_no_finding(fs: float, device: float, expected: set[str]) -> None:
    rand = seeded(1)
    a = side([Load(200, {"fs": (100.0, 1e-5), "device": (84_000.0, 1e-5)})], rand)
    found = whole(compared(a, side([Load(200, {"fs": (fs, 1e-5), "device": (device, 1e-5)})], rand)))
    assert {name for name, figure in found.figures.items() if figure.real} == expected
    assert found.figures["mean"].odds.p < 1e-6


def test_a_rate_is_that_of_the_recording() -> None:
    rand = seeded(1)
    found = whole(compared(side([Load(200, {"fs": _FS})], rand, 10), side([Load(400, {"fs": _FS})], rand, 30))).figures[
        "rate"
    ]
    assert found.real
    assert 190 < found.a < 210 < 390 < found.b < 410
    # A time of less than 1 us may be the tracing itself between two levels, and a rate is none.
    levels = compared(side([Load(200, {"fs": _FS})], rand), side([Load(400, {"fs": _FS})], rand, level="block"))
    assert whole(levels).figures["rate"].real
    # Where there are too few seconds to compare, each arrival is independent.
    short = whole(compared(side([Load(200, {"fs": _FS})], rand, 3), side([Load(400, {"fs": _FS})], rand, 2)))
    found = short.figures["rate"]
    assert found.odds.error == pytest.approx((found.a / 3 + found.b / 2) ** 0.5)
    assert short.errors == {}


def test_one_second_in_which_all_stood_still_does_not_hide_that_all_others_are_slower() -> None:
    rand = seeded(1)
    a = side([Load(200, {"device": _DEVICE})], rand)
    *most, last = side([Load(200, {"device": (240_000.0, 0.5)})], rand).measured["operation"].stretches
    for still in last.classes["read"].values():
        still.times = [20 * ns for ns in still.times]
        still.squares = [20**2 * square for square in still.squares]
    assert whole(compared(a, of_stretches([*most, last]))).figures["device"].real


def test_what_is_not_known_of_stretches_is_not_said() -> None:
    rand = seeded(1)
    known = side([Load(200, {"device": _DEVICE})], rand)
    first, *others = side([Load(400, {"device": _DEVICE})], rand).measured["operation"].stretches
    # Without the only second in which there is anything, there is nothing.
    nothing = [one._replace(classes={}) for one in others]
    once = of_stretches([nothing[0], first, *nothing])
    assert whole(compared(known, once)).errors == whole(compared(once, known)).errors == {}
    operations = known.measured["operation"]
    timeless = known._replace(measured={"operation": operations._replace(stretches=[])})
    found = whole(compared(timeless, once))
    assert (found.errors, found.figures["rate"].a, found.figures["rate"].odds) == ({}, 0.0, NEVER)


def test_few_are_not_compared() -> None:
    rand = seeded(1)
    found = compared(side([Load(2, {"fs": _FS})], rand, 10), side([Load(200, {"fs": (50_000, 0.1)})], rand, 10))
    assert found.changes == []
    assert (found.tested, found.few) == (0, 1)


def test_a_stage_that_one_does_not_observe_is_part_of_the_other_one() -> None:
    rand = seeded(1)
    blind = [Source(stage, "" if stage == "journal" else "tp") for stage in COLUMNS[:-1]]
    a = side([Load(200, {"fs": _FS, "journal": (500_000.0, 0.2)})], rand)
    b = side([Load(200, {"fs": (505_000.0, 0.2)})], rand, sources=blind)
    found = compared(a, b)
    assert found.joined["journal"] == "fs"
    change = whole(found)
    assert "journal" not in change.columns
    assert not change.figures["fs"].real
    assert any(one.what == "stage journal" and one.b == "not observed" for one in found.unlike)
    # If both observe the stage, its time is gone.
    b = side([Load(200, {"fs": (505_000.0, 0.2)})], rand)
    seen = whole(compared(a, b))
    assert seen.figures["fs"].real
    assert seen.figures["journal"].real
    assert seen.figures["journal"].relative == -1.0
    assert whole(compared(b, a)).figures["journal"].relative is None


def test_a_stage_that_no_disk_of_one_has_is_not_zero_there() -> None:
    rand = seeded(1)
    a = side([Load(200, {"driver": (20_000.0, 0.1), "device": (80_000.0, 0.1)})], rand)
    b = side([Load(200, {"device": (100_000.0, 0.1)})], rand)
    found = compared(a, b)
    assert found.joined["driver"] == "device"
    assert not whole(found).figures["device"].real


def test_filters_that_differ_are_said_and_counts_are_not_compared() -> None:
    rand = seeded(1)
    a = side([Load(200, {"fs": _FS})], rand)
    b = side([Load(400, {"fs": _FS})], rand, filters={"dev": ["sda"], "pid": 7})
    found = compared(a, b)
    assert [(one.what, one.a, one.b) for one in found.unlike if one.counts] == [("filter pid", "none", "7")]
    assert not whole(found).figures["rate"].real


@pytest.mark.parametrize("swapped", [False, True])
def test_rows_that_one_could_not_have_are_neither_new_nor_gone(swapped: bool) -> None:
    rand = seeded(1)
    reads, writes = Load(200, {"fs": _FS}), Load(200, {"fs": _FS}, op="write")

    def unseen(fewer: Side, more: Side) -> str:
        found = compared(more, fewer) if swapped else compared(fewer, more)
        (pair,) = [pair for pair in found.pairs if pair.a is None or pair.b is None]
        assert (pair.b if swapped else pair.a) is None
        assert pair.bytes[1 if swapped else 0] == 0 < pair.bytes[0 if swapped else 1]
        assert all(not both.unseen for both in found.pairs if both is not pair)
        return pair.unseen

    assert unseen(side([reads], rand, filters={"op": "read"}), side([reads, writes], rand)) == "filtered out"
    assert unseen(side([reads], rand), side([reads, writes], rand)) == ""
    other = side([reads, reads._replace(dev="sdb")], rand, filters={"dev": []})
    assert unseen(side([reads], rand), other) == "not traced"


def test_processes_of_one_name_have_one_row() -> None:
    kind = Kind("turn", Noun("turn"), [Label("task", TASK)], sized=True)
    one, other = (kind.group(Task("fio", pid, pid)) for pid in (7, 9))
    made = side([Load(200, {"fs": _FS})], seeded(1), kinds=[kind])
    total = next(iter(made.report.cells.values()))[TOTAL]
    bytes_of = {one: {BYTES: 3}, other: {BYTES: 4}}
    report = made.report._replace(cells={one: {TOTAL: total}, other: {TOTAL: total}}, counters=bytes_of)
    (pair,) = compared(made._replace(report=report), made._replace(report=report)).pairs
    assert (pair.values, pair.bytes) == (("fio",), (7, 7))
    assert pair.a is not None
    assert pair.a[TOTAL].count == 2 * total.count


def test_what_is_not_the_same_is_not_compared() -> None:
    """Neither its figures nor its rows, though it has the same name."""
    rand = seeded(1)
    a, b = side([Load(200, {"fs": _FS})], rand), side([Load(200, {"fs": _FS})], rand)
    kind = Kind(OPERATION.name, OPERATION.noun, OPERATION.labels[:1], OPERATION.stages, book=OPERATION.book)
    other = b.measured["operation"]._replace(kind=kind)
    found = compared(a, b._replace(start=b.start._replace(kinds=[kind]), measured={kind.name: other}))
    assert found.changes == []
    assert all(pair.b is not None for pair in found.pairs)


def test_rows_by_owner_of_one_alone() -> None:
    rand = seeded(1)
    kind = OWNED["comm"][0]
    a = side([Load(200, {"fs": _FS})], rand)
    b = side([Load(200, {"fs": _FS})], rand, kinds=(*KINDS, *OWNED["comm"]))
    cells = dict(b.report.cells)
    cells[kind.group("sda", "read", "app")] = {TOTAL: next(iter(cells.values()))[TOTAL]}
    found = compared(a, b._replace(report=b.report._replace(cells=cells)))
    assert [pair.unseen for pair in found.pairs if pair.kind is kind] == [NOT_BY_OWNER]


def test_owners_are_compared_where_there_are_several() -> None:
    rand = seeded(1)
    app, batch = Load(200, {"device": _DEVICE}), Load(200, {"device": _DEVICE}, owner="batch")
    slow = batch._replace(stages={"device": (160_000.0, 0.5)})
    found = compared(side([app, batch], rand), side([app, slow], rand))
    real = {one.owner: one.figures["mean"].real for one in found.changes}
    assert real == {"": True, "app": False, "batch": True}
    assert [one.owner for one in compared(side([app], rand), side([app], rand)).changes] == [""]
    # Where owners have a kind of their own, another one has the total.
    kind = OWNED["comm"][0]
    owned = [
        one._replace(measured={kind.name: one.measured["operation"]._replace(kind=kind)})
        for one in (side([app, batch], rand), side([app, slow], rand))
    ]
    assert {one.owner: one.figures["mean"].real for one in compared(*owned).changes} == {"app": False, "batch": True}


def test_an_owner_that_makes_larger_requests_has_another_mix() -> None:
    rand = seeded(1)
    app = Load(200, {"device": _DEVICE})
    small = app._replace(owner="batch")
    large = Load(200, {"device": (400_000.0, 0.5)}, owner="batch", bytes=65_536)
    a, b = [app, small, large._replace(rate=20)], [app, small._replace(rate=20), large]
    batch = next(one for one in compared(side(a, rand), side(b, rand)).changes if one.owner == "batch")
    grown = batch.split.b_ns - batch.split.a_ns
    assert batch.split.of("size") == pytest.approx(grown, rel=0.1)
    assert 0 < batch.errors["size", 0] < grown / 10
    # All of the time is in one stage.
    assert batch.errors["size", 0] == pytest.approx(batch.errors["size", COLUMNS.index("device") + 1])


def test_stretches_are_put_together_until_they_are_few() -> None:
    made = []
    for second in range(100):
        one = Sums(len(COLUMNS))
        one.count = second + 1
        made.append(Stretch((second + 1) * SECOND, SECOND, {"read": {("sda", "app", "4 KiB"): one}}))
    found = joined_stretches(made)
    assert len(found) <= STRETCHES
    assert sum(one.duration_ns for one in found) == 100 * SECOND
    assert sum(sums.count for one in found for sums in one.classes["read"].values()) == 5050
    assert of_stretches(made).measured["operation"].labels == LABELS


def test_stages_that_are_part_of_others_lead_to_one_that_is_none() -> None:
    assert {*WITHIN, *WITHIN.values()} <= STAGES.keys()
    assert not WITHIN.keys() & set(WITHIN.values())
