# SPDX-License-Identifier: Apache-2.0
"""`wptrace io --capture` and `wptrace replay`: a replay shows exactly what was counted."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.kernel.disks import Disk, fio
from tests.kernel.modules import inserted
from tests.kernel.test_flow import BLOCK, definition
from tests.kernel.trace import (
    IN_LAB,
    PATIENCE,
    BlockTrace,
    Line,
    Trace,
    check,
    lossless,
    programs,
    rows,
    same_as_reported,
    wait_until,
    wptrace,
)
from wptrace.bpf.kernel_btf import vmlinux
from wptrace.capture import channel
from wptrace.capture.channel import Channel
from wptrace.capture.frames import Kind, Reader
from wptrace.cli.main import main
from wptrace.errors import UsageError
from wptrace.kernel import blockdev
from wptrace.outputs.export import FORMATS

pytestmark = pytest.mark.one_kernel


def replayed(file: Path, *options: str) -> list[Line]:
    done = wptrace("replay", str(file), "--json", *options)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    for line in lines:
        check(line)
    assert lines[0]["kind"] == "start"
    return lines


def test_a_trace_ends_with_what_is_different_from_a_capture(disk: Disk, tmp_path: Path) -> None:
    file, jobs = tmp_path / "before.wpt", []
    for options, rw in (("--each", f"--capture={file}"), "randread"), ((f"--against={file}",), "randrw"):
        with Trace(*options, f"--dev={disk.name}") as trace:
            jobs.append(fio(disk.path, rw=rw, number_ios=400))
    (found,) = [line for line in trace.lines if line["kind"] == "diff"]
    check(found)
    rows = [row for row in found["rows"] if (row["kind"], row["stage"]) == ("operation", "total")]
    counts = {
        row["labels"]["op"]: [0 if side is None else side["count"] for side in (row["a"], row["b"])] for row in rows
    }
    assert counts == {op: [job[op]["total_ios"] for job in jobs] for op in ("read", "write")}
    assert {row["labels"]["op"]: row["state"] for row in rows} == {"read": "both", "write": "new"}
    # A diff of a capture with itself has the same A.
    done = wptrace("diff", str(file), str(file), "--json")
    assert [row["a"] for row in json.loads(done.stdout)["rows"] if row["labels"]["op"] == "read"] == [
        row["a"] for row in found["rows"] if row["labels"]["op"] == "read"
    ]


@pytest.mark.parametrize("times", ["own", "kernel"])
def test_requests_of_two_levels_are_compared_between_the_points_of_both(disk: Disk, tmp_path: Path, times: str) -> None:
    files, sums = [tmp_path / "path.wpt", tmp_path / "block.wpt"], []
    jobs: list[Line] = []
    for cls, options in ((Trace, ()), (BlockTrace, (f"--times={times}",))):
        file = files[len(jobs)]
        with cls(f"--capture={file}", f"--dev={disk.name}", *options) as trace:
            jobs.append(fio(disk.path, rw="randread", number_ios=400))
        sums.append({row["stage"]: row["sum_ns"] for row in trace.summary["rows"] if row["kind"] == "request"})
    done = wptrace("diff", *map(str, files), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    check(found)
    path, block = sums
    rows = {row["stage"]: row for row in found["rows"] if row["kind"] == "request"}
    assert {stage: row["b"]["sum_ns"] for stage, row in rows.items()} == block
    inside = path["driver"] + path["device"] + path["complete"]
    assert {stage: row["a"]["sum_ns"] for stage, row in rows.items()} == {
        "queue": path["queue"],
        "device": inside,
        "total": path["queue"] + inside,
    }
    assert rows["total"]["a"]["p99_ns"] is None
    assert rows["total"]["b"]["p99_ns"] > 0
    (change,) = found["changes"]
    assert [change["a_count"], change["b_count"]] == [job["read"]["total_ios"] for job in jobs]
    assert (change["kind"], change["p99"]) == ("request", None)
    said = {one["what"]: one["therefore"] for one in found["unlike"]}
    assert said["block requests"] == "compared from G to C, with driver and complete in device"
    if times == "own":
        assert found["joined"] == {}
    elif vmlinux().has_field("blk_plug", "cur_ktime"):
        # A batch has a single stamp, so the time in the queue is part of `device`.
        assert found["joined"] == {"queue": "device"}
    states = {(row["kind"], row["state"], row["unseen"]) for row in found["rows"] if row["stage"] == "total"}
    assert states == {("operation", "unseen", "operations are not followed"), ("request", "both", "")}
    page = tmp_path / "page.html"
    assert wptrace("diff", *map(str, files), "--to", "html", "-o", str(page)).returncode == 0
    assert "its times begin or end elsewhere" in page.read_text()


def test_a_capture_tells_what_the_trace_counted(disk: Disk, tmp_path: Path) -> None:
    file = tmp_path / "trace.wpt"
    with Trace("--each", f"--capture={file}", f"--dev={disk.name}") as trace:
        job = fio(disk.path, rw="randrw", number_ios=400)
    assert lossless(trace.summary)
    assert trace.operations == trace.requests == []
    start, *reported, summary = replayed(file)
    assert start == trace.lines[0] | {"file": str(file)}
    # Counts, sums, percentiles, verdict and costs are the same.
    assert summary == trace.summary
    assert replayed(file, "--summary")[1:] == [summary]
    assert Counter((one["kind"], one["op"]) for one in reported) == {
        ("operation", op): job[op]["total_ios"] for op in ("read", "write")
    }
    for op in ("read", "write"):
        same_as_reported(rows(trace.summary, "operation", op, disk.name), reported, disk.name, op)
    assert {(one["comm"], one["path"], one["length"]) for one in reported} == {("fio", disk.path, 4096)}
    with closing(Reader(file)) as reader:
        assert sum(frame.length for frame in reader.frames() if frame.kind == Kind.RECORDS) < 120 * len(reported)
    # The missing events are the shortest ones.
    times = sorted(one["total_ns"] for one in reported)
    assert [one["total_ns"] for one in replayed(file, f"--slow={times[300]}ns")[1:-1]] == [
        one["total_ns"] for one in reported if one["total_ns"] >= times[300]
    ]
    # CSV has the same values.
    table = list(csv.DictReader(io.StringIO(wptrace("replay", str(file), "--csv").stdout)))
    fields = ("ts_ns", "op", "comm", "pid", "offset", "length", "sector", "total_ns")
    assert [[row[name] for name in fields] for row in table] == [
        [str(one[name]) for name in fields] for one in reported
    ]
    assert all(row[f"{row['largest']}_ns"] == str(max(one["stages"].values())) for row, one in zip(table, reported))
    titles, *lines = wptrace("replay", str(file), "--line").stdout.splitlines()
    assert [line.split()[1:6] for line in lines] == [
        [f"fio[{one['pid']}]", "O", disk.name, one["op"], str(one["offset"])] for one in reported
    ]
    assert titles.split()[1:6] == ["TASK", "T", "DEV", "OP", "OFFSET/SECTOR"]
    # Filters on labels select rows of the capture; filters on fields of events need rows that are made of events.
    reads = replayed(file, "--op=read")
    assert [one["op"] for one in reads[1:-1]] == ["read"] * job["read"]["total_ios"]
    assert reads[-1]["rows"] == [row for row in summary["rows"] if row["op"] == "read"]
    of_all = replayed(file, f"--pid={reported[0]['pid']}", "--summary")[-1]
    assert of_all["operations"]["finished"] == 400
    figures = ("count", "sum_ns", "min_ns", "max_ns", "p50_ns", "p99_ns", "p999_ns")
    assert [[row[name] for name in figures] for row in of_all["rows"]] == [
        [row[name] for name in figures] for row in summary["rows"]
    ]
    # Each operation made one request, so rows of requests can be made as well.
    assert of_all["requests"]["finished"] == summary["requests"]["finished"] == 400
    assert "unlisted" not in of_all["loss"]
    assert replayed(file, "--comm=nobody")[-1]["rows"] == []
    # Rows by owners that the trace did not have are made from events.
    by_file = [row for row in replayed(file, "--by=file", "--summary")[-1]["rows"] if row["kind"].startswith("owned")]
    assert {row["owner"] for row in by_file} == {disk.path}
    assert sum(row["sum_ns"] for row in by_file if row["stage"] == "under_way") == sum(
        row["sum_ns"]
        for row in summary["rows"]
        if row["kind"] == "request" and row["stage"] in ("driver", "device", "complete")
    )
    # The intervals add up to the summary.
    assert replayed(file, "--since=0s", "--summary")[-1]["operations"] == summary["operations"]


class UnderLoad(Trace):
    """A trace during a load: runs that the kernel skips outside it do not fail the test."""

    adds_skipped = True


@contextmanager
def reads_without_end(disk: Disk) -> Iterator[None]:
    words = ["fio", "--name=job", f"--filename={disk.path}", "--rw=randrw", "--bs=4k", "--direct=1", "--size=32M"]
    load = subprocess.Popen([*words, "--time_based", "--runtime=1h", "--rate_iops=500", "--output=/dev/null"])
    try:
        wait_until(lambda: blockdev.completed(disk.name, blockdev.SYS), "a request of the load")
        yield
    finally:
        load.terminate()
        load.wait()


def test_what_is_told_is_counted_and_drawn_under_a_load(disk: Disk, tmp_path: Path) -> None:
    """The load begins before the trace and ends after it; columns of the page are those of the events."""
    file, page = tmp_path / "trace.wpt", tmp_path / "trace.html"
    with reads_without_end(disk), UnderLoad("--each", f"--capture={file}", f"--dev={disk.name}"):
        wait_until(lambda: file.stat().st_size > 20_000, "some operations")
    *_, summary = lines = replayed(file)
    # A request of an operation that had begun before the trace is a line of its own.
    whole = [one for one in lines[1:-1] if one["kind"] == "operation"]
    ends = {op: [one["ts_ns"] for one in whole if one["op"] == op] for op in ("read", "write")}
    assert {op: len(found) for op, found in ends.items()} == {
        op: rows(summary, "operation", op, disk.name)["total"]["count"] for op in ends
    }
    assert wptrace("report", str(file), "-o", str(page)).returncode == 0
    found = json.loads(re.findall(r'id="data">(.*?)</script>', page.read_text())[0])
    singles, width_ns = found["singles"], round(found["singles"]["width"] * 1e6)
    drawn = {series["name"]: str(at) for at, series in enumerate(found["series"])}
    for op, ends_ns in ends.items():
        at = drawn[f"{op} operations"]
        assert "total" in singles["of"][at]
        counts = [cells[at]["total"][0] for _, _, cells in singles["columns"] if at in cells]
        assert counts == [count for _, count in sorted(Counter(ns // width_ns for ns in ends_ns).items())]


# Their libraries take an emulated CPU a minute. tests/unit/capture writes captures of all views in these formats.
_SLOW_TO_IMPORT = {"perfetto", "parquet", "otf2"}


class Captured:
    """A command with a capture, and a replay of that."""

    def __init__(self, file: Path, command: str, *options: str) -> None:
        self.file = file
        kind = type("Other", (Trace,), {"command": command})
        self.trace: Trace = kind(*options, f"--capture={file}")

    def stop(self) -> Line:
        """Check that a replay has the lines of the trace, and return its summary."""
        self.trace.stop()
        lines = self.trace.lines
        found = replayed(self.file)
        assert found == [lines[0] | {"file": str(self.file)}, *lines[1:]]
        done = wptrace("replay", str(self.file))
        assert done.returncode == 0, done.stderr
        assert all(line.startswith("note: ") for line in done.stderr.splitlines()), done.stderr
        assert len(done.stdout.partition("Summary\n")[2].splitlines()) > 4
        self._export(found[-1])
        return found[-1]

    def _export(self, summary: Line) -> None:
        """Export the capture to a file of each format."""
        for form in set(FORMATS) - (_SLOW_TO_IMPORT if IN_LAB else set()):
            place = self.file.with_suffix(f".{form}")
            words = ["replay", str(self.file), "--to", form, "-o", str(place)]
            if form == "speedscope" and summary["rows"] and "stack" not in summary["rows"][0]:
                with pytest.raises(UsageError, match="speedscope files hold stacks"):
                    main(words)
                continue
            assert main(words) == 0
            assert place.stat().st_size > 0
        lines = [json.loads(line) for line in self.file.with_suffix(".json").read_text().splitlines()]
        for line in lines:
            check(line)
        plain = [{name: value for name, value in row.items() if name != "buckets"} for row in lines[-1]["rows"]]
        assert plain == summary["rows"]
        assert all(sum(count for _, count in row["buckets"]) == row["count"] for row in lines[-1]["rows"])
        page = self.file.with_suffix(".html").read_text()
        assert page.startswith("<!doctype html>")
        assert page.rstrip().endswith("</html>")


@pytest.mark.parametrize("words", [["size"], ["stacks"], ["io", "--by=process", "--neighbours"]])
def test_a_capture_of_each_flow_has_its_summary(words: list[str], disk: Disk, tmp_path: Path) -> None:
    captured = Captured(tmp_path / "trace.wpt", *words, f"--dev={disk.name}")
    with captured.trace:
        fio(disk.path, rw="randrw", number_ios=200)
        summary = captured.stop()
    assert summary["requests"]["finished"] >= 200


def test_a_capture_of_requests_alone(disk: Disk, tmp_path: Path) -> None:
    file = tmp_path / "trace.wpt"
    with BlockTrace("--each", f"--capture={file}", f"--dev={disk.name}") as trace:
        fio(disk.path, rw="randrw", number_ios=200)
    _, *reported, summary = replayed(file)
    assert summary == trace.summary
    assert len(reported) == summary["requests"]["finished"] >= 200
    same_as_reported(rows(summary, "request", "read", disk.name), reported, disk.name, "read")
    done = wptrace("replay", str(file), "--pid=1")
    *notes, last = done.stderr.splitlines()
    assert (done.returncode, last) == (2, "wptrace: --pid cannot be answered: events of this capture do not have it")
    assert all(line.startswith("note: ") for line in notes)


def test_a_capture_of_a_definition(disk: Disk, tmp_path: Path) -> None:
    captured = Captured(tmp_path / "trace.wpt", "flow", definition(tmp_path, BLOCK, disk), "--each")
    with captured.trace:
        made = fio(disk.path, rw="randread", number_ios=100)["read"]["total_ios"]
        summary = captured.stop()
    assert summary["requests"]["finished"] == made
    assert replayed(captured.file, "--comm=fio", "--summary")[-1]["requests"]["finished"] == made


@pytest.mark.guest
def test_a_capture_of_turns(tmp_path: Path) -> None:
    captured = Captured(tmp_path / "trace.wpt", "cpu", "--by=process", "--slow=200us")
    with captured.trace:
        subprocess.run([sys.executable, "-c", "for one in range(100000): pass"], check=True)
        summary = captured.stop()
    rows_of_python = replayed(captured.file, "--comm=python", "--summary")[-1]["rows"]
    assert rows_of_python == [row for row in summary["rows"] if (row["task"] or {}).get("comm") == "python"]


@pytest.mark.guest
def test_a_capture_of_periods(tmp_path: Path) -> None:
    with inserted("irqoff") as module:
        captured = Captured(tmp_path / "trace.wpt", "irqoff", "--min=20ms")
        with captured.trace:
            module.run(0, 100_000)
            summary = captured.stop()
    assert summary["requests"]["finished"] >= 1
    assert summary["offenders"]


@pytest.mark.guest
def test_a_capture_of_faults(tmp_path: Path) -> None:
    with inserted("smmu") as module:
        captured = Captured(tmp_path / "trace.wpt", "iopf")
        with captured.trace:
            module.run(0, 1, 20, 100)
            module.run(1, 7, 5, 100)
            summary = captured.stop()
    assert summary["requests"]["finished"] == 25
    (first, *_) = replayed(captured.file, "--dev=0000:75:00.0", "--summary")[-1]["rows"]
    assert (first["pasid"], first["count"]) == (1, 20)


def test_what_a_full_ring_lost_is_said(disk: Disk, tmp_path: Path) -> None:
    file = tmp_path / "trace.wpt"
    with Trace("--each", f"--capture={file}", "--ring-size=4K", f"--dev={disk.name}") as trace:
        trace.process.send_signal(signal.SIGSTOP)
        fio(disk.path, number_ios=300)
        trace.process.send_signal(signal.SIGCONT)
    lost = trace.summary["loss"]["ring_full"]
    _, *reported, summary = replayed(file)
    assert lost > 0
    assert len(reported) + lost == trace.summary["operations"]["finished"] == 300
    assert summary["loss"]["ring_full"] == lost


def test_a_killed_trace_leaves_what_it_wrote(disk: Disk, tmp_path: Path) -> None:
    file = tmp_path / "trace.wpt"
    with Trace("--each", f"--capture={file}", "--ring-size=64K", f"--dev={disk.name}") as trace:
        size = file.stat().st_size
        fio(disk.path, number_ios=2000)
        wait_until(lambda: file.stat().st_size > size + 4096, "some of it in the file")
        trace.kill()
    start, *reported, _ = replayed(file)
    assert 0 < len(reported) <= 2000
    assert start["notes"][-1].startswith("the capture has no end")


def test_a_full_disk_ends_the_trace_with_a_sentence(disk: Disk) -> None:
    done = wptrace("io", "--each", "--capture=/dev/full", f"--dev={disk.name}")
    assert (done.returncode, done.stdout.count("\n")) == (1, 0)
    assert done.stderr == "wptrace: /dev/full cannot be written: No space left on device\n"
    wait_until(lambda: not programs(), "the end of the programs")


@pytest.mark.skipif(not IN_LAB, reason="vsock of this machine is its hypervisor's")
def test_a_channel_of_vsock_leads_to_whoever_listens() -> None:
    """A machine can reach itself: the loopback module serves CID 1."""
    if subprocess.run(["modprobe", "vsock_loopback"], check=False, capture_output=True).returncode:
        pytest.skip("this kernel has no vsock_loopback")
    sent = bytes(range(256)) * 64
    with closing(Channel("vsock:3:5000")) as found:
        found.open()
        stranger = socket.fromfd(channel.to_write(Path("vsock:1:5000")), socket.AF_VSOCK, socket.SOCK_STREAM)
        with stranger:
            assert found.read() == b""
            select.select([stranger], [], [], PATIENCE)
            assert stranger.recv(1) == b"", "it is turned away"
        assert not found.ended
    with closing(Channel("vsock:1:5000")) as found:
        found.open()
        fd = channel.to_write(Path("vsock:1:5000"))
        assert found.read() == b""  # a client has connected
        left = memoryview(sent)
        while left:
            left = left[channel.write(fd, left) :]
        os.close(fd)
        got = b""
        while not found.ended:
            select.select([found.fd], [], [], PATIENCE)
            got += found.read()
    assert got == sent
