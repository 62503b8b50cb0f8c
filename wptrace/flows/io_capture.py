# SPDX-License-Identifier: Apache-2.0
"""What is told one by one, kept in a file as the kernel handed it over: whoever reads the file makes stories of it.

A file is a line of JSON, what readers have to know; then batches, each the number of its bytes (`_BATCH`) and what lay
in the ring; then a batch of no bytes, and another line of JSON, what was known at the end alone.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from wptrace import __version__
from wptrace.bpf.object import BpfObject, open_object
from wptrace.bpf.ring import Entries
from wptrace.engine.results import Request, Source, Start
from wptrace.errors import WptraceError
from wptrace.flows.io_records import OBJECT, Stories
from wptrace.flows.io_stages import STAGES
from wptrace.kernel.cgroup_names import CgroupNames
from wptrace.kernel.clock import wall_offset_ns

_MAGIC = "wptrace io"
_BATCH = struct.Struct("<Q")
# Batches are as large as the ring at most.
_LARGEST = 1 << 31
_LONGEST_LINE = 1 << 24
_ENUMS = (
    *("op_stage", "request_stage", "op_kind", "block_op", "record_kind", "block_flag", "interface", "controller"),
)


def _layout(obj: BpfObject, stories: Stories) -> str:
    """What has to be the same for a record to be understood."""
    import hashlib

    facts = [stories.layout.format, stories.fields, [obj.enum(name) for name in _ENUMS], sys.byteorder]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class Capture:
    """Writes a file. That it cannot be is found out before anything is attached."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            # Names of everybody's files stand in it.
            self._file = open(path, "wb", buffering=0, opener=_private)  # noqa: SIM115
        except OSError as error:
            raise WptraceError(f"{path} cannot be written: {error.strerror}") from None
        self._begun = False

    def begin(self, obj: BpfObject, stories: Stories, start: Start) -> None:
        head = {
            "magic": _MAGIC,
            "version": __version__,
            "layout": _layout(obj, stories),
            "names": list(stories.names),
            "wall_offset_ns": wall_offset_ns(),
            "kernel": start.kernel,
            "filters": dict(start.filters),
            "sources": start.sources,
            "notes": start.notes,
        }
        self._write(json.dumps(head).encode() + b"\n")
        self._begun = True

    def add(self, batch: memoryview) -> None:
        self._write(_BATCH.pack(len(batch)))
        self._write(batch)

    def end(self, lost: int) -> None:
        """`lost` are the records for which the ring had no room."""
        tail = {"cgroups": CgroupNames().all(), "lost": lost}
        # If the disk is full, that was the error.
        with self._file, suppress(WptraceError):
            if self._begun:
                self._write(_BATCH.pack(0) + json.dumps(tail).encode() + b"\n")

    def _write(self, data: bytes | memoryview) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            raise WptraceError(f"{self._path} cannot be written: {error.strerror}") from None


class _Batch(NamedTuple):
    place: int
    length: int


@contextmanager
def replay(path: Path) -> Iterator[Replay]:
    with ExitStack() as stack:
        try:
            file = stack.enter_context(path.open("rb"))
            head = _line(file)
            if head.get("magic") != _MAGIC:
                hint = "wptrace io --each --capture FILE makes one"
                raise WptraceError(f"{path} is no capture of wptrace", hint)
            batches, tail = _scan(path, file)
        except OSError as error:
            raise WptraceError(f"{path} cannot be read: {error.strerror}") from None
        yield Replay(path, file, stack.enter_context(open_object(OBJECT)), head, batches, tail)


class Replay:
    """Reads a file; also one whose trace was cut off."""

    def __init__(
        self,
        path: Path,
        file: BinaryIO,
        obj: BpfObject,
        head: Mapping[str, Any],
        batches: Sequence[_Batch],
        tail: Mapping[str, Any],
    ) -> None:
        self._path, self._file, self._head, self._batches, self._tail = path, file, head, batches, tail
        cgroups = CgroupNames(known={int(number): name for number, name in tail.get("cgroups", {}).items()})
        self._stories = Stories(obj, head.get("names", []), cgroups, head.get("wall_offset_ns", 0))
        if _layout(obj, self._stories) != head.get("layout"):
            raise WptraceError(
                f"{path} was captured by wptrace {head.get('version')}, whose records are not those of {__version__}",
                hint="replay it with the version that captured it",
            )

    def start(self) -> Start:
        head, notes = self._head, list(self._head["notes"])
        if not self._tail:
            notes.append("the capture has no end: its trace was cut off, and what it told last may be missing")
        elif self._tail.get("lost"):
            notes.append(f"the ring had no room for {self._tail['lost']:,} records: they are missing")
        sources = [Source(*source) for source in head["sources"]]
        return Start("io", "path", head["kernel"], head["filters"], sources, STAGES, notes, str(self._path))

    def requests(self) -> Iterator[list[Request]]:
        """By batches, oldest first."""
        entries = Entries(self._stories.layout)
        for place, length in self._batches:
            self._file.seek(place)
            data = memoryview(self._file.read(length))
            data = data[: len(data) // entries.stride * entries.stride]
            records = entries.decode(data, entries.headers(data.cast("I")))
            try:
                yield list(self._stories.told(records))
            except (LookupError, ValueError):
                raise WptraceError(f"{self._path} is damaged: what begins at {place:,} makes no sense") from None


def _scan(path: Path, file: BinaryIO) -> tuple[list[_Batch], dict[str, Any]]:
    """Where the batches are, and what is known at the end; nothing if there is none."""
    found: list[_Batch] = []
    size = os.fstat(file.fileno()).st_size
    while True:
        word = file.read(_BATCH.size)
        if len(word) < _BATCH.size:
            return found, {}
        (length,) = _BATCH.unpack(word)
        if not length:
            return found, _line(file)
        place = file.tell()
        if length > _LARGEST:
            raise WptraceError(f"{path} is damaged: a batch of {length:,} bytes at {place:,} is impossible")
        found.append(_Batch(place, min(length, size - place)))
        file.seek(length, os.SEEK_CUR)


def _line(file: BinaryIO) -> dict[str, Any]:
    try:
        found = json.loads(file.readline(_LONGEST_LINE))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
