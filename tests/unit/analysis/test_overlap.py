# SPDX-License-Identifier: Apache-2.0
"""Owners that had a device while others waited, from the times of requests."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from wptrace.analysis import overlap
from wptrace.analysis.neighbours import COUNT, HAD, MEANWHILE, NS, WAITED, WHOLE, Owner, of
from wptrace.analysis.overlap import WAIT_NS, Overlap, Span
from wptrace.model.kind import OTHERS
from wptrace.model.report import BYTES

US = 1_000
A, B, C = map(Owner, "abc")


def span(owner: Owner, queued: int, issued: int, completed: int, dev: str = "sda", op: str = "read") -> Span:
    """Make a span with times in microseconds."""
    return Span(dev, op, owner, 4096, queued * US, issued * US, completed * US)


def swept(*spans: Span, held: int = overlap.HELD) -> Overlap:
    made = Overlap(held)
    for one in spans:
        made.add(one)
    return made


def test_by_hand() -> None:
    """B waits from 100 to 200 us: A has the device until 150 with one request, and from 120 to 250 with another."""
    found = swept(span(A, 0, 0, 150), span(A, 110, 120, 250), span(B, 100, 200, 260), span(C, 0, 0, 90)).counters()
    assert found[HAD.group("sda", "read", A)] == {COUNT: 2, NS: 280 * US, BYTES: 8192, WHOLE: 290 * US}
    # A waits for 10 us, from 110 to 120, while its other request has the device.
    assert found[WAITED.group("sda", A)] == {COUNT: 1, NS: 10 * US}
    assert found[WAITED.group("sda", B)] == {COUNT: 1, NS: 100 * US}
    assert found[MEANWHILE.group("sda", B, A)] == {NS: (50 + 80) * US}
    assert found[MEANWHILE.group("sda", A, A)] == {NS: 10 * US}
    assert {group.values for group in found if group.kind is MEANWHILE} == {("sda", "b", "a"), ("sda", "a", "a")}
    (first, second, third) = of(found)
    assert [one.owner for one in (first, second, third)] == ["a", "c", "b"]
    assert first.device_ns / sum(one.device_ns for one in (first, second, third)) == 280 / 430


def test_devices_are_apart_and_short_waits_are_none() -> None:
    found = swept(span(A, 0, 0, 100), span(B, 0, 50, 60, dev="sdb"), span(B, 50, 59, 60)).counters()
    assert not [group for group in found if group.kind is MEANWHILE]
    assert WAITED.group("sda", B) not in found
    assert found[WAITED.group("sdb", B)][COUNT] == 1


def test_what_is_asked_for_and_what_is_inside_the_time() -> None:
    made = Overlap()
    made.add(span(A, 0, 50, 100), asked=False)
    made.add(span(B, 20, 100, 120), inside=False)
    made.add(span(C, 60, 120, 130))
    found = made.counters()
    # Requests before the selected time count as holders.
    assert found[MEANWHILE.group("sda", C, A)] == {NS: 40 * US}
    assert found[MEANWHILE.group("sda", C, B)] == {NS: 20 * US}
    assert {group.values for group in found if group.kind is not MEANWHILE} == {
        ("sda", "read", "a"),
        ("sda", "read", "c"),
        ("sda", "c"),
    }


owners = st.sampled_from((A, B, C))
times = st.tuples(*[st.integers(0, 400)] * 3).map(sorted)
requests = st.lists(
    st.builds(
        lambda owner, at, dev: span(owner, at[0], at[1], at[2], dev=dev), owners, times, st.sampled_from(("sda", "sdb"))
    ),
    max_size=30,
)


@given(requests)
def test_it_is_what_all_pairs_are(spans: list[Span]) -> None:
    """Spans arrive in the order of their ends."""
    spans = sorted(spans, key=lambda one: one.completed_ns)
    for made in (swept(*spans), swept(*spans, held=1 << 10)):
        found = {group.values: counts[NS] for group, counts in made.counters().items() if group.kind is MEANWHILE}
        assert found == {pair: ns for pair, ns in by_pairs(spans).items() if ns}
        assert made.late == 0


def by_pairs(spans: list[Span]) -> Counter[tuple[str, str, str]]:
    found: Counter[tuple[str, str, str]] = Counter()
    for one in spans:
        for other in spans if one.issued_ns - one.queued_ns >= WAIT_NS else ():
            if one.dev == other.dev:
                both = min(one.issued_ns, other.completed_ns) - max(one.queued_ns, other.issued_ns)
                found[one.dev, one.owner, other.owner] += max(both, 0)
    return found


def test_it_looks_ahead_as_far_as_it_has_room_for() -> None:
    """Many short requests in a row, in pieces; a long one that began before them ends last."""
    many = [span(A, 100 * at, 100 * at, 100 * at + 50) for at in range(200)]
    long = span(B, 0, 20_000, 20_010)
    whole, pieces = swept(*many, long), swept(*many, long, held=8)
    assert whole.counters()[MEANWHILE.group("sda", B, A)] == {NS: 200 * 50 * US}
    assert (whole.late, pieces.late) == (0, 1)
    # Only the part of the long one after the last piece is left.
    assert 0 < pieces.counters()[MEANWHILE.group("sda", B, A)][NS] <= 16 * 50 * US
    # Requests in time are exact in pieces as well: each of these waits for the one before it.
    line = [span(A if at % 2 else B, 50 * at - 30, 50 * at, 50 * at + 50) for at in range(1, 400)]
    found = swept(*line, held=16)
    assert found.late == 0
    assert +by_pairs(line) == {
        group.values: counts[NS] for group, counts in found.counters().items() if group.kind is MEANWHILE
    }
    assert all(two.queued_ns < one.completed_ns for one, two in pairwise(line))


def test_with_too_many_owners_the_rest_is_one() -> None:
    before = overlap._MOST_OWNERS
    overlap._MOST_OWNERS = 2
    try:
        found = of(swept(*(span(Owner(f"o{at}"), 0, 20, 40) for at in range(5))).counters())
    finally:
        overlap._MOST_OWNERS = before
    assert {one.owner: one.requests for one in found} == {"o0": 1, "o1": 1, OTHERS: 3}
