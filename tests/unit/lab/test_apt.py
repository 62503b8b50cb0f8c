# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import apt

ONE_LINE = """\
# deb http://comment.example/debian bookworm main
deb http://mirror.example/debian bookworm main contrib  # trailing words
deb [arch=amd64 signed-by=/usr/share/keyrings/debian.gpg] https://mirror.example/debian/ bookworm-updates main
deb [ signed-by=/k.gpg  arch=amd64 ]\thttp://security.example/debian-security bookworm-security main
deb-src http://mirror.example/debian bookworm main
deb cdrom:[Debian 12]/ bookworm main
deb http://other.example/repo ./
deb [broken http://mirror.example/debian bookworm main
"""

DEB822 = """\
Types: deb deb-src
# a comment inside
URIs: http://mirror.example/debian
  https://second.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian.gpg
\t
types: deb
uris: http://security.example/debian-security
suites: bookworm-security
components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mQINBF
 -----END PGP PUBLIC KEY BLOCK-----


Types: deb
Enabled: no
URIs: http://off.example/debian
Suites: bookworm
Components: main

Types: deb-src
URIs: http://source.example/debian
Suites: bookworm
Components: main
"""


def test_one_line_sources() -> None:
    sources = apt.parse("sources.list", ONE_LINE)
    assert sources == [
        apt.Source(("http://mirror.example/debian",), ("bookworm",), ("main", "contrib")),
        apt.Source(
            ("https://mirror.example/debian/",),
            ("bookworm-updates",),
            ("main",),
            "/usr/share/keyrings/debian.gpg",
        ),
        apt.Source(("http://security.example/debian-security",), ("bookworm-security",), ("main",), "/k.gpg"),
        apt.Source(("http://other.example/repo",), ("./",), ()),
    ]


def test_deb822_sources() -> None:
    first, second = apt.parse("debian.sources", DEB822)
    assert first == apt.Source(
        ("http://mirror.example/debian", "https://second.example/debian"),
        ("bookworm", "bookworm-updates"),
        ("main",),
        "/usr/share/keyrings/debian.gpg",
    )
    assert second.suites == ("bookworm-security",)
    assert second.signed_by.splitlines()[1:] == [
        " -----BEGIN PGP PUBLIC KEY BLOCK-----",
        " .",
        " mQINBF",
        " -----END PGP PUBLIC KEY BLOCK-----",
    ]


@pytest.mark.parametrize(
    ("suite", "uris"),
    [
        ("trixie", ["http://mirror.example/debian", "https://second.example/debian"]),
        ("bookworm-backports", ["http://mirror.example/debian", "https://second.example/debian"]),
        ("bullseye-security", ["http://security.example/debian-security"]),
    ],
)
def test_mirrors_of_a_suite(suite: str, uris: list[str]) -> None:
    found = apt.mirrors(apt.parse("debian.sources", DEB822), suite)
    assert [mirror.uri for mirror in found] == uris


def test_mirrors_of_others_are_left_alone() -> None:
    text = "\n".join(
        (
            "deb http://other.example/repo nodistro main",
            "deb http://other.example/pg bookworm-x/y main",
            "deb http://other.example/docker bookworm stable",
        )
    )
    assert apt.mirrors(apt.parse("x.list", text), "trixie") == []


def test_a_stanza_reads_back(tmp_path: Path) -> None:
    for mirror in apt.mirrors(apt.parse("debian.sources", DEB822), "bullseye-security"):
        (source,) = apt.parse("lab.sources", apt.stanza(mirror, "bullseye-security"))
        assert source == apt.Source((mirror.uri,), ("bullseye-security",), ("main",), mirror.signed_by)


def test_system_sources_reads_both_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WPTRACE_LAB_SOURCES", raising=False)
    parts = tmp_path / "sources.list.d"
    parts.mkdir()
    (tmp_path / "sources.list").write_text("deb http://a.example/debian sid main\n")
    (parts / "b.list").write_text("deb http://b.example/debian sid main\n")
    (parts / "c.sources").write_text("Types: deb\nURIs: http://c.example/debian\nSuites: sid\nComponents: main\n")
    (parts / "d.list.disabled").write_text("deb http://d.example/debian sid main\n")
    assert [source.uris[0][7] for source in apt.system_sources(tmp_path)] == ["a", "b", "c"]
    monkeypatch.setenv("WPTRACE_LAB_SOURCES", str(parts / "c.sources"))
    assert [source.uris[0][7] for source in apt.system_sources(tmp_path)] == ["c"]


def test_the_configuration_leaves_the_system_alone() -> None:
    text = apt.configuration(Path("/cache/sid"), "arm64")
    assert 'Dir::Etc::SourceParts "/dev/null";' in text
    assert 'Dir::State::Lists "/cache/sid/lists";' in text
    assert 'APT::Architecture "arm64";' in text
