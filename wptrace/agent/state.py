# SPDX-License-Identifier: Apache-2.0
"""The state of the agent in words, for the journal and systemd, and the watchdog."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Callable

from wptrace.agent.notify import Notify
from wptrace.engine.session import QuietConsumer, Trace

_STATUS_S = 60.0
_MOST_MISSING = 4
"""The number of hooks to name; more are only counted."""


def words(
    traces: Sequence[Trace],
    metrics: str = "",
    sent: str = "",
    loaded: Sequence[str] = (),
    waits: Mapping[str, float] = {},
) -> str:
    """Describe the flows, where their metrics are and where they are sent to, what triggers have `loaded`, and which
    files wait for their disk; `degraded` if hooks are missing, with the reason."""
    flows = ", ".join([*map(_name, traces), *loaded])
    missing = [f"{hook} ({why})" for trace in traces for hook, why in trace.flow.missing.items()]
    where = (f"; metrics at {metrics}" if metrics else "") + (f"; sent to {sent}" if sent else "")
    where += "".join(f"; {what} wait for their disk ({seconds:.0f} s)" for what, seconds in waits.items() if seconds)
    if not missing:
        return f"tracing {flows}{where}"
    more = len(missing) - _MOST_MISSING
    named = "; ".join(missing[:_MOST_MISSING]) + (f"; and {more} more" if more > 0 else "")
    return f"degraded: tracing {flows} without {named}{where}"


def _name(trace: Trace) -> str:
    return f"{trace.flow.name} (level {trace.flow.level})" if trace.flow.level else trace.flow.name


class Status(QuietConsumer):
    """A consumer that reports to systemd how many objects each flow has followed, and what was lost."""

    def __init__(self, traces: Sequence[Trace], notify: Notify, now: float, words: Callable[[], str]) -> None:
        self._traces, self._notify, self._words = traces, notify, words
        self.due = now + _STATUS_S

    def turn(self, now: float) -> None:
        self.due = now + _STATUS_S
        self._notify.status("; ".join([self._words(), *map(_counts, self._traces)]))


def _counts(trace: Trace) -> str:
    book = next(iter(trace.snapshot().books.values()))
    noun = trace.flow.kinds[0].noun
    return f"{noun.of(book.finished)}, {book.lost_total:,} lost"


class Watchdog(QuietConsumer):
    """A consumer that pings the watchdog twice as often as required."""

    def __init__(self, notify: Notify, now: float) -> None:
        self._notify, self._step = notify, math.inf if notify.watchdog_s is None else notify.watchdog_s / 2
        self.due = now + self._step

    def turn(self, now: float) -> None:
        self.due = now + self._step
        self._notify.send("WATCHDOG=1")
