# SPDX-License-Identifier: Apache-2.0
"""The tarball: a folder that runs on any Linux of x86-64 or arm64 that has a Python from 3.9 on, and nothing else.

    wptrace                  looks for a Python and starts lib/start/wptrace
    lib/wptrace              the package, with the objects of both machines
    lib/vendor               _cffi_backend for each Python and machine, whose names tell them apart; rich, pyelftools,
                             and for Pythons before 3.11 tomli
    lib/native/MACHINE       libbpf, libelf and zlib, which find each other by their rpath
    share                    man pages, completions and a unit of systemd
    LICENSES                 those of wptrace, and of what others made

cffi, rich, pyelftools and tomli are wheels of PyPI with the hashes of bundle.txt. The libraries are Debian's: libelf
and zlib of bullseye, and libbpf of bookworm, which ask for no newer glibc than 2.28.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

import archive
import layout

sys.path.insert(0, str(layout.ROOT))

from tests.lab import apt, cache
from tests.lab.errors import LabError
from tests.lab.packages import Apt, AptError, waiting
from tests.lab.roots import unpack

PYTHONS = ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
# What the ELF files may ask of glibc: bullseye, RHEL 8 and newer have it.
GLIBC = (2, 28)
_PINS = layout.ROOT / "packaging/bundle.txt"
_DOWNLOADS = layout.ROOT / "build/bundle"
_WHEEL_MACHINE = {"x86_64": "x86_64", "arm64": "aarch64"}
_DEBIAN_MACHINE = {"x86_64": "amd64", "arm64": "arm64"}
# Package, suite, and the name by which the loader knows what it has.
_LIBRARIES = (
    ("libbpf1", "bookworm", "libbpf.so.1"),
    ("libelf1", "bullseye", "libelf.so.1"),
    ("zlib1g", "bullseye", "libz.so.1"),
)
_LICENCES = {
    "cffi": "MIT",
    "rich": "MIT",
    "pyelftools": "Unlicense",
    "tomli": "MIT",
    "libbpf1": "LGPL-2.1-only OR BSD-2-Clause",
    "libelf1": "LGPL-3.0-or-later OR GPL-2.0-or-later",
    "zlib1g": "Zlib",
}

LAUNCHER = """\
#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs wptrace on the first Python that is new enough, from wherever this folder lies.
here=$(dirname -- "$(readlink -f -- "$0")")
for python in python3 python3.14 python3.13 python3.12 python3.11 python3.10 python3.9; do
	if "$python" -I -S -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
		exec "$python" -IS "$here/lib/start/wptrace" "$@"
	fi
done
echo "wptrace: there is no Python of 3.9 or newer on PATH" >&2
echo "hint: install python3 (RHEL 8: python3.11)" >&2
exit 1
"""

START = f"""\
# SPDX-License-Identifier: Apache-2.0
{layout.FIRST}
import os
import sys
import tarfile

lib = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
sys.path[:0] = [lib, os.path.join(lib, "vendor")]
machine = {{"x86_64": "x86_64", "aarch64": "arm64"}}.get(os.uname().machine, "")
own = os.path.join(lib, "native", machine, "libbpf.so.1")
if machine and os.path.exists(own):
    os.environ.setdefault("WPTRACE_LIBBPF", own)

from wptrace.__main__ import run

run()
"""


@dataclass(frozen=True)
class Part:
    """Something that others made, as the SBOM names it."""

    name: str
    version: str
    licence: str
    digest: str
    """The hash of the file that it came in, which `source` names."""
    source: str
    debian: bool
    machine: str = ""


def fill(folder: Path, machines: list[str], pythons: list[str]) -> list[Part]:
    """Everything in the tarball; third-party parts are reported."""
    for source, place in layout.package(machines):
        _put(folder / "lib/wptrace" / place, source.read_bytes())
    for source in layout.manuals():
        _put(folder / "share/man/man1" / source.name, source.read_bytes())
    completions = list(layout.completions(layout.ROOT / "build/completions"))
    if len(completions) < len(layout.COMPLETIONS):
        raise layout.PackagingError("build/completions lacks some: run make with shtab")
    for source, place in completions:
        _put(folder / place, source.read_bytes())
    for source in layout.licences():
        _put(folder / "LICENSES" / source.name, source.read_bytes())
    for name in ("README.md", "CHANGELOG.md", "SECURITY.md"):
        _put(folder / name, (layout.ROOT / name).read_bytes())
    for place in layout.UNITS:
        _put(folder / "share/systemd" / Path(place).name, layout.unit(place, "/usr"))
    _put(folder / "wptrace", LAUNCHER.encode(), 0o755)
    _put(folder / "lib/start/wptrace", START.encode())
    parts = [_unpack_wheel(wheel, folder) for wheel in _wheels(machines, pythons)]
    for machine in machines:
        parts += [_library(folder, machine, *one) for one in _LIBRARIES]
    return parts


def _put(path: Path, data: bytes, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(mode)


# --- Wheels of PyPI ---------------------------------------------------------------------------------------------------


def pins() -> dict[str, tuple[str, str]]:
    """Return the version of each name, and the requirement with its hashes."""
    text = "\n".join(line for line in _PINS.read_text().splitlines() if not line.startswith("#"))
    found = re.findall(r"^([\w.-]+)==(\S+)((?: \\\n\s+--hash=\S+)+)", text, re.M)
    return {name: (version, f"{name}=={version}{hashes}\n") for name, version, hashes in found}


def _wheels(machines: list[str], pythons: list[str]) -> Iterator[Path]:
    """The hashes are checked by pip when it brings one; what is there was brought that way."""
    known = pins()
    for machine in machines:
        for python in pythons:
            tag = f"cp{python.replace('.', '')}"
            arch = _WHEEL_MACHINE[machine]
            platforms = (f"manylinux2014_{arch}", f"manylinux_2_17_{arch}")
            words = [word for name in platforms for word in ("--platform", name)]
            words += ["--implementation", "cp", "--abi", tag, "--python-version", python]
            yield _wheel("cffi", known["cffi"], f"cffi-{known['cffi'][0]}-{tag}-*_{arch}.whl", words)
    for name in ("pyelftools", "rich", "tomli"):
        words = ["--python-version", PYTHONS[0]]
        yield _wheel(name, known[name], f"{name}-{known[name][0]}-py3-none-any.whl", words)


def _wheel(name: str, pin: tuple[str, str], pattern: str, words: list[str]) -> Path:
    _DOWNLOADS.mkdir(parents=True, exist_ok=True)
    found = list(_DOWNLOADS.glob(pattern))
    if not found:
        wanted = _DOWNLOADS / f"{name}.txt"
        wanted.write_text(pin[1])
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary", ":all:", "--require-hashes", "--dest", str(_DOWNLOADS), *words]
        done = subprocess.run([*command, "-r", str(wanted)], capture_output=True, text=True, check=False)
        found = list(_DOWNLOADS.glob(pattern))
        if done.returncode or not found:
            said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [f"no {pattern}"]
            raise layout.PackagingError(f"pip brings no {name}: {said[0]}")
    return found[0]


def _unpack_wheel(wheel: Path, folder: Path) -> Part:
    name, version = wheel.name.split("-")[:2]
    with ZipFile(wheel) as file:
        for place in sorted(file.namelist()):
            if place.startswith((f"{name}/", "elftools/")) and place.endswith(".py") and name != "cffi":
                _put(folder / "lib/vendor" / place, file.read(place))
            elif re.fullmatch(r"_cffi_backend\.[\w-]+\.so", place):
                _put(folder / "lib/vendor" / place, file.read(place), 0o755)
            elif re.fullmatch(r"[^/]+\.dist-info/(?:licenses/)?LICENSE", place):
                _put(folder / f"LICENSES/third-party/{name}.txt", file.read(place))
    machine = next((ours for ours, theirs in _WHEEL_MACHINE.items() if theirs in wheel.name), "")
    return Part(name, version, _LICENCES[name], archive.digest(wheel), wheel.name, False, machine)


# --- Libraries of Debian ----------------------------------------------------------------------------------------------


def _library(folder: Path, machine: str, package: str, suite: str, soname: str) -> Part:
    deb = _deb(package, suite, _DEBIAN_MACHINE[machine])
    work = folder.parent / f"unpacked-{deb.stem}"
    work.mkdir()
    try:
        unpack(deb, work)
        found = [path.resolve() for path in work.rglob(soname)]
        if not found:
            raise layout.PackagingError(f"{deb.name} has no {soname}")
        target = folder / "lib/native" / machine / soname
        _put(target, found[0].read_bytes(), 0o755)
        patchelf = shutil.which("patchelf")
        if patchelf is None:
            raise layout.PackagingError("patchelf is missing: install patchelf (Debian, Ubuntu, Fedora)")
        subprocess.run([patchelf, "--set-rpath", "$ORIGIN", str(target)], check=True)
        _put(folder / f"LICENSES/third-party/{package}.txt", (work / f"usr/share/doc/{package}/copyright").read_bytes())
    finally:
        shutil.rmtree(work)
    version = deb.name.split("_")[1].replace("%3a", ":")
    return Part(package, version, _LICENCES[package], archive.digest(deb), deb.name, True, machine)


def _deb(package: str, suite: str, arch: str) -> Path:
    """By the lab's apt, which checks signatures and takes the mirrors that this system has."""
    _DOWNLOADS.mkdir(parents=True, exist_ok=True)
    found = sorted(_DOWNLOADS.glob(f"{package}_*_{arch}.deb"))
    if found:
        return found[-1]
    problems = [f"no Debian mirror for {suite}"]
    for number, mirror in enumerate(apt.mirrors(apt.system_sources(), suite)):
        try:
            # The lab may be fetching with the same lists.
            with cache.exclusive(cache.directory() / "fetch.lock", waiting):
                private = Apt(mirror, suite, arch, number)
                private.update()
                work = _DOWNLOADS / f"new-{arch}"
                work.mkdir(exist_ok=True)
                deb = private.download(package, work)
                return deb.rename(_DOWNLOADS / deb.name)
        except (AptError, LabError) as error:
            problems.append(str(error))
    raise layout.PackagingError(f"no {package} of {suite} for {arch}: {problems[-1]}")


def runs_on(tarball: Path) -> set[str]:
    """The Pythons and machines for which a tarball has cffi, as 3.9-x86_64."""
    found = set()
    with tarfile.open(tarball) as tar:
        for name in tar.getnames():
            match = re.search(r"/_cffi_backend\.cpython-3(\d+)-(\w+)-linux-gnu\.so$", name)
            if match:
                machine = next(ours for ours, theirs in _WHEEL_MACHINE.items() if theirs == match[2])
                found.add(f"3.{match[1]}-{machine}")
    return found
