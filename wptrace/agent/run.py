# SPDX-License-Identifier: Apache-2.0
"""The agent: one session of all its flows, and consumers of it, until a signal ends it."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from socket import socket
from typing import Callable

from wptrace.agent import reload
from wptrace.agent.condition import PRESSURE
from wptrace.agent.config import STATE, Address, Config
from wptrace.agent.control import Control
from wptrace.agent.dumps import Daily, Room
from wptrace.agent.endpoint import listen
from wptrace.agent.history import History
from wptrace.agent.journal import Lines, say
from wptrace.agent.notify import Notify
from wptrace.agent.on_trigger import Ledger, Runs
from wptrace.agent.otlp import Exporter
from wptrace.agent.process import Own
from wptrace.agent.scrape import Service
from wptrace.agent.state import Status, Watchdog, words
from wptrace.agent.trigger import HAND, Actions, PressureWatch, Trigger, Watch
from wptrace.engine.children import Children
from wptrace.engine.definition.faults import did_you_mean
from wptrace.engine.run import RunOptions
from wptrace.engine.session import Session
from wptrace.engine.signals import Stop
from wptrace.errors import UsageError, WptraceError
from wptrace.kernel.files import require_own_folder
from wptrace.model.report import Output, Snapshot

# An agent runs for weeks, so it reads less often than a screen needs.
_HISTORY_S = 10.0
_DUMPS, _HISTORIES = "dumps", "histories"


def run(config: Config, outputs: Sequence[Output], again: Callable[[], Config]) -> None:
    """Run the agent. Each flow has an output, which gets its start, its summary, and what is in flight on request.
    `again` reads the configuration again."""
    with Stop() as stop, ExitStack() as cleanup:
        # What comes while it starts waits until it has: a signal to reload would end it.
        stop.expect_dumps()
        stop.expect_reloads()
        for output in outputs:
            cleanup.callback(output.close)
        listening = _prepared(config, None, listen)
        if listening is not None:
            cleanup.callback(listening.close)
        notify = Notify(os.environ)
        cleanup.callback(notify.close)
        for flow in config.flows:
            if flow.devices is not None:
                flow.devices.changing = True
        attached = reload.hooks(config.flows)
        session = Session(config.flows, stop.fd, config.agent["budget"], _HISTORY_S)
        cleanup.callback(session.close)
        session.start()
        gc.freeze()
        now = time.monotonic()
        shown = []
        for trace, output in zip(session.traces, outputs):
            output.start(trace.start)
            shown.append(Lines(trace, output, RunOptions(), now))
            trace.subscribe(shown[-1])
        agent = Agent(config, session, listening, now)
        cleanup.callback(agent.close)
        for status in (Status(session.traces, notify, now, lambda: agent.words), Watchdog(notify, now)):
            session.traces[0].subscribe(status)
        say(agent.words)
        notify.send("READY=1", f"STATUS={agent.words}")
        while not stop.asked:
            session.wait()
            if stop.take_list():
                for lines in shown:
                    lines.list_in_flight()
            if stop.take_dump():
                agent.dump()
            if stop.take_reload():
                notify.send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
                said = agent.reload(again, attached)
                say(said)
                # The parsed options contain cycles, which a running trace seldom collects.
                gc.collect()
                notify.send("READY=1", f"STATUS={' '.join(f'{agent.words}; {said}'.split())}")
            session.turn()
        notify.send("STOPPING=1")
        session.end()


def _folders(config: Config, running: Config) -> Iterator[tuple[Path, str]]:
    """The folders that the agent writes to, and what goes there."""
    if config.on_trigger or any(flow.flight_recorder is not None for flow in running.flows):
        yield config.agent["folder"], _DUMPS
    if config.history is not None:
        yield config.history["dir"], _HISTORIES


def require_folders(config: Config) -> None:
    """Require that a start finds its folders. Who may write to them is another matter: the agent's user may be another
    one, for whom systemd makes those in STATE."""
    for folder, what in _folders(config, config):
        if folder.is_relative_to(STATE):
            continue
        # The one of histories is made.
        there = folder.parent if what == _HISTORIES and not os.path.lexists(folder) else folder
        try:
            os.stat(f"{there}/")  # noqa: PTH116 - with a slash it is a folder
        except (FileNotFoundError, NotADirectoryError) as error:
            raise UsageError(f"{folder}, where {what} go, cannot be used: {error.strerror}") from None
        except OSError:
            continue


def _prepared(config: Config, before: Config | None, listen: Callable[[Address], socket]) -> socket | None:
    """Do everything that may fail before anything is attached or changed; return a socket if the address is new."""
    for folder, what in _folders(config, before or config):
        if what == _HISTORIES:
            with suppress(OSError):
                folder.mkdir(mode=0o700, exist_ok=True)
        require_own_folder(folder, what)
    of_before = before.prometheus if before is not None else None
    if config.prometheus is None or (of_before and of_before["listen"] == config.prometheus["listen"]):
        return None
    return listen(config.prometheus["listen"])


class Agent:
    """Everything the configuration asks for besides the traces themselves; all of it may change while they run."""

    def __init__(self, config: Config, session: Session, listening: socket | None, now: float) -> None:
        self._config, self._session = config, session
        self._first = session.traces[0]
        self._children = Children(say)
        self._daily = Daily(config.agent["daily"])
        room = Room(config.agent["folder"], config.agent["keep"])
        self.actions = Actions(session.traces, room, self._daily, self._children, say)
        budget = config.agent["budget"]
        self._runs = Runs(config.on_trigger, self.actions, Ledger(budget), self._share_budget, say)
        self._share_budget()
        self.actions.on_fire = self._runs.fire
        for consumer in (self.actions.disk, self.actions, self._runs, self._children):
            self._first.subscribe(consumer)
        self._watches: list[Watch] = []
        of_flows, of_pressure = self._triggers
        for trace, triggers in zip(session.traces, of_flows):
            self._watches.append(Watch(trace, triggers, self.actions, now, say))
            trace.subscribe(self._watches[-1])
        self._pressure = PressureWatch(self._first, of_pressure, self.actions, now, say, session.reader)
        self._watches.append(self._pressure)
        self._first.subscribe(self._pressure)
        self._histories: list[History] = []
        self._begin_histories(now)
        self._exporter: Exporter | None = None
        self._own = Own(
            lambda: [one for watch in self._watches for one in watch.fired],
            lambda: self._exporter.deliveries if self._exporter is not None else [],
            lambda: self._runs.loaded,
            lambda: self._waits,
        )
        self._send(now)
        self._service = Service(session, self._own)
        self._be_scraped(listening)
        self._control: Control | None = None
        try:
            self._control = Control(self.trigger)
        except OSError as error:
            say(f"--trigger cannot reach this agent: {error.strerror}")
        else:
            session.reader.attend(self._control.fd, self._control.serve)
            self._first.subscribe(self._control)

    @property
    def _waits(self) -> dict[str, float]:
        """How long files wait for their disk."""
        found = {_DUMPS: self.actions.disk.waits_s}
        if self._histories:
            found[_HISTORIES] = max(history.waits_s for history in self._histories)
        return found

    @property
    def words(self) -> str:
        settings = self._config.otlp
        targets = settings["collector"].targets.values() if settings is not None else ()
        sent = " and ".join(str(target.endpoint) for target in targets)
        return words(self._session.traces, self._service.url, sent, self._runs.running, self._waits)

    @property
    def _triggers(self) -> tuple[list[list[Trigger]], list[Trigger]]:
        """The triggers of each trace, and those of the whole machine."""
        rest = [one for one in self._config.triggers if one.when.sort != PRESSURE]
        of_flows = [[one for one in rest if one.when.flow == number] for number in range(len(self._session.traces))]
        return of_flows, [one for one in self._config.triggers if one.when.sort == PRESSURE]

    def trigger(self, name: str) -> str:
        """Fire a trigger by hand, whatever its condition."""
        now = time.monotonic()
        if name == HAND:
            return f"written: {', '.join(map(str, self.actions.by_hand(now)))}"
        if any(watch.pull(name, now) for watch in self._watches):
            return f"trigger {name} has fired"
        names = [one.name for one in self._config.triggers]
        raise UsageError(f"there is no trigger {name}{did_you_mean(name, names)}; there is {', '.join([*names, HAND])}")

    def dump(self) -> None:
        """Dump the recorders for a signal, which has no answer."""
        try:
            self.actions.by_hand(time.monotonic())
        except WptraceError as error:
            say(error.message)

    def reload(self, again: Callable[[], Config], attached: dict[str, frozenset[str]]) -> str:
        """Apply a changed configuration and describe the result. An invalid one changes nothing."""
        before = self._config
        try:
            plan = reload.plan(before, again(), attached)
            listening = _prepared(plan.config, before, self._service.listen)
        except (WptraceError, OSError) as error:
            hint = getattr(error, "hint", None)
            return f"the configuration stays as it was: {error}{f' ({hint})' if hint else ''}"
        except Exception as error:
            # A fault of ours: the traces go on all the same.
            return f"the configuration stays as it was: {type(error).__name__}: {error}"
        now = time.monotonic()
        self._config = config = plan.config
        self._runs.arm(config.on_trigger)
        self._share_budget()
        for aim in plan.aims:
            aim.flow.watch(aim.wanted)
        if config.agent != before.agent:
            self._daily.most = config.agent["daily"]
            self.actions.write_to(Room(config.agent["folder"], config.agent["keep"]))
        of_flows, of_pressure = self._triggers
        states = {name: state for watch in self._watches for name, state in watch.states.items()}
        for watch, triggers in zip(self._watches, [*of_flows, of_pressure]):
            watch.arm(triggers, now, states)
        if config.history != before.history:
            self._change_histories(before, now)
        if config.otlp != before.otlp:
            self._send(now)
        self._be_scraped(listening)
        return str(plan)

    def _share_budget(self) -> None:
        """Divide the budget: what a trigger loads has its share, and the flows that are always traced have the rest."""
        limit, flows = self._config.agent["budget"], self._session.traces
        share = limit / (len(flows) + len(self._runs.loaded))
        self._runs.keep_within(limit, share)
        for trace in flows:
            trace.keep_within((limit - share * len(self._runs.running)) / len(flows))

    # --- Histories ------------------------------------------------------------------------------------------------

    def _begin_histories(self, now: float, since: Sequence[Snapshot | None] = ()) -> None:
        wanted, traces = self._config.history, self._session.traces
        if wanted is None:
            return
        names = [trace.flow.name for trace in traces]
        for trace, start in zip(traces, since or [None] * len(traces)):
            folder, keep = wanted["dir"] / trace.flow.name, wanted["keep"] // len(traces)
            self._histories.append(History(trace, folder, keep, wanted["interval"], now, say, names, start))
            trace.subscribe(self._histories[-1])

    def _change_histories(self, before: Config, now: float) -> None:
        wanted, old, traces = self._config.history, before.history, self._session.traces
        if wanted is not None and old is not None and wanted["dir"] == old["dir"]:
            for history in self._histories:
                history.change(wanted["keep"] // len(traces), wanted["interval"], now)
            return
        for trace, history in zip(traces, self._histories):
            history.end()
            history.close()
            trace.unsubscribe(history)
        # A new folder continues where the previous one ends.
        since = [history.last for history in self._histories] or [trace.snapshot() for trace in traces]
        self._histories = []
        self._begin_histories(now, since)

    # --- OTLP ---------------------------------------------------------------------------------------------------------

    def _send(self, now: float) -> None:
        settings = self._config.otlp
        if self._exporter is not None:
            self._exporter.change(settings, now)
        elif settings is not None:
            self._exporter = Exporter(self._session.traces, self._own, settings, now, say)
            self._first.subscribe(self._exporter)
            for trace, listener in zip(self._session.traces, self._exporter.listeners()):
                trace.subscribe(listener)

    # --- Prometheus -----------------------------------------------------------------------------------------------

    def _be_scraped(self, listening: socket | None) -> None:
        wanted = self._config.prometheus
        if wanted is None:
            self._service.close()
            return
        self._service.scraped.show(wanted["stages"], wanted["owners"], wanted["top"])
        if listening is not None:
            self._service.open(listening)

    def close(self) -> None:
        self._runs.close()
        self.actions.close()
        self._children.close()
        if self._exporter is not None:
            self._exporter.close()
        for history in self._histories:
            history.close()
        self._service.close()
        if self._control is not None:
            self._control.close()
        self._pressure.close()
