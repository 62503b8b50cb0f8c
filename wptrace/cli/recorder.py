# SPDX-License-Identifier: Apache-2.0
"""Options of the flight recorder, for all commands that have one."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from wptrace.errors import UsageError
from wptrace.model.units import duration, parse_bytes, parse_duration

if TYPE_CHECKING:
    from wptrace.engine.dumps import DumpOptions
    from wptrace.engine.recorder_size import RecorderSize


def add(parser: argparse.ArgumentParser, one: str, every: str) -> None:
    """`one` is what may be slow, `every` what is kept."""
    group = parser.add_argument_group("the flight recorder")
    group.add_argument(
        "--recorder",
        metavar="TIME|SIZE",
        help=f"keep every {every} of the last seconds, such as 30s, or in this much memory, such as 64M; wptrace "
        "dump or SIGUSR2 writes them to a file",
    )
    group.add_argument("--recorder-at-end", action="store_true", help="write a dump when the trace ends")
    group.add_argument(
        "--on-slow", metavar="DURATION", help=f"write a dump a second after {one} that took at least this long"
    )
    group.add_argument("--dump-dir", metavar="DIR", help="where dumps are written (default: the current directory)")
    group.add_argument("--dump-page", action="store_true", help="also write a page for any browser with each dump")


def size(options: argparse.Namespace) -> RecorderSize | None:
    """Parse a time such as 30s, or a size such as 64M; None if there is no recorder."""
    if options.recorder is None:
        return None
    from wptrace.engine.recorder_size import LONGEST_NS, RECORDER_LARGEST, RECORDER_SMALLEST, RecorderSize

    text = options.recorder
    count = parse_bytes(text)
    found = RecorderSize.of_time(parse_duration(text)) if count is None else RecorderSize(LONGEST_NS, count)
    if not RECORDER_SMALLEST <= found.bytes <= RECORDER_LARGEST:
        raise UsageError(
            f"--recorder takes a time between {duration(RecorderSize(0, RECORDER_SMALLEST).time_ns)} and"
            f" {duration(RecorderSize(0, RECORDER_LARGEST).time_ns)}, or a size between 1M and 4G, not {text!r}"
        )
    return found


def slow_ns(options: argparse.Namespace) -> int | None:
    return None if options.on_slow is None else parse_duration(options.on_slow)


def dumps(options: argparse.Namespace) -> DumpOptions | None:
    """Options of dumps; None if there is no recorder."""
    wanted = {
        "--recorder-at-end": options.recorder_at_end,
        "--on-slow": options.on_slow,
        "--dump-dir": options.dump_dir,
        "--dump-page": options.dump_page,
    }
    if options.recorder is None:
        for name, value in wanted.items():
            if value:
                raise UsageError(f"{name} needs --recorder", hint="--recorder 30s")
        return None
    from wptrace.engine.dumps import DumpOptions, page

    folder = Path(options.dump_dir or ".")
    if not folder.is_dir():
        raise UsageError(f"--dump-dir names {folder}, which is not a folder")
    made = page if options.dump_page else None
    return DumpOptions(folder, options.recorder_at_end, options.on_slow is not None, page=made)
