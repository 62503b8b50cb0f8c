# SPDX-License-Identifier: Apache-2.0
"""A wrong command line is reported in a sentence, before any privilege is needed."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.cli.command import ROOT, WPTRACE, run, sentence
from tests.unit.cli.conftest import Handed
from wptrace import __version__
from wptrace.cli import options as common
from wptrace.cli.main import command_names, main
from wptrace.engine.run import RunOptions
from wptrace.errors import NotPermittedError, UsageError, WptraceError
from wptrace.flows.io import calls
from wptrace.flows.io.block import BlockFlow
from wptrace.flows.io.path import PathFlow
from wptrace.flows.io.request import RequestFlow
from wptrace.outputs.text.words import printable

FILE = str(ROOT / "pyproject.toml")
NO_DEVICE = "there is no block device "
NO_BUDGET = "--budget takes a percentage above 0"
BAD = [
    (["io", "ms"], "write a number and its unit as one word: 5ms"),
    (["io", "ls"], "only an interval and a count may stand here; a command goes after --"),
    (["io", "--"], "name the command to run after --"),
    (["io", "1", "2", "--", "true"], "the trace ends when the command does: use it without COUNT"),
    (["io", "-p", "1", "--", "true"], "--pid and --tid name another process than the command after --"),
    (["io", "--level", "block", "--", "true"], "a command to run needs --level path"),
    (["size", "--", "true"], "wptrace size does not run commands: only wptrace io takes one after --"),
    ([], "name a command, such as io"),
    (["blah"], "argument COMMAND: invalid choice: 'blah'"),
    (["--blah"], "the following arguments are required: COMMAND"),
    (["io", "--blah"], "io: unrecognized arguments: --blah"),
    (["io", "--device", "sda", "1", "5"], "io: unrecognized arguments: --device; did you mean --dev?"),
    (["io", "--neighbors=x"], "io: unrecognized arguments: --neighbors; did you mean --neighbours?"),
    (["diff", "a.wpt", "b.wpt", "--failif", "x"], "diff: unrecognized arguments: --failif; did you mean --fail-if?"),
    (["--blah", "io"], "io: unrecognized arguments: --blah"),
    (["io", "1", "2", "3"], "io: unrecognized arguments: 3"),
    (["io", "0"], "an interval of 0 is too short: the minimum is 10ms"),
    (["io", "9ms"], "an interval of 9ms is too short: the minimum is 10ms"),
    (["io", "-1"], "'-1' is not a duration such as 5ms or 1.5s"),
    (["net", "--csv"], "--csv has the columns of one definition, but several were named"),
    (["mem", "--line", "--what", "reclaim", "--what", "compaction"], "--line has the columns of one definition"),
    (["io", "1", "0"], "the count '0' is not a whole number above 0"),
    (["io", "1", "-3"], "the count '-3' is not a whole number above 0"),
    (["io", "1", "1.5"], "the count '1.5' is not a whole number above 0"),
    (["io", "1", "ten"], "the count 'ten' is not a whole number above 0"),
    (["io", "1", "\u0663"], "the count '\u0663' is not a whole number above 0"),
    (["io", "1", "9" * 5000], "is not a whole number above 0"),
    (["io", "-d", "nope"], f"{NO_DEVICE}nope"),
    (["io", "-d", "a\nb\x1b[31m"], rf"{NO_DEVICE}a\nb\x1b[31m"),
    (["io", "-d", "\udcff"], rf"{NO_DEVICE}\xff"),
    (["io", "--by", "unit"], "--by unit needs --unit: it says what a unit of work is"),
    (["io", "--unit", "mariadb"], "--unit needs --by unit: it says what a unit of work is"),
    (["io", "--by", "statement", "--program", "/bin/sh"], "--program needs --unit: it is the program of its "),
    (["io", "--by", "comm", "--statement-text", "off"], "--statement-text needs --by statement or unit"),
    (["io", "--level", "block", "--unit", "mariadb"], "--unit needs --level path or request"),
    (["io", "--by", "unit", "--unit", "maria"], "there is no unit 'maria'; did you mean mariadb?"),
    (["io", "--by", "unit", "--unit", "/no/file.toml"], "/no/file.toml cannot be read: No such file or directory"),
    (["io", "--by", "unit", "--unit", "mariadb", "--program", "/dev/null"], "/dev/null is not a regular file"),
    (["io", "--by", "unit", "--unit", "mariadb", "--program", FILE], f"{FILE} is not an ELF file"),
    (["io", "-d"], "io: argument -d/--dev: expected one argument"),
    (["io", "--hist", "fsync"], "there is no stage fsync; there are submit, fs, journal, dirty_limit, layers, "),
    (["io", "--hist", "unattributed"], "there is no stage unattributed; there are submit, fs, journal, "),
    (["io", "--level", "block", "--hist", "fs"], "there is no stage fs; there are queue, device, total"),
    (["io", "--slow", "5"], "the duration '5' has no unit: the units are ns, us, ms, s, m, h"),
    (["io", "--slow", "5ms", "--each"], "io: argument --each: not allowed with argument --slow"),
    (["io", "--stuck", "5"], "the duration '5' has no unit: the units are ns, us, ms, s, m, h"),
    (["io", "--sample", "100"], "'100' is not a share such as 1/100"),
    (["io", "--sample", "1/0"], "'1/0' is not a share such as 1/100"),
    (["io", "--sample", "2/100"], "'2/100' is not a share such as 1/100"),
    (["io", "--sample", "1/4294967296"], "'1/4294967296' is not a share such as 1/100"),
    (["io", "--sample", ""], "'' is not a share such as 1/100"),
    (["io", "--limit", "many"], "--limit takes a whole number, not 'many'"),
    (["io", "--limit", "5"], "--limit needs --slow, --each or --sample: it says how many are shown a second"),
    (["io", "--limit", "1K"], "--limit takes a whole number, not '1K'"),
    (["io", "--limit", "4294967296"], "--limit takes a whole number, not '4294967296'"),
    (["io", "--limit", ""], "--limit takes a whole number, not ''"),
    (["io", "--times", "own"], "--times needs --level block: the whole path always takes its own times"),
    (["io", "--level", "path", "--times", "kernel"], "--times needs --level block: the whole path always takes "),
    (["io", "--level", "block", "--tid", "1"], "--tid needs --level path or request: the block layer alone"),
    (["io", "--top", "5"], "--top needs --by: it says how many owners are shown"),
    (["io", "--children"], "--children needs --pid: it adds the children of that process"),
    (["io", "--level", "block", "--pid", "1", "--children"], "--children needs --level path"),
    (["io", "--neighbours", "--by", "device"], "--neighbours shows who had a device, and --by device names no owner"),
    (["io", "--level", "block", "--neighbours"], "--neighbours needs --level path"),
    (["io", "--level", "block", "--segments", "--each"], "--segments needs --level path: the block layer"),
    (["io", "--segments"], "--segments shows parts of events: it needs --slow, --each or --sample"),
    (["io", "--by", "comm", "--top", "x"], "--top takes a whole number, not 'x'"),
    (["io", "--level", "block", "--by", "comm"], "--by needs --level path or request"),
    (["io", "--level", "request", "--file", "/"], "--file needs --level path: only an operation says"),
    (["io", "--level", "request", "--dir", "/"], "--dir needs --level path: only an operation says"),
    (["io", "--level", "request", "--segments", "--each"], "--segments needs --level path: only an operation"),
    (["io", "--level", "request", "--op", "sync"], "--op sync needs --level path: only an operation is a sync"),
    (["io", "--level", "block", "--op", "swapin"], "--op needs --level path: the block layer alone does not show it"),
    (["io", "--level", "request", "--times", "own"], "--times needs --level block: the whole path"),
    (["io", "--level", "request", "--children"], "--children needs --pid"),
    (["io", "--level", "block", "--waits", "1ms"], "--waits needs --level path"),
    (
        ["io", "--recorder", "1h"],
        "--recorder takes a time between 504 ms and 34.4 min, or a size between 1M and 4G, not '1h'",
    ),
    (["io", "--recorder", "2065s"], "--recorder takes a time between 504 ms and 34.4 min"),
    (["io", "--waits", "5"], "the duration '5' has no unit"),
    (["io", "--level", "block", "--comm", "fio"], "--comm needs --level path"),
    (["io", "--level", "block", "--cgroup", "/"], "--cgroup needs --level path"),
    (["io", "--level", "block", "--file", "x"], "--file needs --level path"),
    (["io", "--level", "block", "--dir", "/"], "--dir needs --level path"),
    (["io", "--level", "block", "--op", "read"], "--op needs --level path"),
    (["io", "--level", "block", "--size", "-1M"], "--size needs --level path"),
    (["io", "--level", "block", "--sample", "1/2"], "--sample needs --level path"),
    (["io", "--level", "block", "--slow", "1ms", "--limit", "5"], "--limit needs --level path"),
    (["io", "--level", "block", "--stuck", "5s"], "--stuck needs --level path"),
    (["io", "--level", "block", "--interference"], "--interference needs --level path"),
    (["io", "--level", "block", "--times", "kernel", "--pid", "1"], "--pid needs wptrace's own times"),
    *(
        (["io", "--budget", text], f"{NO_BUDGET} and up to 100 such as 5% or 0.5%, not {text!r}")
        for text in ("", "0", "0%", "0.0%", "101%", "5%%", "five", "5 %", ".5%", "5.%", "1e1", "9" * 5000, "٣%")
    ),
    (["io", "--budget", "-5%"], NO_BUDGET),
    (["io", "--ring-size", "abc"], "'abc' is not a size such as 64K or 1M"),
    (["io", "--ring-size", ""], "'' is not a size such as 64K or 1M"),
    (["io", "--ring-size", "K"], "'K' is not a size such as 64K or 1M"),
    (["io", "--ring-size", "-1"], "'-1' is not a size such as 64K or 1M"),
    (["io", "--ring-size", "9" * 5000], "is not a size such as 64K or 1M"),
    (["io", "--ring-size", "3M"], "a ring of 3M is not possible: it takes a power of two between 4K and 1G"),
    (["io", "--ring-size", "2K"], "a ring of 2K is not possible: it takes a power of two between 4K and 1G"),
    (["io", "--ring-size", "2G"], "a ring of 2G is not possible: it takes a power of two between 4K and 1G"),
    (["io", "--level", "all"], "io: argument --level: invalid choice: 'all'"),
    (["io", "--times", "mine"], "io: argument --times: invalid choice: 'mine'"),
    (["doctor", "--blah"], "doctor: unrecognized arguments: --blah"),
    (["doctor", "now"], "doctor: unrecognized arguments: now"),
    (["size", "0"], "an interval of 0 is too short: the minimum is 10ms"),
    (["size", "1", "none"], "the count 'none' is not a whole number above 0"),
    (["size", "-d", "nope"], "there is no block device nope"),
    (["size", "-p", "1"], "size: unrecognized arguments: -p"),
    (["stacks", "-d", "nope"], "there is no block device nope"),
    (["stacks", "--min", "5"], "the duration '5' has no unit: the units are ns, us, ms, s, m, h"),
    (["stacks", "--top", "few"], "'few' is not a number of stacks"),
    (["stacks", "--top", "-1"], "'-1' is not a number of stacks"),
    (["stacks", "--folded", "bytes"], "stacks: argument --folded: invalid choice: 'bytes'"),
    (["stacks", "--folded", "time", "-j"], "--folded and --json are two output formats: choose one"),
    (["stacks", "-p", "nobody"], "'nobody' is not a process id"),
    (["cpu", "--by", "task"], "cpu: argument --by: invalid choice: 'task'"),
    (["cpu", "--hist", "sleep"], "there is no stage sleep; there are wait, run, off, total"),
    (["cpu", "--top", "0"], "--top takes a whole number above 0, not '0'"),
    (["cpu", "--top", "many"], "--top takes a whole number above 0, not 'many'"),
    (["cpu", "--top", "9" * 5000], "--top takes a whole number above 0, not "),
    (["cpu", "--top", "\u0663"], "--top takes a whole number above 0, not '\u0663'"),
    (["cpu", "--slow", "5"], "the duration '5' has no unit"),
    (["cpu", "-p", "4194305"], "there is no process 4194305"),
    (["cpu", "--tid", "x"], "'x' is not a thread id"),
    (["cpu", "--comm", ""], "--comm needs a name"),
    (["cpu", "--ring-size", "5"], "a ring of 5 is not possible"),
    (["cpu", "--file", "/etc/passwd"], "cpu: unrecognized arguments: --file"),
    *((["dump", text], f"{text} is not the process of a trace with a recorder") for text in ("9" * 5000, "\u00b2")),
    *((["agent", "--trigger", "x", "--pid", text], f"{text} is not the process of an agent") for text in ("9" * 5000,)),
    *(([name, "--export", "abc"], "--export takes FORMAT=FILE") for name in ("cpu", "iopf", "size", "stacks")),
    (["irqoff", "--log", ""], "--log needs the name of a file"),
    (["irqoff", "--log", "a", "--capture", "b"], "--log and --capture both write the periods to a file"),
    (["progs", "1ms"], "an interval of 1ms is too short: the minimum is 10ms"),
    (["progs", "1", "0"], "the count '0' is not a whole number above 0"),
    (["progs", "-p", "1"], "progs: unrecognized arguments: -p"),
]
# A new process for each would take long; these are detected in different places.
ALSO_AS_A_PROCESS = [
    [],
    ["blah"],
    ["io", "1", "ten"],
    ["io", "-d", "a\nb\x1b[31m"],
    ["io", "-d", "\udcff"],
    ["io", "--level", "block", "--tid", "1"],
    ["cpu", "--export", "abc"],
    ["irqoff", "--log", ""],
]

COMMANDS = {name: importlib.import_module(f"wptrace.cli.{name}").SUMMARY for name in command_names()}


def name(value: object) -> str:
    return " ".join(value)[:40] if isinstance(value, list) else ""


@pytest.mark.parametrize(("words", "message"), BAD, ids=name)
def test_a_bad_command_line_is_a_usage_error(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        main(words)
    assert caught.value.exit_code == 2
    assert message in printable(caught.value.message)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("words", ALSO_AS_A_PROCESS, ids=name)
def test_a_bad_command_line_is_reported_in_one_sentence(words: list[str]) -> None:
    found = run(WPTRACE, *words)
    assert found.returncode == 2
    assert found.stdout == ""
    said = sentence(found.stderr)
    assert any(message in said for given, message in BAD if given == words)


@pytest.mark.parametrize(
    "words",
    [
        *([name, *more] for name in ("io", "size", "stacks") for more in ([], ["--dry-run"])),
        ["io", "1", "--json", "-o", "/nonexistent/file"],
        ["cpu"],
        ["progs"],
    ],
    ids=name,
)
def test_without_privileges_nothing_is_traced(words: list[str]) -> None:
    found = run(WPTRACE, *words)
    assert found.returncode == 3
    assert found.stdout == ""
    assert sentence(found.stderr) == "tracing needs CAP_BPF and CAP_PERFMON, which are missing"
    assert found.stderr.endswith("hint: run it with sudo, or grant both capabilities\n")


def test_a_check_of_a_definition_shows_all_faults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.toml"
    file.write_text('\nkei = "a"\n')
    with pytest.raises(UsageError) as started:
        main(["flow", str(file)])
    assert started.value.hint == "wptrace flow --check shows 2 more"
    with pytest.raises(UsageError) as checked:
        main(["flow", str(file), "--check"])
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"wptrace: {started.value.message}"
    assert "lacks point" in second
    assert "has no key kei" in checked.value.message
    assert checked.value.hint is None


def test_without_privileges_doctor_says_so_and_what_it_can() -> None:
    found = run(WPTRACE, "doctor")
    assert found.returncode == NotPermittedError.exit_code == 3
    assert found.stderr == ""
    assert found.stdout.startswith(f"wptrace {__version__} on Linux ")
    assert "\n\nnothing can be tried without privileges: run it as root\n\nsystem\n" in found.stdout


def test_an_output_that_cannot_be_written_is_left_alone_without_privileges(tmp_path: Path) -> None:
    path = tmp_path / "results"
    assert run(WPTRACE, "io", "-o", str(path)).returncode == 3
    assert not path.exists()


@pytest.mark.parametrize(
    "words", [["--help"], ["-h"], ["--version"], *([command, "--help"] for command in command_names())]
)
def test_help_and_version_end_with_0(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert not caught.value.code
    written = capsys.readouterr()
    assert written.err == ""
    assert written.out.startswith("wptrace 0." if words == ["--version"] else "usage: wptrace ")


@pytest.mark.parametrize("columns", ["\u00b2", "9" * 5000, "0", "-1", "1"])
def test_help_whatever_the_environment_says_of_the_terminal(columns: str) -> None:
    found = run(WPTRACE, "--help", COLUMNS=columns)
    assert (found.returncode, found.stderr) == (0, "")


def test_help_and_version_of_the_process() -> None:
    found = run(WPTRACE, "--help", COLUMNS="200")
    assert (found.returncode, found.stderr) == (0, "")
    for command in command_names():
        summary = importlib.import_module(f"wptrace.cli.{command}").SUMMARY
        assert re.search(rf"^    {command} +{re.escape(summary)}$", found.stdout, re.M)
    found = run(WPTRACE, "--version")
    assert (found.returncode, found.stdout, found.stderr) == (0, f"wptrace {__version__}\n", "")


# --- What a valid one means -----------------------------------------------------------------------------------


def interval(*words: str) -> tuple[float | None, int | None]:
    given = [*words, None, None]
    return common.interval(argparse.Namespace(interval=given[0], count=given[1]))


def test_intervals() -> None:
    assert interval() == (None, None)
    assert interval("1") == (1.0, None)
    assert interval("0.5", "10") == (0.5, 10)
    assert interval("500ms", "007") == (0.5, 7)
    assert interval("2m") == (120.0, None)
    assert interval("10ms") == (0.01, None)


def test_ring_sizes() -> None:
    assert common.size("4096") == common.size("4K") == common.size("4k") == 4096
    assert common.size("1M") == 1 << 20
    assert common.size("1G") == common.size("1024m") == 1 << 30


@pytest.mark.parametrize(
    ("words", "slow_ns", "sample", "limit"),
    [
        ([], None, 0, 0),
        (["--slow", "5ms"], 5_000_000, 0, 1000),
        (["--slow", "5ms", "--limit", "0"], 5_000_000, 0, 0),
        (["--slow", "5ms", "--limit", "7"], 5_000_000, 0, 7),
        (["--slow", "5ms", "--sample", "1/100"], 5_000_000, 100, 0),
        (["--each"], 0, 0, 0),
        (["--each", "--limit", "3"], 0, 0, 3),
        (["--sample", "1/1"], None, 1, 0),
    ],
    ids=name,
)
def test_what_is_reported_one_by_one(
    words: list[str], slow_ns: int | None, sample: int, limit: int, handed: Callable[..., Handed]
) -> None:
    options = handed("io", *words, "--ring-size", "64K").flow._options
    assert (options.slow_ns, options.sample, options.limit) == (slow_ns, sample, limit)
    assert options.emits_records is (slow_ns is not None or sample > 0)
    assert options.ring_bytes == 1 << 16


@pytest.mark.parametrize(
    ("words", "ring_bytes"),
    [
        (["--each"], 16 << 20),
        (["--slow", "5ms"], 4 << 20),
        (["--each", "--capture"], 16 << 20),
        (["--each", "--limit", "9", "--capture"], 4 << 20),
        (["--slow", "5ms", "--capture"], 4 << 20),
        (["--each", "--ring-size", "8M", "--capture"], 8 << 20),
    ],
    ids=name,
)
def test_who_wants_all_has_a_larger_ring(
    words: list[str], ring_bytes: int, handed: Callable[..., Handed], tmp_path: Path
) -> None:
    file = [str(tmp_path / "trace.wpt")] if words[-1] == "--capture" else []
    assert handed("io", *words, *file).flow._options.ring_bytes == ring_bytes


def test_what_is_handed_to_the_runner(handed: Callable[..., Handed]) -> None:
    flow, _, run_options = handed("io", "--stuck", "1.5s", "2", "3", "--stats")
    assert run_options == RunOptions(2.0, 3, True, run_options.watch_fd, 1_500_000_000)
    assert isinstance(flow, PathFlow)
    assert flow._options.ring_bytes == 4 << 20
    flow, _, run_options = handed("io", "--level", "block", "--slow", "1ms", "--pid", str(os.getpid()))
    assert isinstance(flow, BlockFlow)
    assert run_options.stuck_ns is None
    assert flow.level == "block"


@pytest.mark.parametrize("level", ["request", "path", "block", ""])
@pytest.mark.parametrize("share", [0.03, 0.3])
def test_the_level_where_every_system_call_pays(
    level: str, share: float, handed: Callable[..., Handed], monkeypatch: pytest.MonkeyPatch
) -> None:
    price = calls.Price(share * 1e6, share)
    monkeypatch.setattr(calls, "price", lambda: price)
    monkeypatch.setattr(calls, "are_all_that_is_left", lambda: True)
    flow = handed("io", *(["--level", level] if level else [])).flow
    # More than 50,000 a second are many.
    assert flow.level == (level or ("request" if share > 0.05 else "path"))
    if isinstance(flow, RequestFlow):
        assert flow._why == ([] if level else [f"requests alone: {price.words}"])
    assert "makes 300,000 system calls a second" in calls.Price(3e5, 0.3).words
    assert "about 30.0% of the busy time" in calls.Price(3e5, 0.3).words


@pytest.mark.parametrize("words", [["--file", "FILE"], ["--segments", "--each"], ["--op", "sync"]], ids=name)
def test_what_needs_operations_has_them_whatever_they_cost(
    words: list[str], handed: Callable[..., Handed], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "price", lambda: calls.Price(1e6, 0.5))
    monkeypatch.setattr(calls, "are_all_that_is_left", lambda: True)
    assert handed("io", *(__file__ if word == "FILE" else word for word in words)).flow.level == "path"


def test_a_level_is_chosen_also_where_calls_cannot_be_counted(
    handed: Callable[..., Handed], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> calls.Price:
        raise WptraceError("the kernel does not permit it")

    monkeypatch.setattr(calls, "price", refused)
    monkeypatch.setattr(calls, "are_all_that_is_left", lambda: True)
    assert handed("io").flow.level == "path"


@pytest.mark.parametrize(
    ("text", "share"), [("5%", 0.05), ("5", 0.05), ("0.5%", 0.005), ("100%", 1.0), ("0.01%", 0.0001)], ids=name
)
def test_a_budget_is_a_share(text: str, share: float, handed: Callable[..., Handed]) -> None:
    for level in ("path", "block"):
        assert handed("io", "--level", level, "--budget", text).options.limit == pytest.approx(share)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_default_is_said_and_no_example_looks_like_one(command: str) -> None:
    """`(5ms)` said either."""
    parser = argparse.ArgumentParser()
    importlib.import_module(f"wptrace.cli.{command}").add_arguments(parser)
    for action in parser._actions:
        text = (action.help or "").replace("%%", "%")
        assert not re.search(r"\(\d+\w*%?\)", text), text
        if isinstance(action.default, str) and action.metavar and action.option_strings:
            assert f"(default: {action.default}" in text, text


def test_every_error_has_an_exit_code_of_the_documented_ones() -> None:
    def kinds(kind: type[WptraceError]) -> list[type[WptraceError]]:
        return [kind, *(found for below in kind.__subclasses__() for found in kinds(below))]

    assert {kind.exit_code for kind in kinds(WptraceError)} == {1, 2, 3, 4, 5}


@pytest.mark.parametrize(
    ("words", "terminal", "by"),
    [
        ([], True, "process"),
        (["--by", "file"], True, "file"),
        (["--neighbours"], True, "cgroup"),
        ([], False, ""),
        (["--json"], True, ""),
        (["-o", "/dev/null"], True, ""),
    ],
)
def test_a_screen_says_who_is_there(
    handed: Callable[..., Handed], monkeypatch: pytest.MonkeyPatch, words: list[str], terminal: bool, by: str
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    flow, _, run_options = handed("io", *words)
    assert flow._options.by == by
    assert run_options.live is bool(by)
