# SPDX-License-Identifier: Apache-2.0
"""`wptrace diff`."""

from __future__ import annotations

import argparse
import shutil
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from wptrace.cli import options as common
from wptrace.cli.replay import moment
from wptrace.errors import ConditionError, UsageError, WptraceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wptrace.analysis.condition import Outcome
    from wptrace.analysis.diff import Difference, Side
    from wptrace.analysis.measured import Measured
    from wptrace.analysis.reasons import Blame
    from wptrace.capture.reader import Capture, Head

SUMMARY = "compare two captures, or two stretches of one: what changed, and why"

TOP = 20
_WIDTH = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("first", metavar="A", help="before: what a command wrote with --capture")
    parser.add_argument("second", nargs="?", metavar="B", help="after; without it, two stretches of A are compared")
    which = parser.add_argument_group("which part of them")
    which.add_argument(
        "--at", metavar="FROM-TO", help="compare this stretch of B, or of A if there is no B: 14:00-14:05, or 60s-120s"
    )
    which.add_argument("--against", metavar="FROM-TO", help="with this stretch of A")
    show = parser.add_argument_group("what to show")
    show.add_argument(
        "--by", choices=("comm", "cgroup", "file", "dir"), help="owners of single operations (default: comm)"
    )
    show.add_argument(
        "--fail-if",
        action="append",
        default=[],
        metavar="CONDITION",
        help="exit with 5 if this holds, and not by chance: 'read.p99 > +20%%', 'write.device > +200us',"
        " 'read.mean > 5ms'; repeatable",
    )
    show.add_argument(
        "--to",
        choices=("markdown", "html"),
        metavar="FORMAT",
        help="markdown: a summary for GitHub; html: a page, into the FILE of -o",
    )
    show.add_argument(
        "--folded",
        choices=("time", "count"),
        help="of wptrace stacks: a line for each stack with its weight in A and in B, for differential flame graphs",
    )
    show.add_argument("--top", metavar="COUNT", help=f"at most this many rows of owners; 0: all (default: {TOP})")
    common.add_output(show, stats=False)


def run(options: argparse.Namespace) -> int:
    from wptrace.analysis import condition
    from wptrace.outputs import diff as plain
    from wptrace.outputs import markdown, page
    from wptrace.outputs.export.file import ExportFile
    from wptrace.outputs.text import diff as text

    if options.second is None and (options.at is None or options.against is None):
        raise UsageError(
            "name a second capture, or two stretches of the first one",
            "wptrace diff A.wpt B.wpt, or wptrace diff A.wpt --at 14:00-14:05 --against 13:00-13:05",
        )
    forms = [name for name in ("json", "to", "folded") if getattr(options, name)]
    if len(forms) > 1:
        raise UsageError(f"--{forms[0]} and --{forms[1]} are two output formats: choose one")
    conditions = [condition.parse(text) for text in options.fail_if]
    if options.to == "html":
        if options.output is None:
            raise UsageError("--to html needs the name of a file: -o FILE")
        common.require_apart(options.output, options.first, options.second or options.first)
    top = TOP if options.top is None else common.number(options.top, "--top")
    files = (options.first, options.second or options.first)
    file = ExportFile(common.named(options.output, "-o")) if options.to == "html" else None
    a, b, span = _read(options, files)
    _require_alike(a, b)
    if options.folded and a.start.flow != "stacks":
        raise UsageError("--folded needs captures of wptrace stacks")
    found, blamed = compared(a, b, span)
    ending = text.Ending(blamed, [condition.judge(one, found) for one in conditions])
    if file is not None:
        page.write(found, ending, file, options.timestamps, top)
    else:
        with common.stream(options, *files) as stream:
            if options.json:
                plain.write(found, ending, stream)
            elif options.folded:
                stream.writelines(f"{line}\n" for line in text.folded(found, options.folded))
            elif options.to:
                markdown.write(found, ending, stream, options.timestamps)
            else:
                text.write(found, ending, stream, width(), options.timestamps, top)
    _require_none(ending.outcomes)
    for side in (a, b):
        if side.damaged:
            # Everything readable was compared; the exit code says that frames were missing.
            raise WptraceError(f"{side.name} is damaged: some of its frames were left out")
    return 0


def _read(options: argparse.Namespace, files: Sequence[str]) -> tuple[Side, Side, Mapping[str, Measured]]:
    from wptrace.capture.reader import Capture

    with ExitStack() as cleanup:
        captures = [cleanup.enter_context(closing(Capture(Path(file)))) for file in dict.fromkeys(files)]
        return _sides(options, captures[0], captures[-1])


def compared(a: Side, b: Side, span: Mapping[str, Measured] | None = None) -> tuple[Difference, Blame | None]:
    from wptrace.analysis.diff import difference
    from wptrace.analysis.reasons import blame
    from wptrace.flows.io import wait_reasons
    from wptrace.flows.io.kinds import WITHIN

    found = difference(a, b, WITHIN)._replace(span=span or {})
    return found, blame(found, {name: reason.advice for name, reason in wait_reasons.BY_NAME.items()})


def width() -> int:
    return shutil.get_terminal_size((_WIDTH, 24)).columns


class Against:
    """Compares a running trace with a capture, at its end."""

    def __init__(self, file: str) -> None:
        """Read the file now, so that an error in it is found before tracing starts."""
        from wptrace.capture.reader import Capture
        from wptrace.tools.diff import Following, Wanted, read

        with closing(Capture(Path(file))) as capture:
            # The single operations of the trace are not kept.
            self._before = read(capture, Wanted(file, singles=False))
        self.output = Following()

    def require(self, flow: str) -> None:
        if self._before.start.flow != flow:
            raise UsageError(f"--against names a capture of wptrace {self._before.start.flow}, and this is {flow}")

    def write(self, options: argparse.Namespace, stream: TextIO) -> None:
        from wptrace.outputs import diff as plain
        from wptrace.outputs.text import diff as text

        if self.output.side is None:
            return
        found, blamed = compared(self._before, self.output.side)
        ending = text.Ending(blamed)
        if options.json:
            plain.write(found, ending, stream)
        else:
            stream.write("\n")
            text.write(found, ending, stream, width(), options.timestamps, TOP)


def _require_none(outcomes: Sequence[Outcome]) -> None:
    """End the command with a code of its own if a condition holds; one that cannot be answered is no success."""
    from wptrace.outputs.text.changes import outcome

    for one in outcomes:
        if one.holds:
            raise ConditionError(f"--{outcome(one)}")
    for one in outcomes:
        if one.figure is None:
            raise WptraceError(f"--{outcome(one)}")


def _sides(options: argparse.Namespace, first: Capture, second: Capture) -> tuple[Side, Side, Mapping[str, Measured]]:
    """Both, and where they are of one capture all from the begin of the first to the end of the last."""
    from wptrace.tools.diff import Wanted, read

    wanted = []
    for capture, given, option in ((first, options.against, "--against"), (second, options.at, "--at")):
        _require_by(options.by, capture.head)
        since_ns, until_ns = (None, None) if given is None else _stretch(given, capture.head, option)
        name = str(capture.head.start.file) + (f" {given}" if given else "")
        wanted.append(Wanted(name, since_ns, until_ns, options.by or ""))
    a, b = read(first, wanted[0]), read(second, wanted[1])
    if options.second is not None or a.began_ns > b.began_ns:
        return a, b, {}
    return a, b, read(first, wanted[0]._replace(until_ns=wanted[1].until_ns)).measured


def _require_by(by: str | None, head: Head) -> None:
    """Refuse owners that neither single operations nor rows have."""
    from wptrace.tools.diff import has_singles

    has = None if head.of_events else head.start.filters.get("by")
    if by not in (None, has) and not has_singles(head):
        rows = "has no owners" if has is None else f"has rows by {has}"
        raise UsageError(f"--by {by} cannot be answered: {head.start.file} {rows}", "capture with wptrace io --each")


def _stretch(text: str, head: Head, option: str) -> tuple[int, int]:
    """Both ends are times as of --since; there are dashes in dates as well."""
    for at, letter in enumerate(text):
        if letter != "-":
            continue
        try:
            since_ns = moment(text[:at], head, option)
            until_ns = moment(text[at + 1 :], head, option, since_ns)
        except UsageError:
            continue
        if since_ns >= until_ns:
            raise UsageError(f"{option} {text} ends before it begins")
        return since_ns, until_ns
    raise UsageError(f"{option} takes a stretch such as 14:00-14:05 or 60s-120s, not {text!r}")


def _require_alike(a: Side, b: Side) -> None:
    if a.start.flow != b.start.flow:
        raise UsageError(
            f"{a.name} is of wptrace {a.start.flow}, {b.name} of wptrace {b.start.flow}: they follow different things"
        )
