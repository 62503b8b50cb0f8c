# SPDX-License-Identifier: Apache-2.0
"""The live screen: as much as fits, the most important to the last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wptrace.outputs.text.view import Forms

# The sections in the order from top to bottom.
SECTIONS = (
    "title", "time", "load", "verdict", "past", "stuck",
    "operations", "page-cache hits", "layers", "block requests", "waits of tasks", "writeback",
    "owners of requests", "owners of operations", "owners of hits", "owners of waits", "neighbours", "devices",
    "slow ones",
    "accounting", "losses", "budget", "own cost",
)  # fmt: skip

# These stand together.
_TOGETHER = (("title", "time", "load", "verdict", "past"), ("accounting", "losses", "budget", "own cost"))

_TOO_LOW = "(the terminal is too small for more)"

# The steps to save lines, in this order: the section, and the form to which it is cut.
STEPS = (
    ("title", 1),
    ("accounting", 1),
    ("past", 1),
    ("owners of waits", 1),
    ("owners of hits", 1),
    ("owners of operations", 1),
    ("load", 1),
    ("waits of tasks", 1),
    ("layers", 1),
    ("writeback", 1),
    ("block requests", 1),
    ("slow ones", 1),
    ("layers", 2),
    ("writeback", 2),
    ("waits of tasks", 2),
    ("block requests", 2),
    ("owners of requests", 1),
    ("operations", 1),
    ("stuck", 1),
    ("own cost", 1),
    ("layers", 3),
    ("writeback", 3),
    ("waits of tasks", 3),
    ("block requests", 3),
    ("slow ones", 2),
    ("owners of waits", 2),
    ("owners of hits", 2),
    ("owners of operations", 2),
    ("layers", 4),
    ("writeback", 4),
    ("waits of tasks", 4),
    ("block requests", 4),
    ("owners of waits", 3),
    ("owners of hits", 3),
    ("page-cache hits", 1),
    ("past", 2),
    ("owners of operations", 3),
    ("devices", 1),
    ("owners of requests", 2),
    ("operations", 2),
    ("neighbours", 1),
    ("stuck", 2),
    ("budget", 1),
    ("losses", 1),
    ("devices", 2),
    ("verdict", 1),
    ("owners of requests", 3),
    ("slow ones", 3),
    ("load", 2),
    ("devices", 3),
    ("neighbours", 2),
    ("neighbours", 3),
    ("operations", 3),
)


def fits(sections: Mapping[str, Forms], height: int) -> bool:
    """Whether all sections fit."""
    return len(_lines(sections, {name: 0 for name in SECTIONS if sections.get(name)})) <= height


def fit(sections: Mapping[str, Forms], height: int, without: Sequence[str] = ()) -> list[str]:
    """The lines of all sections, shortened where the screen is too low for them.

    `without` names what they do not have any more for want of room.
    """
    chosen = {name: 0 for name in SECTIONS if sections.get(name)}
    given = []
    for name, form in STEPS:
        if len(_lines(sections, chosen, without)) <= height:
            break
        # Beside each other, two tables may take fewer lines than one of them with a line for the other.
        forms = sections[name] if name in chosen else ()
        if form < len(forms) and len(forms[form]) < len(forms[chosen[name]]):
            given.append((name, chosen[name]))
            chosen[name] = form
    # The last to give way are the first to get back what the others left.
    for name, form in reversed(given):
        before = {**chosen, name: form}
        if form < chosen[name] and len(_lines(sections, before, without)) <= height:
            chosen = before
    lines = _lines(sections, chosen, without)
    return lines if len(lines) <= height else [*lines[: max(height - 1, 0)], _TOO_LOW][: max(height, 1)]


def _lines(sections: Mapping[str, Forms], chosen: Mapping[str, int], without: Sequence[str] = ()) -> list[str]:
    lines: list[str] = []
    before = ""
    for name, form in chosen.items():
        found = sections[name][form]
        if lines and found and not any(name in one and before in one for one in _TOGETHER):
            lines.append("")
        lines += found
        before = name if found else before
    shortened = [*without, *(name for name, form in chosen.items() if form)]
    return [*lines, f"(cut to fit: {', '.join(shortened)})"] if shortened else lines
