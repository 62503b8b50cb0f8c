# SPDX-License-Identifier: Apache-2.0
"""Commands that run next to a trace: none delays it, each one ends, and failures are reported."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from wptrace.engine.children import Children, Command, itself


@pytest.fixture
def said() -> list[str]:
    return []


def command(code: str, what: str = "it", **variables: str) -> Command:
    return Command([sys.executable, "-c", code], what, variables=variables)


def finish(children: Children) -> None:
    end = time.monotonic() + 60
    while children.due != math.inf:
        assert time.monotonic() < end
        time.sleep(0.01)
        children.turn(time.monotonic())


def test_commands_run_one_after_another_as_they_are(
    said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/x")
    children = Children(said.append)
    code = "import os; print(os.environ['X'], os.environ.get('NOTIFY_SOCKET'), file=open({!r}, 'a'))"
    for number in range(3):
        children.add(command(code.format(str(tmp_path / "out")), X=f"{number} $(id)"))
    finish(children)
    assert (tmp_path / "out").read_text() == "".join(f"{number} $(id) None\n" for number in range(3))
    assert said == []


def test_what_a_command_started_already_gives_way_too(
    said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(which: int, who: int, priority: int) -> None:
        while not (tmp_path / "started").exists():
            time.sleep(0.01)
        setpriority(which, who, priority)

    setpriority = os.setpriority
    monkeypatch.setattr(os, "setpriority", late)
    children = Children(said.append)
    inner = f"import os, time; open({str(tmp_path / 'started')!r}, 'w')\nwhile os.nice(0) != 19: time.sleep(0.01)"
    children.add(command(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"))
    finish(children)
    assert said == []


def test_what_fails_is_said_and_the_next_one_runs(said: list[str], tmp_path: Path) -> None:
    children = Children(said.append)
    children.add(Command(["/nowhere"], "one"), command("raise SystemExit(3)", "two"), command("", "three"))
    finish(children)
    assert said == ["one cannot be run: [Errno 2] No such file or directory: '/nowhere'", "two failed: it ended with 3"]


def test_what_does_not_end_is_ended_with_what_it_started(said: list[str], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    inner = "import sys, time; print('started', flush=True); time.sleep(1000)"
    pipe_path = str(tmp_path / "pipe")
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}], stdout=open({pipe_path!r}, 'w'))"
    children = Children(said.append)
    children.add(command(code))
    with (tmp_path / "pipe").open() as pipe:
        assert pipe.readline() == "started\n"
        children.turn(time.monotonic() + 601)
        assert pipe.read() == ""
    assert said == ["it took more than 10 minutes and was ended"]
    assert children.due == math.inf


def test_there_is_an_end_to_what_waits(said: list[str]) -> None:
    children = Children(said.append)
    children.add(command("import time; time.sleep(1000)"))
    for _ in range(20):
        children.add(command("", "more"))
    assert said == ["more is left out: 16 commands wait already"] * 4
    said.clear()
    children.end()
    assert said == ["more is left out: the trace has ended"] * 16
    children.turn(math.inf)
    children.close()


def test_it_runs_itself_from_where_it_is(tmp_path: Path) -> None:
    """A folder of that name in the current directory is not taken for the package."""
    (tmp_path / "wptrace").mkdir()
    (tmp_path / "wptrace" / "__init__.py").write_text("raise SystemExit('another one')")
    found = subprocess.run(itself("--version"), capture_output=True, text=True, cwd=tmp_path, check=True)
    assert found.stdout.startswith("wptrace 0.")


def test_errors_are_read_where_no_folder_can_be_written_to(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc"])
    children = Children(said.append)
    children.add(command("raise SystemExit('wptrace: no room')")._replace(done="it is there"))
    finish(children)
    assert said == ["it failed: no room"]


def test_what_cannot_be_killed_is_not_waited_for(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A task in an uninterruptible wait ignores SIGKILL until its disk answers."""
    monkeypatch.setattr(os, "killpg", lambda group, number: None)
    children, begin = Children(said.append), time.monotonic()
    children.add(command("import time; time.sleep(60)"), command("", "two"))
    children.turn(begin + 601)
    children.turn(begin + 700)
    children.finish()
    children.close()
    assert time.monotonic() - begin < 30
    assert said == ["it took more than 10 minutes and was ended", "two is left out: the trace has ended"]
    assert children._running is not None
    children._running.process.kill()
    finish(children)


def test_what_may_not_be_killed_does_no_harm(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A command may have become another user, whom the agent's may send no signals to."""

    def refuse(group: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "killpg", refuse)
    children = Children(said.append)
    children.add(command("import time; time.sleep(1)"))
    children.turn(time.monotonic() + 601)
    assert said == ["it took more than 10 minutes and cannot be ended: Operation not permitted"]
    finish(children)
