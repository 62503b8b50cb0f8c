# SPDX-License-Identifier: Apache-2.0
"""Subvolumes of btrfs: files of the same inode number are different files."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.disks import loop_device, read_direct
from tests.kernel.loads import mounted
from tests.kernel.test_recorder import ToFolder
from tests.kernel.trace import Line, Trace

READS = {"first": 3, "second": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system with two subvolumes, each with a file."""
    place = tmp_path_factory.mktemp("btrfs")
    with loop_device(place / "image", "256M") as disk, mounted(disk, "btrfs", place / "top") as top:
        for name in READS:
            subprocess.run(["btrfs", "subvolume", "create", str(top / name)], check=True, capture_output=True)
            (top / name / "file").write_bytes(os.urandom(1 << 20))
        assert len({(top / name / "file").stat().st_ino for name in READS}) == 1
        os.sync()
        yield top


def read_all(folder: Path) -> None:
    for name, count in READS.items():
        read_direct(folder / name / "file", count)


def reads(lines: list[Line]) -> Counter[str]:
    """btrfs reads some of it by the page cache."""
    return Counter(one["path"] for one in lines if one["kind"] in ("operation", "hit") and one["op"] == "read")


def paths(folder: Path, *names: str) -> dict[str, int]:
    return {str(folder / name / "file"): READS[name] for name in names}


def are_one(trace: Trace) -> bool:
    """Whether the kernel has no types of btrfs."""
    return any("another subvolume" in note for note in trace.lines[0]["notes"])


@pytest.mark.parametrize("option", ["--file={}/file", "--dir={}"])
@pytest.mark.parametrize("name", READS)
def test_a_filter_is_for_one_of_them(folder: Path, option: str, name: str) -> None:
    with Trace("--each", option.format(folder / name)) as trace:
        read_all(folder)
    assert reads(trace.lines) == paths(folder, *(READS if are_one(trace) else [name]))


def test_the_directory_above_has_all(folder: Path) -> None:
    with Trace("--each", f"--dir={folder}") as trace:
        read_all(folder)
    assert reads(trace.lines) == paths(folder, *READS)


def test_each_file_has_a_row_and_a_name_in_a_dump(folder: Path, tmp_path: Path) -> None:
    with ToFolder(tmp_path, "--by=file", f"--dir={folder}") as trace:
        read_all(folder)
    found = Counter[str]()
    for row in trace.summary["rows"]:
        if row["kind"] in ("owned_operation", "owned_hit") and (row["op"], row["stage"]) == ("read", "total"):
            found[row["file"]] += row["count"]
    every = paths(folder, *READS)
    if are_one(trace):
        assert (len(found), found.total()) == (1, sum(every.values()))
    else:
        assert found == every
        # A dump lacks short hits.
        assert set(reads(trace.dumped)) == set(every)
