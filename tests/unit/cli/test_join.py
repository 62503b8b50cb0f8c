# SPDX-License-Identifier: Apache-2.0
"""`wptrace join` of captures that no trace wrote: its results, and that it trusts neither side."""

from __future__ import annotations

import itertools
import json
import random
import re
import shutil
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Union

import pytest

from tests.thorough import cases
from tests.unit.capture.made import START, entry, report
from tests.unit.capture.test_hostile import Frames, made, opened, spoilt, wild
from wptrace.bpf.object import BpfObject
from wptrace.capture.frames import Kind
from wptrace.capture.writer import About, CaptureOutput
from wptrace.cli.main import main
from wptrace.errors import UsageError, WptraceError
from wptrace.flows.io.kinds import OPERATION, REQUEST
from wptrace.flows.io.parts import kicks
from wptrace.flows.io.records import RECORDS
from wptrace.kernel.blockdev import kernel_dev
from wptrace.model.report import Start
from wptrace.tools import join

ABOUT = About("stages", (OPERATION, REQUEST), each=True)
IMAGE = "/srv/web.img"
IMAGES = [{"path": IMAGE, "format": "raw", "inode": 11, "maj_min": ""}]
GUEST = START._replace(filters={"dev": ["vda"]})
HOST = START._replace(flow="host", filters={"pid": 7, "guest": "web", "images": IMAGES})
AHEAD, COUNT = 10**12, 40
TIMES = ("start_ns", "handed_ns", "seen_ns", "end_ns")
CASES = cases(150, 40)
Fields = dict[str, Union[int, bytes]]
STAGES = 10


def guest(number: int) -> Fields:
    """Make a read of 4096 bytes in the guest: 100 ns each before H and after S, and 1000 ns in between."""
    start = 10_000 * (number + 1)
    times: Fields = {"start_ns": start, "handed_ns": start + 100, "seen_ns": start + 1100, "end_ns": start + 1200}
    stages: Fields = {"stages[1]": 100, "stages[8]": 1000, "stages[10]": 100}
    return {**times, **stages, "sector": number * 8, "bytes": 4096, "dev": kernel_dev(254, 0), "requests": 1}


def host(number: int) -> Fields:
    """Make the host's part: 600 ns, of which 200 ns are the disk's."""
    start = AHEAD + 10_000 * (number + 1) + 300
    stages: Fields = {"stages[1]": 400, "stages[8]": 200}
    path = b"web.img\0srv\0"
    place: Fields = {"offset": number * 4096, "length": 4096, "inode": 11, "path": path, "path_end": len(path)}
    return {"start_ns": start, "end_ns": start + 600, "requests": 1, **stages, **place}


def write(
    obj: BpfObject, path: Path, start: Start, found: Iterable[Fields], heard: Iterable[tuple[int, int, int, int]] = ()
) -> Path:
    """Write a capture. `heard` are uses of eventfds: time, thread, eventfd, and whether it was read."""
    output = CaptureOutput(path, ABOUT)
    take = output.raw(obj, RECORDS, ["other", "vda"], str)
    hear = output.raw(obj, kicks.RECORDS, [])
    output.start(start)
    for one in heard:
        hear(memoryview(struct.pack("<IIQIiII", 24, 0, *one, 0)))
    for values in found:
        # Drop the fields that only a plain entry has.
        take(memoryview(entry(obj, 0, 0, **values)))
    output.summary(report("summary", range(1, 3), 10**9))
    output.close()
    return path


@pytest.fixture
def both(obj: BpfObject, tmp_path: Path) -> tuple[Path, Path]:
    return (
        write(obj, tmp_path / "guest.wpt", GUEST, map(guest, range(COUNT))),
        write(obj, tmp_path / "host.wpt", HOST, map(host, range(COUNT))),
    )


def trail(obj: BpfObject, *stretches: tuple[str, int]) -> Fields:
    """Make the segments of `--segments`: the stage of each, and its end."""
    bits, stages = obj.constants["SEGMENT_STAGE_BITS"], obj.enum("op_stage")
    return {f"trail__segments[{at}]": end << bits | stages.index(name) for at, (name, end) in enumerate(stretches)}


def reported(capsys: pytest.CaptureFixture[str], *words: object) -> list[dict[str, Any]]:
    assert main([*map(str, words), "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_both_sides_are_one(both: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    start, *events, summary = reported(capsys, "join", *both, "--each")
    assert (summary["requests"]["started"], summary["requests"]["finished"]) == (COUNT, COUNT)
    assert summary["disks"] == [{"dev": "vda", "image": IMAGE}]
    assert start["file"] == f"{both[0]} and {both[1]}"
    for number, event in enumerate(events):
        stages = event["stages"]
        assert sum(stages.values()) == event["total_ns"] == 1200
        assert (stages["fs_ns"], stages["host_fs_ns"], stages["host_device_ns"]) == (100, 400, 200)
        assert stages["to_host_ns"] + stages["back_ns"] == 400
        assert event["clocks"]["least_ns"] <= AHEAD <= event["clocks"]["most_ns"]
        assert (event["host"]["image"], event["host"]["offset"]) == (IMAGE, 4096 * number)
    assert [event["kind"] for event in events] == ["joined"] * COUNT


def test_a_capture_of_both_tells_the_same(
    both: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "both.wpt"
    _, *events, summary = reported(capsys, "join", *both, "--each", "--capture", place)
    start, *again, after = reported(capsys, "replay", place)
    assert again == events
    assert {name: after[name] for name in after if name != "overhead"} == {
        name: summary[name] for name in summary if name != "overhead"
    }
    assert start["flow"] == "join"
    # The offset from the start is the same as in the guest's capture.
    _, *some, _ = reported(capsys, "replay", place, "--since", "100us")
    assert 0 < len(some) < COUNT
    # A capture has everything, no matter what is shown.
    reported(capsys, "join", *both, "--capture", place)
    assert len(reported(capsys, "replay", place)) == COUNT + 2


def test_what_is_joined_comes_in_intervals(obj: BpfObject, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A page has a column for each second, a capture the same figures; unmatched requests are in their second too."""

    def at(values: Fields, number: int) -> Fields:
        later = 2_500_000_000 if number >= 30 else 0
        return {name: int(value) + later if name in TIMES else value for name, value in values.items()}

    ours = write(obj, tmp_path / "guest.wpt", GUEST, (at(guest(number), number) for number in range(COUNT)))
    found = (at(host(number), number) for number in range(COUNT) if number != 35)
    theirs = write(obj, tmp_path / "host.wpt", HOST, found)
    place, page, lines = tmp_path / "both.wpt", tmp_path / "page", tmp_path / "lines"
    files = ("--report", page, "--export", f"json={lines}")
    _, summary = reported(capsys, "join", ours, theirs, "--capture", place, *files)
    assert (summary["requests"]["finished"], summary["loss"]["unserved"]) == (COUNT - 1, 1)
    parts = intervals(lines)
    assert parts == [(30, {}), (0, {}), (COUNT - 31, {"unserved": 1})]
    data = json.loads(re.findall(r'id="data">(.*?)</script>', page.read_text())[0])
    assert len(data["columns"]) == 2
    lines.unlink()
    reported(capsys, "replay", place, "--export", f"json={lines}")
    assert intervals(lines) == parts


def intervals(path: Path) -> list[tuple[int, dict[str, int]]]:
    found = [line for line in map(json.loads, path.read_text().splitlines()) if line["kind"] == "interval"]
    return [(line["requests"]["finished"], line["loss"]) for line in found]


def test_both_sides_are_reported_from_when_to_when(
    obj: BpfObject, both: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Even if the host alternates between parts of one stage, or one side only has sums."""
    ours = trail(obj, ("fs", 100), ("device", 1100), ("return", 1200))
    theirs = trail(obj, ("fs", 100), ("device", 300), ("fs", 600))
    guest_cap, host_cap = (tmp_path / name for name in ("guest-segments.wpt", "host-segments.wpt"))
    write(obj, guest_cap, START._replace(filters={"dev": ["vda"]}), ({**guest(n), **ours} for n in range(COUNT)))
    write(obj, host_cap, HOST, ({**host(n), **theirs} for n in range(COUNT)))
    capture = tmp_path / "joined.wpt"
    cases = (
        (host_cap, [("host_fs", 100), ("host_device", 200), ("host_fs", 300)]),
        (both[1], [("host_fs", 400), ("host_device", 200)]),
    )
    for side, expected in cases:
        _, *events, _ = reported(capsys, "join", guest_cap, side, "--each", "--capture", capture)
        assert len(events) == COUNT
        for event in events:
            found = [(one["stage"], one["to_ns"] - one["from_ns"]) for one in event["segments"]]
            to_host, back = event["stages"]["to_host_ns"], event["stages"]["back_ns"]
            assert found == [("fs", 100), ("to_host", to_host), *expected, ("back", back), ("return", 100)]
        _, *again, _ = reported(capsys, "replay", capture)
        assert again == events
    _, *events, _ = reported(capsys, "join", both[0], host_cap, "--each")
    assert len(events) == COUNT
    assert not any("segments" in event for event in events)


def test_kicks_are_reported(
    obj: BpfObject, both: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A kick is 100 ns before the host's part and an answer 50 ns after it; the pickup is 40 ns after the kick."""
    begins = [int(host(number)["start_ns"]) for number in range(COUNT)]
    heard = [
        one
        for at in begins
        for one in ((at - 100, 6, 3, 0), (at - 60, 9, 3, 1), (at + 650, 9, 4, 0), (at + 660, 9, 4, 1))
    ]
    there = write(
        obj,
        tmp_path / "kicks.wpt",
        HOST._replace(filters={**HOST.filters, "kicks": True}),
        map(host, range(COUNT)),
        heard,
    )
    start, *events, summary = reported(capsys, "join", both[0], there, "--each")
    assert summary["kicks"] == [{"image": IMAGE, "tid": 9, "kicks": COUNT, "alone": COUNT, "given_back": COUNT}]
    assert any(note.startswith(f"{IMAGE}: thread 9 read {COUNT} kicks") for note in start["notes"])
    for number, event in enumerate(events):
        stages = event["stages"]
        assert sum(stages.values()) == event["total_ns"] == 1200
        assert [stages[f"host_{name}_ns"] for name in ("pickup", "prepare", "fs", "give_back")] == [40, 60, 400, 50]
        at = begins[number]
        assert event["host"]["kick"] == {
            "tid": 9, "kicked_ns": at - 100, "picked_ns": at - 60, "given_ns": at + 650
        }  # fmt: skip
    # A replay of the host's capture alone has the operations.
    _, *alone, _ = reported(capsys, "replay", there)
    assert len(alone) == COUNT


def test_files_are_not_overwritten_that_are_read(both: tuple[Path, Path], tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copy(both[1], other)
    files = [*map(str, both), "--beside", str(other)]
    for option, read in itertools.product(("--capture", "-o", "--report"), (both[1], other)):
        with pytest.raises(UsageError, match="would overwrite the other"):
            main(["join", *files, option, str(read)])
    assert all(path.stat().st_size > 100 for path in (*both, other))


def test_what_has_no_single_ones_is_refused(obj: BpfObject, both: tuple[Path, Path], tmp_path: Path) -> None:
    empty = write(obj, tmp_path / "empty", HOST, [])
    block = write(obj, tmp_path / "block", START._replace(level="block"), map(guest, range(3)))
    elsewhere = write(obj, tmp_path / "far", HOST, ({**host(number), "offset": 1 << 40} for number in range(9)))
    ours, theirs = both
    for words, expected in (
        ((ours, empty), "has no events of wptrace host"),
        ((block, theirs), "has no events of wptrace io"),
        ((theirs, ours), "has no events of wptrace io"),
        ((ours, elsewhere), "are of different guests or different times"),
        ((ours, tmp_path / "none"), "No such file"),
    ):
        with pytest.raises(WptraceError, match=expected):
            main(["join", *map(str, words)])


def test_there_is_a_bound(both: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "_MOST", COUNT - 1)
    with pytest.raises(WptraceError, match="has more than 39 operations: join a shorter time"):
        main(["join", *map(str, both)])


@pytest.mark.parametrize(
    ("side", "values"),
    [
        (0, {"stages[1]": 101}),
        (0, {"end_ns": 5}),
        (0, {"seen_ns": 1}),
        (1, {"stages[8]": (1 << 64) - 1}),
        (1, {"kind": 200}),
        (1, {"slot": 999}),
    ],
    ids=str,
)
def test_records_that_make_no_sense(
    obj: BpfObject, both: tuple[Path, Path], side: int, values: Fields, tmp_path: Path
) -> None:
    made_by, start = ((guest, START), (host, HOST))[side]
    files = list(both)
    files[side] = write(obj, tmp_path / "wrong", start, [made_by(0), {**made_by(1), **values}])
    with pytest.raises(WptraceError, match="is damaged"):
        main(["join", *map(str, files)])


def of_another(number: int) -> Fields:
    """Make a request that has the device for as long as the guest's own is under way on the host."""
    begin = AHEAD + 10_000 * (number + 1) + 300
    return {**host(number), "tgid": 9, "stages[1]": 0, "stages[8]": 600, "start_ns": begin, "end_ns": begin + 600}


def test_who_had_the_device_of_the_host_is_named(
    obj: BpfObject, both: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filters = {"pid": 9, "guest": "other", "images": IMAGES}
    other = write(obj, tmp_path / "other.wpt", HOST._replace(filters=filters), map(of_another, range(COUNT)))
    *_, alone = reported(capsys, "join", *both)
    assert "neighbour" not in [one["rule"] for one in alone["verdict"]["findings"]]
    *_, summary = reported(capsys, "join", *both, "--beside", other)
    (found,) = (one for one in summary["verdict"]["findings"] if one["rule"] == "neighbour")
    # 200 of 1,200 ns each, during which both had the device.
    assert (found["share"], found["had"], found["waited_ns"], found["waits"]) == (0.1667, 0.5, 200 * COUNT, COUNT)
    assert found["who"] == "other 9"
    assert (
        "waiting for vda takes 17% of the requests of vda of the guest: other 9 had 50% of it meanwhile"
        in (summary["verdict"]["text"])
    )
    # The two do not overlap in time, or are of different devices.
    later = write(obj, tmp_path / "later", HOST, ({**of_another(n), "start_ns": 5, "end_ns": 605} for n in range(9)))
    *_, summary = reported(capsys, "join", *both, "--beside", later)
    assert "neighbour" not in [one["rule"] for one in summary["verdict"]["findings"]]


@pytest.fixture
def frames(both: tuple[Path, Path]) -> Frames:
    return opened(both[1])


@pytest.mark.parametrize("images", [[], [{}], [{"path": 1}], "x", [{**IMAGES[0], "inode": "11"}]], ids=str)
def test_images_that_make_no_sense(both: tuple[Path, Path], frames: Frames, images: Any, tmp_path: Path) -> None:
    filters = {"pid": 7, "guest": "web", "images": images}
    path = made(tmp_path / "wrong", spoilt(frames, Kind.START, filters=filters))
    for words in (["join", str(both[0]), str(path)], ["replay", str(path)]):
        if images or words[0] == "join":
            with pytest.raises(WptraceError):
                main(words)


def test_what_nobody_wrote_ends_in_a_sentence(
    both: tuple[Path, Path], frames: Frames, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(19)  # noqa: S311 - not a secret
    ended = 0
    for case in range(CASES):
        path = made(tmp_path / "hostile", wild(frames, chance))
        words = ["join", str(both[0]), str(path), "--each", *(["--json"] if case % 2 else [])]
        try:
            assert main(words) == 0
        except WptraceError:
            ended += 1
    shown = capsys.readouterr()
    assert "\x1b" not in shown.out + shown.err
    assert 0 < ended < CASES
