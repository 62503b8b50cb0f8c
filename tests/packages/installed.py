# SPDX-License-Identifier: Apache-2.0
"""Installing with the project's own Makefile, and using the result as a user does."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Much longer than anything takes, unless it hangs.
TIMEOUT = 600


def environment(**variables: str) -> dict[str, str]:
    """Return an environment without variables of make, Python and wptrace."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "PYTHON", "WPTRACE_"))}
    kept.pop("V", None)
    return {**kept, "LC_ALL": "C.UTF-8", **variables}


def run(*words: str, cwd: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, cwd=cwd, env=environment(**variables), capture_output=True, text=True, timeout=TIMEOUT, check=False
    )


def make(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run("make", *words, cwd=ROOT, **variables)


def succeeds(*words: str, cwd: Path = ROOT, **variables: str) -> str:
    done = run(*words, cwd=cwd, **variables)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}{done.stderr}"
    return done.stdout


def tree(root: Path) -> dict[str, bytes | str]:
    """Return mode and content of each file, folder and link below a root, by path."""
    found: dict[str, bytes | str] = {}
    for path in sorted(root.rglob("*")):
        mode = f"{path.lstat().st_mode:o}"
        place = str(path.relative_to(root))
        if path.is_symlink():
            found[place] = f"{mode} -> {path.readlink()}"
        else:
            found[place] = mode if path.is_dir() else mode.encode() + b" " + path.read_bytes()
    return found


def files(root: Path) -> list[str]:
    return [str(path.relative_to(root)) for path in sorted(root.rglob("*")) if not path.is_dir() or path.is_symlink()]


def name_of_process(*command: str) -> str:
    """Return the name that `pkill -x` matches, from a command that blocks on its output."""
    read, write = os.pipe()
    size = fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    os.write(write, b"x" * size)
    process = subprocess.Popen([*command, "--help"], env=environment(), stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    try:
        comm = Path(f"/proc/{process.pid}/comm")
        deadline = time.monotonic() + TIMEOUT
        # Wait until it blocks in the kernel because the pipe is full.
        while not _blocked(process.pid):
            assert process.poll() is None, process.stderr and process.stderr.read()
            assert time.monotonic() < deadline, "it writes no help"
            time.sleep(0.01)
        return comm.read_text().strip()
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
        os.close(read)


def _blocked(pid: int) -> bool:
    """Tell whether a process is in write(1, ...), by the number of the system call and its first argument."""
    try:
        words = Path(f"/proc/{pid}/syscall").read_text().split()
    except OSError:
        return False
    return len(words) > 1 and words[0] in _WRITE and int(words[1], 16) == 1


# write(2) on x86-64 and arm64.
_WRITE: Sequence[str] = ("1", "64")
