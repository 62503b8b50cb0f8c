# SPDX-License-Identifier: Apache-2.0
"""A file of batches: a line of JSON that readers have to know, the batches, and a line of what was known at the end.

Each line ends with its checksum in eight digits. A batch is a frame (`_FRAME`) and its bytes; a frame of no bytes comes
before the last line. The checksums go on from that of the first line and count the batches, so whatever is flipped,
missing or of another capture is noticed. They keep nobody from making a file of his own: what is read is bounded,
whatever it says, and a piece at a time is in memory.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from wptrace.errors import WptraceError

# The bytes behind it, what to add to its times for the time of day, the checksum of the bytes, and its own.
_FRAME = struct.Struct("<QqII")
_OWN = 4
_NUMBER = struct.Struct("<Q")
_CHECKSUM = len(" 01234567\n")
# What names of devices and cgroups need, many times over.
LONGEST_LINE = 1 << 22
# So much is read at once.
_PIECE = 1 << 20


class Batch(NamedTuple):
    place: int
    length: int
    wall_offset_ns: int
    checksum: int
    whole: bool
    """The trace may have been cut off within it."""


class Writer:
    """That the file cannot be written is found out at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seed = self._batches = 0
        self._failed = False
        try:
            # Names of everybody's files stand in it.
            self._file = open(path, "wb", buffering=0, opener=_private)  # noqa: SIM115
        except OSError as error:
            raise WptraceError(f"{path} cannot be written: {error.strerror}") from None

    def begin(self, head: Mapping[str, Any]) -> None:
        data = json.dumps(head).encode()
        self._seed = zlib.crc32(data)
        self._write(data + b" %08x\n" % self._seed)

    def add(self, batch: memoryview | bytes, wall_offset_ns: int = 0) -> None:
        frame = _FRAME.pack(len(batch), wall_offset_ns, zlib.crc32(batch), 0)[:-_OWN]
        own = zlib.crc32(frame, _next(self._seed, self._batches))
        self._batches += 1
        self._write(frame + own.to_bytes(_OWN, "little"))
        self._write(batch)

    def end(self, tail: Mapping[str, Any]) -> None:
        """Behind what was written in part it would be taken for the rest of that."""
        if self._failed:
            return
        self.add(b"")
        data = json.dumps(tail).encode()
        self._write(data + b" %08x\n" % zlib.crc32(data, _next(self._seed, self._batches)))

    def close(self) -> None:
        self._file.close()

    def _write(self, data: bytes | memoryview) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            self._failed = True
            raise WptraceError(f"{self._path} cannot be written: {error.strerror}") from None


class Reader:
    """Raises WptraceError where the file is damaged, and OSError where it cannot be read."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._size = os.fstat(file.fileno()).st_size

    def head(self, magic: str) -> dict[str, Any]:
        self._file.seek(0)
        line = self._file.readline(LONGEST_LINE)
        if not line.startswith(json.dumps({"magic": magic})[:-1].encode()):
            raise WptraceError(f"{self._path} is no capture of wptrace", "wptrace io --each --capture FILE makes one")
        self._first = len(line)
        self._seed = zlib.crc32(line[:-_CHECKSUM])
        return self._json(line, self._seed)

    def batches(self) -> Iterator[Batch]:
        """After `head`; those that are there, and the last one perhaps in part."""
        place, number = self._first, 0
        while True:
            found = self._frame(place, number)
            if found is None:
                return
            place, number = found.place + found.length, number + 1
            if not found.length:
                return
            yield found
            if not found.whole:
                return

    def tail(self) -> dict[str, Any] | None:
        """None if there is none; what is damaged before it is found out where it is read."""
        place, number = self._first, 0
        while True:
            try:
                found = self._frame(place, number)
            except WptraceError:
                return None
            if found is None or not found.whole:
                return None
            place, number = found.place + found.length, number + 1
            if not found.length:
                break
        self._file.seek(place)
        line = self._file.readline(LONGEST_LINE)
        if len(line) < LONGEST_LINE and not line.endswith(b"\n"):
            return None
        if self._size > place + len(line):
            raise self._damaged(place + len(line), "is behind its end")
        return self._json(line, zlib.crc32(line[:-_CHECKSUM], _next(self._seed, number)))

    def pieces(self, batch: Batch, multiple: int) -> Iterator[bytes]:
        """Its bytes, of which so many belong together; nothing of it if they are not those that were written."""
        if batch.whole:
            checksum = 0
            for piece in self._read(batch, _PIECE):
                checksum = zlib.crc32(piece, checksum)
            if checksum != batch.checksum:
                raise self._damaged(batch.place, "has another checksum than was written")
        yield from self._read(batch, max(_PIECE // multiple, 1) * multiple)

    def _read(self, batch: Batch, size: int) -> Iterator[bytes]:
        place, end = batch.place, batch.place + batch.length
        while place < end:
            self._file.seek(place)
            piece = self._file.read(min(size, end - place))
            if not piece:  # it became shorter meanwhile
                return
            yield piece
            place += len(piece)

    def _frame(self, place: int, number: int) -> Batch | None:
        self._file.seek(place)
        data = self._file.read(_FRAME.size)
        if len(data) < _FRAME.size:
            return None
        length, wall_offset_ns, checksum, own = _FRAME.unpack(data)
        if own != zlib.crc32(data[:-_OWN], _next(self._seed, number)):
            raise self._damaged(place, "makes no sense")
        begin = place + _FRAME.size
        there = min(length, self._size - begin)
        return Batch(begin, there, wall_offset_ns, checksum, there == length)

    def _json(self, line: bytes, checksum: int) -> dict[str, Any]:
        if line[-_CHECKSUM:] != b" %08x\n" % checksum:
            raise self._damaged(self._file.tell() - len(line), "has another checksum than was written")
        try:
            found = json.loads(line[:-_CHECKSUM])
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise self._damaged(self._file.tell() - len(line), "makes no sense")
        return found

    def _damaged(self, place: int, how: str) -> WptraceError:
        return WptraceError(f"{self._path} is damaged: what begins at {place:,} {how}")


def _next(seed: int, number: int) -> int:
    return zlib.crc32(_NUMBER.pack(number), seed)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
