# SPDX-License-Identifier: Apache-2.0
"""What the verdict of `wptrace io` looks for beyond what holds of any flow (docs/verdict.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from wptrace.analysis import neighbours, verdict
from wptrace.analysis.neighbours import HAD, NS, WAITED, WHOLE
from wptrace.analysis.verdict import Case, Rule, Rules
from wptrace.flows.io.kinds import HIT, OPERATION, UNDER_WAY
from wptrace.flows.io.owners import OWNED_REQUEST
from wptrace.model.kind import NOBODY, OTHERS, TOTAL
from wptrace.model.report import Finding, Report

BEHIND_SHARE = 0.1
"""Waits of this length for commits that others filled are reported."""

_ADVICE = {
    **verdict.TIMED.advice,
    "idle": "whether the filters let through what you look for, and whether it does I/O at all",
    "neighbour": "the limits of the other one: io.max, io.weight or io.cost of its cgroup; its queue depth, and when "
    "it runs",
    "cached": "the program itself: no device was waited for; to see one, read what is not in memory, or use direct I/O",
}

NEIGHBOUR_SHARE, NEIGHBOUR_HAD = 0.1, 0.25
"""Reported: an owner whose requests wait this share of their time, while another has this share of the device."""

# Those of the block layer are part of somebody's request.
_FLUSH = "flush"
# So many children are named.
_NAMED = 3
_FS_WITH_JOURNAL = (
    "the commits of the file system's journal, which are part of fs on this kernel: who syncs, and how much is changed"
    " meanwhile; then locks of the file and block allocation"
)


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


def owner(case: Case) -> Finding | None:
    """With --by: who had most of the device's time."""
    # What a filter leaves out had it as well, where somebody looks.
    times: Counter[str] = Counter()
    for group, counts in case.report.counters.items():
        if group.kind is HAD and group.label("op") != _FLUSH:
            times[str(group.label("owner"))] += counts[NS]
    for group, stages in case.cells.items() if not times else ():
        if UNDER_WAY in stages and group.label("op") != _FLUSH:
            label = group.kind.labels[-1]
            times[label.shown(group.values[-1])] += stages[UNDER_WAY].sum
    named = {who: time for who, time in times.items() if who not in (NOBODY, OTHERS)}
    who = max(named, key=named.__getitem__, default="")
    if not who or not named[who]:
        return None
    return Finding("owner", {"share": named[who] / sum(times.values()), "owners": len(times)}, who=who)


def followed(case: Case) -> Finding | None:
    """The same with a filter: who had most of the time of what it lets through, where nobody looks at the rest."""
    found = owner(case)
    if found is None or any(group.kind is HAD for group in case.report.counters):
        return found
    # That one is alone among those whom a filter asks for says nothing.
    return found._replace(figures={**found.figures, "filtered": 1}) if found.figures["owners"] > 1 else None


def neighbour(case: Case) -> Finding | None:
    """With --neighbours: whose waits took most of the time of its requests, and who had the device meanwhile."""
    times = _times_by_owner(case.report)
    worst: tuple[int, Finding] | None = None
    every = neighbours.of(case.report.counters)
    named = {(one.dev, one.owner): one.named for one in every}
    for one in every:
        others = {holder: ns for holder, ns in one.met.items() if holder not in (one.owner, NOBODY, OTHERS)}
        holder = max(others, key=others.__getitem__, default=None)
        whole = times[one.dev, one.owner]
        if holder is None or one.owner in (NOBODY, OTHERS) or not whole:
            continue
        share, had = one.waited_ns / whole, others[holder] / one.met_ns
        if share < NEIGHBOUR_SHARE or had < NEIGHBOUR_HAD:
            continue
        who = named.get((one.dev, holder), neighbours.described(holder, "", 0))
        behind = round(one.waited_ns * had)
        figures = {"share": min(share, 1.0), "had": had, "waited_ns": one.waited_ns, "waits": one.waits}
        if worst is None or behind > worst[0]:
            worst = behind, Finding("neighbour", figures, WAITED.group(one.dev, one.owner), who=who)
    return None if worst is None else worst[1]


def _times_by_owner(report: Report) -> Counter[tuple[object, str]]:
    """Of requests, by device and owner."""
    found: Counter[tuple[object, str]] = Counter()
    for group, counts in report.counters.items():
        if group.kind is HAD and counts.get(WHOLE):
            found[group.label("dev"), group.label("owner")] += counts[WHOLE]
    if found:
        return found
    for row in report.rows:
        if row.group.kind.name == OWNED_REQUEST and row.metric == TOTAL:
            label = row.group.kind.labels[-1]
            found[row.group.values[0], label.shown(row.group.values[-1])] += row.distribution.sum
    return found


BLOCK = verdict.TIMED._replace(advice=_ADVICE)
"""Of requests alone."""


def path(waits: Mapping[str, int], journal: bool = True, children: Sequence[int] = (), filtered: bool = False) -> Rules:
    """Of operations: with how long those that were shown waited for commits of others, by who had filled them.

    Without `journal` nobody sees the waits for one, and they are part of `fs`. The `children` are those of a process
    that was asked for. Where it is `filtered`, what is counted is not all that the devices did.
    """
    advice = dict(_ADVICE)
    if not journal:
        advice["fs"] = _FS_WITH_JOURNAL
    if children:
        named = ", ".join(map(str, children[:_NAMED]))
        more = f" and {len(children) - _NAMED:,} more" if len(children) > _NAMED else ""
        started = f"processes that the one of --pid started (pid {named}{more})"
        advice["idle"] = f"{started}: --children has them as well, --cgroup all of a service"
    who = followed if filtered else owner
    return Rules(
        (verdict.idle, cached, verdict.unmeasured, verdict.largest),
        (verdict.grew, verdict.tail, verdict.inside, behind_whom(waits), who, neighbour, verdict.lost),
        advice,
    )
