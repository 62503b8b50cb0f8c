# SPDX-License-Identifier: Apache-2.0
"""Completions of the command line, as each shell reads them."""

from __future__ import annotations

import itertools
import os
import pty
import select
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.packages.installed import ROOT, run, succeeds
from tests.unit.docs.test_man import command_parser, spellings
from wptrace.cli.main import command_names
from wptrace.engine.definition import shipped

# The places where each shell looks for them, below a prefix.
PLACES = {
    "bash": "share/bash-completion/completions/wptrace",
    "zsh": "share/zsh/site-functions/_wptrace",
    "fish": "share/fish/vendor_completions.d/wptrace.fish",
}
SHELLS = tuple(PLACES)

BASH = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_wptrace 2>/dev/null
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("completions")
    done = run(sys.executable, "packaging/completions.py", str(folder))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    made = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert made == {"made", *PLACES.values()}
    return folder


def completed(made: Path, *words: str) -> list[str]:
    return succeeds("bash", "-c", BASH, "bash", str(made / PLACES["bash"]), *words).split()


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_and_option_is_in_it(made: Path, shell: str) -> None:
    text = (made / PLACES[shell]).read_text()
    for command in command_names():
        assert command in text
        for options in spellings(command_parser(command)):
            for option in options:
                # fish has the name without dashes after -l or -s.
                wanted = (
                    option if shell != "fish" else f"-{'l' if option.startswith('--') else 's'} {option.strip('-')}"
                )
                assert wanted in text, f"{command} {option}"
    assert str(ROOT) not in text


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_itself_reads_it(made: Path, shell: str) -> None:
    found = shutil.which(shell)
    assert found, f"{shell} is not there: tests/setup.sh installs it"
    succeeds(found, "-n", str(made / PLACES[shell]))


def test_bash_completes_words(made: Path) -> None:
    assert set(completed(made, "wptrace", "")) >= set(command_names())
    assert completed(made, "wptrace", "repl") == ["replay"]
    assert completed(made, "wptrace", "io", "--writ") == ["--writeback"]
    assert completed(made, "wptrace", "io", "--level", "") == ["path", "request", "block"]
    assert completed(made, "wptrace", "io", "--hist", "dev") == ["device"]
    assert completed(made, "wptrace", "cpu", "--hist", "") == ["wait", "run", "off", "total"]
    assert completed(made, "wptrace", "replay", "/etc/os-rel") == ["/etc/os-release"]
    assert completed(made, "wptrace", "io", "--dir", "/usr/shar") == ["/usr/share"]


def test_bash_completes_definitions(made: Path, tmp_path: Path) -> None:
    assert set(completed(made, "wptrace", "flow", "")) >= set(shipped.names())
    assert completed(made, "wptrace", "flow", "ngi") == ["nginx"]
    assert completed(made, "wptrace", "io", "--unit", "mar") == ["mariadb"]
    for name in ("mine.toml", "mine.txt"):
        (tmp_path / name).touch()
    (tmp_path / "minutes").mkdir()
    here = f"{tmp_path}/min"
    assert completed(made, "wptrace", "flow", here) == [f"{here}e.toml", f"{here}utes/"]
    assert completed(made, "wptrace", "agent", "-c", here) == [f"{here}e.toml", f"{here}e.txt", f"{here}utes"]


def test_bash_completes_devices(made: Path) -> None:
    known = sorted(path.name for path in Path("/sys/class/block").iterdir())
    assert sorted(completed(made, "wptrace", "io", "--dev", "")) == known
    assert known, "there is no block device here to be completed"
    assert known[0] in completed(made, "wptrace", "size", "-d", known[0][:2])
    assert completed(made, "wptrace", "io", "-d", "/dev/nul") == ["/dev/null"]


def test_fish_completes_words(made: Path) -> None:
    ask = "source $argv[1]; complete -C $argv[2]"

    def words(line: str) -> list[str]:
        reported = succeeds("fish", "--no-config", "-c", ask, str(made / PLACES["fish"]), line)
        return [one.partition("\t")[0] for one in reported.splitlines()]

    assert set(words("wptrace ")) >= set(command_names())
    assert {path.name for path in Path("/sys/class/block").iterdir()} <= set(words("wptrace io --dev "))
    assert words("wptrace io --hist dev") == ["device"]
    assert words("wptrace flow ngi") == ["nginx"]
    assert words("wptrace io --unit mar") == ["mariadb"]


# Names with shell expansions, for cgroups, block devices and files. MARK stands for the command that would run.
HOSTILE = ("a$((`MARK`))", "b$(MARK)", "c`MARK`", "d;MARK;", "e\nMARK\n", "f&MARK&", "g<(MARK)", "h'MARK'", "~$(MARK)")
HARMLESS = {"/sys/fs/cgroup": "harmless.slice", "/sys/class/block": "sdharmless", ".": "harmless.img"}
LINES = {"/sys/fs/cgroup": "wptrace io --cgroup /", "/sys/class/block": "wptrace io -d ", ".": "wptrace io --capture "}

# A root shell in a mount namespace, with kernel folders that tests can fill.
PREPARED = """
mount -t tmpfs none /sys/fs/cgroup && mount -t tmpfs none /sys/class/block || exit
cd "$1" && export HOME=$1 && shift && exec "$@"
"""
FILL = """
import os
hostile, harmless = {hostile}, {harmless}
for folder, name in harmless.items():
    for one in (name, *(one.replace("MARK", "mark") for one in hostile)):
        if folder == ".":
            open(one, "w").close()
        else:
            os.makedirs(os.path.join(folder, one, "below"))
"""
STARTS = {
    "bash": ("bash", "--norc", "--noprofile"),
    "zsh": ("zsh", "-f"),
    "fish": ("fish", "--no-config"),
}
SOURCES = {
    "bash": "source {file}\r",
    "zsh": "autoload -U compinit; compinit -u -D; source {file}; compdef _shtab_wptrace wptrace\r",
    "fish": "source {file}\r",
}


class Typed:
    """A shell in a terminal. When it prints the answer to a command, it has executed everything typed before."""

    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.execvpe(command[0], list(command), environment)  # noqa: S606
        self._count = 0

    def type(self, keys: str) -> str:
        """Type keys, and return what the shell shows."""
        self._count += 1
        # The answer to "display all possibilities?", and Ctrl-U for the line.
        os.write(self._fd, f"{keys}n\x15\r".encode())
        os.write(self._fd, f"expr 770000 + {self._count}\r".encode())
        shown = b""
        while str(770_000 + self._count).encode() not in shown:
            ready, _, _ = select.select([self._fd], [], [], 60)
            assert ready, f"nothing more came behind {shown!r}"
            shown += os.read(self._fd, 1 << 16)
            # Some shells ask the terminal for its type first.
            if shown.endswith((b"\x1b[c", b"\x1b[0c")):
                os.write(self._fd, b"\x1b[?6c")
        return shown.decode(errors="replace")

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._fd)


@pytest.mark.parametrize("shell", SHELLS)
def test_no_name_that_tab_completes_runs_as_a_command(made: Path, shell: str, tmp_path: Path) -> None:
    """Any user may name files, and cgroups below a delegated one."""
    home, ran, called = (tmp_path / name for name in ("home", "ran", "called"))
    home.mkdir()
    for name, text in {
        "mark": f"#!/bin/sh\necho ran >>{ran}\n",
        "wptrace": f'#!/bin/sh\necho "$@" >>{called}\n',
        "fill": f"#!{sys.executable}\n{FILL.format(hostile=HOSTILE, harmless=HARMLESS)}",
    }.items():
        (home / name).write_text(text)
        (home / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{home}:{os.environ['PATH']}", "TERM": "dumb", "PS1": "> "}
    typed = Typed(["unshare", "--mount", "sh", "-c", PREPARED, "sh", str(home), *STARTS[shell]], environment)
    try:
        typed.type("fill\r")
        typed.type(SOURCES[shell].format(file=made / PLACES[shell]))
        for folder, line in LINES.items():
            typed.type(f"{line}{HARMLESS[folder][:5]}\t\r")
        assert [one.split()[-1].strip("/") for one in called.read_text().splitlines()] == list(HARMLESS.values())
        starts = ["", *(one[0] for one in HOSTILE)]
        for line, start, end in itertools.product(LINES.values(), starts, ("\t\t\t", "\t/\t\t", "\t\r")):
            typed.type(f"{line}{start}{end}")
        for start, end in itertools.product(starts, ("\t\t\t", "\t\r")):
            typed.type(f"wptrace io -d {home}/{start}{end}")
    finally:
        typed.close()
    assert not ran.exists()


def test_without_shtab_nothing_fails(tmp_path: Path) -> None:
    """Only the completions are missing, and a message says so."""
    (tmp_path / "shtab.py").write_text("raise ImportError\n")
    script = "import sys, runpy; sys.path.insert(0, sys.argv.pop(1)); runpy.run_path('packaging/completions.py', "
    script += "run_name='__main__')"
    folder = str(ROOT / "packaging")
    done = run(sys.executable, "-c", f"import sys; sys.path.insert(0, {folder!r})\n{script}", str(tmp_path), "/nowhere")
    assert done.returncode == 0
    assert done.stderr.startswith("there are no completions for bash, zsh, fish: for ")
