# SPDX-License-Identifier: Apache-2.0
"""Plain text that all of the output shares: names, widths, bars, and what a trace is and costs."""

from __future__ import annotations

import shlex
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from wptrace.kernel import blkstatus
from wptrace.kernel.clock import clock_time
from wptrace.model import units
from wptrace.model.kind import NOBODY, Group, Task
from wptrace.model.report import Event, Overhead, Start

_BLOCKS = " ▏▎▍▌▋▊▉█"
# ASCII, as not every stream can write the ellipsis.
_CUT = "..."
# Filters whose names are for programs, in words.
_BOUNDS = {
    "min_bytes": ("at least", units.size),
    "max_bytes": ("at most", units.size),
    "min_ns": ("at least", units.duration),
}
NOTE = "note: "


def printable(text: str) -> str:
    """Names from the kernel are untrusted: whatever could move a cursor is shown as an escape.

    A byte that is no character, which Python keeps as a lone surrogate, is shown as that byte.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    if "\udc80" <= char <= "\udcff":
        return f"\\x{ord(char) & 0xFF:02x}"
    return char.encode("unicode_escape").decode()


def columns(text: str) -> int:
    """Return how many columns a terminal needs for a text."""
    if text.isascii():
        return len(text)
    return sum(_columns(char) for char in text)


def _columns(char: str) -> int:
    # Marks stand above, below or around a letter, as do the vowels of Thai, and the parts that follow the first of a
    # decomposed Korean syllable.
    if unicodedata.category(char) in ("Mn", "Me") or "\u1160" <= char <= "\u11ff":
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def head(text: str, room: int) -> str:
    """The start of it, as far as it fits."""
    if columns(text) <= room:
        return text
    kept, used = [], len(_CUT)
    for char in text:
        used += _columns(char)
        if used > room:
            break
        kept.append(char)
    return "".join(kept) + _CUT[: max(room, 0)]


def ends(text: str, room: int) -> str:
    """The start and the end of a text, as far as they fit."""
    if columns(text) <= room:
        return text
    if room <= len(_CUT):
        return head(text, room)
    first = head(text, (room + len(_CUT)) // 2)
    last = ""
    for char in reversed(text):
        if columns(first + char + last) > room:
            break
        last = char + last
    return first + last


def padded(text: str, width: int) -> str:
    return text + " " * (width - columns(text))


def durations(*found: float) -> str:
    """Times in columns."""
    return "".join(f" {units.duration(ns):>8}" for ns in found)


def short_path(path: str, room: int) -> str:
    """A path with folders left out in the middle; the file's name is always whole, whatever the room."""
    if columns(path) <= room:
        return path
    *folders, name = path.split("/")
    # The root is the empty folder before the first slash.
    start = "/".join(folders[:2]) + "/" if len(folders) > 2 else ""
    for left_out in (f"{start}{_CUT}", _CUT):
        for first in range(len(start.split("/")), len(folders) + 1):
            found = "/".join([left_out, *folders[first:], name])
            if columns(found) <= room:
                return found
    return f"{_CUT}/{name}" if columns(name) + len(_CUT) + 1 <= room else name


def rounded(share: float) -> str:
    """A share without decimals, of which a little is not nothing, and most is not all."""
    if 0 < share <= 0.005:
        return "under 1%"
    return "over 99%" if 0.995 <= share < 1 else f"{share:.0%}"


def bar(share: float, width: int) -> str:
    """A bar of `width` columns at most, to an eighth of a column."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + (_BLOCKS[rest] if rest else "")


def wrapped(parts: Iterable[str], width: int, indent: str, gap: str = "  ") -> Iterator[str]:
    """Wrap parts, as many on a line as fit, each line after the indent."""
    line = ""
    for part in (part.rstrip() for part in parts):
        if line and columns(line + gap + part + gap.rstrip()) > width:
            yield line + gap.rstrip()
            line = ""
        line += f"{gap if line else indent}{part}"
    yield line


def chosen(start: Start) -> str:
    """Describe devices and filters: ` on vda, only op read, by cgroup`."""
    where = ""
    if "dev" in start.filters:
        where = f" on {', '.join(map(printable, start.filters['dev'])) or 'all disks'}"
    # A capture may name others than those that are known here.
    apart = ("dev", "by", "neighbours", "children", "images", "segments", "kicks", "statement_text", "unit", "waits_ns")
    filters = {name: value for name, value in start.filters.items() if name not in apart}
    if start.filters.get("command"):
        filters["pid"] = f"{filters.get('pid')} ({shlex.join(filters.pop('command'))}) and what it starts"
    elif start.filters.get("children"):
        filters["pid"] = f"{filters.get('pid')} and its children"
    only = ", ".join(printable(_filter(name, value)) for name, value in filters.items())
    where += f", only {only}" if only else ""
    where += f", by {start.filters['by']}" if "by" in start.filters else ""
    where += f" {printable(str(start.filters['unit']))}" if "unit" in start.filters else ""
    where += "".join(f", with {name}" for name in ("neighbours", "segments", "kicks") if start.filters.get(name))
    if "waits_ns" in start.filters:
        where += f", with waits of {units.duration(start.filters['waits_ns'])} and more"
    return where


def _filter(name: str, value: Any) -> str:
    if name not in _BOUNDS:
        return f"{name} {value}"
    words, shown = _BOUNDS[name]
    return f"{words} {shown(value)}"


def introduction(start: Start) -> Iterator[str]:
    level = f" (level {start.level})" if start.level else ""
    where = chosen(start)
    if start.file:
        yield f"Replay of {printable(start.file)}: {start.flow}{level}{where}, Linux {printable(start.kernel)}."
    else:
        yield f"Tracing {start.flow}{level}{where}, Linux {printable(start.kernel)}. Ctrl-C ends."
    for note in start.notes:
        yield f"{NOTE}{printable(note)}"


def happened(events: Mapping[str, int]) -> str:
    """Describe events of requests on their way."""
    return ", ".join(f"{name} {count:,}" for name, count in events.items())


def overhead(cost: Overhead, duration_ns: int) -> str:
    """Describe the cost of the tracing itself."""
    parts = [f"reader {cost.reader_cpu_ns / duration_ns:.1%} of a CPU" if duration_ns else ""]
    if cost.bpf_runs:
        parts.append(f"BPF {units.duration(cost.bpf_ns / cost.bpf_runs)} a run, {cost.bpf_runs:,} runs")
    parts.append(f"{units.size(cost.rss_bytes)} resident, {units.size(cost.map_bytes)} of maps")
    if cost.records:
        parts.append(f"{cost.records:,} records")
    return "own cost: " + ", ".join(part for part in parts if part)


def group(of: Group) -> str:
    return printable(of.shown)


def is_nobody(fields: Mapping[str, Any]) -> bool:
    """Whether there is no task: of what the kernel does for itself, such as a flush."""
    return not fields.get("comm") and not fields.get("pid")


def task(fields: Mapping[str, Any]) -> str:
    """Name whose it is: `comm[pid]`, `comm[pid/tid]` of another thread than the first one."""
    if is_nobody(fields):
        return NOBODY
    comm, pid, tid = fields.get("comm") or "", fields.get("pid") or 0, fields.get("tid") or 0
    if not pid:
        return printable(comm)
    return printable(str(Task(comm, pid, tid if tid != pid else 0)))


def stages(event: Event, width: int) -> Iterator[str]:
    """Generate bars of the stages of a record, which share the width."""
    parts = []
    for stage in event.group.kind.stages:
        value = event.stages.get(stage.name, 0)
        share = value / event.total_ns if event.total_ns else 0.0
        parts.append(f"{stage.name} {units.duration(value)} {share:.0%} {bar(share, max(width // 6, 4))}")
    yield from wrapped(parts, width, "    ")


def request(event: Event, width: int, dates: bool) -> Iterator[str]:
    """Generate a line for a request of the block level, with its stages below."""
    fields = event.fields
    line = f"{clock_time(event.end_ns, dates)}  {printable(event.group.label('dev'))} {fields['rwbs']:<4} "
    line += f"sector {fields['sector']} +{fields['bytes'] // 512}  {units.duration(event.total_ns)}"
    if fields["error"]:
        line += f"  failed ({blkstatus.name(fields['error'])})"
    if fields.get("events"):
        line += f"  {happened(fields['events'])}"
    yield line
    yield from stages(event, width)


def event(event: Event, width: int, dates: bool) -> Iterator[str]:
    """Generate lines for an event of any other kind."""
    fields = ", ".join(printable(f"{name} {value}") for name, value in event.fields.items())
    line = f"{clock_time(event.end_ns, dates)}  {group(event.group)}  {units.duration(event.total_ns)}"
    yield f"{line}  {fields}".rstrip()
    if len(event.group.kind.stages) > 1:
        yield from stages(event, width)
