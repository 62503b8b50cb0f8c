# SPDX-License-Identifier: Apache-2.0
"""A clock that only advances while a session waits."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from wptrace.bpf.ring import Reader
from wptrace.engine import session


class Time:
    """Time that only advances in waits."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.waits: list[float] = []
        self.events: list[tuple[float, Callable[[], object]]] = []
        """Something that happens at a time; it ends a wait as a signal does."""

    def monotonic(self) -> float:
        return self.now

    def wait(self, at_most: float) -> None:
        self.waits.append(at_most)
        assert len(self.waits) < 10_000, "the loop does not end"
        end = self.now + max(at_most, 0.0)
        if self.events and self.events[0][0] <= end:
            when, event = self.events.pop(0)
            self.now = max(self.now, when)
            event()
        else:
            self.now = end

    def at(self, seconds: float, event: Callable[[], object]) -> None:
        self.events.append((1000.0 + seconds, event))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr(time, "monotonic", made.monotonic)
    monkeypatch.setattr(time, "monotonic_ns", lambda: int(made.now * 1e9))
    monkeypatch.setattr(session, "wall_offset_ns", lambda: 0)
    monkeypatch.setattr(Reader, "wait", lambda reader, at_most: made.wait(at_most))
    return made
