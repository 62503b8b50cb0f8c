# SPDX-License-Identifier: Apache-2.0
"""What happens when a condition has held for its time: a line with the verdict, a dump of the recorder, a command."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Callable, NamedTuple

from wptrace.agent.condition import Condition
from wptrace.engine.children import Children, Command
from wptrace.engine.dumps import DumpOptions, Dumps, page
from wptrace.engine.session import Trace
from wptrace.model.report import Event, Snapshot
from wptrace.outputs.prometheus import Fired
from wptrace.outputs.text import verdict
from wptrace.outputs.text.words import printable

WINDOW_S = 1.0
_DAY_S = 86_400.0
HAND = "hand"
"""The name of what somebody asks for by a signal."""


class Trigger(NamedTuple):
    name: str
    when: Condition
    cooldown_s: float
    daily: int
    after_s: float
    command: Sequence[str]


class Actions:
    """A consumer that does what is due: dumps some time after their triggers."""

    def __init__(self, traces: Sequence[Trace], folder: Path, children: Children, say: Callable[[str], None]) -> None:
        self._children, self._say = children, say
        self._traces = traces
        self.write_to(folder)
        self._pending: list[tuple[float, str, Sequence[str]]] = []
        self.due = math.inf

    def write_to(self, folder: Path) -> None:
        self._dumps = [
            Dumps(trace, recorder, DumpOptions(folder, say=self._say))
            for trace in self._traces
            if (recorder := trace.flow.flight_recorder) is not None
        ]

    def events(self, events: Sequence[Event]) -> None:
        pass

    def after(self, due: float, name: str, command: Sequence[str]) -> None:
        self._pending.append((due, name, command))
        self.due = min(self.due, due)

    def turn(self, now: float) -> None:
        pending, self._pending = self._pending, []
        files: list[Path] | None = None
        for due, name, command in pending:
            if due > now:
                self._pending.append((due, name, command))
                continue
            # Several at once have the same files.
            files = self._dump() if files is None else files
            self._run(name, command, files)
        self.due = min((due for due, _, _ in self._pending), default=math.inf)

    def _dump(self) -> list[Path]:
        files = [path for one in self._dumps if (path := one.dump()) is not None]
        for path in files:
            self._children.add(page(path))
        return files

    def _run(self, name: str, command: Sequence[str], files: Sequence[Path]) -> None:
        if command:
            variables = {"WPTRACE_TRIGGER": name}
            what = f"the command of trigger {name}"
            self._children.add(Command([*command, *map(str, files)], what, variables=variables))

    def by_hand(self, now: float) -> None:
        """Somebody asks for the recorders."""
        if not self._dumps:
            self._say("nothing is written: no flow has a recorder")
        self.after(now, HAND, ())

    def end(self) -> None:
        """What was due soon is done now."""
        self.turn(math.inf)


class Watch:
    """A consumer that looks at the conditions of one trace, once a second."""

    def __init__(
        self, trace: Trace, triggers: Sequence[Trigger], actions: Actions, now: float, say: Callable[[str], None]
    ) -> None:
        self._trace, self._actions, self._say = trace, actions, say
        self._states = [_State(one) for one in triggers]
        self._cells_alone = all(one.when.of_cells for one in triggers)
        self._last = trace.first
        self.due = now + WINDOW_S if triggers else math.inf

    def arm(self, triggers: Sequence[Trigger], now: float) -> None:
        """These from now on. One that is as before goes on; what was counted of another of its name stays."""
        before = {one.trigger.name: one for one in self._states}
        if not self._states:
            self._last, self.due = self._trace.snapshot(), now + WINDOW_S
        self._states = [_State.of(one, before.get(one.name)) for one in triggers]
        self._cells_alone = all(one.when.of_cells for one in triggers)
        if not triggers:
            self.due = math.inf

    @property
    def fired(self) -> list[Fired]:
        return [Fired(one.trigger.name, one.fired, one.suppressed, bool(one.since)) for one in self._states]

    def events(self, events: Sequence[Event]) -> None:
        pass

    def turn(self, now: float) -> None:
        self.due = max(self.due + WINDOW_S, now)
        last = self._last
        taken = self._trace.lately(last) if self._cells_alone else self._trace.snapshot()
        if taken.at_ns == last.at_ns:
            return
        self._last = taken
        for state in self._states:
            found = state.look(taken, last, now)
            if state.begun is last:
                # Counters and books of now are near enough.
                state.begun = self._trace.snapshot()._replace(at_ns=last.at_ns, cells=last.cells)
            if found is not None:
                self._fire(state, *found, now)

    def _fire(self, state: _State, place: str, value: float, now: float) -> None:
        one = state.trigger
        where = f" on {place}" if place else ""
        self._do(state, f"trigger {one.name}: {one.when.text}{where}, it is {one.when.shown(value)}", now)

    def pull(self, name: str, now: float) -> bool:
        """Somebody fires it by hand, whatever limits it has; False: it is none of these."""
        state = next((one for one in self._states if one.trigger.name == name), None)
        if state is not None:
            state.count(now)
            self._do(state, f"trigger {name}: by hand", now)
        return state is not None

    def _do(self, state: _State, words: str, now: float) -> None:
        one = state.trigger
        report = self._trace.window_with_verdict(state.begun or self._last, self._trace.snapshot(), "interval")
        said = "" if report.verdict is None else next(iter(verdict.short_lines(report.verdict, dates=False)), "")
        self._say(printable(f"{words}; {said}" if said else words))
        self._actions.after(now + one.after_s, one.name, one.command)

    def end(self) -> None:
        pass


class _State:
    def __init__(self, trigger: Trigger) -> None:
        self.trigger = trigger
        self.since: dict[str, float] = {}
        """Since when it holds, by place."""
        self.begun: Snapshot | None = None
        """What was there before it did."""
        self.fired = self.suppressed = 0
        self._times: deque[float] = deque(maxlen=trigger.daily)
        self._known: set[str] = set()
        """Places that it has fired or been held back for since it began to hold there."""

    @classmethod
    def of(cls, trigger: Trigger, before: _State | None) -> _State:
        if before is None or before.trigger == trigger:
            return before or cls(trigger)
        made = cls(trigger)
        made.fired, made.suppressed = before.fired, before.suppressed
        made._times.extend(before._times)
        return made

    def look(self, taken: Snapshot, last: Snapshot, now: float) -> tuple[str, float] | None:
        """The place and the value for which it fires now."""
        when = self.trigger.when
        holds = {place: value for place, value in when.values(taken, last).items() if when.holds(value)}
        if not holds:
            self.begun = None
        elif not self.since:
            self.begun = last
        began = now - (taken.at_ns - last.at_ns) / 1e9
        self.since = {place: self.since.get(place, began) for place in holds}
        self._known &= holds.keys()
        # A window may be shorter than a second by a little.
        ripe = [place for place, since in self.since.items() if now - since >= when.for_s - WINDOW_S / 2]
        found = None
        for place in ripe:
            if found is None and self._may_fire(now):
                found = place, holds[place]
            elif place not in self._known:
                self.suppressed += 1
        self._known.update(ripe)
        return found

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
