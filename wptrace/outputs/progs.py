# SPDX-License-Identifier: Apache-2.0
"""Loaded BPF programs: a table for a terminal or a pipe, or JSON."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, TextIO

from wptrace import __version__
from wptrace.kernel.clock import clock_seconds
from wptrace.model import units
from wptrace.model.inventory import Activity, Holder, Map, Usage
from wptrace.model.kind import Noun
from wptrace.outputs.json_line import encoded
from wptrace.outputs.text.live import Live, can_be_live, size
from wptrace.outputs.text.words import head, padded, printable

_PROGRAM, _MAP = Noun("program"), Noun("map")
_NAME = 20
_TYPE = 14
_WHERE = 30
OWN = "*"


class ProgsOutput:
    def __init__(self, stream: TextIO, live: bool, dates: bool) -> None:
        self._stream = stream
        self._dates = dates
        self._activity: Activity | None = None
        self._live = Live(stream, self._screen) if live and can_be_live(stream) else None
        if self._live is not None:
            self._live.start()

    def show(self, activity: Activity) -> None:
        self._activity = activity
        if self._live is not None:
            self._live.draw()
            return
        self._stream.write("\n".join((*lines(activity, self._width, self._dates), "")) + "\n")
        self._stream.flush()

    @property
    def _width(self) -> int:
        """A pipe's reader wants lines whole."""
        return size()[0] if self._stream.isatty() else 1 << 16

    def _screen(self) -> list[str]:
        if self._activity is None:
            return ["counting..."]
        columns, height = size()
        return fitting(self._activity, columns, max(height - 1, 6), self._dates)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
            # That screen is gone with all that was on it.
            self._stream.write("\n".join((*self._screen(), "")))


class ProgsJson:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, activity: Activity) -> None:
        self._stream.write(encoded(as_json(activity)) + "\n")
        self._stream.flush()

    def close(self) -> None:
        self._stream.flush()


def lines(activity: Activity, width: int, dates: bool) -> Iterator[str]:
    yield from (head(line, width) for line in _header(activity, dates))
    yield from _tables(activity, width)


def fitting(activity: Activity, width: int, height: int, dates: bool) -> list[str]:
    """The busiest programs and the largest maps, as many as a screen holds; of each there is one at least."""
    header = [head(line, width) for line in _header(activity, dates)]
    titles = 2 * (bool(activity.programs) + bool(activity.maps))
    room = max(height - len(header) - titles, 2)
    maps = min(len(activity.maps), max(room - len(activity.programs), room // 3, 1))
    shown = activity._replace(programs=activity.programs[: room - maps], maps=activity.maps[:maps])
    return [*header, *_tables(shown, width)]


def _tables(activity: Activity, width: int) -> Iterator[str]:
    if activity.programs:
        yield from ["", *_programs(activity, width)]
    if activity.maps:
        yield from ["", *_maps(activity, width)]


def _header(activity: Activity, dates: bool) -> Iterator[str]:
    time = clock_seconds(activity.ts_ns, dates)
    own = sum(usage.program.own for usage in activity.programs)
    yield (
        f"{time}  {_PROGRAM.of(len(activity.programs))} and {_MAP.of(len(activity.maps))} with"
        f" {units.size(activity.memory())}, {activity.share():.2%} of a CPU"
    )
    if own:
        yield (
            f"  of wptrace ({OWN}): {_PROGRAM.of(own)} and {_MAP.of(sum(one.own for one in activity.maps))}"
            f" with {units.size(activity.memory(own=True))}, {activity.share(own=True):.2%} of a CPU"
        )


def _programs(activity: Activity, width: int) -> Iterator[str]:
    title = f"  {'id':>6} {'type':<{_TYPE}} {'program':<{_NAME}} {'attached to':<{_WHERE}}"
    yield head(f"{title} {'runs':>9} {'mean':>8} {'CPU':>7} {'memory':>8}  held by", width)
    seconds = activity.duration_ns / 1e9
    for usage in activity.programs:
        program, rate = usage.program, units.rate(usage.runs / seconds) if seconds else ""
        line = f"{_mark(program.own)} {program.id:>6} {_cell(program.type, _TYPE)} {_cell(program.name, _NAME)}"
        line += f" {_cell(_where(program.attached), _WHERE)} {rate:>9}"
        mean = units.duration(usage.mean_ns) if usage.runs else "-"
        line += f" {mean:>8} {usage.share:>7.2%} {units.size(program.memory):>8}  {_holders(program.holders)}"
        yield head(line.rstrip(), width)


def _maps(activity: Activity, width: int) -> Iterator[str]:
    title = f"  {'id':>6} {'type':<{_TYPE}} {'map':<{_NAME}} {'entries':>9} {'key':>5} {'value':>7} {'memory':>8}"
    yield head(f"{title}  held by", width)
    for one in activity.maps:
        line = f"{_mark(one.own)} {one.id:>6} {_cell(one.type, _TYPE)} {_cell(one.name, _NAME)}"
        line += f" {one.max_entries:>9} {one.key_size:>5} {one.value_size:>7} {units.size(one.memory):>8}"
        yield head(f"{line}  {_holders(one.holders)}".rstrip(), width)


def _mark(own: bool) -> str:
    return OWN if own else " "


def _cell(text: str, width: int) -> str:
    return padded(head(printable(text), width), width)


def _where(places: tuple[str, ...]) -> str:
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    return places[0] + more if places else "-"


def _holders(holders: tuple[Holder, ...]) -> str:
    return ", ".join(f"{printable(holder.comm)}[{holder.pid}]" for holder in holders)


def as_json(activity: Activity) -> dict[str, Any]:
    return {
        "kind": "programs",
        "version": __version__,
        "kernel": os.uname().release,
        "ts_ns": activity.ts_ns,
        "duration_ns": activity.duration_ns,
        "programs": [_program(usage) for usage in activity.programs],
        "maps": [_map(one) for one in activity.maps],
    }


def _program(usage: Usage) -> dict[str, Any]:
    program = usage.program
    return {
        "id": program.id,
        "type": program.type,
        "name": program.name,
        "attached": list(program.attached),
        "runs": usage.runs,
        "run_ns": usage.run_ns,
        "mean_ns": round(usage.mean_ns),
        "share": round(usage.share, 6),
        "memory_bytes": program.memory,
        "maps": list(program.maps),
        "held_by": [holder._asdict() for holder in program.holders],
        "own": program.own,
    }


def _map(one: Map) -> dict[str, Any]:
    return {
        "id": one.id,
        "type": one.type,
        "name": one.name,
        "key_bytes": one.key_size,
        "value_bytes": one.value_size,
        "max_entries": one.max_entries,
        "memory_bytes": one.memory,
        "held_by": [holder._asdict() for holder in one.holders],
        "own": one.own,
    }
