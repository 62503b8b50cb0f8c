# SPDX-License-Identifier: Apache-2.0
"""Tracing with only CAP_BPF and CAP_PERFMON, and what wptrace says if they are not enough."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.kernel.disks import Disk, fio, total
from tests.kernel.loads import mounted
from tests.kernel.trace import PATIENCE, ROOT, BlockTrace, SizeTrace, StacksTrace, Trace, lossless, metrics
from tests.packages.kubernetes import manifest

# No limit on locked memory, which includes maps before 5.11.
UNLIMITED = ("sh", "-c", 'ulimit -l unlimited 2>/dev/null; exec "$@"', "sh")
BOTH = (*UNLIMITED, "setpriv", "--bounding-set=-all,+bpf,+perfmon", "--inh-caps=-all")
# An unprivileged user with capabilities, as in packaging/wptrace-io.service.
_THESE = "-all,+bpf,+perfmon"
AS_USER = (
    *(*UNLIMITED, "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"),
    *(f"--inh-caps={_THESE}", f"--ambient-caps={_THESE}", f"--bounding-set={_THESE}"),
)

pytestmark = pytest.mark.one_kernel


def limited(kind: type[Trace], before: tuple[str, ...]) -> type[Trace]:
    return type("Limited", (kind,), {"before": before})


@pytest.mark.parametrize(
    ("kind", "before"),
    [(Trace, BOTH), (BlockTrace, BOTH), (StacksTrace, BOTH), (SizeTrace, BOTH), (Trace, AS_USER)],
)
def test_both_are_enough(kind: type[Trace], before: tuple[str, ...], loop: Disk) -> None:
    """Objects name types of other kernels. libbpf would search all modules for those, which needs CAP_SYS_ADMIN."""
    with limited(kind, before)("--dev", loop.name) as trace:
        job = fio(loop.path, number_ios=200)
    assert lossless(trace.summary)
    assert trace.summary["requests"]["finished"] == total(job)
    if kind is Trace:
        assert trace.summary["operations"]["finished"] == total(job)


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (("io", "--stats"), "wptrace: --stats needs CAP_SYS_ADMIN, which is missing\nhint: run it with sudo\n"),
        (
            ("progs",),
            "wptrace: the list of BPF programs needs CAP_SYS_ADMIN, which is missing\nhint: run it with sudo\n",
        ),
    ],
)
def test_what_takes_more_says_so(command: tuple[str, ...], sentence: str) -> None:
    done = run(*BOTH, sys.executable, "-m", "wptrace", *command)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", sentence)


def test_doctor_is_for_users_too() -> None:
    """An unprivileged user cannot read tracefs; doctor says so and goes on."""
    done = run(*AS_USER, sys.executable, "-m", "wptrace", "doctor", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["io_works"]
    tracefs = next(check for check in found["system"] if check["name"] == "tracefs")
    assert tracefs["state"] == ("ok" if Path("/sys/kernel/tracing").stat().st_mode & 0o005 else "degraded")


def test_what_costs_something_is_named_by_its_capability(loop: Disk) -> None:
    done = run(
        *BOTH, sys.executable, "-m", "wptrace", "io", "--dev", loop.name, "--budget", "50%", "--json", "0.1", "1"
    )
    assert done.returncode == 0, done.stderr
    notes = json.loads(done.stdout.splitlines()[0])["notes"]
    assert "the budget covers only the reader: run times need CAP_SYS_ADMIN, which is missing" in notes
    done = run(*BOTH, sys.executable, "-m", "wptrace", "stacks", "--dev", loop.name, "--user", "--json", "0.1", "1")
    assert done.returncode == 0, done.stderr
    notes = json.loads(done.stdout.splitlines()[0])["notes"]
    assert "names in user stacks of other users need CAP_SYS_PTRACE, which is missing" in notes
    if Path("/proc/sys/kernel/kptr_restrict").read_text() == "1\n":
        assert any("CAP_SYSLOG, which is missing" in note for note in notes)


def shown_line(command: str) -> str:
    """Return the line of docs/rights.md that shows how to run a command without root."""
    page = (ROOT / "docs" / "rights.md").read_text()
    (line,) = re.findall(rf"^sudo {command} .*$", page, re.MULTILINE)
    return str(line).removeprefix("sudo ")


@pytest.mark.parametrize("command", ["capsh", "setpriv"])
def test_ways_without_root_are_those_of_the_page(command: str, loop: Disk, tmp_path: Path) -> None:
    """They are run by a user who may read the tree and execute the Python."""
    python = next(
        path for path in (sys.executable, "/usr/bin/python3") if not os.path.realpath(path).startswith("/root")
    )
    line = shown_line(command).replace("nvme0n1", f"{loop.name} --level block 0.1 1")
    line = line.replace("wptrace io", f"{python} -m wptrace io")
    done = run(*UNLIMITED, "bash", "-c", line, USER="nobody", PYTHONDONTWRITEBYTECODE="1")
    assert done.returncode == 0, done.stderr
    assert f"Tracing io (level block) on {loop.name}" in done.stdout


@pytest.mark.parametrize(("held", "lacking"), [("bpf", "CAP_PERFMON"), ("perfmon", "CAP_BPF")])
def test_the_hint_asks_for_what_is_not_there(held: str, lacking: str) -> None:
    done = run("setpriv", f"--bounding-set=-all,+{held}", "--inh-caps=-all", sys.executable, "-m", "wptrace", "io")
    assert done.returncode == 3
    assert done.stderr.startswith(f"wptrace: tracing needs {lacking}, which is missing\n")
    assert done.stderr.endswith(f"hint: run it with sudo, or grant {lacking} as well\n")


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    return subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=PATIENCE, cwd=ROOT, env=environment
    )


def test_files_are_seen_also_where_their_file_system_is_a_module(loop: Disk, tmp_path: Path) -> None:
    with mounted(loop, "ext4", tmp_path / "files") as point, limited(Trace, BOTH)("--dev", loop.name) as trace:
        job = fio(str(point / "file"), size="2M", rw="randread", number_ios=100)
    rows = [row for row in trace.summary["rows"] if (row["kind"], row["op"]) == ("operation", "read")]
    finished = {row["count"] for row in rows if row["stage"] == "total"}
    assert finished == {job["read"]["total_ios"]} == {100}


# The unit is like a container of contrib/kubernetes: a cgroup namespace, one writable folder, no new privileges.
_POD = """
mount --bind "$0" "$0" && mount --bind / /mnt && mount -o remount,bind,ro /mnt || exit 99
mount --rbind /proc /mnt/proc && mount --rbind /sys /mnt/sys && mount --rbind /dev /mnt/dev || exit 99
mount --bind "$0" "/mnt$0" && exec chroot /mnt sh -c 'cd "$0" && exec "$@"' "$@"
"""


def test_the_daemon_set_grants_enough(loop: Disk, tmp_path: Path) -> None:
    """The agent's configuration and capabilities of the DaemonSet, restricted to the disk of this test."""
    (container,) = manifest()["DaemonSet"]["spec"]["template"]["spec"]["containers"]
    granted = ",".join(f"+{name.lower()}" for name in container["securityContext"]["capabilities"]["add"])
    text = manifest()["ConfigMap"]["data"]["agent.toml"].replace("0.0.0.0:9435", "127.0.0.1:0")
    text = text.replace("[history]", f'[history]\ndir = "{tmp_path}/history"').replace(
        "[agent]", f'[agent]\nfolder = "{tmp_path}"'
    )
    file = tmp_path / "agent.toml"
    file.write_text(text.replace("[always.io]", f'[always.io]\ndev = "{loop.name}"'))
    enter = ("unshare", "--mount", "--cgroup", "sh", "-c", _POD, str(tmp_path), str(ROOT))
    drop = ("setpriv", "--no-new-privs", f"--bounding-set=-all,{granted}", "--inh-caps=-all")
    words = (*UNLIMITED, *enter, *drop, sys.executable, "-m", "wptrace", "agent", "-c", str(file))
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stderr is not None
        said = ""
        while not (found := re.search(r"metrics at http://(\S+?)/metrics", said)):
            line = process.stderr.readline()
            assert line, said
            said += line
        # The path of the liveness probe.
        with urllib.request.urlopen(f"http://{found[1]}/", timeout=PATIENCE) as answer:
            assert answer.status == 200
        made = total(fio(loop.path, number_ios=100))
        scraped = metrics(found[1])
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, said + rest
    # For run times of programs, and for names of kernel functions.
    assert set(re.findall(r"CAP_\w+", said)) <= {"CAP_SYS_ADMIN", "CAP_SYSLOG"}, said
    counted = re.findall(r'^wptrace_io_owner_duration_seconds_count{.*kind="request".*} (\d+)$', scraped, re.M)
    assert sum(int(count) for count in counted) == made
    assert list((tmp_path / "history" / "io").iterdir())
