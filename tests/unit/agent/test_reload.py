# SPDX-License-Identifier: Apache-2.0
"""Changes that a running agent applies, and changes that need a restart."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.agent.test_config import make
from wptrace.agent import config, reload
from wptrace.agent.config import Config, Settings
from wptrace.engine.flow import Flow
from wptrace.flows.io.block import REQUEST


class Aimed(Flow):
    """A flow with devices by name, and room for two more."""

    kinds = (REQUEST,)

    def __init__(self, name: str, settings: Settings) -> None:
        self.name = name
        wanted = settings.get("dev", [])
        extents = [SimpleNamespace(name=one) for one in wanted]
        lacking = lambda come: [one.name for one in come][3:]  # noqa: E731
        self._there: Any = SimpleNamespace(
            wanted=tuple(wanted), extents=extents, everything=not wanted, remotes=(), without_room=lacking
        )
        self._hooks = tuple(SimpleNamespace(id=one) for one in ("end", *settings.get("hooks", ())))

    @property
    def devices(self) -> Any:
        return self._there

    @property
    def needed_hooks(self) -> Any:
        return self._hooks


def aimed(command: str, settings: Settings) -> Sequence[Flow]:
    return [Aimed(command, settings)]


def read(text: str, how: config.Make = make) -> Config:
    return config.parse(text, "agent.toml", how)


def plan(before: str, after: str, how: config.Make = make) -> reload.Plan:
    running = read(before, how)
    return reload.plan(running, read(after, how), reload.hooks(running.flows))


def test_the_same_file_changes_nothing() -> None:
    found = plan(config.defaults(), config.defaults())
    assert str(found) == "read agent.toml again: nothing changed"
    assert found.aims == []


SLOW = '[trigger.slow]\nwhen = "io.read.total.p99 > 50ms"\n'


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("", "[agent]\nbudget = '2%'", "[agent] changed"),
        ("", "[prometheus]\n", "[prometheus] changed"),
        ("[otlp]\n", "[otlp]\nendpoint = 'http://other:4318'", "[otlp] changed"),
        ("[otlp]\n", "", "[otlp] changed"),
        ("[history]\nkeep = '2G'", "[history]\n", "[history] changed"),
        (SLOW, SLOW.replace("50", "60"), "[trigger.slow] changed"),
        (SLOW, "", "[trigger.slow] changed"),
        ("", SLOW, "[trigger.slow] changed"),
        ("[always.io]\nlevel='path'", "[always.io]\nlevel='block'", "restart is needed for level of [always.io]"),
        ("[always.io]\n", "[always.size]\n", "restart is needed for [always.io], [always.size]"),
        # A flow that cannot change its devices.
        (
            "[always.io]\n",
            "[always.io]\ndev = ['sda']\n",
            "nothing changed; a restart is needed for dev of [always.io]",
        ),
    ],
)
def test_what_changed_is_said_by_the_names_of_the_file(before: str, after: str, said: str) -> None:
    assert str(plan(before, after)).endswith(said)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("dev = ['sda', 'sdb']", "dev of [always.io] changed"),
        ("dev = ['a', 'b', 'c', 'd', 'e']", "dev of [always.io] (there is no room for d, e)"),
        ("dev = []", "a restart is needed for dev of [always.io]"),
        ("", "a restart is needed for dev of [always.io]"),
        ("dev = ['sdb']\nhooks = ['start']", "a restart is needed for dev of [always.io], hooks of [always.io]"),
    ],
)
def test_devices_change_where_the_programs_that_are_there_see_them(settings: str, said: str) -> None:
    found = plan("[always.io]\ndev = ['sda']", f"[always.io]\n{settings}", aimed)
    assert str(found).endswith(said)
    assert [one.wanted for one in found.aims] == ([("sda", "sdb")] if said.endswith("changed") else [])


def test_what_was_left_is_named_again_by_the_next_reload() -> None:
    running, wanted = read("[always.io]\nlevel='path'"), read("[always.io]\nlevel='block'")
    for _ in range(2):
        found = reload.plan(running, wanted, {"io": frozenset()})
        assert found.left == ["level of [always.io]"]
        running = found.config


def test_a_trigger_that_what_is_traced_cannot_tell_is_as_it_was() -> None:
    def level(command: str, settings: Settings) -> Sequence[Flow]:
        (flow,) = make(command, settings)
        flow.kinds = flow.kinds if settings else ()
        return [flow]

    running = read("[always.io]\n", level)
    wanted = read(f"[always.io]\nlevel = 'x'\n{SLOW}", level)
    found = reload.plan(running, wanted, {"io": frozenset()})
    assert found.left == ["level of [always.io]", "[trigger.slow]"]
    assert found.config.triggers == []


def test_what_a_trigger_loads_changes_at_once() -> None:
    found = plan(f"{SLOW}[on_trigger.io]\nfor = '5s'", f"{SLOW}[on_trigger.io]\nfor = '6s'\n[on_trigger.size]\n")
    assert str(found) == "read agent.toml again: [on_trigger.io], [on_trigger.size] changed"
    assert [one.for_s for one in found.config.on_trigger] == [6.0, 60.0]
