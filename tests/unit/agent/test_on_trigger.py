# SPDX-License-Identifier: Apache-2.0
"""CPU time that commands of triggers owe to the budget, which commands have an option for it, and how runs end."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from wptrace.agent import on_trigger
from wptrace.agent.dumps import Daily, Room
from wptrace.agent.on_trigger import WITH_BUDGET, Ledger, OnTrigger, Runs
from wptrace.agent.trigger import Actions
from wptrace.cli.agent import COMMANDS
from wptrace.cli.main import Parser
from wptrace.engine.children import Children
from wptrace.engine.dumps import created

SECOND = 1_000_000_000


def test_a_run_is_paid_by_the_time_that_the_cpus_were_busy() -> None:
    busy, at = 0, 0
    ledger = Ledger(0.01, lambda: (busy, at))
    assert ledger.owed_s() == 0
    at = 3600 * SECOND
    # Idle time before the run pays for nothing.
    ledger.add(2.0)
    busy, at = 100 * SECOND, at + 50 * SECOND
    assert ledger.owed_s() == pytest.approx(1.0)
    # On an idle machine the share is that of one CPU.
    at += 60 * SECOND
    assert ledger.owed_s() == pytest.approx(0.4)
    ledger.limit = 1.0
    at += SECOND
    assert ledger.owed_s() == 0


def test_commands_with_a_budget_have_the_option() -> None:
    found = []
    for name in COMMANDS:
        parser = Parser(prog=name)
        importlib.import_module(f"wptrace.cli.{name}").add_arguments(parser)
        if any("--budget" in action.option_strings for action in parser._actions):
            found.append(name)
    assert tuple(found) == WITH_BUDGET


def test_a_run_that_cannot_be_killed_is_not_waited_for(
    said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task in an uninterruptible wait ignores SIGKILL until its disk answers."""
    monkeypatch.setattr(on_trigger, "itself", lambda *words: [sys.executable, "-c", "import time; time.sleep(60)"])
    for name in ("kill", "terminate", "send_signal"):
        monkeypatch.setattr(subprocess.Popen, name, lambda *arguments: None)
    actions = Actions([], Room(tmp_path, 1 << 30), Daily(1 << 30), Children(said.append), said.append)
    table = OnTrigger("io", {}, (), 60.0, ())
    runs = Runs([table], actions, Ledger(0.01), lambda: None, said.append)
    begin = time.monotonic()
    runs.fire("slow", begin)
    runs.turn(begin + 301)
    (slot,) = runs._slots.values()
    assert slot.run is not None
    process = slot.run.process
    # It is still there, so there is no second one.
    runs.fire("slow", begin + 302)
    assert said == ["trigger slow does not load [on_trigger.io]: it is loaded already"]
    monkeypatch.setattr(on_trigger, "_AT_CLOSE_S", 0.1)
    runs.close()
    assert said[1:] == ["[on_trigger.io] of trigger slow does not end"]
    assert time.monotonic() - begin < 30
    monkeypatch.undo()
    process.kill()
    process.wait()


@pytest.mark.parametrize("goes", ["on", "with the table", "with the agent"])
def test_while_the_disk_does_not_answer_nothing_is_loaded(
    said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, goes: str
) -> None:
    """Its file is made first, which may be after its table has gone."""
    monkeypatch.setattr(on_trigger, "itself", lambda *words: [sys.executable, "-c", "import time; time.sleep(60)"])
    monkeypatch.setattr(on_trigger, "_AT_CLOSE_S", 0.1)
    answers = threading.Event()

    def make(folder: Path) -> Path:
        answers.wait(60)
        return created(folder)

    monkeypatch.setattr(on_trigger, "created", make)
    actions = Actions([], Room(tmp_path, 1 << 30), Daily(1 << 30), Children(said.append), said.append)
    table = OnTrigger("io", {}, (), 60.0, ())
    runs = Runs([table], actions, Ledger(0.01), lambda: None, said.append)
    runs.fire("slow", 0.0)
    runs.fire("slow", 1.0)
    assert said == ["trigger slow does not load [on_trigger.io]: it is loaded already"]
    assert runs.running == []
    if goes == "with the table":
        runs.arm([])
        assert [one.is_loaded for one in runs.loaded] == [False]
    elif goes == "with the agent":
        runs.close()
    answers.set()
    assert actions.disk.finish(10.0)
    assert runs.running == (["io by trigger slow"] if goes == "on" else [])
    assert len(list(tmp_path.iterdir())) == (goes == "on")
    if goes == "with the table":
        assert runs.loaded == []
    runs.close()
    actions.close()
    assert len(said) == (2 if goes == "on" else 1)
