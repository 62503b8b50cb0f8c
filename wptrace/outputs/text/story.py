# SPDX-License-Identifier: Apache-2.0
"""The story of one slow operation: who waited, for what of which file, where the time went, and who was in the way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from wptrace.kernel import blkstatus
from wptrace.kernel.clock import clock_time
from wptrace.model import segments, units
from wptrace.model.kind import NOBODY, OTHERS, OWNER, TEXTS, UNATTRIBUTED, Noun
from wptrace.model.report import Child, Event
from wptrace.outputs.text import neighbours
from wptrace.outputs.text.words import bar, columns, ends, happened, head, padded, printable, short_path, task, wrapped

_INDENT = "    "
# Stages with less than this share stand together on the last line of the list.
_LARGE = 0.05
_REQUEST = "request"
_NOUNS = {"hit": " hit", _REQUEST: " request"}
# The words for what was in the way: an interrupt has a name, a task has a pid as well.
_IN_THE_WAY = {
    "preempted": "preempted {ns} by {who}{cpu}{times}",
    "hardirq": "hardirq {ns}{cpu}: {who}{times}",
    "softirq": "softirq {ns}{cpu}: {who}{times}",
    "irq_off": "irq_off {ns}{cpu}: {who} kept interrupts off{times}",
    "before_wakeup": "waited {ns} to run{cpu}: {who} ran there{times}",
}
_HOLDERS = {
    "io_max": "io.max of its cgroup",
    "io_cost": "io.cost of its cgroup",
    "io_latency": "io.latency of another cgroup",
    "wbt": "writeback throttling",
    "tag": "nobody: no tag was free",
    "zone": "an earlier write to its zone",
    "unknown": "something that this kernel does not name",
}
_NO_STATEMENT = {
    NOBODY: "",
    OTHERS: "its {} had no place in the table of owners",
    "unread": "its {} could not be read",
}
_CHILDREN = 8
# The number of functions of a stack that say where a task slept, unless all are wanted.
_FUNCTIONS = 4
_POINTS = (("Q", "queued"), ("G", "got"), ("D", "issued"), ("H", "handed"), ("S", "seen"), ("C", "completed"))
_OTHER = "{kind} {ns}{cpu}: {who}{times}"


class Part(NamedTuple):
    stage: str
    ns: int
    share: float


def is_one(event: Event) -> bool:
    """Whether the event has a story; those of the block level have none, because it is unknown which task waited."""
    return "cpus" in event.fields


def full(event: Event, width: int, dates: bool, whole_names: bool, verbose: bool = False) -> Iterator[str]:
    """All of it; with `whole_names` a line may be longer than the terminal, as names are not shortened.

    Stacks of waits are whole where it is `verbose`.
    """
    yield f"{clock_time(event.end_ns, dates)}  {_happened(event)}  {task(event.fields)}".rstrip()
    yield from _statement(event.fields, None if whole_names else width)
    yield from _file(event.fields, None if whole_names else width)
    yield from _device(event, width)
    if "host" in event.fields:
        yield from wrapped(list(_host(event.fields)), width, _INDENT)
    if line := strip(_stretches(event), width - len(_INDENT)):
        yield _INDENT + line
    if note := segments.order(event):
        yield _INDENT + note
    yield from _list(_parts(event), width)
    yield from _children(event)
    if "flush" in event.fields:
        yield _INDENT + ", ".join(_flushes(event.fields["flush"]))
    if "commit" in event.fields:
        yield from wrapped(_commit(event.fields["commit"]), width, _INDENT, "; ")
    for item in event.fields.get("waits", ()):
        yield from wrapped(list(_slept(item, verbose)), width, _INDENT, " <- ")
    for item in event.fields.get("throttled_by", ()):
        yield f"{_INDENT}{_throttled(item, event.fields.get('tag_queue'))}"
    if "neighbours" in event.fields:
        yield from (f"{_INDENT}{line}" for line in neighbours.story(event.fields, event.total_ns))
    for item in event.fields.get("interference", ()):
        yield f"{_INDENT}{_interference(item)}"


def short(event: Event, width: int) -> Iterator[str]:
    """Two lines of at most `width` columns: who and what, and where the time went."""
    fields = event.fields
    # To the millisecond, without the date: what counts here is that it was just now.
    line = f"  {clock_time(event.end_ns, False)[:-3]}  {_happened(event)}  {task(fields)}".rstrip()
    room = max(width - columns(line) - 2, 0)
    yield head(f"{line}  {ends(what(fields, room), room)}".rstrip(), width)
    largest = sorted(_parts(event), key=lambda part: -part.ns)
    parts = [f"{part.stage} {units.duration(part.ns)} {part.share:.0%}" for part in largest if part.share >= _LARGE]
    worst = max(fields.get("interference", ()), key=lambda item: int(item["ns"]), default=None)
    behind = f"; {_interference(worst)}" if worst else ""
    most = fields.get("commit", {}).get("most")
    behind += f"; commit filled by {task(most)}" if most and most["pid"] != fields["pid"] else ""
    yield head(f"    {printable(event.group.label('dev'))}: {', '.join(parts)}{behind}", width)


def strip(parts: list[Part], width: int) -> str:
    """All stages as one line that shares its width among them, each under the first letters of its name."""
    room = max(width - 1, 0)
    # A forged record may have any times.
    shares = [round(min(max(part.share, 0.0), 1.0) * room) for part in parts]
    if not any(shares):
        return ""
    # The error of rounding is least noticed in the largest part.
    while rest := room - sum(shares):
        largest = shares.index(max(shares))
        shares[largest] = max(shares[largest] + rest, 0)
    return "".join(map(_segment, parts, shares)) + "|"


def _segment(part: Part, width: int) -> str:
    """A part of the strip; a single column has a letter instead of a border."""
    return f"|{part.stage}"[:width].ljust(width, "-") if width > 1 else part.stage[:width]


def what(fields: Mapping[str, Any], room: int) -> str:
    """The file and place, or the sector."""
    path = printable(fields.get("path", ""))
    if not path:
        return _sector(fields)
    offset = "" if fields.get("offset") is None else f" at {fields['offset']}"
    return f"{short_path(path, room - len(offset))}{offset}"


def _happened(event: Event) -> str:
    fields = event.fields
    line = f"{event.group.label('op')}{_NOUNS.get(event.group.kind.name, '')} {units.duration(event.total_ns)}"
    result = fields.get("result", 0) if event.group.kind.name != _REQUEST else 0
    if result < 0:
        return f"{line} failed ({blkstatus.name(-result)})"
    return f"{line} failed ({blkstatus.name(fields['error'])})" if fields["error"] else line


def _place(fields: Mapping[str, Any]) -> str:
    """Return the place in the file and the bytes, and how many were done if not all."""
    offset = fields.get("offset")
    if "length" not in fields:
        return f"offset {offset}"
    if offset is None and not fields["length"]:
        return ""  # the whole file
    place = f"+{fields['length']}" if offset is None else f"offset {offset} +{fields['length']}"
    short_of = 0 <= fields.get("result", -1) < fields["length"]
    return f"{place} ({fields['result']} done)" if short_of else place


def _statement(fields: Mapping[str, Any], width: int | None) -> Iterator[str]:
    """Generate the lines about what a program worked on. The name of a program is in the first line already."""
    what = next((name for name in TEXTS if name in fields), "")
    owner = str(fields[OWNER]) if what else ""
    if fields.get(what) is None:
        owner = _NO_STATEMENT.get(owner, owner).format(what)
    if not owner or owner == fields.get("comm"):
        return
    line = printable(owner)
    yield _INDENT + (line if width is None else ends(line, width - len(_INDENT)))


def _file(fields: Mapping[str, Any], width: int | None) -> Iterator[str]:
    # A page that is swapped in belongs to no file.
    if "path" not in fields or not (fields["path"] or fields.get("inode")):
        return
    behind = "  (deleted)" if fields.get("deleted") else ""
    behind += f"  {_place(fields)}"
    path = printable(fields["path"]) or f"inode {fields.get('inode', '?')}"
    if width is not None:
        path = short_path(path, width - len(_INDENT) - len(behind))
    yield f"{_INDENT}{path}{behind}".rstrip()


def _device(event: Event, width: int) -> Iterator[str]:
    fields = event.fields
    parts = [printable(event.group.label("dev"))]
    if "sector" in fields:
        parts = [" ".join(filter(None, (*parts, _sector(fields), fields["rwbs"])))]
    chain = _cpus(fields.get("cpus", {}))
    if chain:
        parts.append(chain)
    if fields.get("dirty_ns"):
        parts.append(f"dirty {units.duration(fields['dirty_ns'])}")
    requests, readahead = fields.get("requests", 1), fields.get("readahead", 0)
    if requests > 1 or readahead:
        ahead = f", {readahead} read ahead" if readahead else ""
        parts.append(f"{requests} request{'' if requests == 1 else 's'}{ahead}")
    if fields.get("events"):
        parts.append(happened(fields["events"]))
    if fields.get("cgroup", "/") not in ("", "/"):
        parts.append(f"cgroup {printable(fields['cgroup'])}")
    yield from wrapped(parts, width, _INDENT)


def _host(fields: Mapping[str, Any]) -> Iterator[str]:
    """Generate the process that served a guest, and how well both clocks are known."""
    host, clocks = fields["host"], fields["clocks"]
    offset = "" if host["offset"] is None else f" offset {host['offset']}"
    yield f"host: {task(host)}"
    yield f"{printable(host['image'])}{offset}"
    yield f"{printable(host['dev'])}{' page cache' if host['cached'] else ''}"
    if host["how"] != "whole":
        yield str(host["how"])
    yield f"clocks known to within {units.duration(clocks['most_ns'] - clocks['least_ns'])}"


def _sector(fields: Mapping[str, Any]) -> str:
    """A flush has none."""
    return f"sector {fields['sector']} +{fields['bytes'] // 512}" if fields.get("bytes") else ""


def _cpus(cpus: Mapping[str, Any]) -> str:
    """Return the CPUs that issued, were interrupted, completed, and ran the waiter."""
    passed = [cpus.get(name) for name in ("issue", "irq", "complete", "wake")]
    while passed and passed[-1] is None:
        passed.pop()
    return f"cpu {' -> '.join('?' if cpu is None else str(cpu) for cpu in passed)}" if passed else ""


def _parts(event: Event) -> list[Part]:
    names = (*(stage.name for stage in event.group.kind.stages), UNATTRIBUTED)
    whole = event.total_ns or 1
    return [Part(name, event.stages[name], event.stages[name] / whole) for name in names if name in event.stages]


def _stretches(event: Event) -> list[Part]:
    """Return the stages of the strip, one behind the other, as often as there were."""
    if not event.segments:
        return _parts(event)
    whole = event.total_ns or 1
    found = ((one.stage, one.to_ns - one.from_ns) for one in segments.segments(event))
    return [Part(stage, ns, ns / whole) for stage, ns in found]


def _children(event: Event) -> Iterator[str]:
    """Its requests, with their points from its start on; one alone says no more than the stages do."""
    if len(event.children) < 2:
        return
    for one in event.children[:_CHILDREN]:
        yield _INDENT + _child(one)
    if len(event.children) > _CHILDREN:
        yield f"{_INDENT}and {len(event.children) - _CHILDREN} requests more"


def _child(one: Child) -> str:
    fields = one.fields
    parts = [fields["maj_min"], _sector(fields), fields["rwbs"]]
    parts += [f"{point} {_since(one.times[name])}" for point, name in _POINTS]
    if fields["readahead"]:
        parts.append("read ahead")
    if fields["error"]:
        parts.append(f"failed ({blkstatus.name(fields['error'])})")
    return " ".join(filter(None, parts))


def _since(ns: int) -> str:
    """Format a time since the start; one before it is negative."""
    return units.duration(ns) if ns >= 0 else f"-{units.duration(-ns)}"


def _list(parts: list[Part], width: int) -> Iterator[str]:
    """The large ones with a bar each, the others on one line."""
    small = []
    longest = max((len(part.stage) for part in parts), default=0)
    for part in parts:
        if part.share < _LARGE:
            small.append(f"{part.stage} {units.duration(part.ns)} {part.share:.0%}")
            continue
        line = f"{_INDENT}{padded(part.stage, longest)} {units.duration(part.ns):>8} {part.share:>4.0%} "
        yield f"{line}{bar(part.share, min(max(width - len(line), 0), 50))}".rstrip()
    if small:
        yield from wrapped(small, width, _INDENT, ", ")


def _flushes(flush: Mapping[str, Any]) -> Iterator[str]:
    """Generate the flushes of the device's cache that its last request waited for."""
    for where, key in (("before", "before_ns"), ("behind", "behind_ns")):
        if flush[key]:
            yield f"flush of the device's cache {where} the data {units.duration(flush[key])}"


def _commit(commit: Mapping[str, Any]) -> Iterator[str]:
    """Describe the commit that it waited for, and who contributed most to it."""
    yield f"waited for commit {commit['transaction']}" + (f" of {task(commit)}" if "pid" in commit else "")
    if "pid" not in commit:
        return
    wrote = flushes = ""
    if "requests" in commit:
        wrote = f"wrote {units.size(commit['bytes'])} in {Noun('request').of(commit['requests'])} and "
    if commit.get("flush_ns"):
        flushes = f" ({units.duration(commit['flush_ns'])} for flushes of the device's cache)"
    yield f"it {wrote}took {units.duration(commit['ns'])}{flushes}"
    most = commit["most"]
    if most:
        changes = f"{most['handles']:,} of {commit['handles']:,} changes"
        yield f"most of it by {task(most)}: {changes}, {most['blocks']:,} of {commit['blocks']:,} blocks"


def _slept(item: Mapping[str, Any], whole: bool) -> Iterator[str]:
    """`slept 39.2 ms for a lock of the file, 3 times: ext4_buffered_write_iter <- vfs_write`"""
    times = f", {item['count']:,} times" if item["count"] > 1 else ""
    words = f"slept {units.duration(item['ns'])} in {printable(item['stage'])}, {printable(item['reason'])}{times}"
    functions = [printable(name) for name in item["stack"]]
    shown = functions if whole else functions[:_FUNCTIONS]
    yield f"{words}: {shown[0]}" if shown else words
    yield from shown[1:]


def _throttled(item: Mapping[str, Any], tag_queue: int | None) -> str:
    queue = f" in hardware queue {tag_queue}" if tag_queue is not None and item["controller"] == "tag" else ""
    return f"held {units.duration(item['ns'])} by {_HOLDERS.get(item['controller'], item['controller'])}{queue}"


def _interference(item: Mapping[str, Any]) -> str:
    who = {"comm": item["name"] or "somebody", "pid": item.get("pid")}
    count = item.get("count", 1)
    return _IN_THE_WAY.get(item["kind"], _OTHER).format(
        kind=printable(item["kind"]),
        ns=units.duration(item["ns"]),
        who=task(who),
        cpu="" if item.get("cpu") is None else f" on cpu {item['cpu']}",
        times=f", {count:,} times" if count > 1 else "",
    )
