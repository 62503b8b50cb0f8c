# SPDX-License-Identifier: Apache-2.0
"""Distributions of all objects, extrapolated from a sample: those that were only counted are assumed to be alike; and
how a flow that costs too much times fewer of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Callable

from wptrace.bpf.object import BpfObject
from wptrace.engine.flow import NEVER_NS, Counted
from wptrace.model.budget import EACH, KEPT_ONE_IN, Saving, Step, ladder, rate_before
from wptrace.model.distribution import Distribution
from wptrace.model.kind import Group

Cells = Mapping[Group, "dict[str, Distribution]"]


class Sampling:
    """Scales up the timed objects to all of them, interval by interval.

    Each call scales up what came since the previous one. With a call whenever the sampling rate changes, intervals of
    different rates keep their weights.
    """

    def __init__(self) -> None:
        self._timed: Cells = {}
        self._whole: Cells = {}
        self._added: dict[Group, int] = {}
        """By group: how many of the untimed objects were added."""

    def whole(self, timed: Cells, untimed: Mapping[Group, int]) -> dict[Group, dict[str, Distribution]]:
        """Return timed and untimed ones together. It keeps `timed`, which must not change afterwards."""
        found = {}
        for group, stages in timed.items():
            missing = untimed.get(group, 0)
            found[group] = self._grown(group, stages, missing) if missing else stages
        self._timed, self._whole = dict(timed), dict(found)
        self._added = {group: count for group, count in self._added.items() if group in timed}
        return found

    def _grown(self, group: Group, stages: dict[str, Distribution], missing: int) -> dict[str, Distribution]:
        more = missing - self._added.get(group, 0)
        before, whole = self._timed.get(group, {}), self._whole.get(group, {})
        found = {}
        for name, timed in stages.items():
            grown = timed.delta(before[name]) if name in before else timed
            # If none was timed in this interval, the earlier ones supply the shape.
            shape = grown if grown.count else timed
            made = whole[name].copy() if name in whole else Distribution()
            if shape.count:
                made.merge(shape.scaled(grown.count + more))
                made.min, made.max, made.exact = timed.min, timed.max, timed.exact
            found[name] = made
        if any(timed.count for timed in stages.values()):
            self._added[group] = missing
        return found


class SampleShedder:
    """Sheds load: first objects are no longer shown one by one, then fewer of them are timed."""

    def __init__(
        self,
        obj: BpfObject,
        programs: Sequence[Counted],
        times: Saving,
        each: bool,
        rate: str,
        read_cells: Callable[[], object],
    ) -> None:
        """`rate` is the variable with the rate of timed objects. `read_cells` has the flow read its cells, so that
        objects timed so far are not scaled like later ones."""
        self._obj, self._programs, self._rate, self._read_cells = obj, programs, rate, read_cells
        self.savings: tuple[Saving, ...] = (EACH, times)
        self.steps = ladder(self.savings if each else self.savings[1:])

    def programs(self) -> Sequence[Counted]:
        return self._programs

    def shed(self, step: Step) -> None:
        if step.kind == EACH:
            self._show_each(KEPT_ONE_IN, NEVER_NS)
        else:
            self._time_one_in(step.one_in)

    def restore(self, step: Step) -> None:
        if step.kind == EACH:
            self._show_each(0, 0)
        else:
            self._time_one_in(rate_before(self.steps, step))

    def _show_each(self, sample: int, slow_ns: int) -> None:
        self._obj.bss.sample = sample
        self._obj.data.slow_ns = slow_ns

    def _time_one_in(self, rate: int) -> None:
        self._read_cells()
        setattr(self._obj.bss, self._rate, rate)
