# SPDX-License-Identifier: Apache-2.0
"""Distributions of all, from those of a sample: what was only counted is taken for being like what was timed."""

from __future__ import annotations

from collections.abc import Mapping

from wptrace.model.distribution import Distribution
from wptrace.model.kind import Group

Cells = Mapping[Group, "dict[str, Distribution]"]


class Sampling:
    """Looks at what was timed and what was only counted so far, again and again.

    Each look scales up what came since the one before it. So a time when all were timed and one when few were have the
    weights that they had, if somebody looks when the one becomes the other.
    """

    def __init__(self) -> None:
        self._timed: Cells = {}
        self._whole: Cells = {}
        self._added: dict[Group, int] = {}
        """How many of the untimed are in the whole."""

    def whole(self, timed: Cells, untimed: Mapping[Group, int]) -> dict[Group, dict[str, Distribution]]:
        """Return timed and untimed together. It keeps `timed`, which must not change any more."""
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
            # Where none was timed, those of before say what they are like.
            shape = grown if grown.count else timed
            made = whole[name].copy() if name in whole else Distribution()
            if shape.count:
                made.merge(shape.scaled(grown.count + more))
                made.min, made.max, made.exact = timed.min, timed.max, timed.exact
            found[name] = made
        if any(timed.count for timed in stages.values()):
            self._added[group] = missing
        return found
