# SPDX-License-Identifier: Apache-2.0
"""All keys of a definition: the source for the reader, the schema for editors, and docs/flows.md."""

from __future__ import annotations

from typing import NamedTuple

from wptrace.engine.definition import definition as d

NAME, LETTER, LINE, FLAG, CHOICE = "name", "letter", "line", "flag", "choice"
"""Kinds of values: a name, one character, one line of text, true or false, or one of the choices."""
EXPRESSION, COMPARISON, COMPARISONS, TARGETS, PARTS, WAYS, NOUN, WORDS, LABELS, POINTS = (
    "expression",
    "comparison",
    "comparisons",
    "targets",
    "parts",
    "ways",
    "noun",
    "words",
    "labels",
    "points",
)
"""PARTS is one expression or several that make one key; WAYS are several PARTS."""

NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9_-]{0,23}"
WORD_PATTERN = r"[A-Za-z_][A-Za-z0-9_]{0,63}"
TARGET_PATTERN = (
    r"(tp|fn|ret):[A-Za-z_][A-Za-z0-9_.]{0,95}|event:[A-Za-z_][A-Za-z0-9_]{0,63}/[A-Za-z_][A-Za-z0-9_]{0,63}"
    # A path in ASCII, a symbol as any compiler makes it, or provider and name of a static probe; no colon in any.
    r"|(ufn|uret):[!-9;-~][ -9;-~]{0,254}:[!-9;-~]{1,255}"
    r"|usdt:[!-9;-~][ -9;-~]{0,254}:[A-Za-z_][A-Za-z0-9_]{0,63}:[A-Za-z_][A-Za-z0-9_]{0,63}"
)
LINE_LENGTH = 160
TEXT_LENGTH = 256
"""The most characters of an expression."""
MAX_TARGETS, MAX_FILTERS, MAX_PARTS, MAX_WAYS, MAX_WORDS = 8, 8, 2, 4, 4


class Key(NamedTuple):
    name: str
    kind: str
    about: str
    required: bool = False
    choices: tuple[str, ...] = ()
    most: int = 1
    """The most values in a list."""


DEFINITION = (
    Key("name", NAME, "what the flow is called", required=True),
    Key("about", LINE, "one line on what it follows"),
    Key("noun", NOUN, 'what one object is called, or a list of one and many: ["entry", "entries"]', most=2),
    Key("key", PARTS, "what finds the object at every point that has no key of its own", most=MAX_PARTS),
    Key("keys", WAYS, "several of these: the first that all points have on this kernel", most=MAX_WAYS),
    Key("nest", CHOICE, "of nested calls with the same key only the outermost counts", choices=(d.OUTER,)),
    Key("module", WORDS, "the module whose tracepoints and functions are meant, or a list of some", most=MAX_WORDS),
    Key("point", POINTS, "the points, in the order in which they are passed", required=True, most=d.MAX_POINTS),
)
POINT = (
    Key("name", NAME, "what is reached here; points with the same name are branches of one", required=True),
    Key("letter", LETTER, "one character for tables; else one of its name"),
    Key("at", TARGETS, "where, or a list of which the first that exists is used", required=True, most=MAX_TARGETS),
    Key("key", PARTS, "what finds the object here", most=MAX_PARTS),
    Key(
        "role",
        CHOICE,
        "else the first point begins, those with an outcome end, without such the last one ends, the others pass",
        choices=(d.BEGIN, d.PASS, d.END, d.DROP),
    ),
    Key("begins", FLAG, "a point that passes begins what has not been seen before as well"),
    Key("becomes", EXPRESSION, "what finds the object from here on"),
    Key("outcome", NAME, "under what its end is counted"),
    Key("optional", FLAG, "a kernel that lacks it does without"),
    Key("quiet", FLAG, "objects that were not seen to begin are not reported; also where a begin has a filter"),
    Key("filter", COMPARISONS, "the point is seen only if this holds, or all of a list", most=MAX_FILTERS),
    Key(
        "value",
        EXPRESSION,
        "a number that is added up: of each object the last one, unless it is below 0",
    ),
    Key("unit", CHOICE, "that of the value; else bytes", choices=d.UNITS),
    Key("labels", LABELS, "by what rows are kept apart: expressions, or tables", most=d.MAX_LABEL_WORDS),
    Key(
        "repeat",
        CHOICE,
        "what a second begin does: nothing, or it begins anew; where a point `begins`, what is in flight passes",
        choices=(d.FIRST, d.RESTART),
    ),
    Key("after", NAME, "the object is seen here only if it has passed the point of this name"),
    Key("mark", EXPRESSION, "a number that the object has from here on,"),
    Key("reached", EXPRESSION, "and it passes here only when this is at least as much; 32 bits, that wrap"),
    Key("failed", COMPARISON, "an end counts as failed if this holds"),
    Key("stage", NAME, "what the time from here to the next point is called; else the name of the point"),
    Key("description", LINE, "what that stage is"),
    Key("meaning", LINE, "what a large value of it means"),
    Key("advice", LINE, "what to look at next, if it is the largest"),
)
LABEL = (
    Key("name", NAME, "what the label is called; else its last field"),
    Key("value", EXPRESSION, "what it is", required=True),
    Key("as", CHOICE, "how it is shown; else as its type says", choices=d.LABEL_TYPES),
    Key(
        "enum",
        WORDS,
        "the enum that has names for it, or one of its names where it has none itself; of a list the first that exists",
        most=MAX_WORDS,
    ),
    Key("optional", FLAG, "a kernel that lacks it does without"),
)
