# SPDX-License-Identifier: Apache-2.0
"""Effects of a budget for the cost of tracing, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from wptrace.model import units
from wptrace.model.budget import Saving, Spending
from wptrace.model.kind import TOTAL
from wptrace.model.report import UNTIMED, Report
from wptrace.outputs.text.words import printable


def lines(report: Report) -> Iterator[str]:
    found = report.budget
    if found is None:
        return
    programs, reader = found.cost
    cost = f"programs {_percent(programs)}" if programs is not None else "what programs cost is not known"
    line = f"budget: {_percent(found.cost.total)} of {_percent(found.limit)} spent ({cost}, reader {_percent(reader)})"
    exhausted = found.exhausted and found.cost.total > found.limit
    yield line + (", and nothing more to shed" if exhausted else "")
    shed = [_shed(kind, ns, found, report.duration_ns) for kind, ns in found.off_ns.items() if ns]
    if shed:
        yield f"shed to stay within it: {', '.join(shed)}"
    if found.refused:
        yield f"note: it cannot come back here ({printable(found.refused)})"
    untimed = sum(counts.get(UNTIMED, 0) for counts in report.counters.values())
    if untimed:
        counted = sum(found[TOTAL].count for group, found in report.cells.items() if report.counter(group, UNTIMED))
        sampled = (group.kind.noun.plural for group, counts in report.counters.items() if counts.get(UNTIMED))
        nouns = " and ".join(dict.fromkeys(sampled))
        timed = f"{max(counted - untimed, 0):,} of {counted:,} {nouns}"
        yield f"sampled: {timed} were timed and stand for all; counts are exact"


def _shed(kind: Saving, off_ns: int, found: Spending, duration_ns: int) -> str:
    now = any(step.kind == kind for step in found.shed)
    name = (kind.gone or kind.less) + (f" (1/{found.one_in} timed now)" if kind.rates and now else "")
    if off_ns >= duration_ns:
        return name
    return f"{name} for {units.duration(off_ns)}" + ("" if now else ", back now")


def _percent(share: float) -> str:
    return f"{share * 100:.3g}%"


def as_json(found: Spending) -> dict[str, Any]:
    return {
        "limit": found.limit,
        "cost": _rounded(found.cost.total),
        "programs": None if found.cost.programs is None else _rounded(found.cost.programs),
        "reader": _rounded(found.cost.reader),
        "worst": _rounded(found.worst),
        "shed": list(dict.fromkeys(step.kind.name for step in found.shed)),
        "request_sample": found.one_in,
        "refused": found.refused,
        "off_ns": {saving.name: ns for saving, ns in found.off_ns.items()},
        "changes": [
            {
                "ts_ns": change.ts_ns,
                "step": change.step.kind.name,
                "request_sample": change.step.one_in or 1,
                "shed": change.shed,
                "cost": _rounded(change.cost.total),
            }
            for change in found.changes
        ],
    }


def _rounded(share: float) -> float:
    return round(share, 6)
