# SPDX-License-Identifier: Apache-2.0
"""CPU time that commands of triggers owe to the budget, and which commands have an option for it."""

from __future__ import annotations

import importlib

import pytest

from wptrace.agent.on_trigger import WITH_BUDGET, Ledger
from wptrace.cli.agent import COMMANDS
from wptrace.cli.main import Parser

SECOND = 1_000_000_000


def test_a_run_is_paid_by_the_time_that_the_cpus_were_busy() -> None:
    busy, at = 0, 0
    ledger = Ledger(0.01, lambda: (busy, at))
    assert ledger.owed_s() == 0
    at = 3600 * SECOND
    # Idle time before the run pays for nothing.
    ledger.add(2.0)
    busy, at = 100 * SECOND, at + 50 * SECOND
    assert ledger.owed_s() == pytest.approx(1.0)
    # On an idle machine the share is that of one CPU.
    at += 60 * SECOND
    assert ledger.owed_s() == pytest.approx(0.4)
    ledger.limit = 1.0
    at += SECOND
    assert ledger.owed_s() == 0


def test_commands_with_a_budget_have_the_option() -> None:
    found = []
    for name in COMMANDS:
        parser = Parser(prog=name)
        importlib.import_module(f"wptrace.cli.{name}").add_arguments(parser)
        if any("--budget" in action.option_strings for action in parser._actions):
            found.append(name)
    assert tuple(found) == WITH_BUDGET
