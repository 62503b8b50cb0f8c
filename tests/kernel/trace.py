# SPDX-License-Identifier: Apache-2.0
"""Runs of the real command, and its output."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import jsonschema

from tests.kernel.forkserver import Started
from wptrace.bpf.object import BpfObject
from wptrace.errors import WptraceError
from wptrace.model.distribution import Distribution

ROOT = Path(__file__).resolve().parents[2]
if TYPE_CHECKING:
    from typing_extensions import Self

_SCHEMA = json.loads((ROOT / "docs" / "schema.json").read_text())


def _definitions() -> Iterator[tuple[str, Any]]:
    """Generate the validators by kind of line. Each kind has one of its own, so no other has to be tried."""
    for one in _SCHEMA["oneOf"]:
        kind = _SCHEMA["$defs"][one["$ref"].rpartition("/")[2]]["properties"]["kind"]
        for value in kind.get("oneOf", [kind]):
            yield value["const"], jsonschema.Draft202012Validator({**one, "$defs": _SCHEMA["$defs"]})


_VALIDATORS = dict(_definitions())
assert sorted(_VALIDATORS) == sorted(_SCHEMA["properties"]["kind"]["enum"])
# A limit, not a measurement: an emulated CPU of a busy machine is slow.
IN_LAB = "WPTRACE_LAB_KERNEL" in os.environ
PATIENCE = float(os.environ.get("WPTRACE_TESTS_PATIENCE", 900 if IN_LAB else 120))

# How long a command may take to end after its test has failed.
_LAST_WORDS_S = 60.0

Line = dict[str, Any]

_right: set[Any] = set()

commands: list[str] = []
"""Each start of the command, for the table at the end of a run."""


class BlamelessError(AssertionError):
    """The kernel or an emulated CPU is to blame: the test runs once more, and the run reports it."""


class KernelSkippedError(BlamelessError):
    """The kernel skipped programs of this trace, so its counts may be short by as many."""


def skipped(obj: BpfObject) -> int:
    """Return how often the kernel skipped a program. Each time, what a test waits for may get lost."""
    found = 0
    for program in obj.progs.values():
        # A program that was not loaded has no statistics.
        with suppress(WptraceError):
            found += program.statistics().recursion_misses if program.autoload else 0
    return found


def object_path(name: str) -> Path:
    machine = {"x86_64": "x86_64", "aarch64": "arm64"}[os.uname().machine]
    return ROOT / "build" / "test-objects" / machine / f"{name}.bpf.o"


def wptrace(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    commands.append(arguments[0] if arguments else "")
    if IN_LAB and not options:
        return _answer(Started(arguments))
    return subprocess.run(
        [sys.executable, "-m", "wptrace", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        cwd=ROOT,
        **options,
    )


def _answer(process: Started) -> subprocess.CompletedProcess[str]:
    found: dict[Any, str] = {}

    def read(stream: Any) -> None:
        with stream:
            found[stream] = stream.read()

    readers = [threading.Thread(target=read, args=(stream,)) for stream in (process.stdout, process.stderr)]
    for reader in readers:
        reader.start()
    code = process.wait(PATIENCE)
    for reader in readers:
        reader.join()
    return subprocess.CompletedProcess("wptrace", code, found[process.stdout], found[process.stderr])


def metrics(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE) as answer:
        return str(answer.read().decode())


def wait_until(condition: Any, what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.05)


class Lines:
    """Lines of JSON, by subject."""

    lines: list[Line]

    @property
    def summary(self) -> Line:
        assert self.lines[-1]["kind"] == "summary"
        return self.lines[-1]

    @property
    def operations(self) -> list[Line]:
        return [line for line in self.lines if line["kind"] in ("operation", "hit")]

    @property
    def requests(self) -> list[Line]:
        return [line for line in self.lines if line["kind"] == "request"]


class Trace(Lines):
    """`wptrace io --json` in the background, from its first line to its summary; subclasses run other commands."""

    command = "io"
    before: tuple[str, ...] = ()
    """A command that runs it."""
    says = ""
    """A pattern of what it may write to standard error."""
    adds_skipped = False
    """The test adds what the kernel skipped of this trace to what it counted."""

    def __init__(self, *arguments: str) -> None:
        commands.append(self.command)
        self._disks = _disks(arguments) if self.command == "io" else []
        self._made = kernel_counted(self._disks)
        self._watched = self.command == "io" and _names_disks(arguments)
        self._stamped = self._watched and _by_stamps(arguments)
        # A busy hardened kernel may keep `io` from choosing the path level by itself.
        is_io = self.command == "io" and not any(word.startswith("--level") for word in arguments)
        self.process = self._started((self.command, "--json", *(["--level=path"] if is_io else ()), *arguments))
        self._written: list[str] = []
        self._is_over = False
        self._complaint = ""
        self._news = threading.Condition()
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read, self._read_complaint)]
        for reader in self._readers:
            reader.start()
        self.wait_for('"kind":"start"', "the first line")

    def _started(self, words: Sequence[str]) -> Started | subprocess.Popen[str]:
        if IN_LAB and not self.before:
            return Started(words)
        whole = [*self.before, sys.executable, "-m", "wptrace", *words]
        return subprocess.Popen(whole, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self._written.append(line)
                self._news.notify_all()
        with self._news:
            self._is_over = True
            self._news.notify_all()

    def _read_complaint(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._complaint += line

    def written(self) -> str:
        """Return what the command has written so far."""
        return "".join(self._written)

    def wait_for(self, text: str, what: str = "", often: int = 1) -> None:
        """Wait until the command has written this many lines with the text, or has ended."""
        end = time.monotonic() + PATIENCE
        with self._news:
            while sum(text in line for line in self._written) < often and not self._is_over:
                left = end - time.monotonic()
                assert left > 0, f"waited in vain for {what or text}"
                # Wake up often: a clock that skips idle time would pass all of it while the host reads a file.
                self._news.wait(min(left, 0.05))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self.process.stdout is not None
        if self.process.stdout.closed:
            return  # the test has ended it
        if error is None:
            self.stop()
        elif isinstance(error, AssertionError):
            self._explain(error)
        else:
            self.kill()

    def _explain(self, error: AssertionError) -> None:
        """Raise KernelSkippedError if the kernel skipped programs, because then tests may wait in vain."""
        self.process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_LAST_WORDS_S)
        self.kill()
        last = json.loads(self._written[-1]) if self._written and self._written[-1].endswith("\n") else {}
        if more := last.get("loss", {}).get("recursion", 0):
            raise KernelSkippedError(f"the kernel skipped {more} runs of programs before: {error}") from error

    def _ended(self) -> None:
        """Wait for the end, read all output and close the streams."""
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            for reader in self._readers:
                reader.join()
            for stream in (self.process.stdout, self.process.stderr):
                assert stream is not None
                stream.close()

    def kill(self) -> None:
        self.process.kill()
        self._ended()

    def stop(self, number: int = signal.SIGINT) -> list[Line]:
        """End the trace and return all lines, each checked against the schema and the law."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> list[Line]:
        self._ended()
        assert self.process.returncode == 0, self._complaint
        assert re.fullmatch(self.says, self._complaint), self._complaint
        self.lines = [json.loads(line) for line in self._written]
        for line in self.lines:
            check(line)
        # Each flow has a summary.
        summaries = [line for line in self.lines if line["kind"] == "summary"]
        assert summaries, self.lines[-1:]
        if not self.adds_skipped:
            for summary in summaries:
                unskipped(summary, kernel_counted(self._disks) - self._made, self._watched, self._stamped)
        return self.lines


_FILTERS = ("--pid", "--tid", "--comm", "--cgroup", "--file", "--dir", "--op", "--size", "--budget")
_DISK = re.compile(r"(?:/dev/)?((?:vd|sd)[a-z]\d*|wpt\w+|(?:nvme0n1|nullb\d+|loop\d+)(?:p\d+)?)")


def _words(arguments: Sequence[str]) -> list[str]:
    return " ".join(arguments).replace("=", " ").split()


def _names_disks(arguments: Sequence[str]) -> bool:
    """Whether each request of the traced disks has an end, unless the kernel hides it. With a budget some have none."""
    words = _words(arguments)
    return "--dev" in words and "--budget" not in words


def _by_stamps(arguments: Sequence[str]) -> bool:
    """Whether no program sees a start, so that a missing end goes unnoticed."""
    words = _words(arguments)
    return "block" in words and "own" not in words


def _disks(arguments: Sequence[str]) -> list[str]:
    """Return the disks of which the trace sees all requests, one for each that the kernel counts."""
    words = _words(arguments)
    if not set(words).isdisjoint(_FILTERS):
        return []
    names = [word for option, word in zip(words, words[1:]) if option == "--dev"]
    found = [match[1] for match in map(_DISK.fullmatch, names) if match]
    return found if len(found) == len(names) else []


class BlockTrace(Trace):
    """`wptrace io --level block`."""

    def __init__(self, *arguments: str) -> None:
        super().__init__("--level", "block", *arguments)


class CpuTrace(Trace):
    command = "cpu"


class FlowTrace(Trace):
    command = "flow"


class HostTrace(Trace):
    command = "host"


class SizeTrace(Trace):
    command = "size"


class StacksTrace(Trace):
    command = "stacks"


def kernel_counted(names: Sequence[str]) -> int:
    """Return how many requests these disks have completed. Leave out stacked ones, which count bios."""
    folders = [Path("/sys/class/block", name) for name in names]
    disks = [folder for folder in folders if not (folder / "slaves").is_dir() or not any((folder / "slaves").iterdir())]
    stats = [(disk / "stat").read_text().split() for disk in disks]
    # Reads, writes and discards (Documentation/block/stat.rst).
    return sum(int(stat[at]) for stat in stats for at in (0, 4, 11))


def unskipped(summary: Line, made: int = 0, every: bool = True, stamped: bool = False) -> None:
    """Raise KernelSkippedError if runs of programs were skipped; fail if more is missing than that explains.

    The kernel skips a program on a CPU that is already in it: for an interrupt or, from 7.0 on, for a task that
    preempts it. Then counts cannot be exact. The kernel counts the skipped runs, and conftest.py runs the test again.
    At most as many of the `made` requests may be missing. A hardened kernel hides some ends from every program, and
    counts none of them (docs/kernels.md); wptrace counts the requests without an end. A test allows for those unless it
    asks for `every` one. With the kernel's stamps (`stamped`) only the kernel's own count tells.
    """
    loss = summary.get("loss", {})
    skipped = loss.get("recursion", 0)
    hidden = 0 if IN_LAB or not every else sum(loss.get(cause, 0) for cause in ("ghost", "unmatched_start", "unseen"))
    finished = summary["requests"]["finished"] if stamped or skipped or hidden else made
    if stamped and not IN_LAB:
        hidden = max(hidden, made - finished)
    if skipped or hidden:
        found = f"{skipped} runs of programs, and the ends of {hidden} requests"
        assert finished + skipped + hidden >= made, f"{made} requests, {finished} seen, skipped {found}: not all"
        raise KernelSkippedError(f"the kernel skipped {found}")


def _asked_for(schema: Any, *words: str) -> Iterator[str]:
    """Generate the strings behind these words anywhere in a schema."""
    if isinstance(schema, dict):
        for key, value in schema.items():
            if key in words:
                yield from (one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str))
            yield from _asked_for(value, *words)
    elif isinstance(schema, list):
        for value in schema:
            yield from _asked_for(value, *words)


_WORDS = frozenset(_asked_for(_SCHEMA, "const", "enum"))
_PATTERNS = [re.compile(pattern) for pattern in sorted(set(_asked_for(_SCHEMA, "pattern")))]


@cache
def _shape_of_text(text: str) -> Any:
    """Return what a schema could tell apart: names of devices, tasks and files are all alike."""
    return text if text in _WORDS else (bool(text), *(bool(pattern.search(text)) for pattern in _PATTERNS))


def _shape(value: Any) -> Any:
    """Return all of a value that a schema asks for, without the magnitudes of numbers."""
    if isinstance(value, str):
        return _shape_of_text(value)
    if isinstance(value, dict):
        return tuple((key, _shape(one)) for key, one in value.items())
    if isinstance(value, list):
        return list, *map(_shape, value)
    if isinstance(value, bool) or value is None:
        return value
    return type(value), value > 0, value < 0


def _thinned(value: Any, place: tuple[str, ...], looked_at: set[Any]) -> Any:
    """Leave out objects of lists whose shape was found right before: their validity depends on nothing else."""
    if isinstance(value, dict):
        return {key: _thinned(one, (*place, key), looked_at) for key, one in value.items()}
    if not isinstance(value, list):
        return value
    # A list that may not be empty keeps its first object.
    kept = value[:1]
    for one in value[1:]:
        if not isinstance(one, dict):
            return value
        shape = (place, _shape(one))
        if shape not in _right and shape not in looked_at:
            looked_at.add(shape)
            kept.append(one)
    return kept


def check(line: Line) -> None:
    # To validate thousands of equal lines takes an emulated CPU most of its time.
    shape = _shape(line)
    if shape not in _right:
        looked_at = {shape}
        thinned = _thinned(line, (line["kind"],), looked_at)
        wrong = jsonschema.exceptions.best_match(_VALIDATORS[line["kind"]].iter_errors(thinned))
        assert wrong is None, f"{line['kind']} line, {wrong.json_path}: {wrong.message[:500]}"
        _right.update(looked_at)
    if line["kind"] in ("interval", "summary"):
        for counts in filter(None, (line["requests"], line.get("operations"))):
            assert counts["started"] == counts["finished"] + counts["in_flight"] + counts["lost"], line
            assert counts["in_flight"] >= 0, line


def count(
    summary: Line, stage: str = "total", op: str | None = None, dev: str | None = None, kind: str = "request"
) -> int:
    """Return how many requests, operations or page-cache hits the rows of a stage have."""
    rows = [row for row in summary["rows"] if row["stage"] == stage and row["kind"] == kind]
    return sum(row["count"] for row in rows if op in (None, row["op"]) and dev in (None, row["dev"]))


def rows(summary: Line, kind: str, op: str, dev: str) -> dict[str, Line]:
    return {row["stage"]: row for row in summary["rows"] if (row["kind"], row["op"], row["dev"]) == (kind, op, dev)}


def same_as_reported(found: dict[str, Line], reported: list[Line], dev: str, op: str) -> None:
    """The kernel's distributions equal, bucket for bucket, those that Python makes of the reported lines."""
    mine = [one for one in reported if (one["dev"], one["op"]) == (dev, op)]
    for stage, row in found.items():
        made = Distribution()
        for one in mine:
            made.add(one["total_ns"] if stage == "total" else one["stages"][f"{stage}_ns"])
        assert (row["count"], row["sum_ns"], row["min_ns"], row["max_ns"]) == (made.count, made.sum, made.min, made.max)
        for key, percent in (("p50_ns", 50), ("p99_ns", 99)):
            assert row[key] == made.percentile(percent)


def findings(report: Line) -> dict[str, Line]:
    """Return the findings of a report's verdict, by rule."""
    return {found["rule"]: found for found in report["verdict"]["findings"]}


def lossless(summary: Line) -> bool:
    return summary["requests"]["lost"] == 0 and not any(summary["loss"].values())


def bpftool(kind: str) -> dict[int, dict[str, Any]]:
    """Return all programs, maps or links of the kernel, by id."""
    found = subprocess.run(["bpftool", "--json", kind, "list"], capture_output=True, text=True, check=True)
    return {one["id"]: one for one in json.loads(found.stdout)}


def programs() -> set[str]:
    """Return the names of BPF programs in the kernel that this project could have loaded."""
    names = {program.get("name", "") for program in bpftool("prog").values()}
    return {name for name in names if name.rpartition("_")[0] in ("complete_tp", "complete_raw")} | (
        names & {"complete_tp_btf", "complete_raw_tp", "issue_tp_btf", "getrq_tp_btf", "merge_tp_btf"}
    )
