# SPDX-License-Identifier: Apache-2.0
"""Options that several commands share."""

from __future__ import annotations

import argparse
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, TextIO

from wptrace.errors import UsageError
from wptrace.kernel import files
from wptrace.model.units import NS_PER, parse_bytes, parse_duration, parse_share

if TYPE_CHECKING:
    from wptrace.engine.filters import Predicates
    from wptrace.engine.flow import Flow
    from wptrace.model.kind import Kind
    from wptrace.model.report import Controls, Output
    from wptrace.outputs.registry import Wanted
    from wptrace.outputs.text.output import TextOutput

_LIVE_S = 1.0
# A report without an interval of the user's has a column of time for each second.
COLUMN_S = 1.0
# The number of lines that a person can read; --each and --sample have no limit by default.
_SLOW_LIMIT = 1000
# More digits are a mistake, and int() refuses thousands of them.
_NUMBER = re.compile(r"[0-9]{1,18}")


def add_interval(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "interval", nargs="?", metavar="INTERVAL", help="seconds between reports (or a duration such as 500ms)"
    )
    parser.add_argument("count", nargs="?", metavar="COUNT", help="end after this many reports")


def add_output(parser: argparse._ActionsContainer, stats: bool = True) -> None:
    parser.add_argument("-T", "--timestamps", action="store_true", help="show the date with every time of day")
    parser.add_argument("-j", "--json", action="store_true", help="print one JSON object per line")
    parser.add_argument("-o", "--output", metavar="FILE", help="write to FILE instead of the terminal")
    if stats:
        parser.add_argument("--stats", action="store_true", help="show what the tracing itself costs")


def add_results(show: argparse._ActionsContainer) -> None:
    """All of the files and forms that results may have."""
    add_capture(show)
    add_exports(show)
    add_output(show)


def add_capture(show: argparse._ActionsContainer) -> None:
    show.add_argument("--capture", metavar="FILE", help="also write the results to FILE, for wptrace replay")


def trace(
    options: argparse.Namespace,
    flow: Flow,
    first: Callable[[TextIO], Output] | None = None,
    plan: Callable[[], Sequence[str]] | None = None,
    stuck_ns: int | None = None,
    screen: bool = False,
    all_rows: bool = False,
    **wanted: Any,
) -> int:
    """Trace a flow alone, or print its `plan`; its output is `first`, or text or JSON with what is wanted.

    With `screen` a terminal has a live one; `all_rows` are shown whatever the wanted `top` is.
    """
    from wptrace.engine.run import RunOptions, run
    from wptrace.kernel.privileges import require_tracing

    seconds, count = interval(options)
    # A mistake in the options is reported first.
    exports(options)
    require_tracing()
    if plan is not None:
        print("\n".join(plan()))
        return 0
    with stream(options, options.capture) as file:
        drawn, seconds = live(options, file, seconds) if screen else (False, paced(options, seconds))
        rows = {"top": 0} if all_rows else {}
        shown = first(file) if first else output(options, file, flow.view, live=drawn, **{**wanted, **rows})
        keys = controls(shown) if screen else None
        shown, seconds = captured(options, flow, shown, seconds, **wanted)
        run([(flow, shown)], RunOptions(seconds, count, options.stats, file.fileno(), stuck_ns, None, keys, drawn))
    return 0


def captured(
    options: argparse.Namespace, flow: Flow, output: Output, seconds: float | None, each: bool = False, **shown: Any
) -> tuple[Output, float | None]:
    """The output and the interval, with a capture besides where one is wanted; `shown` is what `output` was made of."""
    if options.capture is None:
        return output, seconds
    from wptrace.capture.writer import About, CaptureOutput
    from wptrace.outputs.fanout import FanOut

    about = About(
        flow.view,
        flow.verdict_kinds,
        each,
        options.interval is not None,
        {name: value for name, value in shown.items() if name in ("per_device", "exact", "hist", "top")},
    )
    flow.recorder = CaptureOutput(named(options.capture, "--capture"), about)
    # A trace that is killed leaves the figures of all but its last second.
    return FanOut(flow.recorder, output), seconds or _LIVE_S


def add_event_options(show: argparse._ArgumentGroup) -> None:
    """Add the options that select records."""
    single = show.add_mutually_exclusive_group()
    single.add_argument(
        "--slow", metavar="DURATION", help="also show each event that took at least this long, such as 5ms"
    )
    single.add_argument("--each", action="store_true", help="also show every event")
    show.add_argument("--sample", metavar="1/N", help="also show one in N events, however long they took")
    show.add_argument(
        "--limit",
        metavar="COUNT",
        help=f"show at most this many a second, and count the others (default: {_SLOW_LIMIT} with --slow, else 0: all)",
    )
    show.add_argument("--stuck", metavar="DURATION", help="list what has been in flight for at least this long")


def add_lines(show: argparse._ActionsContainer) -> None:
    """Records as lines of columns."""
    lines = show.add_mutually_exclusive_group()
    lines.add_argument(
        "--line",
        action="store_true",
        help="a line for each event (with --slow or --sample: only for those); everything else to stderr",
    )
    lines.add_argument("--csv", action="store_true", help="the same as CSV, with every stage")
    unit = show.add_mutually_exclusive_group()
    unit.add_argument("-m", "--milliseconds", action="store_true", help="with --line: times in ms")
    unit.add_argument("-u", "--microseconds", action="store_true", help="with --line: times in us (default)")


def add_exports(show: argparse._ActionsContainer) -> None:
    """Files of other formats, beside what is shown."""
    from wptrace.outputs.export import FORMATS

    show.add_argument(
        "--report", action=Once, metavar="FILE", help="also write a page for any browser; short for --export html=FILE"
    )
    show.add_argument(
        "--export",
        action="append",
        default=[],
        metavar="FORMAT=FILE",
        help=f"also write a file for other programs; repeatable: {', '.join(FORMATS)}",
    )


def exports(options: argparse.Namespace) -> list[tuple[str, Path]]:
    """Formats and files, each of its own."""
    from wptrace.outputs.export import FORMATS

    wanted = [("html", options.report, "--report")] if getattr(options, "report", None) is not None else []
    for word in getattr(options, "export", ()):
        name, equals, path = word.partition("=")
        if not equals or name not in FORMATS:
            raise UsageError(f"--export takes FORMAT=FILE with one of {', '.join(FORMATS)}, not {word!r}")
        wanted.append((name, path, "--export"))
    found = [(name, named(path, option)) for name, path, option in wanted]
    places = [os.path.realpath(path) for _, path in found]
    for at, place in enumerate(places):
        taken = [*places[:at], *(os.path.realpath(one) for one in _files(options))]
        if place in taken:
            raise UsageError(f"{found[at][1]} is named twice: one would overwrite the other")
    return found


def require_apart(written: str | None, *others: str) -> None:
    """Refuse to write to a file that is read."""
    for other in _each(others):
        with suppress(OSError):  # it is not there yet
            if written is not None and os.path.samefile(written, other):  # noqa: PTH121
                raise _same(written, other)


def _files(options: argparse.Namespace) -> Iterator[str]:
    """Generate further files that are written, or read."""
    names = ("output", "capture", "against", "log", "capture_file", "guest", "host")
    return _each(getattr(options, name, None) for name in names)


def _each(names: Iterable[str | None]) -> Iterator[str]:
    """Generate the files that are named; a folder stands for the captures in it."""
    from wptrace.capture.folder import captures

    for name in filter(None, names):
        found = [name]
        with suppress(OSError):  # it is no folder
            found = [str(one) for one in captures(Path(name))]
        yield from found


def require_one_form(options: argparse.Namespace) -> None:
    form = "--line" if options.line else "--csv"
    if (options.milliseconds or options.microseconds) and not options.line:
        raise UsageError("-m and -u are units of --line: other outputs have their own")
    if options.json and (options.line or options.csv):
        raise UsageError(f"{form} and --json are two output formats: choose one")


def require_captured_alone(options: argparse.Namespace) -> None:
    """The records of events that are captured are not decoded."""
    if options.capture is None:
        return
    events = options.each or options.slow is not None or options.sample is not None
    form = "--line" if options.line else "--csv" if options.csv else "--export" if exports(options) and events else ""
    if form:
        raise UsageError(f"--capture writes the events to a file: use {form} with wptrace replay")


class EventOptions(NamedTuple):
    slow_ns: int | None
    sample: int
    limit: int
    stuck_ns: int | None

    @property
    def every(self) -> bool:
        """Whether no event is left out."""
        return self.slow_ns == 0 and not self.limit


def event_options(options: argparse.Namespace) -> EventOptions:
    limit = number(options.limit, "--limit") if options.limit is not None else None
    every = options.each or ((options.line or options.csv) and options.slow is None and options.sample is None)
    if limit is not None and not (every or options.slow is not None or options.sample is not None):
        raise UsageError("--limit needs --slow, --each or --sample: it says how many are shown a second", "--slow 5ms")
    if limit is None:
        limit = _SLOW_LIMIT if options.slow is not None and options.sample is None else 0
    return EventOptions(
        0 if every else None if options.slow is None else parse_duration(options.slow),
        sample(options.sample) if options.sample is not None else 0,
        limit,
        None if options.stuck is None else parse_duration(options.stuck),
    )


def add_costs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--budget",
        metavar="PERCENT",
        help="do less before tracing costs more than this share of busy CPU time, such as 5%%",
    )
    parser.add_argument(
        "--ring-size", metavar="SIZE", help="size of the ring for records (default: 4M, for --each 16M)"
    )


def ring(options: argparse.Namespace, events: EventOptions) -> int:
    """Return the ring's size: there may be many records if all are shown or captured."""
    if options.ring_size is not None:
        return size(options.ring_size)
    return 16 << 20 if events.every else 4 << 20


def memory(options: argparse.Namespace) -> int | None:
    if options.memory is None:
        return None
    count = parse_bytes(options.memory)
    if count is None:
        raise UsageError(f"--memory takes a size such as 256M, not {options.memory!r}")
    return count


def budget(options: argparse.Namespace) -> float | None:
    """The share of 5%, 5 or 0.5%."""
    if options.budget is None:
        return None
    found = parse_share(options.budget)
    if found is None:
        raise UsageError(
            f"--budget takes a percentage above 0 and up to 100 such as 5% or 0.5%, not {options.budget!r}"
        )
    return found


def interval(options: argparse.Namespace) -> tuple[float | None, int | None]:
    """Seconds and count, as given."""
    seconds: float | None = None
    if options.interval is not None:
        seconds = _seconds(options.interval)
        if seconds < 0.01:
            raise UsageError(f"an interval of {options.interval} is too short: the minimum is 10ms")
    if options.count is None:
        return seconds, None
    if not _NUMBER.fullmatch(options.count) or int(options.count) == 0:
        raise UsageError(f"the count {options.count!r} is not a whole number above 0")
    return seconds, int(options.count)


def _seconds(text: str) -> float:
    try:
        return parse_duration(text, default_unit="s") / NS_PER["s"]
    except UsageError as error:
        # Words of other tools that mean something else here.
        if text in NS_PER:
            raise UsageError(f"{error.message}: write a number and its unit as one word: 5{text}") from None
        if Path(text).name in os.listdir("/sys/class/block"):  # noqa: PTH208 - names alone
            raise UsageError(f"{error.message}: a device is named by --dev {text}") from None
        raise UsageError(
            f"{error.message}: only an interval and a count may stand here; a command goes after --"
        ) from None


def output(options: argparse.Namespace, stream: TextIO, view: str, **wanted: Any) -> Output:
    """Return an output in the wanted format, with the exports; `view` names the flow's text."""
    from wptrace.outputs.registry import CSV, LINES, NDJSON, TEXT, Wanted, make

    line, csv = (getattr(options, name, False) for name in ("line", "csv"))
    others = [getattr(options, name, None) for name in ("capture", "against")]
    if "intervals" not in wanted and (any(others) or exports(options)):
        # Intervals are the file's, or those of a comparison, unless some were given.
        wanted["intervals"] = options.interval is not None
    if getattr(options, "count", None) == "1" and not options.json:
        # The summary is the same once more.
        wanted["intervals"] = False
    wanted["unit"] = "ms" if getattr(options, "milliseconds", False) else "us"
    wanted["verbose"] = bool(getattr(options, "verbose", 0))
    how = Wanted(dates=options.timestamps, statistics=getattr(options, "stats", False), **wanted)
    shown = make(CSV if csv else LINES if line else NDJSON if options.json else TEXT, stream, view, how)
    return exported(options, shown, view, how)


def folded(options: argparse.Namespace, stream: TextIO, view: str, per_device: bool) -> Output:
    """Return an output of folded stacks, of all unless the user limits their number, with the exports."""
    from wptrace.outputs.registry import Wanted
    from wptrace.outputs.text.stacks import FoldedOutput, StacksView

    how = Wanted(per_device=per_device, top=0 if options.top is None else number(options.top, "--top"))
    return exported(options, FoldedOutput(stream, StacksView(how), options.folded), view, how)


def exported(options: argparse.Namespace, shown: Output, view: str, how: Wanted) -> Output:
    """Return the outputs: what is shown, and the files that the user wants besides."""
    files = exports(options)
    if not files:
        return shown
    from wptrace.outputs import export
    from wptrace.outputs.fanout import FanOut

    return FanOut(shown, *(export.make(name, path, view, how._replace(live=False)) for name, path in files))


def as_text(output: Output) -> TextOutput | None:
    """Return the output to the terminal, where it is text."""
    from wptrace.outputs.fanout import FanOut

    shown = output.first if isinstance(output, FanOut) else output
    # A module that is not imported yet has made no output.
    text = sys.modules.get("wptrace.outputs.text.output")
    return shown if text is not None and isinstance(shown, text.TextOutput) else None


def controls(output: Output) -> Controls | None:
    """Keys of a live screen, if there is one."""
    shown = as_text(output)
    return None if shown is None else shown.controls


def paced(options: argparse.Namespace, seconds: float | None, recorded: bool = False) -> float | None:
    """Return the interval of reports: exports are made of columns of time."""
    return COLUMN_S if seconds is None and (recorded or exports(options)) else seconds


def require_stage(name: str | None, kinds: Iterable[Kind]) -> None:
    """Require that one of these kinds has a stage or metric of this name."""
    from wptrace.model.kind import TOTAL, names

    drawn = (*names(kinds), TOTAL)
    if name is not None and name not in drawn:
        raise UsageError(f"there is no stage {name}; there are {', '.join(drawn)}")


def is_live(options: argparse.Namespace, stream: TextIO) -> bool:
    """Whether a screen is drawn."""
    lines = options.json or getattr(options, "line", False) or getattr(options, "csv", False)
    # The command that is run uses the terminal.
    return not lines and stream.isatty() and not getattr(options, "workload", None)


def live(options: argparse.Namespace, stream: TextIO, seconds: float | None) -> tuple[bool, float | None]:
    """Return whether a screen is drawn, and the interval of reports: every second by default."""
    drawn = is_live(options, stream)
    return drawn, _LIVE_S if drawn and seconds is None else paced(options, seconds)


@contextmanager
def stream(options: argparse.Namespace, *others: str | None) -> Iterator[TextIO]:
    """Open the file for results, so that one that cannot be written is found before anything is attached.

    `others` are more files that are read or written; none of them may be the same file.
    """
    if options.output is None:
        for one in _each(others):
            _keep_apart(sys.stdout, "the output", one)
        # Standard output is that of a command that is run.
        yield sys.stderr if getattr(options, "workload", None) else sys.stdout
        return
    named(options.output, "-o")
    for other in others:
        if other and not Path(other).exists() and os.path.realpath(options.output) == os.path.realpath(other):
            raise _same(f"-o {options.output}", other)
    # The file is only cut once it is known which one it is.
    fd = files.open_to_write(Path(options.output), "-o", mode=0o666)
    file = open(fd, "w", encoding="utf-8", errors="backslashreplace")  # noqa: PTH123, SIM115
    try:
        for one in _each(others):
            _keep_apart(file, f"-o {options.output}", one)
        if stat.S_ISREG(os.fstat(fd).st_mode):
            file.truncate(0)
        yield file
    finally:
        # Its reader may have left: the last write has noticed.
        with suppress(BrokenPipeError):
            file.close()


def named(path: str, option: str) -> Path:
    """Return the name that an option gives to a file."""
    if not path:
        raise UsageError(f"{option} needs the name of a file")
    return Path(path)


def _keep_apart(file: TextIO, name: str, other: str) -> None:
    """Compare by device and inode, because a file may have several names. /dev/null may be used repeatedly."""
    with suppress(OSError, ValueError):  # there is no such file yet, or no descriptor
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


def add_devices(parser: argparse._ActionsContainer, more: str = "") -> None:
    """They are no predicate: rows are made for them at the start (docs/decisions/filters.md)."""
    parser.add_argument(
        "-d",
        "--dev",
        action="append",
        default=[],
        metavar="DEVICE",
        help=f"a disk, partition or stacked device: /dev/x, x or MAJ:MIN{more}; repeatable (default: all disks)",
    )


def add_memory(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--memory",
        metavar="SIZE",
        help="the kernel memory that a trace may take: if there are too many disks for it, only the busiest get rows "
        "(default: half of what is free)",
    )


def add_filters(parser: argparse._ActionsContainer, predicates: Predicates) -> None:
    for one in predicates:
        flags = (f"-{one.short}", f"--{one.name}") if one.short else (f"--{one.name}",)
        action = "append" if one.repeatable else Once
        parser.add_argument(*flags, action=action, metavar=one.metavar, choices=one.choices, help=one.words)


class Once(argparse.Action):
    """Filters hold together: a second value of the same one would replace the first without a word."""

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        before = getattr(namespace, self.dest)
        if before not in (None, values):
            raise UsageError(f"--{self.dest} takes one value, not both {before} and {values}")
        setattr(namespace, self.dest, values)


def joined(words: Sequence[str]) -> list[str]:
    """`--size -1M` as one word: argparse takes what begins with a dash for an option, and so a negative number."""
    found: list[str] = []
    for word in words:
        if found and re.fullmatch(r"--[a-z-]+", found[-1]) and re.match(r"-[0-9]", word):
            found[-1] += f"={word}"
        else:
            found.append(word)
    return found
