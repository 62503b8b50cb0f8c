# SPDX-License-Identifier: Apache-2.0
"""Differences of two recordings in words: what changed and by how much, and what is left out."""

from __future__ import annotations

import io

from tests.unit.analysis.made_sides import COLUMNS, Load, compared, seeded, side
from wptrace.analysis.diff import Difference
from wptrace.analysis.reasons import blame, parts_of
from wptrace.model.report import Source
from wptrace.outputs.text import changes, diff


def said(found: Difference) -> list[str]:
    return [sentence for _, sentences in changes.findings(found) for sentence in sentences]


def sentence(found: Difference, begin: str) -> str:
    (one,) = [one for one in said(found) if one.startswith(begin)]
    return one


def shown(found: Difference, top: int = 20) -> list[str]:
    return list(diff.lines(found, False, top))


_QUICK = {"device": (800_000.0, 0.1), "throttle": (2_000.0, 0.1)}


def test_a_change_is_split_into_reasons() -> None:
    """Reads are larger, which takes longer, and wait for a new owner."""
    rand = seeded(1)
    slow = {"device": (1_600_000.0, 0.1), "throttle": (2_000.0, 0.1)}
    before = [
        Load(90, _QUICK, owner="/app", bytes=16384, dev="vda"),
        Load(10, slow, owner="/app", bytes=65536, dev="vda"),
        Load(50, _QUICK, owner="/log", bytes=16384, dev="vda"),
    ]
    held = {"throttle": (1_442_000.0, 0.1)}
    after = [
        Load(50, {**_QUICK, **held}, owner="/app", bytes=16384, dev="vda"),
        Load(50, {**slow, **held}, owner="/app", bytes=65536, dev="vda"),
        Load(50, _QUICK, owner="/log", bytes=16384, dev="vda"),
        Load(30, _QUICK, op="write", owner="/batch", bytes=1 << 20, dev="vda"),
    ]
    found = compared(side(before, rand, filters={}), side(after, rand, filters={}))
    assert sentence(found, "reads of /app: +") == (
        "reads of /app: +1.77 ms (+204%, 870 us -> 2.64 ms): 1.44 ms in throttle of vda: /batch is new there;"
        " 332 us because they are larger (20.1 KiB -> 39.8 KiB); 2.71 us rest"
    )
    for change, _ in changes.findings(found):
        if change.figures["mean"].real:
            parts = parts_of(change)
            assert sum(part.ns for part in parts) == change.split.b_ns - change.split.a_ns
    assert any(line.startswith("new in B: write operations on vda (") for line in shown(found))


def test_a_mix_of_devices_and_owners_is_named() -> None:
    rand = seeded(2)
    fast, slow = Load(80, _QUICK, dev="nvme0n1"), Load(20, {"device": (8_000_000.0, 0.1)}, dev="sda")
    found = compared(side([fast, slow], rand), side([fast._replace(rate=20), slow._replace(rate=80)], rand))
    assert "because more are to sda (18% -> 80%)" in sentence(found, "reads: +")
    rand = seeded(3)
    app, batch = Load(80, _QUICK), Load(20, {"device": (8_000_000.0, 0.1)}, owner="batch")
    found = compared(side([app], rand), side([app, batch], rand))
    assert "are of batch, which is new" in sentence(found, "reads: +")
    found = compared(side([app, batch], rand), side([app], rand))
    assert "because none are of batch any more" in sentence(found, "reads: -")


def test_few_are_not_none_and_most_are_not_all() -> None:
    rand = seeded(4)
    app, batch = Load(600, _QUICK), Load(2, {"device": (900_000_000.0, 0.1)}, owner="batch")
    found = compared(side([app], rand), side([app, batch], rand))
    assert "because under 1% are of batch, which is new" in sentence(found, "reads: +")
    slow, quick = Load(80, {"device": (900_000_000.0, 0.1)}), Load(80, {"device": (300_000.0, 0.1)})
    found = compared(side([slow], rand), side([quick], rand))
    blamed = blame(found, {})
    assert blamed is not None
    assert next(changes.verdict(blamed, found, False)).startswith("verdict: reads take over 99% less time, 100% of it")


def test_sizes_that_have_nothing_in_common_are_not_told_apart() -> None:
    rand = seeded(4)
    found = compared(
        side([Load(100, _QUICK, bytes=16384)], rand),
        side([Load(100, {"device": (1_600_000.0, 0.1)}, bytes=65536)], rand),
    )
    assert (
        "  reads have no size in common (16 KiB -> 64 KiB in the mean): other sizes cannot be told from slower ones"
        in said(found)
    )


def test_no_difference_is_one_line() -> None:
    rand = seeded(5)
    found = compared(side([Load(100, _QUICK)], rand), side([Load(100, _QUICK)], rand))
    assert said(found) == []
    assert shown(found)[-1] == "no difference: the changes of all 5 figures may be chance"
    assert all("~" in line for line in shown(found) if line.startswith(("  device", "  total")))


def test_few_intervals_are_said() -> None:
    rand = seeded(6)
    found = compared(side([Load(100, _QUICK)], rand, seconds=2), side([Load(100, _QUICK)], rand))
    assert shown(found)[-1].startswith("but: A has fewer than 4 intervals")


def test_what_only_one_observes_is_said_first() -> None:
    rand = seeded(7)
    blind = [Source(stage, "" if stage == "journal" else "tp") for stage in COLUMNS[:-1]]
    both = {**_QUICK, "journal": (500_000.0, 0.1)}
    found = compared(side([Load(100, both)], rand), side([Load(100, _QUICK)], rand, sources=blind, kernel="6.18.0"))
    lines = shown(found)
    assert lines[2] == "not alike: stage journal: observed in A, not observed in B: compared as a part of fs"
    assert "not alike: kernel: 6.12.0 in A, 6.18.0 in B" in lines[:6]
    assert any(line.split()[:1] == ["journal"] and line.endswith("part of fs") for line in lines)
    assert any("fs (with journal)" in one for one in said(found))


def test_names_are_shown_as_escapes() -> None:
    rand = seeded(8)
    loads = [Load(100, _QUICK), Load(100, _QUICK, owner="a\x1b[2Jb")]
    stream = io.StringIO()
    diff.write(compared(side(loads, rand), side(loads, rand)), diff.Ending(), stream, 100, False, 20)
    assert "\x1b" not in stream.getvalue()
    assert "a\\x1b[2Jb" in stream.getvalue()


def test_of_many_owners_the_largest_are_shown() -> None:
    rand = seeded(9)
    loads = [Load(20, _QUICK, owner=f"task{number}") for number in range(6)]
    found = compared(side(loads, rand), side(loads, rand))
    assert sum("reads of task" in line for line in shown(found, top=0)) == 6
    assert sum("reads of task" in line for line in shown(found, top=4)) == 4
    assert any(line == "  and 2 more (--top 0 shows all)" for line in shown(found, top=4))


def test_owners_of_single_operations_are_new_and_gone() -> None:
    rand = seeded(10)
    app, old, batch = (Load(20, _QUICK, owner=name) for name in ("app", "old", "batch"))
    lines = shown(compared(side([app, old], rand), side([app, batch], rand)))
    assert any(line.startswith("new in B: reads of batch (") for line in lines)
    assert any(line.startswith("gone in B: reads of old (") for line in lines)


def test_a_stage_is_blamed_where_no_mean_changed() -> None:
    rand = seeded(11)
    wild = {"wakeup": (100_000.0, 3.0)}
    quick, held = ({**wild, "throttle": (ns, 0.1)} for ns in (2_000.0, 90_000.0))
    found = compared(side([Load(100, quick)], rand), side([Load(100, held)], rand))
    blamed = blame(found, {})
    assert blamed is not None
    assert list(changes.verdict(blamed, found, False)) == [
        "verdict: reads are 88.4 us longer in throttle of sda",
        "but: the change of their total time may be chance",
        f"look at: {blamed.advice}",
    ]
