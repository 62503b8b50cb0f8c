# SPDX-License-Identifier: Apache-2.0
"""The installed unit of `wptrace agent`, run by a real systemd in a guest."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.disks import Disk, fio, total
from tests.kernel.test_agent import scrape
from tests.kernel.test_capture import replayed
from tests.kernel.trace import PATIENCE, ROOT, programs, wait_until
from wptrace.kernel.privileges import CAPABILITIES

pytestmark = [pytest.mark.guest, pytest.mark.one_kernel]

UNIT = "wptrace-agent.service"
UNITS, CONFIG = Path("/run/lab/units"), Path("/etc/wptrace/agent.toml")
# A group of the guest is the root of systemd's tree, as in a container.
GROUP = Path("/sys/fs/cgroup/lab")
SYSTEMD = Path("/lib/systemd/systemd")
ADDRESS = "127.0.0.1:9435"
TEXT = f"""
[agent]
budget = "100%"
[always.io]
level = "block"
dev = ["DISK"]
[prometheus]
listen = "{ADDRESS}"
[history]
interval = "1s"
"""

BOOT = f"""
echo 0 >{GROUP}/cgroup.procs
exec unshare --cgroup --ipc --pid --fork --mount --propagation slave sh -c '
	mount -t proc proc /proc
	umount --lazy /sys/fs/cgroup
	mount -t cgroup2 cgroup2 /sys/fs/cgroup
	exec {SYSTEMD} --unit=basic.target --log-target=console'
"""


class Systemd:
    """The first process of namespaces of its own, with journald, targets without content, and the unit."""

    def __init__(self, log: Path) -> None:
        UNITS.mkdir()
        # Its own units would wait for disks and services of the machine that lends the guest its files.
        for name in ("basic.target", "sysinit.target", "shutdown.target"):
            (UNITS / name).write_text("[Unit]\nDefaultDependencies=no\n")
        with (UNITS / "sysinit.target").open("a") as sysinit:
            sysinit.write("Requires=systemd-journald.socket\nAfter=systemd-journald.socket\n")
        for path in SYSTEMD.parent.glob("system/systemd-journald*"):
            shutil.copy(path, UNITS)
        shutil.copy(f"/usr/lib/systemd/system/{UNIT}", UNITS)
        # An emulated CPU that has others to emulate takes minutes for a start.
        self.drop_in("patience", "TimeoutStartSec=infinity\nTimeoutStopSec=infinity\n")
        GROUP.mkdir()
        (GROUP.parent / "cgroup.subtree_control").write_text("+cpu +memory +pids")
        environment = {
            **os.environ,
            "container": "lab",
            "SYSTEMD_UNIT_PATH": str(UNITS),
            "SYSTEMD_GENERATOR_PATH": "/nonexistent",
        }
        with log.open("wb") as out:
            self._outer = subprocess.Popen(["sh", "-c", BOOT], env=environment, stdout=out, stderr=out)
        children = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children")
        wait_until(children.read_text, "the first process of systemd's namespace")
        # A group with processes has no controllers for those below.
        (GROUP.parent / "cgroup.procs").write_text(str(self._outer.pid))
        self._first = children.read_text().strip()
        wait_until(lambda: self.run("is-active", "basic.target").stdout == "active\n", f"systemd: {log.read_text()}")

    def _inside(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = ["nsenter", f"--target={self._first}", "--pid", "--mount", "--cgroup", "--ipc", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=10 * PATIENCE)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self._inside("systemctl", *words)

    def succeeds(self, *words: str) -> str:
        done = self.run(*words)
        assert done.returncode == 0, f"{words}: {done.stderr}\n{self.journal()}"
        return done.stdout

    def shown(self, name: str) -> str:
        return self.succeeds("show", "--property", name, "--value", UNIT).strip()

    def journal(self) -> str:
        return self._inside("journalctl", "--no-pager", "--output=cat", f"--unit={UNIT}").stdout

    def until_logged(self, text: str) -> None:
        wait_until(lambda: text in self.journal(), f"{text} in {self.journal()}")

    @property
    def agent(self) -> int:
        """The agent's pid for those outside."""
        (pid,) = (GROUP / "system.slice" / UNIT / "cgroup.procs").read_text().split()
        return int(pid)

    def drop_in(self, name: str, text: str) -> None:
        folder = UNITS / f"{UNIT}.d"
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.conf").write_text(f"[Service]\n{text}")

    def end(self) -> None:
        self.run("stop", UNIT)
        for name in (UNIT, "systemd-journald.service"):
            self.run("kill", "--signal=KILL", name)
        subprocess.run(["kill", "-KILL", self._first], check=True)
        self._outer.wait(PATIENCE)
        shutil.rmtree(UNITS)
        shutil.rmtree("/run/log/journal")
        wait_until(lambda: "populated 0" in (GROUP / "cgroup.events").read_text(), f"{GROUP} to be empty")
        for path in sorted(GROUP.glob("**/"), reverse=True):
            path.rmdir()


@pytest.fixture(scope="module")
def installed() -> None:
    done = subprocess.run(
        ["make", "-s", "install", "PREFIX=/usr", f"PYTHON={sys.executable}"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def systemd(installed: None, disk: Disk, tmp_path: Path) -> Iterator[Systemd]:
    CONFIG.parent.mkdir(exist_ok=True)
    CONFIG.write_text(TEXT.replace("DISK", disk.name))
    started = Systemd(tmp_path / "systemd.log")
    try:
        yield started
    finally:
        started.end()
        shutil.rmtree("/var/lib/private/wptrace", ignore_errors=True)


def test_it_runs_with_two_capabilities(systemd: Systemd, disk: Disk) -> None:
    systemd.succeeds("start", UNIT)
    state = systemd.shown("StatusText")
    assert state.startswith("tracing io (level block); metrics at")
    status = Path(f"/proc/{systemd.agent}/status").read_text()
    wanted = 1 << CAPABILITIES["CAP_BPF"] | 1 << CAPABILITIES["CAP_PERFMON"]
    for name in ("CapEff", "CapBnd"):
        assert int(re.findall(rf"^{name}:\s+(\w+)$", status, re.M)[0], 16) == wanted
    assert re.search(r"^NoNewPrivs:\s+1$", status, re.M)
    assert not re.search(r"^Uid:\s+0\b", status, re.M)
    made = total(fio(disk.path, rw="randread", number_ios=200))
    assert scrape(state, disk, made) == made
    memory = int((GROUP / "system.slice" / UNIT / "memory.current").read_text())
    print(f"memory.current of the agent: {memory / (1 << 20):.1f} MiB")
    systemd.succeeds("stop", UNIT)
    systemd.until_logged(f"  {made} requests in ")
    assert not programs()
    assert replayed(Path("/var/lib/wptrace/history/io"))[-1]["requests"]["finished"] == made
