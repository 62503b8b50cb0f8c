# SPDX-License-Identifier: Apache-2.0
"""Debian's kernels, brought into the cache by package name with an apt of our own.

The system's apt is never touched. What is there is used as it is; `newer` asks the mirrors for a newer one.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tests.lab import apt, cache
from tests.lab.errors import LabError
from tests.lab.matrix import Kernel, release_key

_TOOLS = {"apt-get": "apt", "apt-cache": "apt", "dpkg-deb": "dpkg", "depmod": "kmod"}


@dataclass(frozen=True)
class Installed:
    """A kernel in the cache."""

    kernel: Kernel
    release: str
    directory: Path

    @property
    def image(self) -> Path:
        return self.directory / "vmlinuz"

    @property
    def modules(self) -> Path:
        return self.directory / "lib" / "modules" / self.release

    @property
    def suite(self) -> str:
        return str(json.loads((self.directory / "kernel.json").read_text())["suite"])


def present(kernel: Kernel) -> Installed | None:
    """The newest release of this kernel in the cache."""
    home = cache.directory() / "kernels" / kernel.name
    if not home.is_dir():
        return None
    newest = newest_release((path.name for path in home.iterdir()), kernel)
    return Installed(kernel, newest, home / newest) if newest else None


def newest_release(releases: Iterable[str], kernel: Kernel) -> str | None:
    return max((r for r in releases if re.fullmatch(kernel.release, r)), key=release_key, default=None)


def releases_on_offer(packages: Iterable[str], kernel: Kernel) -> list[str]:
    """Releases of which every package is there (a new one can arrive with only half of them)."""
    offered = set(packages)
    head, _, tail = kernel.packages[0].partition("{}")
    releases = [
        name[len(head) : len(name) - len(tail)]
        for name in offered
        if name.startswith(head) and name.endswith(tail)
    ]
    return [
        release
        for release in releases
        if re.fullmatch(kernel.release, release) and offered.issuperset(kernel.package_names(release))
    ]


def fetch(kernel: Kernel, newer: bool = False) -> Installed:
    """Have the kernel in the cache."""
    found = present(kernel)
    if found and not newer:
        return found
    for tool, package in _TOOLS.items():
        if not shutil.which(tool):
            raise LabError(f"{tool} is not there: install the package {package}")
    with cache.exclusive(
        cache.directory() / "fetch.lock", lambda: _say("waiting for another fetch to finish")
    ):
        found = present(kernel)
        if found and not newer:
            return found
        return _fetch(kernel, found)


def _fetch(kernel: Kernel, found: Installed | None) -> Installed:
    sources = apt.system_sources()
    problems: list[str] = []
    for suite in kernel.suites:
        mirrors = apt.mirrors(sources, suite)
        if not mirrors:
            problems.append(f"no Debian mirror for {suite} in this system's apt sources")
        for number, mirror in enumerate(mirrors):
            try:
                private = _Apt(mirror, suite, kernel.arch, number)
                private.update()
                release = newest_release(releases_on_offer(private.packages(kernel), kernel), kernel)
                if release is None:
                    problems.append(f"{suite} has no {kernel.name}")
                    continue
                if found and release_key(release) <= release_key(found.release):
                    return found
                return _install(kernel, release, private)
            except _AptError as error:
                problems.append(f"{suite}: {error}")
    raise LabError(f"cannot fetch {kernel.name}: {'; '.join(problems)}")


class _AptError(Exception):
    pass


class _Apt:
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
        """Read the lists anew, once a day."""
        if self.fresh.is_file() and self.fresh.read_text() == _today():
            return
        _say(f"reading the package lists of {self.suite}")
        self._run("apt-get", "update", cwd=self.state)
        self.fresh.write_text(_today())

    def packages(self, kernel: Kernel) -> list[str]:
        names: list[str] = []
        for package in kernel.packages:
            names += self._run(
                "apt-cache", "pkgnames", package.partition("{}")[0], cwd=self.state
            ).splitlines()
        return names

    def download(self, package: str, directory: Path) -> Path:
        _say(f"downloading {package} from {self.suite}")
        ours = f"{package}_*.deb"
        try:
            self._run("apt-get", "download", package, cwd=directory)
        except BaseException:
            for partial in directory.glob(ours):
                partial.unlink()
            raise
        files = list(directory.glob(ours))
        if len(files) != 1:
            raise _AptError(f"apt-get download left {len(files)} files for {package}")
        return files[0]

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
            raise _AptError(first_error(done.stderr) or f"{tool} {arguments[0]} failed")
        return done.stdout


def first_error(text: str) -> str:
    for line in text.splitlines():
        if line.startswith("E: "):
            return line[3:].strip().rstrip(".")
    return ""


def _install(kernel: Kernel, release: str, private: _Apt) -> Installed:
    home = cache.directory() / "kernels" / kernel.name
    work = home / f".new-{release}"
    unpacked = work / "unpacked"
    done = work / "done"
    # Packages that came whole in a broken-off run stay and are used again; what was unpacked does not.
    for leftover in (unpacked, done):
        shutil.rmtree(leftover, ignore_errors=True)
        leftover.mkdir(parents=True)
    try:
        for package in kernel.package_names(release):
            unpack(private.download(package, work), unpacked)
        arrange(unpacked, done, release)
        _tool("depmod", "-b", str(done), release)
        (done / "kernel.json").write_text(
            json.dumps({"suite": private.suite, "packages": kernel.package_names(release)}) + "\n"
        )
    except BaseException:
        shutil.rmtree(unpacked, ignore_errors=True)
        shutil.rmtree(done, ignore_errors=True)
        with suppress(OSError):
            work.rmdir()
        raise
    target = home / release
    done.rename(target)
    shutil.rmtree(work)
    return Installed(kernel, release, target)


def unpack(package: Path, directory: Path) -> None:
    _tool("dpkg-deb", "-x", str(package), str(directory))


def arrange(unpacked: Path, target: Path, release: str) -> None:
    """Image and modules to where the lab looks for them: releases of Debian differ in this."""
    modules = [unpacked / top / "modules" / release for top in ("lib", "usr/lib")]
    images = [unpacked / "boot" / f"vmlinuz-{release}", *(directory / "vmlinuz" for directory in modules)]
    image = next((path for path in images if path.is_file()), None)
    kept = [directory for directory in modules if directory.is_dir()]
    if image is None or not kept:
        raise LabError(f"the packages of {release} hold no {'modules' if image else 'kernel image'}")
    image.rename(target / "vmlinuz")
    home = target / "lib" / "modules"
    home.mkdir(parents=True)
    kept[0].rename(home / release)
    for other in kept[1:]:
        shutil.copytree(other, home / release, symlinks=True, dirs_exist_ok=True)
    for name in ("config", "System.map"):
        for file in (unpacked / "boot" / f"{name}-{release}", home / release / name):
            if file.is_file():
                file.rename(target / name)


def _tool(*command: str) -> None:
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace", check=False)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise LabError(f"{command[0]} failed: {reason[0]}")


def _today() -> str:
    return datetime.now().astimezone().date().isoformat()


def _say(text: str) -> None:
    print(f"lab: {text}", file=sys.stderr, flush=True)
