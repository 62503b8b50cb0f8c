# SPDX-License-Identifier: Apache-2.0
"""Other guests that had the host's device while requests of this one waited for it."""

from __future__ import annotations

import pytest

from tests.unit.analysis.test_verdict import READ, case, cell
from wptrace.analysis import verdict
from wptrace.flows.io.guests.joined import OtherGuests
from wptrace.flows.io.rules import NEIGHBOUR_WAITS
from wptrace.model.report import Event


def at(number: int, **stages: int) -> Event:
    return Event(READ, 0, 900, stages, {"clock": {"end_ns": 1000 * (number + 1)}})


@pytest.mark.parametrize(("waits", "is_named"), [(NEIGHBOUR_WAITS, True), (NEIGHBOUR_WAITS - 1, False)])
def test_few_waits_accuse_nobody(waits: int, is_named: bool) -> None:
    found = OtherGuests()
    for number in range(waits):
        found.other("other 9", at(number, device=900))
        found.wait("vda", 900, [at(number, throttle=800, device=100)])
    found.add_up()
    judged = verdict.judge(case({READ: cell(waits, device=900)}), found.rules)
    assert [one.who for one in judged.findings if one.rule == "neighbour"] == ["other 9"] * is_named
