# SPDX-License-Identifier: Apache-2.0
"""Distributions of all objects, extrapolated from a sample: those that were only counted are assumed to be alike."""

from __future__ import annotations

from collections.abc import Mapping

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
