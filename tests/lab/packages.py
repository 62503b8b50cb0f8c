# SPDX-License-Identifier: Apache-2.0
"""An apt with its own lists, cache and sources, for one suite of one mirror."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from tests.lab import apt, cache
from tests.lab.errors import LabError

_TOOLS = {"apt-get": "apt", "apt-cache": "apt", "dpkg-deb": "dpkg", "depmod": "kmod"}


class AptError(Exception):
    """The complaints of apt."""


class Apt:
    """apt with its own lists, cache and sources: one suite of one mirror."""

    def __init__(self, mirror: apt.Mirror, suite: str, arch: str, number: int) -> None:
        self.suite = suite
        self.state = cache.directory() / "apt" / f"{suite}-{arch}-{number}"
        for directory in ("lists/partial", "cache/archives/partial"):
            (self.state / directory).mkdir(parents=True, exist_ok=True)
        self.fresh = self.state / "fresh"
        wanted = apt.stanza(mirror, suite)
        source = self.state / "lab.sources"
        if not source.is_file() or source.read_text() != wanted:
            self.fresh.unlink(missing_ok=True)
            source.write_text(wanted)
        (self.state / "status").touch()
        (self.state / "apt.conf").write_text(apt.configuration(self.state, arch))

    def update(self) -> None:
        """Update the lists, at most once a day."""
        if self.fresh.is_file() and self.fresh.read_text() == _today():
            return
        say(f"reading the package lists of {self.suite}")
        self._run("apt-get", "update", cwd=self.state)
        self.fresh.write_text(_today())

    def names(self, prefix: str) -> list[str]:
        return self._run("apt-cache", "pkgnames", prefix, cwd=self.state).splitlines()

    def download(self, package: str, directory: Path) -> Path:
        say(f"downloading {package} from {self.suite}")
        ours = f"{package}_*.deb"
        try:
            self._run("apt-get", "download", package, cwd=directory)
        except BaseException:
            for partial in directory.glob(ours):
                partial.unlink()
            raise
        files = list(directory.glob(ours))
        if len(files) != 1:
            raise AptError(f"apt-get download left {len(files)} files for {package}")
        return files[0]

    def download_with_all_they_need(self, packages: Sequence[str]) -> list[Path]:
        say(f"downloading {len(packages)} packages of {self.suite} and what they need")
        archives = self.state / "cache" / "archives"
        for old in archives.glob("*.deb"):
            old.unlink()
        options = ("-y", "--no-install-recommends", "--download-only")
        self._run("apt-get", "install", *options, *packages, cwd=self.state)
        return sorted(archives.glob("*.deb"))

    def _run(self, tool: str, *arguments: str, cwd: Path) -> str:
        done = subprocess.run(
            [tool, "-q", f"-c={self.state}/apt.conf", *arguments],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode:
            raise AptError(first_error(done.stderr) or f"{tool} {arguments[0]} failed")
        return done.stdout


def first_error(text: str) -> str:
    for line in text.splitlines():
        if line.startswith("E: "):
            return line[3:].strip().rstrip(".")
    return ""


def need_tools() -> None:
    for tool, package in _TOOLS.items():
        if not shutil.which(tool):
            raise LabError(f"{tool} is not there: install the package {package}")


def run_tool(*command: str) -> None:
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace", check=False)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise LabError(f"{command[0]} failed: {reason[0]}")


def say(text: str) -> None:
    print(f"lab: {text}", file=sys.stderr, flush=True)


def waiting() -> None:
    say("waiting for another fetch to finish")


def _today() -> str:
    return datetime.now().astimezone().date().isoformat()
