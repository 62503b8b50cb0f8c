# SPDX-License-Identifier: Apache-2.0
"""`wptrace dump` asks a process, which anybody may have started."""

from __future__ import annotations

import subprocess
import sys

import pytest

from wptrace.cli.main import main

_ASKED = "import signal; signal.signal(signal.SIGUSR2, lambda *_: exit()); print(flush=True); signal.pause()"


def test_the_folder_of_another_process_does_not_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["wptrace", "-c", _ASKED, "--recorder", "--dump-dir=/\x1b[2J\n"]
    with subprocess.Popen(words, executable=sys.executable, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert main(["dump", str(process.pid)]) == 0
        assert process.wait(10) == 0
    assert capsys.readouterr().out == f"process {process.pid} writes its recorder to a file in /\\x1b[2J\\n\n"
