# SPDX-License-Identifier: Apache-2.0
"""Debian's kernels, fetched into the cache by package name with an apt of the lab's own.

The system's apt is never touched. A kernel in the cache is used as it is; `newer` asks the mirrors for a newer one.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.lab import apt, cache
from tests.lab.errors import LabError
from tests.lab.matrix import Kernel, release_key
from tests.lab.packages import Apt, AptError, need_tools, run_tool, waiting


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
    """Return the newest release of this kernel in the cache."""
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
        name[len(head) : len(name) - len(tail)] for name in offered if name.startswith(head) and name.endswith(tail)
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
    need_tools()
    with cache.exclusive(cache.directory() / "fetch.lock", waiting):
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
                private = Apt(mirror, suite, kernel.arch, number)
                private.update()
                prefixes = [package.partition("{}")[0] for package in kernel.packages]
                names = [name for prefix in prefixes for name in private.names(prefix)]
                release = newest_release(releases_on_offer(names, kernel), kernel)
                if release is None:
                    problems.append(f"{suite} has no {kernel.name}")
                    continue
                if found and release_key(release) <= release_key(found.release):
                    return found
                return _install(kernel, release, private)
            except AptError as error:
                problems.append(f"{suite}: {error}")
    raise LabError(f"cannot fetch {kernel.name}: {'; '.join(problems)}")


def _install(kernel: Kernel, release: str, private: Apt) -> Installed:
    home = cache.directory() / "kernels" / kernel.name
    work = home / f".new-{release}"
    unpacked = work / "unpacked"
    done = work / "done"
    # Packages that an interrupted run downloaded completely are used again; unpacked ones are not.
    for leftover in (unpacked, done):
        shutil.rmtree(leftover, ignore_errors=True)
        leftover.mkdir(parents=True)
    try:
        for package in kernel.package_names(release):
            run_tool("dpkg-deb", "-x", str(private.download(package, work)), str(unpacked))
        arrange(unpacked, done, release)
        run_tool("depmod", "-b", str(done), release)
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


def arrange(unpacked: Path, target: Path, release: str) -> None:
    """Move image and modules to where the lab looks for them: releases of Debian put them in different places."""
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
