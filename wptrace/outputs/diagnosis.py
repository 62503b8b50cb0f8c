# SPDX-License-Identifier: Apache-2.0
"""What `wptrace doctor` found, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from wptrace import __version__
from wptrace.engine.diagnosis import DEGRADED, MISSING, OK, Check, Diagnosis, FlowFinding
from wptrace.outputs.text import printable

_MARKS = {OK: "ok  ", DEGRADED: "part", MISSING: "NO  "}


def lines(found: Diagnosis, verbose: bool) -> Iterator[str]:
    """Names and reasons come from the kernel, so no line may hold what moves a cursor."""
    yield from map(printable, _lines(found, verbose))


def _lines(found: Diagnosis, verbose: bool) -> Iterator[str]:
    yield f"wptrace {__version__} on Linux {found.kernel} ({found.machine})"
    yield ""
    yield "system"
    for check in found.system:
        yield from _check(check)
    if found.features:
        yield ""
        yield "ways to observe"
        for check in found.features:
            yield from _check(check)
    for flow in found.flows:
        yield from _flow(flow, verbose)
    yield ""
    yield _verdict(found)


def _check(check: Check) -> Iterator[str]:
    yield f"  {_MARKS[check.state]}  {check.name:<14} {check.detail}"
    if check.advice:
        yield f"        {'':<14} -> {check.advice}"


def _flow(flow: FlowFinding, verbose: bool) -> Iterator[str]:
    name = f"{flow.flow} --level {flow.level}" if flow.level else flow.flow
    yield ""
    yield f"wptrace {name}: {'works' if flow.works else 'cannot work here'}"
    for stage in flow.stages:
        yield f"  {_MARKS[stage.state]}  {stage.stage:<14} {stage.how or 'nothing to observe it with'}"
        for lack in stage.lacks:
            yield f"        {'':<14} lacks: {lack}"
    for found in flow.hooks:
        if verbose or found.state != OK:
            yield f"  {_MARKS[found.state]}  {found.hook}"
            for way in found.ways:
                yield f"        {way.section}: {'works' if way.works else way.reason}"
            if found.arguments is not None:
                yield f"        arguments: {', '.join(found.arguments)}"
    for check in flow.fields:
        if verbose or check.state != OK:
            yield from _check(check)
    for check in flow.checks:
        yield from _check(check)


def _verdict(found: Diagnosis) -> str:
    if found.io_works:
        return "verdict: wptrace io works on this machine"
    if not found.permitted:
        return "verdict: more cannot be told without privileges: run it as root"
    return "verdict: wptrace io cannot work on this machine"


def as_json(found: Diagnosis) -> dict[str, Any]:
    return {"kind": "doctor", "version": __version__, "io_works": found.io_works, **_plain(found)}


def _plain(value: Any) -> Any:
    """Named tuples as objects, all the way down."""
    if hasattr(value, "_asdict"):
        return {name: _plain(item) for name, item in value._asdict().items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
