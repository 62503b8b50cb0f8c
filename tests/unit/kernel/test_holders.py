# SPDX-License-Identifier: Apache-2.0
"""Processes with descriptors of BPF objects, in a folder like /proc."""

from __future__ import annotations

from pathlib import Path

import pytest

from wptrace.kernel.holders import Process, held, is_wptrace


class Procs:
    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "sys").mkdir()  # not a process

    def process(self, pid: int, comm: str, *words: str) -> None:
        folder = self.root / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "fdinfo").mkdir()
        (folder / "comm").write_text(f"{comm}\n")
        (folder / "cmdline").write_bytes(b"\0".join(map(str.encode, words)) + b"\0")

    def opens(self, pid: int, fd: int, target: str, info: str = "") -> None:
        (self.root / str(pid) / "fd" / str(fd)).symlink_to(target)
        (self.root / str(pid) / "fdinfo" / str(fd)).write_text(f"pos:\t0\n{info}")


@pytest.fixture
def procs(tmp_path: Path) -> Procs:
    return Procs(tmp_path)


def test_descriptors_tell_who_holds_what(procs: Procs) -> None:
    procs.process(1, "systemd", "/sbin/init")
    procs.opens(1, 0, "/dev/null")
    procs.opens(1, 5, "anon_inode:bpf-prog", "prog_type:\t8\nprog_id:\t3\n")
    procs.process(20, "python", "/usr/bin/python3", "-m", "wptrace", "io")
    procs.opens(20, 3, "anon_inode:bpf-map", "map_type:\t1\nmap_id:\t9\n")
    procs.opens(20, 4, "anon_inode:bpf_link", "link_type:\ttracing\nlink_id:\t77\nprog_id:\t3\n")
    procs.opens(20, 6, "anon_inode:bpf-prog", "prog_id:\t3\n")
    procs.opens(20, 7, "anon_inode:[perf_event]")
    procs.opens(20, 8, "anon_inode:[eventfd]")
    found = held(procs.root)
    systemd, ours = Process(1, "systemd", False), Process(20, "python", True)
    assert found.by[("map", 9)] == [ours]
    assert sorted(found.by[("prog", 3)]) == [systemd, ours]
    assert set(found.by) == {("map", 9), ("prog", 3)}
    assert found.events == [(20, 7)]


def test_a_name_is_reported_as_it_is(procs: Procs) -> None:
    procs.process(1, "a\rb\n")
    procs.opens(1, 5, "anon_inode:bpf-prog", "prog_id:\t3\n")
    assert held(procs.root).by[("prog", 3)] == [Process(1, "a\rb\n", False)]


def test_what_ends_meanwhile_is_left_out(procs: Procs) -> None:
    procs.process(1, "gone")
    procs.opens(1, 5, "anon_inode:bpf-prog", "prog_id:\t3\n")
    (procs.root / "1" / "fdinfo" / "5").unlink()
    (procs.root / "2").mkdir()
    assert held(procs.root) == ({}, [])


@pytest.mark.parametrize(
    ("words", "own"),
    [
        (["/usr/bin/python3", "/usr/local/bin/wptrace", "io"], True),
        (["/usr/bin/python3", "-I", "/usr/bin/wptrace", "io"], True),
        (["wptrace", "io"], True),
        (["python", "-W", "error", "-m", "wptrace"], True),
        (["vi", "/home/wptrace/notes"], False),
        (["grep", "-r", "wptrace"], False),
        (["python", "-m", "pytest"], False),
        ([], False),
    ],
)
def test_who_is_wptrace(words: list[str], own: bool) -> None:
    assert is_wptrace(words) is own
