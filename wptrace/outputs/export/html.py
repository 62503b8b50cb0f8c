# SPDX-License-Identifier: Apache-2.0
"""A report as a page: one file for any browser, which needs no network (docs/reports.md).

What it shows is data in it, which report.js draws. Its size is bounded: columns of time are merged, and of events
and rows those with the most time are kept; the page says so.
"""

from __future__ import annotations

import base64
import hashlib
import heapq
import html
import importlib
import shlex
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from wptrace import __version__
from wptrace.analysis import neighbours, waits
from wptrace.analysis.owners import owner
from wptrace.kernel import blkstatus
from wptrace.kernel.clock import clock_seconds, clock_time
from wptrace.model import segments
from wptrace.model.distribution import Distribution
from wptrace.model.kind import STACK, TOTAL, UNATTRIBUTED, Group, Kind
from wptrace.model.report import BYTES, UNTIMED, Event, Incident, InFlight, Report, Row, Start, UnderWay, arranged
from wptrace.outputs.export import sums
from wptrace.outputs.export.file import Export, ExportFile
from wptrace.outputs.export.over_time import LONGEST, Places, Singles, Times, flat, ms
from wptrace.outputs.json_line import encoded
from wptrace.outputs.registry import Wanted
from wptrace.outputs.text import budget, header, incident, tables, verdict, words
from wptrace.outputs.text.view import View
from wptrace.outputs.text.words import printable

SLOWEST = 1000
"""Events that are kept."""
_ROWS = 500
_STACKS = 2000
_LINES = 2000
_WIDTH = 100
_UNDER_WAY = "under_way"


class HtmlExport(Export):
    def __init__(self, file: ExportFile, view: View) -> None:
        super().__init__(file)
        self._view = view
        self._times, self._singles, self._places = Times(), Singles(), Places()
        self._slowest: list[tuple[int, int, Event]] = []
        self._events = 0
        self._stuck: tuple[list[InFlight], int] = ([], 0)
        self._introduction: list[str] = []

    def start(self, start: Start) -> None:
        self._start = start
        self._singles.owners = str(start.filters.get("by", ""))
        self._introduction = list(self._view.begin(start))

    def event(self, event: Event) -> None:
        self._events += 1
        self._view.add(event)
        self._places.add(event)
        self._singles.add(event)
        if len(self._slowest) < SLOWEST:
            heapq.heappush(self._slowest, (event.total_ns, self._events, event))
        elif event.total_ns > self._slowest[0][0]:
            heapq.heapreplace(self._slowest, (event.total_ns, self._events, event))

    def in_flight(self, found: list[InFlight], at_ns: int) -> None:
        self._stuck = found, at_ns

    def interval(self, report: Report) -> None:
        self._times.interval(report)

    def finish(self, report: Report) -> None:
        text, when = self._text(report), clock_seconds(report.ts_ns - report.duration_ns, True)
        self._file.write(page(f"wptrace {self._start.flow}, {when}", self._data(report, text), text))

    def _text(self, report: Report) -> list[str]:
        """Return the report as a terminal shows it."""
        lines = [*self._introduction, "", *self._view.report(report, _WIDTH), *header.losses(report)]
        lines += [*budget.lines(report), *self._view.closing(report, _WIDTH)]
        if len(lines) > _LINES:
            lines = [*lines[:_LINES], f"and {len(lines) - _LINES:,} lines more"]
        return lines

    def _data(self, report: Report, text: Sequence[str]) -> dict[str, Any]:
        start, since_ns = self._start, report.ts_ns - report.duration_ns
        zone = time.localtime(since_ns // 1_000_000_000)
        kinds = list(dict.fromkeys((*start.kinds, *(group.kind for group in report.cells))))
        wholes, apart = self._times.end(report)
        series = list(arranged(wholes, kinds))
        numbers = {group: at for at, group in enumerate(series)}
        places = {group: at for at, group in enumerate((*series, *apart))}
        found = {**wholes, **{group: {TOTAL: one} for group, one in apart.items()}}
        events = sorted(self._slowest, key=lambda one: (-one[0], one[1]))
        stuck, stuck_ns = self._stuck
        return {
            "version": __version__,
            "flow": start.flow,
            "level": start.level,
            "kernel": printable(start.kernel),
            "file": printable(start.file),
            "host": printable(start.resource.host),
            "command": printable(shlex.join(start.resource.command)),
            "chosen": printable(words.chosen(start)).strip(" ,"),
            "zone": time.strftime("%Z", zone),
            "filters": [
                [printable(name), _words(value)] for name, value in start.filters.items() if value or value == 0
            ],
            "sources": [[source.stage, printable(source.how)] for source in start.sources],
            "notes": [printable(note) for note in start.notes],
            "begin": clock_time(since_ns, True),
            "end": clock_time(report.ts_ns, True),
            "duration": report.duration_ns,
            # Time of day for JavaScript, which has no nanoseconds that far.
            "since": since_ns // 1_000_000,
            "offset": zone.tm_gmtoff,
            "kinds": [_kind(kind) for kind in kinds],
            "series": list(_series(report, kinds, series, wholes)),
            # Behind the others in columns: each alone is no part of a sum.
            "apart": [
                {"kind": kinds.index(group.kind), "name": sums.name(group)[:LONGEST], "cells": {TOTAL: _cell(one)}}
                for group, one in apart.items()
            ],
            "columns": self._times.plain(places, since_ns),
            "singles": self._singles.plain(found, places, since_ns),
            "places": self._places.plain(since_ns),
            "tables": list(_tables(report, kinds)),
            "by": printable(str(start.filters.get("by", ""))),
            "stacks": _stacks(report),
            "neighbours": [_neighbour(one) for one in neighbours.of(report.counters)],
            "books": [
                [name, one.started, one.finished, one.in_flight, one.lost_total, one.failed]
                for name, one in report.books.items()
            ],
            "losses": [printable(line) for line in header.losses(report)],
            "budget": list(budget.lines(report)),
            "cost": words.overhead(report.overhead, report.duration_ns),
            "verdict": [] if report.verdict is None else list(verdict.lines(report.verdict, dates=False)),
            "incident": None if report.incident is None else self._incident(report.incident, numbers, since_ns),
            "events": {
                "seen": self._events,
                "kept": len(events),
                "rows": [self._event(event, numbers, since_ns) for _, _, event in events],
            },
            "stuck": self._view.in_flight(stuck, stuck_ns, _WIDTH, 50) if stuck else [],
            "text": "\n".join(map(printable, text)),
        }

    def _incident(self, found: Incident, series: Mapping[Group, int], since_ns: int) -> dict[str, Any]:
        return {
            "event": self._event(found.event, series, since_ns),
            "lines": [incident.slowest(found, False), incident.where(found), incident.beginning(found, False)],
            "advice": incident.advice(found.event),
            "moment": incident.moment(found, False),
            "queued": ms(found.moment_ns - since_ns),
            "begin": None if found.beginning is None else ms(found.beginning.begin_ns - since_ns),
            "until": None if found.beginning is None else ms(found.beginning.until_ns - since_ns),
            "rows": [_under_way(one) for one in found.under_way],
            "others": None if found.others is None else _under_way(found.others),
            "left": found.left,
        }

    def _event(self, event: Event, series: Mapping[Group, int], since_ns: int) -> dict[str, Any]:
        fields, kind = event.fields, event.group.kind
        error = fields.get("error", 0)
        return {
            "series": series.get(sums.whole(event.group), -1),
            "what": f"{words.group(event.group)} {kind.noun.one}".strip()[:LONGEST],
            "end": ms(event.end_ns - since_ns),
            "clock": clock_time(event.end_ns, False),
            "total": event.total_ns,
            "stages": [[name, ns] for name, ns in _in_order(event) if ns],
            **_spans(event),
            "who": words.task(fields)[:LONGEST] if "comm" in fields else "",
            "where": printable(_where(fields))[:LONGEST],
            "failed": blkstatus.name(error) if isinstance(error, int) and error > 0 else "",
            "story": [printable(line)[:LONGEST] for line in self._view.event(event, _WIDTH, True)],
        }


def _series(
    report: Report, kinds: Sequence[Kind], groups: Sequence[Group], found: Mapping[Group, Mapping[str, Distribution]]
) -> Iterator[dict[str, Any]]:
    """Each kind and operation: what it is called, its figures, and what happened besides."""
    counters: dict[Group, Counter[str]] = {group: Counter() for group in groups}
    for group, counts in report.counters.items():
        if group.kind.owner_place is None and sums.whole(group) in counters:
            counters[sums.whole(group)].update(counts)
    everywhere = waits.of(report.everywhere())
    for group, counts in counters.items():
        made = everywhere.get(group.values, []) if group.kind.name in waits.WAITING else []
        yield {
            "kind": kinds.index(group.kind),
            "name": sums.name(group),
            "bytes": counts[BYTES],
            "untimed": counts[UNTIMED],
            "events": [[name, count] for name, count in counts.items() if name not in (BYTES, UNTIMED) and count],
            "cells": {name: _cell(one) for name, one in found[group].items()},
            "made": [f"of {one.stage}: {', '.join(parts)}" for one in made if (parts := tables.made_of(one))],
        }


def _in_order(event: Event) -> Iterator[tuple[str, int]]:
    known = [*(stage.name for stage in event.group.kind.stages), UNATTRIBUTED]
    return ((name, event.stages[name]) for name in known if name in event.stages)


def _spans(event: Event) -> dict[str, Any]:
    """Stretches of stages, where they are known; whether all stand where they were."""
    timed = {"timed": segments.is_timed(event)}
    if not event.segments:
        return timed
    return {**timed, "spans": [[one.stage, one.from_ns, one.to_ns - one.from_ns] for one in segments.segments(event)]}


def _where(fields: Mapping[str, Any]) -> str:
    if fields.get("path"):
        offset = fields.get("offset")
        return f"{fields['path']}" + ("" if offset is None else f" at {offset}")
    return f"sector {fields['sector']} +{fields['bytes'] // 512}" if fields.get("bytes") and "sector" in fields else ""


def _tables(report: Report, kinds: Sequence[Kind]) -> Iterator[dict[str, Any]]:
    """Rows by what keeps them apart, those of each kind by themselves; not where they say the same as the sums."""
    everywhere = report.only(group for group in report.cells if group.kind.owner_place is not None).everywhere()
    for kind in kinds:
        if any(label.type == STACK for label in kind.labels):
            continue
        owned = kind.owner_place is not None
        of = everywhere if owned else report
        found: dict[Group, list[Row]] = {}
        for row in of.rows:
            if row.group.kind is kind:
                found.setdefault(row.group, []).append(row)
        if not found or (not owned and {sums.whole(group) for group in found} >= found.keys()):
            continue
        if not owned and len(found) == len({sums.whole(group) for group in found}):
            continue
        whole = sum(one[-1].distribution.sum for one in found.values())
        device = sum(row.distribution.sum for one in found.values() for row in one if row.metric == _UNDER_WAY)
        rows = sorted(found.items(), key=lambda item: -item[1][-1].distribution.sum)
        yield {
            "kind": kinds.index(kind),
            "owned": owned,
            "device": bool(device),
            "left": max(len(rows) - _ROWS, 0),
            "rows": [_row(group, mine, of, whole, device) for group, mine in rows[:_ROWS]],
        }


def _row(group: Group, rows: Sequence[Row], report: Report, whole: int, device: int) -> dict[str, Any]:
    total = rows[-1].distribution
    under_way = sum(row.distribution.sum for row in rows if row.metric == _UNDER_WAY)
    at, labels = group.kind.owner_place, group.kind.labels
    name, others = words.group(group), ""
    if at is not None:
        name = printable(labels[at].shown(owner(group)))
        others = words.group(group.all_of(labels[at].name))
    return {
        "name": name,
        "op": others,
        "bytes": report.counter(group, BYTES),
        "total": _figures(total),
        "share": (under_way / device if device else total.sum / whole) if whole else 0,
        "stages": [[row.metric, row.distribution.sum] for row in rows[:-1] if row.distribution.sum],
    }


def _figures(found: Distribution) -> list[float]:
    """Count, sum, mean and percentiles, as the tables of text have them."""
    return [found.count, found.sum, round(found.mean), *map(found.percentile, (50, 90, 99, 99.9)), found.max]


def _cell(found: Distribution) -> list[Any]:
    filled = {slot: count for slot, count in enumerate(found.buckets) if count}
    return [*_figures(found), found.min, flat(filled)]


def _kind(kind: Kind) -> dict[str, Any]:
    parts = {**dict.fromkeys((one.name for one in kind.interference), "interference"), UNATTRIBUTED: "stage"}
    parts.update(dict.fromkeys((one.name for one in kind.stages), "stage"))
    return {
        "name": printable(kind.name),
        "one": printable(kind.noun.one),
        "many": printable(kind.noun.plural),
        "sized": kind.sized,
        "unit": kind.total.unit,
        "metrics": [
            {
                "name": one.name,
                "unit": one.unit,
                "is": parts.get(one.name, ""),
                "about": printable(one.description),
                "large": printable(one.meaning),
            }
            for one in kind.rows
            if one.name != TOTAL
        ],
    }


def _stacks(report: Report) -> dict[str, Any] | None:
    found = sums.stacks(report)
    return {"left": max(len(found) - _STACKS, 0), "rows": found[:_STACKS]} if found else None


def _neighbour(one: neighbours.Neighbour) -> dict[str, Any]:
    meanwhile = one.meanwhile_ns or 1
    return {
        "name": printable(one.named),
        "dev": printable(one.dev) if isinstance(one.dev, str) else "",
        "device": one.device_ns,
        "requests": one.requests,
        "bytes": one.bytes,
        "waits": one.waits,
        "waited": one.waited_ns,
        "met": [
            [printable(neighbours.short_name(holder)), ns / meanwhile]
            for holder, ns in one.meanwhile.items()
            if ns >= 0.01 * meanwhile
        ],
    }


def _under_way(one: UnderWay) -> list[Any]:
    return [printable(one.owner)[:LONGEST], printable(one.op), *one[2:]]


def _words(value: object) -> str:
    return printable(", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value))


# --- The page ---------------------------------------------------------------------------------------------------------


def page(title: str, data: Mapping[str, Any], text: Sequence[str]) -> bytes:
    """Nothing is fetched, and nothing runs but what stands here."""
    script = source("report.js")
    # Names are hostile: what would end the element is spelled in another way.
    json = encoded(data).replace("<", "\\u003c")
    plain = html.escape("\n".join(map(printable, text)))
    return (
        f"{head(title, source('report.css'), script)}"
        f"<noscript><pre>{plain}</pre></noscript>\n<main></main>\n"
        f'<script type="application/json" id="data">{json}</script>\n<script>{script}</script>\n</body>\n</html>\n'
    ).encode("utf-8", "backslashreplace")


def source(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def head(title: str, style: str, script: str = "") -> str:
    """Up to the body. The policy names the style and the script by their checksums."""
    runs = f"; script-src {_checksum(script)}" if script else ""
    policy = f"default-src 'none'; style-src {_checksum(style)}{runs}; base-uri 'none'; form-action 'none'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>{html.escape(printable(title))}</title>\n<style>{style}</style>\n</head>\n<body>\n"
    )


def _checksum(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


def create(file: ExportFile, view: str, wanted: Wanted) -> HtmlExport:
    shown: View = importlib.import_module(f"wptrace.outputs.text.{view}").VIEW(wanted)
    return HtmlExport(file, shown)
