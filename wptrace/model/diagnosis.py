# SPDX-License-Identifier: Apache-2.0
"""What `wptrace doctor` finds: plain data between whoever looks and whoever shows it."""

from __future__ import annotations

from typing import NamedTuple

OK, DEGRADED, MISSING = "ok", "degraded", "missing"


class Check(NamedTuple):
    name: str
    state: str
    detail: str
    advice: str = ""
    """What the administrator can do about it."""


class Attempt(NamedTuple):
    """One program that could observe a hook; `reason` says why it does not work here."""

    program: str
    section: str
    works: bool | None
    """None: not tried, as there is a better one that works."""
    reason: str


class HookFinding(NamedTuple):
    hook: str
    state: str
    arguments: tuple[str, ...] | None
    """Of its tracepoint, where BTF tells."""
    ways: list[Attempt]


class StageFinding(NamedTuple):
    stage: str
    state: str
    how: str
    lacks: list[str]
    """What the result misses."""


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


class Diagnosis(NamedTuple):
    kernel: str
    machine: str
    permitted: bool
    """Whether the caller may load programs; otherwise nothing could be tried."""
    system: list[Check]
    features: list[Check]
    flows: list[FlowFinding]

    @property
    def io_works(self) -> bool:
        return any(found.works for found in self.flows if found.flow == "io")
