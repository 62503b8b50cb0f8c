# SPDX-License-Identifier: Apache-2.0
"""The kernels that wptrace is tested on, in a list that tests, CI and documentation share."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass

from tests.lab.errors import UsageError


@dataclass(frozen=True)
class Kernel:
    """A kernel by its usual name, and where Debian has it."""

    name: str
    suites: tuple[str, ...] = ()
    """Tried in order; suites of old releases leave the mirrors, others get newer kernels."""
    packages: tuple[str, ...] = ()
    """Package names, `{}` standing for the kernel's release (`uname -r`)."""
    release: str = ""
    """Regular expression of the release."""
    arch: str = "amd64"
    headers: tuple[str, ...] = ()
    """Packages to build modules against, `{}` standing for the release and `{version}` for it without the machine."""
    message: int = 512000
    """Bytes in a message of the root file system: the most that virtio 9p takes."""

    @property
    def running(self) -> bool:
        return not self.packages

    def package_names(self, release: str) -> tuple[str, ...]:
        return tuple(package.format(release) for package in self.packages)

    def header_names(self, release: str) -> tuple[str, ...]:
        version = release.removesuffix(f"-{self.arch}")
        return tuple(package.format(release, version=version) for package in self.headers)


RUNNING = Kernel("running")
_HEADERS = ("linux-headers-{}", "linux-headers-{version}-common")

KERNELS: tuple[Kernel, ...] = (
    Kernel(
        "5.10",
        suites=("bullseye-security", "bullseye"),
        packages=("linux-image-{}",),
        release=r"5\.10\.\d+-\d+-amd64",
        headers=(*_HEADERS, "linux-kbuild-5.10"),
        # Until 6.0 the kernel clears two buffers of this size for every request, however small.
        message=65536,
    ),
    Kernel(
        "6.1",
        suites=("bookworm-security", "bookworm"),
        packages=("linux-image-{}",),
        release=r"6\.1\.\d+-\d+-amd64",
        headers=(*_HEADERS, "linux-kbuild-6.1"),
    ),
    Kernel(
        "6.12",
        suites=("bookworm-backports", "trixie-security", "trixie"),
        packages=("linux-image-{}",),
        release=r"6\.12\.\d+\+deb\d+-amd64",
        headers=(*_HEADERS, "linux-kbuild-{version}"),
    ),
    Kernel(
        "7.2",
        suites=("sid", "trixie-backports"),
        packages=("linux-binary-{}", "linux-modules-{}", "linux-base-{}"),
        release=r"7\.2\.\d+\+deb\d+-amd64",
        headers=(*_HEADERS, "linux-kbuild-{version}"),
    ),
    RUNNING,
)

OTHER_MACHINES: tuple[Kernel, ...] = (
    Kernel(
        "6.12-arm64",
        suites=("bookworm-backports", "trixie-security", "trixie"),
        packages=("linux-image-{}",),
        release=r"6\.12\.\d+\+deb\d+-arm64",
        arch="arm64",
        headers=(*_HEADERS, "linux-kbuild-{version}"),
    ),
)
"""Other machines: their guests have a root file system of their own."""


def find(name: str) -> Kernel:
    known = (*KERNELS, *OTHER_MACHINES)
    for kernel in known:
        if kernel.name == name:
            return kernel
    raise UsageError(f"no kernel {name!r} in the lab (there are {', '.join(k.name for k in known)})")


def release_key(release: str) -> tuple[int, ...]:
    """Sort key: 6.12.107 is newer than 6.12.95, and deb13 newer than deb12 of the same version."""
    return tuple(int(number) for number in re.findall(r"\d+", release))


def host_arch() -> str:
    machine = platform.machine()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
