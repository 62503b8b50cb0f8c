# SPDX-License-Identifier: Apache-2.0
"""What CAP_BPF and CAP_PERFMON are enough for, and what is said where they are not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernel.disks import Disk, fio, total
from tests.kernel.loads import mounted
from tests.kernel.trace import PATIENCE, ROOT, BlockTrace, Trace, lossless

# Without what the process had before, root or not. Before 5.11 maps count as locked memory.
UNLIMITED = ("sh", "-c", 'ulimit -l unlimited 2>/dev/null; exec "$@"', "sh")
BOTH = (*UNLIMITED, "setpriv", "--bounding-set=-all,+bpf,+perfmon", "--inh-caps=-all")

pytestmark = pytest.mark.one_kernel


class PathWithBoth(Trace):
    before = BOTH


class BlockWithBoth(BlockTrace):
    before = BOTH


class StacksWithBoth(Trace):
    command = "stacks"
    before = BOTH


@pytest.mark.parametrize("kind", [PathWithBoth, BlockWithBoth, StacksWithBoth])
def test_both_are_enough(kind: type[Trace], loop: Disk) -> None:
    """Objects name types of other kernels, which libbpf would seek in all modules: that takes CAP_SYS_ADMIN."""
    with kind("--dev", loop.name) as trace:
        job = fio(loop.path, number_ios=200)
        trace.stop()
    assert lossless(trace.summary)
    assert trace.summary["requests"]["finished"] == total(job)
    if kind is PathWithBoth:
        assert trace.summary["operations"]["finished"] == total(job)


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (("io", "--stats"), "wptrace: --stats takes CAP_SYS_ADMIN, which is missing\nhint: run it with sudo\n"),
        (
            ("progs",),
            "wptrace: the list of BPF programs takes CAP_SYS_ADMIN, which is missing\nhint: run it with sudo\n",
        ),
    ],
)
def test_what_takes_more_says_so(command: tuple[str, ...], sentence: str) -> None:
    done = run(*BOTH, sys.executable, "-m", "wptrace", *command)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", sentence)


@pytest.mark.parametrize(("held", "lacking"), [("bpf", "CAP_PERFMON"), ("perfmon", "CAP_BPF")])
def test_the_hint_asks_for_what_is_not_there(held: str, lacking: str) -> None:
    done = run("setpriv", f"--bounding-set=-all,+{held}", "--inh-caps=-all", sys.executable, "-m", "wptrace", "io")
    assert done.returncode == 3
    assert done.stderr.endswith(f"hint: run it with sudo, or grant {lacking} as well\n")


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE, cwd=ROOT)


def test_files_are_seen_also_where_their_file_system_is_a_module(loop: Disk, tmp_path: Path) -> None:
    with mounted(loop, "ext4", tmp_path / "files") as point, PathWithBoth("--dev", loop.name) as trace:
        job = fio(point / "file", size="2M", rw="randread", number_ios=100)
        trace.stop()
    rows = [row for row in trace.summary["rows"] if (row["kind"], row["op"]) == ("operation", "read")]
    finished = {row["count"] for row in rows if row["stage"] == "total"}
    assert finished == {job["read"]["total_ios"]} == {100}
