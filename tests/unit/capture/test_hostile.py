# SPDX-License-Identifier: Apache-2.0
"""Hostile captures, with valid checksums and content that no writer writes: each ends in a sentence."""

from __future__ import annotations

import io
import json
import os
import random
import time
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.thorough import cases, only_all
from tests.unit.capture.made import write
from tests.unit.capture.releases import FOLDER
from tests.unit.memory import traced
from wptrace.bpf.object import BpfObject
from wptrace.capture import columns, zstd
from wptrace.capture.frames import LONGEST_TEXT, Kind, Reader, Writer, unpacked
from wptrace.capture.reader import Capture
from wptrace.capture.records import HEADER
from wptrace.capture.selection import Selection
from wptrace.cli.main import main
from wptrace.errors import WptraceError
from wptrace.outputs import registry
from wptrace.outputs.registry import LINES, NDJSON, TEXT, make
from wptrace.tools.replay import Wanted, replay

CASES = cases(10_000, 600)
Frames = list[tuple[int, Any]]
"""Kinds, and JSON or bytes."""


@pytest.fixture(scope="module")
def frames(obj: BpfObject, tmp_path_factory: pytest.TempPathFactory) -> Frames:
    return opened(write(obj, tmp_path_factory.mktemp("hostile") / "trace.wpt", (2, 1)))


def opened(path: Path) -> Frames:
    found: Frames = []
    with closing(Reader(path)) as reader:
        for frame in reader.frames():
            data = reader.payload(frame)
            if frame.kind == Kind.RECORDS:
                number, count, offset = HEADER.unpack_from(data)
                found.append((frame.kind, HEADER.pack(number, count, offset) + unpacked(data[HEADER.size :], 1 << 22)))
            else:
                found.append((frame.kind, json.loads(unpacked(data, LONGEST_TEXT))))
    return found


def made(path: Path, frames: Frames) -> Path:
    path.unlink(missing_ok=True)
    writer = Writer(path)
    writer.begin()
    for kind, content in frames:
        if isinstance(content, bytes):
            data = content[: HEADER.size] + zlib.compress(content[HEADER.size :], 1)
        else:
            data = zlib.compress(json.dumps(content).encode(), 1)
        writer.add(kind, data)  # type: ignore[arg-type]
    writer.close()
    return path


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Generate the paths to all values in a value."""
    yield way
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inside:
        yield from places(one, (*way, key))


def replaced(value: Any, way: tuple[Any, ...], by: Any) -> Any:
    if not way:
        return by
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[way[0]] = replaced(value[way[0]], way[1:], by)
    return copy


STRANGE: list[Any] = [
    *(None, True, -1, 0, 1, 7, 1 << 40, 1 << 63, 1 << 64, -(1 << 70), 10**30, 1.5, float("inf"), float("nan")),
    *("", "x", "total", "requests", "dev", "\x1b[2J", "\udcff", "u", "{}"),
    *([], {}, [1], [[]], ["u", 8], ["[]", ["u", 8], 1 << 40], {"x": 1}, {"stack": 1}, {"all": 1}, [0, 1, 2, 3]),
    *({"task": ["a", 1, 2]}, ["{}", 8, [["a", 0, ["u", 8]]]], "9" * 5000),
]


def wild(frames: Frames, chance: random.Random) -> Frames:
    """Change, drop, duplicate or move some frames."""
    found = list(frames)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        at = chance.randrange(len(found))
        kind, content = found[at]
        how = chance.random()
        if how < 0.05:
            del found[at]
        elif how < 0.1:
            found.insert(chance.randrange(len(found)), (kind, content))
        elif how < 0.13:
            found[at] = (chance.randrange(12), content)
        elif isinstance(content, bytes):
            data = bytearray(content)
            for _ in range(chance.choice((1, 3, 20))):
                data[chance.randrange(len(data))] = chance.choice((0, 1, 255, chance.randrange(256)))
            found[at] = kind, bytes(data)
        else:
            way = chance.choice(list(places(content)))
            found[at] = kind, replaced(content, way, chance.choice(STRANGE))
        if not found:
            break
    return found


def reported(path: Path, case: int) -> str:
    """Replay a capture in one of the forms."""
    stream = io.StringIO()
    form = (TEXT, NDJSON, LINES, TEXT)[case % 4]
    selection = Selection({"pid": ("7",)} if case % 4 == 3 else {"op": ("read",)} if case % 5 == 0 else {})
    with closing(Capture(path)) as capture:
        output = make(form, stream, "stages", registry.Wanted(hist="total"))
        replay(capture, output, Wanted(selection, since_ns=0 if case % 3 == 0 else None))
        output.close()
    return stream.getvalue()


def refused(path: Path) -> None:
    with pytest.raises(WptraceError, match="makes no sense"), closing(Capture(path)) as capture:
        for _ in capture.items():
            pass


@contextmanager
def flipped(path: Path, at: int, bit: int) -> Iterator[None]:
    """Flip a bit. In place, because writing thousands of files would take longer than reading them."""
    with path.open("r+b", buffering=0) as file:
        was = os.pread(file.fileno(), 1, at)
        os.pwrite(file.fileno(), bytes([was[0] ^ 1 << bit]), at)
        try:
            yield
        finally:
            os.pwrite(file.fileno(), was, at)


def test_what_nobody_wrote_ends_in_a_sentence(
    frames: Frames, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(18)  # noqa: S311 - not a secret
    path = tmp_path / "hostile.wpt"
    right = made(tmp_path / "flipped.wpt", frames)
    size = right.stat().st_size
    ended = 0
    for case in range(CASES):
        try:
            if case % 4 == 0:
                assert "\x1b" not in reported(made(path, wild(frames, chance)), case // 4)
                continue
            at = chance.randrange(size)
            with flipped(right, at, chance.randrange(8)), closing(Capture(right)) as capture:
                for _ in capture.items():
                    pass
        except WptraceError:
            # The command escapes the text of an error.
            ended += 1
    shown = capsys.readouterr()
    assert "\x1b" not in shown.out + shown.err
    assert CASES // 2 < ended < CASES


def spoilt(frames: Frames, kind: Kind, **values: Any) -> Frames:
    """Change values in the first frame of a kind."""
    at = next(at for at, (found, _) in enumerate(frames) if found == kind)
    return [*frames[:at], (kind, {**frames[at][1], **values}), *frames[at + 1 :]]


@pytest.mark.parametrize("name", ["flow", "level", "kernel", "filters", "sources", "kinds", "notes", "view", "shown"])
def test_each_field_of_the_start_is_looked_at(frames: Frames, name: str, tmp_path: Path) -> None:
    for strange in ({"x": {"y": 1}}, [[1]], 7, None):
        with pytest.raises(WptraceError, match="makes no sense"):
            Capture(made(tmp_path / "file", spoilt(frames, Kind.START, **{name: strange})))


@pytest.mark.parametrize("strange", ["5ms", [1], True, -1, 1 << 70])
@pytest.mark.parametrize("bound", ["min_bytes", "max_bytes", "min_ns", "waits_ns"])
def test_a_bound_of_a_filter_is_a_number(frames: Frames, bound: str, strange: object, tmp_path: Path) -> None:
    with pytest.raises(WptraceError, match="makes no sense"):
        Capture(made(tmp_path / "file", spoilt(frames, Kind.START, filters={bound: strange})))


def test_names_of_filters_do_not_reach_the_terminal(
    frames: Frames, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = made(tmp_path / "file", spoilt(frames, Kind.START, filters={"\x1b[2J": "\x1b[31m"}, notes=["\x1b[1m"]))
    assert main(["replay", str(path), "--summary"]) == 0
    assert "\x1b" not in capsys.readouterr().out


ESCAPE = "\x1b]0;title\x07\x1b[2J"


def defaced(value: Any, texts: set[str]) -> Any:
    """Append an escape sequence to each string, except those that the reader needs."""
    if isinstance(value, dict):
        return {key: defaced(one, texts) for key, one in value.items()}
    if isinstance(value, list):
        return [defaced(one, texts) for one in value]
    return value + ESCAPE if isinstance(value, str) and value not in texts else value


# Names of units and books, kinds of frames and subjects of rules.
_KEPT = {"ns", "total", "requests", "operations", "interval", "summary", "stages", "largest", "grew", "tail", "lost"}


@pytest.mark.parametrize("words", [["--hist", "total"], ["--line"], ["--csv"], ["--json"], ["-D"], ["--top", "3"]])
def test_no_text_of_a_capture_reaches_the_terminal_as_it_is(
    frames: Frames, tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Text of any field is escaped where it leaves."""
    spoilt_ = []
    for kind, content in frames:
        if isinstance(content, bytes) or kind == Kind.LAYOUT:
            spoilt_.append((kind, content))
        else:
            spoilt_.append((kind, defaced(content, _KEPT)))
    layout = next(content for kind, content in frames if kind == Kind.LAYOUT)
    enums = {name: [f"{one}{ESCAPE}" for one in values] for name, values in layout["enums"].items()}
    enums = {**layout["enums"], "op_kind": enums["op_kind"]}
    for named in (spoilt_, [*frames]):
        at = next(at for at, (kind, _) in enumerate(named) if kind == Kind.LAYOUT)
        named[at] = Kind.LAYOUT, {**layout, "enums": enums, "names": [one + ESCAPE for one in layout["names"]]}
        # Some of it makes no sense after that, which ends in a sentence.
        with suppress(WptraceError):
            main(["replay", str(made(tmp_path / "file", named)), *words])
        shown = capsys.readouterr()
        text = shown.out + shown.err
        assert not set(text) & {chr(code) for code in (*range(10), *range(11, 32), *range(127, 160))}
    # Lines cut names to the width of their columns.
    assert "x1b" in text or "u001b" in text or words == ["--line"]


@only_all
def test_rows_without_end_have_bounded_room(frames: Frames, tmp_path: Path) -> None:
    """A few bytes name a row, and each row has a histogram for each stage."""
    many = 20_000
    cell = [*[1] * 4, 1, 1, 0, 0, 1]
    for kind, per_frame in ((Kind.EVENTS, 500), (Kind.INTERVAL, 2000)):
        found = [one for one in frames if one[0] not in (Kind.RECORDS, Kind.INTERVAL, Kind.SUMMARY, Kind.END)]
        interval = next(content for one, content in frames if one == Kind.INTERVAL and "kind" in content)
        for first in range(0, many, per_frame):
            numbers = range(first, first + per_frame)
            found.append((Kind.NAMES, {"forget": True, "groups": [[0, f"sd{number}", "read"] for number in numbers]}))
            if kind == Kind.EVENTS:
                found.append((kind, [[number - first, 1, number, {"fs": number}, {"pid": 7}] for number in numbers]))
            else:
                rows = [[number - first, {"fs": cell, "total": cell}] for number in numbers]
                found.append((kind, {**interval, "rows": rows, "counters": []}))
        path = made(tmp_path / "file", found)
        # With a selection the figures are made of events.
        selection = Selection({"pid": ("7",)}) if kind == Kind.EVENTS else Selection({})
        stream = io.StringIO()
        with (
            traced() as memory,
            closing(Capture(path)) as capture,
            closing(make(NDJSON, stream, "stages", registry.Wanted())) as to,
        ):
            replay(capture, to, Wanted(selection, singles=False))
        assert memory.peak < 400 << 20
        if kind == Kind.INTERVAL:
            rows = json.loads(stream.getvalue().splitlines()[-1])["rows"]
            assert sum(row["count"] for row in rows if row["stage"] == "total") == many
            assert any(row["dev"] == "others" for row in rows)


def test_names_of_cgroups_without_end_take_their_time_once(frames: Frames, tmp_path: Path) -> None:
    """Four times as many names take four times as long, not fifty."""

    def seconds(count: int) -> float:
        named = [
            (Kind.NAMES, {"cgroups": {str(one): "x" for one in range(number, number + 10_000)}})
            for number in range(0, count, 10_000)
        ]
        with closing(Capture(made(tmp_path / "file", [*frames[:-1], *named, frames[-1]]))) as capture:
            before = time.process_time()
            for _ in capture.items():
                pass
            return time.process_time() - before

    few = cases(400_000, 100_000)
    assert seconds(4 * few) < 25 * seconds(few)


UNWRITTEN: dict[str, list[Any]] = {
    "statements": [
        *({"7": "x" * 10_000}, {"7": {"comm": 7}}, {"7": 1.5}, {"seven": "x"}, {"-7": "x"}, ["x"], {"7": {"x": "y"}}),
    ],
    "devices": [
        *({"0": ["other"]}, {"0": ["other", "x" * (1 << 14)]}, {"9": ["other", "sda"]}, {"x": []}, {"0": 7}),
        *({"0": [[], {}]}, []),
    ],
}


@pytest.mark.parametrize("names", [{name: one} for name, values in UNWRITTEN.items() for one in values])
def test_names_that_no_writer_wrote(frames: Frames, tmp_path: Path, names: Any) -> None:
    refused(made(tmp_path / "file", [*frames[:-1], (Kind.NAMES, names), frames[-1]]))


def test_statements_have_bounded_room(frames: Frames, tmp_path: Path) -> None:
    """The first ones make room."""
    named = [
        (Kind.NAMES, {"statements": {str(one): "x" * 8000 for one in range(number, number + 500)}})
        for number in range(0, 10_000, 500)
    ]
    with closing(Capture(made(tmp_path / "file", [*frames[:-1], *named, frames[-1]]))) as capture:
        list(capture.items())
        assert sum(map(len, capture.statements.values())) <= 1 << 25
        assert list(capture.statements)[-1] == 9999


@pytest.mark.parametrize("where", ["name", "unit", "stages", "metrics", "labels", "fields"])
def test_names_that_are_no_bytes_of_others_are_utf8(frames: Frames, tmp_path: Path, where: str) -> None:
    at = next(at for at, (kind, content) in enumerate(frames) if kind == Kind.NAMES and content.get("kinds"))
    content = json.loads(json.dumps(frames[at][1]))
    kind = content["kinds"][0]
    if isinstance(kind[where], str):
        kind[where] = "\udcff"
    else:
        kind[where][0]["name" if where in ("stages", "metrics") else 0] = "\udcff"
    refused(made(tmp_path / "file", [*frames[:at], (Kind.NAMES, content), *frames[at + 1 :]]))


@pytest.mark.parametrize("where", ["stage", "label", "noun", "device", "meaning"])
def test_texts_have_lengths_that_can_be_shown(frames: Frames, tmp_path: Path, where: str) -> None:
    at = next(at for at, (kind, content) in enumerate(frames) if kind == Kind.NAMES and content.get("kinds"))
    content = json.loads(json.dumps(frames[at][1]))
    kind = content["kinds"][0]
    if where == "device":
        content["groups"] = [[0, "x" * (1 << 20), "read"]]
    elif where == "noun":
        kind["noun"][0] = "x" * 300
    elif where == "label":
        kind["labels"][0][0] = "x" * 300
    else:
        kind["stages"][0]["name" if where == "stage" else "meaning"] = "x" * (1 << 17)
    refused(made(tmp_path / "file", [*frames[:at], (Kind.NAMES, content), *frames[at + 1 :]]))


@pytest.mark.parametrize("size", [1 << 24, 1 << 28])
def test_what_unpacks_to_more_than_there_may_be_is_not_unpacked(frames: Frames, size: int, tmp_path: Path) -> None:
    """A thousand bytes may be a compressed megabyte."""
    inflate = zlib.compressobj(9)
    bomb = b"".join(inflate.compress(bytes(1 << 20)) for _ in range(size >> 20)) + inflate.flush()
    path = tmp_path / "bomb"
    for kind, head in ((Kind.NAMES, b""), (Kind.RECORDS, HEADER.pack(0, 1 << 10, 0))):
        made(path, frames[:-1])
        writer = Writer(path)
        writer.begin()
        for one, content in frames[:-1]:
            assert not isinstance(content, bytes) or one == Kind.RECORDS
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            head_of, rest = (data[: HEADER.size], data[HEADER.size :]) if one == Kind.RECORDS else (b"", data)
            writer.add(Kind(one), head_of + zlib.compress(rest))
        writer.add(kind, head + bomb)
        writer.close()
        with traced() as memory:
            refused(path)
        assert memory.peak < 40 << 20


needs_zstd = pytest.mark.skipif(not zstd.is_here(), reason="there is no libzstd.so.1 here")


@needs_zstd
def test_zstd_of_all_sorts_is_bounded() -> None:
    bomb = zstd.packed(bytes(1 << 26))
    assert len(bomb) < 1 << 14
    with traced() as memory, pytest.raises(ValueError, match="too long"):
        unpacked(bomb, 1 << 20)
    assert memory.peak < 1 << 20
    whole = zstd.packed(b"what was packed " * 100)
    assert unpacked(whole, 1600) == b"what was packed " * 100
    for spoilt_ in (whole[:-1], whole + b"x", whole + whole, whole[:4], zstd.MAGIC + bytes(20), zstd.MAGIC * 9):
        with pytest.raises(ValueError, match="it "):
            unpacked(spoilt_, 1600)
    chance = random.Random(8)  # noqa: S311 - not a secret
    for _ in range(2000):
        data = bytearray(whole)
        data[chance.randrange(4, len(data))] = chance.randrange(256)
        with suppress(ValueError):
            assert len(unpacked(bytes(data), 4000)) <= 4000


@pytest.mark.parametrize(
    "struct_",
    [
        ["u", 8],
        ["{}", 1 << 40, []],
        ["{}", 8, [["a", 4, ["u", 8]]]],
        ["{}", 16, [["a", 0, ["u", 8]], ["b", 4, ["u", 8]]]],
        ["{}", 16, [["a", 0, ["u", 3]]]],
        ["{}", 16, [["a", 0, ["[]", ["u", 8], 1 << 50]]]],
        ["{}", 16, [["a", 0, ["[]", ["[]", ["c", 0], 1 << 14], 1 << 14]]]],
        ["{}", 16, [["a", 0, ["u", 8]], ["a", 8, ["u", 8]]]],
        ["{}", 16, [["a", -8, ["u", 8]]]],
        ["{}", 16, [["a", 0, ["?", 8]]]],
    ],
)
def test_layouts_that_no_compiler_makes(frames: Frames, struct_: Any, tmp_path: Path) -> None:
    refused(made(tmp_path / "file", spoilt(frames, Kind.LAYOUT, struct=struct_)))


@pytest.mark.parametrize("bits", [-1, 64, 1 << 31, 1 << 62])
@pytest.mark.parametrize("name", ["SEGMENT_STAGE_BITS", "RECORDED_KIND_BITS", "RECORDED_COARSE_SHIFT"])
def test_nothing_is_shifted_by_more_bits_than_a_number_has(
    frames: Frames, name: str, bits: int, tmp_path: Path
) -> None:
    layout = next(has for kind, has in frames if kind == Kind.LAYOUT)
    constants = {**layout["constants"], name: bits}
    refused(made(tmp_path / "file", spoilt(frames, Kind.LAYOUT, constants=constants)))


def test_a_sparse_file_is_no_reason_for_memory(frames: Frames, tmp_path: Path) -> None:
    path = made(tmp_path / "file", frames)
    os.truncate(path, 1 << 40)
    with traced() as memory, closing(Capture(path)) as capture:
        list(capture.items())
    assert capture.damaged == 1
    assert memory.peak < 40 << 20


def test_a_million_records_that_are_alike_come_some_at_a_time(frames: Frames, tmp_path: Path) -> None:
    """Sixty bytes may be 16 MiB of records, which is the maximum."""
    stride = next(content for kind, content in frames if kind == Kind.LAYOUT)["struct"][1]
    stride = (stride + 7) // 8 * 8
    many = columns.MOST_BYTES // stride
    for count, sound in ((many, True), (many + 1, False), (1 << 32 - 1, False)):
        content = HEADER.pack(0, count, 0) + bytes(stride // columns.WORD)
        path = made(tmp_path / "file", [one for one in frames if one[0] != Kind.RECORDS] + [(Kind.RECORDS, content)])
        if not sound:
            refused(path)
            continue
        with closing(Capture(path)) as capture:
            assert sum(1 for _ in capture.items()) > 1


def test_what_an_output_raises_is_not_called_damage(
    frames: Frames, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Any) -> None:
        raise KeyError("a fault of the output")

    path = made(tmp_path / "file", frames)
    output = make(NDJSON, io.StringIO(), "stages", registry.Wanted())
    monkeypatch.setattr(output, "event", broken)
    with closing(Capture(path)) as capture, pytest.raises(WptraceError) as raised:
        replay(capture, output, Wanted(Selection({})))
    assert str(raised.value) == f"{path} cannot be shown: something in it lacks 'a fault of the output'"


def of_release(name: str) -> Frames:
    return opened(FOLDER / f"0.2.0-{name}.wpt")


def refused_by(path: Path) -> str:
    with pytest.raises(WptraceError) as raised:
        main(["replay", str(path)])
    return str(raised.value).replace(str(path), "FILE")


@pytest.mark.parametrize("name", ["cpu", "io", "size", "stacks"])
def test_a_report_has_the_book_of_what_is_followed(name: str, tmp_path: Path) -> None:
    for kind in (Kind.INTERVAL, Kind.SUMMARY):
        found = [(one, {**has, "books": {}} if one == kind and "kind" in has else has) for one, has in of_release(name)]
        refused(made(tmp_path / "file", found))


def test_a_trace_has_a_kind_of_what_it_follows(tmp_path: Path) -> None:
    found = of_release("size")
    names = next(has for kind, has in found if kind == Kind.NAMES and has.get("kinds"))
    names["kinds"][0]["book"] = "others"
    refused(made(tmp_path / "file", found))


def test_what_lacks_something_says_so(tmp_path: Path) -> None:
    found = of_release("cpu")
    events = next(has for kind, has in found if kind == Kind.EVENTS)
    del events[0][4]["cpu"]
    said = refused_by(made(tmp_path / "file", found))
    assert said == "FILE cannot be shown: something in it lacks 'cpu'"
    events[0][4]["cpu"], events[0][4]["sleep_ns"] = 0, "x" * 1000
    said = refused_by(made(tmp_path / "file", found))
    assert said.startswith("FILE cannot be shown: a value in it is not of the kind that wptrace writes (TypeError: ")


@pytest.mark.parametrize("view", ["turns", "periods"])
def test_filters_that_are_missing_are_no_reason_not_to_show_the_rest(
    view: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [one for one in of_release("cpu") if one[0] not in (Kind.EVENTS, Kind.IN_FLIGHT)]
    path = made(tmp_path / "file", spoilt(found, Kind.START, filters={}, view=view))
    assert main(["replay", str(path)]) == 0
    assert "Summary" in capsys.readouterr().out


def test_a_rule_of_another_version_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = of_release("io")
    verdict: dict[str, Any] = {"advice": "", "findings": [["more", {}, None, "", "", ""]]}
    next(has for kind, has in found if kind == Kind.SUMMARY and "kind" in has)["verdict"] = verdict
    assert main(["replay", str(made(tmp_path / "file", found))]) == 0
    assert "verdict: more, a rule that this version does not know" in capsys.readouterr().out
