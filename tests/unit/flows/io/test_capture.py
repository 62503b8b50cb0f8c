# SPDX-License-Identifier: Apache-2.0
"""Files of captured records: what was written is told, however much of it is there; damage is said in a sentence."""

from __future__ import annotations

import os
import random
import resource
import signal
import struct
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.unit.flows.io.test_records import NAMES, packed
from wptrace.bpf.object import BpfObject, open_object
from wptrace.bpf.ring import DISCARD
from wptrace.cli.main import main
from wptrace.engine.capture import Reader, Writer
from wptrace.errors import UsageError, WptraceError
from wptrace.flows.io.capture import Capture, _layout, replay
from wptrace.flows.io.kinds import KINDS
from wptrace.flows.io.records import Stories
from wptrace.model.report import Event, Source, Start

START = Start("io", "path", "6.12.0", {"dev": ["sda"], "pid": 7}, [Source("fs", "fentry")], KINDS, ["a note"])
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


def told(path: Path) -> tuple[Start, list[list[Event]]]:
    with replay(path) as found:
        return found.start(), list(found.events())


def test_what_was_written_is_told(file: Path) -> None:
    start, batches = told(file)
    assert start == START._replace(file=str(file))
    assert [len(batch) for batch in batches] == BATCHES
    events = [event for batch in batches for event in batch]
    assert [event.total_ns for event in events] == list(range(sum(BATCHES)))
    assert {(event.group.label("dev"), event.fields["pid"]) for event in events} == {(NAMES[1], 7)}


def test_names_of_cgroups_are_those_of_the_capture(
    obj: BpfObject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wptrace.kernel.cgroup_names.CgroupNames.all", lambda _: {1: "/", 55: "/batch\n"})
    _, batches = told(write(obj, tmp_path / "trace.wpt"))
    assert {event.fields["cgroup"] for batch in batches for event in batch} == {"/batch\n"}


def test_what_was_lost_is_noted(obj: BpfObject, tmp_path: Path) -> None:
    start, _ = told(write(obj, tmp_path / "trace.wpt", lost=1234))
    assert start.notes == ["a note", "the ring had no room for 1,234 records: they are missing"]


def test_a_file_that_was_cut_off_is_told_as_far_as_it_goes(obj: BpfObject, file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    _, every = told(file)
    everything = [event for batch in every for event in batch]
    cut = tmp_path / "cut.wpt"
    size, before = len(entry(obj, 0)), 0
    first = whole.index(b"\n") + 1
    for length in [*range(first, len(whole) - 1, size // 3 + 1), len(whole) - 1, len(whole)]:
        cut.write_bytes(whole[:length])
        start, batches = told(cut)
        found = [event for batch in batches for event in batch]
        assert found == everything[: len(found)]
        assert before <= len(found)
        before = len(found)
        ended = "the capture has no end: its trace was cut off, and what it told last may be missing" not in start.notes
        assert ended == (length == len(whole))
    assert before == len(everything)


@pytest.mark.parametrize("data", [b"", b"\n", b"[1]\n", b"\xff\xfe\n", b"root:x:0:0\n", b'{"magic": "wptrace cpu"}\n'])
def test_another_file_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(WptraceError, match="is no capture of wptrace"):
        told(path)


# --- Damage -----------------------------------------------------------------------------------------------------------


def test_every_flipped_bit_is_noticed(file: Path, tmp_path: Path) -> None:
    """Nothing that was not written is told: what comes before the damage is, then one sentence ends it."""
    whole = file.read_bytes()
    _, every = told(file)
    expected = [event for batch in every for event in batch]
    damaged = tmp_path / "damaged.wpt"
    chance = random.Random(1)  # noqa: S311 - the same damage each time
    first = whole.index(b"\n") + 1
    places = [*range(0, first, 3), *range(len(whole) - 100, len(whole))]
    for place in [*places, *(chance.randrange(len(whole)) for _ in range(100))]:
        data = bytearray(whole)
        data[place] ^= 1 << chance.randrange(8)
        damaged.write_bytes(data)
        found: list[Event] = []
        try:
            with replay(damaged) as opened:
                noted = "has no end" in "".join(opened.start().notes)
                for batch in opened.events():
                    found += batch
        except WptraceError as error:
            assert "is damaged" in error.message or "is no capture" in error.message  # noqa: PT017
        else:
            # The end of the last line is all that can look like a trace that was cut off.
            assert noted
            assert place == len(whole) - 1
        assert [one._replace(fields={}) for one in found] == [one._replace(fields={}) for one in expected[: len(found)]]


def test_batches_are_those_of_one_capture_in_their_order(obj: BpfObject, tmp_path: Path) -> None:
    path = tmp_path / "file"
    writer = Writer(path)
    writer.begin({"magic": "x"})
    start = path.stat().st_size
    for data in (b"one", b"two"):
        writer.add(data)
    middle = start + (path.stat().st_size - start) // 2
    writer.end({})
    writer.close()
    whole = path.read_bytes()
    assert pieces(path) == [b"one", b"two"]
    last = 2 * middle - start
    for data in (
        whole[:start] + whole[middle:last] + whole[start:middle] + whole[last:],
        whole[:start] + whole[middle:],
        whole.replace(b"x", b"y", 1),
        whole[:-2] + b"x\n",
        whole + b"x",
    ):
        path.write_bytes(data)
        with pytest.raises(WptraceError, match=r"is damaged|is no capture"):
            pieces(path)


def pieces(path: Path) -> list[bytes]:
    with path.open("rb") as file:
        reader = Reader(path, file)
        reader.head("x")
        reader.tail()
        return [piece for batch in reader.batches() for piece in reader.pieces(batch, 1)]


@pytest.mark.parametrize("length", [1, 8, 4096, 1 << 40, (1 << 64) - 1])
def test_a_sparse_file_takes_a_piece_at_a_time(tmp_path: Path, length: int) -> None:
    """A batch of any size may be in a file of a few bytes; the frame's own checksum is as it should be."""
    path = tmp_path / "file"
    writer = Writer(path)
    writer.begin({"magic": "x"})
    start = path.stat().st_size
    frame = struct.pack("<QqI", length, 0, 0)
    own = zlib.crc32(frame, zlib.crc32(bytes(8), writer._seed))
    writer._write(frame + struct.pack("<I", own))
    writer.close()
    os.truncate(path, start + 24 + min(length, 64 << 20))
    tracemalloc.start()
    try:
        if length > 1 << 30:
            assert sum(map(len, pieces(path))) == 64 << 20
        else:
            with pytest.raises(WptraceError, match="has another checksum than was written"):
                pieces(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 80 << 20  # what was collected here


HEAD: dict[str, Any] = {
    "magic": "wptrace io",
    "version": "9",
    "layout": "of another one",
    "names": ["sda"],
    "kernel": "6.12.0",
    "filters": {"dev": ["sda"], "pid": 7},
    "sources": [["fs", "fentry"]],
    "notes": [],
}
TAIL = {"cgroups": {"1": "/"}, "unnamed": 0, "lost": 0}
ODD = [
    None,
    True,
    -1,
    1.5,
    float("nan"),
    "x",
    [],
    [1],
    [[1]],
    [["x"]],
    {},
    {"x": []},
    {"dev": 1},
    {"dev": [1]},
    {"x": {}},
]


def made(path: Path, head: dict[str, Any], tail: dict[str, Any]) -> Path:
    """As somebody else may make one: its checksums are as they should be."""
    writer = Writer(path)
    writer.begin(head)
    writer.end(tail)
    writer.close()
    return path


@pytest.mark.parametrize("name", [name for name in HEAD if name != "magic"])
def test_each_field_of_the_first_line_is_looked_at(tmp_path: Path, name: str) -> None:
    path = tmp_path / "file"
    for value in ODD:
        with pytest.raises(WptraceError, match=r"its first line makes no sense|whose records are not those"):
            told(made(path, {**HEAD, name: value}, TAIL))
    with pytest.raises(WptraceError, match="its first line makes no sense"):
        told(made(path, {key: value for key, value in HEAD.items() if key != name}, TAIL))


def test_a_capture_of_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WptraceError, match="was captured by wptrace 9, whose records are not those of"):
        told(made(tmp_path / "file", HEAD, TAIL))


@pytest.mark.parametrize("name", list(TAIL))
def test_each_field_of_the_last_line_is_looked_at(obj: BpfObject, tmp_path: Path, name: str) -> None:
    path = tmp_path / "file"
    head = {**HEAD, "layout": _layout(obj, Stories(obj, ["sda"]))}
    assert told(made(path, head, TAIL)) == (told(path)[0], [])
    for value in (*ODD, {"x": "y"}, {"-1": "y"}, {"9" * 99: "y"}, {"1": 1}):
        try:
            told(made(path, head, {**TAIL, name: value}))
        except WptraceError as error:
            assert "its last line makes no sense" in error.message  # noqa: PT017
        else:
            assert value == ({} if name == "cgroups" else -1)
    without = {key: value for key, value in TAIL.items() if key != name}
    with pytest.raises(WptraceError, match="its last line makes no sense"):
        told(made(path, head, without))


@pytest.mark.parametrize(
    "text", [b'{"magic": "wptrace io", "notes": ' + b"[" * 100_000, b'{"magic": "wptrace io", "x": ' + b"9" * 10_000]
)
def test_json_that_no_parser_takes(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(text + b" %08x\n" % zlib.crc32(text))
    with pytest.raises(WptraceError, match="is damaged: what begins at 0 makes no sense"):
        told(path)


def wild(obj: BpfObject, chance: random.Random) -> bytes:
    """A record some of whose fields have values that none has, and of which the names fit."""
    layout = obj.struct("io_record")
    values = dict(zip(layout.fields, layout.struct.unpack(bytes(layout.size))))
    for name in chance.sample(list(values), chance.choice((3, 10, 30))):
        if isinstance(values[name], bytes):
            values[name] = chance.choice((b"\x1b[2J", b"\xff\0\x85\n", b"a" * 999))[: len(values[name]) or 999]
        elif name not in ("kind", "op", "slot", "interface", "request_op"):
            values[name] = chance.choice((1, 77, -1, 127, (1 << 16) - 1, (1 << 32) - 1, (1 << 63) - 1, (1 << 64) - 1))
        with suppress(struct.error):
            layout.struct.pack(*values.values())
            continue
        values[name] = 1
    payload = bytes(layout.struct.pack(*values.values()))
    return struct.pack("<II", len(payload), 0) + payload + bytes(-len(payload) % 8)


@pytest.mark.parametrize("options", [[], ["--json"], ["-T"]])
def test_records_that_nobody_wrote(
    obj: BpfObject, tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Any byte of them may be any other, and the checksums right: they are told, or one sentence refuses them."""
    path = tmp_path / "file"
    chance = random.Random(2)  # noqa: S311 - the same damage each time
    stories = Stories(obj, NAMES)
    sentences, rounds = 0, 120
    for turn in range(rounds):
        data = bytearray(wild(obj, chance) if turn % 2 else entry(obj, 5) + entry(obj, 7))
        for _ in range(chance.choice((1, 8, 64, 512)) if not turn % 2 else 0):
            data[chance.randrange(8 if chance.random() < 0.1 else len(data))] = chance.choice(
                (0, 1, 0x1B, 0x7F, 0x80, 0xFF, chance.randrange(256))
            )
        writer = Writer(path)
        writer.begin({**HEAD, "layout": _layout(obj, stories), "names": NAMES})
        writer.add(bytes(data), chance.choice((0, -(1 << 63), (1 << 63) - 1, 1_700_000_000 * 10**9)))
        writer.end(TAIL)
        writer.close()
        try:
            assert main(["replay", str(path), *options]) == 0
        except WptraceError as error:
            assert "is damaged" in error.message  # noqa: PT017
            sentences += 1
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert "\x7f" not in out
    assert 0 < sentences < rounds


def test_no_escapes_of_a_capture_reach_the_terminal(
    obj: BpfObject, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = "\x1b[2J\r\x85"
    head = {
        **HEAD,
        "layout": _layout(obj, Stories(obj, [bad])),
        "names": [bad],
        "kernel": bad,
        "filters": {"dev": [bad], bad: bad},
        "notes": [bad],
    }
    assert main(["replay", str(made(tmp_path / "file", head, TAIL))]) == 0
    out = capsys.readouterr().out
    assert out.count("[2J") == 5
    assert not {"\x1b", "\r", "\x85"} & set(out)


# --- The file ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["itself", "a link", "a hard link", "a path"])
def test_a_capture_is_not_replayed_into_itself(file: Path, tmp_path: Path, way: str) -> None:
    before = file.read_bytes()
    output = tmp_path / "output"
    if way == "a link":
        output.symlink_to(file)
    elif way == "a hard link":
        os.link(file, output)
    else:
        output = file if way == "itself" else tmp_path / "." / ".." / tmp_path.name / file.name
    with pytest.raises(UsageError, match="are the same file"):
        main(["replay", str(file), "-o", str(output)])
    assert file.read_bytes() == before


def test_nor_by_the_shell(file: Path) -> None:
    with file.open("ab") as output:
        done = subprocess.run(
            [sys.executable, "-m", "wptrace", "replay", str(file)], stdout=output, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 2
    assert b"are the same file" in done.stderr


def test_times_of_day_are_those_of_each_batch(obj: BpfObject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a long trace, in which the clock is set."""
    offsets = iter((1000, 5000))
    monkeypatch.setattr("wptrace.flows.io.capture.wall_offset_ns", lambda: next(offsets))
    path = tmp_path / "file"
    capture = Capture(path)
    capture.begin(obj, Stories(obj, NAMES), START)
    for _ in range(2):
        capture.add(memoryview(entry(obj, 7)))
    capture.end(0)
    _, batches = told(path)
    assert [event.end_ns for batch in batches for event in batch] == [1107, 5107]


def test_names_of_cgroups_that_find_no_room_are_noted(
    obj: BpfObject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = dict.fromkeys(range(1, 2000), "/" + "x" * 4000)
    monkeypatch.setattr("wptrace.kernel.cgroup_names.CgroupNames.all", lambda _: many)
    start, batches = told(write(obj, tmp_path / "trace.wpt"))
    (note,) = start.notes[1:]
    assert 0 < int(note.split()[0].replace(",", "")) < 2000
    assert {event.fields["cgroup"] for batch in batches for event in batch} == {many[55]}


def test_what_was_written_in_part_has_no_end(obj: BpfObject, tmp_path: Path) -> None:
    """A disk that was full may have room again when the trace ends."""
    path = tmp_path / "file"
    capture = Capture(path)
    capture.begin(obj, Stories(obj, NAMES), START)
    before = path.stat().st_size
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (before + 100, limit[1]))
    try:
        with pytest.raises(WptraceError, match="cannot be written: File too large"):
            capture.add(memoryview(entry(obj, 7)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, ignored)
    capture.end(0)
    assert path.stat().st_size == before + 100
    assert told(path)[1] == [[]]


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
