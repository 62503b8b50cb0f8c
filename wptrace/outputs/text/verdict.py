# SPDX-License-Identifier: Apache-2.0
"""The verdict in words, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable

from wptrace.analysis.verdict import LOST_SHARE, OUTLIER_COUNT, SAMPLE_SHARE
from wptrace.kernel.clock import clock_seconds
from wptrace.model import units
from wptrace.model.kind import ALL, OPERATIONS, Group
from wptrace.model.report import Finding, Verdict
from wptrace.outputs.text.words import group as named
from wptrace.outputs.text.words import printable, rounded


def lines(verdict: Verdict, dates: bool) -> Iterator[str]:
    """Each finding, with what to look at for it where that was not said yet, and whether it holds."""
    said: set[str] = set()
    for place, finding in enumerate(verdict.findings):
        if finding.rule == "lost":
            continue
        yield f"{'also' if place else 'verdict'}: {_said(finding, dates)}"
        advice = finding.advice if place else verdict.advice
        if advice and advice not in said:
            said.add(advice)
            yield f"look at: {advice}"
    # Hits are in the book of operations, which only in part are hits.
    kinds = [one.group.kind for one in verdict.findings if one.group is not None]
    nouns = {kind.book: kind.noun.one for kind in kinds if kind.book != OPERATIONS}
    for finding in verdict.findings:
        if finding.rule == "lost":
            yield f"but: {_lost(finding.figures, {**_NOUNS, **nouns})}"


def short_lines(verdict: Verdict, dates: bool) -> Iterator[str]:
    """Say what takes the time and who had the device meanwhile, as far as one interval shows it."""
    for place, finding in enumerate(verdict.findings):
        if not place or finding.rule == "neighbour":
            yield f"{'also' if place else 'verdict'}: {_said(finding, dates)}"


def _said(finding: Finding, dates: bool) -> str:
    known = _WORDS.get(finding.rule)
    # A capture of a newer version may have it.
    return f"{finding.rule}, a rule that this version does not know" if known is None else known(finding, dates)


def as_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "text": "\n".join(lines(verdict, dates=True)),
        "stage": verdict.stage,
        "advice": verdict.advice,
        "findings": [_finding(finding, verdict.advice) for finding in verdict.findings],
    }


def _finding(finding: Finding, before: str) -> dict[str, Any]:
    of = finding.group
    group = {} if of is None else {**of.fields, "kind": of.kind.name}
    figures = {name: round(value, None if name.endswith("_ns") else 4) for name, value in finding.figures.items()}
    who = {"who": finding.who} if finding.who else {}
    advice = {"advice": finding.advice} if finding.advice and finding.advice != before else {}
    parts = [{"reason": name, "share": round(share, 4)} for name, share in finding.parts]
    more: dict[str, Any] = {"parts": parts} if parts else {}
    if finding.dirtied_by:
        more["dirtied_by"] = finding.dirtied_by
    return {"rule": finding.rule, "stage": finding.stage, **group, **figures, **who, **advice, **more}


def _what(group: Group | None, count: float = 0) -> str:
    """Without the place."""
    if group is None:
        return ""
    noun = (group.kind.noun.one if count == 1 else group.kind.noun.plural).rpartition("block ")[2]
    return f"{named(group.everywhere)} {noun}".strip()


def _count(count: float, noun: str) -> str:
    return f"{count:,.0f} {noun}{'' if count == 1 else 's'}"


def _idle(finding: Finding, dates: bool) -> str:
    return f"nothing finished{_in_flight(finding.figures)}"


def _in_flight(figures: Mapping[str, float]) -> str:
    if not figures.get("in_flight"):
        return ""
    each = [_count(count, noun) for what, noun in _NOUNS.items() if (count := figures.get(f"{what}_in_flight", 0))]
    return f", {' and '.join(each) or format(figures['in_flight'], ',.0f')} in flight"


def _cached(finding: Finding, dates: bool) -> str:
    figures = finding.figures
    took = f"mean {units.duration(figures['mean_ns'])}, p99 {units.duration(figures['p99_ns'])}"
    op = "" if finding.group is None else named(finding.group.everywhere)
    left = _in_flight(figures)
    what = "everything that finished" if left else "everything"
    return f"the page cache served {what}: {_count(figures['count'], f'{op} hit')} ({took}){left}"


def _unmeasured(finding: Finding, dates: bool) -> str:
    return f"{_what(finding.group)} finished, but none of their stages could be measured"


def _largest(finding: Finding, dates: bool) -> str:
    figures, where = finding.figures, ""
    if finding.group is not None and finding.group.values and finding.group.values[0] is not ALL:
        of_it = "" if figures["dev_share"] > 0.995 else f", {figures['dev_share']:.0%} of it"
        where = f"{of_it} on {printable(finding.group.kind.labels[0].titled(finding.group.values[0]))}"
    took = f"mean {units.duration(figures['mean_ns'])}, p99 {units.duration(figures['p99_ns'])}"
    # The disk below is where its requests went, and not who had the time.
    if finding.who and not finding.parts:
        where = f", most of it in {printable(finding.who)}"
    depth = figures["queue_depth"]
    if depth:
        took += f", queue depth {depth:.2f}" if depth < 1 else f", queue depth {depth:,.1f}"
    # Of so few, a share says little. Captures of 0.2.0 do not have their number.
    count = figures.get("count", OUTLIER_COUNT)
    few = f"{count:,.0f} " if count < OUTLIER_COUNT else ""
    of = f"{few}{_what(finding.group, count)}{where}"
    whole = f"{finding.stage} takes {figures['share']:.0%} of the time of {of} ({took})"
    made_of = _limited(figures, finding.dirtied_by) or _made_of(finding.parts)
    who = f", most of it of {printable(finding.who)}" if finding.who and finding.parts else ""
    return f"{whole}: {made_of}{who}" if made_of else whole


def _made_of(parts: Sequence[tuple[str, float]]) -> str:
    shown = [f"{share:.0%} {printable(name)}" for name, share in parts[:_PARTS] if share >= _PART]
    return ", ".join(shown)


def _limited(figures: Mapping[str, float], dirtied_by: str) -> str:
    """Writers that wait in the dirty limit: whose it is, and how fast it drains."""
    if not figures.get("limit_bytes"):
        return ""
    of_cgroup = figures["limit_bytes"] < _OF_MACHINE * figures["machine_bytes"]
    whose = "its cgroup" if of_cgroup else "the machine"
    disk = f", and {units.size(figures['disk_bytes'])}/s go to the disk" if figures.get("disk_bytes") else ""
    dirtied = f"; {printable(dirtied_by)} made most of what is written back dirty" if dirtied_by else ""
    return f"{whose} may have {units.size(figures['limit_bytes'])} dirty{disk}{dirtied}"


def _grew(finding: Finding, dates: bool) -> str:
    figures = finding.figures
    when = clock_seconds(int(figures["ts_ns"]), dates)
    means = f"mean {units.duration(figures['rest_mean_ns'])} -> {units.duration(figures['mean_ns'])}"
    factor = figures["factor"]
    times = f"{factor:.1f}x" if factor < 10 else f"{factor:,.0f}x"
    # A multiple of nothing says nothing.
    grew = f"grew {times if figures['rest_mean_ns'] >= 1 else 'from nothing'}"
    return f"{finding.stage} {grew} in the {units.duration(figures['duration_ns'])} that ended {when} ({means})"


def _tail(finding: Finding, dates: bool) -> str:
    figures = finding.figures
    p50, p99, of_stage = (units.duration(figures[name]) for name in ("p50_ns", "p99_ns", "stage_p99_ns"))
    ratio = f"{figures['ratio']:,.0f}x the median"
    return f"the p99 of the whole is {ratio} ({p99}, {p50}), and {finding.stage} makes it ({of_stage})"


def _outlier(finding: Finding, dates: bool) -> str:
    figures = finding.figures
    took, rest = units.duration(figures["max_ns"]), units.duration(figures["rest_mean_ns"])
    whose = f"{figures['count']:,.0f} {_what(finding.group)}".rstrip()
    return f"one of {whose} took {figures['share']:.0%} of their time ({took}), the mean of the others is {rest}"


def _inside(finding: Finding, dates: bool) -> str:
    figures = finding.figures
    took = units.duration(figures["sum_ns"])
    return f"{finding.stage} took {figures['share']:.0%} of the time ({took}) inside the stages"


def _woken(finding: Finding, dates: bool) -> str:
    figures, took = finding.figures, units.duration(finding.figures["mean_ns"])
    op = "" if finding.group is None else f"{named(finding.group.everywhere)} "
    late = f"wakeup takes {figures['share']:.0%} of their waits, p99 {units.duration(figures['p99_ns'])}"
    return f"tasks that slept for {op}requests ran {took} after these were complete: {late}"


def _behind(finding: Finding, dates: bool) -> str:
    figures = finding.figures
    took = units.duration(figures["sum_ns"])
    filled = f"commits to which {printable(finding.who)} had contributed most"
    return f"{figures['share']:.0%} of the time of operations ({took}) was spent waiting for {filled}"


# The number of parts of a stage that are named, and the smallest share of one.
_PARTS, _PART = 3, 0.05
# The machine's own limit moves a little all the time; that of a cgroup is a part of it.
_OF_MACHINE = 0.75
# The share from which on the part without a known owner is named.
_UNKNOWN = 0.05
# The singular of a book's name.
_NOUNS = {"operations": "operation", "requests": "request"}


def _lost(figures: Mapping[str, float], nouns: Mapping[str, str]) -> str:
    parts = [
        f"{figures[what]:,.0f} of {_count(figures[f'{what}_started'], nouns[what])}"
        for what in _NOUNS
        if figures.get(what)
    ]
    one = sum(figures.get(what, 0) for what in _NOUNS) == 1
    were = f"{' and '.join(parts)} {'was' if one else 'were'} lost"
    share = max(figures[what] / max(figures[f"{what}_started"], 1) for what in _NOUNS if figures.get(what))
    if share < LOST_SHARE:
        return f"{were}: too few to change any figure but the largest ones"
    if share < SAMPLE_SHARE:
        return f"{were}: counts and means hold, the highest percentiles may not"
    return f"{were}, so the figures are those of a sample"


def _owner(finding: Finding, dates: bool) -> str:
    who, share, unknown = printable(finding.who), finding.figures["share"], finding.figures.get("unknown", 0)
    others = finding.figures["owners"] - (2 if unknown else 1)
    if not others and not unknown:
        return f"{who} had all of what is traced" if finding.figures.get("partial") else f"{who} had the device alone"
    of = "of what is traced, " if finding.figures.get("filtered") or finding.figures.get("partial") else ""
    parts = [f"{of}{who} had {rounded(share)} of the device's time"]
    if unknown >= _UNKNOWN or not others:
        parts.append(f"who had {rounded(unknown)} is not known by name")
    if others:
        parts.append(f"{'many others' if finding.figures.get('more') else _count(others, 'other owner')} had the rest")
    return ", ".join(parts)


def _statement(finding: Finding, dates: bool) -> str:
    figures, group = finding.figures, finding.group
    dev, op = (ALL, "") if group is None else group.values
    where = "" if dev is ALL else f" on {printable(str(dev))}"
    whole = f"{figures['share']:.0%} of the time of operations ({units.duration(figures['sum_ns'])})"
    parts = [f"{_count(figures['count'], str(op))} of {units.size(figures['bytes'])}{where}"]
    if figures["hits"]:
        parts.append(_count(figures["hits"], "page-cache hit"))
    if figures["device_ns"]:
        parts.append(f"{units.duration(figures['device_ns'])} of its requests with the device")
    return f"{printable(finding.who)} took {whole}: {', '.join(parts)}"


def _in_the_way(did: str) -> Callable[[Finding, bool], str]:
    def words(finding: Finding, dates: bool) -> str:
        figures = finding.figures
        took = units.duration(figures["sum_ns"])
        return f"{printable(finding.who)} {did} for {figures['share']:.0%} of the time of operations ({took})"

    return words


def _neighbour(finding: Finding, dates: bool) -> str:
    figures, group = finding.figures, finding.group
    dev, owner = ("", "") if group is None else group.values
    where = "the device" if dev is ALL else printable(str(dev))
    waits = f"waiting for {where} takes {figures['share']:.0%} of the requests of {printable(str(owner))}"
    unknown = figures.get("unknown", 0)
    # Of those without a name, one may have had most of it.
    rest = ", and no three of them had half of it" if figures.get("many") else ""
    rest = f", and who had {unknown:.0%} is not known by name" if unknown >= _UNKNOWN else rest
    return f"{waits}: {printable(finding.who)} had {figures['had']:.0%} of it meanwhile{rest}"


_WORDS: Mapping[str, Callable[[Finding, bool], str]] = {
    "idle": _idle,
    "cached": _cached,
    "unmeasured": _unmeasured,
    "largest": _largest,
    "grew": _grew,
    "tail": _tail,
    "outlier": _outlier,
    "inside": _inside,
    "woken": _woken,
    "behind": _behind,
    "ran": _in_the_way("ran on their CPU"),
    "irq_off": _in_the_way("kept interrupts off"),
    "statement": _statement,
    "unit": _statement,
    "owner": _owner,
    "neighbour": _neighbour,
}
