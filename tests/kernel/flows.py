# SPDX-License-Identifier: Apache-2.0
"""Flows in this process, without a session."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TypeVar

from wptrace.bpf.ring import Reader
from wptrace.engine.definition.flow import DefinedFlow, Options
from wptrace.engine.definition.kernel import RunningKernel
from wptrace.engine.definition.reading import parse
from wptrace.engine.definition.resolution import resolve
from wptrace.engine.flow import Flow

AnyFlow = TypeVar("AnyFlow", bound=Flow)


@contextmanager
def running_flow(flow: AnyFlow) -> Iterator[AnyFlow]:
    try:
        flow.start(Reader())
        yield flow
    finally:
        flow.close()


def defined(text: str, without: Collection[str] = ()) -> DefinedFlow:
    """Return the flow of a definition, observed without the given ways."""
    return DefinedFlow(resolve(parse(text, "made up"), RunningKernel(), without), Options())
