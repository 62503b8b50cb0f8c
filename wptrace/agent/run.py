# SPDX-License-Identifier: Apache-2.0
"""The agent: one session of all its flows, and consumers of it, until a signal ends it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack

from wptrace.agent.config import Config
from wptrace.agent.endpoint import Endpoint, listen
from wptrace.agent.history import History
from wptrace.agent.notify import Notify
from wptrace.agent.scrape import Scraped
from wptrace.agent.state import Status, Watchdog, words
from wptrace.agent.trigger import Actions, Watch
from wptrace.engine.children import Children
from wptrace.engine.run import Reports, RunOptions, collect_seldom
from wptrace.engine.session import Session
from wptrace.engine.signals import Stop
from wptrace.kernel.files import require_own_folder
from wptrace.model.report import Output

# Who stays on for weeks looks less often than somebody in front of a screen.
_HISTORY_S = 10.0


def _say(words: str) -> None:
    """A line of the journal."""
    print(f"wptrace: {words}", file=sys.stderr, flush=True)


def run(config: Config, outputs: Sequence[Output]) -> None:
    """Each flow has an output, which gets its start, what is in flight when somebody asks, and its summary."""
    with Stop() as stop, ExitStack() as cleanup:
        for output in outputs:
            cleanup.callback(output.close)
        listening = None
        if config.prometheus is not None:
            listening = listen(config.prometheus["listen"])
            cleanup.callback(listening.close)
        if any(flow.flight_recorder is not None for flow in config.flows):
            require_own_folder(config.agent["folder"], "dumps")
        if config.history is not None:
            config.history["dir"].mkdir(mode=0o700, exist_ok=True)
            require_own_folder(config.history["dir"], "histories")
        notify = Notify(os.environ)
        cleanup.callback(notify.close)
        session = Session(config.flows, stop.fd, config.agent["budget"], _HISTORY_S)
        cleanup.callback(session.close)
        session.start()
        collect_seldom()
        now = time.monotonic()
        shown = []
        for trace, output in zip(session.traces, outputs):
            output.start(trace.start)
            shown.append(Reports(trace, output, RunOptions(), now))
            trace.subscribe(shown[-1])
        first = session.traces[0]
        children = Children(_say)
        cleanup.callback(children.close)
        actions = Actions(session.traces, config.agent["folder"], children, _say)
        watches = _watches(session, config, actions, now)
        for consumer in (actions, children):
            first.subscribe(consumer)
        for history in _histories(session, config, now):
            cleanup.callback(history.close)
        stop.expect_dumps()
        endpoint, metrics = None, ""
        if config.prometheus is not None and listening is not None:
            fired = lambda: [one for watch in watches for one in watch.fired]  # noqa: E731
            scraped = Scraped(session.traces, config.prometheus["stages"], fired)
            endpoint = Endpoint(listening, scraped.ask)
            cleanup.callback(endpoint.close)
            metrics = f"http://{endpoint.address}/metrics"
            first.subscribe(endpoint)
            session.reader.listen(endpoint.fd)
            for trace, listener in zip(session.traces, scraped.listeners()):
                trace.subscribe(listener)
        for status in (Status(session.traces, notify, now, metrics), Watchdog(notify, now)):
            first.subscribe(status)
        _say(words(session.traces, metrics))
        notify.send("READY=1", f"STATUS={words(session.traces, metrics)}")
        while not stop.asked:
            session.wait()
            if endpoint is not None and session.reader.heard:
                endpoint.serve()
            if stop.take_list():
                for reports in shown:
                    reports.list_in_flight()
            if stop.take_dump():
                actions.by_hand(time.monotonic())
            session.turn()
        notify.send("STOPPING=1")
        session.end()


def _watches(session: Session, config: Config, actions: Actions, now: float) -> list[Watch]:
    """One for each flow that some triggers are about."""
    found = []
    for number, trace in enumerate(session.traces):
        triggers = [one for one in config.triggers if one.when.flow == number]
        if triggers:
            found.append(Watch(trace, triggers, actions, now, _say))
            trace.subscribe(found[-1])
    return found


def _histories(session: Session, config: Config, now: float) -> list[History]:
    if config.history is None:
        return []
    folder, interval_s = config.history["dir"], config.history["interval"]
    keep = config.history["keep"] // len(session.traces)
    found = []
    for trace in session.traces:
        found.append(History(trace, folder / trace.flow.name, keep, interval_s, now, _say))
        trace.subscribe(found[-1])
    return found
