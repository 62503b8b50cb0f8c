# SPDX-License-Identifier: Apache-2.0
"""The clock of a replay on a live screen: recorded time, faster or slower, which stands still while the screen does."""

from __future__ import annotations

import time
from typing import Callable

from wptrace.bpf.ring import Reader
from wptrace.engine.signals import Stop
from wptrace.model.report import Controls

# The longest time between two checks for keys.
_LOOK_S = 0.5
# A longer gap means that the process was stopped or the machine suspended: that time is skipped.
_LONGEST_S = 2.0


class ReplayPace:
    def __init__(self, speed: float, controls: Controls | None, paused: Callable[[], bool], stop: Stop) -> None:
        """Seconds of recorded time in a second; who may ask for something meanwhile."""
        self._speed = speed
        self._controls, self._paused, self._stop = controls, paused, stop
        # Without a ring it waits for signals and keys alone.
        self._reader = Reader(stop.fd)
        self._now_ns = 0.0
        self._last = time.monotonic()
        self.over = False
        """Whether the user wants to end."""
        if controls is not None:
            stop.ending = lambda number: controls.leave()

    def begin(self, ts_ns: int) -> None:
        """Start at this recorded time."""
        self._now_ns, self._last = float(ts_ns), time.monotonic()

    def until(self, ts_ns: int) -> bool:
        """Wait for a recorded time; return False if the user wants to end."""
        while not self._is_over():
            self._advance()
            left_s = (ts_ns - self._now_ns) / 1e9 / self._speed
            paused = self._paused()
            if left_s <= 0 and not paused:
                return True
            self._answer(_LOOK_S if paused else min(left_s, _LOOK_S))
        return False

    def _is_over(self) -> bool:
        self.over |= self._stop.asked
        return self.over

    def _advance(self) -> None:
        now = time.monotonic()
        if not self._paused():
            self._now_ns += min(now - self._last, _LONGEST_S) * 1e9 * self._speed
        self._last = now

    def _answer(self, seconds: float) -> None:
        """Handle requests of the user meanwhile."""
        controls = self._controls
        if controls is not None:
            self._reader.listen(controls.fd)
        self._reader.wait(seconds)
        if controls is not None and self._reader.heard:
            # The time that passed until now belongs to the screen as it was until now.
            self._advance()
            if not controls.take():
                controls.leave()
                self.over = True
