# SPDX-License-Identifier: Apache-2.0
"""Destinations of results: files that options name, and files that must not be the same one."""

from __future__ import annotations

import argparse
import fcntl
import os
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from subprocess import PIPE

import pytest

from wptrace.cli.options import stream
from wptrace.errors import UsageError, WptraceError

PIPE_BYTES, WRITTEN = 65536, 300_000


def options(output: Path | str | None) -> argparse.Namespace:
    return argparse.Namespace(output=None if output is None else str(output))


def test_a_file_is_made_or_cut(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        for before in (None, "something longer"):
            if before is not None:
                (tmp_path / "file").write_text(before)
            with stream(options(tmp_path / "file"), str(tmp_path / "other")) as file:
                file.write("\udcff")
            assert (tmp_path / "file").read_text() == "\\udcff"
        assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(mask)


@pytest.mark.parametrize("there", [True, False])
def test_two_options_name_two_files(tmp_path: Path, there: bool) -> None:
    path = tmp_path / "file"
    if there:
        path.write_text("kept")
        (tmp_path / "link").symlink_to(path)
        os.link(path, tmp_path / "hard")
    for other in ("file", "link", "hard") if there else ("file", "./file"):
        refused = pytest.raises(UsageError, match=r"are the same file: one would overwrite the other|has 2 hard links")
        with refused, stream(options(path), f"{tmp_path}/{other}"):
            raise AssertionError("it was opened")
    assert path.exists() is there
    assert not there or path.read_text() == "kept"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_signal_during_a_write_loses_nothing(unbuffered: str) -> None:
    """The pipe is full, so the writer waits in the middle of a write."""
    code = (
        "import signal, sys; from wptrace.cli import main; main._open_streams(); "
        "signal.signal(signal.SIGUSR1, lambda *_: print('signal', file=sys.stderr, flush=True)); "
        f"sys.stdout.write('x' * {WRITTEN}); sys.stdout.flush()"
    )
    words, environment = [sys.executable, "-c", code], {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with subprocess.Popen(words, stdout=PIPE, stderr=PIPE, env=environment) as writer:
        assert writer.stdout is not None
        assert writer.stderr is not None
        while pending(writer.stdout.fileno()) < PIPE_BYTES:
            assert writer.poll() is None
            time.sleep(0.01)
        writer.send_signal(signal.SIGUSR1)
        assert writer.stderr.readline() == b"signal\n"
        assert len(writer.stdout.read()) == WRITTEN
    assert writer.returncode == 0


def pending(fd: int) -> int:
    """Return how many bytes are in a pipe."""
    return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_what_is_thrown_away_is_not_mixed() -> None:
    with stream(options("/dev/null"), "/dev/null") as file:
        file.write("x")


def test_a_file_without_a_name_is_refused() -> None:
    with pytest.raises(UsageError, match="-o needs the name of a file"), stream(options("")):
        raise AssertionError("it was opened")


def test_a_file_that_cannot_be_made(tmp_path: Path) -> None:
    refused = pytest.raises(WptraceError, match="no/file cannot be written: No such file")
    with refused, stream(options(tmp_path / "no" / "file")):
        raise AssertionError("it was opened")
