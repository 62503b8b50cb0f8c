# SPDX-License-Identifier: Apache-2.0
"""`wptrace support`: the contents of the bundle, and the names that are not in it."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
import subprocess
import tarfile
from pathlib import Path
from typing import Any, Callable

import pytest

from tests.unit.capture.made import write
from wptrace.bpf.object import BpfObject
from wptrace.capture.writer import About, CaptureOutput
from wptrace.cli.main import main
from wptrace.errors import WptraceError
from wptrace.flows.io.kinds import KINDS, OPERATION
from wptrace.flows.io.parts import owners
from wptrace.model.book import Book
from wptrace.model.diagnosis import Diagnosis
from wptrace.model.distribution import Distribution
from wptrace.model.kind import OPERATIONS, REQUESTS, TOTAL
from wptrace.model.report import Finding, Overhead, Report, Source, Start, Verdict
from wptrace.tools import doctor, support

NAME = "geheim"
OWNED_OPERATION = owners.KINDS["cgroup"][0]
CONFIG = """
[agent]
budget = "2%"
folder = "/srv/geheim"

[history]
dir = "{history}"
keep = "1G"

[trigger.slow]
when = "io.read.total.p99 > 50ms for 30s"
command = ["/usr/bin/geheim", "--to", "geheim"]

[always.io]
dev = ["/dev/sda"]
dir = "/srv/geheim"
comm = "geheim"
slow = "10ms"
waits = true
"""
PLAIN = {"/dev/sda", "10ms", "2%", "1G", "io.read.total.p99 > 50ms for 30s"}


@pytest.fixture(autouse=True)
def _doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Diagnosis("6.12.0", "x86_64", False, [], [], [], [], [], 0.0)
    monkeypatch.setattr(doctor, "diagnose", lambda *_: found)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    folder = tmp_path / "history" / "io"
    folder.mkdir(parents=True)
    (tmp_path / "history" / "link").symlink_to(folder)
    (folder / "1.wpt").write_text("an earlier one")
    history(folder / "2.wpt")
    path = tmp_path / "agent.toml"
    path.write_text(CONFIG.format(history=tmp_path / "history"))
    return path


def history(path: Path) -> None:
    """Write rows with and without an owner, and a verdict that names one."""
    found = Distribution()
    found.add(1000)
    plain, owned = OPERATION.group("sda", "read"), OWNED_OPERATION.group("sda", "read", f"/{NAME}")
    cells = {plain: {"fs": found, TOTAL: found}, owned: {TOTAL: found}}
    counters = {group: {"bytes": 4096} for group in (plain, owned)}
    books = {REQUESTS: Book(), OPERATIONS: Book.read(1, 1, {}, {})}
    verdict = Verdict((Finding("idle", {"in_flight": 1}, who=NAME),), "")
    output = CaptureOutput(path, About("stages", (OPERATION,), each=False))
    sources = [Source("fs", "fentry")]
    output.start(Start("io", "path", "6.12.0", {"dir": f"/srv/{NAME}"}, sources, (*KINDS, OWNED_OPERATION), [NAME]))
    output.interval(Report("interval", 10**18, 10**9, books, cells, counters, Overhead(0, 0, 0, 0, 0, 0)))
    output.summary(Report("summary", 10**18, 10**9, books, cells, counters, Overhead(0, 0, 0, 0, 0, 0), verdict))
    output.close()


def bundle(path: Path, *words: str) -> dict[str, str]:
    assert main(["support", "-o", str(path), *words]) == 0
    with tarfile.open(path) as archive:
        return {
            Path(entry.name).name: file.read().decode() for entry in archive if (file := archive.extractfile(entry))
        }


def texts(value: Any) -> set[str]:
    if isinstance(value, dict):
        return {one for part in value.values() for one in texts(part)}
    if isinstance(value, list):
        return {one for part in value for one in texts(part)}
    return {value} if isinstance(value, str) else set()


def test_no_name_is_in_it(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bundle.tar.gz"
    found = bundle(path, "-c", str(config))
    assert set(found) == {"README", "versions.json", "doctor.json", "doctor.txt", "config.json", "history-io.json"}
    assert not [name for name, text in found.items() if NAME in text]
    assert texts(json.loads(found["config.json"])) == {*PLAIN, support.HIDDEN}
    _, summary = map(json.loads, found["history-io.json"].splitlines())
    assert [(row["kind"], row["op"], row["stage"], row["count"]) for row in summary["rows"]] == [
        ("operation", "read", "fs", 1),
        ("operation", "read", "total", 1),
    ]
    assert summary["operations"]["finished"] == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    shown = capsys.readouterr().out
    assert all(name in shown and name in found["README"] for name in found if name != "README")


def test_all_names_are_in_it_where_they_are_wanted(config: Path, tmp_path: Path) -> None:
    found = bundle(tmp_path / "bundle.tar.gz", "-c", str(config), "--names")
    assert f"/srv/{NAME}" in texts(json.loads(found["config.json"]))
    start, summary = map(json.loads, found["history-io.json"].splitlines())
    assert start["filters"] == {"dir": f"/srv/{NAME}"}
    assert f"/{NAME}" in {row.get("owner") for row in summary["rows"]}


def test_what_is_not_there_is_named(tmp_path: Path, obj: BpfObject, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("damaged", "none", "large"):
        (tmp_path / "history" / name).mkdir(parents=True)
    (tmp_path / "history/damaged/1.wpt").write_bytes(os.urandom(4096))
    with write(obj, tmp_path / "history/large/1.wpt").open("r+b") as file:
        file.truncate(1 << 40)
    path = tmp_path / "agent.toml"
    path.write_text(f'[history]\ndir = "{tmp_path}/history"\n')
    found = bundle(tmp_path / "bundle.tar.gz", "-c", str(path))
    assert set(found) == {"README", "versions.json", "doctor.json", "doctor.txt", "config.json"}
    shown = capsys.readouterr().err
    for text in (shown, found["README"]):
        assert all(f"history-{name}.json" in text for name in ("damaged", "none", "large"))


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (None, "no such file or directory"),
        (Path.touch, "not a directory"),
        (lambda path: path.symlink_to(path), "too many levels of symbolic links"),
    ],
)
def test_a_history_that_cannot_be_listed_is_missing_aloud(
    made: Callable[[Path], None] | None, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if made is not None:
        made(tmp_path / NAME)
    path = tmp_path / "agent.toml"
    path.write_text(f'[history]\ndir = "{tmp_path / NAME}"\n')
    found = bundle(tmp_path / "bundle.tar.gz", "-c", str(path))
    assert set(found) == {"README", "versions.json", "doctor.json", "doctor.txt", "config.json"}
    captured = capsys.readouterr()
    assert f"without history: the folder of the agent's history cannot be listed: {why}\n" in captured.err
    assert "without" not in captured.out
    assert (
        f"history                  is not here: the folder of the agent's history cannot be listed: {why}"
        in found["README"]
    )
    assert NAME not in found["README"]


def test_the_kernel_is_named_by_its_build(tmp_path: Path) -> None:
    found = json.loads(bundle(tmp_path / "bundle.tar.gz")["versions.json"])
    types = Path("/sys/kernel/btf/vmlinux")
    assert found["btf_sha256"] == (hashlib.sha256(types.read_bytes()).hexdigest() if types.exists() else None)
    notes = Path("/sys/kernel/notes")
    if notes.exists():
        # Whatever else is in the notes, the ID follows the name of its owner.
        assert b"GNU\0" + bytes.fromhex(found["build_id"]) in notes.read_bytes()
    uname = subprocess.run(["uname", "-r"], capture_output=True, text=True, check=True)
    assert found["kernel"]["release"] == uname.stdout.strip()


def test_notes_of_a_kernel() -> None:
    other = struct.pack("=III", 5, 3, 1) + b"Xen\0\0\0\0\0" + b"abc\0"
    own = struct.pack("=III", 4, 4, 3) + b"GNU\0" + bytes.fromhex("01020304")
    assert support.build_id(other + own) == "01020304"
    assert support.build_id(other) is None
    assert support.build_id(own[:9]) is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-o", ""], "needs the name"),
        (["-o", "{there}"], "exists"),
        (["-o", "/nowhere/bundle.tar.gz"], "cannot be written"),
        (["-c", "/nowhere/agent.toml"], "No such file"),
        (["-c", "{wrong}"], "line 1"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_tried(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").write_text("mine")
    (tmp_path / "wrong").write_text("[agent")
    names = {name: str(tmp_path / name) for name in ("there", "wrong")}
    before = sorted(tmp_path.iterdir())

    def tried(*_: object) -> None:
        raise AssertionError("it was tried")

    monkeypatch.setattr(doctor, "diagnose", tried)
    with pytest.raises(WptraceError) as raised:
        main(["support", *(word.format(**names) for word in words)])
    assert message in str(raised.value)
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "there").read_text() == "mine"
