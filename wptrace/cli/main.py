# SPDX-License-Identifier: Apache-2.0
"""The command `wptrace`: finds the command's module, and turns every end into an exit code."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from typing import NoReturn, Optional

from wptrace import __version__
from wptrace.errors import UsageError, VerifierError, WptraceError

# One module each; its name is the command's. Only the one that is asked for is imported.
COMMANDS = {
    "io": "follow block I/O through the kernel, stage by stage",
    "doctor": "tell what this kernel lets wptrace see, and what to do about the rest",
}


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence instead of a page of usage."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}", hint=f"{self.prog} --help")


def main(arguments: Optional[Sequence[str]] = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = Parser(prog="wptrace", description="Follow I/O requests through the Linux kernel, stage by stage.")
    parser.add_argument("--version", action="version", version=f"wptrace {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    asked = next((word for word in words if not word.startswith("-")), None)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        if name == asked:
            module = importlib.import_module(f"wptrace.cli.{name}")
            module.add_arguments(command)
            command.set_defaults(run=module.run)
        command.add_argument("-v", "--verbose", action="count", default=0, help="say more; twice: libbpf's debug log")
    options = parser.parse_args(words)
    _log(options.verbose)
    return int(options.run(options))


def _log(verbosity: int) -> None:
    level = {0: logging.ERROR, 1: logging.INFO}.get(verbosity, logging.DEBUG)
    logging.basicConfig(level=level, format="%(name)s: %(message)s", stream=sys.stderr)


def run() -> NoReturn:
    """The entry point."""
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except WptraceError as error:
        code = _complain(error)
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


def _complain(error: WptraceError) -> int:
    print(f"wptrace: {error.message}", file=sys.stderr)
    if isinstance(error, VerifierError) and error.log:
        print(error.log, file=sys.stderr)
    if error.hint:
        print(f"hint: {error.hint}", file=sys.stderr)
    return error.exit_code
