# SPDX-License-Identifier: Apache-2.0
"""Definitions as kinds of the model: stages, labels and their names."""

from __future__ import annotations

import pytest

from wptrace.engine.definition import definition as d
from wptrace.engine.definition import shipped
from wptrace.engine.definition.definition import Definition, PointSpec
from wptrace.engine.definition.flow import DefinedFlow, Options
from wptrace.engine.definition.kinds import Names, kind_of
from wptrace.engine.definition.resolved import Label, Point, Resolution
from wptrace.errors import UsageError
from wptrace.model.kind import CPU, TOTAL, names


def point(name: str, role: str, **more: object) -> PointSpec:
    return PointSpec(name, name[0].upper(), (), (), role, **more)  # type: ignore[arg-type]


POINTS = (
    point("begun", d.BEGIN, stage="waits", advice="look there"),
    point("seen", d.PASS, stage="works", optional=True),
    point("done", d.END),
    point("gone", d.DROP),
)
DISK, CORE = Label("disk", d.TEXT, 2), Label("core", d.CPU, 1)


def resolution(*points: PointSpec) -> Resolution:
    made = Definition("made", points or POINTS, noun="thing", nouns="things")
    return Resolution(made, "6.12", tuple(Point(one, ()) for one in made.points), (DISK, CORE))


def test_a_stage_for_each_point_that_is_no_end() -> None:
    kind = kind_of(resolution().definition, (DISK, CORE))
    assert [(stage.name, stage.start.name, stage.end.name, stage.rare) for stage in kind.stages] == [
        ("waits", "begun", "seen", False),
        ("works", "seen", "done", True),
    ]
    assert [stage.advice for stage in kind.stages] == ["look there", "what happens after seen"]
    told = kind_of(resolution(point("begun", d.BEGIN, meaning="it waits"), POINTS[2]).definition, ())
    assert told.stages[0].advice == ""
    assert (kind.noun.of(2), kind.sized) == ("2 things", False)
    assert [(label.name, label.type) for label in kind.labels] == [("disk", d.TEXT), ("core", CPU)]
    assert kind.group("sda", 3).fields == {"labels": {"disk": "sda", "core": 3}}
    assert kind.group("sda", 3).shown == "sda cpu3"


def test_without_labels_there_is_one_row() -> None:
    kind = kind_of(resolution().definition, ())
    assert kind.group().everywhere == kind.group()
    assert kind.group().fields == {"labels": {}}


def test_only_the_labels_that_are_asked_for() -> None:
    flow = DefinedFlow(resolution(), Options(by=("core",)))
    assert [label.name for label in flow.kind.labels] == ["core"]
    assert (flow._first, flow._words) == ({"core": 0}, 1)
    assert [*names(flow.kinds), TOTAL] == ["waits", "works", "total"]
    with pytest.raises(UsageError, match="made has no label nope: it has disk, core"):
        DefinedFlow(resolution(), Options(by=("nope",)))


@pytest.mark.parametrize("options", [Options(slots=1000), Options(slots=8), Options(slots=1 << 21), Options(rows=0)])
def test_sizes_that_are_not_possible(options: Options) -> None:
    with pytest.raises(UsageError):
        DefinedFlow(resolution(), options)


@pytest.mark.parametrize(
    ("label", "words", "name"),
    [
        (DISK, (int.from_bytes(b"nvme0n1\0", "little"), 0), "nvme0n1"),
        (DISK, (int.from_bytes(b"a\xff\0\0\0\0\0\0", "little"), 0), "a\udcff"),
        (Label("n", d.NUMBER, 1), ((1 << 64) - 5,), -5),
        (Label("n", d.HEX, 1), (255,), "0xff"),
        (Label("n", d.DEVICE, 1), (8 << 20 | 17,), "8:17"),
        (Label("n", d.ADDRESS, 1), (0x0100007F,), "127.0.0.1"),
        (Label("n", d.ENUM, 1, {3: "three"}), (3,), "three"),
        (Label("n", d.ENUM, 1, {3: "three"}), (4,), "4"),
        (Label("n", d.ENUM, 1, {3: "three"}), (1 << 32 | 3,), str(1 << 32 | 3)),
        (Label("n", d.ENUM, 1, {3: "three"}), ((1 << 64) - 5,), "-5"),
        (Label("n", d.ENUM, 1, {(1 << 64) - 5: "minus"}), ((1 << 64) - 5,), "minus"),
        (Label("n", d.ENUM, 1, {(1 << 32) - 5: "large"}), ((1 << 64) - 5,), "large"),
        (CORE, (7,), 7),
    ],
)
def test_what_words_are_called(label: Label, words: tuple[int, ...], name: object) -> None:
    assert Names().of(label, words) == name


@pytest.mark.parametrize(
    ("flow", "counters"),
    [
        ("netrx", {"bytes": "bytes", "merged": "", "dropped": "", "consumed": "", "freed": "", "untimed": ""}),
        ("reclaim", {"pages": "pages", "untimed": ""}),
    ],
)
def test_counters_have_the_names_and_units_of_the_definition(flow: str, counters: dict[str, str]) -> None:
    found = kind_of(shipped.find(flow), ()).counters
    assert {one.name: one.unit for one in found} == counters
    assert all(one.description for one in found)
