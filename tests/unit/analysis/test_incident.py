# SPDX-License-Identifier: Apache-2.0
"""The slowest operation, where its time was spent, what else was under way, and since when it was slow."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.outputs import path
from tests.unit.outputs.samples import MS, NOON, SECOND
from wptrace.analysis.incident import BEFORE, DEVICE, OUTSIDE, Incidents
from wptrace.analysis.neighbours import Owner
from wptrace.analysis.overlap import Span
from wptrace.model.kind import Kind
from wptrace.model.report import Beginning, Event, Incident, UnderWay
from wptrace.outputs.text.incident import as_json, lines

US = 1_000
WAITED_FOR = ("operation", "hit")
BEGIN = 10 * SECOND
"""The beginning by the monotonic clock; times of day are later."""
WALL = NOON - BEGIN


def add(
    to: Incidents,
    queued: int,
    device: int,
    waits: int = 0,
    apart: int = 0,
    who: str = "db",
    op: str = "read",
    kind: Kind = path.OPERATION,
    **options: Any,
) -> Event:
    """Add an operation of 4 KiB; its task sleeps for another `apart` ns after it."""
    queued += BEGIN
    completed = queued + waits + device
    stages = {"queue": waits, "device": device, **({"wakeup": apart} if kind is path.OPERATION else {})}
    fields = {"comm": who, "pid": 7, "clock": {"end_ns": completed + apart}}
    event = Event(kind.group("sda", op), WALL + completed + apart, waits + device + apart, stages, fields)
    dev = options.pop("dev", "sda")
    span = Span(dev, op, Owner(f"{who}[7]"), 4096, queued, queued + waits, completed)
    to.add(event, span if options.pop("spanned", True) else None, **options)
    return event


def incidents(**options: Any) -> Incidents:
    return Incidents(WAITED_FOR, path.BLOCK, **options)


def usual(to: Incidents, count: int = 100, since: int = 0, **options: Any) -> int:
    """Add operations of 1 ms one after another, and return the end of the last one."""
    for at in range(count):
        add(to, since + at * MS, 900 * US, 20 * US, **options)
    return since + count * MS


def found(of: Incidents) -> Incident:
    one = of.found()
    assert one is not None
    return one


def test_nothing_is_no_incident() -> None:
    assert incidents().found() is None


def test_the_first_of_those_that_were_slow_without_a_pause() -> None:
    made = incidents()
    end_ns = usual(made)
    # Half an hour earlier there was another one.
    add(made, end_ns, 50 * MS, who="old")
    later = usual(made, since=end_ns + 1800 * SECOND)
    first = add(made, later, 40 * MS, who="backup", op="write")
    add(made, later + 41 * MS, 900 * US)
    add(made, later + 60 * MS, 45 * MS, who="other")
    slow = add(made, later + 110 * MS, 60 * MS)
    # From the end of the one before, the pause is as long as the slowest, and then longer.
    add(made, later + 230 * MS, 30 * MS)
    last = add(made, later + 240 * MS, 50 * MS)
    add(made, later + 350 * MS + 1, 40 * MS)
    usual(made, 20, later + 400 * MS)
    incident = found(made)
    assert (incident.event, incident.dev, incident.part, incident.part_ns) == (slow, "sda", DEVICE, 60 * MS)
    assert incident.usual_ns == 900 * US
    assert incident.moment_ns == NOON + later + 110 * MS
    assert incident.beginning == Beginning(first.start_ns, "write", "backup[7]", 40 * MS, 3, 4, 2, last.end_ns)


def test_who_was_there_and_who_came_later() -> None:
    made = incidents()
    usual(made)
    at = SECOND
    for number in range(3):
        add(made, at - 10 * MS, 5 * MS * number, 15 * MS * number, 0, "other" if number == 2 else "backup", "write")
    add(made, at - 1, 9 * MS, who="far", dev="sdb")
    add(made, at + 5 * MS, MS, who="late")
    slow = add(made, at, 3 * MS, 47 * MS)
    add(made, at + 60 * MS, MS, who="after")
    incident = found(made)
    assert (incident.event, incident.part, incident.part_ns) == (slow, BEFORE, 47 * MS)
    # The backup's first request was over by then; of its second one the device had nothing yet.
    assert incident.under_way == [
        UnderWay("backup[7]", "write", 1, 4096, 0),
        UnderWay("other[7]", "write", 1, 4096, 0),
        UnderWay("late[7]", "read", 0, 0, 0, 1, 4096),
    ]
    assert incident.others is None


def test_the_rest_of_many_owners_are_one() -> None:
    made = incidents()
    usual(made)
    for number in range(25):
        add(made, SECOND - MS, 50 * MS, who=f"task{number}")
    add(made, SECOND, 90 * MS)
    incident = found(made)
    assert (len(incident.under_way), incident.others) == (20, UnderWay("others", "", 5, 5 * 4096, 5))


def test_time_outside_of_the_device() -> None:
    made = incidents()
    usual(made)
    first = add(made, SECOND, 900 * US, apart=30 * MS, who="one")
    slow = add(made, SECOND + 10 * MS, 900 * US, apart=50 * MS)
    incident = found(made)
    assert (incident.event, incident.part, incident.part_ns, incident.usual_ns) == (slow, OUTSIDE, 50 * MS, 0)
    assert incident.moment_ns == slow.start_ns
    assert incident.beginning is not None
    assert (incident.beginning.owner, incident.beginning.begin_ns) == ("one[7]", first.end_ns - 30 * MS)


def test_the_longest_request_of_one_that_made_several() -> None:
    made = incidents()
    usual(made)
    for begin, took in ((0, 5), (6, 80), (90, 5)):
        add(made, SECOND + begin * MS, took * MS, kind=path.REQUEST)
    # A request of another task.
    add(made, SECOND + 1 * MS, 90 * MS, who="other", kind=path.REQUEST)
    event = add(made, SECOND, 90 * MS, 5 * MS, spanned=False)
    incident = found(made)
    assert (incident.event, incident.part, incident.part_ns) == (event, DEVICE, 80 * MS)
    assert incident.moment_ns == NOON + SECOND + 6 * MS
    assert [one.owner for one in incident.under_way] == ["other[7]"]


def test_what_nobody_waits_for_is_second() -> None:
    made = incidents()
    background = add(made, 0, 500 * MS, kind=path.REQUEST)
    assert found(made).event == background
    waited = add(made, SECOND, 2 * MS)
    add(made, 2 * SECOND, 600 * MS, kind=path.REQUEST)
    assert found(made).event == waited


def test_only_what_is_asked_for_is_the_slowest_and_others_were_there() -> None:
    made = incidents()
    add(made, 0, 500 * MS, asked=False, who="other")
    asked = add(made, 100 * MS, 300 * MS)
    incident = found(made)
    assert incident.event == asked
    assert [one.owner for one in incident.under_way] == ["other[7]"]


def test_where_all_are_alike_nothing_began() -> None:
    made = incidents()
    usual(made)
    add(made, SECOND, 3 * MS)
    assert found(made).beginning is None


def only_while_slow(to: Incidents, since: int, many: int = 20, op: str = "write") -> Event:
    """Add others of one kind, some 40 ms each; the last one is the slowest."""
    for at in range(many):
        add(to, since + at * 50 * MS, 40 * MS if at else 44 * MS, who="backup", op=op)
    return add(to, since + many * 50 * MS, 45 * MS, op=op)


def test_a_kind_that_came_only_while_it_was_slow_has_no_baseline() -> None:
    """Its own median would call this usual."""
    made = incidents()
    usual(made, 3000)
    slow = only_while_slow(made, 3 * SECOND)
    incident = found(made)
    assert (incident.event, incident.usual_ns, incident.before_ns) == (slow, 40 * MS, 900 * US)
    # Reads tell nothing about other operations.
    assert incident.beginning is None
    text = "\n".join(lines(incident, dates=False))
    assert (
        "the median of others is 40.0 ms, but all of these came with it; "
        "before, the median of other operations was 900 us" in text
    )
    assert "how long others of its kind usually take is not known" in text
    assert "not unusual" not in text
    assert as_json(incident)["before_ns"] == 900 * US


def test_other_kinds_say_since_when_it_is_slow() -> None:
    made = incidents()
    usual(made, 3000)
    first = add(made, 3 * SECOND - 30 * MS, 41 * MS, who="reader")
    only_while_slow(made, 3 * SECOND)
    for at in range(20):
        add(made, 3 * SECOND + at * 50 * MS, 39 * MS, who="reader")
    incident = found(made)
    assert incident.before_ns == 900 * US
    beginning = incident.beginning
    assert beginning is not None
    assert (beginning.begin_ns, beginning.op, beginning.owner) == (first.start_ns, "read", "reader[7]")
    # The slowest one, and the reads.
    assert beginning.slow == 22


def test_a_kind_that_was_always_as_slow_has_its_own_baseline() -> None:
    made = incidents()
    only_while_slow(made, 0)
    usual(made, 3000, SECOND + 100 * MS)
    only_while_slow(made, 5 * SECOND)
    assert found(made).before_ns == 0


@pytest.mark.parametrize("reads", [0, 7, 900])
def test_there_must_be_enough_before_it(reads: int) -> None:
    """There have to be enough of them, over a longer time."""
    made = incidents()
    usual(made, reads)
    only_while_slow(made, 3 * SECOND if reads == 7 else reads * MS)
    incident = found(made)
    assert (incident.usual_ns, incident.before_ns, incident.beginning) == (40 * MS, 0, None)


def test_a_kind_that_is_unusual_among_its_own_needs_no_other() -> None:
    made = incidents()
    usual(made, 3000)
    for at in range(100):
        add(made, 3 * SECOND + at * 10 * MS, 5 * MS, op="write")
    add(made, 4 * SECOND, 45 * MS, op="write")
    incident = found(made)
    assert (incident.usual_ns, incident.before_ns) == (5 * MS, 0)
    assert incident.beginning is not None


def test_a_kind_that_takes_about_as_long_as_others_did_was_not_slow() -> None:
    made = incidents()
    usual(made, 3000)
    for at in range(20):
        add(made, 3 * SECOND + at * 10 * MS, 3 * MS, op="write")
    assert found(made).before_ns == 0


def test_one_alone_is_compared_with_nothing() -> None:
    made = incidents()
    add(made, 0, 45 * MS)
    incident = found(made)
    assert (incident.usual_ns, incident.beginning) == (0, None)
    assert "there are no others to compare it with" in lines(incident, dates=False)


def test_old_ones_give_way() -> None:
    made = incidents(most=100)
    slow = add(made, 0, 50 * MS)
    usual(made, 250, SECOND)
    incident = found(made)
    assert (incident.event, incident.left) == (slow, 200)
    assert incident.part_ns == 50 * MS
    assert incident.under_way == []
