# SPDX-License-Identifier: Apache-2.0
"""The agent's configuration, and errors with their place in the file."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from wptrace.agent import config
from wptrace.agent.config import ConfigError, Settings
from wptrace.cli import agent
from wptrace.engine.flow import Flow
from wptrace.errors import UsageError
from wptrace.flows.io.block import REQUEST
from wptrace.flows.io.parts.owners import KINDS as OWNED
from wptrace.model.kind import Kind

SLOW = "[trigger.slow]\nwhen = 'io.read.total.p99 > 1s'\n"


class Named(Flow):
    kinds: tuple[Kind, ...] = (REQUEST,)
    verdict_kinds = (REQUEST,)
    hooks = ()

    def __init__(self, name: str, settings: Settings) -> None:
        self.name, self.settings = name, settings
        if settings.get("by") == "cgroup":
            self.kinds = (REQUEST, *OWNED["cgroup"])


def make(command: str, settings: Settings) -> Sequence[Flow]:
    return [Named(command, settings)]


def traced(text: str) -> dict[str, Settings]:
    return {flow.name: flow.settings for flow in config.parse(text, "x", make).flows if isinstance(flow, Named)}


def faults(text: str, how: config.Make = make) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        config.parse(text, "x.toml", how)
    return [str(fault) for fault in caught.value.faults]


def test_the_printed_defaults_are_what_goes_without_saying() -> None:
    said, unsaid = config.parse(config.defaults(), "x", make), config.parse("", "x", make)
    rest = {"keep": 2 << 30, "daily": 1 << 30}
    assert said.agent == unsaid.agent == {"budget": 0.01, "folder": Path("/var/lib/wptrace"), **rest}
    assert said.prometheus is unsaid.prometheus is None
    assert traced(config.defaults()) == traced("") == {"io": {"level": "block"}}


def test_optional_tables_are_printed_as_comments_that_can_be_used() -> None:
    """Each commented setting is valid once it is uncommented."""
    lines = config.defaults().split("\n")
    used = "\n".join(line[2:] if re.match(r"# (\[|\w+ = )", line) else line for line in lines)
    found = config.parse(used, "x", make)
    assert all(getattr(found, table.name) is not None for table in config.TABLES)
    (trigger,) = found.triggers
    assert (trigger.name, trigger.when.limit, trigger.cooldown_s, trigger.daily) == ("slow", 50_000_000, 600.0, 10)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[agnet]\n", "line 1, column 1: there is no table agnet; did you mean agent?"),
        ("\n[agent]\nbudgt = '1%'", "line 3, column 1: [agent] has no key budgt; did you mean budget?"),
        ("[agent]\nbudget = '0%'", 'line 2, column 11: budget must be a percentage above 0 and up to 100 such as "5%"'),
        ("[agent]\nbudget = 1", 'line 2, column 10: budget must be a string in quotes, such as "1%"'),
        ("agent = 1", "line 1, column 9: agent must be a table: [agent]"),
        ("[agent]\nfolder = ''", "line 2, column 11: folder must be a path such as /var/lib/wptrace, not ''"),
        ('[history]\ndir = "/a\\u0000b"', "line 2, column 8: dir must be a path such as"),
        ("[prometheus]\nowners = 'pid'", "line 2, column 11: owners must be one of unit, namespace, pod, "),
        ("[prometheus]\nowners = 'pod'", "line 2, column 11: owners needs rows by cgroup"),
        ("[otlp]\nowners = 'pod'", "line 2, column 11: owners needs rows by cgroup"),
        ("[otlp]\nendpoint = 'grpc://a:4317'", "line 2, column 13: endpoint must be a URL such as"),
        ("[otlp]\nendpont = 'http://a'", "line 2, column 1: [otlp] has no key endpont; did you mean endpoint?"),
        ("\n[otlp]\ninterval = '0s'", "line 3, column 13: interval must be a time from 1s to 1h, not 0s"),
        ("[otlp]\nqueue = '1k'", 'line 2, column 10: queue must be a size such as "1G", of at least 1M, not 1k'),
        ("[prometheus]\ntop = 0", "line 2, column 7: top must be a number from 1 to 1,000, not 0"),
        ("always = 'io'", "line 1, column 11: always must be a table of tables: [always.io]"),
        ("[always]", "line 1, column 1: [always] names nothing to trace: [always.io]"),
        ("[always]\nio = 1", "line 2, column 6: io must be a table of options: [always.io]"),
        ("[always.io]\ndev = {}", "line 2, column 7: dev must be a string, a number, true or false, or a list of "),
        ('[always.io]\ndev = ["a", "/b\\u0000"]', "line 2, column 14: dev must not contain a NUL character"),
        ("[always.io]\ndev = ['a', []]", "line 2, column 13: dev must be a string, a number, true or false, or a list"),
        (f"[always.io]\ndev = [{'1,' * 250}1,\n1,1,1,1,1,1]", "line 2, column 7: dev has 257 values; the maximum"),
        ("trigger = 1", "line 1, column 11: trigger must be a table of tables: [trigger.slow]"),
        ("[trigger]\nx = 1", "line 2, column 5: trigger.x must be a table: [trigger.x]"),
        ("[trigger.x]\n", "line 1, column 1: [trigger.x] lacks when: the condition, checked each second"),
        ("[trigger.hand]\n", "line 1, column 1: hand is the name of dumps by SIGUSR2: give the trigger another name"),
        ("[trigger.x]\nwhen = 'io.total.p99 > 5'", "line 2, column 9: the duration '5' has no unit"),
        (f"{SLOW}daily = 0", "line 3, column 9: daily must be a number from 1 to 1,000"),
        (f"{SLOW}daily = true", "line 3, column 9: daily must be a whole number, such"),
        (f"{SLOW}cooldown = '5'", 'line 3, column 13: cooldown must be a time such as "30s"'),
        (f"{SLOW}command = 'rm -r x'", "line 3, column 12: command must be a list of"),
        (f"{SLOW}command = ['rm', 1]", "line 3, column 11: command must be a list of up"),
        (f"{SLOW}command = ['']", "line 3, column 11: command must be a list that begins"),
        (
            "".join(f"[trigger.t{number}]\nwhen = 'io.total.p99 > 5s'\n" for number in range(33)),
            "there are 33 triggers; there is room for 32",
        ),
        ("\n".join(f"[always.a{number}]" for number in range(9)), "there are 9 flows; there is room for 8"),
    ],
)
def test_a_fault_is_said_at_its_place(text: str, fault: str) -> None:
    (found,) = faults(text)
    assert fault in found


def test_a_flow_of_triggers_that_are_no_table_is_a_fault() -> None:
    found = faults("trigger = 5\n[on_trigger.io]\ntriggers = ['a']")
    assert found[0] == "line 1, column 11: trigger must be a table of tables: [trigger.slow]"


@pytest.mark.parametrize(
    ("text", "fault"),
    [("[always.io]\nlevel 1", "line 2, column 7: expected '='"), ("[always.'\x7f']", "line 1, column 10: ")],
)
def test_what_is_no_toml_is_said_at_its_place(text: str, fault: str) -> None:
    with pytest.raises(UsageError, match=fault):
        config.parse(text, "x.toml", make)


def test_a_variable_that_is_wrong_is_said_at_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    (found,) = faults("[agent]\n[otlp]\n")
    assert found == "line 2, column 1: OTEL_EXPORTER_OTLP_PROTOCOL is grpc: wptrace sends only http/protobuf"
    # Without the table there is no OTLP.
    assert config.parse("", "x", make).otlp is None


def test_a_library_that_is_missing_is_said_at_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.proto.collector.trace.v1.trace_service_pb2", None)
    (found,) = faults("[otlp]\n")
    assert found == (
        "line 1, column 1: [otlp] needs the Python package opentelemetry-proto, which is not installed"
        " (pip install 'wptrace[otlp]')"
    )


def test_the_file_says_where_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://env:1")
    for text, wanted in (("", "http://env:1/v1/metrics"), ("endpoint = 'http://file:2'", "http://file:2/v1/metrics")):
        settings = config.parse(f"[otlp]\n{text}", "x", make).otlp
        assert settings is not None
        assert str(settings["collector"].targets["metrics"].endpoint) == wanted
        assert (settings["interval"], settings["queue"], settings["stages"]) == (60.0, 8 << 20, False)


def test_all_faults_are_said_in_the_order_of_the_file() -> None:
    found = faults("[always.io]\ndev = {}\n[agent]\nbudget = 'x'\nbadget = 1\n")
    assert [one.partition(":")[0] for one in found] == ["line 2, column 7", "line 4, column 11", "line 5, column 1"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[always.io]\nlevel = 'blok'", "line 2, column 10: io: argument --level: invalid choice: 'blok'"),
        ("[always.io]\ndev = 'nope'", "line 2, column 8: there is no block device nope"),
        ("[always.io]\nlevel='block'\ncomm = 'x'", "line 3, column 9: --comm needs --level path"),
        ("[always.io]\ntop = 5", "line 2, column 7: --top needs --by"),
        ("[always.irqoff]\nmin = '5'", "line 2, column 8: the duration '5' has no unit"),
        ("[always.ioo]\n", "line 1, column 1: there is no command to trace 'ioo'; did you mean io?"),
        ("[always.io]\nhist = 'x'", "line 2, column 9: io in the agent has no option --hist"),
        ("[always.io]\nwriteback = 'yes'", "line 2, column 14: io: argument --writeback: ignored explicit argument"),
        ("[always.flow]\n", "line 1, column 1: name a definition"),
        ("[always.flow]\ndefinition = 'softirk'", "line 2, column 15: there is no flow 'softirk'; did you mean "),
    ],
)
def test_options_are_checked_by_the_command(text: str, fault: str) -> None:
    (found,) = faults(text, agent.make)
    assert fault in found


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("[always.io]\ndev = ['nope', 'sda']", 1),
        ("[always.io]\ncgroup = '/nope.slice'", 1),
        ("[always.io]\ndev = 'nope'\n[agent]\nbadget = 1", 2),
        ("[always.io]\nlevel = 'blok'", 2),
    ],
)
def test_what_may_come_later_has_the_exit_code_of_a_failure(text: str, code: int) -> None:
    """systemd then starts the agent again."""
    with pytest.raises(config.ConfigError) as caught:
        config.parse(text, "agent.toml", agent.make)
    assert caught.value.exit_code == code


def test_options_stand_in_a_table_by_their_names() -> None:
    settings = {"dev": ["sda", "sdb"], "level": "block", "slots": 5, "writeback": True, "children": False}
    assert config.arguments(settings) == ["--dev=sda", "--dev=sdb", "--level=block", "--slots=5", "--writeback"]


def test_what_is_no_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        config.read(tmp_path / "none.toml", make)
    large = tmp_path / "large.toml"
    large.write_text("#" * 33_000)
    with pytest.raises(UsageError, match="is not a configuration of the agent"):
        config.read(large, make)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("127.0.0.1:9435", ("127.0.0.1", 9435)),
        ("[::1]:0", ("::1", 0)),
        ("localhost:65535", ("localhost", 65535)),
    ],
)
def test_addresses(text: str, wanted: tuple[str, int]) -> None:
    assert config.address(text) == wanted
    assert str(config.address(text)) == text


@pytest.mark.parametrize(
    "text", ["", "9435", ":9435", "::1:9435", "[::1]", "a b:1", "a:65536", "a:-1", "a:", "x" * 254 + ":1"]
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(UsageError, match="an address such as"):
        config.address(text)


# --- What a trigger loads ---------------------------------------------------------------------------------------------


def test_what_a_trigger_loads_has_options_of_its_own() -> None:
    text = (
        f"{SLOW}[on_trigger.io]\nlevel = 'path'\ndev = ['sda']\nfor = '90s'\ntriggers = ['slow']\n[on_trigger.irqoff]\n"
    )
    io, irqoff = config.parse(text, "x", make).on_trigger
    assert (io.command, io.arguments, io.for_s) == ("io", ["--level=path", "--dev=sda"], 90.0)
    assert (irqoff.arguments, irqoff.for_s) == ([], 60.0)
    assert [io.is_loaded_by(name) for name in ("slow", "other")] == [True, False]
    assert irqoff.is_loaded_by("other")
    assert config.arguments({"definition": "nbd", "slow": "1ms"}) == ["nbd", "--slow=1ms"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[on_trigger.io]\n", "line 1, column 1: nothing loads [on_trigger.io]: there is no trigger"),
        (f"{SLOW}[on_trigger.io]\nfor = '2h'", "line 4, column 8: for must be a time from 1s to 1h, not 2h"),
        (f"{SLOW}[on_trigger.io]\nfor = 5", "line 4, column 7: for must be a string in quotes"),
        (f"{SLOW}[on_trigger.io]\ntriggers = ['slw']", "there is no trigger slw; did you mean slow?"),
        (f"{SLOW}[on_trigger.io]\ntriggers = [1]", "line 4, column 12: triggers must be a list of up to 32 names"),
        (f"{SLOW}[on_trigger.io]\nrecorder = '30s'", "line 4, column 1: recorder is for [always.io]"),
        (f"{SLOW}[on_trigger.io]\nlevel = 'pth'", "line 4, column 10: io: argument --level: invalid choice"),
        (f"{SLOW}[on_trigger.ioo]\n", "line 3, column 1: there is no command to trace 'ioo'; did you mean io?"),
        (f"{SLOW}[on_trigger]\nio = 5", "io must be a table of options: [on_trigger.io]"),
        (f"on_trigger = 5\n{SLOW}", "line 1, column 14: on_trigger must be a table of tables"),
    ],
)
def test_mistakes_in_what_a_trigger_loads_have_a_place(text: str, fault: str) -> None:
    (found,) = faults(text, agent.make)
    assert fault in found
