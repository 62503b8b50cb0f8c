# SPDX-License-Identifier: Apache-2.0
"""Clean roots: a suite from debootstrap in the lab's cache, and a copy of it for each test.

Mirrors and registries are those of this system's apt and pip. A root has Python and nothing else that wptrace needs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lab import apt, cache
from tests.lab.packages import waiting
from tests.packages.installed import TIMEOUT

# The parts of this machine's kernel that a process in a root may see; the mounts end with it.
_ENTER = """
mount --rbind /sys "$1/sys" && mount --rbind /dev "$1/dev" && mount --rbind /proc "$1/proc" || exit 99
exec chroot "$@"
"""
_ENVIRONMENT = ("LC_ALL=C.UTF-8", "HOME=/root", "DEBIAN_FRONTEND=noninteractive")
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Root:
    def __init__(self, path: Path) -> None:
        self.path = path

    def command(self, *words: str) -> list[str]:
        enter = ["unshare", "--mount", "--", "sh", "-c", _ENTER, "sh", str(self.path)]
        return [*enter, "/usr/bin/env", "-i", _PATH, *_ENVIRONMENT, *words]

    def run(self, *words: str, timeout: float = TIMEOUT) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words),
            cwd="/",
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )

    def succeeds(self, *words: str, timeout: float = TIMEOUT) -> str:
        done = self.run(*words, timeout=timeout)
        assert done.returncode == 0, f"{' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def put(self, source: Path, place: str = "root") -> str:
        """Copy a file or a folder into the root, and return its path inside."""
        target = self.path / place / source.name
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copy(source, target)
        return f"/{place}/{source.name}"

    def install(self, *packages: str) -> None:
        """Install packages of Debian with their dependencies."""
        self.succeeds("apt-get", "-q", "update", timeout=600)
        self.succeeds("apt-get", "-q", "-y", "--no-install-recommends", "install", *packages, timeout=900)

    def configure_pip(self) -> None:
        """Use the registry and the certificates of this system's pip."""
        listed = subprocess.run(
            (sys.executable, "-m", "pip", "config", "list"), capture_output=True, text=True, check=True
        )
        found = dict(re.findall(r"^(?:global|:env:)\.(cert|index-url|proxy)='(.*)'$", listed.stdout, re.M))
        if "cert" in found:
            found["cert"] = self.put(Path(found["cert"]).resolve(), "etc")
        lines = [f"{name} = {value}\n" for name, value in found.items()]
        (self.path / "etc/pip.conf").write_text("".join(["[global]\n", *lines]))

    def named(self) -> set[str]:
        """Return all files with wptrace in their name."""
        done = subprocess.run(
            ["find", str(self.path), "-xdev", "-name", "*wptrace*"], capture_output=True, text=True, check=True
        )
        return {f"/{Path(line).relative_to(self.path)}" for line in done.stdout.splitlines()}


def base(suite: str) -> Path:
    """Create the root of a suite in the cache, once."""
    target = cache.directory() / "clean-roots" / suite
    with cache.exclusive(target.with_name(f"{suite}.lock"), waiting):
        if not target.is_dir():
            mirrors = apt.mirrors(apt.system_sources(), suite)
            assert mirrors, f"no Debian mirror for {suite} in this system's apt sources"
            work = target.with_name(f".new-{suite}")
            shutil.rmtree(work, ignore_errors=True)
            command = ["debootstrap", "--variant=minbase", "--include=python3", suite, str(work), mirrors[0].uri]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
            assert done.returncode == 0, f"debootstrap {suite}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
            for part in Path("/etc/apt/apt.conf.d").glob("99*"):
                shutil.copy(part, work / "etc/apt/apt.conf.d")
            work.rename(target)
    return target


@contextmanager
def root(suite: str, folder: Path) -> Iterator[Root]:
    target = folder / suite
    subprocess.run(["cp", "--archive", "--reflink=auto", str(base(suite)), str(target)], check=True)
    yield Root(target)
    # All mounts have ended with the processes that saw them.
    assert str(target) not in Path("/proc/self/mounts").read_text()
    shutil.rmtree(target)


def traces(root: Root, command: str, device: str) -> None:
    """Trace a loop device under load as JSON: reads are counted, and nothing is lost."""
    words = (command, "io", "--level", "block", "--dev", Path(device).name, "--json")
    process = subprocess.Popen(root.command(*words), cwd="/", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first, process.stderr and process.stderr.read()
        assert json.loads(first)["kind"] == "start"
        assert Path(f"/proc/{process.pid}/comm").read_text() == "wptrace\n"
        with open(device, "rb", buffering=0, opener=_direct) as file:
            import mmap

            block = mmap.mmap(-1, 4096)
            for _ in range(50):
                assert file.readinto(block) == 4096
        process.send_signal(signal.SIGINT)
        reported, errors = process.communicate(timeout=TIMEOUT)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, errors) == (0, "")
    summary = json.loads(reported.splitlines()[-1])
    assert summary["kind"] == "summary"
    assert summary["requests"]["finished"] >= 50
    assert not summary["requests"].get("lost")


def _direct(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_DIRECT)
