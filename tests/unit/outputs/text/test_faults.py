# SPDX-License-Identifier: Apache-2.0
"""I/O page faults as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.unit.outputs import samples
from tests.unit.outputs.samples import HOSTILE, MS, SECOND, distribution, reported, written
from wptrace.engine.filters import Filter
from wptrace.flows.iopf import FAULT, IopfFlow
from wptrace.model.book import STATE_FULL, Book
from wptrace.model.distribution import Distribution, index
from wptrace.model.report import InFlight, Report, Start
from wptrace.outputs.registry import Wanted
from wptrace.outputs.text.faults import FaultsView

START = Start("iopf", "", "6.12", {}, [], (FAULT,), [])


def cell(handle: list[int], queue: int = MS) -> dict[str, Distribution]:
    return {
        "gather": distribution([0] * len(handle)),
        "queue": distribution([queue] * len(handle)),
        "handle": distribution(handle),
        "total": distribution(one + queue for one in handle),
    }


def report(cells: Mapping[Any, dict[str, Distribution]], kind: str = "summary", failed: int = 0) -> Report:
    groups = {FAULT.group(*where): stages for where, stages in cells.items()}
    return samples.report(groups, dict.fromkeys(groups, 8192), kind, Book.read(10, 4, {STATE_FULL: 1}, {}, failed))


def open_fault(group: int = 3, dev: str = "0000:75:00.0", address: int = 0x7F00) -> InFlight:
    fields = {"group": group, "address": address, "faults": 2}
    return InFlight(FAULT.group(dev, 5), 2 * SECOND, "handle", fields)


def unanswered(*found: InFlight) -> dict[str, list[dict[str, Any]]]:
    """Return the list as in the flow's summary."""
    flow = IopfFlow(Filter())
    flow.in_flight = lambda at_least_ns: list(found)  # type: ignore[method-assign]
    return flow.lists()


def shown(*results: Any, hist: str = "total") -> list[str]:
    return written(FaultsView(Wanted(hist=hist)), START, *results)


def test_the_summary_draws_the_stage_that_is_wanted() -> None:
    cells = {("a", 5): cell([MS, 3 * MS])}
    assert "a pasid 5 total:" in shown(report(cells))
    lines = shown(report(cells), hist="handle")
    at = lines.index("a pasid 5 handle:")
    # Every bucket between the first and the last: 8 for each power of two.
    assert len(lines) - at - 1 == index(3 * MS) - index(MS) + 1 == 13
    assert lines[at + 1].lstrip().startswith("983 us - 1.05 ms : 1 ")


def test_the_histograms_of_many_address_spaces_are_left_out() -> None:
    cells = {("a", number): cell([MS] * (number + 1)) for number in range(20)}
    drawn = [line for line in shown(report(cells)) if line.endswith(" total:")]
    assert drawn == [f"a pasid {number} total:" for number in range(19, 11, -1)]


def test_an_unanswered_fault_is_reported_once_and_at_the_end() -> None:
    first, second = open_fault(3), open_fault(4, address=0)
    lines = shown([first], [first], [first, second], report({})._replace(lists=unanswered(first, second)))
    reported_once = "    2.00 s  handle  0000:75:00.0 pasid 5, group 3, 2 pages from 0x7f00"
    assert lines[1:6] == [
        "",
        "22:13:20  unanswered: 1, the oldest for 2.00 s",
        reported_once,
        "",
        "22:13:20  unanswered: 1, the oldest for 2.00 s",
    ]
    assert lines[6] == "    2.00 s  handle  0000:75:00.0 pasid 5, group 4, 2 pages"
    assert lines[-3:] == ["22:13:20  unanswered: 2, the oldest for 2.00 s", reported_once, lines[6]]


def test_what_was_answered_is_not_remembered() -> None:
    """Another fault of the same page is a new one."""
    first, second = open_fault(3), open_fault(4)
    lines = shown([first], [second], [first], [first])
    assert [line.count("unanswered: 1") for line in lines].count(1) == 3


def test_a_number_that_is_used_again_is_another_fault() -> None:
    """Between two lists of what is stuck there is none if nothing is."""
    view = FaultsView(Wanted())
    list(view.begin(START))
    shown = [view.in_flight([open_fault()._replace(age_ns=age)], at, 80, 8) for age, at in ((2, 10), (5, 13), (2, 16))]
    assert list(map(bool, shown)) == [True, False, True]


def test_a_list_of_unanswered_faults_ends() -> None:
    lines = shown([open_fault(number) for number in range(60)])
    assert lines[-1] == "  and 10 more"
    assert len(lines) == 1 + 1 + 1 + 50 + 1


@pytest.mark.parametrize("name", HOSTILE)
def test_names_move_no_cursor(name: str) -> None:
    lines = shown([open_fault(dev=name)], report({(name, 1): cell([MS])}))
    assert all(line.isprintable() for line in lines)


def test_json_has_address_spaces_as_numbers() -> None:
    cells = {("a", 5): cell([MS]), ("a", None): cell([MS]), ("other", "other"): cell([MS])}
    in_flight, summary = reported([open_fault()], report(cells)._replace(lists=unanswered(open_fault())))
    assert {(row["dev"], row["op"], row["pasid"]) for row in summary["rows"]} == {
        ("a", "fault", 5),
        ("a", "fault", None),
        ("other", "fault", None),
    }
    (one,) = in_flight["found"]
    which = {"dev": "0000:75:00.0", "op": "fault", "pasid": 5, "group": 3}
    assert which.items() <= one.items()
    assert summary["unanswered"] == [{**which, "age_ns": 2 * SECOND, "stage": "handle", "address": 0x7F00, "faults": 2}]
    assert "verdict" not in summary
