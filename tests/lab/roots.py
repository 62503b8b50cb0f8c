# SPDX-License-Identifier: Apache-2.0
"""Root file systems, for guests of another machine and for building modules: unpacked packages of Debian.

Maintainer scripts do not run, so this needs neither root nor an emulator; what they would create is created here.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.lab import apt, cache
from tests.lab.errors import LabError
from tests.lab.packages import Apt, AptError, need_tools, waiting


@dataclass(frozen=True)
class Recipe:
    """Folders of a root file system. Packages of these suites are usrmerged: trixie and newer."""

    suites: tuple[str, ...]
    packages: tuple[str, ...]
    links: tuple[tuple[str, str], ...] = ()
    """Path and target: what the alternatives system would have linked."""
    name: str = ""


GUEST = Recipe(
    suites=("trixie",),
    packages=(
        *("base-files", "bash", "dash", "coreutils", "util-linux", "mount", "procps", "kmod", "busybox-static"),
        *("grep", "sed", "gawk", "findutils", "tar", "iproute2", "e2fsprogs", "dmsetup", "fio", "libbpf1"),
        *("python3", "python3-cffi", "python3-pyelftools", "python3-rich", "python3-pytest", "python3-jsonschema"),
        *("bpftool", "fdisk"),
    ),
)
_BUILDS = ("base-files", "bash", "dash", "coreutils", "grep", "sed", "mawk", "findutils", "make")
# The newest kernel of the matrix needs the compiler that it was built with; older ones can use it too.
BUILDER = Recipe(
    name="builder-",
    suites=("sid",),
    packages=(*_BUILDS, "gcc-16-for-host", "pahole"),
    links=(("usr/bin/awk", "mawk"),),
)
ARM64_BUILDER = Recipe(
    name="builder-for-arm64-",
    suites=("sid",),
    packages=(*_BUILDS, "gcc-16-aarch64-linux-gnu", "pahole"),
    links=(("usr/bin/awk", "mawk"),),
)
_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/hosts": "127.0.0.1 localhost lab\n",
}


def fetch(recipe: Recipe, arch: str) -> Path:
    """Fetch a root file system into the cache."""
    digest = hashlib.sha256(repr((recipe, _FILES)).encode()).hexdigest()[:8]
    target = cache.directory() / "roots" / f"{recipe.name}{arch}-{digest}"
    if target.is_dir():
        return target
    need_tools()
    with cache.exclusive(cache.directory() / "fetch.lock", waiting):
        if not target.is_dir():
            _make(recipe, arch, target)
    return target


def _make(recipe: Recipe, arch: str, target: Path) -> None:
    work = target.with_name(f".new-{target.name}")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        packages = _download(recipe, arch)
        # Links such as /bin come first, because later packages need them.
        for package in sorted(packages, key=lambda path: not path.name.startswith("base-files_")):
            unpack(package, work)
            package.unlink()
        for name, text in _FILES.items():
            (work / name).write_text(text)
        for name, place in recipe.links:
            (work / name).symlink_to(place)
        work.rename(target)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


def _download(recipe: Recipe, arch: str) -> list[Path]:
    problems: list[str] = []
    for suite in recipe.suites:
        for number, mirror in enumerate(apt.mirrors(apt.system_sources(), suite)):
            private = Apt(mirror, suite, arch, number)
            try:
                private.update()
                return private.download_with_all_they_need(recipe.packages)
            except AptError as error:
                problems.append(f"{suite}: {error}")
    raise LabError(f"cannot fetch a root file system: {'; '.join(problems) or 'no Debian mirror for it'}")


def unpack(package: Path, directory: Path) -> None:
    """Unpack like `dpkg-deb -x`, but keep a link to a directory if a package has the directory."""
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE) as source:
        words = ["tar", "-x", "--keep-directory-symlink", "-C", str(directory)]
        done = subprocess.run(words, stdin=source.stdout, check=False)
    if done.returncode or source.returncode:
        raise LabError(f"cannot unpack {package.name}")
