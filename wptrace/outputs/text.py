# SPDX-License-Identifier: Apache-2.0
"""Results as plain text: what a pipe gets, and what the live screen is made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from wptrace.engine import units
from wptrace.engine.accounting import Cause
from wptrace.engine.results import Group, Overhead, Report, Request, Row, Start
from wptrace.engine.stages import StageTable
from wptrace.kernel import blkstatus
from wptrace.kernel.clock import clock_time

_BLOCKS = " ▏▎▍▌▋▊▉█"
# With the widest figures that a trace can bring a line has 79 columns, the bar takes what is left.
_HEADER = f"  {'stage':<12} {'count':>11} {'mean':>8} {'p50':>8} {'p99':>8} {'max':>8} {'share':>6}"
_WIDEST_BAR = 30


def printable(text: str) -> str:
    """Names from the kernel are untrusted: whatever could move a cursor is shown as an escape."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def bar(share: float, width: int) -> str:
    """A bar of `width` columns at most, to an eighth of a column."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + (_BLOCKS[rest] if rest else "")


def introduction(start: Start) -> Iterator[str]:
    level = f" (level {start.level})" if start.level else ""
    where = ""
    if "dev" in start.filters:
        where = f" on {', '.join(map(printable, start.filters['dev'])) or 'all disks'}"
    if "pid" in start.filters:
        where += f" by process {start.filters['pid']}"
    yield f"Tracing {start.flow}{level}{where}, Linux {printable(start.kernel)}. Ctrl-C ends."
    for note in start.notes:
        yield f"note: {printable(note)}"


def report(report: Report, width: int, dates: bool) -> Iterator[str]:
    """The table of one interval or summary."""
    book = report.accounting
    seconds = report.duration_ns / 1e9
    head = f"{clock_time(report.ts_ns, dates).partition('.')[0]}  {_requests(book.finished)}"
    head += f" in {units.duration(report.duration_ns)}, {units.size(sum(report.bytes.values()))}"
    head += f", {book.in_flight:,} in flight"
    if report.failed:
        head += f", {report.failed:,} failed"
    yield head
    for group, rows in groupby(report.rows, key=lambda row: row.group):
        yield from _group(group, list(rows), report.bytes, seconds, width)
    yield from _losses(book.lost, "lost")
    yield from _losses(book.noted, "noted")


def _requests(count: int) -> str:
    return f"{count:,} request{'' if count == 1 else 's'}"


def _group(group: Group, rows: list[Row], sizes: Mapping[Group, int], seconds: float, width: int) -> Iterator[str]:
    count = max(row.distribution.count for row in rows)
    name = f"{printable(group.dev)} {group.op}".strip()
    amount = sum(size for key, size in sizes.items() if key.op == group.op and group.dev in ("", key.dev))
    yield ""
    yield (
        f"{name}: {_requests(count)}, {units.rate(count / seconds)}, {units.size(amount / seconds)}/s"
        if (seconds)
        else f"{name}: {_requests(count)}"
    )
    yield _HEADER
    for row in rows:
        found = row.distribution
        figures = (found.mean, found.percentile(50), found.percentile(99), found.max)
        line = f"  {row.stage:<12} {found.count:>11,}"
        line += "".join(f" {units.duration(value):>8}" for value in figures) + f" {row.share:>6.1%}"
        yield f"{line}  {bar(row.share, min(max(width - len(line) - 2, 0), _WIDEST_BAR))}".rstrip()


def _losses(causes: Mapping[Cause, int], verb: str) -> Iterator[str]:
    for cause, count in causes.items():
        if count:
            yield f"{verb}: {count:,} x {cause.name}: {cause.description}"


def overhead(cost: Overhead, duration_ns: int) -> str:
    """What the tracing itself cost."""
    parts = [f"reader {cost.reader_cpu_ns / duration_ns:.1%} of a CPU" if duration_ns else ""]
    if cost.bpf_runs:
        parts.append(f"BPF {units.duration(cost.bpf_ns / cost.bpf_runs)} a run, {cost.bpf_runs:,} runs")
    parts.append(f"{units.size(cost.rss_bytes)} resident, {units.size(cost.map_bytes)} of maps")
    if cost.records:
        parts.append(f"{cost.records:,} records")
    return "own cost: " + ", ".join(part for part in parts if part)


def request(request: Request, table: StageTable, width: int, dates: bool) -> Iterator[str]:
    """One request on a line, with its stages as a bar that shares its width among them."""
    fields = request.fields
    line = f"{clock_time(request.end_ns, dates)}  {printable(request.dev)} {fields['rwbs']:<4} "
    line += f"sector {fields['sector']} +{fields['bytes'] // 512}  {units.duration(request.total_ns)}"
    if fields["error"]:
        line += f"  failed ({blkstatus.name(fields['error'])})"
    yield line
    parts = []
    for stage in table.partition:
        value = request.stages.get(stage.name, 0)
        share = value / request.total_ns if request.total_ns else 0.0
        parts.append(f"{stage.name} {units.duration(value)} {share:.0%} {bar(share, max(width // 6, 4))}")
    yield from _wrapped(parts, width)


def _wrapped(parts: Iterable[str], width: int) -> Iterator[str]:
    """As many parts on a line as fit."""
    line = ""
    for part in (part.rstrip() for part in parts):
        if line and len(line) + 2 + len(part) > width:
            yield line
            line = ""
        line += f"{'  ' if line else '    '}{part}"
    yield line


def verdict(rows: Iterable[Row], table: StageTable) -> str:
    """Where the time went, in words: the stage with the largest share of the group that took the most time."""
    rows = list(rows)
    totals = [row for row in rows if row.stage == table.total.name]
    if not totals:
        return "verdict: no request finished"
    heaviest = max(totals, key=lambda row: row.distribution.sum).group
    worst = max(
        (row for row in rows if row.group == heaviest and row.stage != table.total.name),
        key=lambda row: row.distribution.sum,
        default=None,
    )
    if worst is None or not worst.distribution.count:
        return "verdict: requests finished, but none of their stages could be measured"
    found = worst.distribution
    where = f"{printable(heaviest.dev)} {heaviest.op}".strip()
    return (
        f"verdict: {worst.stage} takes {worst.share:.0%} of the time of {where} requests (mean"
        f" {units.duration(found.mean)}, p99 {units.duration(found.percentile(99))}): {table[worst.stage].meaning}"
    )
