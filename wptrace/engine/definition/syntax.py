# SPDX-License-Identifier: Apache-2.0
"""Parses expressions and comparisons; on any error it raises a TextError with the place."""

from __future__ import annotations

import re
from typing import Any, Callable, NamedTuple, NoReturn

from wptrace.engine.definition.expression import Choice, Comparison, Expression, Literal, Name, Path, Step
from wptrace.engine.definition.faults import Place
from wptrace.errors import UsageError

MAX_LENGTH = 256
MAX_DEPTH = 4
"""The limit for nested parentheses and casts."""
MAX_STEPS = 12
MAX_CHOICES = 4
MAX_LITERALS = 8
MAX_STRING = 64

_SWAPS = {"ntohs": 16, "ntohl": 32, "ntohll": 64}
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>0[xX][0-9a-fA-F]{1,16}|[0-9]{1,20})(?![0-9A-Za-z_])
    | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<string>"[^"]*"|'[^']*')
    | (?P<sign>->|\|\||==|!=|<=|>=|&&|[-.|<>&()\[\],*:])
    )""",
    re.VERBOSE | re.ASCII,
)
_OPERATORS = ("==", "!=", "<", "<=", ">", ">=", "&", "in")
_MINIMUM, _MAXIMUM = -(1 << 63), (1 << 64) - 1


class TextError(UsageError):
    """An error at a character of the text; the caller, who knows the file, reports it."""

    def __init__(self, message: str, at: int) -> None:
        super().__init__(message)
        self.at = at


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


def expression(text: str, place: Place) -> Expression:
    reader = _Reader(text)
    found = reader.expression()
    reader.require_end()
    return Expression(found, text, place)


def comparison(text: str, place: Place) -> Comparison:
    reader = _Reader(text)
    start = reader.expression()
    left_end = reader.last_end
    sign = reader.peek
    if sign.text not in _OPERATORS or sign.kind == "string":
        raise TextError(f"a comparison is needed here: one of {' '.join(_OPERATORS)}", sign.at)
    reader.take()
    right = reader.literals(sign.text == "in")
    reader.require_end()
    texts = any(isinstance(literal, str) for literal in right)
    if texts and sign.text not in ("==", "!=", "in"):
        raise TextError(f"{sign.text} does not compare texts; == != and in do", sign.at)
    if texts and not all(isinstance(literal, str) for literal in right):
        raise TextError("a text cannot be compared with a number", sign.at)
    return Comparison(Expression(start, text[:left_end].strip(), place), sign.text, right, text, place)


class _Reader:
    def __init__(self, text: str) -> None:
        if len(text) > MAX_LENGTH:
            raise TextError(f"it has {len(text)} characters; there is room for {MAX_LENGTH}", MAX_LENGTH)
        self._text = text
        self._tokens = list(_tokens(text))
        self._next = 0
        self._depth = 0

    @property
    def peek(self) -> _Token:
        return self._tokens[self._next]

    @property
    def last_end(self) -> int:
        """The position after the last token."""
        last = self._tokens[self._next - 1]
        return last.at + len(last.text)

    def take(self) -> _Token:
        token = self._tokens[self._next]
        if token.kind != "end":
            self._next += 1
        return token

    def _has(self, sign: str) -> bool:
        if self.peek.kind == "sign" and self.peek.text == sign:
            self._next += 1
            return True
        return False

    def _fail(self, wanted: str) -> NoReturn:
        token = self.peek
        found = "the end" if token.kind == "end" else token.text
        raise TextError(f"{wanted} is needed here, not {found}", token.at)

    def _need(self, sign: str) -> None:
        if not self._has(sign):
            self._fail(sign)

    def _take_a(self, kind: str, wanted: str) -> _Token:
        if self.peek.kind != kind:
            self._fail(wanted)
        return self.take()

    def require_end(self) -> None:
        if self.peek.kind != "end":
            token = self.peek
            hint = "; write several filters, all of which must hold" if token.text in ("&&", "and") else ""
            raise TextError(f"{token.text} is not expected here{hint}", token.at)

    def expression(self) -> tuple[Choice, ...]:
        return self._list("||", self._choice)

    def _choice(self) -> Choice:
        return self._list("|", self._path)

    def _list(self, sign: str, one: Callable[[], object]) -> tuple[Any, ...]:
        found = [one()]
        while self.peek.text == sign and self.peek.kind == "sign":
            at = self.take().at
            if len(found) == MAX_CHOICES:
                raise TextError(f"there is room for {MAX_CHOICES} alternatives", at)
            found.append(one())
        return tuple(found)

    def _path(self) -> Path:
        at = self.peek.at
        found = self._primary()
        steps = self._steps()
        if steps and isinstance(found.root, int):
            raise TextError("a number has no fields", steps[0].at)
        if steps and found.swap:
            raise TextError("a swapped value is a number and has no fields", steps[0].at)
        if steps and (found.bits or found.string):
            raise TextError("bits and texts have no fields", steps[0].at)
        if steps:
            found = found._replace(steps=steps) if not found.steps else Path(found, steps)
        if self._has(":"):
            found = self._text_at(found) if self.peek.text == "str" else found._replace(bits=self._bits(found))
        return found._replace(at=at, text=self._text[at : self.last_end])

    def _text_at(self, found: Path) -> Path:
        token = self.take()
        if found.swap or found.bits or found.string or isinstance(found.root, int):
            raise TextError("a text is at an address that is read", token.at)
        return found._replace(string=True)

    def _bits(self, found: Path) -> int:
        token = self._take_a("number", "a number of bits or str")
        if found.swap or found.bits or found.string or isinstance(found.root, int):
            raise TextError("bits can only be taken once, and of a value that is read", token.at)
        if not 0 < _number(token) < 64:
            raise TextError("1 to 63 bits can be taken", token.at)
        return _number(token)

    def _steps(self) -> tuple[Step, ...]:
        steps: list[Step] = []
        while True:
            at = self.peek.at
            if len(steps) == MAX_STEPS:
                raise TextError(f"there is room for {MAX_STEPS} steps", at)
            if self._has("->") or self._has("."):
                token = self._take_a("name", "the name of a field")
                steps.append(Step(token.text, None, token.at))
            elif self._has("["):
                token = self._take_a("number", "a number")
                self._need("]")
                steps.append(Step("", _number(token), token.at))
            else:
                return tuple(steps)

    def _primary(self) -> Path:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise TextError(f"parentheses and casts are nested more than {MAX_DEPTH} deep", self.peek.at)
        found = self._unnested()
        self._depth -= 1
        return found

    def _unnested(self) -> Path:
        token = self.peek
        if token.kind == "number":
            self.take()
            return Path(_number(token), at=token.at, text=token.text)
        if token.kind == "name":
            return self._named()
        if not self._has("("):
            self._fail("a name")
        if self.peek.kind == "name" and self.peek.text == "struct":
            return self._cast()
        found = self._path()
        self._need(")")
        return found

    def _named(self) -> Path:
        token = self.take()
        if self.peek.text != "(" or self.peek.kind != "sign":
            return Path(token.text, at=token.at, text=token.text)
        if token.text not in _SWAPS:
            known = ", ".join(_SWAPS)
            raise TextError(f"there is no function {token.text}, only {known}", token.at)
        self.take()
        inner = self._path()
        self._need(")")
        if inner.swap or inner.bits or inner.string:
            raise TextError("a value that was swapped or cut, or a text, cannot be swapped", token.at)
        return inner._replace(swap=_SWAPS[token.text])

    def _cast(self) -> Path:
        self.take()
        token = self._take_a("name", "the name of a struct")
        if not self._has("*"):
            self._fail("*, as all that is cast is a pointer,")
        self._need(")")
        inner = self._primary()
        if isinstance(inner.root, int) or inner.swap or inner.bits or inner.string:
            raise TextError("only a pointer can be cast", token.at)
        if not inner.steps and not inner.cast:
            return inner._replace(cast=token.text)
        return Path(inner, cast=token.text, at=token.at)

    def literals(self, several: bool) -> tuple[Literal, ...]:
        # A text alone is a cgroup and all below it.
        if not several or self.peek.kind == "string":
            return (self._literal(),)
        self._need("[")
        found = [self._literal()]
        while self._has(","):
            if len(found) == MAX_LITERALS:
                raise TextError(f"there is room for {MAX_LITERALS} values", self.peek.at)
            found.append(self._literal())
        self._need("]")
        return tuple(found)

    def _literal(self) -> Literal:
        token = self.peek
        if token.kind == "string":
            self.take()
            text = token.text[1:-1]
            if len(text.encode("utf-8", "replace")) > MAX_STRING:
                raise TextError(f"a text has at most {MAX_STRING} bytes", token.at)
            if "\0" in text:
                raise TextError("a text has no NUL", token.at)
            return text
        if token.kind == "name":
            self.take()
            return Name(token.text, token.at)
        negative = self._has("-")
        number = _number(self._take_a("number", "a number, a text in quotes or the name of an enum's value"))
        if negative and -number < _MINIMUM:
            raise TextError("the number does not fit 64 bits", token.at)
        return -number if negative else number


def _tokens(text: str) -> list[_Token]:
    found = []
    at = 0
    end = len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            rest = text[at:]
            at += len(rest) - len(rest.lstrip())
            if text[at] in "\"'":
                raise TextError("this text is not terminated", at)
            if text[at].isdigit():
                raise TextError("this is not a number", at)
            raise TextError(f"{text[at]!r} means nothing here", at)
        kind = match.lastgroup or ""
        found.append(_Token(kind, match.group(kind), match.start(kind)))
        at = match.end()
    return [*found, _Token("end", "", len(text))]


def _number(token: _Token) -> int:
    number = int(token.text, 16) if token.text[:2] in ("0x", "0X") else int(token.text)
    if number > _MAXIMUM:
        raise TextError("the number does not fit 64 bits", token.at)
    return number
