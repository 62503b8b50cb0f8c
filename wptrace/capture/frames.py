# SPDX-License-Identifier: Apache-2.0
"""The frames of a capture: segment behind segment, and in each frame upon frame, each whole or not there.

A segment needs nothing before it: it begins with the bytes that a file begins with, and with all names and layouts. So
those before it may be cut off, and captures may be put one behind the other.

A frame is a header (`_HEADER`) and a payload, in a file or on its way through a channel. The checksum of a header goes
on from the seed of its segment and the number of the frame, so whatever is flipped, missing or of another one is seen.
Checksums keep nobody from making a file of his own: what is read is bounded, whatever it says.
"""

from __future__ import annotations

import os
import re
import stat
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import BinaryIO, NamedTuple

from wptrace.capture import channel, zstd
from wptrace.capture.folder import Folder
from wptrace.errors import UsageError, WptraceError
from wptrace.kernel import files


class Kind(IntEnum):
    """A reader passes over those that it does not know."""

    START = 1
    LAYOUT = 2
    NAMES = 3
    CLOCK = 4
    RECORDS = 5
    EVENTS = 6
    IN_FLIGHT = 7
    INTERVAL = 8
    SUMMARY = 9
    END = 10


_MAGIC = b"wptrace\n"
_VERSION = 1
# The magic, the version, the seed, and the checksum of these.
_FIRST = struct.Struct("<8sIII")
# The bytes behind it, the kind, their checksum, and its own.
_HEADER = struct.Struct("<IIII")
_OWN = 4
_NUMBER = struct.Struct("<Q")
LONGEST = 1 << 24
"""No payload is longer."""
LONGEST_TEXT = 1 << 22
"""Nor is the JSON in one, once it is unpacked."""


class DamagedError(WptraceError):
    def __init__(self, path: Path, place: int) -> None:
        super().__init__(f"{path} is damaged: what begins at byte {place:,} makes no sense")


class TornError(DamagedError):
    """Bytes that are not as they were written."""


LOST = -1
"""The kind of frames whose header is torn, so that nobody knows what they were."""
SEGMENT = -2
"""Not a frame, but the beginning of another segment."""
# The largest number of consecutive frames with torn headers.
_TORN = 4
# A header by its bytes: how long, of which kind, and two checksums; or a segment. Few places look like one.
_LIKELY = re.compile(rb"(?s)(?=...[\x00-\x01][\x01-\x0f]\x00\x00\x00|wptrace\n)")
# The largest number of places in a file at which a header is looked for.
_MOST_LIKELY = 1 << 18
_PIECE = 1 << 20


class Frame(NamedTuple):
    kind: int
    place: int
    length: int
    checksum: int


class Writer:
    """A writer of frames. It reports at once if the file cannot be written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = self._open()
        self._seed = self._number = self.size = 0
        self._failed = False

    def _open(self) -> int:
        fd = channel.to_write(self._path)
        if fd >= 0:
            return fd
        fd = files.open_to_write(self._path, "a capture", os.O_NONBLOCK)
        try:
            if os.isatty(fd):
                raise UsageError(f"{self._path} is a terminal: a capture goes into a file or a channel")
            if stat.S_ISREG(os.fstat(fd).st_mode):
                os.fchmod(fd, 0o600)
                os.ftruncate(fd, 0)
        except (UsageError, OSError) as error:
            os.close(fd)
            if isinstance(error, OSError):
                raise self._refused(error) from None
            raise
        return fd

    def _refused(self, error: OSError) -> WptraceError:
        return WptraceError(f"{self._path} cannot be written: {error.strerror}")

    def begin(self) -> None:
        """Begin a segment."""
        self._seed = int.from_bytes(os.urandom(4), "little")
        self._number = 0
        first = _FIRST.pack(_MAGIC, _VERSION, self._seed, 0)[:-_OWN]
        self._write(first + zlib.crc32(first).to_bytes(_OWN, "little"))

    def add(self, kind: Kind, payload: bytes) -> None:
        header = _HEADER.pack(len(payload), kind, zlib.crc32(payload), 0)[:-_OWN]
        own = zlib.crc32(header, _next(self._seed, self._number))
        self._number += 1
        self._write(header + own.to_bytes(_OWN, "little") + payload)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, data: bytes) -> None:
        if self._failed:
            return
        left = memoryview(data)
        try:
            while left:
                left = left[channel.write(self._fd, left) :]
        except OSError as error:
            self._failed = True
            self._cut()
            raise self._refused(error) from None
        self.size += len(data)

    def _cut(self) -> None:
        """Remove what was written in part. A disk that takes nothing may not even do that; a reader passes over it."""
        with suppress(OSError):
            if stat.S_ISREG(os.fstat(self._fd).st_mode):
                os.ftruncate(self._fd, self.size)


class Reader:
    """Raises WptraceError where the file is damaged or cannot be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | Folder
        try:
            if path.is_dir():
                self._file = Folder(path)
                self._size = self._file.size
            else:
                fd, found = files.open_to_read(path, files.is_regular)
                self._file = os.fdopen(fd, "rb")
                self._size = found.st_size
        except files.OtherKindError:
            raise WptraceError(f"{path} is not a file", "a capture is read more than once: copy it into one") from None
        except PermissionError as error:
            # The usual reason: it was captured with sudo.
            hint = "only the owner of a capture can read it: use sudo, or give it to yourself with sudo chown"
            raise WptraceError(f"{path} cannot be read: {error.strerror}", hint) from None
        except OSError as error:
            raise WptraceError(f"{path} cannot be read: {error.strerror}") from None
        self.cut = False
        """The file ends within a frame."""
        self._left = _MOST_LIKELY
        try:
            self._begin()
        except WptraceError:
            self._file.close()
            raise

    def _begin(self) -> None:
        _seed(self.path, self._read(0, _FIRST.size))

    def frames(self) -> Iterator[Frame]:
        """Generate the whole frames; `cut` tells of others."""
        # Behind the first byte of the last frame: if its trace was cut off there, the next segment begins within it,
        # also where the bytes of its header that are gone are by chance those that the next one begins with.
        place, number, seed, before = 0, 0, 0, 0
        self.cut = False
        self._left = _MOST_LIKELY
        while place < self._size:
            first = self._read(place, _FIRST.size)
            if _is_segment(first):
                seed, number = _seed(self.path, first, place), 0
                if place:
                    yield Frame(SEGMENT, place, 0, 0)
                before, place = place + 1, place + _FIRST.size
                continue
            frame, header = None, first[: _HEADER.size]
            with suppress(TornError):
                frame = _frame(self.path, place, header, _next(seed, number))
            if frame is not None and frame.place + frame.length <= self._size:
                yield frame
                before, number = place + 1, number + 1
                place = frame.place + frame.length
                continue
            found = self._resumed(before, place, number, seed)
            if found is None:
                self.cut = True
                if frame is None and len(header) == _HEADER.size:
                    yield Frame(LOST, place, 0, 0)
                return
            yield Frame(LOST, place, 0, 0)
            place, number = found
            before = place

    def _resumed(self, before: int, torn: int, number: int, seed: int) -> tuple[int, int] | None:
        """Return the place and number of the next frame or segment, which the checksums of headers identify."""
        seeds = [(number + more, _next(seed, number + more)) for more in range(1, _TORN + 1)]
        for piece in range(before, min(self._size, torn + LONGEST + _PIECE), _PIECE):
            data = self._read(piece, _PIECE + _FIRST.size)
            for found in _LIKELY.finditer(data):
                self._left -= 1
                if self._left < 0:
                    return None
                if _is_segment(data[found.start() : found.start() + _FIRST.size]):
                    return piece + found.start(), 0
                header = data[found.start() : found.start() + _HEADER.size]
                own = header[-_OWN:]
                for which, seed in seeds if len(header) == _HEADER.size else ():
                    if zlib.crc32(header[:-_OWN], seed).to_bytes(_OWN, "little") == own:
                        return piece + found.start(), which
        return None

    def sound(self, frame: Frame) -> bool:
        """Whether the content of a frame is as it was written."""
        data = self._read(frame.place, frame.length)
        return len(data) == frame.length and zlib.crc32(data) == frame.checksum

    def payload(self, frame: Frame) -> bytes:
        return _checked(self.path, frame, self._read(frame.place, frame.length))

    def close(self) -> None:
        self._file.close()

    def _read(self, place: int, length: int) -> bytes:
        try:
            self._file.seek(place)
            return self._file.read(length)
        except OSError as error:
            raise WptraceError(f"{self.path} cannot be read: {error.strerror or error}") from None


class Stream:
    """Frames from a channel, piece by piece. It holds one frame, and what came with its end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        """The name of the channel."""
        self._left = bytearray()
        self._place = self._number = 0
        self._seed: int | None = None

    @property
    def cut(self) -> bool:
        """Whether it ends within a frame, or before the first one."""
        return bool(self._left) or self._seed is None

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Frames that are whole now. The payload of each is there until the next one is asked for."""
        self._left += data
        while len(self._left) >= _HEADER.size or self._seed is None:
            first = bytes(self._left[: _FIRST.size])
            if self._seed is None or first.startswith(_MAGIC):
                if len(first) < _FIRST.size and _MAGIC.startswith(first[: len(_MAGIC)]):
                    return
                self._seed, self._number = _seed(self.path, first, self._place), 0
                if self._place:
                    yield Frame(SEGMENT, self._place, 0, 0)
                self._pass(_FIRST.size)
                continue
            header = first[: _HEADER.size]
            frame = _frame(self.path, self._place, header, _next(self._seed, self._number))
            if len(self._left) < _HEADER.size + frame.length:
                return
            yield frame
            self._number += 1
            self._pass(_HEADER.size + frame.length)

    def payload(self, frame: Frame) -> bytes:
        return _checked(self.path, frame, bytes(self._left[_HEADER.size : _HEADER.size + frame.length]))

    def close(self) -> None:
        self._left = bytearray()

    def _pass(self, length: int) -> None:
        del self._left[:length]
        self._place += length


def _is_segment(first: bytes) -> bool:
    own = int.from_bytes(first[-_OWN:], "little")
    return first.startswith(_MAGIC) and len(first) == _FIRST.size and zlib.crc32(first[:-_OWN]) == own


def _seed(path: Path, first: bytes, place: int = 0) -> int:
    """Return the seed of a segment that begins with these bytes."""
    if not first.startswith(_MAGIC):
        raise WptraceError(f"{path} is not a capture of wptrace", "wptrace io --each --capture FILE makes one")
    if len(first) < _FIRST.size:
        raise WptraceError(f"{path} is empty: its trace was cut off before it began")
    _, version, seed, _ = _FIRST.unpack(first)
    if not _is_segment(first):
        raise DamagedError(path, place)
    if version != _VERSION:
        raise WptraceError(
            f"{path} is a capture of format {version}, and this wptrace reads {_VERSION}",
            "replay it with the version that captured it, or a newer one",
        )
    return int(seed)


def _frame(path: Path, place: int, header: bytes, seed: int) -> Frame:
    if len(header) < _HEADER.size:
        raise TornError(path, place)
    length, kind, checksum, own = _HEADER.unpack(header)
    if own != zlib.crc32(header[:-_OWN], seed) or length > LONGEST:
        raise TornError(path, place)
    return Frame(kind, place + _HEADER.size, length, checksum)


def _checked(path: Path, frame: Frame, data: bytes) -> bytes:
    if len(data) < frame.length or zlib.crc32(data) != frame.checksum:
        raise TornError(path, frame.place)
    return data


def _next(seed: int, number: int) -> int:
    return zlib.crc32(_NUMBER.pack(number), seed)


def packed(data: bytes, level: int = zstd.TEXT) -> bytes:
    """Compress; the first bytes say by what. The level is that of zstd, where it is there."""
    return zstd.packed(data, level) if zstd.is_here() else zlib.compress(data, 1)


def unpacked(data: bytes, most: int) -> bytes:
    """A ValueError where it is more than that, or was never packed."""
    if data.startswith(zstd.MAGIC):
        if not zstd.is_here():
            raise WptraceError("the capture is compressed by zstd, which is not installed", zstd.HINT)
        return zstd.unpacked(data, most)
    inflate = zlib.decompressobj()
    try:
        found = inflate.decompress(data, most + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if len(found) > most or not inflate.eof or inflate.unused_data:
        raise ValueError("it is too long, or cut off")
    return found
