# SPDX-License-Identifier: Apache-2.0
"""Findings of `wptrace doctor` as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from wptrace import __version__
from wptrace.model import units
from wptrace.model.diagnosis import DEGRADED, MISSING, OK, Check, Diagnosis, FlowFinding
from wptrace.outputs.text.words import printable

# A way that does not work has its reason instead.
_TRIED = {True: "works", False: "", None: "not tried, as another one works"}
_MARKS = {OK: "ok  ", DEGRADED: "part", MISSING: "NO  "}


def lines(found: Diagnosis, verbose: bool) -> Iterator[str]:
    """Names and reasons come from the kernel, so no line may hold what moves a cursor."""
    yield from map(printable, _lines(found, verbose))


def _lines(found: Diagnosis, verbose: bool) -> Iterator[str]:
    yield f"wptrace {__version__} on Linux {found.kernel} ({found.machine})"
    yield ""
    if not found.permitted:
        yield "nothing can be tried without privileges: run it as root"
    elif not found.flows:
        yield "nothing works without what is missing below"
    for flow in found.flows:
        yield from _verdict(flow, verbose)
    if found.definitions:
        yield from _definitions(found.definitions, verbose)
    if found.watched_s:
        yield from _seen(found, verbose)
    yield ""
    yield "system"
    for check in found.system:
        yield from _check(check)
    features = [check for check in found.features if verbose or check.state != OK]
    if features:
        yield ""
        yield "ways to observe"
        for check in features:
            yield from _check(check)
    for flow in found.flows if verbose else ():
        yield from _flow(flow)


def _check(check: Check) -> Iterator[str]:
    yield f"  {_MARKS[check.state]}  {check.name:<14} {check.detail}"
    if check.advice:
        yield f"        {'':<14} -> {check.advice}"


def _name(flow: FlowFinding) -> str:
    return f"wptrace {flow.flow} --level {flow.level}" if flow.level else f"wptrace {flow.flow}"


def _verdict(flow: FlowFinding, verbose: bool) -> Iterator[str]:
    lacks = sorted({lack for stage in flow.stages for lack in stage.lacks})
    state = MISSING if not flow.works else DEGRADED if lacks else OK
    yield f"  {_MARKS[state]}  {_name(flow)}{f': {flow.reason}' if flow.reason else ''}"
    for lack in lacks:
        yield f"          lacks: {lack}"
    for check in (*flow.fields, *flow.checks):
        if not verbose and check.state != OK:
            yield f"          {check.name}: {check.detail}"
            if check.advice:
                yield f"            -> {check.advice}"


def _definitions(found: Sequence[Check], verbose: bool) -> Iterator[str]:
    yield ""
    yield "wptrace flow"
    whole = [one.name for one in found if one.state == OK]
    if whole and not verbose:
        yield f"  {_MARKS[OK]}  {', '.join(whole)}"
    for one in found:
        if verbose or one.state != OK:
            yield f"  {_MARKS[one.state]}  {one.name:<14} {one.detail}"


def _seen(found: Diagnosis, verbose: bool) -> Iterator[str]:
    """Points with the same name are branches, and added up unless each is wanted."""
    yield ""
    yield f"seen in {units.duration(int(found.watched_s * 1e9))}"
    flows = dict.fromkeys(one.flow for one in found.seen)
    for flow in flows:
        mine = [one for one in found.seen if one.flow == flow]
        if verbose:
            yield f"  {flow}"
            for one in mine:
                yield f"        {one.point:<12} {_count(one.times):>10}  {one.section}"
            continue
        points = dict.fromkeys(one.point for one in mine)
        counts = [
            (point, [one.times for one in mine if one.point == point and one.times is not None]) for point in points
        ]
        shown = [f"{point} {_count(sum(found) if found else None)}" for point, found in counts]
        yield f"        {flow:<14} {', '.join(shown)}"


def _count(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"


def _flow(flow: FlowFinding) -> Iterator[str]:
    yield ""
    yield _name(flow)
    for stage in flow.stages:
        yield f"  {_MARKS[stage.state]}  {stage.stage:<14} {stage.how or 'nothing to observe it with'}"
        for lack in stage.lacks:
            yield f"        {'':<14} lacks: {lack}"
    for found in flow.hooks:
        yield f"  {_MARKS[found.state]}  {found.hook}"
        for way in found.ways:
            yield f"        {way.section}: {_TRIED[way.works] or way.reason}"
        if found.arguments is not None:
            yield f"        arguments: {', '.join(found.arguments)}"
    for check in (*flow.fields, *flow.checks):
        yield from _check(check)


def as_json(found: Diagnosis, first: str) -> dict[str, Any]:
    """`first` is the flow without which there is nothing to be had."""
    return {"kind": "doctor", "version": __version__, f"{first}_works": found.works(first), **_plain(found)}


def _plain(value: Any) -> Any:
    """Named tuples as objects, nested ones too."""
    if hasattr(value, "_asdict"):
        return {name: _plain(item) for name, item in value._asdict().items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
