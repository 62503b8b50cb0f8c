# SPDX-License-Identifier: Apache-2.0
"""The kernel's own tracing, an independent witness."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path("/sys/kernel/tracing")
_LINE = re.compile(r".+\[(?P<cpu>\d+)\] \S+ +(?P<time>[\d.]+): (?P<name>\w+): (?P<text>.*)")


class Record(NamedTuple):
    name: str
    cpu: int
    ns: int
    """The time by CLOCK_MONOTONIC, in whole microseconds."""
    text: str
    stack: tuple[str, ...] = ()
    """Functions from the innermost one outwards, if they are wanted."""


class Trace:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def records(self) -> list[Record]:
        found: list[Record] = []
        for line in (self.folder / "trace").read_text().splitlines():
            if line.startswith("#") or line.endswith(": <stack trace>"):
                continue
            if line.startswith(" => "):
                found[-1] = found[-1]._replace(stack=(*found[-1].stack, line[4:]))
                continue
            match = _LINE.fullmatch(line)
            assert match, line
            ns = int(match["time"].replace(".", "")) * 1000
            found.append(Record(match["name"], int(match["cpu"]), ns, match["text"]))
        return found


NO_FILTERS: Mapping[str, str] = {}


@contextmanager
def traced(*events: str, stacks: bool = False, filters: Mapping[str, str] = NO_FILTERS) -> Iterator[Trace]:
    """A buffer of its own for events SYSTEM/NAME; `filters` has conditions "FIELD == VALUE" by NAME."""
    folder = ROOT / "instances" / f"wptest_{os.getpid()}"
    folder.mkdir()
    try:
        (folder / "trace_clock").write_text("mono")
        (folder / "options" / "stacktrace").write_text(str(int(stacks)))
        for event in events:
            wanted = filters.get(event.partition("/")[2])
            if wanted is not None:
                (folder / "events" / event / "filter").write_text(wanted)
            (folder / "events" / event / "enable").write_text("1")
        yield Trace(folder)
    finally:
        (folder / "events" / "enable").write_text("0")
        folder.rmdir()


@contextmanager
def probes(**functions: str) -> Iterator[None]:
    """Add events kprobes/NAME at functions of the kernel, NAME="FUNCTION"."""
    try:
        for name, function in functions.items():
            _write(f"p:kprobes/{name} {function}")
        yield
    finally:
        for name in functions:
            _write(f"-:kprobes/{name}")


def _write(line: str) -> None:
    # Truncating the file would remove the probes of others, and the kernel refuses to open it for appending.
    with (ROOT / "kprobe_events").open("r+b", buffering=0) as file:
        file.write(line.encode())
