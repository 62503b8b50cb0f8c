# SPDX-License-Identifier: Apache-2.0
"""Files of captured records: what was written is told, however much of it is there; damage is said in a sentence."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.flows.test_io_records import NAMES, packed
from wptrace.bpf.object import BpfObject, open_object
from wptrace.bpf.ring import DISCARD
from wptrace.engine.results import Request, Source, Start
from wptrace.errors import WptraceError
from wptrace.flows.io_capture import Capture, replay
from wptrace.flows.io_records import Stories
from wptrace.flows.io_stages import STAGES

START = Start("io", "path", "6.12.0", {"dev": ["sda"], "pid": 7}, [Source("fs", "fentry")], STAGES, ["a note"])
BATCHES = [3, 1, 4]


@pytest.fixture(scope="module")
def obj() -> Iterator[BpfObject]:
    with open_object("io_path") as found:
        yield found


def entry(obj: BpfObject, number: int, flag: int = 0) -> bytes:
    """As it lies in the ring: a header, and an operation that took so many nanoseconds."""
    payload = packed(obj.struct("io_record"), start_ns=100, end_ns=100 + number, slot=1, tgid=7, cgroup=55)
    return struct.pack("<II", len(payload) | flag, 0) + payload + bytes(-len(payload) % 8)


@pytest.fixture
def file(obj: BpfObject, tmp_path: Path) -> Path:
    return write(obj, tmp_path / "trace.wpt")


def write(obj: BpfObject, path: Path, lost: int = 0, end: bool = True) -> Path:
    capture = Capture(path)
    capture.begin(obj, Stories(obj, NAMES), START)
    number = 0
    for count in BATCHES:
        data = b"".join(entry(obj, number + place) for place in range(count))
        number += count
        capture.add(memoryview(entry(obj, 99, DISCARD) + data))
    if end:
        capture.end(lost)
    return path


def told(path: Path) -> tuple[Start, list[list[Request]]]:
    with replay(path) as found:
        return found.start(), list(found.requests())


def test_what_was_written_is_told(file: Path) -> None:
    start, batches = told(file)
    assert start == START._replace(file=str(file))
    assert [len(batch) for batch in batches] == BATCHES
    requests = [request for batch in batches for request in batch]
    assert [request.total_ns for request in requests] == list(range(sum(BATCHES)))
    assert {(request.dev, request.fields["pid"]) for request in requests} == {(NAMES[1], 7)}


def test_names_of_cgroups_are_those_of_the_capture(
    obj: BpfObject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wptrace.kernel.cgroup_names.CgroupNames.all", lambda _: {1: "/", 55: "/batch\n"})
    _, batches = told(write(obj, tmp_path / "trace.wpt"))
    assert {request.fields["cgroup"] for batch in batches for request in batch} == {"/batch\n"}


def test_what_was_lost_is_noted(obj: BpfObject, tmp_path: Path) -> None:
    start, _ = told(write(obj, tmp_path / "trace.wpt", lost=1234))
    assert start.notes == ["a note", "the ring had no room for 1,234 records: they are missing"]


def test_a_file_that_was_cut_off_is_told_as_far_as_it_goes(obj: BpfObject, file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    _, every = told(file)
    everything = [request for batch in every for request in batch]
    cut = tmp_path / "cut.wpt"
    size, before = len(entry(obj, 0)), 0
    first = whole.index(b"\n") + 1
    for length in [*range(first, len(whole) - 1, size // 3 + 1), len(whole) - 1]:
        cut.write_bytes(whole[:length])
        start, batches = told(cut)
        found = [request for batch in batches for request in batch]
        assert found == everything[: len(found)]
        assert before <= len(found)
        before = len(found)
        ended = "the capture has no end: its trace was cut off, and what it told last may be missing" not in start.notes
        # The last byte ends a line of JSON, which is one without it.
        assert ended == (length == len(whole) - 1)
    assert before == len(everything)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is no capture of wptrace"),
        (b"\n", "is no capture of wptrace"),
        (b"[1]\n", "is no capture of wptrace"),
        (b"\xff\xfe\n", "is no capture of wptrace"),
        (b"root:x:0:0\nbin:x:1:1:/bin\n", "is no capture of wptrace"),
        (b'{"magic": "wptrace io"}\n', "was captured by wptrace None, whose records are not those of"),
        (b'{"magic": "wptrace io", "version": "9"}\n', "was captured by wptrace 9, whose records are not those"),
        (
            b'{"magic": "wptrace io"}\n' + b"\xff" * 8,
            "a batch of 18,446,744,073,709,551,615 bytes at 32 is",
        ),
    ],
)
def test_another_file_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(WptraceError, match=message):
        told(path)


def test_damage_is_said_in_a_sentence(file: Path, tmp_path: Path) -> None:
    """Any byte may be any other: what can be told is, or one sentence says that it cannot."""
    whole = file.read_bytes()
    damaged = tmp_path / "damaged.wpt"
    chance = random.Random(1)  # noqa: S311 - the same damage each time
    sentences = 0
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(chance.choice((1, 8, 64))):
            data[chance.randrange(len(data))] = chance.randrange(256)
        damaged.write_bytes(data)
        try:
            told(damaged)
        except WptraceError:
            sentences += 1
    assert 0 < sentences < 150


def test_a_capture_is_its_owners_alone(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        Capture(tmp_path / "file").end(0)
    finally:
        os.umask(mask)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_a_file_that_cannot_be_written_is_found_out_at_once(tmp_path: Path) -> None:
    with pytest.raises(WptraceError, match=r"none/file cannot be written: No such file or directory"):
        Capture(tmp_path / "none" / "file")


def test_a_full_disk_is_said(obj: BpfObject) -> None:
    capture = Capture(Path("/dev/full"))
    with pytest.raises(WptraceError, match="/dev/full cannot be written: No space left on device"):
        capture.begin(obj, Stories(obj, NAMES), START)
    capture.end(0)


def test_a_trace_that_never_began_leaves_no_capture(tmp_path: Path) -> None:
    path = tmp_path / "file"
    Capture(path).end(0)
    assert path.read_bytes() == b""
