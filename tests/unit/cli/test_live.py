# SPDX-License-Identifier: Apache-2.0
"""`wptrace join --live` with a made-up guest, whose channel sends pieces, broken data or hostile data."""

from __future__ import annotations

import io
import json
import os
import random
import select
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.unit.capture.made import START, entry, report
from tests.unit.capture.test_hostile import Frames, made, opened, wild
from tests.unit.cli.test_join import ABOUT, COUNT, HOST, IMAGES, Fields, guest, host, of_another, reported, write
from tests.unit.memory import traced
from wptrace.bpf.object import BpfObject
from wptrace.capture import channel, columns, frames
from wptrace.capture.channel import Channel
from wptrace.capture.frames import Kind
from wptrace.capture.reader import Arriving
from wptrace.capture.records import HEADER
from wptrace.capture.writer import About, CaptureOutput
from wptrace.cli.main import main
from wptrace.errors import UsageError, WptraceError
from wptrace.flows.io.guests import join as joining
from wptrace.flows.io.guests.joined import JOINED, Sums
from wptrace.flows.io.records import RECORDS
from wptrace.model.book import RING_FULL
from wptrace.model.report import Event
from wptrace.outputs.registry import NDJSON, Wanted, make
from wptrace.tools import join
from wptrace.tools import live as live_join
from wptrace.tools.live import LiveJoin

GUEST = START._replace(filters={"dev": ["vda"]})


class Lived(NamedTuple):
    lines: list[dict[str, Any]]
    trouble: str

    @property
    def joined(self) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["kind"] == "joined"]

    @property
    def summary(self) -> dict[str, Any]:
        return self.lines[-1]


class World:
    """A guest and its host by their captures, and the socket of the hypervisor."""

    def __init__(self, obj: BpfObject, folder: Path, listener: socket.socket) -> None:
        self.guest = write(obj, folder / "guest.wpt", GUEST, map(guest, range(COUNT)))
        self.host = write(obj, folder / "host.wpt", HOST, map(host, range(COUNT)))
        self.data, self.done = self.guest.read_bytes(), events(self.host)
        self.name, self._listener = os.path.relpath(folder / "wp.sock"), listener
        listener.bind(self.name)
        listener.listen(1)

    @contextmanager
    def joining(self, stream: io.StringIO, recorder: CaptureOutput | None = None) -> Iterator[LiveJoin]:
        """Begin a live join, and close it."""
        with closing(Channel(self.name)) as found:
            live = LiveJoin(found, {}, make(NDJSON, stream, "stages", Wanted()), recorder, 0)
            live.start(HOST)
            yield live
            live.close()

    def accept(self) -> socket.socket:
        return self._listener.accept()[0]

    def lived(
        self,
        *pieces: bytes,
        done: Sequence[Event] | None = None,
        recorder: CaptureOutput | None = None,
        others: Sequence[Event] = (),
    ) -> Lived:
        """Run a live join. Half of the host's events come before the guest's data; `others` are of another guest."""
        stream, done = io.StringIO(), self.done if done is None else done
        with self.joining(stream, recorder) as live:
            of_other_guest = live.of_other_guest()
            for event in others:
                of_other_guest.event(event)
            there = self.accept()
            for event in done[: len(done) // 2]:
                live.event(event)
            with there:
                for number, piece in enumerate(pieces):
                    if number == len(pieces) // 2:
                        for event in done[len(done) // 2 :]:
                            live.event(event)
                    if not sent(there, piece, live):
                        break
                    live.interval(report("interval", range(1), 10**9))
            while live.fd >= 0 and live.take():
                pass
            live.summary(report("summary", range(1), 10**9))
        return Lived([json.loads(line) for line in stream.getvalue().splitlines()], str(live.trouble or ""))


@pytest.fixture
def world(obj: BpfObject, tmp_path: Path) -> Iterator[World]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        yield World(obj, tmp_path, listener)


def events(path: Path) -> list[Event]:
    return join._read(path, "host", lambda event: event).events


def sent(there: socket.socket, piece: bytes, live: LiveJoin) -> bool:
    """Send a piece, at most as much at a time as a socket has room for."""
    for first in range(0, len(piece) or 1, 1 << 14):
        there.sendall(piece[first : first + (1 << 14)])
        live._due = 0
        if not live.take():
            return False
    return True


def cut(data: bytes, chance: random.Random) -> list[bytes]:
    places = sorted({0, len(data), *(chance.randrange(len(data)) for _ in range(9))})
    return [data[first:last] for first, last in zip(places, places[1:])]


@pytest.mark.parametrize("seed", range(4))
def test_it_is_joined_as_captures_are(world: World, seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    chance = random.Random(seed)  # noqa: S311 - not a secret
    found = world.lived(*(cut(world.data, chance) if seed else [world.data]))
    _, *expected, summary = reported(capsys, "join", world.guest, world.host, "--each")
    assert found.trouble == ""
    assert found.lines[0]["kind"] == "start"
    assert [{**line, "clocks": 0, "stages": 0} for line in found.joined] == [
        {**line, "clocks": 0, "stages": 0} for line in expected
    ]
    assert all(sum(line["stages"].values()) == line["total_ns"] for line in found.joined)
    assert found.summary["disks"] == summary["disks"]
    assert found.summary["requests"] == summary["requests"]
    assert sum(line["requests"]["finished"] for line in found.lines if line["kind"] == "interval") <= COUNT


def test_each_request_tells_once_of_the_clocks(obj: BpfObject, world: World, tmp_path: Path) -> None:
    """No matter how often it is looked at while it waits, or how far others narrow the offset."""
    chance = random.Random(0)  # noqa: S311 - not a secret
    shifts = [chance.randrange(-200, 200) for _ in range(COUNT)]
    begins = [int(host(n)["start_ns"]) + shift for n, shift in enumerate(shifts)]
    times: list[Fields] = [{**host(n), "start_ns": at, "end_ns": at + 600} for n, at in enumerate(begins)]
    there = write(obj, tmp_path / "uneven.wpt", HOST, times)
    found = world.lived(*cut(world.data, chance), done=events(there))
    assert found.summary["clocks"][0]["bounds"] == len(found.joined) == COUNT


def test_who_had_the_device_of_the_host_is_named(obj: BpfObject, world: World, tmp_path: Path) -> None:
    filters = {"pid": 9, "guest": "other", "images": IMAGES}
    other = write(obj, tmp_path / "other.wpt", HOST._replace(filters=filters), map(of_another, range(COUNT)))
    found = world.lived(world.data, others=events(other))
    (one,) = (one for one in found.summary["verdict"]["findings"] if one["rule"] == "neighbour")
    assert (one["who"], one["had"], one["waits"]) == ("other 9", 0.5, COUNT)


def test_a_capture_of_it_tells_the_same(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "both.wpt"
    recorder = CaptureOutput(file, About("stages", (JOINED,), each=True, intervals=True))
    found = world.lived(*cut(world.data, random.Random(0)), recorder=recorder)  # noqa: S311 - not a secret
    again = reported(capsys, "replay", file)
    assert [line for line in again if line["kind"] == "joined"] == found.joined != []
    assert (
        [line["requests"] for line in again if line["kind"] == "interval"]
        == [line["requests"] for line in found.lines if line["kind"] == "interval"]
        != []
    )


def test_a_channel_that_breaks_is_said(world: World) -> None:
    ends = list(frame_ends(world.guest))
    # Before anything, in the first bytes, in a frame, after the records, before the end.
    for length, joined in ((0, 0), (5, 0), (30, 0), (ends[-3] - 1, None), (ends[-2], COUNT)):
        found = world.lived(world.data[:length])
        assert found.trouble == f"{world.name} ended before the guest's trace did"
        assert found.summary["kind"] == "summary"
        assert joined is None or len(found.joined) == joined


def frame_ends(path: Path) -> Iterator[int]:
    with closing(frames.Reader(path)) as reader:
        yield from (frame.place + frame.length for frame in reader.frames())


def test_bytes_of_no_capture_are_said(world: World) -> None:
    assert "is not a capture of wptrace" in world.lived(b"x" * 100).trouble
    assert "no events of wptrace io" in world.lived(world.host.read_bytes()).trouble
    flipped = bytearray(world.data)
    flipped[len(flipped) // 2] ^= 4
    found = world.lived(bytes(flipped))
    assert "is damaged" in found.trouble
    assert found.summary["kind"] == "summary"


def test_what_nobody_wrote_ends_in_a_sentence(world: World, tmp_path: Path) -> None:
    chance = random.Random(20)  # noqa: S311 - not a secret
    whole, ended = opened(world.guest), 0
    for _ in range(100):
        found = world.lived(made(tmp_path / "hostile", wild(whole, chance)).read_bytes())
        ended += bool(found.trouble)
        assert found.summary["kind"] == "summary"
    assert 0 < ended < 100


def test_a_guest_that_asks_without_end_has_bounded_room(
    obj: BpfObject,
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All requests are at offsets that the host never read."""
    monkeypatch.setattr(joining, "MOST", 64)
    many = 5_000
    strange = write(obj, tmp_path / "many", GUEST, ({**guest(n), "sector": 1 << 40} for n in range(many)))
    with traced() as memory:
        found = world.lived(*cut(strange.read_bytes(), random.Random(1)))  # noqa: S311
    assert found.trouble == ""
    assert found.summary["requests"]["lost"] == many
    assert memory.peak < 32 << 20


def test_disks_and_operations_without_end_have_bounded_room() -> None:
    """The guest names the disk and the operation of each request."""
    many = 5_000
    fields = {"error": 0, "bytes": 512, "host": {"how": "whole", "cached": False}}
    sums = Sums()
    with traced() as memory:
        for number in range(many):
            group = JOINED.group(f"vd{number}", f"op{number}")
            sums.add(Event(group, 1, number, {"device": number}, fields))
        found = sums.report("summary", 1, 1)
    assert memory.peak < 32 << 20
    cells = found.cells
    assert JOINED.group("others", "others") in cells
    assert len(cells) < 1000
    assert sum(stages["total"].count for stages in cells.values()) == found.book.finished == many
    assert sum(stages["total"].sum for stages in cells.values()) == sum(range(many))
    assert found.bytes == 512 * many


def test_a_frame_of_many_records_holds_up_nobody(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred bytes may be thousands of records. In between, signals are handled and the host's ring is read."""
    whole = opened(world.guest)
    at, stride, row = first_record(whole)
    for count, sound in ((500, True), (Arriving.most_bytes // stride + 1, False)):
        data = HEADER.pack(0, count, 0) + bytes([1]) * (stride // 8) + row
        many = made(tmp_path / "many", [*whole[:at], (Kind.RECORDS, data), *whole[at + 1 :]]).read_bytes()
        assert len(many) < 1 << 16
        monkeypatch.setattr(live_join, "_AT_ONCE_S", 0.0)
        turns = 0
        with world.joining(io.StringIO()) as live, world.accept() as there:
            there.sendall(many)
            while live.fd >= 0 and select.select([live.fd], [], [], 10)[0] and live.take():
                turns += 1
        assert ("makes no sense" in str(live.trouble)) != sound, live.trouble
        assert (turns >= count) == sound


def first_record(frames: Frames) -> tuple[int, int, bytes]:
    """Return the number of the first frame of records, the length of a record, and the first one as a row."""
    stride = (next(content for kind, content in frames if kind == Kind.LAYOUT)["struct"][1] + 7) // 8 * 8
    at, content = next((at, content) for at, (kind, content) in enumerate(frames) if kind == Kind.RECORDS)
    _, count, _ = HEADER.unpack_from(content)
    return at, stride, bytes(columns.unpack(content[HEADER.size :], stride, count)[:stride])


@pytest.mark.parametrize("what", ["array", "moment"])
def test_values_that_no_program_writes_end_in_a_sentence(world: World, tmp_path: Path, what: str) -> None:
    whole = opened(world.guest)
    if what == "array":
        number = next(at for at, (kind, _) in enumerate(whole) if kind == Kind.LAYOUT)
        described = json.loads(json.dumps(whole[number][1]))
        fields = {name: (offset, one) for name, offset, one in described["struct"][2]}
        next(one for one in described["struct"][2] if one[0] == "inode")[2] = ["[]", ["u", 4], 2]
        assert fields["inode"][1] == ["u", 8]
        whole[number] = Kind.LAYOUT, described
        at, stride, row = first_record(whole)
        data = HEADER.pack(0, 1, 0) + bytes([1]) * (stride // 8) + row
    else:
        at, stride, row = first_record(whole)
        data = HEADER.pack(0, 1, (1 << 63) - 1) + bytes([1]) * (stride // 8) + row
    file = made(tmp_path / "strange", [*whole[:at], (Kind.RECORDS, data), *whole[at + 1 :]])
    found = world.lived(file.read_bytes())
    assert "makes no sense" in found.trouble
    assert found.summary["kind"] == "summary"


def test_what_the_host_lost_is_said(world: World) -> None:
    lost = report("summary", range(1), 10**9)
    lost.books["requests"].lost[RING_FULL] = 3
    stream = io.StringIO()
    with world.joining(stream) as live:
        live.summary(lost)
    assert json.loads(stream.getvalue().splitlines()[-1])["loss"]["ring_full"] == 3


@pytest.mark.parametrize("forgets", [False, True])
def test_names_without_end_have_bounded_room(world: World, tmp_path: Path, forgets: bool) -> None:
    """Names of groups or of cgroups: frames are small, but what they unpack to is not."""
    whole = opened(world.guest)
    at = next(number for number, (kind, _) in enumerate(whole) if kind == Kind.RECORDS)
    named = [
        (Kind.NAMES, {"cgroups": {str(one): f"{one}" + "x" * 8000 for one in range(number, number + 200)}})
        for number in range(1000, 13_000, 200)
    ]
    groups = [
        (
            Kind.NAMES,
            {"forget": forgets, "groups": [[0, f"{number} {one}" + "y" * (1 << 15), 0] for one in range(64)]},
        )
        for number in range(60)
    ]
    file = made(tmp_path / "names", [*whole[:at], *named, *groups, *whole[at:]])
    del named, groups
    with traced() as memory:
        found = world.lived(*cut(file.read_bytes(), random.Random(2)))  # noqa: S311
    assert bool(found.trouble) != forgets
    # The names, and another copy while they are unpacked.
    assert memory.peak < 3 * (1 << 25)


def test_what_the_host_did_for_nobody_is_forgotten(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "MOST", 50)
    again = [
        event._replace(fields={**event.fields, "image": {**event.fields["image"], "offset": 1 << 40}})
        for event in world.done
    ]
    found = world.lived(world.data, done=again + world.done)
    assert found.summary["loss"]["unasked"] >= COUNT - 10


def test_a_guest_that_was_paused_has_another_clock(obj: BpfObject, world: World, tmp_path: Path) -> None:
    """Its clock stood still, so requests in later pieces are matched with another offset."""
    many, paused = 6 * COUNT, 3 * COUNT
    output = CaptureOutput(tmp_path / "paused", ABOUT)
    take = output.raw(obj, RECORDS, ["other", "vda"], str)
    output.start(GUEST)
    for number in range(many):
        take(memoryview(entry(obj, 0, 0, **guest(number))))
        if number % 20 == 19:
            output._put()
    output.summary(report("summary", range(1, 3), 10**9))
    output.close()

    def later(number: int) -> Fields:
        found = host(number)
        late = 5 * 10**9 if number >= paused else 0
        return {**found, "start_ns": int(found["start_ns"]) + late, "end_ns": int(found["end_ns"]) + late}

    done = events(write(obj, tmp_path / "done", HOST, map(later, range(many))))
    ends = [0, *frame_ends(tmp_path / "paused")]
    data = (tmp_path / "paused").read_bytes()
    found = world.lived(*(data[first:last] for first, last in zip(ends, ends[1:])), done=done)
    assert found.summary["loss"]["jumped"] == 1
    assert many - 2 * COUNT - 20 <= found.summary["requests"]["finished"] <= many - 64
    assert found.summary["requests"]["lost"] == many - found.summary["requests"]["finished"]
    assert all(line["host"]["offset"] == line["sector"] * 512 for line in found.joined)


# --- Channels ---------------------------------------------------------------------------------------------------------


def test_a_socket_that_is_not_there_is_made_and_goes(tmp_path: Path) -> None:
    name = os.path.relpath(tmp_path / "new.sock")
    with closing(Channel(name)) as found:
        assert not Path(name).exists()
        found.open()
        assert Path(name).stat().st_mode & 0o777 == 0o700
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as there:
            there.connect(name)
            there.sendall(b"abc")
            assert found.read() == b""
            assert found.read() == b"abc"
            assert found.read() == b""
            assert not found.ended
        assert found.read() == b""
        assert found.ended
        assert found.fd < 0
    assert not Path(name).exists()


@pytest.mark.parametrize("name", ["vsock:", "vsock:x", "vsock:3", "vsock:2:3", "vsock:0:3", "vsock:3:4294967296"])
def test_names_that_are_no_channel(name: str) -> None:
    with pytest.raises(UsageError, match=r"is not a channel|names no guest"):
        Channel(name)


def test_a_file_is_no_channel(world: World, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a file, not a channel"):
        Channel(str(world.guest))
    with pytest.raises(WptraceError, match="cannot be read"):
        Channel(str(tmp_path / "no" / "folder")).open()


def test_a_reader_that_is_slow_gets_all(obj: BpfObject, tmp_path: Path) -> None:
    """A pipe holds less than all of it."""
    ours, theirs = os.pipe()
    got = bytearray()

    def read() -> None:
        while data := os.read(ours, 1000):
            got.extend(data)
            time.sleep(0.0001)

    reading = threading.Thread(target=read)
    reading.start()
    path = Path(f"/proc/self/fd/{theirs}")
    fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    os.close(theirs)
    data = os.urandom(300_000)
    left = memoryview(data)
    while left:
        left = left[channel.write(fd, left) :]
    os.close(fd)
    reading.join()
    os.close(ours)
    assert bytes(got) == data


def test_a_reader_that_never_reads_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "PATIENCE_S", 0.05)
    ours, theirs = os.pipe2(os.O_NONBLOCK)
    assert channel.write(theirs, memoryview(bytes(1 << 20))) < 1 << 20
    with pytest.raises(TimeoutError, match="nobody reads it"):
        channel.write(theirs, memoryview(bytes(1 << 20)))
    os.close(ours)
    os.close(theirs)


def test_options_that_do_not_go_together(world: World) -> None:
    for words, expected in (
        (["join", str(world.guest), str(world.host), "--pid", "1"], "--pid needs --live"),
        (["join", str(world.guest)], "takes two captures"),
        (["join", "--live", "x", "--disk", "vda"], "takes a disk"),
        (["join", "--live", "x", "0.001"], "too short"),
    ):
        with pytest.raises(UsageError, match=expected):
            main(words)


def test_the_kinds_of_frames_of_a_stream_are_those_of_a_file(world: World) -> None:
    stream = frames.Stream(world.guest)
    assert stream.cut
    kinds = [(frame.kind, stream.payload(frame)) for byte in world.data for frame in stream.feed(bytes([byte]))]
    assert not stream.cut
    with closing(frames.Reader(world.guest)) as reader:
        assert kinds == [(frame.kind, reader.payload(frame)) for frame in reader.frames()]
    assert kinds[-1][0] == Kind.END
