# SPDX-License-Identifier: Apache-2.0
"""The guests that `wptrace host` follows, and options that only work with one of them."""

from __future__ import annotations

import pytest

from wptrace.cli import host, tracing
from wptrace.cli.main import main
from wptrace.errors import UsageError
from wptrace.flows.io import options as io_options
from wptrace.flows.io import path as io_path
from wptrace.kernel import guests
from wptrace.kernel.guests import Guest, Image


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Processes that run guests."""
    found: list[int] = []
    monkeypatch.setattr(guests, "find", lambda: found)
    monkeypatch.setattr(
        guests, "read", lambda pid: Guest(pid, f"vm\x1b{pid}", (Image(f"/srv/{pid}.img", pid, None, "raw"),))
    )
    return found


@pytest.mark.parametrize(
    ("pids", "words", "expected"),
    [
        ([], [], "no process here runs a guest"),
        ([], ["--all"], "no process here runs a guest"),
        ([7, 8], [], r"2 processes here run guests: 7 vm.*7: /srv/7.img; 8 vm.*8: /srv/8.img$"),
        (list(range(1, 18)), ["--all"], r"17 processes here run guests: .* \.\.\.$"),
        ([7, 8], ["--all", "--report", "x"], "a report or an export is of one guest"),
        ([7, 8], ["--all", "--csv"], "--line and --csv do not distinguish guests"),
        ([7], ["--all", "--pid", "7"], "not allowed with argument"),
        ([7], ["--capture", "x", "--csv"], "--capture writes the events to a file: use --csv"),
        ([7], ["--segments"], "--segments shows parts of events: it needs --slow, --each or --sample"),
    ],
)
def test_what_cannot_be_is_a_sentence(here: list[int], pids: list[int], words: list[str], expected: str) -> None:
    here += pids
    with pytest.raises(UsageError, match=expected):
        main(["host", *words])


@pytest.mark.parametrize(
    ("pids", "words"),
    [
        ([7], []),
        ([7], ["--all"]),
        ([7], ["--each", "--segments"]),
        ([7], ["--kicks"]),
        ([7, 8], ["--all"]),
        ([7, 8], ["--all", "--capture", "x.wpt"]),
    ],
)
def test_each_has_a_trace_of_its_own(
    here: list[int], pids: list[int], words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here += pids
    wanted: list[io_options.Options] = []
    titles: list[str] = []
    files: list[str] = []
    monkeypatch.setattr(io_path, "PathFlow", wanted.append)

    def run(
        _: object, flows: dict[str, object], reported: object, plan: list[str], captures: list[str]
    ) -> tuple[int, str]:
        titles.extend([*flows, *plan])
        files.extend(captures)
        return 0, ""

    monkeypatch.setattr(tracing, "run", run)
    assert main(["host", *words]) == 0
    assert [(one.filter["pid"], one.guest and one.guest.pid) for one in wanted] == [(pid, pid) for pid in pids]
    assert [one.kicks for one in wanted] == ["--kicks" in words for _ in pids]
    assert [one.segments for one in wanted] == ["--segments" in words for _ in pids]
    assert len(titles) == 2 * len(pids)
    assert files == (["x-7.wpt", "x-8.wpt"] if "--capture" in words else [])
    assert not any("\x1b" in title for title in titles)


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("host.wpt", "host-4711.wpt"),
        ("/srv/a.b/host", "/srv/a.b/host-4711"),
        (".wpt", ".wpt-4711"),
        ("a.b.wpt", "a.b-4711.wpt"),
    ],
)
def test_each_of_several_has_a_capture_of_its_own(file: str, expected: str) -> None:
    assert host._named(file, Guest(4711, "qemu", ())) == expected
