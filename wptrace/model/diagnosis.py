# SPDX-License-Identifier: Apache-2.0
"""Findings of `wptrace doctor`: plain data between the code that looks and the code that shows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

OK, DEGRADED, MISSING = "ok", "degraded", "missing"


class Check(NamedTuple):
    name: str
    state: str
    detail: str
    advice: str = ""
    """Advice for the administrator."""


class Attempt(NamedTuple):
    """A program that could observe a hook; `reason` says why it does not work here."""

    program: str
    section: str
    works: bool | None
    """None: not tried, as there is a better one that works."""
    reason: str


class HookFinding(NamedTuple):
    hook: str
    state: str
    arguments: tuple[str, ...] | None
    """The arguments of its tracepoint, if BTF has it."""
    ways: list[Attempt]


class StageFinding(NamedTuple):
    stage: str
    state: str
    how: str
    lacks: list[str]
    """Missing from the result."""


class FlowFinding(NamedTuple):
    flow: str
    level: str
    works: bool
    reason: str
    """Why it cannot."""
    stages: list[StageFinding]
    hooks: list[HookFinding]
    fields: list[Check]
    checks: list[Check]


class Seen(NamedTuple):
    """A point of a flow by definition, and how often it was passed while watching."""

    flow: str
    point: str
    section: str
    times: int | None
    """None: nothing could be attached there."""


class Diagnosis(NamedTuple):
    kernel: str
    machine: str
    permitted: bool
    """Whether the caller may load programs; otherwise nothing could be tried."""
    system: list[Check]
    features: list[Check]
    flows: list[FlowFinding]
    definitions: list[Check]
    """The flows by definition that come along."""
    seen: Sequence[Seen] = ()
    """The observations of flows, in the order of their points, if the user wanted to watch them."""
    watched_s: float = 0.0

    def works(self, flow: str) -> bool:
        return any(found.works for found in self.flows if found.flow == flow)
