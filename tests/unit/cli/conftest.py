# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from wptrace.cli.main import main
from wptrace.engine.run import RunOptions
from wptrace.kernel import blockdev


class Handed(NamedTuple):
    """The arguments that a command hands to the runner."""

    flow: Any
    output: Any
    options: RunOptions


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Handed]:
    """Return a function that runs a command of one flow, of which nothing is traced."""
    monkeypatch.setattr(blockdev, "disks", list)
    monkeypatch.setattr("wptrace.engine.devices.extents", lambda wanted, hidden: [])
    monkeypatch.setattr("wptrace.kernel.privileges.require_tracing", lambda: None)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    monkeypatch.setattr(sys.stdout, "fileno", lambda: 1, raising=False)
    called: list[Handed] = []

    def runner(pairs: list[tuple[Any, Any]], options: RunOptions) -> None:
        called.extend(Handed(flow, output, options) for flow, output in pairs)

    monkeypatch.setattr("wptrace.engine.run.run", runner)

    def run(*words: str) -> Handed:
        called.clear()
        assert main([*words]) == 0
        (found,) = called
        return found

    return run
