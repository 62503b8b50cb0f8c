# SPDX-License-Identifier: Apache-2.0
"""`wptrace diff` from end to end, with captures that no trace wrote."""

from __future__ import annotations

import json
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.unit.analysis.made_sides import compared, seeded
from tests.unit.capture import made
from tests.unit.capture.made import entry
from tests.unit.capture.test_hostile import ESCAPE, opened, spoilt
from tests.unit.capture.test_hostile import made as forged
from tests.unit.engine.dumped import dump
from tests.unit.flows.io.test_records import NAMES
from wptrace.bpf.object import BpfObject
from wptrace.capture.frames import Kind
from wptrace.capture.reader import Capture
from wptrace.capture.writer import CaptureOutput
from wptrace.cli.main import main
from wptrace.engine.recorder import Dump
from wptrace.errors import ConditionError, UsageError, WptraceError
from wptrace.flows.io.kinds import KINDS, OPERATION, STAGES
from wptrace.flows.io.records import RECORDS
from wptrace.model.book import Book
from wptrace.model.distribution import Distribution
from wptrace.model.kind import OPERATIONS, REQUESTS, TOTAL
from wptrace.model.report import BYTES, Overhead, Report, Source, arranged
from wptrace.tools.diff import Following, Wanted, read

RELEASES = Path(__file__).resolve().parents[1] / "capture" / "releases"
_SECOND = 1_000_000_000


def record(
    obj: BpfObject,
    path: Path,
    device: list[float],
    each: bool = True,
    size: int = 4096,
    kernel: str = "6.12.0",
    lost: int = 0,
    by: str | None = None,
) -> Path:
    """Write a capture of 100 reads a second, by two tasks in turn, with this mean time in the device.

    So many of each second are in the rows alone.
    """
    rand = seeded(len(device))
    output = CaptureOutput(path, made.ABOUT._replace(each=each))
    take = output.raw(obj, RECORDS, NAMES, lambda number: f"/cgroup{number}")
    filters = {} if by is None else {"by": by}
    output.start(made.START._replace(kernel=kernel, filters=filters, sources=[Source(name, "tp") for name in STAGES]))
    stages = obj.enum("op_stage")
    fs, place = (f"stages[{stages.index(name)}]" for name in ("fs", "device"))
    whole = {name: Distribution() for name in ("fs", "device", TOTAL)}
    # The capture begins now.
    base = time.time_ns()

    def report(kind: str, at: int, duration: int, cells: dict[str, Distribution]) -> Report:
        count = cells[TOTAL].count
        books = {REQUESTS: Book(), OPERATIONS: Book.read(count, count, {}, {})}
        group = OPERATION.group("sda", "read")
        rows = arranged({group: cells}, KINDS)
        return Report(kind, at, duration, books, rows, {group: {BYTES: size * count}}, Overhead(0, 0, 0, 0, 0, 0))

    for second, mean in enumerate(device):
        cells = {name: Distribution() for name in whole}
        data = b""
        for number in range(100):
            times = 5_000, round(rand.gauss(mean, mean / 10))
            for name, ns in zip(cells, (*times, sum(times))):
                cells[name].add(ns)
            begin = (second + 1) * _SECOND + number
            values = {fs: times[0], place: times[1], "start_ns": begin, "end_ns": begin + sum(times)}
            if number < lost:
                continue
            task = (b"fio", b"pg")[number % 2]
            data += entry(obj, number, slot=1, comm=task, cgroup=55 + number % 2, length=size, result=size, **values)
        if each:
            take(memoryview(data))
        output.interval(report("interval", base + (second + 1) * _SECOND, _SECOND, cells))
        for name, one in cells.items():
            whole[name].merge(one)
    output.summary(report("summary", base + len(device) * _SECOND, len(device) * _SECOND, whole))
    output.close()
    return path


@pytest.fixture
def quick(obj: BpfObject, tmp_path: Path) -> Path:
    return record(obj, tmp_path / "quick.wpt", [100_000.0] * 8)


@pytest.fixture
def slow(obj: BpfObject, tmp_path: Path) -> Path:
    return record(obj, tmp_path / "slow.wpt", [150_000.0] * 9)


def plain(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert main(["diff", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_two_captures(quick: Path, slow: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = plain(capsys, quick, slow)
    assert "read: 800 -> 900 operations, 100 /s -> 100 /s, 400 KiB/s -> 400 KiB/s" in out
    (sentence,) = [line for line in out.splitlines() if line.startswith("reads: +50.")]
    assert "us in device of sda" in sentence
    assert "reads of fio" in out
    assert "reads of pg" in out


@pytest.mark.parametrize(
    ("kernel", "mixed"),
    [
        ("5.10.0-46-amd64", {}),
        ("6.8.12", {}),
        ("6.9.0-rc1", {"throttle": "queue"}),
        ("7.2.13+deb14-amd64", {"throttle": "queue"}),
        ("", {}),
        ("6", {}),
    ],
)
def test_stages_that_lose_time_to_others_are_those_of_the_kernel(
    obj: BpfObject, tmp_path: Path, kernel: str, mixed: dict[str, str]
) -> None:
    file = record(obj, tmp_path / "one.wpt", [100_000.0] * 2, kernel=kernel)
    with closing(Capture(file)) as capture:
        assert read(capture, Wanted("one.wpt")).mixed == mixed


def test_owners_are_those_that_are_asked_for(quick: Path, slow: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "reads of /cgroup55" in plain(capsys, quick, slow, "--by", "cgroup")


def test_rows_alone_have_no_owners(
    obj: BpfObject, tmp_path: Path, slow: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = record(obj, tmp_path / "rows.wpt", [100_000.0] * 8, each=False)
    out = plain(capsys, rows, slow)
    assert "reads: +50." in out
    assert "reads of" not in out


def test_owners_that_rows_do_not_have_are_refused(
    obj: BpfObject, tmp_path: Path, slow: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    none = record(obj, tmp_path / "none.wpt", [100_000.0] * 8, each=False)
    rows = record(obj, tmp_path / "rows.wpt", [100_000.0] * 8, each=False, by="comm")
    for a, b, has in ((none, slow, "no owners"), (slow, rows, "rows by comm"), (rows, slow, "rows by comm")):
        with pytest.raises(UsageError, match=rf"--by file cannot be answered: .*\.wpt has {has}"):
            main(["diff", str(a), str(b), "--by", "file"])
    assert "reads: +50." in plain(capsys, rows, slow, "--by", "comm")


def test_json_has_parts_that_add_up(quick: Path, slow: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = plain(capsys, quick, slow, "--json").splitlines()
    found = json.loads(line)
    assert found["kind"] == "diff"
    change = next(one for one in found["changes"] if not one["owner"])
    assert change["a_count"], change["b_count"] == (800, 900)
    whole = change["b_mean_ns"] - change["a_mean_ns"]
    assert sum(part["ns"] for part in change["parts"]) == whole
    assert sum(part["ns"] for part in change["told"]) == whole
    rows = {row["stage"]: row for row in found["rows"]}
    assert rows["total"]["b"]["sum_ns"] - rows["total"]["a"]["sum_ns"] == sum(
        one["ns"] for one in change["total_parts"]
    )
    assert {one["figure"] for one in change["figures"] if one["found"]} == {"mean", "p99", "device"}


def test_two_stretches_of_one(obj: BpfObject, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = record(obj, tmp_path / "both.wpt", [100_000.0] * 6 + [150_000.0] * 6)
    out = plain(capsys, path, "--against", "0s-6.5s", "--at", "6.5s-20s")
    assert "read: 600 -> 600 operations" in out
    assert "us in device of sda" in out
    assert "no difference" in plain(capsys, path, "--against", "0s-2s", "--at", "3s-5s")
    # All operations of each stretch are there one by one.
    assert "one by one" not in out
    # Both stretches are of the same capture.
    assert "read: 600 -> 1,200 operations" in plain(capsys, path, path, "--against", "0s-6.5s")


def test_single_operations_that_a_stretch_lacks_are_noted(
    obj: BpfObject, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = record(obj, tmp_path / "lost.wpt", [100_000.0] * 8, lost=10)
    out = plain(capsys, path, "--against", "0s-2.5s", "--at", "3.5s-6.5s")
    assert "A: 180 of 200 operations are there one by one" in out
    assert "B: 270 of 300 operations are there one by one" in out


def test_a_verdict_says_when_it_began(obj: BpfObject, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = record(obj, tmp_path / "both.wpt", [100_000.0] * 7 + [150_000.0] * 6)
    found = json.loads(plain(capsys, path, "--against", "0s-5.5s", "--at", "8.5s-20s", "--json"))
    verdict = found["verdict"]
    assert (verdict["stage"], verdict["dev"]) == ("device", "sda")
    # Between the two stretches.
    began = (verdict["since_ns"] - found["a"]["start_ns"]) / _SECOND
    assert began == pytest.approx(7, abs=0.01)
    assert " since " in verdict["text"][0]


def test_stretches_are_times_of_day_as_well(obj: BpfObject, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = record(obj, tmp_path / "both.wpt", [100_000.0] * 6 + [150_000.0] * 6)
    out = plain(capsys, path, "--against", "0s-6.5s", "--at", "6.5s-60s", "--json")
    began = json.loads(out)["a"]["start_ns"]

    def clock(second: float) -> str:
        at = began + round(second * _SECOND)
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at // _SECOND)) + f".{at % _SECOND:09}"

    # Dates contain dashes.
    at = f"{clock(6.5)}-{clock(60)}"
    assert "read: 600 -> 600 operations" in plain(capsys, path, "--against", f"{clock(0)}-{clock(6.5)}", "--at", at)


def test_conditions_have_an_exit_code(quick: Path, slow: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair = ["diff", str(quick), str(slow)]
    assert main([*pair, "--fail-if", "read.mean > +80%"]) == 0
    assert "fail-if read.mean > +80%: does not hold" in capsys.readouterr().out
    with pytest.raises(ConditionError, match=r"--fail-if read.mean > \+20%: holds") as found:
        main([*pair, "--fail-if", "write.mean > +1%", "--fail-if", "read.mean > +20%"])
    assert found.value.exit_code == 5
    # Everything was shown by then.
    assert "cannot be answered" in capsys.readouterr().out
    with pytest.raises(WptraceError, match="cannot be answered") as unanswered:
        main([*pair, "--fail-if", "write.mean > +1%", "--json"])
    assert unanswered.value.exit_code == 1
    (one,) = json.loads(capsys.readouterr().out)["conditions"]
    assert one == {
        "condition": "write.mean > +1%",
        "holds": None,
        "chance": False,
        "why": "one side has no write, or too few",
    }


def test_a_summary_in_markdown(obj: BpfObject, tmp_path: Path, slow: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strange = record(obj, tmp_path / "@user <b>#1|x.wpt", [100_000.0] * 8)
    out = plain(capsys, strange, slow, "--to", "markdown", "--fail-if", "read.mean > +80%")
    assert out.startswith("### wptrace diff\n\n- ✅ fail-if read.mean &#62; +80%")
    assert "- **reads: +50." in out
    # A name is neither a mention nor a tag.
    assert "&#64;user &#60;b&#62;&#35;1&#124;x.wpt" in out
    table = [line for line in out.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in table} == {8}


def test_stacks_have_both_weights(capsys: pytest.CaptureFixture[str]) -> None:
    pair = RELEASES / "0.1.0-stacks.wpt", RELEASES / "0.2.0-stacks.wpt"
    lines = [line.rsplit(" ", 2) for line in plain(capsys, *pair, "--folded", "count").splitlines()]
    assert lines
    for stack, a, b in lines:
        assert ";" in stack
        # Both are the same recording.
        assert int(a) == int(b) > 0
    with pytest.raises(UsageError, match="needs captures of wptrace stacks"):
        main(["diff", *(str(RELEASES / "0.2.0-cpu.wpt") for _ in "ab"), "--folded", "count"])


def test_a_page(quick: Path, slow: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "diff.html"
    assert plain(capsys, quick, slow, "--to", "html", "-o", file) == ""
    assert "verdict: reads take" in file.read_text()
    with pytest.raises(UsageError, match="--to html needs the name of a file"):
        main(["diff", str(quick), str(slow), "--to", "html"])


def dumped(obj: BpfObject, path: Path, device_ns: int) -> Dump:
    """Dump 100 reads in each of 6 s, from half a second after the begin on."""
    return dump(obj, path, 7, [(0.505 + n / 100, device_ns + n % 7 * 1000) for n in range(600)])


def test_dumps_of_the_recorder(obj: BpfObject, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A dump has events alone: it was taken for a capture in which nothing happened."""
    before, after = tmp_path / "before.wpt", tmp_path / "after.wpt"
    made = dumped(obj, before, 100_000)
    dumped(obj, after, 150_000)
    found = json.loads(plain(capsys, before, after, "--json"))
    assert (found["a"]["start_ns"], found["a"]["duration_ns"]) == (made.since_ns, made.until_ns - made.since_ns)
    (one,) = [change for change in found["changes"] if change["kind"] == "operation"]
    assert (one["a_count"], one["b_count"], one["b_mean_ns"] - one["a_mean_ns"]) == (600, 600, 50_000)
    rows = {(row["kind"], row["stage"]): row["a"]["count"] for row in found["rows"] if row["stage"] == TOTAL}
    assert rows == {("operation", TOTAL): 600, ("request", TOTAL): 600}
    out = plain(capsys, before, after)
    assert "us in device of sda" in out
    assert "fewer than 4 intervals" not in out
    assert "read: 50 -> 200 operations, 50 /s -> 100 /s" in plain(capsys, before, "--against=0s-1.5s", "--at=2.5s-4.5s")


def test_dumps_behind_one_another(obj: BpfObject, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("one.wpt", "two.wpt")]
    made = [dumped(obj, path, 100_000) for path in paths]
    both = tmp_path / "both.wpt"
    both.write_bytes(b"".join(path.read_bytes() for path in paths))
    with closing(Capture(both)) as capture:
        side = read(capture, Wanted("both"))
    assert side.began_ns == made[0].since_ns
    assert side.report.duration_ns == sum(one.until_ns - one.since_ns for one in made)
    assert [sums.count for sums in side.measured["operation"].classes["read"].values()] == [1200]


def test_a_dump_is_no_measure_of_what_it_has_a_part_of(
    obj: BpfObject, tmp_path: Path, quick: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Quick page-cache hits and rows by owner have no records."""
    path = tmp_path / "dump.wpt"
    dumped(obj, path, 100_000)
    with closing(Capture(path)) as capture:
        side = read(capture, Wanted("dump", singles=False))
    assert [kind.name for kind in side.start.kinds] == ["operation", "request"]
    found = json.loads(plain(capsys, path, quick, "--json"))
    assert [change["a_count"] for change in found["changes"]] == [600]


@pytest.mark.parametrize("flow", ["io", "cpu", "size", "stacks"])
def test_captures_of_releases_are_compared(flow: str, capsys: pytest.CaptureFixture[str]) -> None:
    for form in ([], ["--json"]):
        out = plain(capsys, RELEASES / f"0.1.0-{flow}.wpt", RELEASES / f"0.2.0-{flow}.wpt", *form)
        assert out


def test_a_trace_that_goes_on_has_the_same_rows(quick: Path) -> None:
    capture = Capture(quick)
    followed = Following()
    followed.start(capture.head.start)
    for item in capture.items(records=False):
        assert isinstance(item, Report)
        (followed.interval if item.kind == "interval" else followed.summary)(item)
    recorded = read(capture, Wanted("", singles=False))
    capture.close()
    assert followed.side is not None
    found = compared(recorded, followed.side)
    assert found.tested == 5
    for change in found.changes:
        assert (change.a.count, change.a.times, change.a.buckets) == (change.b.count, change.b.times, change.b.buckets)
        assert all(figure.odds.p == 1.0 for figure in change.figures.values())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name a second capture, or two stretches"),
        (["--at", "0s-5s"], "name a second capture, or two stretches"),
        (["--at", "0s", "--against", "0s-5s"], "--at takes a stretch such as 14:00-14:05"),
        (["--at", "5s-1s", "--against", "0s-5s"], "--at 5s-1s ends before it begins"),
        (["--at", "x-y", "--against", "0s-5s"], "--at takes a stretch"),
        ([str(RELEASES / "0.2.0-cpu.wpt")], "they follow different things"),
        (["--against", "0s-5s", "--at", "100s-200s"], "has no interval in that time"),
        (["missing.wpt"], "missing.wpt"),
        (["missing.wpt", "--fail-if", "x"], "--fail-if takes a condition"),
        (["missing.wpt", "--to", "markdown", "-j"], "two output formats"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(quick: Path, arguments: list[str], words: str) -> None:
    with pytest.raises((UsageError, WptraceError), match=words):
        main(["diff", str(quick), *arguments])


def test_of_a_damaged_capture_the_rest_is_compared(quick: Path, slow: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = bytearray(slow.read_bytes())
    data[len(data) // 2] ^= 0xFF
    slow.write_bytes(data)
    with pytest.raises(WptraceError, match="is damaged: some of its frames were left out"):
        main(["diff", str(quick), str(slow)])
    out = capsys.readouterr().out
    assert "note: B: 1 of its frames is damaged, and left out" in out
    assert "us in device of sda" in out


@pytest.mark.parametrize("words", [[], ["--to", "markdown"], ["--json"]])
@pytest.mark.parametrize("name", ["flow", "level"])
def test_what_the_trace_is_called_does_not_reach_the_terminal_as_it_is(
    quick: Path, name: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = forged(tmp_path / "forged.wpt", spoilt(opened(quick), Kind.START, **{name: f"io{ESCAPE}"}))
    out = plain(capsys, path, path, *words)
    assert out.replace("\n", "").isprintable()
    assert "x1b" in out or "u001b" in out


@pytest.mark.parametrize("form", [[], ["--to", "html"]])
def test_a_capture_is_not_overwritten(quick: Path, slow: Path, form: list[str]) -> None:
    before = quick.read_bytes()
    with pytest.raises(UsageError):
        main(["diff", str(quick), str(slow), *form, "-o", str(quick)])
    assert quick.read_bytes() == before
