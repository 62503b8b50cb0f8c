# SPDX-License-Identifier: Apache-2.0
"""`--recorder` of `wptrace io` and `wptrace flow`: all of the latest objects, written to a file on request."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.disks import Disk, fio, fio_jobs, frozen, mounting
from tests.kernel.flows import running_flow
from tests.kernel.loads import direct_loop, mounted
from tests.kernel.stacks import delay, delayed
from tests.kernel.test_capture import replayed
from tests.kernel.test_flow import BLOCK, ISSUED, definition
from tests.kernel.trace import Line, Trace, wait_until, wptrace
from tests.unit.outputs.export.test_html import data
from wptrace.bpf.ring import Reader
from wptrace.engine.recorder import Recorder
from wptrace.engine.recorder_size import LONGEST_NS, RecorderSize
from wptrace.flows.io import block as io_block
from wptrace.flows.io.block import BlockFlow
from wptrace.flows.io.options import Options
from wptrace.flows.io.path import PathFlow

_HIT_NS = 1_000_000
_TASK = ("comm", "pid", "tid", "cgroup")
_OPERATION = (*_TASK, "path", "inode", "offset", "length", "result", "error", "requests", "readahead")
_REQUEST = ("sector", "bytes", "rwbs")


# Writes end at a point of their own, and those of more than 32 KiB are failures.
_BEGIN, _, _END = ISSUED.rpartition("[[point]]")
ENDS = f"""{_BEGIN}
[[point]]
name = "written"
at = "tp:block_rq_complete"
key = "request"
filter = ["request->cmd_flags & 1"]
outcome = "written"
failed = "request->__data_len > 32768"
[[point]]{_END}role = "end"
"""


class Recording(Trace):
    says = r"(wptrace: (the recorder|its page) [^\n]*\n)*"


class ToFolder(Recording):
    """The recorder is written to a folder at the end, too."""

    at_end: tuple[str, ...] = ("--recorder-at-end",)

    def __init__(self, folder: Path, *arguments: str, size: str = "4M") -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        super().__init__(f"--recorder={size}", *self.at_end, f"--dump-dir={folder}", *arguments)

    @property
    def dumped(self) -> list[Line]:
        (dump,) = dumps(self._folder)
        return replayed(dump)


class RecordingFlow(ToFolder):
    command = "flow"


class Asked(ToFolder):
    """Written when something asks. Started as users do: `wptrace dump` identifies it by its command line."""

    before = ("env",)
    at_end = ()


class AskedFlow(Asked):
    command = "flow"


def dumps(folder: Path) -> list[Path]:
    return sorted(folder.glob("wptrace-*.wpt"))


def of(lines: Iterable[Line], *kinds: str) -> list[Line]:
    return [line for line in lines if line["kind"] in kinds]


def each(lines: list[Line], kind: str) -> list[str]:
    """Leave out the time of day, because the machine's clock may have been set meanwhile."""
    return sorted(json.dumps({**one, "ts_ns": 0}, sort_keys=True) for one in of(lines, kind))


def facts(line: Line, *fields: str) -> tuple[Any, ...]:
    stages = tuple(sorted((name, ns) for name, ns in line["stages"].items() if ns))
    return line["kind"], line["dev"], line["op"], line["total_ns"], stages, *(line[name] for name in fields)


@pytest.mark.guest
def test_a_dump_has_what_each_was(disk: Disk, tmp_path: Path) -> None:
    """The same trace also sends every event to the ring: operations of any kind, and requests without one."""
    every, options = tmp_path / "each.wpt", ["--each", f"--dev={disk.name}"]
    with (
        mounted(disk, "ext4", tmp_path / "mnt") as top,
        ToFolder(tmp_path / "dumps", *options, f"--capture={every}", size="8M") as trace,
    ):
        file = str(top / "file")
        fio(file, size="4M", rw="randrw", bs="16k", number_ios=60)
        fio(file, size="4M", rw="write", bs="64k", direct=0, fsync=16)
        (Path("/proc/sys/vm/drop_caches")).write_text("1\n")
        fio(file, size="4M", rw="read", bs="64k", direct=0)
        # Larger than the largest request, so that operations have several.
        fio(file, size="4M", rw="read", bs="2M")
        fio(file, size="4M", rw="randread", ioengine="libaio", iodepth=8, number_ios=60)
    traced, found = replayed(every), trace.dumped
    slow_enough = [one for one in of(traced, "operation", "hit") if one["kind"] != "hit" or one["total_ns"] >= _HIT_NS]
    assert Counter(facts(one, *_OPERATION) for one in slow_enough) == Counter(
        facts(one, *_OPERATION) for one in of(found, "operation", "hit")
    )
    assert any(one["requests"] > 1 for one in slow_enough)
    # An operation with a single request records both together.
    single = [one for one in of(found, "operation") if "sector" in one]
    assert Counter(facts(one, *_REQUEST) for one in single) <= Counter(
        facts(one, *_REQUEST) for one in of(traced, "operation") if "sector" in one
    )
    requests = of(found, "request")
    assert Counter(facts(one, *_REQUEST, *_TASK) for one in of(traced, "request")) <= Counter(
        facts(one, *_REQUEST, *_TASK) for one in requests
    )
    # Each operation and request that was counted has a record.
    assert len(single) + len(requests) == trace.summary["requests"]["finished"]
    assert len(of(found, "operation")) + len(of(traced, "hit")) == trace.summary["operations"]["finished"]

    # Rows that are made of records equal those that programs counted.
    def figures(lines: list[Line], kind: str) -> list[Any]:
        rows = [one for one in lines[-1]["rows"] if one["kind"] == kind]
        return [
            [row[name] for name in ("op", "stage", "count", "sum_ns", "min_ns", "max_ns", "p99_ns")] for row in rows
        ]

    for kind in ("operation", "request"):
        assert figures(found, kind) == figures(traced, kind)


@pytest.mark.parametrize("engine", ["psync", "libaio", "io_uring"])
def test_each_request_has_a_record(disk: Disk, tmp_path: Path, engine: str) -> None:
    with ToFolder(tmp_path, f"--dev={disk.name}") as trace:
        job = fio(disk.path, rw="randread", number_ios=300, ioengine=engine, iodepth=1 if engine == "psync" else 4)
    count = job["read"]["total_ios"]
    assert trace.summary["requests"]["finished"] == count
    found = trace.dumped
    assert sum("sector" in one for one in of(found, "operation", "request")) == count
    # If asynchronous operations are not seen, a request belongs to the worker that sent it.
    assert {one["comm"].partition("-")[0] for one in of(found, "operation", "request")} <= {"fio", "iou"}
    assert found[-1]["requests"]["finished"] == count
    assert found[-1]["loss"] == {}


@pytest.mark.parametrize("times", ["kernel", "own"])
def test_a_dump_of_the_block_layer_alone_has_what_each_was(disk: Disk, tmp_path: Path, times: str) -> None:
    """The same trace also sends every request, which a dump is compared with; both ways to take times are tried."""
    every, options = tmp_path / "each.wpt", ["--level=block", f"--times={times}", "--each", f"--dev={disk.name}"]
    with ToFolder(tmp_path / "dumps", *options, f"--capture={every}") as trace:
        job = fio(disk.path, rw="randrw", bsrange="4k-64k", number_ios=400, ioengine="libaio", iodepth=8)
    traced, found = replayed(every), trace.dumped
    count = job["read"]["total_ios"] + job["write"]["total_ios"]
    assert count == 400
    assert (
        len(of(found, "request")) == found[-1]["requests"]["finished"] == trace.summary["requests"]["finished"] >= count
    )

    assert each(found, "request") == each(traced, "request")
    assert "unrecorded" not in trace.summary["loss"]
    assert found[-1]["incident"]["total_ns"] == max(one["total_ns"] for one in of(found, "request"))


@pytest.mark.parametrize("text", [BLOCK, ISSUED, ENDS], ids=["stages", "one stage", "outcomes"])
def test_a_dump_of_a_definition_has_what_each_was(disk: Disk, tmp_path: Path, text: str) -> None:
    every = tmp_path / "each.wpt"
    with RecordingFlow(tmp_path / "dumps", definition(tmp_path, text, disk), "--each", f"--capture={every}") as trace:
        job = fio(disk.path, rw="randrw", bsrange="4k-64k", number_ios=400, ioengine="libaio", iodepth=8)
    traced, found = replayed(every), trace.dumped
    count = job["read"]["total_ios"] + job["write"]["total_ios"]
    assert len(of(found, "object")) == found[-1]["requests"]["finished"] == count == 400

    assert each(found, "object") == each(traced, "object")
    # Records come in the order of their ends.
    assert [one["ts_ns"] for one in of(found, "object")] == sorted(one["ts_ns"] for one in of(found, "object"))
    for name in ("bytes", "events"):
        assert found[-1].get(name) == traced[-1].get(name)
    assert [_figures(row) for row in found[-1]["rows"]] == [_figures(row) for row in traced[-1]["rows"]]
    assert found[-1]["requests"]["failed"] == traced[-1]["requests"]["failed"]
    assert "unrecorded" not in trace.summary["loss"]
    assert found[-1]["loss"] == {}
    if text == ENDS:
        kinds = Counter((one.get("outcome"), one.get("failed", False)) for one in of(found, "object"))
        assert kinds.keys() == {("written", True), ("written", False), (None, False)}
        assert sum(many for (outcome, _), many in kinds.items() if outcome) == job["write"]["total_ios"]


def _figures(row: Line) -> Line:
    """Leave out the standard deviation, which is exact in a dump."""
    return {name: row[name] for name in row if name != "stddev_ns"}


@pytest.mark.one_kernel
def test_objects_that_have_no_room_are_counted(disk: Disk, tmp_path: Path) -> None:
    with RecordingFlow(tmp_path, definition(tmp_path, ISSUED, disk), size="1M") as trace:
        job = fio(disk.path, rw="randread", bs="512", number_ios=24_000)
    found = trace.dumped
    loss, there = found[-1]["loss"], len(of(found, "object"))
    assert loss["overwritten"] > 0
    recorded = there + loss["overwritten"] + loss.get("earlier", 0)
    assert recorded == trace.summary["requests"]["finished"] >= job["read"]["total_ios"], (loss, trace.summary["loss"])


@pytest.mark.one_kernel
def test_a_slow_object_and_a_question_are_followed_by_dumps(disk: Disk, tmp_path: Path) -> None:
    with AskedFlow(tmp_path, definition(tmp_path, ISSUED, disk), "--on-slow=1ns") as trace:
        fio(disk.path, rw="randread", number_ios=20)
        wait_until(lambda: len(dumps(tmp_path)) == 1, "a dump of what was slow")
        asked = wptrace("dump", str(trace.process.pid))
        assert (asked.returncode, asked.stderr) == (0, "")
        wait_until(lambda: len(dumps(tmp_path)) == 2, "a dump on request")
    assert [len(of(replayed(file), "object")) for file in dumps(tmp_path)] == [20, 20]


@pytest.mark.one_kernel
def test_requests_that_a_budget_leaves_untimed_are_recorded(disk: Disk, tmp_path: Path) -> None:
    """The kernel stamps them all the same."""
    size = RecorderSize(LONGEST_NS, 4 << 20)
    with closing(BlockFlow(io_block.Options((disk.name,), recorder=size, times="kernel"))) as flow:
        start = flow.start(Reader())
        flow.begin()
        flow._running.obj.bss.request_sample = 16
        count = fio(disk.path, rw="randread", number_ios=320)["read"]["total_ios"]
        flow.stop()
        (counts,) = [counts for group, counts in flow.snapshot().counters.items() if "untimed" in counts]
        # One in 16, at irregular intervals: twice as many would be 8 standard deviations away.
        assert counts["untimed"] >= count * 14 // 16
        recorder = flow.flight_recorder
        assert recorder is not None
        recorder.copied(start, flow.view)(tmp_path / "dump.wpt")
    assert len(of(replayed(tmp_path / "dump.wpt"), "request")) == count == 320


@pytest.mark.one_kernel
def test_what_has_no_room_is_counted(disk: Disk, tmp_path: Path) -> None:
    with ToFolder(tmp_path, "--comm=fio", f"--dev={disk.name}", size="1M") as trace:
        job = fio(disk.path, rw="randread", bs="512", number_ios=24_000)
    found = trace.dumped
    loss = found[-1]["loss"]
    there = len(of(found, "operation", "request"))
    assert loss["overwritten"] > 0
    # An operation whose task did not wait for the request has a record, and the request has one of its own.
    records = there + loss["overwritten"] + loss.get("earlier", 0)
    assert 0 <= records - job["read"]["total_ios"] < 100
    # The latest ones are there, in order.
    ends = [one["clock"]["end_ns"] for one in of(found, "operation")]
    assert ends == sorted(ends)


@pytest.mark.one_kernel
def test_a_running_trace_is_asked_for_dumps(disk: Disk, tmp_path: Path) -> None:
    with Asked(tmp_path, f"--dev={disk.name}", size="30s") as trace:
        fio(disk.path, rw="randread", number_ios=100)
        trace.process.send_signal(signal.SIGUSR2)
        wait_until(lambda: len(dumps(tmp_path)) == 1, "the first dump")
        fio(disk.path, rw="randread", number_ios=50)
        asked = wptrace("dump", str(trace.process.pid))
        assert (asked.returncode, asked.stderr) == (0, "")
        assert str(tmp_path) in asked.stdout
        wait_until(lambda: len(dumps(tmp_path)) == 2, "the second dump")
    counts = [len(of(replayed(file), "operation")) for file in dumps(tmp_path)]
    assert sorted(counts) == [100, 150]
    assert trace.summary["requests"]["finished"] == 150
    assert {oct(file.stat().st_mode & 0o777) for file in dumps(tmp_path)} == {"0o600"}
    again = wptrace("dump", str(trace.process.pid))
    assert (again.returncode, again.stdout) == (2, "")
    assert "is not the process of a trace with a recorder" in again.stderr


@pytest.mark.one_kernel
def test_a_dump_that_cannot_be_written_harms_nothing(disk: Disk, tmp_path: Path) -> None:
    folder = tmp_path / "dumps"
    with ToFolder(folder, f"--dev={disk.name}") as trace:
        fio(disk.path, rw="randread", number_ios=100)
        folder.rmdir()
        trace.process.send_signal(signal.SIGUSR2)
        fio(disk.path, rw="randread", number_ios=100)
    assert trace.summary["requests"]["finished"] == 200
    assert not folder.exists()
    assert "could not be written" in trace._complaint


@pytest.mark.one_kernel
def test_a_full_disk_leaves_nothing_and_the_next_dump_has_room(disk: Disk, tmp_path: Path) -> None:
    folder = tmp_path / "dumps"
    # Half of what a thousand records of 30 bytes need with their names.
    with mounting(folder, "-t", "tmpfs", "-o", "size=16k", "tmpfs"):
        with Asked(folder, f"--dev={disk.name}") as trace:
            fio(disk.path, rw="randread", number_ios=1000)
            trace.process.send_signal(signal.SIGUSR2)
            wait_until(lambda: "could not be written" in trace._complaint, "what it says of a full disk")
            assert "No space left on device" in trace._complaint
            assert list(folder.iterdir()) == []
            subprocess.run(["mount", "-o", "remount,size=4m", folder], check=True)
            fio(disk.path, rw="randread", number_ios=50)
            trace.process.send_signal(signal.SIGUSR2)
            wait_until(lambda: "the recorder is in" in trace._complaint, "the second dump")
        assert len(of(trace.dumped, "operation")) == 1050


@pytest.mark.one_kernel
def test_a_reader_that_was_stopped_has_all_of_it(disk: Disk, tmp_path: Path) -> None:
    with Asked(tmp_path, f"--dev={disk.name}") as trace:
        trace.process.send_signal(signal.SIGSTOP)
        fio(disk.path, rw="randread", number_ios=300)
        trace.process.send_signal(signal.SIGUSR2)
        trace.process.send_signal(signal.SIGCONT)
        wait_until(lambda: dumps(tmp_path) and "the recorder is in" in trace._complaint, "the dump")
    found = trace.dumped
    assert (len(of(found, "operation")), found[-1]["loss"]) == (300, {})


@pytest.mark.one_kernel
def test_a_thousand_snapshots_have_no_record_that_is_half_written(disk: Disk) -> None:
    """A numbered record never changes. Only the newest ones, which are being written, may be missing."""
    with running_flow(PathFlow(Options(devices=(disk.name,), recorder=RecorderSize(LONGEST_NS, 1 << 20)))) as flow:
        flow.begin()
        recorder = flow.flight_recorder
        assert isinstance(recorder, Recorder)
        assert not any(one.there for one in recorder._copy()[1])
        words = ["--name=load", "--rw=randread", "--bs=512", "--direct=1", "--size=32M", "--time_based", "--runtime=60"]
        with subprocess.Popen(["fio", *words, f"--filename={disk.path}"], stdout=subprocess.DEVNULL) as load:
            try:
                wait_until(lambda: any(one.wrapped for one in recorder._copy()[1]), "an area that is full")
                torn, lost = _snapshots(recorder, 1000)
            finally:
                load.terminate()
        flow.stop()
    # Older records were overwritten between most snapshots.
    assert lost > 1000
    assert torn < 100


def _snapshots(recorder: Recorder, many: int) -> tuple[int, int]:
    """Return how many records were torn, and how many were gone in the next snapshot."""
    size, torn, lost = recorder._record.size, 0, 0
    before: dict[tuple[int, bytes], bytes] = {}
    for _ in range(many):
        rows, areas = recorder._copy()
        torn += sum(one.torn for one in areas)
        # The expression matches one record in five.
        found = (
            (cpu, at)
            for cpu, one in enumerate(areas)
            for begin, count in one.runs
            for at in range(begin, begin + count, 5)
        )
        now = {}
        for cpu, place in found:
            row = rows[place * size : (place + 1) * size]
            now[cpu, row[-4:]] = row
        assert all(before.get(key, row) == row for key, row in now.items())
        lost += len(before.keys() - now.keys())
        before = now
    return torn, lost


@pytest.mark.smp
def test_cpus_that_come_and_go_have_their_records(disk: Disk, tmp_path: Path) -> None:
    switch = Path("/sys/devices/system/cpu/cpu1/online")
    with ToFolder(tmp_path, f"--dev={disk.name}") as trace:
        fio(disk.path, rw="randread", number_ios=200, cpus_allowed="1")
        switch.write_text("0")
        try:
            fio(disk.path, rw="randread", number_ios=100)
        finally:
            switch.write_text("1")
        fio(disk.path, rw="randread", number_ios=50, cpus_allowed="1")
    found = trace.dumped
    assert (len(of(found, "operation")), found[-1]["loss"]) == (350, {})


@pytest.mark.one_kernel
def test_what_takes_longer_than_a_lower_half_of_nanoseconds(disk: Disk, tmp_path: Path) -> None:
    """A frozen file system holds a write back for more than 4.3 s."""
    every, options = tmp_path / "each.wpt", ["--slow=4s", f"--dev={disk.name}", "--comm=dd"]
    with (
        mounted(disk, "ext4", tmp_path / "mnt") as top,
        ToFolder(tmp_path / "dumps", *options, f"--capture={every}") as trace,
        # Opened before, because opening waits as well before Linux 6.12.
        (top / "file").open("wb") as file,
    ):
        with frozen(top):
            words = ["dd", "if=/dev/zero", "bs=4k", "count=1", "status=none"]
            writer = subprocess.Popen(words, stdout=file)
            time.sleep(5.5)  # dd takes a while to start
        assert writer.wait() == 0
    (traced,) = (one for one in of(replayed(every), "operation", "hit") if one["total_ns"] >= 1 << 32)
    (found,) = (one for one in of(trace.dumped, "operation", "hit") if one["total_ns"] >= 1 << 32)
    assert (found["kind"], found["op"], found["result"]) == (traced["kind"], "write", 4096)
    assert abs(found["total_ns"] - traced["total_ns"]) < 12 * 1024
    assert found["clock"]["end_ns"] == traced["clock"]["end_ns"]


@pytest.mark.guest
@pytest.mark.one_kernel
def test_a_device_that_gets_slow_is_the_incident(disk: Disk, tmp_path: Path) -> None:
    """dm-delay below the traced device makes it slow from a known moment on."""
    with ExitStack() as stack:
        lower = stack.enter_context(delayed(disk, 0))
        slow = stack.enter_context(direct_loop(lower))
        stack.enter_context(ToFolder(tmp_path, f"--dev={slow.name}"))
        fio(slow.path, number_ios=200)
        began_ns = time.time_ns()
        delay(lower, 60)
        before = slow.counted()["read"]
        jobs = (
            {"filename": slow.path, "name": "writers", "rw": "randwrite", "iodepth": 4, "ioengine": "libaio"},
            {"filename": slow.path, "name": "reader", "number_ios": 40},
        )
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(fio_jobs, *jobs)
            wait_until(lambda: slow.counted()["read"] >= before + 10, "ten reads")
            # The slowest read comes after this.
            worse_ns = time.time_ns()
            delay(lower, 200)
            running.result()
    incident = replayed(dumps(tmp_path)[0], "--summary", "--op=read")[-1]["incident"]
    assert (incident["dev"], incident["part"], incident["op"]) == (slow.name, "device", "read")
    assert incident["part_ns"] >= 200_000_000 > 4 * incident["usual_ns"] > 0
    beginning = incident["beginning"]
    assert began_ns <= beginning["begin_ns"] <= worse_ns <= incident["ts_ns"]
    # There are no other writes to compare with.
    assert 10 <= beginning["slow"] <= beginning["among"] <= 240
    # The writers have four requests at a time. Changing the device waits for those, so all may arrive later.
    (under_way,) = incident["under_way"]
    assert under_way["op"] == "write"
    assert under_way["issued"] <= under_way["requests"] <= 4 <= under_way["requests"] + under_way["later"]


@pytest.mark.one_kernel
def test_a_page_is_written_beside_a_dump(disk: Disk, tmp_path: Path) -> None:
    with ToFolder(tmp_path, "--dump-page", f"--dev={disk.name}") as trace:
        fio(disk.path, rw="randread", number_ios=100, ioengine="libaio", iodepth=4)
    (page,) = tmp_path.glob("wptrace-*.html")
    assert page.stem == dumps(tmp_path)[0].stem
    assert page.stat().st_mode & 0o777 == 0o600
    incident = data(page.read_text())["incident"]
    assert incident["event"]["total"] == max(one["total_ns"] for one in of(trace.dumped, "operation", "request"))


@pytest.mark.one_kernel
def test_something_slow_is_followed_by_a_dump(disk: Disk, tmp_path: Path) -> None:
    with Asked(tmp_path, "--on-slow=1ns", f"--dev={disk.name}") as trace:
        fio(disk.path, rw="randread", number_ios=20)
        wait_until(lambda: dumps(tmp_path), "a dump")
    assert len(of(trace.dumped, "operation")) == 20
    with Asked(tmp_path, "--on-slow=1h", f"--dev={disk.name}"):
        fio(disk.path, rw="randread", number_ios=20)
    assert len(dumps(tmp_path)) == 1


@pytest.mark.one_kernel
def test_neighbours_of_a_dump_are_those_of_each(disk: Disk, tmp_path: Path) -> None:
    every = tmp_path / "each.wpt"
    with ToFolder(tmp_path, "--each", f"--capture={every}", f"--dev={disk.name}"):
        fio(disk.path, rw="randread", number_ios=200, ioengine="libaio", iodepth=4, numjobs=2, group_reporting=1)
    (dump,) = dumps(tmp_path)

    def neighbours(file: Path) -> Any:
        return replayed(file, "--neighbours", "--by=thread", "--summary")[-1].get("neighbours")

    assert neighbours(dump)
    assert neighbours(dump) == neighbours(every)


@pytest.mark.one_kernel
def test_wrong_wishes_are_one_sentence(tmp_path: Path) -> None:
    for words, said in (
        (["--recorder=1K"], "between 1M and 4G"),
        (["--recorder=soon"], "soon"),
        (["--on-slow=1ms"], "--on-slow needs --recorder"),
        (["--recorder=4M", f"--dump-dir={tmp_path / 'none'}"], "is not a folder"),
        (["--level=block", "--on-slow=1ms"], "--on-slow needs --recorder"),
        (["flow", "block", "--recorder=1K"], "between 1M and 4G"),
        (["flow", "block", "--dump-page"], "--dump-page needs --recorder"),
        (["net", "--recorder=4M"], "--recorder takes one flow"),
    ):
        done = wptrace(*(words if words[0] in ("flow", "net") else ["io", *words]))
        assert (done.returncode, done.stdout) == (2, ""), words
        assert said in done.stderr
        assert "Traceback" not in done.stderr
