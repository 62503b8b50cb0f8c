# SPDX-License-Identifier: Apache-2.0
"""The installed unit of `wptrace agent`, run by a real systemd in a guest."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError

import pytest

from tests.kernel.disks import Disk, fio, total
from tests.kernel.test_agent import scrape, wait_for_intervals
from tests.kernel.test_capture import replayed
from tests.kernel.trace import PATIENCE, ROOT, bpftool, count, programs, wait_until
from wptrace.kernel.privileges import CAPABILITIES

pytestmark = [pytest.mark.guest, pytest.mark.one_kernel]

UNIT = "wptrace-agent.service"
UNITS, CONFIG = Path("/run/lab/units"), Path("/etc/wptrace/agent.toml")
HISTORY = Path("/var/lib/wptrace/history")
# A group of the guest is the root of systemd's tree, as in a container.
GROUP = Path("/sys/fs/cgroup/lab")
SYSTEMD = Path("/lib/systemd/systemd")
LOOP_CTL_ADD, LOOP_CTL_REMOVE = 0x4C80, 0x4C81
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
	exec {SYSTEMD} --unit=basic.target --log-target=journal'
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

    def until_restarted(self) -> None:
        """Wait until systemd has started the agent for the second time, and the agent is ready."""
        wait_until(lambda: self.shown("NRestarts") == "1", f"a restart: {self.journal()}")
        wait_until(lambda: self.shown("ActiveState") == "active", f"the agent: {self.journal()}")

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
    assert replayed(HISTORY / "io")[-1]["requests"]["finished"] == made


# --- Reloads ----------------------------------------------------------------------------------------------------------


@contextmanager
def reading(disk: Disk) -> Iterator[list[int]]:
    """Read from a disk until the end of the block; then the list has fio's count."""
    words = ["--name=job", f"--filename={disk.path}", "--rw=randread", "--bs=4k", "--direct=1", "--size=32M"]
    # A process of its own for the job would outlive a killed one.
    words += ["--norandommap=1", "--rate_iops=50", "--time_based", "--runtime=1h", "--thread"]
    command = ["fio", "--output-format=json", *words]
    load = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    made: list[int] = []
    try:
        yield made
        # It completes what it has begun, and reports.
        load.send_signal(signal.SIGINT)
        written, _ = load.communicate(timeout=PATIENCE)
        (job,) = json.loads(written[written.index("{") :])["jobs"]
        assert job["error"] == 0
        made.append(total(job))
    finally:
        load.kill()
        load.communicate()


def test_a_reload_during_reads_loses_nothing(systemd: Systemd, disk: Disk) -> None:
    systemd.succeeds("start", UNIT)
    agent, first = systemd.agent, systemd.shown("StatusText")
    text, other = CONFIG.read_text(), ADDRESS.replace("9435", "9436")
    with reading(disk) as made:
        seen = [scrape(first, disk)]

        def more(state: str) -> bool:
            seen.append(scrape(state, disk))
            return seen[-1] > seen[0]

        wait_until(lambda: more(first), "requests before the reload")
        CONFIG.write_text(text.replace(ADDRESS, other))
        systemd.succeeds("reload", UNIT)
        # Without Type=notify-reload (systemd 253) it may return before the agent has read the file.
        systemd.until_logged(f"read {CONFIG} again: [prometheus] changed")
        seen.append(scrape(f"metrics at http://{other}/metrics", disk))
        with pytest.raises(URLError, match="refused"):
            scrape(first, disk)
        # The file is checked before the agent hears of it.
        CONFIG.write_text(text.replace('"1s"', '"0s"'))
        assert systemd.run("reload", UNIT).returncode == 1
        systemd.until_logged(f"{CONFIG}: line 10, column 13: interval must be a time from 1s to 1h, not 0s\n")
        state, seen[0] = systemd.shown("StatusText"), seen[-1]
        wait_until(lambda: more(state), "requests after the reload")
    assert seen[1:] == sorted(seen[1:])
    # Whoever asks as often as this gets an answer that is somewhat older.
    wait_until(lambda: scrape(state, disk) >= made[0], "all requests")
    assert scrape(state, disk, made[0]) == made[0]
    assert (systemd.agent, systemd.shown("NRestarts")) == (agent, "0")
    systemd.succeeds("stop", UNIT)
    systemd.until_logged(f"  {made[0]:,} requests in ")
    assert replayed(HISTORY / "io")[-1]["requests"]["finished"] == made[0]


# --- Ends that nobody asked for ---------------------------------------------------------------------------------------

Held = set[tuple[str, int]]


def held(pid: int) -> Held:
    """Return the programs, maps and links that a process has, by kind and id."""
    infos = [file.read_text() for file in Path(f"/proc/{pid}/fdinfo").iterdir()]
    return {
        (kind, int(number))
        for info in infos
        for kind, number in re.findall(r"^(prog|map|link)_id:\s+(\d+)", info, re.M)
    }


def loaded() -> Held:
    """Return all that the kernel has."""
    return {(kind, number) for kind in ("prog", "map", "link") for number in bpftool(kind)}


def test_systemd_starts_a_killed_agent_again(systemd: Systemd, disk: Disk) -> None:
    systemd.succeeds("start", UNIT)
    agent = systemd.agent
    before = held(agent)
    assert {kind for kind, _ in before} == {"prog", "map", "link"}
    assert before <= loaded()
    made = total(fio(disk.path, rw="randread", number_ios=200))
    assert scrape(systemd.shown("StatusText"), disk, made) == made
    wait_for_intervals(HISTORY, 2)
    os.kill(agent, signal.SIGKILL)
    wait_until(lambda: not before & loaded(), "the end of what the killed one had attached")
    systemd.until_restarted()
    assert "Main process exited, code=killed, status=9/KILL" in systemd.journal()
    assert systemd.agent != agent
    more = total(fio(disk.path, rw="randread", number_ios=300))
    # Totals are those of the new one.
    assert scrape(systemd.shown("StatusText"), disk, more) == more
    systemd.succeeds("stop", UNIT)
    lines = replayed(HISTORY / "io")
    assert any("2 traces" in note for note in lines[0]["notes"])
    assert count(lines[-1], op="read", dev=disk.name) == lines[-1]["requests"]["finished"] == made + more == 500


def test_the_watchdog_ends_an_agent_that_hangs(systemd: Systemd, disk: Disk) -> None:
    assert re.search(r"^WatchdogSec=\d+$", (UNITS / UNIT).read_text(), re.M)
    systemd.drop_in("watchdog", "WatchdogSec=30\n")
    systemd.succeeds("start", UNIT)
    agent = systemd.agent
    before = held(agent)
    ready = systemd.shown("WatchdogTimestampMonotonic")
    wait_until(lambda: systemd.shown("WatchdogTimestampMonotonic") != ready, "a sign of life")
    assert systemd.shown("NRestarts") == "0"
    os.kill(agent, signal.SIGSTOP)
    systemd.until_restarted()
    said = systemd.journal()
    assert said.count(f"{UNIT}: Watchdog timeout") == said.count(f"{UNIT}: Failed with result 'watchdog'") == 1
    assert systemd.agent != agent
    assert not before & loaded()
    made = total(fio(disk.path, rw="randread", number_ios=200))
    assert scrape(systemd.shown("StatusText"), disk, made) == made


def failed(systemd: Systemd) -> list[str]:
    """Start the agent in vain and return what it complains of; fail if systemd is going to start it again."""
    before = systemd.journal()
    assert systemd.run("start", UNIT).returncode == 1
    # Before another start it would be `activating`.
    state = [systemd.shown(name) for name in ("ActiveState", "SubState", "Result", "ExecMainStatus", "NRestarts")]
    assert state == ["failed", "failed", "exit-code", "2", "0"]
    said = systemd.journal().removeprefix(before).splitlines()
    return [line for line in said if line.startswith("wptrace: ")]


def test_a_wrong_file_fails_once_and_says_where(systemd: Systemd) -> None:
    right = CONFIG.read_text()
    CONFIG.write_text(right.replace('"block"', '"blok"'))
    (line,) = failed(systemd)
    assert line.startswith(f"wptrace: {CONFIG}: line 5, column 10: io: argument --level: invalid choice: 'blok'")
    CONFIG.write_text(right)
    CONFIG.chmod(0o600)
    assert failed(systemd) == [f"wptrace: {CONFIG} cannot be read: Permission denied"]
    CONFIG.chmod(0o644)
    systemd.succeeds("start", UNIT)
    assert systemd.shown("StatusText").startswith("tracing io")


def test_a_taken_address_is_tried_again(systemd: Systemd) -> None:
    host, port = ADDRESS.split(":")
    with socket.create_server((host, int(port))):
        systemd.succeeds("start", "--no-block", UNIT)
        systemd.until_logged(f"wptrace: cannot listen at {ADDRESS}: address already in use")
        wait_until(lambda: int(systemd.shown("NRestarts")) > 0, "another start")
    wait_until(lambda: systemd.shown("ActiveState") == "active", "the agent")


def test_a_device_that_comes_later_is_waited_for(systemd: Systemd, disk: Disk) -> None:
    """The device that the file names is added while systemd tries, as during boot."""
    number = 77
    subprocess.run(["modprobe", "loop"], check=True)
    CONFIG.write_text(CONFIG.read_text().replace(disk.name, f"loop{number}"))
    with Path("/dev/loop-control").open("rb") as control:
        systemd.succeeds("start", "--no-block", UNIT)
        systemd.until_logged(f"there is no block device loop{number}")
        fcntl.ioctl(control, LOOP_CTL_ADD, number)
        try:
            wait_until(lambda: int(systemd.shown("NRestarts")) > 0, "another start")
            wait_until(lambda: systemd.shown("ActiveState") == "active", "the agent")
        finally:
            fcntl.ioctl(control, LOOP_CTL_REMOVE, number)
