# SPDX-License-Identifier: Apache-2.0
"""Owners that had the device while others waited: a line for each owner, and those of a single operation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from wptrace.analysis import neighbours
from wptrace.analysis.neighbours import Neighbour, described, short_name
from wptrace.model import units
from wptrace.model.kind import ALL
from wptrace.model.report import Report
from wptrace.outputs.text.tables import Style
from wptrace.outputs.text.words import columns, ends, head, padded, printable

_TITLE, _HAD = "neighbours", " the device had"
# The widths of what a line has behind the name, and of the device's name; the rest is who had the device meanwhile.
_NAME, _DEV, _WIDEST = 30, 10, 48
_MEANWHILE = 34
# Owners with a smaller share are not named.
_SHARE = 0.01


def lines(report: Report, style: Style) -> Iterator[str]:
    found = neighbours.of(report.counters)
    if not found:
        return
    per_device = any(one.dev is not ALL for one in found)
    room = min(max(style.width - 24 - _MEANWHILE - (_DEV + 1 if per_device else 0), _NAME - 8), _WIDEST)
    dev = f" {'dev':<{_DEV}}" if per_device else ""
    title = f"{padded(_TITLE, room)}{dev} {'device':>6} {'waits':>7} {'mean':>8} meanwhile"
    yield title + (_HAD if columns(title + _HAD) <= style.width else "")
    whole = {one.dev: 0 for one in found}
    for one in found:
        whole[one.dev] += one.device_ns
    for one in found:
        line = padded(ends(printable(one.named), room), room)
        if per_device:
            line += f" {padded(ends(printable(str(one.dev)), _DEV), _DEV)}"
        line += f" {one.device_ns / (whole[one.dev] or 1):>6.1%} {one.waits:>7,}"
        mean = units.duration(one.waited_ns / one.waits) if one.waits else ""
        yield head(f"{line} {mean:>8} {_meanwhile(one)}".rstrip(), max(style.width, len(line)))


def _meanwhile(one: Neighbour) -> str:
    shares = [(short_name(owner), ns / one.meanwhile_ns) for owner, ns in one.meanwhile.items() if one.meanwhile_ns]
    return ", ".join(f"{printable(owner)} {share:.0%}" for owner, share in shares if share >= _SHARE)


# --- Of one operation ------------------------------------------------------------------------------------------------

# A wait of less than this share of the whole is not shown; nor is what the device had beside the request, unless that
# is most of the time, and there was more of it than this.
_WAIT, _MOST, _DEPTH = 0.05, 0.5, 0.5
_ROUND = 0.1


def story(fields: Mapping[str, Any], total_ns: int) -> Iterator[str]:
    """`waited 5.24 ms for a tag: all 4 had /batch (backup, 64 KiB reads)`"""
    meanwhile = fields["neighbours"]
    waited, device = meanwhile["waited_ns"], meanwhile["device_ns"]
    if waited and waited >= _WAIT * total_ns:
        held = {item["controller"] for item in fields.get("throttled_by", ())}
        what = "a tag" if held == {"tag"} else "the device"
        yield f"waited {units.duration(waited)} for {what}: {_had(meanwhile['meanwhile'], waited)}"
    if device and device >= _MOST * total_ns and _depth(meanwhile["beside"], device) >= _DEPTH:
        yield f"in the device for {units.duration(device)}, beside {_sharers(meanwhile['beside'], device)}"


def _depth(holders: Sequence[Mapping[str, Any]], span_ns: int) -> float:
    """The mean number of requests in flight."""
    return float(sum(item["ns"] for item in holders) / span_ns)


def _had(holders: Sequence[Mapping[str, Any]], span_ns: int) -> str:
    depth = _depth(holders, span_ns)
    if depth < 1 - _DEPTH:
        return "no owner that wptrace sees had it"
    first = holders[0]["ns"] / span_ns
    who = printable(_described(holders[0]))
    part = "all " if first >= 0.99 * depth else f"{_count(first)} of "
    return f"{part}{_count(depth)} had {who}"


def _sharers(holders: Sequence[Mapping[str, Any]], span_ns: int) -> str:
    depth, first = _depth(holders, span_ns), holders[0]["ns"] / span_ns
    who = printable(_described(holders[0]))
    return f"{_count(first)} of {who}" + (f" and {_count(depth - first)} of others" if depth - first >= _DEPTH else "")


def _described(item: Mapping[str, Any]) -> str:
    owner = neighbours.Owner(item["owner"])
    owner.seen = item["seen"]
    return described(owner, item["op"], item["bytes"])


def _count(depth: float) -> str:
    """A whole number where it is one but for the moments in which a tag that is free changes hands."""
    whole = round(depth)
    return f"{whole:,}" if whole and abs(depth - whole) < _ROUND * whole else f"{depth:.1f}"
