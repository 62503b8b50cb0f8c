# SPDX-License-Identifier: Apache-2.0
"""`wptrace agent`."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from wptrace.errors import UsageError

if TYPE_CHECKING:
    from wptrace.agent.config import Config, Settings
    from wptrace.engine.flow import Flow

SUMMARY = "trace what a configuration file says until stopped, for use with systemd"

# Commands that it traces as, each with a function `flows`.
COMMANDS = ("io", "size", "irqoff", "cpu", "flow")
# Options that select what is traced; the others are about the output and the end of a single run.
_GROUP = "what to trace"
_BESIDE = ("by", "top", "total", "slow", "sample", "limit", "ring_size", "recorder", "definition")
_NOT = ("duration", "help")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-c", "--config", metavar="FILE.toml", help="the configuration file")
    parser.add_argument("--pid", metavar="PID", help="with --trigger: the process of the agent, if several run")
    look = parser.add_argument_group("instead of tracing").add_mutually_exclusive_group()
    look.add_argument("--check", action="store_true", help="list what is wrong with the file, and where")
    look.add_argument(
        "--trigger",
        metavar="NAME",
        help="fire a trigger of the running agent, whatever its condition; hand: only write its recorders",
    )
    look.add_argument("--print-defaults", action="store_true", help="print a file with all settings, to start from")


def run(options: argparse.Namespace) -> int:
    from wptrace.agent import config

    if options.print_defaults:
        print(config.defaults(), end="")
        return 0
    if options.trigger is not None:
        return _trigger(options.trigger, options.pid)
    if options.pid is not None:
        raise UsageError("--pid needs --trigger: it names the agent to ask")
    if options.config is None:
        raise UsageError("name the configuration", hint="wptrace agent --print-defaults > agent.toml")
    if options.check:
        return _check(Path(options.config))
    found = config.read(Path(options.config), make)
    return _run(found)


def _run(found: Config) -> int:
    from wptrace.agent import config
    from wptrace.agent.run import run as stay
    from wptrace.kernel.privileges import require_tracing
    from wptrace.outputs.registry import TEXT, Wanted
    from wptrace.outputs.registry import make as output

    require_tracing()
    several = len(found.flows) > 1
    shown = [output(TEXT, sys.stdout, flow.view, Wanted(title=flow.name if several else "")) for flow in found.flows]
    stay(found, shown, lambda: config.read(Path(found.file), make))
    return 0


def _trigger(name: str, pid: str | None) -> int:
    from wptrace.agent import control
    from wptrace.outputs.text.words import printable
    from wptrace.tools import recorders

    found = recorders.agents()
    if pid is not None:
        named = [one for one in found if str(one) == pid]
        if not named:
            raise UsageError(f"{pid} is not the process of an agent", hint=_named(found))
        found = named
    if len(found) != 1:
        raise UsageError("several agents are running" if found else "no agent is running", hint=_named(found))
    print(printable(control.ask(found[0], name)))
    return 0


def _named(found: Sequence[int]) -> str:
    pids = " or ".join(f"--pid {pid}" for pid in found)
    return f"name one of them: {pids}" if found else "systemctl start wptrace-agent"


def _check(path: Path) -> int:
    from wptrace.agent import config
    from wptrace.agent.run import require_folders
    from wptrace.engine.definition.faults import DefinitionError
    from wptrace.outputs.text.words import printable

    try:
        found = config.read(path, make)
    except DefinitionError as error:
        for fault in error.faults:
            print(printable(f"{error.file}: {fault}"))
        return error.exit_code
    require_folders(found)
    more = f"; on a trigger {', '.join(one.command for one in found.on_trigger)}" if found.on_trigger else ""
    print(printable(f"{path} is valid and traces {', '.join(flow.name for flow in found.flows)}{more}"))
    return 0


def make(command: str, settings: Settings) -> Sequence[Flow]:
    """The flows of a command with these options, which its own code reads and checks."""
    from wptrace.agent.config import arguments
    from wptrace.cli.main import Parser
    from wptrace.engine.definition.faults import did_you_mean

    if command not in COMMANDS:
        raise UsageError(f"there is no command to trace {command!r}{did_you_mean(command, COMMANDS)}")
    module = importlib.import_module(f"wptrace.cli.{command}")
    parser = Parser(prog=f"wptrace {command}")
    module.add_arguments(parser)
    accepted = _accepted(parser)
    for name in settings:
        if name not in accepted:
            raise UsageError(f"{command} in the agent has no option --{name}{did_you_mean(name, accepted)}")
    options = parser.parse_args(arguments(settings))
    # Only io has this option, for the command after `--`.
    options.workload = None
    found: Sequence[Flow] = module.flows(options)
    return found


def _accepted(parser: argparse.ArgumentParser) -> list[str]:
    """The options that the agent accepts, without dashes."""
    of_group = [action for group in parser._action_groups if group.title == _GROUP for action in group._group_actions]
    found = [*of_group, *(action for action in parser._actions if action.dest in _BESIDE)]
    names = {(action.option_strings or [action.dest])[-1].lstrip("-"): action.dest for action in found}
    return [name for name, dest in names.items() if dest not in _NOT]
