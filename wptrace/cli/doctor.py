# SPDX-License-Identifier: Apache-2.0
"""`wptrace doctor`."""

from __future__ import annotations

import argparse

SUMMARY = "tell what this kernel lets wptrace see, and what to do about the rest"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-j", "--json", action="store_true", help="the same as one JSON object")


def _told(doing: str) -> None:
    """On a terminal: what is being tried, on a line that is gone afterwards."""
    import sys

    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{f'trying {doing} ...' if doing else ''}")
        sys.stderr.flush()


def run(options: argparse.Namespace) -> int:
    from wptrace.errors import NotPermittedError, UnsupportedError
    from wptrace.outputs import doctor as show
    from wptrace.outputs.json_line import encoded
    from wptrace.tools.doctor import diagnose

    try:
        found = diagnose(_told)
    finally:
        _told("")
    if options.json:
        print(encoded(show.as_json(found)))
    else:
        print("\n".join(show.lines(found, options.verbose)))
    if found.io_works:
        return 0
    return UnsupportedError.exit_code if found.permitted else NotPermittedError.exit_code
