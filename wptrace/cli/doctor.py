# SPDX-License-Identifier: Apache-2.0
"""`wptrace doctor`."""

from __future__ import annotations

import argparse

SUMMARY = "show what this kernel lets wptrace see, and what to do about the rest"


# The flow that decides the exit code.
EXIT_FLOW = "io"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-j", "--json", action="store_true", help="the same as one JSON object")
    parser.add_argument(
        "--watch",
        metavar="DURATION",
        help="also count for this long how often each point of the flows by definition is passed (1s)",
    )


def progress(doing: str) -> None:
    """On a terminal: what is being tried, on a line that is gone afterwards."""
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


def run(options: argparse.Namespace) -> int:
    from wptrace.errors import NotPermittedError, UnsupportedError
    from wptrace.outputs import doctor as show
    from wptrace.outputs.json_line import encoded
    from wptrace.tools.doctor import diagnose

    watch_s = _watch(options.watch)
    try:
        found = diagnose(progress, watch_s)
    finally:
        progress("")
    if options.json:
        print(encoded(show.as_json(found, EXIT_FLOW)))
    else:
        print("\n".join(show.lines(found, options.verbose)))
    if found.works(EXIT_FLOW):
        return 0
    return UnsupportedError.exit_code if found.permitted else NotPermittedError.exit_code
