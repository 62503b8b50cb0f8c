# SPDX-License-Identifier: Apache-2.0
"""Claims of the README and other pages about commands, imports, versions and licences are true."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.command import parser as lab_parser
from tests.unit.docs.pages import PAGES, ROOT, section, tables
from tests.unit.docs.test_man import command_parser, spellings
from wptrace import __version__
from wptrace.cli.main import command_names, parser
from wptrace.cli.options import joined


def targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):(?!=)", (ROOT / "Makefile").read_text(), re.M))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_make_target_that_is_named_exists(page: Path) -> None:
    named = re.findall(r"(?:^|`)(?:sudo )?make ([a-z-]+)\b", page.read_text(), re.M)
    assert set(named) <= targets()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_option_in_a_command_exists(page: Path) -> None:
    for command, words in re.findall(r"wptrace (\w+)([^`|\n#]*)", page.read_text()):
        if command not in command_names():
            continue
        parser = command_parser(command)
        known = {option for options in spellings(parser) for option in options}
        for word in re.findall(r"(?<=\s)--?[a-zA-Z][\w-]*", words):
            assert word in known, f"wptrace {command}{words}"
        choices = {option: action.choices for action in parser._actions for option in action.option_strings}
        for option, value in re.findall(r"(?<=\s)(--[a-z][\w-]*) ([a-z]\w*)", words):
            assert value in (choices[option] or [value]), f"wptrace {command}{words}"


def command_lines(markdown: str) -> Iterator[list[str]]:
    """Generate the commands of code blocks, each up to a pipe, a redirection, a comment or its workload."""
    for block in re.findall(r"^ *```\w*\n(.*?)^ *```", markdown, re.M | re.S):
        for line in re.findall(r"(?<![\w/.-])wptrace (\w+ .*)", block.replace("\\\n", " ")):
            if line.partition(" ")[0] in command_names():
                # It may itself be a word of another command: sh -c 'wptrace ...'.
                line = line.removesuffix("'") if line.count("'") % 2 else line
                words = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
                words.whitespace_split = True
                found = list(words)
                ends = (at for at, word in enumerate(found) if word == "--" or set(word) <= set("|&;<>()"))
                yield found[: next(ends, None)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_code_block_is_a_whole_one(page: Path) -> None:
    for words in command_lines(page.read_text()):
        _, left = parser(words[:1], words[:1]).parse_known_args(joined(words))
        # Those after an interval are its count.
        assert not [word for word in left[1:] or left if not word.isdigit()], words


def test_a_command_ends_where_its_line_does() -> None:
    markdown = (
        "```sh\nsudo wptrace io --slow 5ms 1 2 | head  # slow ones\nwptrace replay \\\n  a.wpt && wptrace -h\n```\n"
    )
    assert list(command_lines(markdown)) == [["io", "--slow", "5ms", "1", "2"], ["replay", "a.wpt"]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_of_the_source_that_is_named_exists(page: Path) -> None:
    if page.name == "adding-a-flow.md":
        # Its example is not there yet.
        return
    for path in re.findall(r"`((?:wptrace|bpf_src|tests|bench|packaging|contrib)/[\w./-]+\.\w+)`", page.read_text()):
        assert (ROOT / path).exists(), path


def test_every_folder_of_the_house_exists() -> None:
    (house,) = re.findall(r"((?:^    .*\n)+)", section("design.md", "## The house"), re.M)
    above: dict[int, str] = {}
    for line in house.splitlines():
        indent = len(line) - len(line.lstrip())
        # Names stand before two spaces, if there are words about them.
        names = line.strip().partition("  ")[0].split()
        folder = "".join(name for at, name in above.items() if at < indent)
        for name in names:
            assert (ROOT / folder / name.partition("<")[0]).exists(), line
        above = {**{at: name for at, name in above.items() if at < indent}, indent: names[0]}


def test_the_options_of_the_lab_are_those_of_its_parser() -> None:
    commands = next(action for action in lab_parser()._actions if action.choices)
    assert commands.choices
    known = {option for action in dict(commands.choices)["run"]._actions for option in action.option_strings}
    documented = {
        option
        for table in tables(section("testing.md", "## The lab"))
        for row in table
        for option in re.findall(r"--[\w-]+", row[0])
    }
    assert documented == known - {"-h", "--help"}


def test_the_changelog_has_this_version() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert "## [Unreleased]" in changes
    assert f"## [{__version__}]" in changes


def test_every_licence_that_a_file_names_is_there() -> None:
    named: set[str] = set()
    for folder, pattern in (("wptrace", "*.py"), ("bpf_src", "*.[ch]"), ("tests", "*.py"), ("vmlinux", "*.[ch]")):
        for file in (ROOT / folder).rglob(pattern):
            head = "\n".join(file.read_text(errors="replace").splitlines()[:3])
            found = re.search(r"SPDX-License-Identifier: (.*?)(?: \*/)?$", head, re.M)
            if found:
                named |= set(re.findall(r"[\w.-]+", found[1])) - {"OR", "AND"}
    assert named == {path.stem for path in (ROOT / "LICENSES").glob("*.txt")}
    readme = (ROOT / "README.md").read_text()
    for name in named:
        assert f"(LICENSES/{name}.txt)" in readme
