# SPDX-License-Identifier: Apache-2.0
"""Root file systems for guests of another machine: packages of Debian, unpacked and nothing more.

No maintainer script runs, so this needs neither root nor an emulator; what they would have made is made here.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

from tests.lab import apt, cache
from tests.lab.errors import LabError
from tests.lab.packages import Apt, AptError, need_tools, waiting

SUITES = ("trixie",)
"""Usrmerged in the packages themselves: older ones leave that to a script."""
PACKAGES = (
    *("base-files", "bash", "dash", "coreutils", "util-linux", "mount", "procps", "kmod", "busybox-static"),
    *("grep", "sed", "gawk", "findutils", "tar", "iproute2", "e2fsprogs", "dmsetup", "fio", "libbpf1"),
    *("python3", "python3-cffi", "python3-pyelftools", "python3-rich", "python3-pytest", "python3-jsonschema"),
    *("bpftool", "fdisk"),
)
_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/hosts": "127.0.0.1 localhost lab\n",
}


def fetch(arch: str) -> Path:
    """Have the root file system of this machine in the cache."""
    recipe = hashlib.sha256(repr((SUITES, PACKAGES, _FILES)).encode()).hexdigest()[:8]
    target = cache.directory() / "roots" / f"{arch}-{recipe}"
    if target.is_dir():
        return target
    need_tools()
    with cache.exclusive(cache.directory() / "fetch.lock", waiting):
        if not target.is_dir():
            _make(arch, target)
    return target


def _make(arch: str, target: Path) -> None:
    work = target.with_name(f".new-{target.name}")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        packages = _download(arch)
        # The links from /bin to /usr/bin and the like come first: later packages must find them.
        for package in sorted(packages, key=lambda path: not path.name.startswith("base-files_")):
            unpack(package, work)
            package.unlink()
        for name, text in _FILES.items():
            (work / name).write_text(text)
        work.rename(target)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


def _download(arch: str) -> list[Path]:
    problems: list[str] = []
    for suite in SUITES:
        for number, mirror in enumerate(apt.mirrors(apt.system_sources(), suite)):
            private = Apt(mirror, suite, arch, number)
            try:
                private.update()
                return private.download_with_all_they_need(PACKAGES)
            except AptError as error:
                problems.append(f"{suite}: {error}")
    raise LabError(f"cannot fetch a root file system: {'; '.join(problems) or 'no Debian mirror for it'}")


def unpack(package: Path, directory: Path) -> None:
    """As `dpkg-deb -x`, but a link to a directory stays when a package brings the directory."""
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE) as source:
        words = ["tar", "-x", "--keep-directory-symlink", "-C", str(directory)]
        done = subprocess.run(words, stdin=source.stdout, check=False)
    if done.returncode or source.returncode:
        raise LabError(f"cannot unpack {package.name}")
