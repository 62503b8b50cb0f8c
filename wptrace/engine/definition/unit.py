# SPDX-License-Identifier: Apache-2.0
"""Definitions of units of work: what a task of a program works on, for `wptrace io --by unit`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from wptrace.analysis.statements import MYSQL, SQL
from wptrace.engine.definition import source
from wptrace.engine.definition.definition import IN_PROGRAMS, STATIC_PROBE, USER_FUNCTION, USER_RETURN
from wptrace.engine.definition.faults import DefinitionError, did_you_mean
from wptrace.engine.definition.keys import CHOICE, LINE, NAME, Key
from wptrace.engine.definition.places import Places
from wptrace.engine.definition.reading import Reader, Way
from wptrace.engine.definition.registers import ARGUMENTS, OFFSETS
from wptrace.errors import UsageError
from wptrace.kernel import binaries, sdt
from wptrace.kernel.binaries import Binary, Spot, Variable
from wptrace.kernel.sdt import Operand

POINTER, ARRAY, NUMBER = "char *", "char[]", "int"
TYPES = (POINTER, ARRAY, NUMBER)
"""Types of variables."""

_PROGRAM, _SYMBOL, _POINTS, _ENDS, _ARGUMENT, _CHOSEN, _OTHERS = (
    "program",
    "symbol",
    "begins",
    "ends",
    "argument",
    "chosen",
    "others",
)
UNIT = (
    Key("name", NAME, "what it is called", required=True),
    Key("about", LINE, "one line on what a unit is"),
    Key("program", _PROGRAM, "the path of the program, or its name in PATH; `--program` replaces it", required=True),
    Key("begin", _POINTS, "where a unit begins, or a list of which the first that exists is used", most=8),
    Key("end", _ENDS, "where it ends, in the same task", most=8),
    Key("label", _ARGUMENT, "of `begin`: `argN:str` is a text, `argN` a number, `argN:32` its lowest 32 bits"),
    Key("length", _ARGUMENT, "how long that text is at most; else it ends with a NUL"),
    Key("only", _CHOSEN, "`argN == NUMBER`: other values of this argument have no label"),
    Key("others", _OTHERS, "with `only`: a table of names for other values"),
    Key("later", _POINTS, "where one of the `others` gets a text after all, or a list as of `begin`", most=8),
    Key("later_label", _ARGUMENT, "of `later`: `argN:str`"),
    Key("later_length", _ARGUMENT, "how long that text is at most; else it ends with a NUL"),
    Key("variable", _SYMBOL, "instead of all these: a global variable, read when an operation begins"),
    Key("type", CHOICE, "its type; else `char *`", choices=TYPES),
    Key(
        "quotes",
        CHOICE,
        "how literals are written; in MySQL `\"` is another `'`, and a backslash escapes",
        choices=(SQL, MYSQL),
    ),
)
_MOST_OTHERS, _LONGEST_OTHER = 64, 64
_EXPRESSION = re.compile(r"arg(?P<number>[0-9]{1,2})(?::(?:(?P<text>str)|(?P<bits>[1-9][0-9]?)))?", re.ASCII)
_COMPARED = re.compile(r"(?P<argument>arg[0-9:]{1,6}) *== *(?P<value>[0-9]{1,10})", re.ASCII)
_POINT = re.compile(
    r"(?:ufn|uret):[!-9;-~]{1,255}|usdt:[A-Za-z_][A-Za-z0-9_]{0,63}:[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII
)
_BITS = 64
_HOME = Path(__file__).parents[2] / "flows" / "units"


class Argument(NamedTuple):
    number: int
    text: bool = False
    bits: int = 0
    """That count; 0: all."""


class Chosen(NamedTuple):
    argument: Argument
    value: int


class Unit(NamedTuple):
    name: str
    program: str
    begin: tuple[str, ...] = ()
    """As `ufn:FUNCTION` or `usdt:PROVIDER:NAME`."""
    end: tuple[str, ...] = ()
    label: Argument | None = None
    length: Argument | None = None
    only: Chosen | None = None
    others: Mapping[int, str] = MappingProxyType({})
    later: tuple[str, ...] = ()
    later_label: Argument | None = None
    later_length: Argument | None = None
    variable: str = ""
    type: str = POINTER
    quotes: str = SQL
    about: str = ""


def names() -> list[str]:
    """The definitions that come with wptrace."""
    return sorted(path.stem for path in _HOME.glob("*.toml"))


def find(text: str) -> Unit:
    """Find the definition that the user named: one of these, or a file."""
    if text in names():
        return read(_HOME / f"{text}.toml")
    if "/" in text or text.endswith(".toml"):
        return read(Path(text))
    known = ", ".join(names())
    raise UsageError(f"there is no unit {text!r}{did_you_mean(text, names())}", hint=f"{known}, or a file FILE.toml")


def read(path: Path) -> Unit:
    return parse(source.read(path, "definition of a unit"), str(path))


def parse(text: str, file: str) -> Unit:
    """Parse a definition, or raise DefinitionError."""
    reader = _UnitReader(source.tables(text, file), Places(text), file)
    found = reader.unit()
    if reader.faults:
        raise DefinitionError(file, [min(reader.faults, key=lambda fault: fault.place)])
    return found


class _UnitReader(Reader):
    texts: ClassVar[Mapping[str, tuple[str, str]]] = {
        **Reader.texts,
        _PROGRAM: ("[!-9;-~][ -9;-~]{0,254}", "a path or name without a colon"),
        _SYMBOL: ("[!-~]{1,255}", "the name of a variable"),
    }
    lists: ClassVar[Mapping[str, str]] = {_POINTS: "begin", _ENDS: "end"}

    def unit(self) -> Unit:
        for name in self._tables:
            if name != "unit":
                self._fault(f"there is no table {name[:40]!r} here, only [unit]", self._places.key(name))
        if "unit" not in self._tables:
            self._fault("there is no table [unit]", self._places.key())
            return Unit("", "")
        has = self._table(self._tables["unit"], ("unit",), UNIT, "a unit")
        found = Unit(**{"name": "", "program": "", **has})
        if not self.faults:
            for message in _inconsistent(has):
                self._fault(message, self._places.key("unit"))
        return found

    def _begin(self, key: Key, value: Any, way: Way) -> str | None:
        return self._point(key, value, way, (USER_FUNCTION, STATIC_PROBE), "ufn:FUNCTION or usdt:PROVIDER:NAME")

    def _end(self, key: Key, value: Any, way: Way) -> str | None:
        return self._point(key, value, way, IN_PROGRAMS, "uret:FUNCTION, ufn:FUNCTION or usdt:PROVIDER:NAME")

    def _point(self, key: Key, value: Any, way: Way, kinds: tuple[str, ...], wanted: str) -> str | None:
        found = self._matching(key, value, way, _POINT.pattern, wanted)
        if found is not None and found.partition(":")[0] not in kinds:
            self._fault(f"{key.name} is {wanted}, not {found[:40]}", self._places.value(*way))
            return None
        return found

    def _argument(self, key: Key, value: Any, way: Way) -> Argument | None:
        found = self._matching(key, value, way, _EXPRESSION.pattern, "argN:str, argN or argN:BITS")
        argument = None if found is None else _argument(found)
        if found is not None and argument is None:
            self._fault(f"{key.name} has at most {_BITS} bits, not {found}", self._places.value(*way))
        return argument

    def _chosen(self, key: Key, value: Any, way: Way) -> Chosen | None:
        wanted = "argN == NUMBER or argN:BITS == NUMBER"
        found = self._matching(key, value, way, _COMPARED.pattern, wanted)
        match = None if found is None else _COMPARED.fullmatch(found)
        if match is None:
            return None
        argument = _argument(match["argument"])
        if argument is None:
            self._fault(f"{key.name} is {wanted}", self._places.value(*way))
            return None
        if argument.bits and int(match["value"]) >> argument.bits:
            self._fault(f"{match['argument']} is never {match['value']}", self._places.value(*way))
            return None
        return Chosen(argument, int(match["value"]))

    def _others(self, key: Key, value: Any, way: Way) -> dict[int, str] | None:
        if not isinstance(value, dict) or not 0 < len(value) <= _MOST_OTHERS:
            self._fault(f"{key.name} is a table of up to {_MOST_OTHERS} names", self._places.key(*way))
            return None
        found = {}
        for number, name in value.items():
            if not re.fullmatch("[0-9]{1,10}", number, re.ASCII):
                wanted = f"{key.name} has names for numbers, not for {number[:40]!r}"
                self._fault(wanted, self._places.key(*way, number))
            elif not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= _LONGEST_OTHER:
                wanted = f"one line of up to {_LONGEST_OTHER} characters"
                self._fault(f"a name in {key.name} is {wanted}", self._places.value(*way, number))
            else:
                found[int(number)] = name
        return found


def _argument(text: str) -> Argument | None:
    match = _EXPRESSION.fullmatch(text)
    if match is None or int(match["bits"] or 0) > _BITS:
        return None
    return Argument(int(match["number"]), match["text"] is not None, int(match["bits"] or 0))


def _inconsistent(has: dict[str, Any]) -> Iterator[str]:
    probes = [key.name for key in UNIT if key.name in has and key.kind in (_POINTS, _ENDS, _ARGUMENT, _CHOSEN, _OTHERS)]
    if "variable" in has and probes:
        yield f"a unit has a variable or {probes[0]}, not both"
        return
    if "variable" not in has:
        for name in ("begin", "end", "label"):
            if name not in has:
                yield f"a unit lacks {name}, or a variable"
                return
    if "type" in has and "variable" not in has:
        yield "type is that of a variable, and there is none"
    if "length" in has and not has["label"].text:
        yield "length is that of a text, and the label is a number"
    if "length" in has and has["length"].text:
        yield "length is a number, not a text"
    if ("later" in has) != ("later_label" in has) or ("later_length" in has and "later" not in has):
        yield "later has a later_label, and may have a later_length"
        return
    if "later" in has and not ("others" in has and has["label"].text and has["later_label"].text):
        yield "later gives a text to one of the others of units whose label is a text"
    if "later_length" in has and has["later_length"].text:
        yield "later_length is a number, not a text"
    if "others" in has and "only" not in has:
        yield "others are other values of what only compares, and there is no only"


# --- In a program -----------------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """An argument at a probe, as the programs read it (`struct operand`)."""

    number: int = 0
    place: int = 0
    known: int = 0
    in_register: int = 0
    in_memory: int = 0
    size: int = 0
    bits: int = 0


class Found(NamedTuple):
    """A unit in the file of its program."""

    path: str
    file: binaries.Identity
    begins: tuple[Spot, ...] = ()
    ends: tuple[Spot, ...] = ()
    at_return: bool = False
    """Where it ends."""
    label: Place = Place()
    length: Place = Place()
    choice: Place = Place()
    variable: Variable | None = None
    laters: tuple[Spot, ...] = ()
    later_label: Place = Place()
    later_length: Place = Place()


class _Point(NamedTuple):
    spots: tuple[Spot, ...]
    at_return: bool
    operands: tuple[Operand | str, ...] | None
    """Of a static probe."""


def look_up(unit: Unit, machine: str) -> Found:
    with binaries.opened(unit.program, machine) as binary:
        if unit.variable:
            return Found(binary.path, binary.identity, variable=_variable(unit, binary))
        begin, end = _first(unit.begin, binary, machine), _first(unit.end, binary, machine)

        later = _Point((), False, None)
        if unit.later:
            with suppress(binaries.UnknownNameError):  # then they have none
                later = _first(unit.later, binary, machine)

        def place(argument: Argument | None, point: _Point = begin) -> Place:
            return Place() if argument is None else _place(argument, point, binary.path, machine)

        return Found(
            binary.path,
            binary.identity,
            begin.spots,
            end.spots,
            end.at_return,
            place(unit.label),
            place(unit.length),
            place(None if unit.only is None else unit.only.argument),
            None,
            later.spots,
            place(unit.later_label if later.spots else None, later),
            place(unit.later_length if later.spots else None, later),
        )


def _variable(unit: Unit, binary: Binary) -> Variable:
    found = binary.variable(unit.variable)
    sizes = {POINTER: (8,), NUMBER: (1, 2, 4, 8)}.get(unit.type)
    if sizes is not None and found.size not in sizes:
        raise UsageError(f"{unit.variable} of {binary.path} has {found.size} bytes: it is no {unit.type}")
    return found


def _first(points: tuple[str, ...], binary: Binary, machine: str) -> _Point:
    """The first one that exists."""
    missing: binaries.UnknownNameError | None = None
    for point in points:
        try:
            return _point(point, binary, machine)
        except binaries.UnknownNameError as error:
            missing = missing or error
    raise missing or UsageError("a unit has no point")


def _point(point: str, binary: Binary, machine: str) -> _Point:
    kind, _, name = point.partition(":")
    if kind != STATIC_PROBE:
        at_return = kind == USER_RETURN
        return _Point(((binary.returning if at_return else binary.function)(name),), at_return, None)
    provider, _, probe = name.partition(":")
    sites = sdt.sites(binary, provider, probe, machine)
    return _Point(tuple(site.spot for site in sites), False, _alike([site.operands for site in sites]))


def _alike(found: list[tuple[Operand | str, ...]]) -> tuple[Operand | str, ...]:
    """The arguments of all places of a probe. One program serves all: what differs is none of it."""
    first, *rest = found
    return tuple(
        one if all(number < len(other) and other[number] == one for other in rest) else "several places"
        for number, one in enumerate(first)
    )


def _place(argument: Argument, begin: _Point, path: str, machine: str) -> Place:
    name = f"arg{argument.number}"
    if begin.operands is None:
        registers = ARGUMENTS.get(machine, ())
        if argument.number >= len(registers):
            raise UsageError(f"{name} is not in a register: the limit is arg{len(registers) - 1}")
        return Place(0, registers[argument.number], known=1, in_register=1, bits=argument.bits or _BITS)
    if argument.number >= len(begin.operands):
        raise UsageError(f"the probe of {path} has no {name}: it has {len(begin.operands)}, counted from arg0")
    found = begin.operands[argument.number]
    if isinstance(found, str):
        raise UsageError(f"{name} of the probe of {path} is at {found}, which cannot be read here")
    bits = min(argument.bits or _BITS, 8 * found.size)
    if not found.register:
        return Place(found.number, known=1, bits=bits)
    return Place(found.number, OFFSETS[machine][found.register], 1, 1, int(found.in_memory), found.size, bits)
