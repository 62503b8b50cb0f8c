# SPDX-License-Identifier: Apache-2.0
"""The man pages have the options of the parsers and no others, and render without a warning."""

from __future__ import annotations

import argparse
import importlib
import re
import subprocess
from functools import cache

import pytest

from tests.unit.docs.pages import MAN, man_options, man_text, section
from wptrace import __version__
from wptrace.cli.main import command_names
from wptrace.errors import ConditionError, LibbpfError, NotPermittedError, UnsupportedError, UsageError, WptraceError
from wptrace.outputs.text.pages import HELP

COMMANDS = {name: importlib.import_module(f"wptrace.cli.{name}").SUMMARY for name in command_names()}
MAN_PAGES = sorted(path.name for path in MAN.iterdir())


EVERY_ERROR = (WptraceError, UsageError, NotPermittedError, UnsupportedError, LibbpfError, ConditionError)


@cache
def command_parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of a command, with what `main` adds to each."""
    parser = argparse.ArgumentParser()
    importlib.import_module(f"wptrace.cli.{command}").add_arguments(parser)
    parser.add_argument("-v", "--verbose")
    return parser


def spellings(parser: argparse.ArgumentParser) -> list[list[str]]:
    return [list(action.option_strings) for action in parser._actions if action.option_strings]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_in_the_man_page_and_vice_versa(command: str) -> None:
    assert sorted(man_options(f"wptrace-{command}.1")) == sorted(spellings(command_parser(command)))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_argument_and_choice_is_in_the_man_page(command: str) -> None:
    words = man_text(f"wptrace-{command}.1").split()
    for action in command_parser(command)._actions:
        if not action.option_strings:
            assert action.metavar in words
        for choice in action.choices or ():
            assert choice in words


def test_the_options_of_all_commands() -> None:
    assert sorted(man_options("wptrace.1")) == [["--version"], ["-h", "--help"]]


def test_there_is_a_page_for_each_command() -> None:
    assert sorted(["wptrace.1", *(f"wptrace-{command}.1" for command in COMMANDS)]) == MAN_PAGES
    for command in COMMANDS:
        assert man_text("wptrace.1").count(f"wptrace-{command} (1)") == 2, "in the list and under SEE ALSO"


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_says_what_help_says(command: str) -> None:
    summary = COMMANDS[command]
    assert f"wptrace-{command} - {summary}" in man_text(f"wptrace-{command}.1")


@pytest.mark.parametrize("page", MAN_PAGES)
def test_the_version_is_that_of_the_package(page: str) -> None:
    assert f"wptrace {__version__}" in (MAN / page).read_text().splitlines()[1]


def test_the_exit_codes_are_those_of_the_errors() -> None:
    codes = {"0"} | {str(kind.exit_code) for kind in EVERY_ERROR}
    status = (MAN / "wptrace.1").read_text().partition(".SH EXIT STATUS\n")[2].partition(".SH ")[0]
    assert set(re.findall(r"^\.B (\d+)$", status, re.M)) == codes
    assert set(re.findall(r"^\| (\d+) \|", section("commands.md", "## How a command ends"), re.M)) == codes


@pytest.mark.parametrize("page", MAN_PAGES)
def test_pages_render_without_a_warning(page: str) -> None:
    command = ["groff", "-man", "-ww", "-Tutf8", str(MAN / page)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, encoding="utf-8")
    assert done.stderr == ""
    # Bold is printed twice, with a backspace.
    assert "EXIT STATUS" in re.sub(".\b", "", done.stdout)


def keys(page: str) -> set[str]:
    named = (MAN / page).read_text().partition(".SH KEYS\n")[2].partition(".SH ")[0]
    found = re.findall(r"^\.TP\n\.BR? (.*)$", named, re.M)
    return {key for tag in found for key in tag.replace("\\-", "-").replace('", "', " ").split()}


@pytest.mark.parametrize(("command", "absent"), [("io", set()), ("flow", {"o"}), ("cpu", {"o", "b", "D", "d"})])
def test_the_keys_of_the_screen_are_in_the_man_page(command: str, absent: set[str]) -> None:
    known = {key for line in HELP for key in line[:10].split()}
    assert keys(f"wptrace-{command}.1") == (known | {"PgUp", "PgDn", "Home", "End"}) - absent
