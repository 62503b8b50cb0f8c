# SPDX-License-Identifier: Apache-2.0
"""`wptrace report`: short for `wptrace replay --to html`."""

from __future__ import annotations

import argparse
from pathlib import Path

from wptrace.cli import options as common
from wptrace.cli import replay

SUMMARY = "write what is in a capture as a page for any browser"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    replay.add_selection(parser)
    show = parser.add_argument_group("what to show")
    show.add_argument("--slow", metavar="DURATION", help="show the events that took at least this long, such as 5ms")
    show.add_argument("-o", "--output", metavar="FILE", help="the page (default: the capture's name with .html)")
    # All other options of a replay have their defaults.
    whole = argparse.ArgumentParser()
    replay.add_arguments(whole)
    others = vars(whole.parse_args([""]))
    parser.set_defaults(**{**others, "to": "html"})


def run(options: argparse.Namespace) -> int:
    from wptrace.outputs.text.words import printable

    if options.output is None:
        options.output = str(_page(common.named(options.capture_file, "report")))
        code = replay.run(options)
        print(printable(options.output))
        return code
    return replay.run(options)


def _page(capture: Path) -> Path:
    """The page beside the capture. A folder may be `.`, and what is behind a dot in its name is no suffix."""
    if not capture.is_dir():
        return capture.with_suffix(".html")
    folder = capture.resolve()
    return folder.parent / f"{folder.name}.html"
