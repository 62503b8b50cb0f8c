# SPDX-License-Identifier: Apache-2.0
"""`wptrace io -- COMMAND`: running a command with its streams, signals and exit code."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.unit.cli.command import FAKE, TIMEOUT, begun, ended, run, sentence
from wptrace.engine.workload import Workload

ENDS = [("true", 0), ("exit 7", 7), ("kill -KILL $$", 137), ("kill -PIPE $$", 141)]


@pytest.mark.parametrize(("script", "code"), ENDS)
def test_the_exit_code_is_the_commands(script: str, code: int) -> None:
    found = run(FAKE, "io", "--", "sh", "-c", f"echo out; {script}")
    assert (found.returncode, found.stdout) == (code, "out\n")
    assert "Summary" in found.stderr


def test_its_words_are_passed_on_as_they_are() -> None:
    found = run(FAKE, "io", "--json", "--", "printf", "%s\n", "--json", "--", "-1", "a b", "", "--level", "-2")
    assert found.stdout == "--json\n--\n-1\na b\n\n--level\n-2\n"
    assert [json.loads(line)["kind"] for line in found.stderr.splitlines()] == ["start", "summary"]


def test_results_go_to_a_file(tmp_path: Path) -> None:
    found = run(FAKE, "io", "-o", str(tmp_path / "file"), "--", "sh", "-c", "echo out; echo err >&2")
    assert (found.returncode, found.stdout, found.stderr) == (0, "out\n", "err\n")
    assert "Summary" in (tmp_path / "file").read_text()


def test_it_begins_when_the_trace_has() -> None:
    found = run(FAKE, "io", "--", "sh", "-c", "echo begun >&2")
    start, begun, summary = (found.stderr.index(word) for word in ("Tracing io", "begun", "Summary"))
    assert start < begun < summary


def test_intervals_are_those_of_the_time_until_its_end() -> None:
    found = run(FAKE, "io", "--json", "0.1", "--", "sleep", "0.35")
    kinds = [json.loads(line)["kind"] for line in found.stderr.splitlines()]
    assert kinds[0] == "start"
    assert kinds[-1] == "summary"
    assert "interval" in kinds


def test_a_command_that_is_not_there() -> None:
    found = run(FAKE, "io", "--", "/no/such")
    assert found.returncode == 2
    assert sentence(found.stderr) == "there is no command '/no/such' to run"


def test_a_file_that_is_no_program(tmp_path: Path) -> None:
    (tmp_path / "empty").touch(mode=0o755)
    found = run(FAKE, "io", "-o", os.devnull, "--", str(tmp_path / "empty"))
    assert found.returncode == 1
    assert sentence(found.stderr) == f"{tmp_path}/empty cannot be run: Exec format error"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_ends_the_trace_ends_the_command(number: int) -> None:
    process, _ = begun("io", "--", "sh", "-c", "echo; exec sleep 1000")
    process.send_signal(number)
    code, _, errors = ended(process)
    assert code == 128 + number
    assert b"Summary" in errors


def test_the_terminals_interrupt_is_the_commands_to_answer() -> None:
    """Both get the signal, and what the command does after it is still traced."""
    script = "trap 'echo interrupted; exit 3' INT; echo; while :; do sleep 0.01; done"
    process, _ = begun("io", "--", "sh", "-c", script, start_new_session=True)
    os.killpg(process.pid, signal.SIGINT)
    code, out, errors = ended(process)
    assert (code, out) == (3, b"interrupted\n")
    assert b"Summary" in errors


def test_a_command_that_does_not_end_is_left() -> None:
    script = "trap '' TERM; echo $$; while :; do sleep 0.01; done"
    process, line = begun("io", "--", "sh", "-c", script)
    assert process.stdout is not None
    assert process.stderr is not None
    pid = int(line)
    try:
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT) == 1
    finally:
        os.kill(pid, signal.SIGKILL)
    errors = process.stderr.read().decode()
    assert "Summary" in errors
    assert errors.splitlines()[-1] == f"wptrace: sh still runs, as process {pid}"
    process.stdout.close()
    process.stderr.close()


# Since 3.12 Python warns of fork() with threads, such as those of pytest-xdist; the command has none at that time.
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_signal_before_it_begins_is_its_end() -> None:
    workload = Workload(["true"])
    try:
        os.kill(workload.pid, signal.SIGTERM)
        while not workload.ended:
            pass
        workload.begin()
        assert workload.exit_code() == 128 + signal.SIGTERM
    finally:
        workload.close()


def test_a_trace_that_cannot_begin_runs_nothing(tmp_path: Path) -> None:
    found = run(FAKE, "io", "-o", str(tmp_path / "no" / "file"), "--", "touch", str(tmp_path / "made"))
    assert found.returncode == 1
    assert not (tmp_path / "made").exists()
