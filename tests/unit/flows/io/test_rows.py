# SPDX-License-Identifier: Apache-2.0
"""Lines that outputs make of rows equal those that they make of events, byte by byte."""

from __future__ import annotations

import io
import random
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.thorough import cases
from tests.unit.capture import made
from tests.unit.capture.releases import FOLDER
from tests.unit.flows.io.test_records import packed
from wptrace.bpf.object import BpfObject, open_object
from wptrace.cli.main import main
from wptrace.flows.io.block import REQUEST, Requests
from wptrace.flows.io.kinds import KINDS
from wptrace.flows.io.records import NO_SECTOR, Stories
from wptrace.kernel.blockdev import kernel_dev
from wptrace.model import rows
from wptrace.model.kind import Kind
from wptrace.model.report import Start
from wptrace.model.rows import Number, Row, Rows, Source
from wptrace.outputs import forms
from wptrace.outputs.registry import CSV, LINES, NDJSON, Wanted, make

FORMS = (NDJSON, LINES, CSV)
PLAIN = Wanted()
ROOMY = Wanted(dates=True, unit="ms", title="io")
# Special characters of JSON, CSV, formats and terminals, and what looks like a mark in a form.
NAMES = (
    b"",
    b"fio",
    b'a"b\\',
    b"100%d %s {r[0]}",
    b"\xff\xfe",
    b"a,b\n",
    b"\x1b[31m",
    "größe".encode(),
    b"=1+1",
    b"tail ",
)
HOSTILE_DEVICES = ["", "sda", "\0" + "1\0", "50%", "nvme0n1\ud800", "x" * 40]
TWISTS: dict[str, Sequence[Any]] = {
    "op": (0, 1),
    "slot": (1, 3),
    "tgid": (0, 7),
    "tid": (7, 8),
    "comm": (b"fio", b"50%"),
    "cgroup": (1, 55),
    "dev": (kernel_dev(8, 17), kernel_dev(8, 18)),
    "flags": (0, 1),
    "request_op": (0, 1),
    "interface": (0, 1, 2),
    "deleted": (0, 1),
    "path_cut": (0, 1),
    "path_end": (0, 1),
}
KINDS_OF_REQUESTS = 2
NOON_NS = 1_700_000_000_123_456_789


def played(form: str, kinds: Sequence[Kind], found: Rows, as_rows: bool, wanted: Wanted) -> str:
    stream = io.StringIO(newline="")
    output: Any = make(form, stream, "stages", wanted)
    if form == NDJSON:
        output.start(Start("io", "path", "6.12", {}, [], kinds, []))
    else:
        output.begin(Start("io", "path", "6.12", {}, [], kinds, []))
    # Twice, so that learned forms are used.
    for _ in range(2):
        hand_over(output, found, as_rows)
    return stream.getvalue()


def hand_over(output: Any, found: Rows, as_rows: bool) -> None:
    if as_rows:
        assert output.rows(found)
    else:
        for event in found:
            output.event(event)


def check(kinds: Sequence[Kind], found: Rows, wanted: Wanted = PLAIN) -> None:
    for form in FORMS:
        assert played(form, kinds, found, True, wanted) == played(form, kinds, found, False, wanted)


def any_of(choice: random.Random, *usual: int, bits: int = 32) -> int:
    """Return a usual value, or sometimes any."""
    return choice.choice(usual) if choice.random() < 0.7 else choice.getrandbits(bits)


def seldom(choice: random.Random, usual: int, *others: int) -> int:
    return usual if choice.random() < 0.97 else choice.choice(others)


def name(choice: random.Random) -> bytes:
    return choice.choice(NAMES)


def record(layout: Any, kind: int, choice: random.Random, base: random.Random) -> bytes:
    """Make a record. Records with the same `base` are alike."""
    whole = b"\0".join([name(base), name(base), b""])
    start = choice.randrange(1 << 45)
    values: dict[str, Any] = {
        "kind": kind,
        "op": base.randrange(3),
        "slot": base.randrange(len(HOSTILE_DEVICES)),
        "tgid": base.choice((0, 7)),
        "tid": base.choice((0, 7, 8)),
        "comm": name(base)[:15],
        "cgroup": base.choice((0, 1, 55)),
        "dev": base.choice((0, kernel_dev(8, 17))),
        "flags": base.choice((0, 1, 5)),
        "request_op": base.randrange(3),
        "interface": base.choice((0, 0, 0, 1)),
        "deleted": base.choice((0, 0, 1)),
        "path": whole,
        "path_end": base.choice((0, len(whole))),
        "path_cut": base.choice((0, 0, 1)),
        "start_ns": start,
        "end_ns": start + choice.choice((0, 1000, choice.randrange(1 << 34))),
        "handed_ns": choice.getrandbits(40),
        "seen_ns": choice.getrandbits(40),
        "offset": seldom(choice, choice.choice((0, 4096, choice.getrandbits(62))), -1),
        "length": any_of(choice, 0, 4096, bits=63),
        "result": seldom(
            choice, choice.choice((0, 4096, 1 << 40)) if kind < 2 else base.choice((0, 0, 10)), -5, -4095, -5000
        ),
        "inode": choice.getrandbits(64),
        "sector": seldom(choice, choice.choice((0, choice.getrandbits(40))), NO_SECTOR),
        "bytes": any_of(choice, 0, 4096),
        "user_data": any_of(choice, 0, bits=64),
        "requests": any_of(choice, 0, 1, bits=16),
        "readahead": any_of(choice, 0, 1, bits=16),
        "dirty_ns": seldom(choice, 0, 1 << 40),
        "tag_queue": any_of(choice, 0, bits=4),
        **{f"cpus__{one}": choice.choice((0, 1, 0xFFFF)) for one in ("submit", "issue", "irq", "complete", "wake")},
    }
    for stage in range(13):
        some = base.random() < (0.2 if stage in (0, 2, 3, 4, 12) else 0.8)
        values[f"stages[{stage}]"] = choice.choice((500, 1000, choice.getrandbits(30) + 1)) if some else 0
        if choice.random() < 0.05:
            values[f"stages[{stage}]"] = choice.choice((0, 7))
    for rare in ("flush_before", "flush_behind", "held[0]", "held[6]", "commit__pid", "commit__transaction"):
        values[rare] = seldom(choice, 0, 1, 77)
    values["events__merged"] = seldom(choice, 0, 3)
    # Records that differ in one of these are not alike.
    if choice.random() < 0.4:
        twisted = choice.choice([*TWISTS, "result"] if kind == KINDS_OF_REQUESTS else [*TWISTS])
        values[twisted] = choice.choice(TWISTS.get(twisted, (0, 10)))
    known = {one.replace(".", "__") for one in layout.fields}
    return packed(layout, **{key: value for key, value in values.items() if key in known})


def stories_of(obj: BpfObject, end: str) -> Stories:
    found = Stories(obj, HOSTILE_DEVICES, None, None, end)
    found.cgroups = SimpleNamespace(of=lambda number: f"/cgroup{number}\udcff" if number else "")  # type: ignore[assignment]
    found.wall_offset_ns = NOON_NS
    return found


def records(obj: BpfObject, seed: int, end: str) -> Rows:
    choice, stories = random.Random(seed), stories_of(obj, end)  # noqa: S311
    layout = obj.struct("io_record").before(end)
    bases = [(choice.randrange(3), choice.getrandbits(32)) for _ in range(4)]
    found: list[Row] = []
    for _ in range(40):
        kind, base = choice.choice(bases)
        alike = random.Random(base)  # noqa: S311
        found.append(stories.layout.unpack(record(layout, kind, choice, alike)))
    return Rows(found, stories)


@pytest.mark.parametrize("end", ["interference", "met", "trail"])
def test_operations_and_requests(obj: BpfObject, end: str) -> None:
    @settings(max_examples=cases(60, 15))
    @given(st.integers(0, 1 << 32))
    def each(seed: int) -> None:
        check(KINDS, records(obj, seed, end), ROOMY if seed % 3 == 0 else PLAIN)

    each()


@settings(max_examples=cases(60, 15))
@given(st.integers(0, 1 << 32))
def test_requests_of_the_block_level(seed: int) -> None:
    choice = random.Random(seed)  # noqa: S311
    with open_object("io_block") as obj:
        layout = obj.struct("block_record")
        requests = Requests(obj, HOSTILE_DEVICES)
        requests.wall_offset_ns = NOON_NS
        found = []
        for _ in range(40):
            values = {
                "end_ns": choice.getrandbits(45),
                "sector": choice.getrandbits(40),
                "queue_ns": any_of(choice, 0, 1000),
                "device_ns": any_of(choice, 0, 1000),
                "bytes": any_of(choice, 0, 4096),
                "dev": choice.choice((0, kernel_dev(8, 17))),
                "flags": choice.choice((0, 1, 4)),
                "cpu": any_of(choice, 0, 1, bits=8),
                "slot": choice.randrange(len(HOSTILE_DEVICES)),
                "error": choice.choice((0, 0, 0, 10)),
                "op": choice.randrange(2),
                "events__merged": any_of(choice, 0, 0, bits=4),
            }
            found.append(requests.layout.unpack(packed(layout, **values)))
        check((REQUEST,), Rows(found, requests))


# --- Sources of rows --------------------------------------------------------------------------------------------------


class Counting:
    """A source that counts the events that were made of rows."""

    def __init__(self, source: Source) -> None:
        self._source, self.count = source, 0
        self.shape, self.variables, self.numbered = source.shape, source.variables, source.numbered

    def made(self, found: Sequence[Row], variables: tuple[Any, ...]) -> Iterator[Any]:
        self.count += len(found)
        return self._source.made(found, variables)


def usual(obj: BpfObject, stories: Stories, **values: Any) -> Row:
    layout = obj.struct("io_record").before("interference")
    return stories.layout.unpack(packed(layout, slot=1, tgid=7, tid=7, comm=b"fio", **values))


@pytest.mark.parametrize("form", FORMS)
def test_what_is_alike_is_made_without_an_event(obj: BpfObject, form: str) -> None:
    stories = stories_of(obj, "interference")
    counting = Counting(stories)
    found = [usual(obj, stories, end_ns=1000 + at, offset=4096 * at, inode=at) for at in range(100)]
    played(form, KINDS, Rows(found, counting), True, PLAIN)
    assert counting.count == 1
    failed = [usual(obj, stories, result=-5), usual(obj, stories, flush_before=1)] * 10
    played(form, KINDS, Rows(failed, counting), True, PLAIN)
    assert counting.count == 1 + 40


def test_what_is_remembered_is_bounded(obj: BpfObject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "_MOST_FORMS", 8)
    monkeypatch.setattr(forms, "_MOST_TEXTS", 4)
    stories = stories_of(obj, "interference")
    layout = obj.struct("io_record").before("interference")
    found = [
        stories.layout.unpack(
            packed(layout, slot=1, tgid=at // 4, tid=at, path=b"%d\0" % at, path_end=4, cpus__wake=at, end_ns=at)
        )
        for at in range(100)
        for _ in range(3)
    ]
    output: Any = make(NDJSON, io.StringIO(), "stages", PLAIN)
    assert output.rows(Rows(found, stories))
    (known,) = output._forms._known.values()
    assert 0 < len(known._forms) <= 8
    assert 0 < len(known._names["part_0"]) <= 4
    check(KINDS, Rows(found, stories))


def test_rows_that_no_program_wrote_are_told_one_by_one(obj: BpfObject) -> None:
    stories = stories_of(obj, "interference")
    output: Any = make(NDJSON, stream := io.StringIO(), "stages", PLAIN)
    assert not output.rows(Rows([usual(obj, stories, op=200), usual(obj, stories, op=200)], stories))
    assert stream.getvalue() == ""


def test_what_is_no_number_is_told_one_by_one(obj: BpfObject) -> None:
    stories = stories_of(obj, "interference")
    row = list(usual(obj, stories))
    row[stories.fields.index("length")] = 1.5
    output: Any = make(NDJSON, io.StringIO(), "stages", PLAIN)
    assert not output.rows(Rows([tuple(row)] * 3, stories))


@pytest.mark.parametrize("encoding", ["utf-8", "UTF8", "latin-1", "ascii"])
@pytest.mark.parametrize("form", FORMS)
def test_a_stream_of_any_encoding_has_all_lines_in_order(form: str, encoding: str, obj: BpfObject) -> None:
    stories = stories_of(obj, "interference")
    rows = [usual(obj, stories, path="größe €\0".encode(), path_end=12, end_ns=1000 + at) for at in range(3)]
    found = Rows(rows, stories)
    written = []
    for as_rows in (True, False):
        file = io.BytesIO()
        stream = io.TextIOWrapper(file, encoding=encoding, errors="backslashreplace", newline="")
        output: Any = make(form, stream, "stages", PLAIN)
        output.start(Start("io", "path", "6.12", {}, [], KINDS, []))
        for _ in range(2):
            hand_over(output, found, as_rows)
            stream.write("text\n")
        stream.flush()
        written.append(file.getvalue())
    assert written[0] == written[1]
    assert written[0].count(b"text\n") == 2
    name = "gr\\u00f6\\u00dfe \\u20ac" if form == NDJSON else "größe €"
    assert written[0].count(name.encode(encoding, "backslashreplace")) == 6


def test_numbers_know_how_they_are_computed() -> None:
    end, start = Number.of(30, "r[1]"), Number.of(10, "r[0]")
    r, wall = (10, 30), 5
    for one in (end + wall, wall + end, end - start, end - 4, sum([start, end])):
        assert eval(rows.code_of(one), {"r": r}) == one  # noqa: S307
    assert rows.code_of(7) == "7"


# --- Captures ---------------------------------------------------------------------------------------------------------


def replayed(path: Path, words: list[str], tmp_path: Path) -> bytes:
    assert main(["replay", str(path), *words, "-o", str(tmp_path / "out")]) == 0
    return (tmp_path / "out").read_bytes()


@pytest.mark.parametrize("words", [["-j"], ["--line"], ["--csv"]], ids=" ".join)
def test_captures(words: list[str], obj: BpfObject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    every = [*FOLDER.glob("*.wpt"), made.write(obj, tmp_path / "made.wpt", (300, 5000, 1))]
    found = [replayed(path, words, tmp_path) for path in every]
    assert sum(one.count(b"\n") for one in found) > 5300
    monkeypatch.setattr("wptrace.tools.replay.offer_rows", lambda output, events: False)
    assert [replayed(path, words, tmp_path) for path in every] == found


def test_an_output_that_is_told_of_events_still_is(obj: BpfObject) -> None:
    stories = stories_of(obj, "interference")
    found = Rows([usual(obj, stories, end_ns=struct.calcsize("Q"))], stories)
    assert not rows.offer_rows(object(), found)
    assert not rows.offer_rows(make(NDJSON, io.StringIO(), "stages", PLAIN), list(found))
    assert (len(found), found[0], found[:1]) == (1, next(iter(found)), list(found))
