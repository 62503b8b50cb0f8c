# SPDX-License-Identifier: Apache-2.0
"""The configuration of the agent: reads a TOML file, or lists everything that is wrong with it and where."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple, Union

from wptrace.agent import collector, condition
from wptrace.agent.on_trigger import OnTrigger
from wptrace.agent.owner_names import LABELS
from wptrace.agent.trigger import HAND, Trigger
from wptrace.engine.definition import source
from wptrace.engine.definition.faults import DefinitionError, Fault, did_you_mean, quoted
from wptrace.engine.definition.places import Places
from wptrace.engine.flow import Flow
from wptrace.errors import AbsentError, UsageError, WptraceError
from wptrace.model.units import NS_PER, parse_bytes, parse_duration, parse_share
from wptrace.outputs import otlp
from wptrace.outputs.metrics import of_cgroups

STATE = "/var/lib/wptrace"
"""The folder that systemd makes for the agent (StateDirectory= of its unit)."""
_MOST_FAULTS = 20
_MOST_FLOWS = 8
_MOST_VALUES = 256
"""Limit for a list, such as that of devices."""
_LONGEST_HOST = 253
_LEAST_KEPT = 1 << 20
_MOST_TRIGGERS, _MOST_WORDS = 32, 64

Settings = Mapping[str, Any]
"""Values of a command's options, by name."""
Make = Callable[[str, Settings], Sequence[Flow]]
"""Makes the flows of a command from its options, by the code of the command itself."""


class ConfigError(DefinitionError):
    check = "wptrace agent --check"


class AbsentConfigError(ConfigError):
    """The file is right, but devices or cgroups that it names are not there, as may be during boot.

    The code is that of a failure, after which the agent is started again.
    """

    exit_code = WptraceError.exit_code


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address(text: str) -> Address:
    """Parse 127.0.0.1:9435, [::1]:9435 or localhost:9435."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    right = re.fullmatch(r"[A-Za-z0-9.:_-]+", host) and re.fullmatch(r"[0-9]{1,5}", port)
    if not colon or not right or len(host) > _LONGEST_HOST or int(port) > 0xFFFF:
        raise UsageError(f"an address such as 127.0.0.1:9435 or [::1]:9435, not {quoted(text)}")
    return Address(host, int(port))


def share(text: str) -> float:
    found = parse_share(text)
    if found is None:
        raise UsageError(f'a percentage above 0 and up to 100 such as "5%" or "0.5%", not {quoted(text)}')
    return found


def _stages(text: str) -> bool:
    """Whether stages are exported as histograms."""
    if text not in ("sum", "histogram"):
        raise UsageError(f'"sum" or "histogram", not {quoted(text)}')
    return text == "histogram"


def seconds(text: str) -> float:
    try:
        return parse_duration(text) / NS_PER["s"]
    except UsageError:
        raise UsageError(f'a time such as "30s" or "10m", not {quoted(text)}') from None


def _keep(text: str) -> int:
    found = parse_bytes(text)
    if found is None or found < _LEAST_KEPT:
        raise UsageError(f'a size such as "1G", of at least 1M, not {quoted(text)}')
    return found


def _to_an_hour(text: str) -> float:
    found = seconds(text)
    if not 1 <= found <= 3600:
        raise UsageError(f"a time from 1s to 1h, not {quoted(text)}")
    return found


def _owners(text: str) -> str:
    if text and text not in LABELS:
        raise UsageError(f"one of {', '.join(LABELS)}, not {quoted(text)}")
    return text


def _to_a_thousand(count: int) -> int:
    if not 1 <= count <= 1000:
        raise UsageError(f"a number from 1 to 1,000, not {count}")
    return count


def _folder(text: str) -> Path:
    # An empty one would be the current folder.
    if not text or "\0" in text:
        raise UsageError(f"a path such as {STATE}, not {quoted(text)}")
    return Path(text)


def _names(text: list[Any]) -> tuple[str, ...]:
    if not all(isinstance(one, str) for one in text) or len(text) > _MOST_TRIGGERS:
        raise UsageError(f'a list of up to {_MOST_TRIGGERS} names, such as ["slow"]')
    return tuple(text)


def _words(text: list[Any]) -> tuple[str, ...]:
    """Check a command and its arguments; no shell splits them."""
    if not all(isinstance(one, str) and "\0" not in one for one in text) or len(text) > _MOST_WORDS:
        raise UsageError(f'a list of up to {_MOST_WORDS} strings, such as ["logger", "slow"]')
    if text and not text[0]:
        raise UsageError("a list that begins with a program")
    return tuple(text)


Value = Union[str, int, list[str]]
_KINDS = {str: "a string in quotes", int: "a whole number", list: "a list of strings"}


class Key(NamedTuple):
    name: str
    about: str
    default: Value
    read: Callable[[Any], Any]
    """Reads a value of the same type, or raises a UsageError that continues `NAME must be`."""
    needed: bool = False
    """The setting is required; its default is an example."""
    example: Value | None = None
    """Shown instead of a default that stands for something else."""

    @property
    def shown(self) -> str:
        """The default in TOML."""
        return json.dumps(self.default if self.example is None else self.example)


class Table(NamedTuple):
    name: str
    about: str
    keys: tuple[Key, ...]
    optional: bool = False
    """The table may be left out, which turns the feature off."""


AGENT = Table(
    "agent",
    "The agent itself.",
    (
        Key("budget", "do less before tracing costs more than this share of busy CPU time", "1%", share),
        Key("folder", "the directory for dumps of recorders", STATE, _folder),
        Key("keep", "the most room for all dumps; the oldest are removed", "2G", _keep),
        Key("daily", "the most that is dumped in 24 hours, apart from dumps on request", "1G", _keep),
    ),
)
_SERIES = (
    Key(
        "stages",
        'each stage as "sum" and count, or as "histogram", with many more series',
        "sum",
        _stages,
    ),
    Key(
        "owners",
        'series by systemd "unit", "namespace", "pod" or "container", for flows with by = "cgroup"',
        "",
        _owners,
    ),
    Key("top", "how many owners have series of their own; all others share one", 20, _to_a_thousand),
)
PROMETHEUS = Table(
    "prometheus",
    "An address that Prometheus scrapes.",
    (
        Key("listen", "the address and port to listen on", "127.0.0.1:9435", address),
        *_SERIES,
    ),
    optional=True,
)
OTLP = Table(
    "otlp",
    "A collector that gets metrics, and slow operations as spans, by OTLP.",
    (
        Key(
            "endpoint",
            "the URL to send to; the default is OTEL_EXPORTER_OTLP_ENDPOINT, or this",
            "",
            lambda text: collector.endpoint(text) if text else None,
            example=collector.DEFAULT,
        ),
        Key("interval", "how often metrics are sent", "1m", _to_an_hour),
        Key("queue", "the most that is queued while the collector accepts nothing; the oldest is dropped", "8M", _keep),
        *_SERIES,
    ),
    optional=True,
)
HISTORY = Table(
    "history",
    "Figures of each interval, kept in captures: wptrace replay shows a directory of them.",
    (
        Key("dir", "the directory, with one in it for each flow", f"{STATE}/history", _folder),
        Key("keep", "the most room for all of them; the oldest are removed", "1G", _keep),
        Key("interval", "the length of an interval", "10s", _to_an_hour),
    ),
    optional=True,
)
TABLES = (AGENT, PROMETHEUS, OTLP, HISTORY)
TRIGGER = Table(
    "trigger.slow",
    "When a condition holds: log the verdict, write dumps, run a command. The name is yours; there may be several.",
    (
        Key("when", "the condition, checked each second", "io.read.total.p99 > 50ms for 30s", str, needed=True),
        Key("cooldown", "the pause after it has fired", "10m", seconds),
        Key("daily", "how often it fires in 24 hours at most", 10, _to_a_thousand),
        Key("after", "the delay before dumps are written, so that they include what follows", "5s", seconds),
        Key("command", "a program and its arguments, run afterwards with the names of the dumps", [], _words),
    ),
    optional=True,
)
ON_TRIGGER = Table(
    "on_trigger.io",
    "More to trace for a while after a trigger: a table for each command, with its options as in [always.COMMAND].",
    (
        Key("for", "how long it traces", "60s", _to_an_hour),
        Key("triggers", "the triggers that start it; empty for all of them", [], _names),
    ),
    optional=True,
)
_TRIGGER = "trigger"
_ON_TRIGGER = "on_trigger"
_ALWAYS = "always"
_DEFAULT_FLOWS: Mapping[str, Settings] = {"io": {"level": "block"}}
_ABOUT_ALWAYS = (
    "Traced all the time: a table for each command (io, size, irqoff, cpu, flow), with its options",
    "by name, as in wptrace io --help. A repeatable option takes a list, an option without a value true.",
    'With recorder = "30s", a trigger dumps every request of the last 30 seconds.',
)


class Always(NamedTuple):
    """A command of the configuration with its flows."""

    command: str
    settings: Settings
    flows: Sequence[Flow]


class Config(NamedTuple):
    file: str
    agent: Settings
    prometheus: Settings | None
    otlp: Settings | None
    """Settings of OTLP, with the collector's address."""
    history: Settings | None
    always: Sequence[Always]
    triggers: Sequence[Trigger] = ()
    on_trigger: Sequence[OnTrigger] = ()

    @property
    def flows(self) -> list[Flow]:
        return [flow for one in self.always for flow in one.flows]


def defaults() -> str:
    """A configuration file with all the defaults."""
    lines = ["# The settings of wptrace agent, with their defaults (wptrace agent --print-defaults)."]
    for table in (*TABLES, TRIGGER, ON_TRIGGER):
        mark = "# " if table.optional else ""
        lines += ["", f"# {table.about}", f"{mark}[{table.name}]"]
        for key in table.keys:
            lines += [f"# {key.about[:1].upper()}{key.about[1:]}.", f"{mark}{key.name} = {key.shown}"]
    for number, (command, settings) in enumerate(_DEFAULT_FLOWS.items()):
        lines += ["", *(f"# {line}" for line in _ABOUT_ALWAYS if not number), f"[{_ALWAYS}.{command}]"]
        lines += [f'{name} = "{value}"' for name, value in settings.items()]
    return "\n".join(lines) + "\n"


def read(path: Path, make: Make) -> Config:
    return parse(source.read(path, "configuration of the agent"), str(path), make)


def parse(text: str, file: str, make: Make) -> Config:
    """Parse a configuration, or raise ConfigError. Devices and filters are looked up, but nothing is traced yet."""
    reader = _Reader(source.tables(text, file), Places(text), make)
    found = reader.config(file)
    faults = sorted(reader.faults, key=lambda fault: fault.place)[:_MOST_FAULTS]
    if len(reader.faults) > reader.absent:
        raise ConfigError(file, faults)
    if faults:
        raise AbsentConfigError(file, faults)
    return found


class _Reader:
    """Collects faults, so that all of them are reported at once."""

    def __init__(self, tables: dict[str, Any], places: Places, make: Make) -> None:
        self._tables, self._places, self._make = tables, places, make
        self.faults: list[Fault] = []
        self.absent = 0
        """The number of faults that are about devices or cgroups which may come later."""

    def _fault(self, message: str, *way: str | int) -> None:
        self.faults.append(Fault(message, self._places.key(*way)))

    def _wrong(self, message: str, *way: str | int) -> None:
        """Record a fault at the value, not at its key."""
        self.faults.append(Fault(message, self._places.value(*way)))

    def config(self, file: str) -> Config:
        known = [*(table.name for table in TABLES), _ALWAYS, _TRIGGER, _ON_TRIGGER]
        for name in self._tables:
            if name not in known:
                self._fault(f"there is no table {quoted(name)}{did_you_mean(name, known)}", name)
        read = {table.name: self._table(table, self._tables.get(table.name), table.name) for table in TABLES}
        agent, prometheus, sent, history = (read[table.name] for table in TABLES)
        found = Config(file, agent or {}, prometheus, self._collected(sent), history, self._always())
        by_cgroup = any(of_cgroups(kind) for one in found.flows for kind in one.kinds)
        for table in (PROMETHEUS, OTLP):
            if (read[table.name] or {}).get("owners") and not by_cgroup:
                self._wrong('owners needs rows by cgroup: by = "cgroup" in [always.io]', table.name, "owners")
        return found._replace(triggers=self._triggers(found.flows), on_trigger=self._on_trigger())

    def _collected(self, settings: Settings | None) -> Settings | None:
        """The settings of [otlp] with what the environment adds."""
        if settings is None:
            return None
        try:
            otlp.services()
            return {**settings, "collector": collector.collector(settings["endpoint"], os.environ)}
        except WptraceError as error:
            self._fault(f"{error.message} ({error.hint})" if error.hint else error.message, OTLP.name)
            return None

    def _table(self, table: Table, found: Any, *way: str) -> Settings | None:
        if found is None and table.optional:
            return None
        if found is not None and not isinstance(found, dict):
            self._wrong(f"{'.'.join(way)} must be a table: [{'.'.join(way)}]", *way)
            return None
        given = found or {}
        by_name = {key.name: key for key in table.keys}
        for name in given:
            if name not in by_name:
                self._fault(f"[{'.'.join(way)}] has no key {quoted(name)}{did_you_mean(name, by_name)}", *way, name)
        for key in table.keys:
            if key.needed and key.name not in given:
                self._fault(f"[{'.'.join(way)}] lacks {key.name}: {key.about}", *way)
        return {key.name: self._value(key, given.get(key.name, key.default), *way) for key in table.keys}

    def _value(self, key: Key, value: Any, *way: str) -> Any:
        if type(value) is not type(key.default):
            self._wrong(f"{key.name} must be {_KINDS[type(key.default)]}, such as {key.shown}", *way, key.name)
            return None
        try:
            return key.read(value)
        except UsageError as error:
            self._wrong(f"{key.name} must be {error.message}", *way, key.name)
            return None

    def _below(self, name: str, example: str, default: Mapping[str, Settings]) -> Mapping[str, Any] | None:
        """The tables below one of this name; None if it is something else."""
        found = self._tables.get(name, default)
        if isinstance(found, Mapping):
            return found
        self._wrong(f"{name} must be a table of tables: [{name}.{example}]", name)
        return None

    def _triggers(self, flows: Sequence[Flow]) -> list[Trigger]:
        tables, found = self._below(_TRIGGER, "slow", {}), []
        if tables is None:
            return []
        if len(tables) > _MOST_TRIGGERS:
            self._fault(f"there are {len(tables)} triggers; there is room for {_MOST_TRIGGERS}", _TRIGGER)
        for name, table in tables.items():
            if name == HAND:
                self._fault(f"{HAND} is the name of dumps by SIGUSR2: give the trigger another name", _TRIGGER, name)
                continue
            if not re.fullmatch(r"[A-Za-z0-9_-]{1,24}", name, re.ASCII):
                self._fault(
                    f"a trigger has a name of up to 24 letters, digits, - and _, not {quoted(name)}", _TRIGGER, name
                )
                continue
            before = len(self.faults)
            read = self._table(TRIGGER, table, _TRIGGER, name) or {}
            # Triggers cannot be checked if the flows are invalid.
            if len(self.faults) > before or not flows:
                continue
            try:
                when = condition.parse(read["when"], flows)
            except UsageError as error:
                self._wrong(error.message, _TRIGGER, name, "when")
                continue
            found.append(Trigger(name, when, read["cooldown"], read["daily"], read["after"], read["command"]))
        return found

    def _always(self) -> list[Always]:
        always = self._below(_ALWAYS, "io", _DEFAULT_FLOWS)
        if always is None:
            return []
        if not always:
            self._fault(f"[{_ALWAYS}] names nothing to trace: [{_ALWAYS}.io]", _ALWAYS)
        found, names = [], set()
        for command, settings in always.items():
            flows = self._of_command(_ALWAYS, command, settings)
            for flow in flows:
                if flow.name in names:
                    self._fault(f"another flow is called {flow.name}", _ALWAYS, command)
                names.add(flow.name)
            found.append(Always(command, settings, flows))
        if len(names) > _MOST_FLOWS:
            self._fault(f"there are {len(names)} flows; there is room for {_MOST_FLOWS}", _ALWAYS)
        return found

    def _on_trigger(self) -> list[OnTrigger]:
        tables, found = self._below(_ON_TRIGGER, "io", {}), []
        if tables is None:
            return []
        triggers = self._tables.get(_TRIGGER)
        if not isinstance(triggers, Mapping):
            triggers = {}
        for command, table in tables.items():
            if not triggers:
                self._fault(
                    f"nothing loads [{_ON_TRIGGER}.{quoted(command)}]: there is no trigger", _ON_TRIGGER, command
                )
            own = {key.name for key in ON_TRIGGER.keys}
            rest = {name: one for name, one in table.items() if name not in own} if isinstance(table, dict) else table
            self._of_command(_ON_TRIGGER, command, rest)
            if not isinstance(table, dict):
                continue
            given = {name: one for name, one in table.items() if name in own}
            read = self._table(ON_TRIGGER, given, _ON_TRIGGER, command) or {}
            if "recorder" in rest:
                self._fault(
                    "recorder is for [always.io]: what a trigger loads has recorded nothing before",
                    _ON_TRIGGER,
                    command,
                    "recorder",
                )
            for number, name in enumerate(read["triggers"] or ()):
                if name not in triggers:
                    said = f"there is no trigger {quoted(name)}{did_you_mean(name, list(triggers))}"
                    self._wrong(said, _ON_TRIGGER, command, "triggers", number)
            if not self.faults:
                found.append(OnTrigger(command, rest, arguments(rest), read["for"], read["triggers"]))
        return found

    def _of_command(self, table: str, command: str, settings: Any) -> Sequence[Flow]:
        if not isinstance(settings, dict):
            self._wrong(f"{quoted(command)} must be a table of options: [{table}.{quoted(command)}]", table, command)
            return []
        before = len(self.faults)
        for name, value in settings.items():
            if not isinstance(value, list):
                self._scalar(name, value, table, command, name)
            elif len(value) > _MOST_VALUES:
                self._wrong(f"{name} has {len(value)} values; the maximum is {_MOST_VALUES}", table, command, name)
            else:
                for number, one in enumerate(value):
                    self._scalar(name, one, table, command, name, number)
        if len(self.faults) > before:
            return []
        try:
            return self._make(command, settings)
        except UsageError as error:
            way = _meant(error.message, settings)
            (self._wrong if way else self._fault)(error.message, table, command, *way)
            self.absent += isinstance(error, AbsentError)
            return []

    def _scalar(self, name: str, value: Any, *way: str | int) -> None:
        if not isinstance(value, (str, bool, int, float)):
            self._wrong(f"{quoted(name)} must be a string, a number, true or false, or a list of these", *way)
        elif isinstance(value, str) and "\0" in value:
            # No word of a command line has one, so commands do not expect it.
            self._wrong(f"{quoted(name)} must not contain a NUL character", *way)


def _meant(message: str, settings: Settings) -> tuple[str | int, ...]:
    """The path of the value that an error of the command line names by its option, or quotes."""
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


def arguments(settings: Settings) -> list[str]:
    """The options as words of a command line, on which a definition has no name."""
    found = []
    for name, value in settings.items():
        if name == "definition":
            found.append(str(value))
            continue
        for one in value if isinstance(value, list) else [value]:
            if one is True:
                found.append(f"--{name}")
            elif one is not False:
                found.append(f"--{name}={one}")
    return found
