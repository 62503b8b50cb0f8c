# SPDX-License-Identifier: Apache-2.0
"""How a trace ends and where its results go: real processes, pipes, files and signals, and a flow without BPF."""

from __future__ import annotations

import json
import os
import pty
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from tests.unit.cli.command import FAKE, PIPE, TIMEOUT, WPTRACE, begun, ended, popen, run, sentence


@pytest.fixture
def closed_pipe() -> Iterator[int]:
    """The write end of a pipe without a reader."""
    read, write = os.pipe()
    os.close(read)
    yield write
    os.close(write)


@pytest.mark.parametrize("words", [["doctor"], ["doctor", "--json"], ["--help"], ["--version"], ["io", "--help"]])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_pipe_ends_quietly(words: list[str], unbuffered: str, closed_pipe: int) -> None:
    found = run(WPTRACE, *words, stdout=closed_pipe, PYTHONUNBUFFERED=unbuffered)
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.parametrize("words", [["io"], ["io", "0.05"], ["io", "--json"], ["io", "0.05", "--json", "--each"]])
def test_a_trace_into_a_closed_pipe_ends_quietly(words: list[str], closed_pipe: int) -> None:
    found = run(FAKE, *words, stdout=closed_pipe)
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.parametrize("words", [["io", "1000h"], ["io", "--json"]])
def test_a_trace_ends_when_its_reader_leaves(words: list[str]) -> None:
    """`wptrace io --json | head -n 1` ends, also if there is nothing more to write for a long time."""
    process, _ = begun(*words)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.wait(TIMEOUT) == 0
    assert process.stderr.read() == b""
    process.stderr.close()


@pytest.mark.parametrize("command", [[*WPTRACE, "doctor"], [*FAKE, "io", "0.05", "2"]])
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_descriptors_are_no_reason_to_fail(command: list[str], closed: str) -> None:
    found = run(["sh", "-c", f'exec "$@" {closed}', "sh", *command])
    assert found.returncode == (3 if command[-1] == "doctor" else 0)
    assert found.stderr == ""
    assert bool(found.stdout) is (">&-" not in closed.replace("2>&-", ""))


@pytest.mark.parametrize(
    "command",
    [
        *([*FAKE, "io", "0.05", "2", *form, *file] for form in ([], ["--json"]) for file in ([], ["-o", "/dev/full"])),
        [*WPTRACE, "doctor"],
        [*WPTRACE, "--help"],
    ],
)
def test_a_full_disk_is_reported_in_one_sentence(command: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        found = run(command, stdout=PIPE if "-o" in command else full)
    assert found.returncode == 1
    assert sentence(found.stderr) == "the output cannot be written: No space left on device"


def test_results_go_into_a_file(tmp_path: Path) -> None:
    path = tmp_path / "results"
    found = run(FAKE, "io", "0.05", "2", "--json", "-o", str(path))
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")
    kinds = [json.loads(line)["kind"] for line in path.read_text().splitlines()]
    assert kinds == ["start", "interval", "interval", "summary"]


@pytest.mark.parametrize("output", ["-o", "the shell"])
def test_a_capture_and_the_results_go_into_two_files(tmp_path: Path, output: str) -> None:
    path = tmp_path / "file"
    path.write_text("kept\n")
    with path.open("a") as file:
        more = ["-o", str(path)] if output == "-o" else []
        found = run(FAKE, "io", "--each", "--capture", str(path), *more, stdout=file)
    assert found.returncode == 2
    assert "are the same file" in sentence(found.stderr)
    assert path.read_text() == "kept\n"


def test_a_file_may_be_a_pipe_whose_reader_leaves(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    process = popen(FAKE, "io", "0.05", "--json", "-o", str(path), stdout=PIPE, stderr=PIPE)
    with path.open() as reader:
        assert json.loads(reader.readline())["kind"] == "start"
    assert ended(process) == (0, b"", b"")


def test_hostile_names_go_into_a_file_escaped(tmp_path: Path) -> None:
    path = tmp_path / "results"
    found = run(FAKE, "io", "0.05", "1", "-D", "-o", str(path), FAKE_DEVICE="\udcff\x1b[31m")
    assert (found.returncode, found.stderr) == (0, "")
    assert r"\xff\x1b[31m read: " in path.read_text()


@pytest.mark.parametrize("encoding", ["ascii", "iso-8859-1", "utf-8"])
def test_every_encoding_of_a_terminal_will_do(encoding: str) -> None:
    found = run(FAKE, "io", "0.05", "1", "-D", PYTHONIOENCODING=encoding, FAKE_DEVICE="\u4e2d\u6587")
    assert (found.returncode, found.stderr) == (0, "")
    assert ("\u4e2d\u6587 read" if encoding == "utf-8" else r"\u4e2d\u6587 read") in found.stdout
    assert "Summary" in found.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("words", [["io"], ["io", "1000h", "--json"]])
def test_a_signal_ends_with_the_summary(number: signal.Signals, words: list[str]) -> None:
    process, _ = begun(*words)
    process.send_signal(number)
    code, written, errors = ended(process)
    assert (code, errors) == (0, b"")
    assert b'"kind":"summary"' in written if "--json" in words else b"\nSummary\n" in written


# Sends the signal when a module of this name is imported; then goes on as the command does.
INTERRUPTED = """
import os, runpy, signal, sys
wanted = sys.argv[1]
class Finder:
    def find_spec(name, path=None, target=None):
        if name == wanted:
            sys.meta_path.remove(Finder)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder)
def run(module, *words):
    sys.argv[1:] = words
    runpy.run_module(module, run_name="__main__")
run(*sys.argv[2:])
"""


STARTING = ["wptrace.cli.main", "argparse", "wptrace.errors", "wptrace.cli.io", "wptrace.flows.io.path"]


@pytest.mark.parametrize("module", [*STARTING, "wptrace.outputs.text.words"])
def test_an_interrupt_while_it_starts_is_quiet(module: str) -> None:
    found = run([*WPTRACE[:-2], "-c", INTERRUPTED], module, "wptrace", "io", "--dev", "nothing")
    assert found.returncode in (-signal.SIGINT, 130), found
    assert (found.stdout, found.stderr) == ("", "")


def test_the_block_layer_alone_imports_nothing_of_the_path() -> None:
    """Imports take a third of the time of its start."""
    code = "import atexit, sys, wptrace.cli.main as m\natexit.register(lambda: print(*sys.modules))\nm.run()"
    found = run([*WPTRACE[:-2], "-c", code], "io", "--level", "block", "--dev", "nothing")
    imported = found.stdout.split()
    assert "wptrace.flows.io.block" in imported
    assert "wptrace.flows.io.path" not in imported


@pytest.mark.parametrize("words", [["io", "--dev", "nothing"], ["nothing"], ["doctor"]])
def test_nobody_may_hear_of_an_error(words: list[str]) -> None:
    """If standard error cannot be written, the exit code stays the same."""
    codes = []
    for name in ("/dev/full", "/dev/null"):
        with Path(name).open("w") as errors:
            codes.append(run(WPTRACE, *words, stderr=errors).returncode)
    assert codes[0] == codes[1] in (2, 3)


def test_the_process_has_the_name_by_which_it_is_signalled() -> None:
    """`pkill -USR1 -x wptrace` is documented, and matches the name without the command line."""
    process, _ = begun("io")
    assert Path(f"/proc/{process.pid}/comm").read_text() == "wptrace\n"
    process.send_signal(signal.SIGINT)
    assert ended(process)[0] == 0


def test_garbage_is_collected_and_seldom() -> None:
    code = "import gc, wptrace.__main__; print(gc.isenabled(), gc.get_threshold()[0])"
    found = run([sys.executable, "-c", code])
    assert found.stdout == "True 100000\n"


def test_an_interrupt_before_the_trace_is_130() -> None:
    code = "import wptrace.cli.main as m\ndef interrupt(): raise KeyboardInterrupt\nm.main = interrupt\nm.run()"
    command = [*WPTRACE[:-2], "-c", code]
    found = run(command)
    assert (found.returncode, found.stderr) == (130, "")


def test_a_fault_of_the_kernel_is_reported_with_what_the_verifier_said() -> None:
    code = (
        "import wptrace.cli.main as m\nfrom wptrace.errors import VerifierError\n"
        "def refuse(): raise VerifierError('issue', 'R1 \\x1b[31minvalid\\nat 7', 'try this')\nm.main = refuse\nm.run()"
    )
    found = run([*WPTRACE[:-2], "-c", code])
    assert found.returncode == 4
    assert found.stderr.splitlines() == [
        "wptrace: the kernel refused the program issue",
        r"R1 \x1b[31minvalid",
        "at 7",
        "hint: try this",
    ]


def all_of(file: IO[bytes]) -> bytes:
    """Read from a terminal until its other side is closed, which reads as an error."""
    found = b""
    while True:
        try:
            chunk = os.read(file.fileno(), 65536)
        except OSError:
            return found
        found += chunk
        if not chunk:
            return found


@pytest.mark.parametrize("live", [True, False])
def test_a_terminal_gets_a_live_screen_and_json_does_not(live: bool) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen:
        words = ["io", "0.05", "2", *([] if live else ["--json"])]
        process = popen(FAKE, *words, stdin=theirs, stdout=theirs, stderr=PIPE)
        os.close(theirs)
        got: list[bytes] = []
        reader = threading.Thread(target=lambda: got.append(all_of(screen)))
        reader.start()
        code, _, errors = ended(process)
        reader.join(TIMEOUT)
    assert (code, errors) == (0, b"")
    (written,) = got
    assert (b"\x1b[" in written) is live
    assert (b"Summary" in written) is live
    assert (b'"kind":"summary"' in written) is not live
