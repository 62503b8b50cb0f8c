# SPDX-License-Identifier: Apache-2.0
"""The incident of a dump in words, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from wptrace.analysis.incident import BEFORE, DEVICE, OUTSIDE
from wptrace.kernel.clock import clock_time
from wptrace.model import units
from wptrace.model.kind import TEXTS, UNATTRIBUTED, Noun
from wptrace.model.report import Event, Incident, UnderWay
from wptrace.outputs.text.words import ends, group, printable, task

WHERE = {BEFORE: "before the device had it", DEVICE: "in the device", OUTSIDE: "outside of the device"}
_REQUEST = Noun("request")
_SHOWN = 8
# Columns of a statement or a unit.
_TEXT = 80


def lines(found: Incident, dates: bool) -> Iterator[str]:
    yield f"incident: {slowest(found, dates)}"
    yield where(found)
    yield moment(found, dates)
    shown, left = found.under_way[:_SHOWN], [*found.under_way[_SHOWN:], *_others(found)]
    for one in shown:
        yield f"    {printable(f'{one.owner} {one.op}'.strip())}: {_many(one)}"
    if left:
        yield f"    others: {_many(_sum(left))}"
    yield beginning(found, dates)
    if advice(found.event):
        yield f"look at: {advice(found.event)}"


def slowest(found: Incident, dates: bool) -> str:
    event = found.event
    path = printable(str(event.fields.get("path") or ""))
    of = f" of {path}" if path else ""
    what = f"{group(event.group)} {event.group.kind.noun.one}{of}"
    until = clock_time(event.end_ns, dates)
    who = f" by {task(event.fields)}" if "comm" in event.fields else ""
    text = next((str(event.fields[name]) for name in TEXTS if event.fields.get(name)), "")
    who += f" for {ends(printable(text), _TEXT)}" if text else ""
    return f"{what}{who} took {units.duration(event.total_ns)}, until {until}"


def where(found: Incident) -> str:
    share = found.part_ns / found.event.total_ns if found.event.total_ns else 0
    stage = longest_stage(found.event)
    named = f" (stage {stage})" if stage and stage != found.part else ""
    usual = f"; the median of others is {units.duration(found.usual_ns)}" if found.usual_ns else ""
    if found.before_ns:
        before = units.duration(found.before_ns)
        usual += f", but all of these came with it; before, the median of other operations was {before}"
    return f"{units.duration(found.part_ns)} of it, {share:.0%}, were {WHERE[found.part]}{named}{usual}"


def moment(found: Incident, dates: bool) -> str:
    """Say what was under way when it was queued, and what came after it."""
    whole = _sum([*found.under_way, *_others(found)])
    at, dev = clock_time(found.moment_ns, dates), printable(found.dev)
    there = _counted(whole.requests, whole.bytes) if whole.requests else "no other request"
    were = "were" if whole.requests > 1 else "was"
    came = f", and {_counted(whole.later, whole.later_bytes)} came while it was" if whole.later else ""
    when = "it began" if found.part == OUTSIDE else "it was queued"
    return f"when {when}, at {at}, {there} {were} under way on {dev}{came}"


def _others(found: Incident) -> list[UnderWay]:
    return [] if found.others is None else [found.others]


def _sum(found: Sequence[UnderWay]) -> UnderWay:
    return UnderWay("", "", *(sum(int(one[at]) for one in found) for at in range(2, len(UnderWay._fields))))


def _many(one: UnderWay) -> str:
    parts = []
    if one.requests:
        had = "" if one.issued == one.requests else f", the device had {one.issued:,} of them"
        parts.append(f"{_counted(one.requests, one.bytes)}{had}")
    if one.later:
        parts.append(f"{_counted(one.later, one.later_bytes)} behind it")
    return ", ".join(parts)


def beginning(found: Incident, dates: bool) -> str:
    first = found.beginning
    if first is None and found.before_ns:
        return "how long others of its kind usually take is not known: there were none before it became slow"
    if first is None and not found.usual_ns:
        return "there are no others to compare it with"
    if first is None:
        return "others took about as long: it is the slowest, but not unusual"
    who = f"{first.op} by {printable(first.owner)}" if first.owner else first.op
    took = f"{units.duration(first.ns)} {WHERE[found.part]}"
    at = clock_time(first.begin_ns, dates)
    after = f"; {first.after:,} more after it, until {clock_time(first.until_ns, dates)}" if first.after else ""
    if first.slow == 1:
        return f"it is the first that was slow, since {at}{after}"
    slow = f"{first.slow:,} of {first.among:,} were slow"
    return f"slow since {at}: the first was a {who}, {took}; up to this one {slow}{after}"


def longest_stage(event: Event) -> str:
    return max(event.stages, key=event.stages.__getitem__, default="")


def advice(event: Event) -> str:
    """The advice for the longest stage."""
    name = longest_stage(event)
    if name == UNATTRIBUTED or name not in event.group.kind:
        return ""
    stage = event.group.kind[name]
    return stage.advice or stage.meaning


def as_json(found: Incident) -> dict[str, Any]:
    return {
        "text": "\n".join(lines(found, dates=True)),
        "dev": found.dev,
        "op": found.event.group.label("op"),
        "ts_ns": found.event.end_ns,
        "total_ns": found.event.total_ns,
        "stage": longest_stage(found.event),
        "part": found.part,
        "part_ns": found.part_ns,
        "usual_ns": found.usual_ns,
        **({"before_ns": found.before_ns} if found.before_ns else {}),
        "queued_ns": found.moment_ns,
        "under_way": [one._asdict() for one in found.under_way],
        **({} if found.others is None else {"others": _counts(found.others)}),
        **({} if found.beginning is None else {"beginning": found.beginning._asdict()}),
        "left": found.left,
    }


def _counts(one: UnderWay) -> dict[str, Any]:
    return {name: value for name, value in one._asdict().items() if name not in ("owner", "op")}


def _counted(requests: int, size: int) -> str:
    return f"{_REQUEST.of(requests)} ({units.size(size)})"
