# SPDX-License-Identifier: Apache-2.0
"""Periods with interrupts off, as text, as JSON and in the log."""

from __future__ import annotations

import argparse
import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.outputs import samples
from tests.unit.outputs.samples import HOSTILE, MS, NOON, PLAIN, SECOND, distribution, play, reported, written
from wptrace.analysis.offenders import Offenders
from wptrace.cli.irqoff import _output
from wptrace.flows.irqoff import EVENT, PERIOD
from wptrace.model.book import RING_FULL, Book
from wptrace.model.report import Event, InFlight, Report, Start
from wptrace.outputs.logfile import LogFile
from wptrace.outputs.registry import Wanted
from wptrace.outputs.text.periods import PeriodsView

START = Start("irqoff", "", "6.12", {"min_ns": 10 * MS}, [], (PERIOD,), ["software"])
STACK = ["_raw_spin_unlock_irqrestore+0x19", "hold+0x20 [driver]", "ret_from_fork+0x10"]


def period(length: int = 20 * MS, comm: str = "dd", stack: list[str] = STACK, cpu: int = 1) -> Event:
    fields = {
        "start_ns": NOON - length,
        "stolen_ns": 0,
        "error_ns": MS // 2,
        "sampled": "end",
        "cpu": cpu,
        "comm": comm,
        "pid": 7,
        "tid": 8,
        "stack": stack,
    }
    return Event(EVENT.group(cpu), NOON, length, {"irqoff": length}, fields)


def report(lengths: dict[int, list[int]], kind: str = "summary", open_now: int = 0, ring_full: int = 0) -> Report:
    groups = {}
    for cpu, values in lengths.items():
        found = distribution(values)
        groups[PERIOD.group(cpu)] = {"irqoff": found, "total": found}
    count = sum(map(len, lengths.values()))
    return samples.report(groups, None, kind, Book.read(count + open_now, count, {}, {RING_FULL: ring_full}))


def shown(*results: Any, wanted: Wanted = PLAIN) -> list[str]:
    return written(PeriodsView(wanted), START, *results)


def logged(log: LogFile, *events: Event, json: bool = False) -> list[str]:
    """Return a report with a log, whose losses are counted as the engine does."""
    stream, found = io.StringIO(), report({1: [20 * MS] * len(events)})
    output = _output(argparse.Namespace(json=json, timestamps=False, interval=None), stream, log)
    output.start(START)
    for one in events:
        output.event(one)
    for cause, count in output.losses().items():
        found.book.note(cause, count)
    play(output, found)
    return stream.getvalue().splitlines()


def test_the_columns_keep_their_places_with_dates() -> None:
    lines = shown(period(), wanted=Wanted(dates=True))
    assert lines[4] == "TIME                        CPU COMM                 TID   LAT(us)"
    assert lines[5] == "2023-11-14 22:13:19.980000    1 dd                     8     20000"


@pytest.mark.parametrize("name", HOSTILE)
def test_names_move_no_cursor(name: str) -> None:
    lines = shown(period(comm=name, stack=[name]), report({1: [20 * MS]}))
    assert all(line.isprintable() for line in lines)


def test_a_quiet_time() -> None:
    assert shown(report({}))[-1] == "22:13:20  0 periods with interrupts off in 1.00 s, 0 in flight"


def test_offenders_are_reported_in_their_order() -> None:
    found = Offenders(known=1)
    for length in (20 * MS, 30 * MS):
        found.add(("dd", "hold"), length)
    found.add(("cp", "hold"), 90 * MS)
    lists = {"offenders": [one.as_dict("comm", "function") for one in found.worst(9)]}
    lines = shown(report({1: [20 * MS]})._replace(lists=lists))
    assert lines[lines.index("worst offenders:") + 1 :] == [
        "        1 x  90.0 ms in all,  90.0 ms at most  others",
        "        2 x  50.0 ms in all,  30.0 ms at most  hold (dd)",
    ]


def test_what_has_not_ended_is_reported() -> None:
    unknown = InFlight(PERIOD.group(3), 2 * SECOND, "irqoff", {"cpu": 3})
    fields = {"cpu": 1, "comm": "dd", "pid": 7, "tid": 7, "stack": ["f+0x1", "g+0x2"]}
    known = unknown._replace(group=PERIOD.group(1), fields=fields)
    assert shown([unknown, known])[5:] == [
        "interrupts off at 22:13:20:",
        "  cpu3 for 2.00 s",
        "  cpu1 for 2.00 s: dd in f+0x1 < g+0x2",
    ]
    assert shown([])[5:] == ["interrupts off at 22:13:20: on no CPU"]


def test_an_interval_that_stands_for_the_whole_time_is_not_reported() -> None:
    events = (report({1: [20 * MS]}, kind="interval"), report({1: [20 * MS]}))
    wanted = Wanted(intervals=False)
    assert sum("1 period with" in line for line in shown(*events)) == 2
    assert sum("1 period with" in line for line in shown(*events, wanted=wanted)) == 1
    assert [line["kind"] for line in reported(*events, wanted=wanted)] == ["summary"]


def test_json_has_the_same() -> None:
    offenders = [{"comm": "dd", "function": "hold", "count": 1, "sum_ns": 20 * MS, "max_ns": 20 * MS}]
    line, summary = reported(period(), report({1: [20 * MS]})._replace(lists={"offenders": offenders}))
    assert (line["kind"], line["dev"], line["op"], line["cpu"]) == ("irqoff", "cpu1", "irqoff", 1)
    assert (line["total_ns"], line["start_ns"], line["ts_ns"], line["stack"]) == (20 * MS, NOON - 20 * MS, NOON, STACK)
    assert {(row["kind"], row["dev"], row["op"]) for row in summary["rows"]} == {("request", "cpu1", "irqoff")}
    assert summary["offenders"] == offenders
    assert "verdict" not in summary


def test_the_log_has_each_period_with_its_day(tmp_path: Path) -> None:
    logged(LogFile(tmp_path / "text"), period(), period(comm="cp"))
    lines = (tmp_path / "text").read_text().splitlines()
    assert [line[:26] for line in lines if not line.startswith(" ")] == ["2023-11-14 22:13:19.980000"] * 2
    assert len(lines) == 2 * 4
    printed = logged(LogFile(tmp_path / "json"), period(), json=True)
    assert (tmp_path / "json").read_text().splitlines() == printed[1:2]
    assert json.loads(printed[1])["kind"] == "irqoff"


def test_what_the_log_lost_is_noted() -> None:
    lines = logged(LogFile(Path("/dev/full")), period(), period())
    assert "noted: 2 x log_lost: a period could not be written to the log: No space left on device" in lines
    lines = logged(LogFile(Path("/dev/full")), period(), period(), json=True)
    assert json.loads(lines[-1])["loss"]["log_lost"] == 2


def test_that_the_log_could_not_be_rotated_is_noted(tmp_path: Path) -> None:
    (tmp_path / "log.1").mkdir()
    lines = logged(LogFile(tmp_path / "log", largest=10, kept=1), period(), period())
    cause = "log_unrotated: the log could not be rotated and grows beyond its size: Is a directory"
    assert f"noted: 1 x {cause}" in lines
