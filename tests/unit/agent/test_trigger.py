# SPDX-License-Identifier: Apache-2.0
"""When and how often triggers fire, and what they do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.unit.agent.conftest import play, stall
from tests.unit.agent.test_condition import BLOCK, MS, REQUEST, snapshot
from tests.unit.engine.conftest import Time
from tests.unit.engine.test_run import SDA_READ, Fake
from tests.unit.outputs.samples import cell
from wptrace.agent.condition import parse
from wptrace.agent.dumps import Daily, Room
from wptrace.agent.trigger import Actions, Trigger, Watch, _State
from wptrace.engine.children import Children, Command
from wptrace.engine.recorder import Dump
from wptrace.engine.session import Session
from wptrace.errors import UsageError, WptraceError
from wptrace.model.report import InFlight


def trigger(when: str = "io.read.total.p50 > 50ms for 3s", **settings: Any) -> Trigger:
    made = Trigger("slow", parse(when, (BLOCK,)), 60.0, 3, 5.0, ())
    return made._replace(**settings)


class World:
    """A clock of seconds, and reads of devices with given times in ms."""

    def __init__(self, one: Trigger) -> None:
        self.state = _State(one)
        self.now = 0.0
        self._reads: dict[str, list[int]] = {}
        self._last = snapshot({})

    def second(self, **took: int) -> tuple[str, float] | None:
        self.now += 1
        for dev, value in took.items():
            self._reads.setdefault(dev, []).append(value * MS)
        cells = {REQUEST.group(dev, "read"): cell([0] * len(of), of) for dev, of in self._reads.items()}
        current = snapshot(cells, self.now)
        last, self._last = self._last, current
        values = self.state.trigger.when.values(current, last)
        place = self.state.look(values, 1.0, self.now)
        return None if place is None else (place, values[place])

    def seconds(self, count: int, **took: int) -> list[int]:
        """Return the seconds in which the trigger fires."""
        return [int(self.now) for _ in range(count) if self.second(**took)]


def test_it_fires_when_it_has_held_for_its_time() -> None:
    world = World(trigger())
    assert world.seconds(5, sda=1) == []
    assert world.seconds(2, sda=80) == []
    found = world.second(sda=80)
    assert found is not None
    assert found[0] == "sda"
    assert found[1] == pytest.approx(80 * MS, rel=0.07)


@pytest.mark.parametrize("between", [{"sda": 1}, {}], ids=["quick", "nothing"])
def test_a_window_in_which_it_does_not_hold_begins_anew(between: dict[str, int]) -> None:
    world = World(trigger())
    assert world.seconds(2, sda=80) == []
    world.second(**between)
    assert world.state.since == {}
    assert world.seconds(4, sda=80) == [6]


def test_another_device_does_not_go_on_for_it() -> None:
    world = World(trigger())
    assert world.seconds(2, sda=80) == []
    assert world.seconds(2, sdb=80) == []
    assert world.seconds(1, sdb=80, sda=80) == [5]


def test_without_a_time_one_window_is_enough() -> None:
    assert World(trigger("io.read.total.p50 > 50ms")).seconds(1, sda=80) == [1]


def test_it_rests_and_fires_again_if_it_still_holds() -> None:
    world = World(trigger(cooldown_s=10.0))
    assert world.seconds(25, sda=80) == [3, 13, 23]
    assert (world.state.fired, world.state.suppressed) == (3, 0)


def test_what_it_holds_back_is_counted_once_each_time() -> None:
    world = World(trigger(cooldown_s=1000.0))
    assert world.seconds(20, sda=80) == [3]
    world.seconds(2, sda=1)
    assert world.seconds(20, sda=80, sdb=90) == []
    assert (world.state.fired, world.state.suppressed) == (1, 2)


def test_it_fires_so_often_a_day() -> None:
    world = World(trigger(cooldown_s=0.0, daily=3))
    assert world.seconds(10, sda=80) == [3, 4, 5]
    world.now += 86_400 - 20
    assert world.seconds(15, sda=80)[0] == 3 + 86_400


def test_an_armed_trigger_goes_on_where_it_was_the_same(
    session: Session, clock: Time, said: list[str], tmp_path: Path
) -> None:
    """An equal trigger keeps the counts and the cooldown of its name; a removed one never fires again."""
    watch, _, _ = watched(session, clock, tmp_path, said, [fake_trigger(session, cooldown_s=20.0)])
    play(session, clock, 2.5)
    watch.arm([fake_trigger(session, cooldown_s=20.0)], clock.now, watch.states)
    play(session, clock, 4.0)
    assert [(one.fired, one.suppressed) for one in watch.fired] == [(1, 0)]
    watch.arm([fake_trigger(session, cooldown_s=20.0, daily=2)], clock.now, watch.states)
    play(session, clock, 10.0)
    assert [(one.fired, one.suppressed) for one in watch.fired] == [(1, 1)]
    play(session, clock, 24.0)
    assert [(one.fired, one.suppressed) for one in watch.fired] == [(2, 1)]
    watch.arm([], clock.now, watch.states)
    play(session, clock, 100.0)
    assert (watch.fired, watch.due, len(said)) == ([], float("inf"), 2)
    watch.arm([fake_trigger(session)], clock.now, watch.states)
    play(session, clock, 105.0)
    assert [one.fired for one in watch.fired] == [1]


@pytest.mark.parametrize("before", ["total.max > 1h", "verdict.grew for 1h"])
@pytest.mark.parametrize("after", ["bytes.rate > 2K", "finished.rate > 4", "total.rate > 4"])
def test_an_armed_trigger_does_not_take_all_until_now_for_one_window(
    before: str, after: str, session: Session, clock: Time, said: list[str], tmp_path: Path
) -> None:
    """Each look counts one more request of 512 bytes."""
    idle, new = (
        fake_trigger(session, name=text, when=parse(f"fake.{text}", [session.traces[0].flow]))
        for text in (before, after)
    )
    watch, _, _ = watched(session, clock, tmp_path, said, [idle])
    for _ in range(10):
        session.traces[0].snapshot()
    play(session, clock, 10.0)
    clock.now += 0.9
    watch.arm([idle, new], clock.now, watch.states)
    play(session, clock, 20.0)
    assert said == []


# --- Usual values -----------------------------------------------------------------------------------------------------


def test_what_is_usual_is_learned_before_anything_is_compared_with_it() -> None:
    state = _State(trigger("io.read.total.p50 > 4x for 3s"))
    values = [{"sda": 10.0}] * 299 + [{"sda": 80.0}] * 10
    fired = [now for now, value in enumerate(values, 1) if state.look(value, 1.0, now)]
    # The first high value is the last one that is learned.
    assert fired == [303]
    assert state.usual("sda") == pytest.approx(10, rel=0.02)


def test_what_is_not_usual_is_not_learned_and_other_places_have_their_own() -> None:
    state = _State(trigger("io.read.total.p50 > 4x", cooldown_s=10_000.0))
    values = [{"sda": 10.0, "sdb": 200.0}] * 400 + [{"sda": 80.0, "sdb": 250.0}] * 1000
    fired = [now for now, value in enumerate(values, 1) if state.look(value, 1.0, now)]
    assert fired == [401]
    assert state.usual("sda") == pytest.approx(10)
    # A value that rises slowly becomes the usual one.
    assert 225 < state.usual("sdb") < 250


# --- Actions ----------------------------------------------------------------------------------------------------------


class Recorder:
    slow_seen_ns = 0

    def __init__(self) -> None:
        self.dumps: list[Path] = []
        self.hung = threading.Event()
        """Its disk answers while this is set."""
        self.hung.set()

    def copied(self, start: object, view: str) -> Callable[[Path], Dump]:
        def write(path: Path) -> Dump:
            path.write_bytes(b"x" * 100)
            self.hung.wait()
            self.dumps.append(path)
            return Dump(path, 7, 0, 2_000_000_000)

        return write


class Collected(Children):
    """A starter of commands that runs none."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(say)
        self.commands: list[Command] = []

    def add(self, *commands: Command) -> None:
        self.commands += commands


@pytest.fixture
def recorder(session: Session, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    monkeypatch.setattr(Fake, "flight_recorder", made)
    return made


def watched(
    session: Session, clock: Time, folder: Path, said: list[str], one: Sequence[Trigger]
) -> tuple[Watch, Actions, Collected]:
    (trace,) = session.traces
    children = Collected(said.append)
    actions = Actions(session.traces, Room(folder, 1 << 30), Daily(1 << 30), children, said.append)
    watch = Watch(trace, one, actions, clock.now, said.append)
    for consumer in (actions, watch):
        trace.subscribe(consumer)
    return watch, actions, children


def fake_trigger(session: Session, **settings: Any) -> Trigger:
    when = parse("fake.read.total.max > 1ns for 3s", [session.traces[0].flow])
    return Trigger("slow", when, 600.0, 3, 5.0, ("notify", "-x"))._replace(**settings)


def test_it_says_the_verdict_and_dumps_with_what_follows(
    session: Session, clock: Time, recorder: Recorder, said: list[str], tmp_path: Path
) -> None:
    watch, _, children = watched(session, clock, tmp_path, said, [fake_trigger(session)])
    play(session, clock, 3.5)
    (line,) = said
    assert line.startswith("trigger slow: fake.read.total.max > 1ns for 3s on sda, it is 3 ns; verdict: ")
    assert recorder.dumps == []
    play(session, clock, 9.0)
    (path,) = recorder.dumps
    assert said[1:] == [f"the recorder is in {path}: 7 records of 2.0 s"]
    report, command = children.commands
    assert report.words[-4:] == ["report", str(path), "-o", str(path.with_suffix(".html"))]
    assert command.words == ["notify", "-x", str(path)]
    assert command.variables == {"WPTRACE_TRIGGER": "slow"}
    assert [(one.name, one.fired, one.holds) for one in watch.fired] == [("slow", 1, True)]


def test_after_a_stall_no_window_is_tiny(session: Session, clock: Time, said: list[str], tmp_path: Path) -> None:
    """Each look finds one more request: in less than a millisecond that would be a megabyte a second."""
    when = parse("fake.read.bytes.rate > 100K", [session.traces[0].flow])
    watched(session, clock, tmp_path, said, [fake_trigger(session, when=when)])
    stall(clock, 1.5, 2.9996)
    play(session, clock, 10.0)
    assert said == []


def test_what_is_stuck_fires_by_its_age(
    session: Session, fake: Fake, clock: Time, said: list[str], tmp_path: Path
) -> None:
    when = parse("fake.stuck > 30s for 2s", [fake])
    watched(session, clock, tmp_path, said, [fake_trigger(session, when=when)])
    play(session, clock, 5.0)
    assert said == []
    assert set(fake.asked) == {30_000_000_000}
    fake.waiting = [InFlight(SDA_READ, age * 1_000_000_000, "device", {}) for age in (31, 42)]
    play(session, clock, 9.0)
    assert said[0].startswith("trigger slow: fake.stuck > 30s for 2s on sda, it is 42.0 s; verdict: ")
    assert len(said) == 1


def test_a_finding_fires_by_its_name(
    session: Session, fake: Fake, clock: Time, said: list[str], tmp_path: Path
) -> None:
    """There is a verdict for each period of the condition's length."""
    when = parse("fake.verdict.grew for 40s", [fake])
    watched(session, clock, tmp_path, said, [fake_trigger(session, when=when)])
    fake.slow_after = 100.0
    play(session, clock, 79.0)
    assert said == []
    play(session, clock, 130.0)
    (line,) = said
    assert line.startswith("trigger slow: fake.verdict.grew for 40s; verdict: ")


def test_the_end_does_not_wait_for_what_follows(
    session: Session, clock: Time, recorder: Recorder, said: list[str], tmp_path: Path
) -> None:
    watched(session, clock, tmp_path, said, [fake_trigger(session, after_s=1000.0)])
    play(session, clock, 4.0)
    session.end()
    assert len(recorder.dumps) == 1


def test_without_a_recorder_it_says_so_and_runs_the_command(
    session: Session, clock: Time, said: list[str], tmp_path: Path
) -> None:
    _, actions, children = watched(session, clock, tmp_path, said, [fake_trigger(session)])
    play(session, clock, 10.0)
    (command,) = children.commands
    assert command.words == ["notify", "-x"]
    with pytest.raises(UsageError, match="nothing is written: no flow has a recorder"):
        actions.by_hand(clock.now)


def test_by_hand_there_is_a_dump_at_once(
    session: Session, clock: Time, recorder: Recorder, said: list[str], tmp_path: Path
) -> None:
    _, actions, children = watched(session, clock, tmp_path, said, [])
    assert actions.by_hand(clock.now) == recorder.dumps
    assert len(recorder.dumps) == len(children.commands) == 1


def test_by_hand_a_dump_that_fails_is_no_success(
    session: Session, clock: Time, recorder: Recorder, said: list[str], tmp_path: Path
) -> None:
    _, actions, _ = watched(session, clock, tmp_path / "gone", said, [])
    with pytest.raises(WptraceError, match="0 of 1 recorders are written; the log has the error"):
        actions.by_hand(clock.now)
    (line,) = said
    assert line.startswith("the recorder could not be written: ")


def test_while_the_disk_does_not_answer_there_is_one_dump(
    session: Session,
    clock: Time,
    recorder: Recorder,
    said: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A dump has a copy of the recorder, so that more of them would fill the memory."""
    monkeypatch.setattr("wptrace.agent.trigger._BY_HAND_S", 0.05)
    _, actions, children = watched(session, clock, tmp_path, said, [fake_trigger(session, cooldown_s=20.0)])
    session.traces[0].subscribe(actions.disk)
    recorder.hung.clear()
    play(session, clock, 70.0)
    another = "trigger slow writes nothing: another dump is being written"
    waits = "dumps wait for their disk, for 30 s so far"
    assert [line for line in said if "verdict" not in line] == [another, waits, another]
    assert [one.words for one in children.commands] == [["notify", "-x"]] * 2
    with pytest.raises(WptraceError, match="nothing is written: another dump is being written"):
        actions.by_hand(clock.now)
    recorder.hung.set()
    assert actions.disk.finish(10.0)
    play(session, clock, 71.0)
    (path,) = recorder.dumps
    assert children.commands[-1].words == ["notify", "-x", str(path)]
    recorder.hung.clear()
    with pytest.raises(WptraceError, match=r"the disk of .* does not answer: the log will say when it is written"):
        actions.by_hand(clock.now)
    recorder.hung.set()
    actions.close()
    assert len(recorder.dumps) == 2


def test_what_is_due_during_a_dump_shares_the_next_one(
    session: Session, clock: Time, recorder: Recorder, said: list[str], tmp_path: Path
) -> None:
    """Also at the end."""
    _, actions, children = watched(session, clock, tmp_path, said, [])
    session.traces[0].subscribe(actions.disk)
    recorder.hung.clear()
    for seconds, name in enumerate(("first", "second", "third", "last")):
        actions.after(clock.now + 5.0 * (seconds + 1), name, (name,))
    play(session, clock, 16.0)
    assert (children.commands, said) == ([], [])
    recorder.hung.set()
    assert actions.disk.finish(10.0)
    play(session, clock, 18.0)
    first, second = recorder.dumps
    session.end()
    last = recorder.dumps[-1]
    ran = [one.words for one in children.commands if one.variables]
    assert ran == [["first", str(first)], ["second", str(second)], ["third", str(second)], ["last", str(last)]]
    actions.close()


def test_so_much_is_dumped_a_day_and_by_hand_more(
    session: Session, clock: Time, recorder: Recorder, said: list[str], tmp_path: Path
) -> None:
    children = Collected(said.append)
    actions = Actions(session.traces, Room(tmp_path, 1 << 30), Daily(0), children, said.append)
    actions.after(clock.now, "slow", ("notify",))
    actions.turn(clock.now)
    assert said == ["trigger slow writes nothing: the limit of dumps for 24 hours is reached (daily)"]
    assert ([one.words for one in children.commands], recorder.dumps) == ([["notify"]], [])
    actions.by_hand(clock.now)
    assert len(recorder.dumps) == 1


def test_what_is_dumped_by_hand_leaves_the_day_to_triggers(
    session: Session, clock: Time, recorder: Recorder, said: list[str], tmp_path: Path
) -> None:
    daily = Daily(250)
    actions = Actions(session.traces, Room(tmp_path, 1 << 30), daily, Collected(said.append), said.append)
    for _ in range(3):
        actions.by_hand(clock.now)
    assert daily.left(clock.now) == 250
    for name in ("slow", "often"):
        actions.after(clock.now, name, ())
    actions.turn(clock.now)
    # Those of the triggers are one.
    assert (len(recorder.dumps), daily.left(clock.now)) == (4, 150)


def test_the_end_keeps_to_what_may_be_dumped_a_day(
    session: Session, clock: Time, recorder: Recorder, said: list[str], tmp_path: Path
) -> None:
    children, daily = Collected(said.append), Daily(100)
    actions = Actions(session.traces, Room(tmp_path, 1 << 30), daily, children, said.append)
    daily.add(clock.now, 100)
    actions.after(clock.now + 30.0, "slow", ("notify",))
    actions.end()
    assert said == ["trigger slow writes nothing: the limit of dumps for 24 hours is reached (daily)"]
    assert ([one.words for one in children.commands], recorder.dumps) == ([["notify"]], [])
