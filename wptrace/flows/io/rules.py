# SPDX-License-Identifier: Apache-2.0
"""What the verdict of `wptrace io` looks for beyond what holds of any flow (docs/verdict.md)."""

from __future__ import annotations

from collections.abc import Mapping

from wptrace.analysis import verdict
from wptrace.analysis.verdict import Case, Rule, Rules
from wptrace.flows.io.kinds import HIT, OPERATION
from wptrace.model.kind import TOTAL
from wptrace.model.report import Finding

BEHIND_SHARE = 0.1
"""Commits of others that were waited for so long are told."""

_ADVICE = {
    **verdict.TIMED.advice,
    "idle": "whether the filters let through what you look for, and whether it does I/O at all",
    "cached": "the program itself: no device was waited for; to see one, read what is not in memory, or use direct I/O",
}


def cached(case: Case) -> Finding | None:
    found = case.heaviest(HIT)
    if found is None or case.main is not None:
        return None
    group, stages = found
    total = stages[TOTAL]
    return Finding("cached", {"count": total.count, "mean_ns": total.mean, "p99_ns": total.percentile(99)}, group)


def behind_whom(waits: Mapping[str, int]) -> Rule:
    def behind(case: Case) -> Finding | None:
        """Whose commits others had to wait for: for how long, by who had put most into them."""
        if not waits:
            return None
        whole = sum(stages[TOTAL].sum for stages in case.of_kind(OPERATION).values())
        who = max(waits, key=waits.__getitem__)
        if not whole or waits[who] < BEHIND_SHARE * whole:
            return None
        return Finding("behind", {"share": waits[who] / whole, "sum_ns": waits[who]}, stage="journal", who=who)

    return behind


BLOCK = verdict.TIMED._replace(advice=_ADVICE)
"""Of requests alone."""


def path(waits: Mapping[str, int]) -> Rules:
    """Of operations: with how long those that were told waited for commits of others, by who had filled them."""
    return Rules(
        (verdict.idle, cached, verdict.unmeasured, verdict.largest),
        (verdict.grew, verdict.tail, verdict.inside, behind_whom(waits), verdict.lost),
        _ADVICE,
    )
