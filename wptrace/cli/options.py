# SPDX-License-Identifier: Apache-2.0
"""Options that several commands share."""

from __future__ import annotations

import argparse
import os
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from wptrace.errors import UsageError, WptraceError
from wptrace.model.units import NS_PER, parse_bytes, parse_duration

if TYPE_CHECKING:
    from wptrace.engine.filters import Predicates
    from wptrace.model.report import Output

# Nobody means more digits, and int() refuses thousands of them.
_NUMBER = re.compile(r"[0-9]{1,18}")
_PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,18})?)%?")


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


def output(options: argparse.Namespace, stream: TextIO, view: str, **wanted: Any) -> Output:
    """In the format that the user wants; how it looks as text is for the flow to say."""
    from wptrace.outputs.registry import NDJSON, TEXT, Wanted, make

    shown = Wanted(dates=getattr(options, "timestamps", False), statistics=getattr(options, "stats", False), **wanted)
    return make(NDJSON if options.json else TEXT, stream, view, shown)


@contextmanager
def stream(options: argparse.Namespace, other: str | None = None) -> Iterator[TextIO]:
    """Where results go. A file that cannot be written is found out before anything is attached.

    `other` is a file that is read or written besides, which may not be the same one.
    """
    if options.output is None:
        _keep_apart(sys.stdout, "the output", other)
        yield sys.stdout
        return
    named(options.output, "-o")
    if other and not Path(other).exists() and os.path.realpath(options.output) == os.path.realpath(other):
        raise _same(f"-o {options.output}", other)
    try:
        # It is not cut before it is known which file it is.
        fd = os.open(options.output, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        file = open(fd, "w", encoding="utf-8", errors="backslashreplace")  # noqa: PTH123, SIM115
    except OSError as error:
        raise WptraceError(f"{options.output} cannot be written: {error.strerror}") from None
    try:
        _keep_apart(file, f"-o {options.output}", other)
        if stat.S_ISREG(os.fstat(fd).st_mode):
            file.truncate(0)
        yield file
    finally:
        # Its reader may have left: whoever wrote last has noticed.
        with suppress(BrokenPipeError):
            file.close()


def named(path: str, option: str) -> Path:
    """What an option says a file is called."""
    if not path:
        raise UsageError(f"{option} takes the name of a file")
    return Path(path)


def _keep_apart(file: TextIO, name: str, other: str | None) -> None:
    """By device and inode, as a file may have several names. What goes to /dev/null is never mixed."""
    with suppress(OSError, ValueError):  # there is no such file yet, or no descriptor
        if other is not None:
            found = os.fstat(file.fileno())
            if not stat.S_ISCHR(found.st_mode) and os.path.samestat(found, os.stat(other)):  # noqa: PTH116
                raise _same(name, other)


def _same(name: str, other: str) -> UsageError:
    return UsageError(f"{name} and {other} are the same file: one would overwrite the other")


def size(text: str) -> int:
    """Bytes from 64K, 1M or a plain number; a ring has to be a power of two of at least a page."""
    count = parse_bytes(text)
    if count is None:
        raise UsageError(f"{text!r} is not a size such as 64K or 1M")
    if count < 4096 or count & (count - 1) or count > 1 << 30:
        raise UsageError(f"a ring of {text} is not possible: it takes a power of two between 4K and 1G")
    return count


def number(text: str, option: str) -> int:
    if not _NUMBER.fullmatch(text) or int(text) > 0xFFFFFFFF:
        raise UsageError(f"{option} takes a whole number, not {text!r}")
    return int(text)


def sample(text: str) -> int:
    """The N of 1/N."""
    one, slash, count = text.partition("/")
    if one != "1" or not slash or not _NUMBER.fullmatch(count) or not 0 < int(count) < 1 << 32:
        raise UsageError(f"{text!r} is not a share such as 1/100")
    return int(count)


def percent(text: str, option: str) -> float:
    """The share of 5%, 5 or 0.5%."""
    match = _PERCENT.fullmatch(text)
    found = float(match.group(1)) / 100 if match is not None else 0.0
    if not 0 < found <= 1:
        raise UsageError(f"{option} takes a percentage above 0 and up to 100 such as 5% or 0.5%, not {text!r}")
    return found


def add_filters(parser: argparse._ActionsContainer, predicates: Predicates) -> None:
    for one in predicates:
        flags = (f"-{one.short}", f"--{one.name}") if one.short else (f"--{one.name}",)
        parser.add_argument(*flags, metavar=one.metavar, choices=one.choices, help=one.words)


def joined(words: Sequence[str]) -> list[str]:
    """`--size -1M` as one word: argparse takes what begins with a dash for an option."""
    found: list[str] = []
    for word in words:
        if found and found[-1] == "--size" and re.match(r"-[0-9]", word):
            found[-1] += f"={word}"
        else:
            found.append(word)
    return found
