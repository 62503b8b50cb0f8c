# SPDX-License-Identifier: Apache-2.0
"""`wptrace replay --neighbours` of a capture with all events: the exact overlap, from its records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.unit.capture import made
from tests.unit.capture.made import ABOUT, START, entry, keep, totals
from wptrace.bpf.object import BpfObject
from wptrace.capture.writer import About
from wptrace.cli.main import main
from wptrace.errors import UsageError
from wptrace.flows.io.kinds import KINDS, REQUEST
from wptrace.flows.io.parts import owners
from wptrace.model.book import Book
from wptrace.model.distribution import Distribution
from wptrace.model.kind import OPERATIONS, REQUESTS, TOTAL
from wptrace.model.report import Overhead, Report, Start, arranged

US, SECOND = 1_000, 1_000_000_000
ALL = START._replace(filters={"dev": []})
BACKUP, DB = {"cgroup": 10, "comm": b"backup", "tgid": 5, "tid": 6}, {"cgroup": 20, "comm": b"db", "tgid": 7, "tid": 7}
OPERATION, WRITTEN = 0, 2
_FS, _THROTTLE, _QUEUE, _DRIVER, _DEVICE, _COMPLETE, _WAKEUP, _RETURN = 1, 5, 6, 7, 8, 9, 10, 11


def one(who: dict[str, Any], queued: int, issued: int, completed: int, **more: Any) -> dict[str, Any]:
    """Make an operation with one request, by times in us: 2 in fs before it, 1 in wakeup and 1 in return after it."""
    throttled = min(issued - queued, 1)
    stages = {
        _FS: 2, _THROTTLE: throttled, _QUEUE: issued - queued - throttled, _DRIVER: 3, _DEVICE: completed - issued - 5,
        _COMPLETE: 2, _WAKEUP: 1, _RETURN: 1,
    }  # fmt: skip
    return {
        "kind": OPERATION,
        "start_ns": SECOND + (queued - 2) * US,
        "end_ns": SECOND + (completed + 2) * US,
        "handed_ns": SECOND + (issued + 3) * US,
        "seen_ns": SECOND + (completed - 2) * US,
        **{f"stages[{at}]": stages.get(at, 0) * US for at in range(12)},
        "dev": 8 << 20,
        "bytes": 4096,
        "requests": 1,
        **who,
        **more,
    }


def written(who: dict[str, Any], queued: int, issued: int, completed: int) -> dict[str, Any]:
    """Make a request without an operation."""
    made = one(who, queued, issued, completed, kind=WRITTEN, op=1, request_op=1, **{"stages[1]": 0})
    return {
        **made,
        "start_ns": SECOND + queued * US,
        "end_ns": SECOND + completed * US,
        "stages[10]": 0,
        "stages[11]": 0,
    }


MANY = (
    one(BACKUP, 0, 0, 150, bytes=65536),
    written(BACKUP, 110, 120, 250),
    one(DB, 100, 200, 260),
    # Two operations whose bios were merged both report the only request.
    one(DB, 290, 300, 350, events__merged=1),
    one(DB, 295, 300, 350, events__merged=1),
    # If there are several requests, times of single ones are unknown.
    one(BACKUP, 300, 400, 500, requests=2),
    one(BACKUP, 300, 400, 500, handed_ns=SECOND + 310 * US),
)


def write(
    obj: BpfObject,
    path: Path,
    start: Start = ALL,
    about: About = ABOUT,
    finished: int = 7,
    found: Sequence[dict[str, Any]] = MANY,
) -> Path:
    times = Distribution()
    for at in range(finished):
        times.add(at)
    rows = arranged({REQUEST.group("sda", "read"): {TOTAL: times}}, KINDS)
    books = {REQUESTS: Book.read(finished, finished, {}, {}), OPERATIONS: Book.read(7, 7, {}, {})}
    summary = Report("summary", SECOND, SECOND, books, rows, {}, Overhead(0, 0, 0, 0, 0, 0))
    entries = (entry(obj, at, **values) for at, values in enumerate(found))
    cgroups = {0: "", 10: "/batch", 20: "/app"}
    return keep(obj, path, entries, summary, start=start, about=about, cgroup_of=cgroups.__getitem__)


def replayed(path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[dict[str, Any], dict[str, Any]]:
    start, summary = made.replayed(path, capsys, "--summary", "--neighbours", *options)
    return start, {name["owner"]: name for name in summary.get("neighbours", ())} | {"summary": summary}


def test_the_overlap_is_made_of_records(obj: BpfObject, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start, found = replayed(write(obj, tmp_path / "trace.wpt"), capsys)
    assert start["notes"][-1] == (
        "neighbours, by cgroup, are the exact overlap of the times of single requests, from the records of the capture"
    )
    batch, app = found["/batch"], found["/app"]
    assert (batch["device_ns"], batch["requests"], batch["bytes"]) == (280 * US, 2, 65536 + 4096)
    assert (batch["seen"], batch["op"], batch["op_bytes"]) == ("backup", "read", 65536)
    assert (batch["waits"], batch["waited_ns"]) == (1, 10 * US)
    assert batch["meanwhile"] == [{"owner": "/batch", "ns": 10 * US}]
    # The merged request of both counts once, and waits once.
    assert (app["device_ns"], app["requests"], app["waits"], app["waited_ns"]) == (110 * US, 2, 2, 110 * US)
    assert app["meanwhile"] == [{"owner": "/batch", "ns": (50 + 80) * US}]
    summary = found["summary"]
    assert {cause: count for cause, count in summary["loss"].items() if count} == {"neighbour_unknown": 3}
    # Two waits are too few for a finding.
    assert not [one for one in summary["verdict"]["findings"] if one["rule"] == "neighbour"]


@pytest.mark.parametrize(
    ("by", "names"),
    [
        ("process", {"backup[5]", "db[7]"}),
        ("thread", {"backup[5/6]", "db[7/7]"}),
        ("comm", {"backup", "db"}),
        ("cgroup", {"/batch", "/app"}),
    ],
)
def test_owners_are_those_that_are_asked_for(
    by: str, names: set[str], obj: BpfObject, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, found = replayed(write(obj, tmp_path / "trace.wpt"), capsys, f"--by={by}")
    assert found.keys() == {*names, "summary"}


@pytest.mark.parametrize("by", ["process", "thread", "comm", "cgroup"])
def test_a_flush_of_the_block_layer_is_nobodys(
    by: str, obj: BpfObject, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It belongs to a worker whose name is not in the record."""
    flush = written({"cgroup": 0, "comm": b"", "tgid": 0, "tid": 44}, 110, 120, 250)
    file = write(obj, tmp_path / "trace.wpt", found=[flush, one(DB, 100, 200, 260)])
    _, found = replayed(file, capsys, f"--by={by}")
    assert len(found) == 3
    assert found["nobody"]["requests"] == 1


def test_requests_of_operations_are_in_rows(obj: BpfObject, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If rows are made of events, an operation with several requests only has their sum, and the replay says so."""
    file = write(obj, tmp_path / "trace.wpt")

    def answered(*options: str) -> tuple[int, int, int, dict[str, int]]:
        *_, summary = made.replayed(file, capsys, "--summary", *options)
        rows = [row for row in totals(summary) if row["kind"] == "request"]
        count, ns = (sum(row[name] for row in rows) for name in ("count", "sum_ns"))
        return count, ns, summary["requests"]["finished"], summary["loss"]

    # The second operation of a shared request is the one that is not listed.
    assert answered("--comm=db") == (2, (160 + 60) * US, 2, {"unlisted": 1})
    assert answered("--comm=backup") == (2, (150 + 140) * US, 2, {"unlisted": 2})


@pytest.mark.parametrize(
    ("by", "names"),
    [
        ("process", {"db[7]": (4, 3), "backup[5]": (2, 2)}),
        ("thread", {"db[7/7]": (4, 3), "backup[5/6]": (2, 2)}),
        ("comm", {"db": (4, 3), "backup": (2, 2)}),
        ("cgroup", {"/app": (4, 3), "/batch": (2, 2)}),
        ("file", {"/srv/a": (1, 1), "nobody": (5, 4)}),
        ("dir", {"/srv": (1, 1), "nobody": (5, 4)}),
        ("device", {"sda": (6, 5)}),
    ],
)
def test_rows_by_owner_are_made_of_operations(
    by: str, names: dict[str, tuple[int, int]], obj: BpfObject, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Count the operations and requests of each owner."""
    path = b"a\0srv\0"
    named = one(DB, 600, 620, 700, path=path, path_end=len(path))
    file = write(obj, tmp_path / "trace.wpt", found=[*MANY[:-1], named])

    def answered(*options: str) -> tuple[dict[str, Any], dict[str, tuple[int, int]]]:
        start, summary = made.replayed(file, capsys, "--summary", f"--by={by}", *options)
        counts: dict[str, list[int]] = {}
        for row in totals(summary):
            if row["kind"].startswith("owned_"):
                counts.setdefault(row["owner"], [0, 0])[row["kind"] == "owned_request"] += row["count"]
        return start, {owner: (operations, requests) for owner, (operations, requests) in counts.items()}

    start, found = answered()
    assert (start["filters"]["by"], start["notes"][-1][:7]) == (by, "rows by"), start
    assert found == names
    ours = answered("--comm=db")[1]
    assert ours == {owner: counts for owner, counts in names.items() if "db" in owner or owner == "/app"} or by in (
        "file", "dir", "device",
    )  # fmt: skip
    if by == "device":
        assert ours == {"sda": (4, 3)}


@pytest.mark.parametrize("options", [[], ["--by=process"]])
def test_rows_by_owner_remain_where_events_answer_the_rest(
    options: list[str], obj: BpfObject, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows by process know their process, but those of operations do not, so that all are made of events."""
    start = ALL._replace(filters={"dev": [], "by": "process"}, kinds=(*ALL.kinds, *owners.KINDS["process"]))
    file = write(obj, tmp_path / "trace.wpt", start)
    _, summary = made.replayed(file, capsys, "--summary", "--pid=7", *options)
    rows = {row["kind"]: (row["owner"], row["count"]) for row in totals(summary) if row["kind"].startswith("owned_")}
    assert rows == {"owned_operation": ("db[7]", 3), "owned_request": ("db[7]", 2)}


def test_the_largest_owners_have_rows_and_the_others_one(
    obj: BpfObject, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No row without an owner is left out."""
    file = write(obj, tmp_path / "trace.wpt", found=[*MANY, one({**DB, "comm": b"third"}, 700, 700, 710)])
    _, every = made.replayed(file, capsys, "--summary", "--by=comm")
    _, some = made.replayed(file, capsys, "--summary", "--by=comm", "--top=1")

    def rows(summary: dict[str, Any], kind: str) -> dict[str, int]:
        return {row.get("owner", ""): row["count"] for row in totals(summary) if row["kind"] == kind}

    assert rows(every, "owned_operation") == {"backup": 3, "db": 3, "third": 1}
    assert rows(some, "owned_operation") == {"backup": 3, "others": 4}
    plain = [[row for row in summary["rows"] if "owner" not in row] for summary in (every, some)]
    assert plain[0] == plain[1] != []


def test_a_filter_chooses_who_waits(obj: BpfObject, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(obj, tmp_path / "trace.wpt")
    _, found = replayed(file, capsys, "--comm=db")
    assert (found["/batch"]["waits"], found["/batch"]["requests"]) == (0, 2)
    assert found["/app"]["meanwhile"] == [{"owner": "/batch", "ns": 130 * US}]
    assert replayed(file, capsys, "--dev=sdb")[1].keys() == {"summary"}
    _, found = replayed(file, capsys, "--top=1")
    assert found.keys() == {"/batch", "others", "summary"}


def test_it_says_where_the_kernels_figures_are_shown(
    obj: BpfObject, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counted = ALL._replace(filters={"dev": [], "pid": 7, "by": "cgroup", "neighbours": True})
    start, _ = replayed(write(obj, tmp_path / "trace.wpt", counted), capsys)
    assert start["notes"][-1] == "neighbours are as the kernel counted them, not from the records of single requests"


@pytest.mark.parametrize(
    ("start", "about", "sentence"),
    [
        (ALL._replace(filters={"pid": 7}), ABOUT, "with --pid, so that who else had the device is not in it"),
        (ALL, ABOUT._replace(each=False), "without --each, so that not every request is in it"),
        (ALL._replace(level="block"), ABOUT, "it has no owners of requests"),
        (ALL._replace(filters={"by": "file"}), ABOUT, "records do not have owners by file"),
    ],
)
def test_what_cannot_be_known(start: Start, about: About, sentence: str, obj: BpfObject, tmp_path: Path) -> None:
    file = write(obj, tmp_path / "trace.wpt", start, about)
    with pytest.raises(UsageError, match=f"--neighbours cannot be answered: .*{sentence}"):
        main(["replay", str(file), "--neighbours"])
