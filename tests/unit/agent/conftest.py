# SPDX-License-Identifier: Apache-2.0
"""A session of a flow that counts by itself, on a clock that passes while somebody waits."""

from __future__ import annotations

import pytest

from tests.unit.engine.conftest import Time, clock
from tests.unit.engine.test_run import Fake
from wptrace.engine.session import Session

__all__ = ["clock"]


@pytest.fixture
def session(clock: Time) -> Session:
    made = Session([Fake(clock, [])])
    made.start()
    return made


def play(session: Session, clock: Time, seconds: float) -> None:
    """Until so long after the start."""
    while clock.now < 1000.0 + seconds:
        session.wait()
        session.turn()
