# SPDX-License-Identifier: Apache-2.0
"""Changes of a configuration: those that a running trace can apply, and those that need a restart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from wptrace.agent import condition
from wptrace.agent.config import Always, Config
from wptrace.agent.trigger import Trigger
from wptrace.engine.flow import Flow
from wptrace.errors import UsageError

_DEV = "dev"


class Aim(NamedTuple):
    """Devices that a flow follows from now on."""

    flow: Flow
    wanted: Sequence[str]


class Plan(NamedTuple):
    config: Config
    """The configuration that is then in force."""
    aims: Sequence[Aim]
    changed: Sequence[str]
    """Names of the tables that changed."""
    left: Sequence[str]
    """Settings that need a restart and stay as they were."""

    def __str__(self) -> str:
        words = f"read {self.config.file} again: {', '.join(self.changed) or 'nothing'} changed"
        return f"{words}; a restart is needed for {', '.join(self.left)}" if self.left else words


def hooks(flows: Sequence[Flow]) -> dict[str, frozenset[str]]:
    """The hooks that each flow attaches, before the start."""
    return {flow.name: frozenset(hook.id for hook in flow.needed_hooks) for flow in flows}


def plan(running: Config, wanted: Config, attached: Mapping[str, frozenset[str]]) -> Plan:
    """Compare two configurations; nothing is changed yet."""
    aims, left = [], []
    always = []
    new = {one.command: one for one in wanted.always}
    for one in running.always:
        other = new.pop(one.command, None)
        why = [("", "")] if other is None else list(_hindrances(one, other, attached))
        if not why and other is not None and other.settings != one.settings:
            pairs = zip(one.flows, other.flows)
            aims += [Aim(old, made.devices.wanted) for old, made in pairs if made.devices is not None]
            one = one._replace(settings=other.settings)
        left += [f"{name}[always.{one.command}]{more}" for name, more in why]
        always.append(one)
    left += [f"[always.{command}]" for command in new]
    triggers, more = _triggers(running, wanted)
    config = wanted._replace(always=always, triggers=triggers)
    return Plan(config, aims, list(_changed(running, config)), [*left, *more])


def _hindrances(old: Always, new: Always, attached: Mapping[str, frozenset[str]]) -> Iterator[tuple[str, str]]:
    """Settings that cannot change while a trace runs, with the reason where it is not obvious."""
    names = [name for name in {**old.settings, **new.settings} if old.settings.get(name) != new.settings.get(name)]
    if names != [_DEV]:
        yield from ((f"{name} of ", "") for name in names)
        return
    for flow, made in zip(old.flows, new.flows):
        there, come = flow.devices, made.devices
        if (
            there is None
            or come is None
            or there.everything != come.everything
            or there.remotes != come.remotes
            or not {hook.id for hook in made.needed_hooks} <= attached[flow.name]
        ):
            yield f"{_DEV} of ", ""
            return
        if lacking := there.without_room(come.extents):
            yield f"{_DEV} of ", f" (there is no room for {', '.join(lacking)})"
            return


def _triggers(running: Config, wanted: Config) -> tuple[list[Trigger], list[str]]:
    """Triggers that the running flows can check. Another one stays as it was, if it existed."""
    before = {one.name: one for one in running.triggers}
    found, left = [], []
    for one in wanted.triggers:
        try:
            found.append(one._replace(when=condition.parse(one.when.text, running.flows)))
        except UsageError:
            left.append(f"[trigger.{one.name}]")
            found += [before[one.name]] if one.name in before else []
    return found, left


def _changed(old: Config, new: Config) -> Iterator[str]:
    for name in ("agent", "prometheus", "otlp", "history"):
        if getattr(old, name) != getattr(new, name):
            yield f"[{name}]"
    for one, other in zip(old.always, new.always):
        if one.settings != other.settings:
            yield f"{_DEV} of [always.{one.command}]"
    loaded = {one.command: one for one in old.on_trigger}, {one.command: one for one in new.on_trigger}
    for command in {**loaded[0], **loaded[1]}:
        if loaded[0].get(command) != loaded[1].get(command):
            yield f"[on_trigger.{command}]"
    triggers = {one.name: one for one in old.triggers}, {one.name: one for one in new.triggers}
    for name in {**triggers[0], **triggers[1]}:
        if triggers[0].get(name) != triggers[1].get(name):
            yield f"[trigger.{name}]"
