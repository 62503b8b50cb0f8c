# SPDX-License-Identifier: Apache-2.0
"""docs/guests.md has the stages and causes of `wptrace join`."""

from __future__ import annotations

from tests.unit.docs.pages import section, tables, text
from wptrace.correlation.clocks import WANDER_PPM
from wptrace.flows.io.guests import join
from wptrace.flows.io.guests.joined import CAUSES, JOINED
from wptrace.flows.io.kinds import STAGES
from wptrace.flows.io.rules import NEIGHBOUR_HAD, NEIGHBOUR_SHARE, NEIGHBOUR_WAITS


def test_the_causes_are_those_of_the_code() -> None:
    (rows,) = tables(section("guests.md", "## What belongs together"))
    assert rows == [[f"`{cause.name}`", cause.description] for cause in CAUSES] or rows == [
        [cause.name, cause.description] for cause in CAUSES
    ]


def test_the_stages_between_both_are_those_of_the_code() -> None:
    (rows,) = tables(section("guests.md", "## Stages"))
    documented = {name for row in rows for name in row[0].replace("`", "").replace(", ...", "").split(", ")}
    own = {stage.name for stage in JOINED.stages} - (STAGES.keys() - {"device"})
    assert documented <= own
    assert {name for name in own if not name.startswith("host_")} <= documented


def test_the_shares_of_other_guests_are_those_of_the_rule() -> None:
    assert f"a finding from {NEIGHBOUR_SHARE * 100:g} % and {NEIGHBOUR_HAD * 100:g} % on" in text("guests.md")
    assert f"from {NEIGHBOUR_WAITS} waits on" in text("guests.md")


def test_what_waits_is_bounded_as_the_page_says() -> None:
    assert f"at most {join.MOST:,} of a disk or an image, {join.MOST_OF_ALL:,} of all disks" in text("guests.md")


def test_the_drift_is_that_of_the_code() -> None:
    assert f"drift apart by {WANDER_PPM} ppm" in text("guests.md")
