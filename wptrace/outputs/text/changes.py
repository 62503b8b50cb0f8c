# SPDX-License-Identifier: Apache-2.0
"""Differences of two recordings in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wptrace.analysis.chance import FEWEST
from wptrace.analysis.changes import Change, Figure
from wptrace.analysis.condition import Outcome
from wptrace.analysis.diff import NOT_BY_OWNER, Difference, Pair
from wptrace.analysis.measured import DEV, OWNED_BY, REST, SIZE, label_name
from wptrace.analysis.reasons import EITHER, SHARED, Blame, ChangePart, device_of, moved, newcomers, parts_of
from wptrace.analysis.reasons import came_and_went as came_and_gone
from wptrace.analysis.split import SAME
from wptrace.kernel.clock import clock_seconds
from wptrace.model import units
from wptrace.model.kind import OPERATION, STACK, TOTAL, Kind
from wptrace.outputs.text.words import printable, rounded

_NOUNS = {
    "read": "reads",
    "write": "writes",
    "sync": "syncs",
    "pagefault": "page faults",
    "swapin": "swap-ins",
}
_NAMED = 3
_TIMES = 10.0


def signed(ns: float) -> str:
    return f"{'-' if ns < 0 else '+'}{units.duration(abs(ns))}"


def percent(figure: Figure) -> str:
    """Return the change as a share of the earlier figure."""
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
    """Return the subject of a change: `reads of /app`."""
    found = noun(change.kind, change.op)
    return f"{found} of {printable(change.owner)}" if change.owner else found


def noun(kind: Kind, op: str) -> str:
    if kind.name.removeprefix("owned_") == OPERATION and op in _NOUNS:
        return _NOUNS[op]
    return f"{printable(op)} {kind.noun.plural.rpartition('block ')[2]}".strip()


def words_of(part: ChangePart, change: Change, difference: Difference) -> str:
    """Return the place of a part: `in throttle of vda`."""
    if not part.reason:
        return "rest"
    if part.reason not in (SAME, EITHER):
        return _of_mix(change, part.reason, part.ns)
    if part.stage == REST:
        return "because the same work takes longer" if part.ns > 0 else "because the same work is quicker"
    words = f"in {stage(part.stage, difference)}"
    device = device_of(change, part)
    if part.reason == EITHER and change.figures["mean"].real:
        return f"{words} (another mix, or slower)"
    if device and part.stage in _OF_DEVICES:
        words += f" of {printable(device)}"
        came = newcomers(difference, device) if part.ns > 0 and part.stage in SHARED else []
        if came:
            words += f": {listed(came)} {'is' if len(came) == 1 else 'are'} new there"
    return words


def _of_mix(change: Change, reason: str, ns: int) -> str:
    if reason == SIZE:
        sizes = [one.bytes / one.count for one in (change.a, change.b)]
        return f"because they are {'larger' if sizes[1] > sizes[0] else 'smaller'} ({_sizes(*sizes)})"
    main = moved(change, reason, ns)
    if main is None:
        return f"because their mix of {({DEV: 'devices', OWNED_BY: 'owners'}).get(reason, reason)} changed"
    value = innermost(main.value) if reason == STACK else main.value
    name = {OWNED_BY: "of {}", DEV: "to {}"}.get(reason, "{}").format(printable(value))
    before, after = rounded(main.before), rounded(main.after)
    if not main.before:
        return f"because {after} are {name}, which is new"
    if not main.after:
        return f"because none are {name} any more ({before} were)"
    return f"because {'more' if main.after > main.before else 'fewer'} are {name} ({before} -> {after})"


def _sizes(one: float, other: float) -> str:
    return f"{units.size(round(one))} -> {units.size(round(other))}"


_OF_DEVICES = ("layers", "throttle", "queue", "driver", "device", "complete")
"""Stages in which a device has them."""


def stage(name: str, difference: Difference) -> str:
    """Return a stage with those that are compared as parts of it."""
    inside = [one for one, other in difference.joined.items() if other == name]
    return f"{name} (with {', '.join(inside)})" if inside else name


def listed(names: Sequence[str]) -> str:
    shown = [printable(name) for name in names[:_NAMED]]
    if len(names) > _NAMED:
        shown[-1] = f"{len(names) - _NAMED + 1} others"
    return ", ".join(shown[:-1]) + f" and {shown[-1]}" if len(shown) > 1 else shown[0]


# --- Sentences --------------------------------------------------------------------------------------------------------


def findings(difference: Difference) -> list[tuple[Change, list[str]]]:
    """Return the real changes, those with the most time first."""
    found = [
        change
        for change in difference.changes
        if change.real and not (_is_said(change, difference.changes) or _as_all(change, difference.changes))
    ]
    found.sort(key=lambda change: (bool(change.owner), -abs(change.figures["mean"].change) * change.b.count))
    return [(change, list(sentences(change, difference))) for change in found]


def _is_said(change: Change, every: Sequence[Change]) -> bool:
    """Leave out requests whose operations have the same finding."""
    if change.kind.name not in ("request", "owned_request"):
        return False
    alike = (one for one in every if one.kind.name in ("operation", "owned_operation") and one.op == change.op)
    return any(one.real for one in alike)


def _as_all(change: Change, every: Sequence[Change]) -> bool:
    """Whether the change of an owner is the same as that of all owners together."""
    if not change.owner:
        return False
    mine = change.figures["mean"]
    for one in every:
        if one.kind.name == change.kind.name.removeprefix("owned_") and one.op == change.op and not one.owner:
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
        parts = parts_of(change)
        said = {part.stage for part in parts}
        words = [
            f"{'' if part.sure else 'perhaps '}{_plain(part.ns, mean.change)} {words_of(part, change, difference)}"
            for part in parts
        ]
        alone = len(words) == 1 and not parts[0].reason
        why = "no part of it stands out" if alone else "; ".join(words)
        yield f"{what}: {signed(mean.change)} ({percent(mean)}, {took}): {why}"
        for label in change.split.unlike:
            yield _untold(label, what, change)
        yield from _sizes_of_rows(what, change)
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
    """Return a duration, without a sign if it adds to what became slower."""
    return units.duration(ns) if whole > 0 and ns >= 0 else signed(ns)


def _untold(label: str, what: str, change: Change) -> str:
    if label == SIZE:
        sizes = _sizes(*(one.bytes / one.count for one in (change.a, change.b)))
        return f"  {what} have no size in common ({sizes} in the mean): other sizes cannot be told from slower ones"
    name = {DEV: "device", OWNED_BY: "owner"}.get(label, label)
    return f"  {what} have no {name} in common: other {name}s cannot be told from slower ones"


def _sizes_of_rows(what: str, change: Change) -> Iterator[str]:
    """Rows have no sizes, so that the split knows nothing of them, but what was moved tells of the mean."""
    known = SIZE in change.split.unlike or any(one.label == SIZE for one in change.split.values)
    if known or not (change.a.bytes and change.b.bytes):
        return
    sizes = [one.bytes / one.count for one in (change.a, change.b)]
    if max(sizes) >= _OTHER_SIZE * min(sizes):
        way = "larger" if sizes[1] > sizes[0] else "smaller"
        yield f"  {what} are {way} ({_sizes(*sizes)} in the mean): captures with --each show what that accounts for"


_OTHER_SIZE = 1.1


def _p99(change: Change) -> str:
    figure, found = change.figures["p99"], change.p99
    took = f"{signed(figure.change)} ({percent(figure)}, {units.duration(figure.a)} -> {units.duration(figure.b)})"
    if found is None or abs(found.mix_ns) <= found.error_ns:
        return took
    return (
        f"{took}: {signed(found.mix_ns)} from a different mix, {signed(found.same_ns)} because the same work is"
        f" {'slower' if found.same_ns > 0 else 'quicker'} (each +-{units.duration(found.error_ns)})"
    )


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
    for state, found in zip(("new in B", "gone in B"), came_and_gone(difference)):
        for measured, op, owner, count in found:
            there.setdefault(state, []).append(f"{noun(measured.kind, op)} of {printable(owner)} ({count:,})")
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
        elif label_name(label) == OWNED_BY:
            owner = value
        elif label_name(label) == DEV:
            dev = value
        else:
            others.append(innermost(value) if label.type == STACK else value)
    words = [op, pair.kind.noun.plural.rpartition("block ")[2], *others]
    words += [f"of {owner}"] if owner else []
    words += [f"on {dev}"] if dev else []
    return printable(" ".join(filter(None, words)))


_FRAMES = 3


def innermost(stack: str) -> str:
    """The functions of a folded stack that say where it is."""
    return "in " + " <- ".join(reversed(stack.split(";")[-_FRAMES:]))


def chance(difference: Difference) -> str:
    """The rest of all figures in one line."""
    left = difference.tested - difference.found
    rows = "1 row has" if difference.few == 1 else f"{difference.few:,} rows have"
    few = f"; {rows} fewer than {FEWEST} values in A or B" if difference.few else ""
    if not difference.a.measured and not difference.b.measured:
        return "these figures are not times: what may be chance is not computed"
    if not difference.tested:
        return f"too few values to compare anything{few}"
    if not difference.found:
        return f"no difference: the changes of all {difference.tested:,} figures may be chance{few}"
    return f"could be chance, or is too small to matter: {left:,} of {difference.tested:,} figures (~){few}"


def outcome(one: Outcome) -> str:
    """Describe the outcome of a condition."""
    words = one.condition.text
    if one.figure is None:
        return f"fail-if {words}: cannot be answered: {one.why}"
    figure = one.figure
    shown = units.rate if one.is_rate else units.duration
    took = f"{percent(figure)}, {shown(figure.a)} -> {shown(figure.b)}"
    if one.holds:
        return f"fail-if {words}: holds ({took})"
    if one.beyond:
        return f"fail-if {words}: holds ({took}), but may be chance"
    return f"fail-if {words}: does not hold ({took})"


# --- The verdict ------------------------------------------------------------------------------------------------------


def verdict(found: Blame, difference: Difference, dates: bool) -> Iterator[str]:
    """Owner, device, stage, wait, and when it began; then what to look at."""
    change, part = found.change, found.part
    what = subject(change)
    if found.owner and not change.owner:
        what += f", mostly those of {printable(found.owner)},"
    when = "" if found.began_ns is None else f", since {clock_seconds(found.began_ns, dates)}"
    wait = f", where they wait for {printable(found.wait)}" if found.wait else ""
    if not change.figures["mean"].real:
        way = f"{units.duration(abs(part.ns))} {'longer' if part.ns > 0 else 'shorter'}"
        yield f"verdict: {what} are {way} {words_of(part, change, difference)}{wait}{when}"
        yield "but: the change of their total time may be chance"
        yield from _queue(found)
        if found.advice:
            yield f"look at: {printable(found.advice)}"
        return
    line = f"verdict: {what} take {_factor(change.figures['mean'])}"
    if not part.reason:
        yield f"{line}, and no part of it stands out"
        return
    share = abs(part.ns) / abs(change.split.b_ns - change.split.a_ns)
    yield f"{line}, {min(share, 1.0):.0%} of it {words_of(part, change, difference)}{wait}{when}"
    yield from _queue(found)
    if part.reason not in (SAME, EITHER):
        yield "look at: who sends different work than before; nothing shows that the same work became slower"
    elif found.advice:
        yield f"look at: {printable(found.advice)}"


def _queue(found: Blame) -> Iterator[str]:
    """A slower device has a deeper queue, too, so this explains nothing by itself (docs/decisions/queue-depth.md)."""
    if found.deeper is not None:
        a, b = found.deeper
        yield (
            f"also: the queue of {printable(found.device)} is deeper ({a:.2f} -> {b:.2f} requests at a time): more are"
            " sent at once, or each takes longer"
        )


def _factor(mean: Figure) -> str:
    if mean.a and mean.b >= 2 * mean.a:
        return f"{mean.b / mean.a:,.1f}x as long"
    share = abs(mean.relative or 0.0)
    much = rounded(share) if share >= 0.1 else f"{share:.1%}"
    return f"{much} {'less' if mean.change < 0 else 'more'} time"


def as_verdict(found: Blame, difference: Difference) -> dict[str, object]:
    """Return the verdict for programs."""
    return {
        "text": list(verdict(found, difference, dates=True)),
        "op": found.change.op,
        "owner": found.owner,
        "stage": found.part.stage,
        "reason": found.part.reason,
        "ns": found.part.ns,
        "dev": found.device,
        "new": list(found.new),
        "wait": found.wait,
        "since_ns": found.began_ns,
        "advice": found.advice,
        "queue_depth": None if found.deeper is None else dict(zip("ab", (round(one, 4) for one in found.deeper))),
    }
