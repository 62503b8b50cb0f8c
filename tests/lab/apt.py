# SPDX-License-Identifier: Apache-2.0
"""The package sources of this machine, read so that a private apt can use the same mirrors for other suites.

Mirror addresses come from the system's own files at run time. On a system that is not Debian,
`WPTRACE_LAB_SOURCES` names a sources file to read instead.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

CODENAMES = [
    "bullseye",
    "bookworm",
    "trixie",
    "forky",
    "duke",
    "sid",
    "stable",
    "oldstable",
    "oldoldstable",
    "testing",
    "unstable",
]
_DEBIAN_SUITE = re.compile(rf"({'|'.join(CODENAMES)})(-\w+)*(/updates)?")
_OPTIONS = re.compile(r"\[([^\]]*)\]")


@dataclass(frozen=True)
class Source:
    """The parts of a stanza or line that matter here."""

    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str = ""
    """A keyring's path or fingerprints, or a whole key as deb822 folds it; empty for apt's own keyrings."""


@dataclass(frozen=True)
class Mirror:
    uri: str
    signed_by: str = ""


def parse_one_line(text: str) -> Iterator[Source]:
    """`deb [signed-by=…] URI SUITE COMPONENT…`, one a line."""
    for line in text.splitlines():
        line = line.partition("#")[0].strip()
        kind, _, rest = line.partition(" ")
        if kind != "deb":
            continue
        rest = rest.strip()
        options: dict[str, str] = {}
        if rest.startswith("["):
            match = _OPTIONS.match(rest)
            if not match:
                continue
            for option in match.group(1).split():
                key, _, value = option.partition("=")
                options[key.lower()] = value
            rest = rest[match.end() :]
        words = rest.split()
        if len(words) < 2 or words[0].startswith("cdrom:"):
            continue
        yield Source((words[0],), (words[1],), tuple(words[2:]), options.get("signed-by", ""))


def parse_deb822(text: str) -> Iterator[Source]:
    """Stanzas of `Field: value`; a value goes on in lines that start with a blank."""
    for stanza in re.split(r"\n[ \t]*(?:\n[ \t]*)+", text.strip()):
        fields: dict[str, str] = {}
        key = ""
        for line in stanza.splitlines():
            if line.startswith("#"):
                continue
            if line[:1] in (" ", "\t"):
                if key:
                    fields[key] += "\n" + line
                continue
            key, _, value = line.partition(":")
            key = key.strip().lower()
            fields[key] = value.strip()
        if "deb" not in fields.get("types", "").split():
            continue
        if fields.get("enabled", "yes").lower() in ("no", "false", "0", "off", "without", "disable"):
            continue
        yield Source(
            tuple(uri for uri in fields.get("uris", "").split() if not uri.startswith("cdrom:")),
            tuple(fields.get("suites", "").split()),
            tuple(fields.get("components", "").split()),
            fields.get("signed-by", ""),
        )


def parse(name: str, text: str) -> list[Source]:
    return list(parse_deb822(text) if name.endswith(".sources") else parse_one_line(text))


def system_sources(etc: Path = Path("/etc/apt")) -> list[Source]:
    named = os.environ.get("WPTRACE_LAB_SOURCES")
    files = [Path(named)] if named else [etc / "sources.list", *_parts(etc / "sources.list.d")]
    return [source for file in files if file.is_file() for source in parse(file.name, file.read_text())]


def _parts(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return sorted(file for file in directory.iterdir() if file.suffix in (".list", ".sources"))


def mirrors(sources: Iterable[Source], suite: str) -> list[Mirror]:
    """The mirrors that may have a Debian suite: security suites live apart from the others."""
    wants_security = suite.endswith("-security")
    found: dict[Mirror, None] = {}
    for source in sources:
        if "main" not in source.components:
            continue
        debian = [name.rstrip("/") for name in source.suites if _DEBIAN_SUITE.fullmatch(name.rstrip("/"))]
        if any(name.endswith(("-security", "/updates")) == wants_security for name in debian):
            found.update(dict.fromkeys(Mirror(uri, source.signed_by) for uri in source.uris))
    return list(found)


def stanza(mirror: Mirror, suite: str) -> str:
    """A sources file with this suite of this mirror alone."""
    lines = ["Types: deb", f"URIs: {mirror.uri}", f"Suites: {suite}", "Components: main"]
    if mirror.signed_by:
        lines.append(f"Signed-By: {mirror.signed_by}")
    return "\n".join(lines) + "\n"


def configuration(state: Path, arch: str) -> str:
    """An apt.conf that keeps apt inside `state`; the system's other settings, as proxies, stay."""
    return "".join(
        line + "\n"
        for line in (
            f'Dir::Etc::SourceList "{state}/lab.sources";',
            'Dir::Etc::SourceParts "/dev/null";',
            'Dir::Etc::Preferences "/dev/null";',
            'Dir::Etc::PreferencesParts "/dev/null";',
            f'Dir::State::Lists "{state}/lists";',
            f'Dir::State::Status "{state}/status";',
            f'Dir::Cache "{state}/cache";',
            'Acquire::Languages "none";',
            # Suites that get no more updates keep a Release file whose date has run out.
            'Acquire::Check-Valid-Until "false";',
            'Acquire::Retries "2";',
            'APT::Update::Error-Mode "any";',
            # The cache may lie in a home directory that the user _apt cannot enter.
            'APT::Sandbox::User "root";',
            f'APT::Architecture "{arch}";',
            "#clear APT::Architectures;",
            f'APT::Architectures:: "{arch}";',
            # There is nothing of the system's to lock.
            'Debug::NoLocking "true";',
            "#clear APT::Default-Release;",
            "#clear APT::Update::Pre-Invoke;",
            "#clear APT::Update::Post-Invoke;",
            "#clear APT::Update::Post-Invoke-Success;",
            "#clear DPkg::Post-Invoke;",
        )
    )
