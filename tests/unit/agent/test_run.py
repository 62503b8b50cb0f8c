# SPDX-License-Identifier: Apache-2.0
"""The agent around a flow that counts by itself: whatever goes wrong beside the traces, they go on."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from tests.unit.agent.test_config import make
from tests.unit.agent.test_trigger import Recorder, recorder
from tests.unit.capture.test_folder import counted
from tests.unit.engine.conftest import Time
from tests.unit.engine.test_run import Collected, Fake
from tests.unit.outputs.samples import request
from wptrace.agent import condition, config
from wptrace.agent.config import Always, Config
from wptrace.agent.run import Agent, run
from wptrace.bpf.ring import Reader
from wptrace.engine.session import Session
from wptrace.errors import UsageError
from wptrace.model.report import Start

__all__ = ["recorder"]


def read(text: str) -> Config:
    return config.parse(text, "agent.toml", make)


@pytest.fixture
def agent(session: Session, clock: Time, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    monkeypatch.setattr(Fake, "missing", {}, raising=False)
    made = Agent(read(f"[agent]\nfolder = '{tmp_path}'"), session, None, clock.now)
    yield made
    made.close()


def test_a_fault_of_ours_in_a_reload_changes_nothing(agent: Agent) -> None:
    def again() -> Config:
        raise TypeError("argument of type 'int' is not iterable")

    said = "the configuration stays as it was: TypeError: argument of type 'int' is not iterable"
    assert agent.reload(again, {}) == said


def test_by_hand_it_answers_with_what_is_written(recorder: Recorder, agent: Agent) -> None:
    assert agent.trigger("hand") == f"written: {recorder.dumps[0]}"


def test_without_a_recorder_by_hand_is_refused(agent: Agent, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="nothing is written: no flow has a recorder"):
        agent.trigger("hand")
    agent.dump()
    assert capsys.readouterr().err == "wptrace: nothing is written: no flow has a recorder\n"


def test_a_trigger_keeps_its_counts_whatever_its_condition_is_about(
    session: Session, clock: Time, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fake, "missing", {}, raising=False)
    monkeypatch.setattr(condition, "measured", lambda name, whose: True)
    folder = f"[agent]\nfolder = '{tmp_path}'\n"
    text = f"{folder}[trigger.slow]\nwhen = '{{}}'\n"
    one = Agent(read(text.format("io.read.total.p99 > 1s")), session, None, clock.now)
    for when in ("io.read.total.p99 > 1s", "pressure.io.some > 99%", "io.read.total.p99 > 2s"):
        said = one.reload(lambda: read(text.format(when)), {"io": frozenset()})  # noqa: B023 - called at once
        assert said.startswith("read agent.toml again")
        assert one.trigger("slow") == "trigger slow has fired"
    assert [fired.fired for watch in one._watches for fired in watch.fired] == [3]
    one.close()


@pytest.mark.parametrize("fail", ["event", "flush", "in_flight", "summary"])
def test_the_traces_go_on_where_nobody_takes_their_lines(
    clock: Time, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail: str
) -> None:
    """As where the journal is started anew, which a service does not get a new pipe for."""
    monkeypatch.setattr(Fake, "missing", {}, raising=False)
    monkeypatch.setattr(Fake, "hooks", (), raising=False)
    flow, reported = Fake(clock, []), list[str]()
    flow.pending = [request(dev="sda")]
    settings = read(f"[history]\ndir = '{tmp_path}'")._replace(always=[Always("io", {}, [flow])])
    for seconds, number in ((1.0, signal.SIGUSR1), (25.0, signal.SIGTERM)):
        clock.at(seconds, lambda number=number: os.kill(os.getpid(), number))  # type: ignore[misc]
    run(settings, [Collected(reported, fail)], lambda: settings)
    assert clock.now >= 1025.0
    assert f"output {fail}" in reported
    # The history has all of it.
    assert counted(tmp_path / "fake") == flow.reads - 1
    gc.unfreeze()


def test_a_reload_during_the_start_comes_after_it(
    clock: Time, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Slow(Fake):
        missing: ClassVar[dict[str, str]] = {}
        hooks = ()

        def start(self, reader: Reader) -> Start:
            os.kill(os.getpid(), signal.SIGHUP)
            return super().start(reader)

    settings = read("")._replace(always=[Always("io", {}, [Slow(clock, [])])])
    clock.at(5.0, lambda: os.kill(os.getpid(), signal.SIGTERM))
    run(settings, [Collected([])], lambda: settings)
    gc.unfreeze()
    assert clock.now >= 1005.0
    assert "read agent.toml again: nothing changed" in capsys.readouterr().err
