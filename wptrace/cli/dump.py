# SPDX-License-Identifier: Apache-2.0
"""`wptrace dump`."""

from __future__ import annotations

import argparse

from wptrace.errors import UsageError

SUMMARY = "have a running trace write its flight recorder to a file"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "process", nargs="?", metavar="PID", help="the process of the trace (default: the only one that has a recorder)"
    )


def run(options: argparse.Namespace) -> int:
    from wptrace.outputs.text.words import printable
    from wptrace.tools import recorders

    found = recorders.running()
    if options.process is not None:
        named = {pid: folder for pid, folder in found.items() if str(pid) == options.process}
        if not named:
            raise UsageError(
                f"{options.process} is not the process of a trace with a recorder",
                hint=_hint(found),
            )
        found = named
    if len(found) != 1:
        there = "several traces have a recorder" if found else "no trace with a recorder is running"
        raise UsageError(there, hint=_hint(found))
    pid, folder = next(iter(found.items()))
    recorders.ask(pid)
    print(f"process {pid} writes its recorder to a file in {printable(folder)}")
    return 0


def _hint(found: dict[int, str]) -> str:
    if found:
        return "name one of them: " + ", ".join(f"wptrace dump {pid}" for pid in sorted(found))
    return "start one with wptrace io --recorder 30s"
