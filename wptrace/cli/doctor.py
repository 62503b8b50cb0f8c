# SPDX-License-Identifier: Apache-2.0
"""`wptrace doctor`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wptrace.model.diagnosis import Diagnosis

SUMMARY = "show what this kernel lets wptrace see, and what to do about the rest"


# The flow that decides the exit code.
EXIT_FLOW = "io"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-j", "--json", action="store_true", help="the same as one JSON object")
    parser.add_argument(
        "--watch",
        metavar="DURATION",
        help="also count how often each point of the flows by definition is passed in this time, such as 1s",
    )


def _progress(doing: str) -> None:
    """Show on a terminal what is being tried, on a line that vanishes afterwards."""
    import sys

    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{f'trying {doing} ...' if doing else ''}")
        sys.stderr.flush()


def _watch(text: str | None) -> float:
    from wptrace.errors import UsageError
    from wptrace.kernel.privileges import require_admin
    from wptrace.model.units import NS_PER, parse_duration

    if text is None:
        return 0.0
    found = parse_duration(text, default_unit="s") / NS_PER["s"]
    if not 0.01 <= found <= 3600:
        raise UsageError(f"--watch takes from 10ms to an hour, not {text}")
    require_admin("--watch")
    return found


def diagnosed(watch_s: float = 0.0) -> Diagnosis:
    """The findings; a terminal shows what is being tried."""
    from wptrace.tools.doctor import diagnose

    try:
        return diagnose(_progress, watch_s)
    finally:
        _progress("")


def run(options: argparse.Namespace) -> int:
    from wptrace.errors import NotPermittedError, UnsupportedError
    from wptrace.outputs import doctor as show
    from wptrace.outputs.json_line import encoded

    found = diagnosed(_watch(options.watch))
    if options.json:
        print(encoded(show.as_json(found, EXIT_FLOW)))
    else:
        print("\n".join(show.lines(found, options.verbose)))
    if found.works(EXIT_FLOW):
        return 0
    return UnsupportedError.exit_code if found.permitted else NotPermittedError.exit_code
