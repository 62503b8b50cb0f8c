# SPDX-License-Identifier: Apache-2.0
"""How often the points of the shipped definitions are hit here, which types alone do not show."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack

from wptrace.bpf import trial
from wptrace.bpf.generated import Generated
from wptrace.bpf.programs import run_statistics
from wptrace.engine.definition import shipped
from wptrace.engine.definition.programs import generated, resolve_here
from wptrace.engine.definition.recipe import Attachment
from wptrace.engine.definition.resolved import Point
from wptrace.errors import LibbpfError, NotPermittedError, UnsupportedError, UsageError
from wptrace.model.diagnosis import Seen


def watch(seconds: float) -> list[Seen]:
    """Attach an empty program at each point and read its run count; flows with the same point share one."""
    with ExitStack() as cleanup:
        cleanup.enter_context(run_statistics())
        shared: dict[tuple[str, str], Generated | None] = {}
        points: list[tuple[str, Point, Generated | None]] = []
        for name in shipped.names():
            try:
                found = resolve_here(shipped.find(name)).points
            except (UsageError, UnsupportedError):
                # The list shows what the kernel lacks along with the others.
                continue
            points += [(name, point, _attached(point, shared, cleanup)) for point in found if point.attachments]
        before = [0 if program is None else program.statistics().run_count for _, _, program in points]
        time.sleep(seconds)
        return [
            Seen(name, point.spec.name, *_counts(point, program, earlier))
            for (name, point, program), earlier in zip(points, before)
        ]


def _counts(point: Point, program: Generated | None, earlier: int) -> tuple[str, int | None]:
    if program is None:
        return str(point.spec.targets[0]), None
    return program.section, program.statistics().run_count - earlier


def _attached(point: Point, shared: dict[tuple[str, str], Generated | None], cleanup: ExitStack) -> Generated | None:
    """Attach by the first way that the kernel accepts."""
    for one in point.attachments:
        place = one.way, one.target
        if place not in shared:
            shared[place] = _attach(one)
            if (made := shared[place]) is not None:
                cleanup.callback(made.close)
        if shared[place] is not None:
            return shared[place]
    return None


def _attach(attachment: Attachment) -> Generated | None:
    try:
        program = generated(f"seen_{os.path.basename(attachment.target)}", attachment, trial.NOTHING)  # noqa: PTH119
    except (LibbpfError, NotPermittedError, UnsupportedError, UsageError):
        return None
    try:
        program.attach()
    except (LibbpfError, NotPermittedError, UnsupportedError):
        program.close()
        return None
    return program
