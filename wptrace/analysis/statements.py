# SPDX-License-Identifier: Apache-2.0
"""Texts of statements: those that differ in literals alone are one, and a text that is none is told apart."""

from __future__ import annotations

import re
from functools import lru_cache

FULL, NORMALISED, OFF = "full", "normalised", "off"
TEXTS = (NORMALISED, FULL, OFF)
"""How the text of a statement is shown (`--statement-text`)."""

# Each begins where the one before ended, and none looks back: a text is gone through once. Whatever has no end, as it
# was cut off, ends with the text.
_WHOLE = r"0(?:[xX][0-9a-fA-F_]+|[bB][01_]+|[oO][0-7_]+)"
_NUMBER = rf"(?:{_WHOLE}|[0-9][0-9_]*(?:\.[0-9_]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?)"
_SQL = rf"""
    (?P<blank>(?:\s+|--[^\n]*|/\*.*?(?:\*/|\Z))+)
    |(?P<literal>
        [eE]'(?:[^'\\]|\\.|'')*(?:'|\\?\Z)
        |(?:[bBxXnN]|[uU]&)?'(?:[^']|'')*(?:'|\Z)
        |\$(?P<tag>(?:[^\W\d]\w*)?)\$.*?(?:\$(?P=tag)\$|\Z)
        |{_NUMBER}
    )
    |(?P<word>[^\W\d][\w$]*|"(?:[^"]|"")*(?:"|\Z)|\$[0-9]+)
    |(?P<sign>.)
    """
# A backslash escapes, and `"` is another `'`; names are in backquotes.
_MYSQL = rf"""
    (?P<blank>(?:\s+|\#[^\n]*|--(?=\s|\Z)[^\n]*|/\*.*?(?:\*/|\Z))+)
    |(?P<literal>
        (?:[bBxXnN]|_\w+\s*)?(?:'(?:[^'\\]|\\.|'')*(?:'|\\?\Z)|"(?:[^"\\]|\\.|"")*(?:"|\\?\Z))
        |{_NUMBER}
    )
    |(?P<word>[^\W\d][\w$]*|`(?:[^`]|``)*(?:`|\Z)|@+[\w$.]+)
    |(?P<sign>.)
    """
SQL, MYSQL = "sql", "mysql"
"""How literals are written."""
_TOKENS = {SQL: _SQL, MYSQL: _MYSQL}
_ROW = r"\( ?(?:\?|\$[0-9]+)(?:, \.\.\.)? ?\)"
# Lists of any length are one: of literals with any sign, of parameters, and of rows of these.
_LISTS = (
    (re.compile(r"(?<=\()( ?)-(?=\?)"), r"\1"),
    (re.compile(r"\?(?: ?, ?-?\?)+"), "?, ..."),
    (re.compile(r"(\$[0-9]+)(?: ?, ?\$[0-9]+)+"), r"\1, ..."),
    (re.compile(rf"({_ROW})(?: ?, ?{_ROW})+"), r"\1, ..."),
)
_COMMENT = "/* ... */"
# What no text of a statement has, in whatever encoding: those of ASCII but blanks, and of Unicode.
_CONTROL = re.compile("[\0-\x08\x0e-\x1f\x7f-\x9f]")
_DIGITS = 12

# Of titles: the port of a client, whom a process works for, how far a log or a time line is.
_VARYING = (
    (re.compile(r"\([0-9]+\)"), ""),
    (re.compile(r" for PID [0-9]+"), ""),
    (re.compile(r"\b[0-9A-F]+/[0-9A-F]+\b|\b[0-9A-F]{24}(?:\.\w+)*"), "?"),
)


def decoded(text: bytes, cut: bool) -> str:
    """Empty where it is none. Any encoding that has ASCII may be that of a database: bytes that are no UTF-8 survive as
    surrogates. Where the text was `cut` off, the last character may be half of one."""
    found = text.decode("utf-8", "surrogateescape")
    if cut:
        found = re.sub("[\udc80-\udcff]{1,3}\\Z", "", found)
    return "" if _CONTROL.search(found) else " ".join(found.split())


def shown(text: str, how: str, noun: str = "statement", quotes: str = SQL) -> str:
    """Return how a statement or unit is shown: `full`, `normalised`, or as a number."""
    if how == FULL:
        return text
    found = normalised(text, quotes)
    if how == OFF:
        import hashlib

        return f"{noun} {hashlib.sha256(found.encode('utf-8', 'surrogateescape')).hexdigest()[:_DIGITS]}"
    return found


@lru_cache
def _tokens(quotes: str) -> re.Pattern[str]:
    return re.compile(_TOKENS[quotes], re.VERBOSE | re.DOTALL)


def normalised(text: str, quotes: str = SQL) -> str:
    """Return a statement without literals and comments; one that begins with a long comment may have nothing else."""
    parts: list[str] = []
    for match in _tokens(quotes).finditer(text):
        kind = match.lastgroup
        if kind == "blank":
            parts.append(" ")
        elif kind == "sign" or kind == "word":
            parts.append(match[0])
        else:
            parts.append("?")
    found = " ".join("".join(parts).split()).rstrip("; ")
    for many, one in _LISTS:
        found = many.sub(one, found)
    return found or _COMMENT


def title(text: str) -> str:
    """The title that a process gave itself, without the parts that vary."""
    for varying, instead in _VARYING:
        text = varying.sub(instead, text)
    return " ".join(text.split())
