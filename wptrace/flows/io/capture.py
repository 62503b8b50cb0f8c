# SPDX-License-Identifier: Apache-2.0
"""What is told one by one, kept in a file as the kernel handed it over: whoever reads the file makes stories of it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from wptrace import __version__
from wptrace.bpf.object import BpfObject, open_object
from wptrace.bpf.ring import DISCARD, Entries
from wptrace.engine.capture import LONGEST_LINE, Reader, Writer
from wptrace.errors import WptraceError
from wptrace.flows.io.kinds import KINDS
from wptrace.flows.io.records import OBJECT, Stories
from wptrace.kernel.cgroup_names import CgroupNames
from wptrace.kernel.clock import wall_offset_ns
from wptrace.model.report import Event, Source, Start

_MAGIC = "wptrace io"
_ENUMS = (
    *("op_stage", "request_stage", "op_kind", "block_op", "record_kind", "block_flag", "interface", "controller"),
)
# Names of cgroups take so many bytes of the last line at most.
_CGROUPS = LONGEST_LINE // 2
_NUMBER = re.compile(r"[0-9]{1,20}")


def _layout(obj: BpfObject, stories: Stories) -> str:
    """What has to be the same for a record to be understood."""
    import hashlib

    facts = [stories.layout.format, stories.fields, [obj.enum(name) for name in _ENUMS], sys.byteorder]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


class Capture:
    """Writes a file. That it cannot be is found out before anything is attached."""

    def __init__(self, path: Path) -> None:
        self._file = Writer(path)
        self._begun = False

    def begin(self, obj: BpfObject, stories: Stories, start: Start) -> None:
        head = {
            "magic": _MAGIC,
            "version": __version__,
            "layout": _layout(obj, stories),
            "names": list(stories.names),
            "kernel": start.kernel,
            "filters": dict(start.filters),
            "sources": start.sources,
            "notes": start.notes,
        }
        self._file.begin(head)
        self._begun = True

    def add(self, batch: memoryview) -> None:
        # The time of day of a long trace is set now and then.
        self._file.add(batch, wall_offset_ns())

    def end(self, lost: int) -> None:
        """`lost` are the records for which the ring had no room."""
        # If the disk is full, that was the error.
        with suppress(WptraceError):
            if self._begun:
                cgroups, unnamed = _that_fit(CgroupNames().all())
                self._file.end({"cgroups": cgroups, "unnamed": unnamed, "lost": lost})
        self._file.close()


def _that_fit(cgroups: Mapping[int, str]) -> tuple[dict[int, str], int]:
    """As many of them as the line has room for, and how many are left out."""
    room = _CGROUPS
    found = {}
    for number, name in cgroups.items():
        room -= len(json.dumps({number: name}))
        if room < 0:
            break
        found[number] = name
    return found, len(cgroups) - len(found)


@contextmanager
def replay(path: Path) -> Iterator[Replay]:
    with ExitStack() as stack:
        try:
            file = Reader(path, stack.enter_context(path.open("rb")))
            head = file.head(_MAGIC)
            tail = file.tail()
        except OSError as error:
            raise WptraceError(f"{path} cannot be read: {error.strerror or error}") from None
        yield Replay(path, file, stack.enter_context(open_object(OBJECT)), head, tail)


class Replay:
    """Reads a file; also one whose trace was cut off."""

    def __init__(
        self, path: Path, file: Reader, obj: BpfObject, head: Mapping[str, Any], tail: Mapping[str, Any] | None
    ) -> None:
        self._path, self._file, self._head, self._tail = path, file, head, tail
        if not _is_head(head):
            raise WptraceError(f"{path} is damaged: its first line makes no sense")
        known = tail["cgroups"] if tail is not None and _is_tail(tail) else {}
        cgroups = CgroupNames(known={int(number): name for number, name in known.items()})
        self._stories = Stories(obj, head["names"], cgroups)
        if _layout(obj, self._stories) != head["layout"]:
            raise WptraceError(
                f"{path} was captured by wptrace {head['version']}, whose records are not those of {__version__}",
                hint="replay it with the version that captured it",
            )
        if tail is not None and not _is_tail(tail):
            raise WptraceError(f"{path} is damaged: its last line makes no sense")

    def start(self) -> Start:
        head, notes = self._head, list(self._head["notes"])
        if self._tail is None:
            notes.append("the capture has no end: its trace was cut off, and what it told last may be missing")
        else:
            if self._tail["lost"]:
                notes.append(f"the ring had no room for {self._tail['lost']:,} records: they are missing")
            if self._tail["unnamed"]:
                notes.append(f"{self._tail['unnamed']:,} cgroups have no names: there were too many")
        sources = [Source(*source) for source in head["sources"]]
        return Start("io", "path", head["kernel"], head["filters"], sources, KINDS, notes, str(self._path))

    def events(self) -> Iterator[list[Event]]:
        """Oldest first, some at a time."""
        entries = Entries(self._stories.layout)
        try:
            for batch in self._file.batches():
                self._stories.wall_offset_ns = batch.wall_offset_ns
                place = batch.place
                for piece in self._file.pieces(batch, entries.stride):
                    yield self._told(entries, piece, place, batch.whole)
                    place += len(piece)
        except OSError as error:
            raise WptraceError(f"{self._path} cannot be read: {error.strerror or error}") from None

    def _told(self, entries: Entries, piece: bytes, place: int, whole: bool) -> list[Event]:
        data = memoryview(piece)[: len(piece) // entries.stride * entries.stride]
        headers = entries.headers(data.cast("I"))
        known = entries.length, entries.length | DISCARD
        sound = entries.whole(headers) or all(value in known for value in headers)
        if sound and (len(data) == len(piece) or not whole):
            # Names and numbers that no program writes would be looked up in vain.
            with suppress(LookupError, ValueError):
                return list(self._stories.told(entries.decode(data, headers)))
        raise WptraceError(f"{self._path} is damaged: what begins at {place:,} makes no sense")


def _is_head(head: Mapping[str, Any]) -> bool:
    filters, sources = head.get("filters"), head.get("sources")
    return (
        all(isinstance(head.get(name), str) for name in ("version", "layout", "kernel"))
        and all(_are_words(head.get(name)) for name in ("names", "notes"))
        and isinstance(sources, list)
        and all(_are_words(source) and len(source) == len(Source._fields) for source in sources)
        and isinstance(filters, dict)
        and all(_are_words(value) if name == "dev" else _is_one(value) for name, value in filters.items())
    )


def _is_tail(tail: Mapping[str, Any]) -> bool:
    cgroups = tail.get("cgroups")
    return (
        isinstance(cgroups, dict)
        and all(_NUMBER.fullmatch(number) and isinstance(name, str) for number, name in cgroups.items())
        and all(type(tail.get(name)) is int for name in ("lost", "unnamed"))
    )


def _are_words(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _is_one(value: object) -> bool:
    return type(value) in (str, int)
