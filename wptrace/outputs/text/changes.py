# SPDX-License-Identifier: Apache-2.0
"""Differences of two recordings in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from wptrace.analysis.chance import FEWEST
from wptrace.analysis.changes import Change, Figure
from wptrace.analysis.condition import Outcome
from wptrace.analysis.diff import NOT_BY_OWNER, Difference, Pair
from wptrace.analysis.measured import DEV, OWNED_BY, REST, SIZE
from wptrace.analysis.split import LONGER, MORE, SAME, Value
from wptrace.model import units
from wptrace.model.kind import NOBODY, OPERATION, OTHERS, TOTAL
from wptrace.outputs.text.words import printable

_NOUNS = {
    "read": "reads",
    "write": "writes",
    "sync": "syncs",
    "pagefault": "page faults",
    "swapin": "swap-ins",
}
# A part is told from such a share of a change on, and if it is at least so many standard errors; and it is sure with so
# many more.
_LEAST_PART, _ERRORS, _SURE = 0.02, 2.0, 3.5
# Of a label, a value whose share moved so much of what the label explains is named.
_MOST = 0.5
_NAMED = 3
_TIMES = 10.0


class Told(NamedTuple):
    """A part of a change in words; without words it is the rest."""

    ns: int
    words: str
    reason: str = ""
    stage: str = ""
    sure: bool = True
    """It is no chance by itself, and not only as a part of a change that is none."""


def signed(ns: float) -> str:
    return f"{'-' if ns < 0 else '+'}{units.duration(abs(ns))}"


def percent(figure: Figure) -> str:
    """How much of what was there before."""
    found = figure.relative
    if found is None:
        return "new"
    return ratio(found)


def ratio(relative: float) -> str:
    if relative + 1 >= _TIMES:
        return f"{relative + 1:,.1f}x" if relative < 99 else f"{relative + 1:,.0f}x"
    digits = 1 if abs(relative) < 0.0995 else 0
    return f"{relative:+.{digits}%}"


def subject(change: Change) -> str:
    """Such as `reads of /app`."""
    noun = change.kind.noun.plural.rpartition("block ")[2]
    if change.kind.name.removeprefix("owned_") == "operation" and change.op in _NOUNS:
        found = _NOUNS[change.op]
    else:
        found = f"{printable(change.op)} {noun}".strip()
    return f"{found} of {printable(change.owner)}" if change.owner else found


def told(change: Change, difference: Difference) -> list[Told]:
    """The parts of the change of the mean, the largest first, and the rest; they add up to it."""
    whole = change.split.b_ns - change.split.a_ns
    found = []
    for reason in dict.fromkeys(part.reason for part in change.split.parts):
        if reason != SAME:
            ns = change.split.of(reason)
            errors = _errors_of(change, reason, 0, ns)
            if abs(ns) >= _LEAST_PART * abs(whole) and errors >= _ERRORS:
                found.append(Told(ns, _of_mix(change, reason, ns), reason, sure=errors >= _SURE))
    for part in change.split.parts:
        name = change.columns[part.column - 1]
        if part.reason != SAME or abs(part.ns) < _LEAST_PART * abs(whole) or (name == REST and len(change.columns) > 1):
            continue
        errors = _errors_of(change, SAME, part.column, part.ns)
        figure = change.figures.get(name)
        sure = errors >= _SURE or (figure is not None and figure.real and figure.change * part.ns > 0)
        if errors >= _ERRORS or sure:
            found.append(Told(part.ns, _of_stage(change, part.column, part.ns, difference), SAME, name, sure))
    found.sort(key=lambda one: -abs(one.ns))
    left = whole - sum(one.ns for one in found)
    return [*found, *([Told(left, "rest")] if left else [])]


def _errors_of(change: Change, reason: str, column: int, ns: int) -> float:
    """How many standard errors a part is."""
    error = change.errors.get((reason, column))
    if error is None:
        name = change.columns[column - 1] if column else "mean"
        error = change.figures.get(name, change.figures["mean"]).odds.error
    return abs(ns) / error if error else float("inf")


def _of_mix(change: Change, reason: str, ns: int) -> str:
    if reason == SIZE:
        sizes = [one.bytes / one.count for one in (change.a, change.b)]
        return f"because they are {'larger' if sizes[1] > sizes[0] else 'smaller'} ({_sizes(*sizes)})"
    values = [one for one in change.split.values if one.label == reason]
    of = {OWNED_BY: "of {}", DEV: "to {}"}.get(reason, "{}")
    main = _moved(values, ns)
    if not main:
        noun = {DEV: "devices", OWNED_BY: "owners"}.get(reason, reason)
        return f"because they are in another mix of {noun}"
    name = of.format(printable(main.value))
    if not main.before:
        return f"because {main.after:.0%} are {name}, which is new"
    if not main.after:
        return f"because none are {name} any more ({main.before:.0%} were)"
    more = "more" if main.after > main.before else "fewer"
    return f"because {more} are {name} ({main.before:.0%} -> {main.after:.0%})"


def _moved(values: Sequence[Value], ns: int) -> Value | None:
    """Of which the share changed in the way that moved the mean most."""
    way = [one for one in values if one.ns * ns > 0 and one.value != OTHERS]
    return max(way, key=lambda one: abs(one.ns), default=None)


def _sizes(one: float, other: float) -> str:
    return f"{units.size(round(one))} -> {units.size(round(other))}"


def _of_stage(change: Change, column: int, ns: int, difference: Difference) -> str:
    name = change.columns[column - 1]
    if name == REST:
        return "as the same takes longer" if ns > 0 else "as the same is quicker"
    device = device_of(change, column, ns)
    words = f"in {stage(name, difference)}"
    if device and name in _OF_DEVICES:
        words += f" of {printable(device)}"
        came = newcomers(difference, device)
        if ns > 0 and name in _SHARED and came:
            words += f": {_listed(came)} {'is' if len(came) == 1 else 'are'} new there"
    return words


_SHARED = ("throttle", "queue", "device")
"""Stages in which requests wait for those of others."""
_OF_DEVICES = ("layers", "throttle", "queue", "driver", "device", "complete")
"""Stages in which a device has them."""


def stage(name: str, difference: Difference) -> str:
    """With what is compared as a part of it."""
    inside = [one for one, other in difference.joined.items() if other == name]
    return f"{name} (with {', '.join(inside)})" if inside else name


def device_of(change: Change, column: int, ns: int) -> str:
    """Of which device most of it is; empty where that is not known."""
    found = {value: moved for (value, at), moved in change.split.places.items() if at == column and moved * ns > 0}
    most = max(found, key=lambda one: abs(found[one]), default="")
    return most if most and abs(found[most]) >= _MOST * abs(ns) else ""


def newcomers(difference: Difference, device: str) -> list[str]:
    """Owners that had nothing to do with the device in A."""
    counts: list[dict[str, int]] = [{}, {}]
    for side, found in zip((difference.a, difference.b), counts):
        for measured in side.measured.values():
            if DEV in measured.labels and OWNED_BY in measured.labels:
                dev, owner = measured.labels.index(DEV), measured.labels.index(OWNED_BY)
                for inner in measured.classes.values():
                    for key, one in inner.items():
                        if key[dev] == device:
                            found[key[owner]] = found.get(key[owner], 0) + one.count
    if not all(counts):
        return []
    new = [one for one, count in counts[1].items() if one not in counts[0] and count >= FEWEST]
    new = [one for one in new if one not in (NOBODY, OTHERS)]
    return sorted(new, key=lambda one: -counts[1][one])


def _listed(names: Sequence[str]) -> str:
    shown = [printable(name) for name in names[:_NAMED]]
    if len(names) > _NAMED:
        shown[-1] = f"{len(names) - _NAMED + 1} others"
    return ", ".join(shown[:-1]) + f" and {shown[-1]}" if len(shown) > 1 else shown[0]


# --- Sentences --------------------------------------------------------------------------------------------------------


def findings(difference: Difference) -> list[tuple[Change, list[str]]]:
    """Of what really changed, the most time first."""
    found = [
        change
        for change in difference.changes
        if change.real and not (_is_said(change, difference.changes) or _as_all(change, difference.changes))
    ]
    found.sort(key=lambda change: (bool(change.owner), -abs(change.figures["mean"].change) * change.b.count))
    return [(change, list(sentences(change, difference))) for change in found]


def _is_said(change: Change, every: Sequence[Change]) -> bool:
    """Of requests nothing is said that their operations say."""
    if change.kind.name not in ("request", "owned_request"):
        return False
    alike = (one for one in every if one.kind.name in ("operation", "owned_operation") and one.op == change.op)
    return any(one.real for one in alike)


def _as_all(change: Change, every: Sequence[Change]) -> bool:
    """Whether it is an owner with whom the same happened as with all together."""
    if not change.owner:
        return False
    mine = change.figures["mean"]
    for one in every:
        if one.kind is change.kind and one.op == change.op and not one.owner:
            whole = one.figures["mean"]
            alike = whole.real and mine.a and whole.a and (mine.change / mine.a) / (whole.change / whole.a) > _NEAR
            return bool(alike) and (mine.change / mine.a) / (whole.change / whole.a) < 1 / _NEAR
    return False


# An owner whose mean changed by about as much is not told beside all.
_NEAR = 0.8


def sentences(change: Change, difference: Difference) -> Iterator[str]:
    what, figures = subject(change), change.figures
    mean, said = figures["mean"], set()
    if mean.real:
        took = f"{units.duration(mean.a)} -> {units.duration(mean.b)}"
        parts = told(change, difference)
        said = {part.stage for part in parts}
        words = [f"{'' if part.sure else 'perhaps '}{_plain(part.ns, mean.change)} {part.words}" for part in parts]
        alone = len(words) == 1 and not parts[0].stage and not parts[0].reason
        why = "no part of it stands out" if alone else "; ".join(words)
        yield f"{what}: {signed(mean.change)} ({percent(mean)}, {took}): {why}"
        for label in change.split.unlike:
            yield _untold(label, what, change)
    for name, figure in figures.items():
        if figure.real and name not in ("mean", "p99", "rate") and name not in said:
            took = f"{units.duration(figure.a)} -> {units.duration(figure.b)}"
            yield f"{stage(name, difference)} of {what}: {signed(figure.change)} ({percent(figure)}, {took})"
    if figures.get("p99") is not None and figures["p99"].real:
        yield f"p99 of {what}: {_p99(change)}"
    rate = figures["rate"]
    if rate.real:
        yield f"{what}: {units.rate(rate.a)} -> {units.rate(rate.b)} ({percent(rate)})"


def _plain(ns: int, whole: float) -> str:
    """Of what became slower, without a sign where it adds to that."""
    return units.duration(ns) if whole > 0 and ns >= 0 else signed(ns)


def _untold(label: str, what: str, change: Change) -> str:
    if label == SIZE:
        sizes = _sizes(*(one.bytes / one.count for one in (change.a, change.b)))
        return f"  no size is in both ({sizes} in the mean): other sizes and slower {what} are not told apart"
    noun = {DEV: "device", OWNED_BY: "owner"}.get(label, label)
    return f"  no {noun} of {what} is in both: other {noun}s and slower ones are not told apart"


def _p99(change: Change) -> str:
    figure, found = change.figures["p99"], change.p99
    took = f"{signed(figure.change)} ({percent(figure)}, {units.duration(figure.a)} -> {units.duration(figure.b)})"
    if found is None or abs(found.mix_ns) <= found.error_ns:
        return took
    return (
        f"{took}: {signed(found.mix_ns)} by another mix, {signed(found.same_ns)} by the same being"
        f" {'slower' if found.same_ns > 0 else 'quicker'} (either +-{units.duration(found.error_ns)})"
    )


_REASONS = {LONGER: "as the recording is longer", MORE: "as there are more of them", SAME: "as the same is slower"}


def came_and_went(difference: Difference) -> Iterator[str]:
    """New and gone rows of which there is something to say, and those that one could not see."""
    there: dict[str, list[str]] = {}
    for pair in difference.pairs:
        if (pair.a is not None and pair.b is not None) or pair.unseen == NOT_BY_OWNER:
            continue
        cells = pair.a if pair.b is None else pair.b
        count = 0 if cells is None or TOTAL not in cells else cells[TOTAL].count
        if not count or (count < FEWEST and not pair.unseen):
            continue
        other = "A" if pair.a is None else "B"
        state = "new in B" if other == "A" else "gone in B"
        state = f"not compared, {pair.unseen} in {other}" if pair.unseen else state
        there.setdefault(state, []).append(f"{row(pair)} ({count:,})")
    for state, rows in there.items():
        shown = rows[:_ROWS]
        more = f" and {len(rows) - _ROWS:,} more" if len(rows) > _ROWS else ""
        yield f"{state}: {', '.join(shown)}{more}"


_ROWS = 8


def row(pair: Pair) -> str:
    """Its labels and noun: `read operations of fio on vda`."""
    op = owner = dev = ""
    others = []
    for label, value in zip(pair.kind.labels, pair.values):
        if not value:
            continue
        if label.type == OPERATION:
            op = value
        elif label.alias == OWNED_BY:
            owner = value
        elif label.name == DEV:
            dev = value
        else:
            others.append(value)
    words = [op, pair.kind.noun.plural.rpartition("block ")[2], *others]
    words += [f"of {owner}"] if owner else []
    words += [f"on {dev}"] if dev else []
    return printable(" ".join(filter(None, words)))


def chance(difference: Difference) -> str:
    """The rest of all figures in one line."""
    left = difference.tested - difference.found
    rows = "1 row has" if difference.few == 1 else f"{difference.few:,} rows have"
    few = f"; {rows} fewer than {FEWEST} in one of both" if difference.few else ""
    if not difference.a.measured and not difference.b.measured:
        return "what is counted are no times: nothing is said of what may be chance"
    if not difference.tested:
        return f"nothing is there often enough in both to be compared{few}"
    if not difference.found:
        return f"no difference: {difference.tested:,} figures differ by no more than chance makes of them{few}"
    return f"could be chance, or is too small to matter: {left:,} of {difference.tested:,} figures (~){few}"


def outcome(one: Outcome) -> str:
    """What came of a condition."""
    words = one.condition.text
    if one.figure is None:
        return f"fail-if {words}: cannot be answered: {one.why}"
    figure = one.figure
    shown = units.rate if one.is_rate else units.duration
    took = f"{percent(figure)}, {shown(figure.a)} -> {shown(figure.b)}"
    if one.holds:
        return f"fail-if {words}: it is so ({took})"
    if one.beyond:
        return f"fail-if {words}: it is so ({took}), but could be chance"
    return f"fail-if {words}: it is not so ({took})"
