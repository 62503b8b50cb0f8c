# SPDX-License-Identifier: Apache-2.0
"""The difference of two recordings as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TextIO

from wptrace import __version__
from wptrace.analysis import load
from wptrace.analysis.changes import Change, Figure
from wptrace.analysis.condition import Outcome
from wptrace.analysis.diff import Difference, Pair, Side
from wptrace.analysis.measured import label_name
from wptrace.analysis.reasons import parts_of
from wptrace.model.distribution import Distribution
from wptrace.model.kind import TOTAL
from wptrace.outputs.json_line import encoded
from wptrace.outputs.text import changes
from wptrace.outputs.text.diff import Ending


def write(difference: Difference, ending: Ending, stream: TextIO) -> None:
    stream.write(encoded(as_json(difference, ending)) + "\n")
    stream.flush()


def as_json(difference: Difference, ending: Ending) -> dict[str, Any]:
    return {
        "kind": "diff",
        "version": __version__,
        "a": _side(difference.a),
        "b": _side(difference.b),
        "unlike": [one._asdict() for one in difference.unlike],
        "joined": dict(difference.joined),
        "rows": [_row(pair, metric) for pair in difference.pairs for metric in _metrics(pair)],
        "devices": _devices(difference),
        "changes": [_change(one, difference) for one in difference.changes],
        "compared": difference.tested,
        "found": difference.found,
        "conditions": [_outcome(one) for one in ending.outcomes],
        "verdict": None if ending.blame is None else changes.as_verdict(ending.blame, difference),
        "text": [sentence for _, found in changes.findings(difference) for sentence in found],
    }


def _outcome(one: Outcome) -> dict[str, Any]:
    holds = None if one.figure is None else one.holds
    return {"condition": one.condition.text, "holds": holds, "chance": one.chance and one.beyond, "why": one.why}


def _side(side: Side) -> dict[str, Any]:
    return {
        "file": side.start.file,
        "flow": side.start.flow,
        "level": side.start.level,
        "kernel": side.start.kernel,
        "filters": dict(side.start.filters),
        "start_ns": side.began_ns,
        "duration_ns": side.report.duration_ns,
        "intervals": max((len(one.stretches) for one in side.measured.values()), default=0),
        "notes": list(side.notes),
    }


def _metrics(pair: Pair) -> list[str]:
    return [one.name for one in pair.kind.rows if any(side and one.name in side for side in (pair.a, pair.b))]


def _row(pair: Pair, name: str) -> dict[str, Any]:
    unit = pair.kind[name].unit
    values = {label_name(label): value for label, value in zip(pair.kind.labels, pair.values)}
    state = "both" if pair.a and pair.b else "unseen" if pair.unseen else "new" if pair.a is None else "gone"
    a_bytes, b_bytes = pair.bytes if name == TOTAL and pair.kind.sized else (None, None)
    return {
        "kind": pair.kind.name,
        "labels": values,
        "stage": name,
        "state": state,
        "unseen": pair.unseen,
        "a": _distribution(pair.a, name, unit),
        "b": _distribution(pair.b, name, unit),
        "a_bytes": a_bytes,
        "b_bytes": b_bytes,
    }


def _distribution(cells: Mapping[str, Distribution] | None, name: str, unit: str) -> dict[str, int | None] | None:
    found = None if cells is None else cells.get(name)
    if found is None:
        return None
    known = found.spread_known
    return {
        "count": found.count,
        f"sum_{unit}": found.sum,
        f"mean_{unit}": round(found.mean),
        f"p50_{unit}": found.percentile(50) if known else None,
        f"p99_{unit}": found.percentile(99) if known else None,
        f"max_{unit}": found.max if known else None,
    }


def _devices(difference: Difference) -> list[dict[str, Any]]:
    a, b = ({one.dev: one.plain for one in load.of(side.report)} for side in (difference.a, difference.b))
    return [{"dev": name, "a": a.get(name), "b": b.get(name)} for name in sorted({*a, *b})]


def _change(one: Change, difference: Difference) -> dict[str, Any]:
    p99 = None if one.p99 is None else {f"{name[:-3]}_ns": value for name, value in one.p99._asdict().items()}
    parts = parts_of(one) if one.figures["mean"].real else []
    return {
        "kind": one.kind.name,
        "op": one.op,
        "owner": one.owner,
        "a_count": one.a.count,
        "b_count": one.b.count,
        "a_mean_ns": one.split.a_ns,
        "b_mean_ns": one.split.b_ns,
        "figures": [_figure(name, figure) for name, figure in one.figures.items()],
        "parts": [
            {
                "reason": part.reason,
                "stage": one.columns[part.column - 1],
                "ns": part.ns,
                "error_ns": None if (error := one.errors.get((part.reason, part.column))) is None else round(error),
            }
            for part in one.split.parts
        ],
        "total_parts": [{"reason": reason, "ns": ns} for reason, ns in one.split.total],
        "unlike": list(one.split.unlike),
        "p99": p99,
        "told": [{"ns": part.ns, "text": changes.words_of(part, one, difference)} for part in parts],
    }


def _figure(name: str, figure: Figure) -> dict[str, Any]:
    unit = "per_s" if name == "rate" else "ns"
    digits = 3 if name == "rate" else None
    return {
        "figure": name,
        f"a_{unit}": round(figure.a, digits),
        f"b_{unit}": round(figure.b, digits),
        "p": round(figure.odds.p, 6),
        "found": figure.real,
    }
