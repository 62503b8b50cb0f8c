# SPDX-License-Identifier: Apache-2.0
"""A session of a flow that counts by itself, with a clock that only advances in waits."""

from __future__ import annotations

import pytest

from tests.unit.engine.conftest import Time, clock
from tests.unit.engine.test_run import Fake
from tests.unit.engine.test_session import session
from wptrace.engine.session import Session

__all__ = ["clock", "session"]


@pytest.fixture
def fake(session: Session) -> Fake:
    """The flow of the session."""
    (trace,) = session.traces
    assert isinstance(trace.flow, Fake)
    return trace.flow


@pytest.fixture
def said() -> list[str]:
    """Messages to the journal."""
    return []


def stall(clock: Time, at: float, until: float) -> None:
    """Stop the process for a while, such as by SIGSTOP, seconds after the start."""

    def stop() -> None:
        clock.now = 1000.0 + until

    clock.at(at, stop)


def play(session: Session, clock: Time, seconds: float) -> None:
    """Run the session until this many seconds after its start."""
    while clock.now < 1000.0 + seconds:
        session.wait()
        session.turn()
