# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest

from wptrace.model import kind
from wptrace.model.kind import (
    ALL,
    CGROUP,
    CPU,
    DEVICE,
    PASID,
    CounterField,
    Kind,
    Label,
    Metric,
    Noun,
    Point,
    Stage,
    Task,
    names,
)

Q, G, D, C = Point("Q", "queued"), Point("G", "got a request"), Point("D", "issued"), Point("C", "completed")
THROTTLE = Stage("throttle", Q, G, "waits for a tag", "no free tag")
QUEUE = Stage("queue", G, D, "waits in the scheduler", "scheduler or plug")
DEVICE_STAGE = Stage("device", D, C, "the device works", "a slow disk")
HARDIRQ = Metric("hardirq", "interrupts ran", "an interrupt took the CPU", interference=True)
SLEEP = Metric("sleep", "it sleeps", "nothing to do", part=False)
NOUN = Noun("request")
LABELS = (Label("dev", DEVICE), Label("op", kind.OPERATION))
REQUEST = Kind("request", NOUN, LABELS, [THROTTLE, QUEUE, DEVICE_STAGE], [HARDIRQ, SLEEP])


def test_order_and_lookup() -> None:
    assert REQUEST.measured == (THROTTLE, QUEUE, DEVICE_STAGE, HARDIRQ, SLEEP)
    assert names([REQUEST]) == ["throttle", "queue", "device", "hardirq", "sleep"]
    assert names([Kind("bio", NOUN, LABELS, [QUEUE]), REQUEST])[:2] == ["queue", "throttle"]
    assert REQUEST["queue"] is QUEUE
    assert "queue" in REQUEST
    assert "nonsense" not in REQUEST
    with pytest.raises(KeyError):
        REQUEST["nonsense"]


def test_the_total_goes_from_the_first_to_the_last_point_of_the_stages() -> None:
    assert REQUEST.total is REQUEST["total"]
    assert (REQUEST.total.start, REQUEST.total.end) == (Q, C)
    assert REQUEST.total.description == "the whole, from queued to completed"
    assert REQUEST.unattributed is REQUEST["unattributed"]
    assert REQUEST.rows == (*REQUEST.measured, REQUEST.unattributed, REQUEST.total)
    assert Kind("hit", NOUN, LABELS).total.description == "the whole"


@pytest.mark.parametrize("name", ["queue", "total", "unattributed"])
def test_names_are_unique(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Kind("request", NOUN, LABELS, [QUEUE, DEVICE_STAGE._replace(name=name)])
    with pytest.raises(ValueError, match=name):
        Kind("request", NOUN, LABELS, [QUEUE], [HARDIRQ._replace(name=name)])


def test_interference_lies_inside_and_what_lies_outside_does_not() -> None:
    assert REQUEST.interference == (HARDIRQ,)


def test_kinds_that_say_the_same_are_one() -> None:
    """Equal kinds of a capture and of a flow are the same object, whichever comes first."""
    again = Kind("request", NOUN, list(LABELS), [THROTTLE, QUEUE, DEVICE_STAGE], [HARDIRQ, SLEEP])
    assert again is REQUEST


def test_a_kind_has_the_counters_that_any_of_its_like_declares() -> None:
    """A kind in a capture of an earlier version has none."""
    made = Kind("write", NOUN, LABELS, sized=True)
    assert [one.name for one in made.counters] == ["bytes"]
    merged = CounterField("merged", "another one went with it")
    assert Kind("write", NOUN, LABELS, sized=True, counters=[merged]) is made
    assert Kind("write", NOUN, LABELS, sized=True) is made
    assert [one.name for one in made.counters] == ["bytes", "merged"]


def test_kinds_with_the_same_name_are_not_the_same() -> None:
    other = Kind("request", NOUN, LABELS, [QUEUE, DEVICE_STAGE], [HARDIRQ, SLEEP])
    assert other.group("sda", "read") != REQUEST.group("sda", "read") == REQUEST.group("sda", "read")


def test_a_group_has_a_value_for_each_label() -> None:
    with pytest.raises(ValueError, match="a request has 2 labels, not 1"):
        REQUEST.group("sda")
    group = REQUEST.group("sda", "read")
    assert (group.label("dev"), group.label("op"), group.shown) == ("sda", "read", "sda read")
    assert group.everywhere == group.all_of("dev") == REQUEST.group(ALL, "read")
    assert group.all_of("op", "cpu") == REQUEST.group("sda", ALL)
    assert (group.everywhere.shown, group.everywhere.fields) == ("read", {"dev": "", "op": "read"})


def test_constants_are_fields_of_every_group() -> None:
    turn = Kind("request", Noun("turn"), [Label("cpu", CPU, "dev")], [QUEUE], constants={"op": "turn"})
    assert turn.group(3).fields == {"dev": "cpu3", "cpu": 3, "op": "turn"}
    assert turn.group(ALL).fields == {"dev": "", "op": "turn"}


def test_numbers_that_found_no_row_are_no_text() -> None:
    """A JSON key has a value of one type or null."""
    labels = [Label("cpu", CPU), Label("nr", kind.NUMBER), Label("rw", "enum")]
    group = Kind("object", NOUN, labels, [QUEUE], nested=True).group("(rest)", "(rest)", "(rest)")
    assert group.fields == {"labels": {"cpu": None, "nr": None, "rw": "(rest)"}}
    assert group.shown == "(rest) (rest) (rest)"


def test_a_number_has_the_name_of_its_label_where_a_group_is_named() -> None:
    """`0 waits` would be none."""
    labels = [Label("op", kind.NUMBER), Label("cpu", CPU), Label("task", "text")]
    waits = Kind("object", Noun("wait"), labels, [QUEUE], nested=True)
    assert waits.group(0, 3, "fio").shown == "op 0 cpu3 fio"
    assert waits.group(ALL, 3, "fio").shown == "cpu3 fio"
    assert labels[0].shown(0) == "0"


def test_a_group_without_a_text_is_not_named_like_all() -> None:
    execs = Kind("object", Noun("process", "processes"), [Label("task", kind.TEXT)], [QUEUE], nested=True)
    assert execs.group("").shown == "no task"
    assert execs.group(ALL).shown == ""
    assert execs.labels[0].shown("") == ""


@pytest.mark.parametrize(
    ("label", "value", "shown", "fields"),
    [
        (Label("cpu", CPU, "dev"), 12, "cpu12", {"dev": "cpu12", "cpu": 12}),
        (Label("cpu", CPU, "dev"), "others", "others", {"dev": "others", "cpu": None}),
        (
            Label("task", kind.TASK, "dev"),
            Task("fio", 7, 9),
            "fio[7/9]",
            {"dev": "fio[7/9]", "task": {"comm": "fio", "pid": 7, "tid": 9}},
        ),
        (
            Label("task", kind.TASK, "dev"),
            Task("fio", 7),
            "fio[7]",
            {"dev": "fio[7]", "task": {"comm": "fio", "pid": 7, "tid": 0}},
        ),
        (Label("task", kind.TASK, "dev"), "others", "others", {"dev": "others", "task": None}),
        (Label("cgroup", CGROUP, "dev"), "/a", "/a", {"dev": "/a", "cgroup": "/a"}),
        (Label("pasid", PASID), 5, "pasid 5", {"pasid": 5}),
        (Label("pasid", PASID), None, "pasid -", {"pasid": None}),
        (Label("pasid", PASID), "other", "other", {"pasid": None}),
        (Label("dev", DEVICE), ALL, "", {"dev": ""}),
    ],
)
def test_a_label_for_people_and_for_programs(label: Label, value: Any, shown: str, fields: dict[str, Any]) -> None:
    assert label.shown(value) == shown
    assert label.fields(value) == fields


def test_nouns_are_counted() -> None:
    assert [NOUN.of(count) for count in (0, 1, 2000)] == ["0 requests", "1 request", "2,000 requests"]
    assert Noun("branch", "branches").of(2) == "2 branches"
