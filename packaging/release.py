#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Says what is missing before the version of wptrace/__init__.py can be published; `make release-check`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import archive
import bundle
import layout
from layout import ROOT


def names_of(version: str) -> list[str]:
    """The files of a whole dist/."""
    return [
        f"wptrace-{version}.tar.gz",
        f"wptrace-{version}-py3-none-any.whl",
        f"wptrace-{version}-linux.tar.xz",
        f"wptrace-{version}.cdx.json",
    ]


def versions(version: str) -> Iterator[str]:
    """Places that repeat it, since their formats want it."""
    spec = (ROOT / "packaging/wptrace.spec").read_text()
    if not re.search(rf"^Version: +{re.escape(version)}$", spec, re.M):
        yield f"packaging/wptrace.spec is not of {version}"
    if f"- {version}-" not in spec.partition("%changelog")[2].partition("\n*")[2].partition("\n\n")[0]:
        yield f"packaging/wptrace.spec has no entry for {version} at the top of its changelog"
    if not (ROOT / "packaging/debian/changelog").read_text().startswith(f"wptrace ({version}-"):
        yield f"packaging/debian/changelog does not begin with {version}"
    for page in layout.manuals():
        head = page.read_text().splitlines()[1]
        if f'"wptrace {version}"' not in head:
            yield f"docs/man/{page.name} is not of {version}"
        if not re.search(r'"\d{4}-\d\d-\d\d"', head):
            yield f"docs/man/{page.name} has no date"
    readme = (ROOT / "README.md").read_text()
    for found in sorted(set(re.findall(r"wptrace[-_](\d+\.\d+\.\d+)", readme)) - {version}):
        yield f"README.md names packages of {found}"


def changelog(version: str) -> Iterator[str]:
    text = (ROOT / "CHANGELOG.md").read_text()
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", text, re.M):
        yield f"CHANGELOG.md has no section for {version} with a date"
    unreleased = text.partition("## [Unreleased]")[2].partition("\n## ")[0].strip()
    if unreleased:
        yield "CHANGELOG.md has changes below Unreleased: give them a version"


def repository(version: str) -> Iterator[str]:
    try:
        if archive.git("status", "--porcelain").strip():
            yield "there are changes that are not committed"
        if f"v{version}" not in archive.git("tag", "--points-at", "HEAD").split():
            yield f"the last commit has no tag v{version}"
    except layout.PackagingError as error:
        yield str(error)


def packages(folder: Path, version: str) -> Iterator[str]:
    sums = folder / "SHA256SUMS"
    if not sums.is_file():
        yield "there is no dist/SHA256SUMS: run make dist"
        return
    reported = {name: digest for digest, _, name in (line.partition("  ") for line in sums.read_text().splitlines())}
    for name in names_of(version):
        if not (folder / name).is_file():
            yield f"dist/{name} is missing: run make dist"
        elif reported.get(name) != archive.digest(folder / name):
            yield f"dist/{name} is not what SHA256SUMS says: run make dist"
    linux = folder / f"wptrace-{version}-linux.tar.xz"
    wanted = {f"{python}-{machine}" for python in bundle.PYTHONS for machine in layout.MACHINES}
    if linux.is_file():
        lacking = wanted - bundle.runs_on(linux)
        if lacking:
            yield f"dist/{linux.name} has no cffi for {', '.join(sorted(lacking))}: run make dist"


def missing(folder: Path) -> list[str]:
    version = layout.version()
    return [*versions(version), *changelog(version), *repository(version), *packages(folder, version)]


def main() -> int:
    found = missing(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist")
    print("\n".join(found) if found else f"nothing is missing: wptrace {layout.version()} can be published")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
