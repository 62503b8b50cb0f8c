# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.outputs.samples import HOSTILE, LABELS, MS, OVERHEAD, SECOND, C, D, G, request, start
from wptrace.model.kind import Kind, Noun, Point, Stage
from wptrace.model.report import Overhead
from wptrace.outputs.text import words as text

# --- Bar and printable --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "drawn"),
    [
        (0.0, ""),
        (1.0, "████"),
        (0.5, "██"),
        (0.25, "█"),
        (1 / 32, "▏"),
        (7 / 32, "▉"),
        (9 / 32, "█▏"),
        (-0.1, ""),
        (1.7, "████"),
    ],
)
def test_bar_is_exact_to_an_eighth_of_a_column(share: float, drawn: str) -> None:
    assert text.bar(share, 4) == drawn


@given(share=st.floats(-1, 2), width=st.integers(0, 60))
def test_bar_never_exceeds_its_width(share: float, width: int) -> None:
    drawn = text.bar(share, width)
    assert len(drawn) <= width
    assert set(drawn) <= set("▏▎▍▌▋▊▉█")


@given(share=st.floats(0, 1), more=st.floats(0, 1), width=st.integers(0, 40))
def test_bar_grows_with_the_share(share: float, more: float, width: int) -> None:
    def eighths(drawn: str) -> int:
        return sum("▏▎▍▌▋▊▉█".index(block) + 1 for block in drawn)

    low, high = sorted((share, more))
    assert eighths(text.bar(low, width)) <= eighths(text.bar(high, width))


@given(name=st.text(st.characters(categories=["Cc", "Cf", "Cs", "Co", "Zl", "Zp", "Zs", "Ll", "Lu", "Sm"])))
def test_printable_leaves_nothing_that_moves_a_cursor(name: str) -> None:
    shown = text.printable(name)
    assert shown.isprintable()
    shown.encode()  # without a surrogate
    if name.isprintable():
        assert shown == name


def test_printable_shows_what_was_there() -> None:
    assert text.printable("nvme0n1 größe") == "nvme0n1 größe"
    assert text.printable("a\nb\x1b[2J\udcff\x9b\ud800") == r"a\nb\x1b[2J\xff\x9b\ud800"


# --- Widths -------------------------------------------------------------------------------------------------

names = st.text(st.characters(categories=["Ll", "Lu", "Nd", "Lo", "Mn", "So"]), max_size=40)


def test_columns_are_those_of_a_terminal() -> None:
    assert text.columns("nvme0n1") == 7
    assert text.columns("日本") == 4
    assert text.columns("e\u0301") == 1
    assert text.columns("\u0e17\u0e35\u0e48") == 1  # a letter of Thai with a vowel and a tone
    assert text.columns("\u1112\u1161\u11ab") == 2  # a decomposed Korean syllable
    assert text.columns("\u26a0\ufe0e") == 1  # a variation selector
    assert text.padded("日本", 6) == "日本  "
    assert text.padded("too long", 3) == "too long"


@pytest.mark.parametrize(
    ("room", "head", "ends"),
    [
        (20, "one long name", "one long name"),
        (13, "one long name", "one long name"),
        (12, "one long ...", "one ... name"),
        (5, "on...", "o...e"),
        (3, "...", "..."),
        (2, "..", ".."),
        (0, "", ""),
    ],
)
def test_what_is_too_long_keeps_its_start_or_both_ends(room: int, head: str, ends: str) -> None:
    assert text.head("one long name", room) == head
    assert text.ends("one long name", room) == ends


@given(name=names, room=st.integers(-3, 50))
def test_shortened_text_fits(name: str, room: int) -> None:
    for shortened in (text.head(name, room), text.ends(name, room)):
        assert text.columns(shortened) <= max(room, 0)
        assert shortened == name or text.columns(name) > room


@pytest.mark.parametrize(
    ("room", "shown"),
    [
        (43, "/var/lib/postgresql/15/main/base/16384/2619"),
        (42, "/var/.../15/main/base/16384/2619"),
        (31, "/var/.../main/base/16384/2619"),
        (18, "/var/.../2619"),
        (12, ".../2619"),
        (8, ".../2619"),
        (7, "2619"),
        (0, "2619"),
    ],
)
def test_a_path_loses_folders_in_the_middle(room: int, shown: str) -> None:
    assert text.short_path("/var/lib/postgresql/15/main/base/16384/2619", room) == shown


@given(folders=st.lists(names.filter(bool), max_size=6), name=names.filter(bool), room=st.integers(-1, 80))
def test_a_short_path_fits_or_is_the_name_alone(folders: list[str], name: str, room: int) -> None:
    path = "/".join(["", *folders, name])
    shown = text.short_path(path, room)
    assert shown.endswith(name)
    assert text.columns(shown) <= room or shown == name
    assert text.columns(path) > room or shown == path


@given(parts=st.lists(names.filter(bool), min_size=1, max_size=8), width=st.integers(1, 60))
def test_wrapped_parts_are_all_there_and_fit(parts: list[str], width: int) -> None:
    for gap in ("  ", ", "):
        lines = list(text.wrapped(parts, width, "", gap))
        assert gap.join(parts).split() == " ".join(lines).split()
        one = max(map(text.columns, parts)) + 1
        assert all(text.columns(line) <= max(width, one) for line in lines)


# --- Introduction, requests, cost ---------------------------------------------------------------------------


def test_introduction_says_what_is_traced_and_what_to_know() -> None:
    assert list(text.introduction(start(notes=["read this"]))) == [
        "Tracing io (level block) on all disks, Linux 6.12.9. Ctrl-C ends.",
        "note: read this",
    ]
    named = start(dev=["sda", "sdb1"])._replace(level="")
    assert list(text.introduction(named)) == ["Tracing io on sda, sdb1, Linux 6.12.9. Ctrl-C ends."]
    (line,) = text.introduction(start()._replace(filters={"pid": 7, "children": True, "comm": "db"}))
    assert ", only pid 7 and its children, comm db, " in line
    asked = {"dev": ["sda"], "comm": "db", "by": "cgroup", "neighbours": True, "segments": True}
    (line,) = text.introduction(named._replace(filters=asked))
    assert (
        line == "Tracing io on sda, only comm db, by cgroup, with neighbours, with segments, Linux 6.12.9. Ctrl-C ends."
    )


def test_introduction_names_the_filters() -> None:
    filtered = start(dev=["sda"])._replace(
        filters={"dev": ["sda"], "comm": "e\x1bvil", "min_bytes": 4096, "max_bytes": 65536}
    )
    (line,) = text.introduction(filtered)
    assert line.endswith("on sda, only comm e\\x1bvil, at least 4 KiB, at most 64 KiB, Linux 6.12.9. Ctrl-C ends.")
    (line,) = text.introduction(start()._replace(filters={"op": "read", "waits_ns": 100_000}))
    assert ", only op read, with waits of 100 us and more, Linux" in line


def test_a_request_is_a_line_and_its_stages_one_bar() -> None:
    assert list(text.request(request(), 80, False)) == [
        "22:13:20.000000  sda WS   sector 123456 +8  4.00 ms",
        "    queue 1.00 ms 25% ███▎  device 3.00 ms 75% █████████▊",
    ]
    failed, _ = text.request(request(error=5), 80, True)
    assert failed == "2023-11-14 22:13:20.000000  sda WS   sector 123456 +8  4.00 ms  failed (EIO)"


def test_one_of_any_other_kind_tells_all_of_its_fields() -> None:
    """Its stages follow if there is more than the total."""
    kind = Kind("packet", Noun("packet"), LABELS[:1], [Stage("way", G, D, "", ""), Stage("rest", D, C, "", "")])
    one = request()._replace(
        group=kind.group("e\x1bth0"), stages={"way": MS, "rest": 3 * MS}, fields={"port": 80, "to": "\n"}
    )
    assert list(text.event(one, 80, False)) == [
        r"22:13:20.000000  e\x1bth0  4.00 ms  port 80, to \n",
        "    way 1.00 ms 25% ███▎  rest 3.00 ms 75% █████████▊",
    ]
    whole = Kind("packet", Noun("packet"), LABELS[:1], kind.stages[:1]).group("eth0")
    assert list(text.event(one._replace(group=whole, fields={}), 80, False)) == ["22:13:20.000000  eth0  4.00 ms"]


def test_a_request_without_length_is_shown() -> None:
    _, stages = text.request(request(queue=0, device=0), 80, False)
    assert stages == "    queue 0 ns 0%  device 0 ns 0%"


@pytest.mark.parametrize("width", [80, 160])
def test_many_stages_of_a_request_take_several_lines(width: int) -> None:
    points = [Point("X", str(number)) for number in range(9)]
    names = ("fs", "throttle", "queue", "driver", "device", "complete", "wakeup", "return")
    kind = Kind("x", Noun("x"), LABELS, [Stage(name, points[i], points[i + 1], "", "") for i, name in enumerate(names)])
    group, took = kind.group("sda", "read"), dict.fromkeys(names, 999 * MS)
    one = request()._replace(group=group, total_ns=8 * 999 * MS, stages=took)
    shown = list(text.request(one, width, False))[1:]
    assert all(len(line) <= width for line in shown)
    assert all(line.startswith("    ") for line in shown)
    assert [word for line in shown for word in line.split() if word in names] == list(names)


def test_own_cost_names_what_it_knows() -> None:
    assert text.overhead(OVERHEAD, SECOND) == (
        "own cost: reader 25.0% of a CPU, BPF 1.40 us a run, 1,000 runs, 30 MiB resident, 3 MiB of maps, 17 records"
    )
    nothing = Overhead(0, 0, 0, 30 << 20, 0, 0)
    assert text.overhead(nothing, 0) == "own cost: 30 MiB resident, 0 B of maps"


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_shown_escaped(name: str) -> None:
    shown = [
        *text.introduction(start(dev=[name, "sda"], notes=[f"{name}: no stamps"], kernel=name)),
        *text.request(request(dev=name), 80, False),
    ]
    assert all(line.isprintable() for line in shown)
    assert "\n".join(shown).count(text.printable(name)) == 4


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.0, "0%"),
        (0.004, "under 1%"),
        (0.005, "under 1%"),
        (0.015, "2%"),
        (0.994, "99%"),
        (0.995, "over 99%"),
        (0.9999, "over 99%"),
        (1.0, "100%"),
    ],
)
def test_a_little_is_not_nothing_and_most_is_not_all(share: float, words: str) -> None:
    assert text.rounded(share) == words
