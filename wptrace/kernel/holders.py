# SPDX-License-Identifier: Apache-2.0
"""Processes with descriptors of BPF programs, maps and links, from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import dropwhile
from pathlib import Path
from typing import NamedTuple

from wptrace.kernel import procfs

PROC = Path("/proc")

PROGRAM, MAP = "prog", "map"
_KINDS = {"anon_inode:bpf-prog": PROGRAM, "anon_inode:bpf-map": MAP, "anon_inode:bpf_link": PROGRAM}
_EVENT = "anon_inode:[perf_event]"


class Process(NamedTuple):
    pid: int
    comm: str
    own: bool
    """Whether it is a process of wptrace."""


class Held(NamedTuple):
    by: dict[tuple[str, int], list[Process]]
    """Processes by kind and id; a process with a link also counts for its program."""
    events: list[tuple[int, int]]
    """Perf events, to which programs can be attached without a link: pid and descriptor."""


def held(proc: Path = PROC) -> Held:
    found = Held({}, [])
    for folder in proc.iterdir():
        if not folder.name.isdecimal():
            continue
        process: Process | None = None
        for fd, kind in _descriptors(folder):
            if kind == _EVENT:
                found.events.append((int(folder.name), fd))
                continue
            number = _number(folder / "fdinfo" / str(fd), _KINDS[kind])
            if number:
                process = process or _process(folder)
                owners = found.by.setdefault((_KINDS[kind], number), [])
                if process not in owners:
                    owners.append(process)
    return found


def _descriptors(folder: Path) -> Iterator[tuple[int, str]]:
    try:
        with os.scandir(folder / "fd") as entries:
            for entry in entries:
                kind = os.readlink(entry.path)  # noqa: PTH115 - one for each descriptor of the machine
                if kind in _KINDS or kind == _EVENT:
                    yield int(entry.name), kind
    except OSError:
        return  # it ended, or is hidden from us


def _number(info: Path, kind: str) -> int:
    try:
        return int(procfs.field(info, f"{kind}_id") or 0)
    except OSError:
        return 0


def _process(folder: Path) -> Process:
    try:
        comm = (folder / "comm").read_bytes().removesuffix(b"\n").decode(errors="backslashreplace")
        words = os.fsdecode((folder / "cmdline").read_bytes()).split("\0")
    except OSError:
        comm, words = "", []
    return Process(int(folder.name), comm, is_wptrace(words))


def is_wptrace(words: list[str]) -> bool:
    """Recognise the command line of wptrace: the script, with or without its interpreter, or `python -m wptrace`."""
    if words and os.path.basename(words[0]).startswith("python"):  # noqa: PTH119
        words = [words[0], *dropwhile(lambda word: word in ("-I", "-B"), words[1:])]
    if any(os.path.basename(word) == "wptrace" for word in words[:2]):  # noqa: PTH119
        return True
    return any(words[place : place + 2] == ["-m", "wptrace"] for place in range(len(words)))
