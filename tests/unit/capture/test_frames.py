# SPDX-License-Identifier: Apache-2.0
"""Frames are written whole or not at all, and unpack to no more than is allowed."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from wptrace.capture import zstd
from wptrace.capture.frames import Kind, Reader, Writer, packed, unpacked
from wptrace.errors import WptraceError


@pytest.fixture(params=[True, False], ids=["zstd", "zlib"])
def _library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param and not zstd.is_here():
        pytest.skip("there is no zstd here")
    monkeypatch.setattr(zstd, "is_here", lambda: request.param)
    return


@pytest.mark.usefixtures("_library")
@pytest.mark.parametrize("length", [0, 1, 100, 100_000])
def test_what_is_packed_unpacks_to_no_more_than_is_allowed(length: int) -> None:
    data = bytes(at % 251 for at in range(length))
    made = packed(data)
    assert unpacked(made, length) == unpacked(made, length + 1) == data
    for wrong, most in ((made, length - 1), (made[:-1], length), (made + b"\0", length), (b"", length), (data, length)):
        with pytest.raises(ValueError, match=r"."):
            unpacked(wrong, most)


def test_a_disk_that_is_full_leaves_whole_frames_and_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.wpt"
    writer = Writer(path)
    writer.begin()
    writer.add(Kind.NAMES, b"kept")
    size, write = writer.size, os.write
    assert size == path.stat().st_size

    def full(fd: int, data: memoryview) -> int:
        if len(data) < 1000:
            raise OSError(28, "No space left on device")
        return write(fd, data[:1000])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(WptraceError, match=r"trace\.wpt cannot be written: No space left on device"):
            writer.add(Kind.RECORDS, bytes(1500))
    # What comes later would stand behind a gap.
    writer.add(Kind.END, b"")
    writer.close()
    writer.close()
    assert (writer.size, path.stat().st_size) == (size, size)
    with closing(Reader(path)) as reader:
        assert [(frame.kind, reader.payload(frame), reader.sound(frame)) for frame in reader.frames()] == [
            (Kind.NAMES, b"kept", True)
        ]
        assert not reader.cut
