# SPDX-License-Identifier: Apache-2.0
"""Captures: whatever part of one is there is shown, and damage is reported in a sentence."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import stat
import struct
from contextlib import closing
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.thorough import ALL
from tests.unit.capture.made import ABOUT, START, entry, keep, replayed, report, totals, write
from wptrace.bpf.object import BpfObject
from wptrace.capture import channel, columns, spec, zstd
from wptrace.capture.frames import Kind, Reader
from wptrace.capture.reader import Capture, Records
from wptrace.capture.writer import CaptureOutput
from wptrace.cli.main import main
from wptrace.errors import UsageError, WptraceError
from wptrace.flows.io.records import RECORDS, as_asked
from wptrace.kernel import files
from wptrace.model.kind import BYTES_FIELD, CounterField, Noun
from wptrace.model.kind import Kind as ModelKind
from wptrace.model.report import Report


@pytest.fixture
def file(obj: BpfObject, tmp_path: Path) -> Path:
    return write(obj, tmp_path / "trace.wpt")


def test_what_was_written_is_reported(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start, *reported, summary = replayed(file, capsys)
    assert (start["flow"], start["filters"], start["notes"], start["file"]) == (
        "io",
        START.filters,
        START.notes,
        str(file),
    )
    assert [one["total_ns"] for one in reported] == list(range(8))
    assert {(one["kind"], one["dev"], one["pid"], one["comm"], one["cgroup"]) for one in reported} == {
        ("operation", "sda", 7, "fio", "/cgroup55")
    }
    (total,) = totals(summary)
    assert (total["count"], total["sum_ns"], total["max_ns"], summary["duration_ns"]) == (8, 28, 7, 3_000_000_000)


def test_kinds_of_a_capture_have_their_counters() -> None:
    """Even kinds that no flow of this version has."""
    packets = CounterField("packets", "how many went with it", "packets")
    written = spec.of_kind(ModelKind("segment", Noun("segment"), (), sized=True, counters=[packets]))
    read = spec.kind({**json.loads(json.dumps(written)), "name": "other"})
    assert read.counters == (BYTES_FIELD, packets)
    with pytest.raises(ValueError, match="too many counters"):
        spec.kind({**written, "counters": [list(packets)] * 200})
    del written["counters"]
    assert spec.kind({**written, "name": "earlier"}).counters == (BYTES_FIELD,)


def items(path: Path) -> tuple[list[int], list[int]]:
    """Return the number of records in each item, and the operations of each report."""
    with closing(Capture(path)) as capture:
        found = list(capture.items())
    records = [len(one.rows) // capture.layouts[0].stride for one in found if isinstance(one, Records)]
    reports = [one.books["operations"].finished for one in found if isinstance(one, Report)]
    return records, reports


def test_what_was_cut_off_is_reported_as_far_as_it_goes(
    obj: BpfObject, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = file.read_bytes()
    cut = tmp_path / "cut"
    with closing(Reader(file)) as reader:
        frames = list(reader.frames())
    head_end = next(frame.place + frame.length for frame in frames if frame.kind == Kind.START)
    found = set()
    lengths = {frame.place + frame.length + by for frame in frames for by in (-1, 0, 1, 15)}
    for length in sorted(lengths | set(range(0, len(data), 61))):
        cut.write_bytes(data[:length])
        if length < head_end:
            with pytest.raises(WptraceError, match=r"is not a capture|cut off before it began"):
                Capture(cut)
            continue
        records, reports = items(cut)
        assert (records, reports) == ([3, 1, 4][: len(records)], [3, 1, 4, 8][: len(reports)])
        assert len(records) in (len(reports), len(reports) + 1) or len(reports) == 4
        found.add((len(records), len(reports)))
    assert found == {(0, 0), (1, 0), (1, 1), (2, 1), (2, 2), (3, 2), (3, 3), (3, 4)}
    # A note says what is missing, and the summary is made of the intervals that are there.
    second = [frame for frame in frames if frame.kind == Kind.INTERVAL][5]
    cut.write_bytes(data[: second.place + second.length + 1])
    records, reports = items(cut)
    start, *reported, summary = replayed(cut, capsys)
    assert start["notes"][-1].startswith("the capture has no end")
    assert len(reported) == sum(records)
    (total,) = totals(summary)
    assert total["count"] == summary["operations"]["finished"] == sum(reports) == 4


def test_every_flipped_bit_is_noticed(file: Path, tmp_path: Path) -> None:
    """It costs the frame that it is in, and what that frame has named."""
    data = file.read_bytes()
    with closing(Capture(file)) as capture:
        whole = list(capture.items())
    with closing(Reader(file)) as reader:
        every = list(reader.frames())
    start = next(frame.place + frame.length for frame in every if frame.kind == Kind.LAYOUT)
    flipped = tmp_path / "flipped"
    for place in range(0, len(data), 5 if ALL else 29):
        flipped.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
        try:
            with closing(Capture(flipped)) as capture:
                left = len(list(capture.items()))
            frame = next(one for one in every if place < one.place + one.length)
            assert capture.damaged
            if frame.kind not in (Kind.NAMES, Kind.LAYOUT) and place >= frame.place:
                assert capture.damaged == 1, frame
                assert len(whole) - left <= 1, frame
            elif place < frame.place:
                # The header may be that of names, on which other frames depend.
                assert len(whole) - left < len(whole), frame
        except WptraceError as error:
            # The damage is found in the first bytes, or in the start.
            assert re.search("damaged|not a capture|of form", error.message)  # noqa: PT017
            assert place < start


def test_a_damaged_frame_costs_what_it_had(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tables and a page have the rest. If the frame is the summary's, the summary is made of intervals."""
    data = file.read_bytes()
    with closing(Reader(file)) as reader:
        every = [frame for frame in reader.frames() if frame.kind in (Kind.RECORDS, Kind.INTERVAL, Kind.SUMMARY)]
    flipped = tmp_path / "flipped"
    for frame in every:
        flipped.write_bytes(data[: frame.place] + bytes([data[frame.place] ^ 1]) + data[frame.place + 1 :])
        # Intervals are only read if there is no summary.
        if frame.kind != Kind.INTERVAL:
            with pytest.raises(WptraceError, match="damaged: one frame of it was left out"):
                main(["replay", str(flipped), "--json"])
            *_, summary = map(json.loads, capsys.readouterr().out.splitlines())
            (total,) = totals(summary)
            assert (total["count"], summary["loss"]["damaged"]) == (8, 1), frame
        page = tmp_path / "page"
        with pytest.raises(WptraceError, match="damaged"):
            main(["report", str(flipped), "-o", str(page)])
        text = page.read_text()
        page.unlink()
        assert "a frame of the capture is damaged" in text
        capsys.readouterr()
    assert {frame.kind for frame in every} == {Kind.RECORDS, Kind.INTERVAL, Kind.SUMMARY}


def test_a_capture_of_somebody_else_has_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(files, "open_to_read", refused)
    with pytest.raises(WptraceError, match=r"trace\.wpt cannot be read: Permission denied") as raised:
        Capture(tmp_path / "trace.wpt")
    assert "sudo chown" in (raised.value.hint or "")


def test_another_file_is_none(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for data in (b"", b"{}\n", b"\x7fELF", bytes(4096), b"wptrace"):
        path.write_bytes(data)
        with pytest.raises(WptraceError, match="is not a capture of wptrace"):
            Capture(path)
    with pytest.raises(WptraceError, match="has no captures"):
        Capture(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(WptraceError, match="is not a file"):
        Capture(tmp_path / "pipe")


# --- Files ------------------------------------------------------------------------------------------------------------


def test_a_capture_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "trace.wpt"
    path.write_text("of somebody who let all read it, and longer than what comes")
    path.chmod(0o644)
    CaptureOutput(path, ABOUT).close()
    assert (stat.S_IMODE(path.stat().st_mode), path.stat().st_size) == (0o600, 0)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("kept")
    link = tmp_path / "link"
    link.symlink_to(kept)
    with pytest.raises(UsageError, match="is a link"):
        CaptureOutput(link, ABOUT)
    assert kept.read_text() == "kept"


def test_a_file_that_cannot_be_written_is_found_out_at_once(tmp_path: Path) -> None:
    with pytest.raises(WptraceError, match="cannot be written: No such file"):
        CaptureOutput(tmp_path / "no" / "file", ABOUT)


def test_a_disk_that_cannot_even_cut_a_file_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    before = sorted(Path("/proc/self/fd").iterdir())
    said = r"x\.wpt cannot be written: Input/output error"
    with closing(CaptureOutput(tmp_path / "x.wpt", ABOUT)) as output:
        monkeypatch.setattr(os, "ftruncate", fail)
        monkeypatch.setattr(channel, "write", fail)
        with pytest.raises(WptraceError, match=said):
            output.start(START)
    with pytest.raises(WptraceError, match=said):
        CaptureOutput(tmp_path / "x.wpt", ABOUT)
    assert sorted(Path("/proc/self/fd").iterdir()) == before


def test_a_full_disk_is_said() -> None:
    output = CaptureOutput(Path("/dev/full"), ABOUT)
    with pytest.raises(WptraceError, match="/dev/full cannot be written: No space left"):
        output.start(START)
    output.close()


def test_what_a_full_disk_took_in_part_is_taken_back(obj: BpfObject, tmp_path: Path) -> None:
    """The kernel writes as much as there is room for, as with `ulimit -f`."""
    whole = write(obj, tmp_path / "whole.wpt").read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with closing(Reader(tmp_path / "whole.wpt")) as reader:
        ends = [frame.place + frame.length for frame in reader.frames()]
    for room in (ends[5] + 7, ends[8] + 20):
        path = tmp_path / f"{room}.wpt"
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
        try:
            with pytest.raises(WptraceError, match="cannot be written: File too large"):
                write(obj, path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert 0 < path.stat().st_size <= room < len(whole)
        with closing(Reader(path)) as reader:
            assert len(list(reader.frames())) >= 5
            assert not reader.cut


def test_a_capture_is_not_replayed_into_itself(file: Path) -> None:
    before = file.read_bytes()
    for name in (file, file.parent / "." / file.name):
        with pytest.raises(UsageError, match="are the same file"):
            main(["replay", str(file), "-o", str(name)])
    assert file.read_bytes() == before


# --- Records ----------------------------------------------------------------------------------------------------------


def test_columns_are_rows_again() -> None:
    stride, count = 40, 500
    rows = b"".join(
        struct.pack("<QQQQQ", 0, 7, 1 << 60 | number, number * number * 977, -number & (1 << 64) - 1)
        for number in range(count)
    )
    found = columns.Packer(stride).pack(bytearray(rows))
    assert columns.unpack(found, stride, count) == rows
    assert len(found) < len(rows) // 2
    for broken in (found[:-1], found + b"x", b"\x07" + found[1:]):
        with pytest.raises(ValueError, match="column"):
            columns.unpack(broken, stride, count)


def test_a_later_version_reads_records_by_their_own_layout(
    obj: BpfObject, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fields of the record have other offsets and sizes, and one is unknown to this version."""
    path = tmp_path / "later.wpt"
    output = CaptureOutput(path, ABOUT)
    take = output.raw(obj, RECORDS, ["other", "sda"])
    (made,) = output._raw
    kind, size, fields = made.facts["struct"]
    moved = [[name, at + 8, of] for name, at, of in fields]
    made.facts = {**made.facts, "struct": [kind, size + 8, [["later", 0, ["u", 8]], *moved]]}
    made._length, made.entry, made._tail, made.holes = (size + 8).to_bytes(4, "little"), made.entry + 8, None, set()
    made.packer = columns.Packer(made.entry - 8, 1)
    output.start(START)
    payload = entry(obj, 5)[8:]
    take(memoryview(struct.pack("<IIQ", size + 8, 0, 77) + payload))
    output.summary(report("summary", [5], 1))
    output.close()
    _, reported, _ = replayed(path, capsys)
    assert (reported["total_ns"], reported["pid"], reported["comm"]) == (5, 7, "fio")


def test_what_lies_behind_a_text_is_not_kept() -> None:
    rows = bytearray(b"".join(struct.pack("<HH12s", used, 9, b"x" * 12) for used in (3, 8, 0)))
    assert columns.cleared(rows, 16, 4, 0, 12) == 8
    assert [bytes(rows[at + 4 : at + 12]).rstrip(b"\0") for at in (0, 16, 32)] == [b"xxx", b"x" * 8, b""]
    assert columns.cleared(bytearray(struct.pack("<HH12s", 77, 9, b"x" * 12)), 16, 4, 0, 12) == 12


def test_paths_are_kept_and_nothing_behind_them(
    obj: BpfObject, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, secret = tmp_path / "trace.wpt", b"what lay there before"
    texts = [b"a\0b\0", b"", b"a longer name\0srv\0"]
    entries = (entry(obj, 1, path=text + secret, path_end=len(text)) for text in texts)
    keep(obj, path, entries, report("summary", [1], 1))
    _, *reported, _ = replayed(path, capsys)
    assert [one["path"] for one in reported] == ["/b/a", "", "/srv/a longer name"]
    with closing(Capture(path)) as capture:
        (records,) = (one for one in capture.items() if isinstance(one, Records))
    assert secret[-8:] not in records.rows


def test_a_capture_is_read_and_written_without_zstd(
    obj: BpfObject, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = write(obj, tmp_path / "zstd.wpt")
    monkeypatch.setattr(zstd, "is_here", lambda: False)
    plain = write(obj, tmp_path / "zlib.wpt")
    assert [one["total_ns"] for one in replayed(plain, capsys)[1:-1]] == list(range(8))
    if zstd._library() is None:
        return
    assert zstd.MAGIC in packed.read_bytes()
    assert zstd.MAGIC not in plain.read_bytes()
    with pytest.raises(WptraceError, match="the capture is compressed by zstd, which is not installed"):
        main(["replay", str(packed)])


@pytest.mark.parametrize("words", [1, 7, 8, 15, 24])
def test_columns_of_any_number_of_words(words: int) -> None:
    rows = bytearray(b"".join(struct.pack(f"{words}Q", *range(words - 1), number) for number in range(50)))
    stride = 8 * words
    assert columns.unpack(columns.Packer(stride).pack(rows), stride, 50) == rows
    # Words that are not kept become 0; the word before each record is not part of it.
    without = columns.Packer(stride).pack(rows, {words - 1})
    assert columns.unpack(without, stride, 50)[stride - 8 :: stride] == bytes(50)
    if words > 1:
        assert columns.unpack(columns.Packer(stride - 8, 1).pack(rows), stride - 8, 50)[:8] == rows[8:16]


ROWS = st.lists(st.binary(min_size=24, max_size=24), min_size=1, max_size=40)


@given(batches=st.lists(st.tuples(ROWS, st.sets(st.integers(0, 2))), min_size=1, max_size=6))
def test_batches_in_which_other_bytes_change_are_rows_again(batches: list[tuple[list[bytes], set[int]]]) -> None:
    """Other words may be left out in each batch, and become 0."""
    packer = columns.Packer(24)
    for batch, holes in batches:
        kept = [b"".join(bytes(8) if at in holes else one[8 * at : 8 * at + 8] for at in range(3)) for one in batch]
        assert columns.unpack(packer.pack(bytearray().join(batch), holes), 24, len(batch)) == b"".join(kept)
        words = [{one[at : at + 8] for one in kept} for at in (0, 8, 16)]
        assert packer.changed == {place for place, found in enumerate(words) if len(found) > 1}


@pytest.mark.parametrize("words", [{1}, {0, 1}, {1, 3}, set()])
def test_what_lies_in_words_that_are_not_kept_changes_nothing(words: set[int]) -> None:
    packer = columns.Packer(32, 1)
    for seed in range(3):
        rows = [
            [0, *(number * 977 * seed if place in words else number % 2 for place in range(4))] for number in range(99)
        ]
        found = columns.unpack(packer.pack(bytearray(struct.pack("<495Q", *chain(*rows))), words), 32, 99)
        kept = [[0 if place in words else value for place, value in enumerate(row[1:])] for row in rows]
        assert found == struct.pack("<396Q", *chain(*kept))
        assert not packer.changed & words
        assert len(packer._changing) <= 4 - len(words)


def test_a_byte_that_changes_once_is_found() -> None:
    packer = columns.Packer(16)
    rows = bytearray(b"".join(struct.pack("<QQ", number, 5) for number in range(1000)))
    for at in (3, 16 * 500 + 9, 16 * 999 + 15):
        packer.pack(rows)
        rows[at] += 1
        assert columns.unpack(packer.pack(rows), 16, 1000) == rows


@pytest.mark.parametrize(
    ("asked", "kept", "heard"),
    [
        ((False, False, False), set(), 0),
        ((True, False, False), {"interference"}, 1),
        ((True, True, False), {"interference", "met"}, 1),
        ((False, False, True), {"interference", "met", "trail"}, 1),
    ],
)
def test_records_end_where_what_was_asked_for_ends(
    asked: tuple[bool, bool, bool],
    kept: set[str],
    heard: int,
    obj: BpfObject,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, what = tmp_path / "trace.wpt", as_asked(*asked)
    layout = obj.struct("io_record").before(what.end)
    assert {"interference", "met", "trail"} & set(layout.names) == kept
    whole = entry(obj, 5, **{"interference[0].ns": 7, "interference[0].count": 1})
    cut = struct.pack("<II", layout.size, 0) + whole[8 : 8 + layout.size]
    keep(obj, path, [cut], report("summary", [5], 1), what=what)
    _, reported, _ = replayed(path, capsys)
    assert (reported["total_ns"], [one["ns"] for one in reported["interference"]]) == (5, [7] * heard)
