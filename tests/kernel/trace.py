# SPDX-License-Identifier: Apache-2.0
"""Runs the real command and reads what it says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import jsonschema

from wptrace.engine.distribution import Distribution

ROOT = Path(__file__).resolve().parents[2]
_SCHEMA = json.loads((ROOT / "docs" / "schema.json").read_text())
_VALIDATOR = jsonschema.Draft202012Validator(_SCHEMA)
# A guest on a busy machine may take its time; it is a limit, not a measurement.
PATIENCE = 120.0

Line = dict[str, Any]

_right: set[Any] = set()

skipped: list[str] = []
"""Traces of which the kernel skipped programs: conftest.py asks."""


def object_path(name: str) -> Path:
    machine = {"x86_64": "x86_64", "aarch64": "arm64"}[os.uname().machine]
    return ROOT / "build" / "test-objects" / machine / f"{name}.bpf.o"


def wptrace(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "wptrace", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        cwd=ROOT,
        **options,
    )


def wait_until(condition: Any, what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.05)


class Trace:
    """`wptrace io --json` in the background, between its first line and its summary; or another command's."""

    command = "io"

    def __init__(self, *arguments: str) -> None:
        self._file = tempfile.NamedTemporaryFile("w+", prefix="wptrace-")  # noqa: SIM115 - closed in stop
        self.process = subprocess.Popen(
            [sys.executable, "-m", "wptrace", self.command, "--json", *arguments],
            stdout=self._file,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        wait_until(lambda: self._started() or self.process.poll() is not None, "the first line")

    def _started(self) -> bool:
        return '"kind":"start"' in Path(self._file.name).read_text()

    def written(self) -> str:
        """What it has written so far."""
        return Path(self._file.name).read_text()

    def __enter__(self) -> Trace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.stop() if error is None else self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()
        self._file.close()

    def stop(self, number: int = signal.SIGINT) -> list[Line]:
        """Ends it and returns all lines, each checked against the schema and the law."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> list[Line]:
        _, complaint = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0, complaint
        assert complaint == ""
        self.lines = [json.loads(line) for line in Path(self._file.name).read_text().splitlines()]
        self._file.close()
        for line in self.lines:
            check(line)
        if self.lines[-1].get("loss", {}).get("recursion"):
            skipped.append(self.command)
        return self.lines

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


class BlockTrace(Trace):
    """`wptrace io --level block`."""

    def __init__(self, *arguments: str) -> None:
        super().__init__("--level", "block", *arguments)


def _shape(value: Any) -> Any:
    """All of it that a schema asks for, but how large its numbers are."""
    if isinstance(value, dict):
        return tuple((key, _shape(one)) for key, one in value.items())
    if isinstance(value, list):
        return tuple(map(_shape, value))
    if isinstance(value, bool | str) or value is None:
        return value
    return type(value), value > 0, value < 0


def check(line: Line) -> None:
    # To look at each of thousands of equal ones would take an emulated machine most of its time.
    shape = _shape(line)
    if shape not in _right:
        wrong = jsonschema.exceptions.best_match(_VALIDATOR.iter_errors(line))
        assert wrong is None, f"{line['kind']} line, {wrong.json_path}: {wrong.message[:500]}"
        _right.add(shape)
    if line["kind"] in ("interval", "summary"):
        for counts in filter(None, (line["requests"], line.get("operations"))):
            assert counts["started"] == counts["finished"] + counts["in_flight"] + counts["lost"], line
            assert counts["in_flight"] >= 0, line


def count(
    summary: Line, stage: str = "total", op: str | None = None, dev: str | None = None, kind: str = "request"
) -> int:
    """How many requests, operations or page-cache hits a stage's rows have."""
    rows = [row for row in summary["rows"] if row["stage"] == stage and row["kind"] == kind]
    return sum(row["count"] for row in rows if op in (None, row["op"]) and dev in (None, row["dev"]))


def rows(summary: Line, kind: str, op: str, dev: str) -> dict[str, Line]:
    return {row["stage"]: row for row in summary["rows"] if (row["kind"], row["op"], row["dev"]) == (kind, op, dev)}


def same_as_told(found: dict[str, Line], told: list[Line], dev: str, op: str) -> None:
    """The kernel's distributions, bucket for bucket, are those that Python makes of the single operations."""
    mine = [one for one in told if (one["dev"], one["op"]) == (dev, op)]
    for stage, row in found.items():
        made = Distribution()
        for one in mine:
            made.add(one["total_ns"] if stage == "total" else one["stages"][f"{stage}_ns"])
        assert (row["count"], row["sum_ns"], row["min_ns"], row["max_ns"]) == (made.count, made.sum, made.min, made.max)
        for key, percent in (("p50_ns", 50), ("p99_ns", 99)):
            assert row[key] == made.percentile(percent)


def lossless(summary: Line) -> bool:
    return summary["requests"]["lost"] == 0 and not any(summary["loss"].values())


def programs() -> set[str]:
    """Names of the BPF programs in the kernel that this project could have loaded."""
    found = subprocess.run(["bpftool", "--json", "prog", "list"], capture_output=True, text=True, check=True)
    names = {program.get("name", "") for program in json.loads(found.stdout)}
    return {name for name in names if name.rpartition("_")[0] in ("complete_tp", "complete_raw")} | (
        names & {"complete_tp_btf", "complete_raw_tp", "issue_tp_btf", "getrq_tp_btf", "merge_tp_btf"}
    )
