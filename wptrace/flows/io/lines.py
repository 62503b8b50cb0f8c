# SPDX-License-Identifier: Apache-2.0
"""Reads what `wptrace io` and `wptrace host` write with `--each --json`. It may be anybody's: nothing is trusted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from wptrace.errors import WptraceError
from wptrace.flows.io.kinds import HIT, OPERATION, REQUEST
from wptrace.model.kind import TOTAL
from wptrace.model.report import Event

_KINDS = {kind.name: kind for kind in (OPERATION, HIT, REQUEST)}
_LONGEST = 1 << 20
"""Of a line, but for that of the summary."""
_MOST = 1 << 22
"""Events are held in memory."""
_BEYOND = 1 << 64
_SUFFIX = "_ns"
# What is taken of an event, and of which type it is; the rest is left out.
_NUMBERS = ("pid", "tid", "inode", "length", "requests", "readahead", "sector", "bytes", "error")
_WORDS = ("comm", "cgroup", "path", "rwbs", "maj_min")
_CHAIN = ("submit", "issue", "irq", "complete", "wake")


class Told(NamedTuple):
    """All of a file."""

    path: Path
    kernel: str
    filters: Mapping[str, Any]
    events: list[Event]
    whole: bool
    """It has the line that a trace ends with."""


class _WrongError(Exception):
    """A line makes no sense."""


def read(path: Path) -> Told:
    try:
        with path.open("rb") as file:
            return _read(path, file)
    except OSError as error:
        raise WptraceError(f"{path} cannot be read: {error.strerror or error}") from None


def _read(path: Path, file: BinaryIO) -> Told:
    events: list[Event] = []
    start: dict[str, Any] | None = None
    whole = False
    number = 0
    while data := file.readline(_LONGEST):
        number += 1
        if not data.endswith(b"\n"):
            if len(data) < _LONGEST:
                break  # its trace was cut off
            if not whole and start is not None and _skipped(file):
                whole = True
                continue
        try:
            line = _line(data)
            if start is None:
                start = _start(line)
            elif line.get("kind") in _KINDS:
                events.append(_event(line))
            whole = whole or line.get("kind") == "summary"
        except _WrongError as wrong:
            raise WptraceError(
                f"{path} is not what wptrace writes with --each --json: line {number:,} {wrong}",
                hint="in the guest: wptrace io --each --json -o GUEST, on the host: wptrace host --each --json -o HOST",
            ) from None
        if len(events) > _MOST:
            raise WptraceError(f"{path} has more than {_MOST:,} operations: join a shorter time")
    if start is None:
        raise WptraceError(f"{path} is empty")
    return Told(path, start["kernel"], start["filters"], events, whole)


def _skipped(file: BinaryIO) -> bool:
    """A summary has a row for all there is, and may be long; nothing of it is needed."""
    while data := file.readline(_LONGEST):
        if data.endswith(b"\n"):
            return True
    return False


def _line(data: bytes) -> dict[str, Any]:
    try:
        line = json.loads(data)
    except (ValueError, RecursionError):
        raise _WrongError("is no JSON") from None
    if not isinstance(line, dict):
        raise _WrongError("is no object")
    return line


def _start(line: Mapping[str, Any]) -> dict[str, Any]:
    kernel, filters = line.get("kernel"), line.get("filters")
    if line.get("kind") != "start" or not isinstance(kernel, str) or not isinstance(filters, dict):
        raise _WrongError("does not say what was traced")
    return {"kernel": kernel, "filters": filters}


def _number(value: object, name: str) -> int:
    if type(value) is not int or not 0 <= value < _BEYOND:
        raise _WrongError(f"has no {name}")
    return value


def _word(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise _WrongError(f"has no {name}")
    return value


def _part(value: object, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _WrongError(f"has no {name}")
    return value


def _event(line: Mapping[str, Any]) -> Event:
    kind = _KINDS[line["kind"]]
    stages = dict(_stages(line))
    if sum(stages.values()) != _number(line.get("total_ns"), "total_ns"):
        raise _WrongError("has stages that do not add up to its total")
    group = kind.group(_word(line.get("dev"), "dev"), _word(line.get("op"), "op"))
    return Event(group, _number(line.get("ts_ns"), "ts_ns"), line["total_ns"], stages, dict(_fields(line)))


def _stages(line: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for key, ns in _part(line.get("stages"), "stages").items():
        name = key.removesuffix(_SUFFIX)
        # A hit has those of an operation as well, of which only one took time.
        if name in (key, TOTAL) or name not in OPERATION:
            raise _WrongError("has a stage that is unknown")
        yield name, _number(ns, key)


def _fields(line: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name in _NUMBERS:
        if name in line:
            yield name, _number(line[name], name)
    for name in _WORDS:
        if name in line:
            yield name, _word(line[name], name)
    for name in ("pid", "tid", "comm", "error"):
        if name not in line:
            raise _WrongError(f"has no {name}")
    if line.get("offset") is not None:
        yield "offset", _number(line["offset"], "offset")
    clock = _part(line.get("clock"), "clock")
    yield "clock", {name: _number(clock.get(name, 0), name) for name in ("end_ns", "handed_ns", "seen_ns")}
    cpus = _part(line.get("cpus", {}), "cpus")
    yield "cpus", {name: None if cpus.get(name) is None else _number(cpus[name], name) for name in _CHAIN}
    result = line.get("result", 0)
    if type(result) is not int or not -_BEYOND < result < _BEYOND:
        raise _WrongError("has no result")
    if "result" in line:
        yield "result", result
    if "image" in line:
        image = _part(line["image"], "image")
        offset = image.get("offset")
        yield (
            "image",
            {
                **{name: _word(image.get(name), name) for name in ("guest", "path", "format")},
                "offset": None if offset is None else _number(offset, "offset"),
            },
        )
