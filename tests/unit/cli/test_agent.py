# SPDX-License-Identifier: Apache-2.0
"""`wptrace agent` as a process with a flow without BPF: bad files, messages to systemd, and its end."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

from tests.unit.cli.command import FAKE, PIPE, TIMEOUT, WPTRACE, ended, environment, popen, run, sentence
from wptrace.cli.main import main
from wptrace.errors import UsageError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "agent.toml"
    made.write_text("[always.io]\nlevel = 'block'\n")
    return made


def test_without_a_file_it_says_how_to_get_one() -> None:
    found = run(WPTRACE, "agent")
    assert (found.returncode, found.stdout) == (2, "")
    assert sentence(found.stderr) == "name the configuration"
    assert "wptrace agent --print-defaults > agent.toml" in found.stderr


def test_the_printed_defaults_are_a_right_file(tmp_path: Path) -> None:
    printed = run(WPTRACE, "agent", "--print-defaults")
    file = tmp_path / "agent.toml"
    file.write_text(printed.stdout)
    found = run(WPTRACE, "agent", "--check", "-c", str(file))
    assert (found.returncode, found.stdout, found.stderr) == (0, f"{file} is valid and traces io\n", "")


def test_a_check_says_all_that_is_wrong(file: Path) -> None:
    file.write_text("[agent]\nbudget = 'x\x1b'\n[always.io]\nlevel = 'blok'\n".replace("\x1b", "\\u001b"))
    found = run(WPTRACE, "agent", "--check", "-c", str(file))
    assert found.returncode == 2
    lines = found.stdout.splitlines()
    assert [line.partition(": ")[2].partition(":")[0] for line in lines] == ["line 2, column 11", "line 4, column 10"]
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[history]\ndir = "{}/a/b"', "No such file or directory"),
        ('[history]\ndir = "{}/agent.toml"', "Not a directory"),
        ('[trigger.x]\nwhen = "io.total.p99 > 1s"\n[on_trigger.io]\n[agent]\nfolder = "{}/a"', "No such file or "),
    ],
)
def test_a_check_says_which_folder_is_missing(file: Path, text: str, why: str) -> None:
    file.write_text(text.format(file.parent))
    with pytest.raises(UsageError, match=f" go, cannot be used: {why}"):
        main(["agent", "--check", "-c", str(file)])


@pytest.mark.parametrize(
    "text",
    [
        '[history]\ndir = "{}/a"',
        '[agent]\nfolder = "{}/a"',
        # systemd makes it before the start.
        '[history]\ndir = "/var/lib/wptrace/a/b"',
    ],
)
def test_a_check_makes_no_folder(file: Path, text: str) -> None:
    file.write_text(text.format(file.parent))
    assert main(["agent", "--check", "-c", str(file)]) == 0
    assert not (file.parent / "a").exists()


def test_a_wrong_file_is_said_before_a_privilege_is_needed(file: Path) -> None:
    file.write_text("[always.io]\nlevel = 'blok'\n")
    found = run(WPTRACE, "agent", "-c", str(file))
    assert (found.returncode, found.stdout) == (2, "")
    assert "agent.toml: line 2, column 10: " in sentence(found.stderr)


def test_without_privileges_nothing_is_traced(file: Path) -> None:
    found = run(WPTRACE, "agent", "-c", str(file))
    assert found.returncode == 3
    assert sentence(found.stderr) == "tracing needs CAP_BPF and CAP_PERFMON, which are missing"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_a_summary(file: Path, tmp_path: Path, number: int) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(TIMEOUT)
        variables = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
        process = popen(FAKE, "agent", "-c", str(file), stdout=PIPE, stderr=PIPE, env=environment(**variables))
        assert systemd.recv(1000) == b"READY=1\nSTATUS=tracing io"
        assert systemd.recv(1000) == b"WATCHDOG=1"
        process.send_signal(number)
        heard = b""
        while heard != b"STOPPING=1":
            heard = systemd.recv(1000)
        code, out, errors = ended(process)
    assert (code, errors) == (0, b"wptrace: tracing io\n")
    assert b"Summary" in out
    assert b"verdict: device takes " in out


def test_it_outlives_the_reader_of_its_log(file: Path, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(TIMEOUT)
        variables = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        process = popen(FAKE, "agent", "-c", str(file), stdout=PIPE, stderr=PIPE, env=environment(**variables))
        assert process.stdout is not None
        assert process.stderr is not None
        assert systemd.recv(1000).startswith(b"READY=1")
        process.stderr.close()
        process.send_signal(signal.SIGHUP)
        assert systemd.recv(1000).startswith(b"RELOADING=1")
        assert b"again: nothing changed" in systemd.recv(1000)
        process.send_signal(signal.SIGTERM)
        assert b"Summary" in process.stdout.read()
        process.stdout.close()
        assert process.wait(TIMEOUT) == 0
