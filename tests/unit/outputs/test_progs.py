# SPDX-License-Identifier: Apache-2.0
"""BPF programs and maps as a table, on a screen and as JSON."""

from __future__ import annotations

import io
import json

import pytest

from tests.unit.outputs.samples import HOSTILE, NOON, SECOND
from wptrace.model.inventory import Activity, Holder, Map, Program, Usage
from wptrace.outputs.progs import ProgsJson, ProgsOutput, fitting, lines

MINE, THEIRS = Holder(12, "wptrace"), Holder(1, "systemd")


def usage(
    number: int = 1, name: str = "switch_tp_btf", runs: int = 1000, own: bool = True, attached: tuple[str, ...] = ("x",)
) -> Usage:
    holders = (MINE,) if own else (THEIRS,)
    program = Program(number, "tracing", name, attached, 4096, (7, 8), holders, own, 5 * runs, 5 * runs * 200)
    return Usage(program, runs, runs * 200, runs * 200 / SECOND)


def stored(number: int = 7, name: str = "cells", own: bool = True) -> Map:
    return Map(number, "percpu_array", name, 4, 5312, 100, 1 << 20, (MINE,) if own else (THEIRS,), own)


def activity(*programs: Usage, maps: tuple[Map, ...] = (stored(),)) -> Activity:
    return Activity(NOON, SECOND, programs, maps)


def test_a_table() -> None:
    shown = activity(usage(attached=("tp_btf/sched_switch",)), usage(2, "sd_devices", 0, own=False, attached=()))
    assert list(lines(shown, 200, dates=False)) == [
        "22:13:20  2 programs and 1 map with 1.01 MiB, 0.02% of a CPU",
        "  of wptrace (*): 1 program and 1 map with 1 MiB, 0.02% of a CPU",
        "",
        "      id type           program              attached to                         runs     mean     CPU"
        "   memory  held by",
        "*      1 tracing        switch_tp_btf        tp_btf/sched_switch                1 k/s   200 ns   0.02%"
        "    4 KiB  wptrace[12]",
        "       2 tracing        sd_devices           -                                   0 /s        -   0.00%"
        "    4 KiB  systemd[1]",
        "",
        "      id type           map                    entries   key   value   memory  held by",
        "*      7 percpu_array   cells                      100     4    5312    1 MiB  wptrace[12]",
    ]


def test_a_pipe_gets_whole_lines() -> None:
    stream = io.StringIO()
    holders = tuple(Holder(number, "a-process") for number in range(40))
    one = usage()
    output = ProgsOutput(stream, live=True, dates=False)
    output.show(activity(one._replace(program=one.program._replace(holders=holders))))
    output.close()
    assert "a-process[39]" in stream.getvalue()


def test_several_places_are_counted() -> None:
    (line,) = [line for line in lines(activity(usage(attached=("a", "b", "c"))), 200, False) if "switch_tp" in line]
    assert "a and 2 more" in line


def test_nothing_loaded() -> None:
    assert list(lines(activity(maps=()), 80, dates=False)) == [
        "22:13:20  0 programs and 0 maps with 0 B, 0.00% of a CPU"
    ]


@pytest.mark.parametrize(("programs", "maps"), [(0, 0), (1, 1), (50, 50), (50, 1), (1, 50), (3, 0)])
@pytest.mark.parametrize("height", [6, 12, 24, 80])
def test_a_screen_holds_what_fits(programs: int, maps: int, height: int) -> None:
    shown = activity(
        *(usage(number) for number in range(programs)), maps=tuple(stored(number) for number in range(maps))
    )
    found = fitting(shown, 60, height, dates=False)
    assert len(found) <= max(height, 8)
    assert max(map(len, found)) <= 60
    listed = sum("switch_tp" in line for line in found), sum("cells" in line for line in found)
    if programs + maps + 6 <= height:
        assert listed == (programs, maps)
    elif programs and maps:
        assert min(listed) > 0
    # The total includes programs that are not listed.
    assert found[0].split()[1] == str(programs)


def test_json_says_the_same() -> None:
    stream = io.StringIO()
    output = ProgsJson(stream)
    output.show(activity(usage(attached=("tp_btf/x",))))
    output.close()
    line = json.loads(stream.getvalue())
    assert line["kind"] == "programs"
    assert (line["ts_ns"], line["duration_ns"]) == (NOON, SECOND)
    assert line["programs"] == [
        {
            "id": 1,
            "type": "tracing",
            "name": "switch_tp_btf",
            "attached": ["tp_btf/x"],
            "runs": 1000,
            "run_ns": 200_000,
            "mean_ns": 200,
            "share": 0.0002,
            "memory_bytes": 4096,
            "maps": [7, 8],
            "held_by": [{"pid": 12, "comm": "wptrace"}],
            "own": True,
        }
    ]
    assert [one["memory_bytes"] for one in line["maps"]] == [1 << 20]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_cannot_move_the_cursor(name: str) -> None:
    one = usage(name=name, attached=(name,))
    held = one._replace(program=one.program._replace(holders=(Holder(1, name),)))
    for line in lines(activity(held, maps=(stored(name=name),)), 300, dates=False):
        assert line.isprintable()
