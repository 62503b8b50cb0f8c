# SPDX-License-Identifier: Apache-2.0
"""The configuration of the agent: a TOML file, or all that is wrong with it and where."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple

from wptrace.engine.definition import source
from wptrace.engine.definition.faults import DefinitionError, Fault, did_you_mean
from wptrace.engine.definition.places import Places
from wptrace.engine.flow import Flow
from wptrace.errors import UsageError
from wptrace.model.units import parse_share

_MOST_FAULTS = 20
_MOST_FLOWS = 8
_MOST_VALUES = 256
"""In a list, such as that of devices."""
_LONGEST_HOST = 253

Settings = Mapping[str, Any]
"""Of a command: values by the names of its options."""
Make = Callable[[str, Settings], Sequence[Flow]]
"""Makes the flows of a command with these options, by the code of the command itself."""


class ConfigError(DefinitionError):
    check = "wptrace agent --check"


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address(text: str) -> Address:
    """The host and port of 127.0.0.1:9435, [::1]:9435 or localhost:9435."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    right = re.fullmatch(r"[A-Za-z0-9.:_-]+", host) and re.fullmatch(r"[0-9]{1,5}", port)
    if not colon or not right or len(host) > _LONGEST_HOST or int(port) > 0xFFFF:
        raise UsageError(f"an address such as 127.0.0.1:9435 or [::1]:9435, not {_shown(text)}")
    return Address(host, int(port))


def share(text: str) -> float:
    found = parse_share(text)
    if found is None:
        raise UsageError(f'a percentage above 0 and up to 100 such as "5%" or "0.5%", not {_shown(text)}')
    return found


def _stages(text: str) -> bool:
    """Whether they are histograms."""
    if text not in ("sum", "histogram"):
        raise UsageError(f'"sum" or "histogram", not {_shown(text)}')
    return text == "histogram"


class Key(NamedTuple):
    name: str
    about: str
    default: str
    read: Callable[[str], Any]
    """Parse the text, or raise a UsageError that goes on behind `is`."""


class Table(NamedTuple):
    name: str
    about: str
    keys: tuple[Key, ...]
    optional: bool = False
    """Without it there is no such thing."""


AGENT = Table(
    "agent",
    "The agent itself.",
    (Key("budget", "do less before tracing costs more than this share of busy CPU time", "1%", share),),
)
PROMETHEUS = Table(
    "prometheus",
    "An address that Prometheus scrapes.",
    (
        Key("listen", "where: an address of this machine and a port", "127.0.0.1:9435", address),
        Key(
            "stages", 'stages as "sum" and count, or each as a "histogram", which are many more series', "sum", _stages
        ),
    ),
    optional=True,
)
TABLES = (AGENT, PROMETHEUS)
_ALWAYS = "always"
_DEFAULT_FLOWS: Mapping[str, Settings] = {"io": {"level": "block"}}
_ABOUT_ALWAYS = (
    "What is always traced: a table for each command (io, size, irqoff, cpu, flow) with its options",
    "by their names, as in wptrace io --help. Repeatable ones take lists; a switch is true.",
)


class Config(NamedTuple):
    file: str
    agent: Settings
    prometheus: Settings | None
    flows: Sequence[Flow]


def defaults() -> str:
    """A file that says what goes without saying."""
    lines = ["# The settings of wptrace agent, with their defaults (wptrace agent --print-defaults)."]
    for table in TABLES:
        mark = "# " if table.optional else ""
        lines += ["", f"# {table.about}", f"{mark}[{table.name}]"]
        for key in table.keys:
            lines += [f"# {key.about[:1].upper()}{key.about[1:]}.", f'{mark}{key.name} = "{key.default}"']
    for number, (command, settings) in enumerate(_DEFAULT_FLOWS.items()):
        lines += ["", *(f"# {line}" for line in _ABOUT_ALWAYS if not number), f"[{_ALWAYS}.{command}]"]
        lines += [f'{name} = "{value}"' for name, value in settings.items()]
    return "\n".join(lines) + "\n"


def read(path: Path, make: Make) -> Config:
    return parse(source.read(path, "configuration of the agent"), str(path), make)


def parse(text: str, file: str, make: Make) -> Config:
    """Raises ConfigError. Nothing is traced yet, but devices and filters are looked up."""
    reader = _Reader(source.tables(text, file), Places(text), make)
    found = reader.config(file)
    if reader.faults:
        raise ConfigError(file, sorted(reader.faults, key=lambda fault: fault.place)[:_MOST_FAULTS])
    return found


class _Reader:
    """Faults are kept, so that all of them are said at once."""

    def __init__(self, tables: dict[str, Any], places: Places, make: Make) -> None:
        self._tables, self._places, self._make = tables, places, make
        self.faults: list[Fault] = []

    def _fault(self, message: str, *way: str | int) -> None:
        self.faults.append(Fault(message, self._places.key(*way)))

    def _wrong(self, message: str, *way: str | int) -> None:
        """At the value, not at its key."""
        self.faults.append(Fault(message, self._places.value(*way)))

    def config(self, file: str) -> Config:
        known = [*(table.name for table in TABLES), _ALWAYS]
        for name in self._tables:
            if name not in known:
                self._fault(f"there is no table {_shown(name)}{did_you_mean(name, known)}", name)
        read = {table.name: self._table(table) for table in TABLES}
        return Config(file, read[AGENT.name] or {}, read[PROMETHEUS.name], self._flows())

    def _table(self, table: Table) -> Settings | None:
        found = self._tables.get(table.name)
        if found is None and table.optional:
            return None
        if found is not None and not isinstance(found, dict):
            self._wrong(f"{table.name} is a table: [{table.name}]", table.name)
            found = None
        given = found or {}
        by_name = {key.name: key for key in table.keys}
        for name in given:
            if name not in by_name:
                self._fault(f"[{table.name}] has no key {_shown(name)}{did_you_mean(name, by_name)}", table.name, name)
        return {key.name: self._value(table.name, key, given.get(key.name, key.default)) for key in table.keys}

    def _value(self, table: str, key: Key, value: Any) -> Any:
        if not isinstance(value, str):
            self._wrong(f'{key.name} is a text in quotes, such as "{key.default}"', table, key.name)
            return None
        try:
            return key.read(value)
        except UsageError as error:
            self._wrong(f"{key.name} is {error.message}", table, key.name)
            return None

    def _flows(self) -> list[Flow]:
        always = self._tables.get(_ALWAYS, _DEFAULT_FLOWS)
        if not isinstance(always, dict) and always is not _DEFAULT_FLOWS:
            self._wrong(f"{_ALWAYS} is a table of tables: [{_ALWAYS}.io]", _ALWAYS)
            return []
        if not always:
            self._fault(f"[{_ALWAYS}] names nothing to trace: [{_ALWAYS}.io]", _ALWAYS)
        found: dict[str, Flow] = {}
        for command, settings in always.items():
            for flow in self._of_command(command, settings):
                if flow.name in found:
                    self._fault(f"another flow is called {flow.name}", _ALWAYS, command)
                found[flow.name] = flow
        if len(found) > _MOST_FLOWS:
            self._fault(f"there are {len(found)} flows; there is room for {_MOST_FLOWS}", _ALWAYS)
        return list(found.values())

    def _of_command(self, command: str, settings: Any) -> Sequence[Flow]:
        if not isinstance(settings, dict):
            self._wrong(f"{_shown(command)} is a table of options: [{_ALWAYS}.{_shown(command)}]", _ALWAYS, command)
            return []
        before = len(self.faults)
        for name, value in settings.items():
            if not isinstance(value, list):
                self._scalar(name, value, _ALWAYS, command, name)
            elif len(value) > _MOST_VALUES:
                self._wrong(f"{name} has {len(value)} values; there is room for {_MOST_VALUES}", _ALWAYS, command, name)
            else:
                for number, one in enumerate(value):
                    self._scalar(name, one, _ALWAYS, command, name, number)
        if len(self.faults) > before:
            return []
        try:
            return self._make(command, settings)
        except UsageError as error:
            way = _meant(error.message, settings)
            (self._wrong if way else self._fault)(error.message, _ALWAYS, command, *way)
            return []

    def _scalar(self, name: str, value: Any, *way: str | int) -> None:
        if not isinstance(value, (str, bool, int, float)):
            self._wrong(f"{_shown(name)} is a text, a number, true or false, or a list of such", *way)


def _meant(message: str, settings: Settings) -> tuple[str | int, ...]:
    """The way to the value that a sentence of the command line is about: it names the option, or has the value."""
    for name in re.findall(r"--([a-z][a-z-]*)", message):
        if name in settings:
            return (name,)
    said = {word.strip("'\",;:") for word in message.split()}
    for name, value in settings.items():
        if isinstance(value, list):
            for number, one in enumerate(value):
                if str(one) in said:
                    return name, number
        elif str(value) in said:
            return (name,)
    return ()


def words(settings: Settings) -> list[str]:
    """The options as the command line has them."""
    found = []
    for name, value in settings.items():
        for one in value if isinstance(value, list) else [value]:
            if one is True:
                found.append(f"--{name}")
            elif one is not False:
                found.append(f"--{name}={one}")
    return found


def _shown(text: str) -> str:
    """Text of others as it may stand in a message."""
    short = text if len(text) <= 40 else f"{text[:37]}..."
    return short if short.isprintable() and short else repr(short)
