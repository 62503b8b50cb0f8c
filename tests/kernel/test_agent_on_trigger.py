# SPDX-License-Identifier: Apache-2.0
"""`[on_trigger.COMMAND]` of `wptrace agent` on a real kernel: what a trigger loads sees everything while it runs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from threading import Timer

import pytest

from tests.kernel.disks import Disk, fio, total
from tests.kernel.test_agent import CONFIG, Agent, metrics_address, running, scrape, scraped
from tests.kernel.test_capture import replayed
from tests.kernel.trace import PATIENCE, count, metrics, wait_until, wptrace

TABLES = """
[prometheus]
listen = "127.0.0.1:0"
[trigger.slow]
when = "io.read.total.max > 1ns"
cooldown = "24h"
after = "0s"
[trigger.other]
when = "io.write.total.max > 1h"
[on_trigger.io]
level = "path"
dev = "{dev}"
slow = "0s"
neighbours = true
for = "{for_}"
"""


def config(disk: Disk, folder: Path, for_: str, more: str = "") -> str:
    agent = CONFIG.replace("[always.io]", f'folder = "{folder}"\n[always.io]').format(dev=disk.name)
    return agent + TABLES.format(dev=disk.name, for_=for_) + more


def loaded(status: str, command: str = "io") -> dict[str, float]:
    """Return the metrics of the flows that triggers load."""
    text = metrics(metrics_address(status))
    found = re.findall(rf'^wptrace_on_trigger_(\w+)\{{command="{command}"(?:,cause="(\w+)")?\}} (.+)$', text, re.M)
    return {cause or name: float(value) for name, cause, value in found}


def processes(agent: Agent) -> list[str]:
    """Return the pids of running processes that the agent started."""
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(agent.process.pid)], capture_output=True, text=True, check=False
    )
    return listed.stdout.split()


def pull(agent: Agent, name: str) -> None:
    asked = wptrace("agent", "--trigger", name, "--pid", str(agent.process.pid))
    assert asked.stdout == f"trigger {name} has fired\n"


def heard_until(agent: Agent, words: str) -> str:
    """Return standard error until a line with these words."""
    assert agent.process.stderr is not None
    heard = ""
    limit = Timer(PATIENCE, agent.process.kill)
    limit.start()
    try:
        for line in agent.process.stderr:
            heard += line
            if words in line:
                return heard
    finally:
        limit.cancel()
    raise AssertionError(f"the agent ended without {words!r}:\n{heard}")


@pytest.mark.one_kernel
def test_what_a_trigger_loads_sees_every_read_of_its_time(disk: Disk, tmp_path: Path) -> None:
    """The first reads fire the trigger, the second fio runs once the flow is loaded. The permanent flow counts both."""
    with running(tmp_path, config(disk, tmp_path, "12s")) as agent:
        status = agent.ready
        assert loaded(status)["loaded"] == 0
        first = total(fio(disk.path, rw="randread", number_ios=50))
        heard = heard_until(agent, "has loaded [on_trigger.io] for 12.0 s")
        seen = total(fio(disk.path, rw="randread", number_ios=300))
        assert loaded(status) | {"cpu_seconds_total": 0} == {
            "loaded": 1,
            "runs_total": 1,
            "cpu_seconds_total": 0,
            **dict.fromkeys(("running", "daily", "budget", "failed"), 0),
        }
        assert scrape(status, disk, first + seen) == first + seen == 350
        # The second call is counted, but does not prolong the run.
        pull(agent, "slow")
        wait_until(lambda: loaded(status)["running"] == 1, "the trigger that it ignores")
        wait_until(lambda: loaded(status)["loaded"] == 0, "the end of the run")
        assert loaded(status)["cpu_seconds_total"] > 0
        last = total(fio(disk.path, rw="randread", number_ios=40))
        assert scrape(status, disk, first + seen + last) == first + seen + last
        (dump,) = tmp_path.glob("wptrace-*.wpt")
        wait_until(dump.with_suffix(".html").exists, "its page")
        assert dump.with_suffix(".html").stat().st_mode & 0o777 == 0o600
        written, rest = agent.stop()
    heard += rest
    assert f"  {first + seen + last} requests in " in written
    assert dump.stat().st_mode & 0o777 == 0o600
    lines = replayed(dump, "--slow", "0s")
    assert sum(line["kind"] == "operation" for line in lines) == seen == 300
    assert count(lines[-1], op="read", dev=disk.name) == seen
    assert lines[-1]["requests"]["finished"] == seen
    assert lines[-1]["duration_ns"] > 11e9
    assert re.search(
        rf"^wptrace: \[on_trigger\.io\] of trigger slow is in {dump}; verdict: .* of read operations", heard, re.M
    )
    assert "wptrace: trigger slow does not load [on_trigger.io]: it is loaded already\n" in heard


@pytest.mark.one_kernel
def test_a_kill_leaves_nothing_that_traces(disk: Disk, tmp_path: Path) -> None:
    """Neither of both commands survives: the loaded one ends with the pipe to the agent."""
    with running(tmp_path, config(disk, tmp_path, "1h")) as agent:
        pull(agent, "other")
        heard_until(agent, "has loaded [on_trigger.io]")
        (child,) = processes(agent)
        assert Path("/proc", child).exists()
        agent.kill()
        wait_until(lambda: not Path("/proc", child).exists(), "the end of the command")
    # The part that was written so far is readable.
    (dump,) = tmp_path.glob("wptrace-*.wpt")
    assert wptrace("replay", str(dump), "--json").returncode == 0


@pytest.mark.one_kernel
def test_a_run_that_somebody_kills_is_counted_and_paid(disk: Disk, tmp_path: Path) -> None:
    with running(tmp_path, config(disk, tmp_path, "1h")) as agent:
        status = agent.ready
        pull(agent, "other")
        heard_until(agent, "has loaded [on_trigger.io]")
        before = loaded(status)
        assert (before["loaded"], before["failed"], before["cpu_seconds_total"]) == (1, 0, 0)
        (child,) = processes(agent)
        used = Path("/proc", child, "stat").read_text().rpartition(")")[2].split()
        used_s = (int(used[11]) + int(used[12])) / os.sysconf("SC_CLK_TCK")
        os.kill(int(child), signal.SIGKILL)
        heard = heard_until(agent, "[on_trigger.io] of trigger other is in ")
        assert heard.rstrip().endswith("; it ended early: it was killed (SIGKILL)")
        after = loaded(status)
        assert (after["loaded"], after["runs_total"], after["failed"]) == (0, 1, 1)
        assert after["cpu_seconds_total"] >= used_s > 0
        # The budget is charged: no run starts before it is paid for.
        owed = agent.reload(config(disk, tmp_path, "1h").replace('budget = "100%"', 'budget = "0.001%"'))
        assert "[agent] changed" in owed
        os.kill(agent.process.pid, 0)
        seen = total(fio(disk.path, rw="randread", number_ios=20))
        assert scrape(owed, disk, seen) == seen
        agent.stop()
    (dump,) = tmp_path.glob("wptrace-*.wpt")
    assert wptrace("replay", str(dump), "--json").returncode == 0


@pytest.mark.one_kernel
def test_the_folder_limits_the_file_of_a_run(disk: Disk, tmp_path: Path) -> None:
    """The run ends early, and its file is readable."""
    small = config(disk, tmp_path, "1h").replace("[agent]", '[agent]\ndaily = "1M"', 1)
    with running(tmp_path, small) as agent:
        pull(agent, "other")
        heard_until(agent, "has loaded [on_trigger.io]")
        (dump,) = tmp_path.glob("wptrace-*.wpt")
        seen = 0
        while dump.stat().st_size < 1 << 20:
            seen += total(fio(disk.path, rw="randread", number_ios=5000))
        heard = heard_until(agent, "[on_trigger.io] of trigger other is in ")
        assert "; it ended early: its file has reached the limit of the folder (keep, daily)" in heard
        status = agent.ready
        assert loaded(status)["failed"] == 0
        # Of so many, a busy hardened kernel hides the ends of some (docs/kernels.md).
        finished, loss = scraped(status, disk)
        assert 0.999 * seen <= finished <= seen
        assert loss.keys() <= {"unseen"}
        pull(agent, "other")
        assert "the limit of dumps for 24 hours is reached (daily)" in heard_until(agent, "does not load")
        assert loaded(status)["daily"] == 1
        agent.stop()
    assert dump.stat().st_size >= 1 << 20
    lines = replayed(dump)
    assert lines[-1]["kind"] == "summary"
    assert 0 < count(lines[-1], op="read", dev=disk.name) <= seen


@pytest.mark.one_kernel
def test_a_trigger_loads_two_tables_at_once(disk: Disk, tmp_path: Path) -> None:
    """Each has a file and metrics of its own, and both see the same reads."""
    size = f'[on_trigger.size]\ndev = "{disk.name}"\nfor = "8s"\ntriggers = ["other"]\n'
    with running(tmp_path, config(disk, tmp_path, "8s", size)) as agent:
        status = agent.ready
        pull(agent, "other")
        heard = heard_until(agent, "has loaded ")
        heard += heard_until(agent, "has loaded ")
        assert len(processes(agent)) == 2
        seen = total(fio(disk.path, rw="randread", number_ios=100))
        for command in ("io", "size"):
            found = loaded(status, command)
            assert (found["loaded"], found["runs_total"], found["failed"]) == (1, 1, 0)
        heard += heard_until(agent, " is in ")
        heard += heard_until(agent, " is in ")
        assert scrape(status, disk, seen) == seen
        agent.stop()
    for command in ("io", "size"):
        (path,) = re.findall(rf"\[on_trigger\.{command}\] of trigger other is in ([^;\s]+)", heard)
        lines = replayed(Path(path))
        assert lines[-1]["requests"]["finished"] == seen == 100


@pytest.mark.one_kernel
def test_what_cannot_be_loaded_any_more_leaves_nothing(disk: Disk, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    with running(tmp_path, config(disk, tmp_path, "5s", f'dir = "{gone}"\n')) as agent:
        status = agent.ready
        gone.rmdir()
        pull(agent, "other")
        heard = heard_until(agent, "[on_trigger.io] of trigger other failed: ")
        assert str(gone) in heard
        found = loaded(status)
        assert (found["failed"], found["loaded"]) == (1, 0)
        assert not list(tmp_path.glob("wptrace-*"))
        seen = total(fio(disk.path, rw="randread", number_ios=20))
        assert scrape(status, disk, seen) == seen
        agent.stop()


@pytest.mark.one_kernel
def test_a_reload_takes_effect_after_the_run(disk: Disk, tmp_path: Path) -> None:
    """The next run uses the new table, or there is none without one. Stopping the agent completes the capture."""
    only_other = 'triggers = ["other"]\n'
    with running(tmp_path, config(disk, tmp_path, "5s", only_other)) as agent:
        pull(agent, "slow")
        pull(agent, "other")
        heard = heard_until(agent, "has loaded [on_trigger.io] for 5.00 s")
        assert heard.count("trigger slow: by hand") == 1
        status = agent.reload(config(disk, tmp_path, "1h", only_other))
        assert "[on_trigger.io] changed" in status
        assert "io by trigger other" in status
        heard_until(agent, "[on_trigger.io] of trigger other is in ")
        wait_until(lambda: owes_nothing(agent, status), "the budget")
        heard_until(agent, "has loaded [on_trigger.io]")
        wrong = agent.reload(config(disk, tmp_path, "1h", 'triggers = ["othr"]\n'))
        assert "the configuration stays as it was: " in wrong
        assert "there is no trigger othr; did you mean other?" in wrong
        status = agent.reload(CONFIG.format(dev=disk.name) + '[prometheus]\nlisten = "127.0.0.1:0"\n')
        assert "[on_trigger.io]" in status
        seen = total(fio(disk.path, rw="randread", number_ios=30))
        _, said = agent.stop()
    assert "; it ended early: the agent ended; verdict: " in said
    newest = max(tmp_path.glob("wptrace-*.wpt"))
    lines = replayed(newest)
    assert lines[-1]["kind"] == "summary"
    assert lines[-1]["requests"]["finished"] == seen == 30


def owes_nothing(agent: Agent, status: str) -> bool:
    """Fire again, and tell whether the budget has covered the CPU time of the first run."""
    pull(agent, "other")
    return loaded(status)["runs_total"] == 2


@pytest.mark.one_kernel
def test_mistakes_are_found_by_a_check(disk: Disk, tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text('[trigger.slow]\nwhen = "io.read.total.p99 > 1s"\n[on_trigger.io]\nlevel = "pth"\nfor = "2h"\n')
    checked = subprocess.run(
        [sys.executable, "-m", "wptrace", "agent", "--check", "-c", str(file)], capture_output=True, text=True
    )
    assert checked.returncode == 2
    assert "line 4, column 10: io: argument --level: invalid choice" in checked.stdout
    assert "line 5, column 8: for must be a time from 1s to 1h, not 2h" in checked.stdout
