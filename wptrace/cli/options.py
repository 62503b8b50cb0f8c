# SPDX-License-Identifier: Apache-2.0
"""Options that several commands share."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from wptrace.engine.units import NS_PER, parse_duration
from wptrace.errors import UsageError, WptraceError

# Nobody means more digits, and int() refuses thousands of them.
_NUMBER = re.compile(r"[0-9]{1,18}")


def add_interval(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "interval", nargs="?", metavar="INTERVAL", help="seconds between reports (or a duration such as 500ms)"
    )
    parser.add_argument("count", nargs="?", metavar="COUNT", help="end after so many reports")


def add_output(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("-j", "--json", action="store_true", help="one JSON object a line")
    parser.add_argument("-o", "--output", metavar="FILE", help="write to FILE instead of the terminal")
    parser.add_argument("--stats", action="store_true", help="tell what the tracing itself costs")


def interval(options: argparse.Namespace) -> tuple[float | None, int | None]:
    """Seconds and count, as given."""
    seconds: float | None = None
    if options.interval is not None:
        seconds = parse_duration(options.interval, default_unit="s") / NS_PER["s"]
        if seconds < 0.01:
            raise UsageError(f"an interval of {options.interval} is too short: 10ms is the least")
    if options.count is None:
        return seconds, None
    if not _NUMBER.fullmatch(options.count) or int(options.count) == 0:
        raise UsageError(f"the count {options.count!r} is not a whole number above 0")
    return seconds, int(options.count)


@contextmanager
def stream(options: argparse.Namespace) -> Iterator[TextIO]:
    """Where results go. A file that cannot be written is found out before anything is attached."""
    if options.output is None:
        yield sys.stdout
        return
    try:
        file = open(options.output, "w", encoding="utf-8", errors="backslashreplace")  # noqa: PTH123, SIM115
    except OSError as error:
        raise WptraceError(f"{options.output} cannot be written: {error.strerror}") from None
    try:
        yield file
    finally:
        # Its reader may have left: whoever wrote last has noticed.
        with suppress(BrokenPipeError):
            file.close()


def size(text: str) -> int:
    """Bytes from 64K, 1M or a plain number; a ring has to be a power of two of at least a page."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    number, unit = (text[:-1], units[text[-1:].upper()]) if text[-1:].upper() in units else (text, 1)
    if not _NUMBER.fullmatch(number):
        raise UsageError(f"{text!r} is not a size such as 64K or 1M")
    count = int(number) * unit
    if count < 4096 or count & (count - 1) or count > 1 << 30:
        raise UsageError(f"a ring of {text} is not possible: it takes a power of two between 4K and 1G")
    return count
