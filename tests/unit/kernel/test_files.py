# SPDX-License-Identifier: Apache-2.0
"""Files that root writes: what other users have put there is refused."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from wptrace.errors import UsageError, WptraceError
from wptrace.kernel import files

NOBODY = 65534
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of others")


def opened(path: Path) -> int:
    fd = files.open_to_write(path, "a test")
    os.close(fd)
    return fd


@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_ours_are_written(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "one"
    if kind == "pipe":
        os.mkfifo(path)
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        assert opened(path) >= 0
        os.close(reader)
        return
    for _ in range(2):
        assert opened(path) >= 0
    assert path.stat().st_mode & 0o777 == 0o600


@ROOT
@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_those_of_others_are_refused(tmp_path: Path, kind: str) -> None:
    """Even opening a pipe would block."""
    path = tmp_path / "one"
    os.mkfifo(path) if kind == "pipe" else path.write_text("kept")
    os.chown(path, NOBODY, NOBODY)
    with pytest.raises(UsageError, match="one belongs to another user, and a test is not written to files of others"):
        opened(path)
    assert kind == "pipe" or path.read_text() == "kept"


def test_another_name_of_a_file_is_refused(tmp_path: Path) -> None:
    kept, path = tmp_path / "kept", tmp_path / "one"
    kept.write_text("kept")
    path.hardlink_to(kept) if sys.version_info >= (3, 10) else os.link(kept, path)
    with pytest.raises(UsageError, match="one has 2 hard links"):
        opened(path)


@pytest.mark.parametrize("to", ["kept", "nothing"])
def test_links_are_refused(tmp_path: Path, to: str) -> None:
    (tmp_path / "kept").write_text("kept")
    path = tmp_path / "one"
    path.symlink_to(tmp_path / to)
    with pytest.raises(UsageError, match="one is a link"):
        opened(path)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["kept", "one"]


@pytest.mark.parametrize("path", ["/dev/null", "/dev/stdout"])
def test_devices_and_what_we_were_given_are_written(path: str) -> None:
    script = f"""
import os
from pathlib import Path
from wptrace.kernel import files
os.write(files.open_to_write(Path({path!r}), "a test"), b"written")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == ("written" if path == "/dev/stdout" else "")


def test_two_writers_have_a_file_each(tmp_path: Path) -> None:
    path = tmp_path / "one"
    fd = files.open_to_write(path, "a test")
    os.write(fd, b"kept")
    with pytest.raises(UsageError, match="one is being written by another command: name another file"):
        opened(path)
    assert path.read_text() == "kept"
    os.close(fd)
    assert opened(path) >= 0


def test_what_the_system_refuses_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(WptraceError, match="one cannot be written: No such file"):
        opened(tmp_path / "no" / "one")
    with pytest.raises(WptraceError, match="cannot be written: Is a directory"):
        opened(tmp_path)


@pytest.mark.parametrize("what", ["pipe", "socket", "lease"])
def test_what_would_be_waited_for_is_not_read(tmp_path: Path, what: str) -> None:
    """A process may have any file as its descriptor where a guest's image is expected."""
    path = tmp_path / "one"
    with ExitStack() as stack:
        if what == "pipe":
            os.mkfifo(path)
        elif what == "socket":
            stack.enter_context(socket.socket(socket.AF_UNIX)).bind(os.path.relpath(path))
        else:
            file = stack.enter_context(path.open("w"))
            # An open() waits for the end of the lease, 45 s at most.
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            stack.callback(signal.signal, signal.SIGIO, signal.signal(signal.SIGIO, signal.SIG_IGN))
        with pytest.raises(OSError, match=r"Invalid argument|temporarily unavailable"):
            files.open_to_read(path, files.is_regular)


def test_a_folder_for_files_with_names_that_others_foresee_is_our_own(tmp_path: Path) -> None:
    files.require_own_folder(tmp_path, "dumps")
    link, file, open_one = tmp_path / "link", tmp_path / "file", tmp_path / "open"
    link.symlink_to(tmp_path)
    files.require_own_folder(link, "dumps")
    file.touch()
    open_one.mkdir()
    open_one.chmod(0o777)
    (open_one / "link").symlink_to(tmp_path)
    for folder, said in (
        (tmp_path / "none", "cannot be used: No such file or directory"),
        (open_one / "link", "is not a folder"),
        (file, "is not a folder"),
        (open_one, "is writable by others"),
    ):
        with pytest.raises(UsageError, match=f"{folder}, where dumps go, {said}"):
            files.require_own_folder(folder, "dumps")
    with pytest.raises(UsageError) as raised:
        files.require_own_folder(tmp_path / "none", "dumps")
    assert raised.value.hint == f"mkdir -p -m 700 {tmp_path / 'none'}"
