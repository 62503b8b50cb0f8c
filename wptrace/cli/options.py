# SPDX-License-Identifier: Apache-2.0
"""Options that several commands share."""

from __future__ import annotations

import argparse
import sys
from typing import Optional, TextIO

from wptrace.engine.units import NS_PER, parse_duration
from wptrace.errors import UsageError, WptraceError


def add_interval(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "interval", nargs="?", metavar="INTERVAL", help="seconds between reports (or a duration such as 500ms)"
    )
    parser.add_argument("count", nargs="?", metavar="COUNT", help="end after so many reports")


def add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-j", "--json", action="store_true", help="one JSON object a line")
    parser.add_argument("-o", "--output", metavar="FILE", help="write to FILE instead of the terminal")
    parser.add_argument("--stats", action="store_true", help="tell what the tracing itself costs")


def interval(options: argparse.Namespace) -> tuple[Optional[float], Optional[int]]:
    """Seconds and count, as given."""
    seconds: Optional[float] = None
    if options.interval is not None:
        seconds = parse_duration(options.interval, default_unit="s") / NS_PER["s"]
        if seconds < 0.01:
            raise UsageError(f"an interval of {options.interval} is too short: 10ms is the least")
    if options.count is None:
        return seconds, None
    if not options.count.isascii() or not options.count.isdigit() or int(options.count) == 0:
        raise UsageError(f"the count {options.count!r} is not a whole number above 0")
    return seconds, int(options.count)


def stream(options: argparse.Namespace) -> TextIO:
    if options.output is None:
        return sys.stdout
    try:
        return open(options.output, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - closed with the process
    except OSError as error:
        raise WptraceError(f"{options.output} cannot be written: {error.strerror}") from None


def size(text: str) -> int:
    """Bytes from 64K, 1M or a plain number; a ring has to be a power of two of at least a page."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    number, unit = (text[:-1], units[text[-1:].upper()]) if text[-1:].upper() in units else (text, 1)
    if not number.isascii() or not number.isdigit():
        raise UsageError(f"{text!r} is not a size such as 64K or 1M")
    count = int(number) * unit
    if count < 4096 or count & (count - 1) or count > 1 << 30:
        raise UsageError(f"a ring of {text} is not possible: it takes a power of two between 4K and 1G")
    return count
