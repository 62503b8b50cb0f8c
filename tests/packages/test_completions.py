# SPDX-License-Identifier: Apache-2.0
"""What completes the words of the command, as each shell reads it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.packages.installed import ROOT, run, succeeds
from tests.unit.docs.test_man import command_parser, spellings
from wptrace.cli.main import command_names

SHELLS = ("bash", "zsh", "fish")

BASH = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_shtab_wptrace 2>/dev/null
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("completions")
    done = run(sys.executable, "packaging/completions.py", str(folder))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert sorted(path.name for path in folder.iterdir()) == sorted(["made", *SHELLS])
    return folder


def completed(made: Path, *words: str) -> list[str]:
    return succeeds("bash", "-c", BASH, "bash", str(made / "bash"), *words).split()


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_and_option_is_in_it(made: Path, shell: str) -> None:
    text = (made / shell).read_text()
    for command in command_names():
        assert command in text
        for options in spellings(command_parser(command)):
            for option in options:
                # fish has the name without dashes behind -l or -s.
                wanted = (
                    option if shell != "fish" else f"-{'l' if option.startswith('--') else 's'} {option.strip('-')}"
                )
                assert wanted in text, f"{command} {option}"
    assert str(ROOT) not in text


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_itself_reads_it(made: Path, shell: str) -> None:
    found = shutil.which(shell)
    assert found, f"{shell} is not there: tests/setup.sh installs it"
    succeeds(found, "-n", str(made / shell))


def test_bash_completes_words(made: Path) -> None:
    assert set(completed(made, "wptrace", "")) >= set(command_names())
    assert completed(made, "wptrace", "repl") == ["replay"]
    assert completed(made, "wptrace", "io", "--writ") == ["--writeback"]
    assert completed(made, "wptrace", "io", "--level", "") == ["path", "block"]
    assert completed(made, "wptrace", "io", "--hist", "dev") == ["device"]
    assert completed(made, "wptrace", "cpu", "--hist", "") == ["wait", "run", "off", "total"]
    assert completed(made, "wptrace", "replay", "/etc/os-rel") == ["/etc/os-release"]
    assert completed(made, "wptrace", "io", "--dir", "/usr/shar") == ["/usr/share"]


def test_bash_completes_devices(made: Path) -> None:
    known = sorted(path.name for path in Path("/sys/class/block").iterdir())
    assert sorted(completed(made, "wptrace", "io", "--dev", "")) == known
    assert known, "there is no block device here to be completed"
    assert known[0] in completed(made, "wptrace", "size", "-d", known[0][:2])
    assert completed(made, "wptrace", "io", "-d", "/dev/nul") == ["/dev/null"]


def test_fish_completes_words(made: Path) -> None:
    ask = "source $argv[1]; complete -C $argv[2]"

    def words(line: str) -> list[str]:
        told = succeeds("fish", "--no-config", "-c", ask, str(made / "fish"), line)
        return [one.partition("\t")[0] for one in told.splitlines()]

    assert set(words("wptrace ")) >= set(command_names())
    assert {path.name for path in Path("/sys/class/block").iterdir()} <= set(words("wptrace io --dev "))
    assert words("wptrace io --hist dev") == ["device"]


def test_without_shtab_nothing_fails(tmp_path: Path) -> None:
    """Only the completions are missing, and a message says so."""
    (tmp_path / "shtab.py").write_text("raise ImportError\n")
    script = "import sys, runpy; sys.path.insert(0, sys.argv.pop(1)); runpy.run_path('packaging/completions.py', "
    script += "run_name='__main__')"
    folder = str(ROOT / "packaging")
    done = run(sys.executable, "-c", f"import sys; sys.path.insert(0, {folder!r})\n{script}", str(tmp_path), "/nowhere")
    assert done.returncode == 0
    assert done.stderr.startswith("there are no completions for bash, zsh, fish: for ")
