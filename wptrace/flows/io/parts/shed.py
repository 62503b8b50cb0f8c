# SPDX-License-Identifier: Apache-2.0
"""The steps by which the path flow sheds load, and how it restores them (bpf_src/block/path/state.h)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Callable

from wptrace.engine.flow import Counted
from wptrace.engine.resolver import Loaded
from wptrace.flows.io.calls import SlowPath
from wptrace.flows.io.hooks import HOOKS, OPERATION, OPERATIONS, TICK_NS
from wptrace.flows.io.kinds import CONTROLLERS, INTERFERENCES
from wptrace.flows.io.operations import BY_CALL, CALLS
from wptrace.flows.io.options import FS, INTERFERENCE, SAMPLE, SAVINGS, Options
from wptrace.flows.io.parts.part import Part
from wptrace.flows.io.state import give_time, give_up, operations
from wptrace.model.budget import EACH, KEPT_ONE_IN, Step, ladder, rate_before

# Programs that run while a link is detached end within this time.
_GRACE_S = 0.01

_OF_INTERFERENCE = tuple(hook.id for hook in HOOKS if set(hook.serves) <= {*INTERFERENCES, *CONTROLLERS})


class PathShedder:
    """Sheds load."""

    savings = SAVINGS

    def __init__(
        self,
        loaded: Loaded,
        options: Options,
        parts: Sequence[Part],
        operations: bool,
        read_cells: Callable[[], object],
        slow_path_ns: float,
    ) -> None:
        """`read_cells` has the flow read its cells, so that objects timed so far are not scaled like later ones.
        `slow_path_ns` is what a system call costs besides the programs, if operations are found by these."""
        self._loaded, self._parts, self._read_cells = loaded, parts, read_cells
        by_call = BY_CALL.starts if loaded.way(OPERATION).name == CALLS else ()
        self._slow_path = [SlowPath(loaded.obj.progs[enter], slow_path_ns) for enter in by_call]
        self._off: set[str] = set()
        self.given_up = 0
        self.given_up_requests = 0
        """Requests of operations that were in flight when their hooks were detached."""
        kinds = [INTERFERENCE] if options.interference else []
        if options.slow_ns == 0 or 0 < options.sample < KEPT_ONE_IN or options.records_later:
            kinds.append(EACH)
        # Only operations know their file: without them, a filter by file would match nothing.
        kinds += [] if loaded.obj.bss.filter_file else [*([FS] if operations else []), SAMPLE]
        self.steps = ladder(kinds)

    def programs(self) -> list[Counted]:
        return [*self._loaded.programs, *self._slow_path]

    def shed(self, step: Step) -> None:
        {
            INTERFERENCE: self._shed_interference,
            EACH: lambda step: self._save(KEPT_ONE_IN),
            FS: self._shed_operations,
            SAMPLE: self._shed_times,
        }[step.kind](step)

    def restore(self, step: Step) -> None:
        {
            INTERFERENCE: self._add_interference,
            EACH: lambda step: self._save(0),
            FS: self._add_operations,
            SAMPLE: self._add_times,
        }[step.kind](step)

    # --- Interference -------------------------------------------------------------------------------------------------

    def _shed_interference(self, step: Step) -> None:
        bss = self._loaded.obj.bss
        bss.interference_on = False
        bss.tick_ns = 0
        self._take_off(_OF_INTERFERENCE)

    def _add_interference(self, step: Step) -> None:
        obj = self._loaded.obj
        # The state of interrupts from before the hooks were detached is stale.
        obj.maps["cpu_states"].clear(0)
        self._put_back(_OF_INTERFERENCE)
        obj.bss.tick_ns = TICK_NS
        obj.bss.interference_on = True

    # --- Records -----------------------------------------------------------------------------------------------------

    def _save(self, one_in: int) -> None:
        for part in self._parts:
            part.save(one_in)

    # --- Operations ---------------------------------------------------------------------------------------------------

    def _shed_operations(self, step: Step) -> None:
        """Stop new operations, give those in flight a moment to end, and give up the rest."""
        obj = self._loaded.obj
        obj.bss.operating = False
        give_time(lambda: any(traced for _, traced in operations(obj)))
        self._take_off(OPERATIONS)
        time.sleep(_GRACE_S)
        # Later requests of the same tasks would be attributed to the operations in these places.
        for place, traced in list(operations(obj)):
            self.given_up_requests += give_up(obj, place)
            self.given_up += traced

    def _add_operations(self, step: Step) -> None:
        self._put_back(OPERATIONS)
        self._loaded.obj.bss.operating = True

    # --- Times of requests --------------------------------------------------------------------------------------------

    def _shed_times(self, step: Step) -> None:
        self._read_cells()
        self._loaded.obj.bss.request_sample = step.one_in

    def _add_times(self, step: Step) -> None:
        self._read_cells()
        self._loaded.obj.bss.request_sample = rate_before(self.steps, step)

    # --- Hooks --------------------------------------------------------------------------------------------------------

    def _take_off(self, hooks: tuple[str, ...]) -> None:
        self._off.update(hooks)
        self._loaded.detach_all_but(self._loaded.attempts.chosen.keys() - self._off)

    def _put_back(self, hooks: tuple[str, ...]) -> None:
        self._loaded.attach_again(hooks)
        self._off.difference_update(hooks)
