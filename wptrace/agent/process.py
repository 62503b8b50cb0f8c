# SPDX-License-Identifier: Apache-2.0
"""The agent's own process, for its metrics: what it used and did so far."""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Callable

from wptrace.outputs.metrics import Delivery, Fired, Loaded, Process

_TIMED = Path("/proc/sys/kernel/bpf_stats_enabled")


class Own:
    def __init__(
        self,
        triggers: Callable[[], Sequence[Fired]] = tuple,
        deliveries: Callable[[], Sequence[Delivery]] = tuple,
        on_trigger: Callable[[], Sequence[Loaded]] = tuple,
        waits: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self._triggers, self._deliveries, self._on_trigger, self._waits = triggers, deliveries, on_trigger, waits
        self._started_s = time.time()

    @property
    def now(self) -> Process:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return Process(
            time.process_time(),
            usage.ru_maxrss * 1024,
            self._started_s,
            _bpf_is_timed(),
            self._triggers(),
            self._deliveries(),
            self._on_trigger(),
            self._waits(),
        )


def _bpf_is_timed() -> bool:
    try:
        return _TIMED.read_text().strip() == "1"
    except OSError:
        return False
