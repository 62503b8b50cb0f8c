# SPDX-License-Identifier: Apache-2.0
"""Filters: predicates, each with its options, its words and its globals.

A predicate has a module here and a header in bpf_src/lib/filters/; a flow lists those that its programs check.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Callable, NamedTuple

from wptrace.errors import UsageError


class Predicate(NamedTuple):
    name: str
    """The name of its option, without dashes."""
    words: str
    """The help of its option; flows may have their own."""
    parse: Callable[[str], Any]
    """Parse the value on the command line, or raise a UsageError."""
    set: Callable[[Any, Any], None] = lambda bss, value: None
    """Writes its globals into .bss; for None, those that pass everything. The switch comes last.

    A flow may use the value itself instead.
    """
    switch: str = ""
    """The global that is set while this predicate, or another with the same switch, is in use."""
    short: str = ""
    """Its option of one letter."""
    metavar: str | None = None
    choices: tuple[str, ...] | None = None
    repeatable: bool = False
    """The option may be repeated; the value is a tuple."""
    describe: Callable[[Any], dict[str, Any]] | None = None
    """Describes the value in the first line of a trace, if it does not do itself."""
    notes: Callable[[Any], list[str]] = lambda value: []
    """Return the notes on the given value."""


Predicates = tuple[Predicate, ...]


class Filter(Mapping[str, Any]):
    """Wanted values by name of the predicate. All must match; an empty filter passes everything."""

    def __init__(self, **wanted: Any) -> None:
        self._wanted = {name: value for name, value in wanted.items() if value is not None}

    def __getitem__(self, name: str) -> Any:
        return self._wanted[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._wanted)

    def __len__(self) -> int:
        return len(self._wanted)

    def __hash__(self) -> int:
        return hash(frozenset(self._wanted.items()))

    def __repr__(self) -> str:
        return f"Filter({', '.join(f'{name}={value!r}' for name, value in self._wanted.items())})"


def parse(options: Mapping[str, Any], predicates: Predicates) -> Filter:
    """Make a filter from the command line."""
    given = {one: options[one.name] for one in predicates if options[one.name] is not None}
    return Filter(
        **{one.name: tuple(map(one.parse, text)) if one.repeatable else one.parse(text) for one, text in given.items()}
    )


def apply(bss: Any, wanted: Filter, predicates: Predicates) -> None:
    """Set all globals of the .bss section, before the load or while programs run.

    Switches come last, so that a filter is complete before it takes effect. A change takes some microseconds, in which
    requests are filtered by a mixture of both.
    """
    foreign = wanted.keys() - {one.name for one in predicates}
    if foreign:
        raise UsageError(f"this flow has no filter by {', '.join(sorted(foreign))}")
    for one in predicates:
        one.set(bss, wanted.get(one.name))
    on = {one.switch for one in predicates if one.name in wanted}
    switches = dict.fromkeys(one.switch for one in predicates if one.switch)
    for switch in switches:
        setattr(bss, switch, switch in on)
    if switches:
        bss.filtering = bool(on)


def describe(wanted: Filter, predicates: Predicates) -> dict[str, Any]:
    """Describe the filters for the first line of a trace."""
    chosen: dict[str, Any] = {}
    for one in predicates:
        if one.name in wanted:
            value = wanted[one.name]
            plain = {one.name: list(value) if one.repeatable else value}
            chosen.update(one.describe(value) if one.describe else plain)
    return chosen


def notes(wanted: Filter, predicates: Predicates) -> list[str]:
    return [note for one in predicates if one.name in wanted for note in one.notes(wanted[one.name])]
