# SPDX-License-Identifier: Apache-2.0
"""The actions of a trigger whose condition has held: a line with the verdict, a dump of the recorder, a command."""

from __future__ import annotations

import math
import select
import time
from collections import OrderedDict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Callable, NamedTuple

from wptrace.agent.condition import VERDICT, Condition, oldest
from wptrace.agent.disk import AT_END_S, LOOKED_S, Disk, Get
from wptrace.agent.dumps import Daily, Room
from wptrace.agent.pressure import Pressure
from wptrace.bpf.ring import Reader
from wptrace.engine.children import Children, Command
from wptrace.engine.dumps import DumpOptions, Dumps
from wptrace.engine.dumps import page as page_of
from wptrace.engine.recorder import Dump
from wptrace.engine.session import QuietConsumer, Trace, next_due
from wptrace.errors import UsageError, WptraceError
from wptrace.model.report import Snapshot
from wptrace.outputs.metrics import Fired
from wptrace.outputs.text import verdict

WINDOW_S = 1.0
_DAY_S = 86_400.0
# How long triggers that are due wait for a dump that is being written, and who asks for one by hand for each.
_PATIENCE_S, _BY_HAND_S = 30.0, 4.0
# How long the usual value is learned before it is compared with, and its time constant.
_LEARNED_S, _USUAL_S = 300.0, 3600.0
_MOST_PLACES = 4096
Say = Callable[[str], None]
HAND = "hand"
"""The name of dumps that somebody asks for."""


class Trigger(NamedTuple):
    name: str
    when: Condition
    cooldown_s: float
    daily: int
    after_s: float
    command: Sequence[str]


class _Due(NamedTuple):
    at: float
    trigger: str
    command: Sequence[str]


class _Kept(NamedTuple):
    size: int
    removed: int
    """How many older files made room."""


def _kept(room: Room, path: Path, writing: Collection[Path]) -> _Kept:
    """Make room for a file that is complete."""
    size = 0
    with suppress(OSError):
        size = path.stat().st_size
    return _Kept(size, len(room.make({path, *writing})))


class Actions(QuietConsumer):
    """A consumer that runs pending actions: dumps are written some time after their trigger fires."""

    def __init__(self, traces: Sequence[Trace], room: Room, daily: Daily, children: Children, say: Say) -> None:
        self._children, self._say = children, say
        self._traces, self._daily = traces, daily
        self.write_to(room)
        self.writing: set[Path] = set()
        """Files that others are writing to the folder."""
        self.on_fire: Callable[[str, float], None] = lambda name, now: None
        """Called with the name of each trigger that fires."""
        self._pending: list[_Due] = []
        self.disk = Disk("dumps", say)
        self._dumping: Iterator[bool] | None = None
        self.files: list[Path] = []
        """The dumps of the last time."""

    def write_to(self, room: Room) -> None:
        self.room = room
        self._dumps = [
            Dumps(trace, recorder, DumpOptions(room.folder, say=self._say))
            for trace in self._traces
            if (recorder := trace.flow.flight_recorder) is not None
        ]

    def after(self, due: float, name: str, command: Sequence[str]) -> None:
        self._pending.append(_Due(due, name, command))
        self.due = min(self.due, due)

    def turn(self, now: float) -> None:
        self._go_on()
        if self._dumping is not None and self.disk.waits_s < _PATIENCE_S:
            # What is due meanwhile shares the next dump.
            self.due = now + LOOKED_S
            return
        self._act(now, now)

    def _act(self, until: float, now: float) -> None:
        """Run what is due until then."""
        due = [one for one in self._pending if one.at <= until]
        self._pending = [one for one in self._pending if one.at > until]
        self.due = min((one.at for one in self._pending), default=math.inf)
        left = self._daily.left(now)
        for one in due:
            if not left:
                self._say(f"trigger {one.trigger} writes nothing: the limit of dumps for 24 hours is reached (daily)")
            elif self._dumping is not None:
                self._say(f"trigger {one.trigger} writes nothing: another dump is being written")
        # Triggers that fire at the same time share their dumps.
        if due and left and self._dumping is None:
            self._dumping = self._dump(now, True, due)
            self._go_on()
        else:
            self._run(due, [])
        if self._dumping is not None:
            self.due = min(self.due, now + LOOKED_S)

    def _go_on(self) -> None:
        """Write what the disk takes at once."""
        if self._dumping is not None and next(self._dumping, None) is None:
            self._dumping = None

    def _dump(self, now: float, counts: bool, due: Sequence[_Due] = ()) -> Iterator[bool]:
        """Write the recorders one after another, as each takes memory for a copy, and run the commands; yield while the
        disk is waited for."""
        self.files = []
        for one in self._dumps:
            self._write(one, now, counts)
            while self.disk.is_busy:
                yield True
        self._run(due, self.files)

    def _write(self, one: Dumps, now: float, counts: bool) -> None:
        try:
            write = one.copied()
        except (WptraceError, OSError) as error:
            one.failed(error)
            return
        room, writing = self.room, {*self.writing}

        def to_file() -> tuple[Dump, _Kept]:
            room.make(writing)
            made = write()
            return made, _kept(room, made.path, writing)

        def ended(get: Get[tuple[Dump, _Kept]]) -> None:
            try:
                made, kept = get()
            except (WptraceError, OSError) as error:
                one.failed(error)
            else:
                self.files.append(one.written(made))
                self._keep(made.path, kept, now, counts, page=True)

        self.disk.do(to_file, ended)

    def keep(self, path: Path, now: float, with_page: bool) -> None:
        """Make the page of a file that is complete, and room for it; it counts for the limit of a day."""
        room, writing = self.room, {*self.writing}

        def ended(get: Get[_Kept]) -> None:
            with suppress(WptraceError):
                self._keep(path, get(), now, counts=True, page=with_page)

        self.disk.do(lambda: _kept(room, path, writing), ended)

    def _keep(self, path: Path, kept: _Kept, now: float, counts: bool, page: bool) -> None:
        if counts:
            self._daily.add(now, kept.size)
        if page:
            self._children.add(page_of(path))
        if kept.removed:
            self._say(f"{kept.removed} older files made room in {path.parent}")

    def most(self, now: float) -> int:
        """The size that another file may have by the limits of the folder."""
        return min(self.room.keep, self._daily.left(now))

    def _run(self, due: Sequence[_Due], files: Sequence[Path]) -> None:
        """Run the commands of triggers."""
        for one in due:
            if one.command:
                variables = {"WPTRACE_TRIGGER": one.trigger}
                what = f"the command of trigger {one.trigger}"
                self._children.add(Command([*one.command, *map(str, files)], what, variables=variables))

    def by_hand(self, now: float) -> list[Path]:
        """Dump the recorders on request; raise if not all of them can be written."""
        if not self._dumps:
            raise UsageError("nothing is written: no flow has a recorder")
        if not self._finish(_BY_HAND_S):
            raise WptraceError("nothing is written: another dump is being written")
        self._dumping = self._dump(now, False)
        if not self._finish(_BY_HAND_S):
            self.due = min(self.due, now + LOOKED_S)
            raise WptraceError(f"the disk of {self.room.folder} does not answer: the log will say when it is written")
        if len(self.files) < len(self._dumps):
            raise WptraceError(f"{len(self.files)} of {len(self._dumps)} recorders are written; the log has the error")
        return self.files

    def _finish(self, within_s: float) -> bool:
        """Wait so long for the disk; whether everything is written."""
        self._go_on()
        while self.disk.finish(within_s) and self._dumping is not None:
            self._go_on()
        return not self.disk.is_busy

    def end(self) -> None:
        """Run the pending actions now."""
        answers = self._finish(AT_END_S)
        self._act(math.inf, time.monotonic())
        if answers:
            self._finish(AT_END_S)

    def close(self) -> None:
        if not self._finish(AT_END_S):
            self._say(f"what is being written to {self.room.folder} is left: its disk does not answer")
        self.disk.close()


class Watch(QuietConsumer):
    """A consumer that checks the conditions of one trace, once a second."""

    def __init__(
        self, trace: Trace, triggers: Sequence[Trigger], actions: Actions, now: float, say: Callable[[str], None]
    ) -> None:
        self._trace, self._actions, self._say = trace, actions, say
        self._look_at([_State(one) for one in triggers])
        self._last = trace.first
        self.due = now + WINDOW_S if triggers else math.inf

    @property
    def states(self) -> dict[str, _State]:
        """The states of its triggers, by name."""
        return {one.trigger.name: one for one in self._states}

    def arm(self, triggers: Sequence[Trigger], now: float, before: Mapping[str, _State]) -> None:
        """Replace the triggers, given the states that all had. An unchanged one goes on; a changed one keeps its
        counts, also where its condition was checked by another watch."""
        had, read = self._states, (self._figures, self._cells_alone)
        self._look_at([_State.of(one, before.get(one.name)) for one in triggers])
        if not had or read != (self._figures, self._cells_alone):
            # The last snapshot has old values of what nobody needed.
            self._last, self.due = self._trace.snapshot(), now + WINDOW_S
        if not triggers:
            self.due = math.inf

    def _look_at(self, states: list[_State]) -> None:
        self._states = states
        figures = [one.trigger.when for one in states if not one.trigger.when.sort]
        self._figures, self._cells_alone = bool(figures), all(one.of_cells for one in figures)

    @property
    def fired(self) -> list[Fired]:
        return [Fired(one.trigger.name, one.fired, one.suppressed, bool(one.since)) for one in self._states]

    def turn(self, now: float) -> None:
        self.due = next_due(self.due, WINDOW_S, now)
        last = self._last
        snapshot = last._replace(at_ns=int(now * 1e9))
        if self._figures:
            snapshot = self._trace.lately(last) if self._cells_alone else self._trace.snapshot()
        if snapshot.at_ns == last.at_ns:
            return
        self._last = snapshot
        seconds = (snapshot.at_ns - last.at_ns) / 1e9
        for state in self._states:
            when, held = state.trigger.when, bool(state.since)
            if when.sort == VERDICT:
                self._check_verdict(state, now)
                continue
            in_flight = self._trace.flow.in_flight
            found = oldest(in_flight(int(when.limit))) if when.sort else when.values(snapshot, last)
            place = state.look(found, seconds, now)
            if not state.since:
                state.start = None
            elif not held:
                # Current counters and books are close enough.
                state.start = self._trace.snapshot()
                if self._figures:
                    state.start = state.start._replace(at_ns=last.at_ns, cells=last.cells)
            if place is not None:
                self._fire(state, place, found[place], now)

    def _check_verdict(self, state: _State, now: float) -> None:
        """Check a verdict once for each period of the condition."""
        when = state.trigger.when
        if state.start is not None and now < state.verdict_s + when.for_s - WINDOW_S / 2:
            return
        start, snapshot = state.start, self._trace.snapshot()
        state.start, state.verdict_s = snapshot, now
        if start is None or start.at_ns == snapshot.at_ns:
            return
        verdict = self._trace.window_with_verdict(start, snapshot, "interval").verdict
        named = () if verdict is None else [one for one in verdict.findings if one.rule == when.what]
        found = {one.who: 1.0 for one in named}
        place = state.look(found, when.for_s, now)
        if place is not None:
            self._do(state, f"trigger {state.trigger.name}: {when.text}", now, start)

    def _fire(self, state: _State, place: str, value: float, now: float) -> None:
        one = state.trigger
        where = f" on {place}" if place else ""
        usual = f", usual is {one.when.shown(state.usual(place))}" if one.when.times else ""
        self._do(state, f"trigger {one.name}: {one.when.text}{where}, it is {one.when.shown(value)}{usual}", now)

    def pull(self, name: str, now: float) -> bool:
        """Fire it by hand, regardless of its limits; false if there is no such trigger."""
        state = next((one for one in self._states if one.trigger.name == name), None)
        if state is not None:
            state.count(now)
            self._do(state, f"trigger {name}: by hand", now)
        return state is not None

    def _do(self, state: _State, words: str, now: float, start: Snapshot | None = None) -> None:
        one = state.trigger
        report = self._trace.window_with_verdict(start or state.start or self._last, self._trace.snapshot(), "interval")
        said = "" if report.verdict is None else next(iter(verdict.short_lines(report.verdict, dates=False)), "")
        self._say(f"{words}; {said}" if said else words)
        self._actions.after(now + one.after_s, one.name, one.command)
        self._actions.on_fire(one.name, now)


class PressureWatch(Watch):
    """Sleeps until the kernel reports waiting tasks, then checks once a second until they stop waiting."""

    def __init__(
        self,
        trace: Trace,
        triggers: Sequence[Trigger],
        actions: Actions,
        now: float,
        say: Callable[[str], None],
        reader: Reader,
    ) -> None:
        super().__init__(trace, [], actions, now, say)
        self._reader = reader
        self._pressures: dict[Condition, Pressure] = {}
        self.arm(triggers, now, {})

    def arm(self, triggers: Sequence[Trigger], now: float, before: Mapping[str, _State]) -> None:
        super().arm(triggers, now, before)
        wanted = {one.when: one.name for one in triggers}
        for when in self._pressures.keys() - wanted.keys():
            gone = self._pressures.pop(when)
            if gone.fd >= 0:
                self._reader.leave(gone.fd)
            gone.close()
        for when, name in wanted.items():
            if when not in self._pressures:
                made = self._pressures[when] = Pressure(when.what, when.limit, now)
                if made.fd >= 0:
                    self._reader.attend(made.fd, self._wake, select.POLLPRI)
                else:
                    self._say(
                        f"trigger {name} is checked once a second: the kernel cannot notify wptrace ({made.refused})"
                    )
        self._sleep()

    def _wake(self) -> None:
        """Handle a notification of the kernel."""
        now = time.monotonic()
        if self.due == math.inf:
            for one in self._pressures.values():
                one.share(now)
            self._last = self._trace.snapshot()
            self.due = now + WINDOW_S

    def turn(self, now: float) -> None:
        self.due = next_due(self.due, WINDOW_S, now)
        shares = {when: one.share(now) for when, one in self._pressures.items()}
        last, self._last = self._last, self._trace.snapshot()
        for state in self._states:
            held = bool(state.since)
            value, seconds = shares[state.trigger.when]
            place = state.look({"": value}, seconds, now)
            state.start = None if not state.since else state.start if held else last
            if place is not None:
                self._fire(state, place, value, now)
        self._sleep()

    def _sleep(self) -> None:
        holds = any(one.since for one in self._states)
        if not holds and all(one.fd >= 0 for one in self._pressures.values()):
            self.due = math.inf

    def close(self) -> None:
        for one in self._pressures.values():
            one.close()


class _State:
    def __init__(self, trigger: Trigger) -> None:
        self.trigger = trigger
        self.since: dict[str, float] = {}
        """Since when the condition holds, by place."""
        self.start: Snapshot | None = None
        """The snapshot from before the condition held; for a verdict, that of the previous one."""
        self.verdict_s = 0.0
        self.fired = self.suppressed = 0
        self._times: deque[float] = deque(maxlen=trigger.daily)
        self._known: set[str] = set()
        """Places where it has fired, or was suppressed, since the condition began to hold there."""
        self._baselines: OrderedDict[str, _Baseline] = OrderedDict()

    @classmethod
    def of(cls, trigger: Trigger, before: _State | None) -> _State:
        if before is None or before.trigger == trigger:
            return before or cls(trigger)
        made = cls(trigger)
        made.fired, made.suppressed = before.fired, before.suppressed
        made._times.extend(before._times)
        return made

    def look(self, values: Mapping[str, float], seconds: float, now: float) -> str | None:
        """Return the place for which it fires now, given the values of a window of this length."""
        when = self.trigger.when
        holds = [place for place, value in values.items() if self._holds(place, value, seconds)]
        began = now - seconds
        self.since = {place: self.since.get(place, began) for place in holds}
        self._known &= set(holds)
        # A window may be slightly shorter than a second.
        ripe = [place for place, since in self.since.items() if now - since >= when.for_s - WINDOW_S / 2]
        found = None
        for place in ripe:
            if found is None and self._may_fire(now):
                found = place
            elif place not in self._known:
                self.suppressed += 1
        self._known.update(ripe)
        return found

    def _holds(self, place: str, value: float, seconds: float) -> bool:
        if not self.trigger.when.times:
            return self.trigger.when.holds(value)
        usual = self._baselines.setdefault(place, _Baseline())
        if len(self._baselines) > _MOST_PLACES:
            self._baselines.popitem(last=False)
        if usual.known and self.trigger.when.holds(value, usual.value):
            # Unusual values are not learned, however long they last.
            return True
        usual.learn(value, seconds)
        return False

    def usual(self, place: str) -> float:
        return self._baselines[place].value

    def _may_fire(self, now: float) -> bool:
        times, one = self._times, self.trigger
        soon = bool(times) and now - times[-1] < one.cooldown_s
        often = len(times) == one.daily and now - times[0] < _DAY_S
        if soon or often:
            return False
        self.count(now)
        return True

    def count(self, now: float) -> None:
        self._times.append(now)
        self.fired += 1


class _Baseline:
    """The usual value: a mean of logarithms in which an hour-old sample has a third of the weight of a new one."""

    def __init__(self) -> None:
        self._mean, self._seconds = 0.0, 0.0

    @property
    def known(self) -> bool:
        return self._seconds >= _LEARNED_S

    @property
    def value(self) -> float:
        return math.exp(self._mean)

    def learn(self, value: float, seconds: float) -> None:
        if value > 0:
            self._seconds = min(self._seconds + seconds, _USUAL_S)
            self._mean += (math.log(value) - self._mean) * min(seconds / self._seconds, 1.0)
