# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.outputs.samples import HOSTILE, MS, OVERHEAD, SECOND, TABLE, cell, report, request, start
from wptrace.engine.accounting import Accounting
from wptrace.engine.distribution import Distribution
from wptrace.engine.results import Group, Overhead, Row, rows_of
from wptrace.engine.stages import Point, Stage, StageTable
from wptrace.outputs import text

SDA_READ, SDA_WRITE, SDB_READ = Group("sda", "read"), Group("sda", "write"), Group("sdb", "read")


def lines(found: object, width: int = 80, dates: bool = False) -> list[str]:
    return list(text.report(found, width, dates))  # type: ignore[arg-type]


def is_table(line: str) -> bool:
    return line.startswith("  ")


# --- bar and printable --------------------------------------------------------------------------------------


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
    shown.encode()  # no surrogate is left
    if name.isprintable():
        assert shown == name


def test_printable_shows_what_was_there() -> None:
    assert text.printable("nvme0n1 größe") == "nvme0n1 größe"
    assert text.printable("a\nb\x1b[2J\udcff\x9b") == r"a\nb\x1b[2J\udcff\x9b"


# --- tables -------------------------------------------------------------------------------------------------


def test_report_is_a_table_for_each_group() -> None:
    cells = {SDA_READ: cell([MS, 3 * MS], [2 * MS, 2 * MS]), SDA_WRITE: cell([0], [5 * MS])}
    found = report(cells, {SDA_READ: 8192, SDA_WRITE: 4096}, failed=1)
    assert lines(found, 90) == [
        "22:13:20  12 requests in 1.00 s, 12 KiB, 5 in flight, 1 failed",
        "",
        "sda read: 2 requests, 2 /s, 8 KiB/s",
        "  stage              count     mean      p50      p99      max  share",
        "  queue                  2  2.00 ms  1.00 ms  3.00 ms  3.00 ms  50.0%  █████████▌",
        "  device                 2  2.00 ms  2.00 ms  2.00 ms  2.00 ms  50.0%  █████████▌",
        "  request                2  4.00 ms  3.00 ms  5.00 ms  5.00 ms 100.0%  ███████████████████",
        "",
        "sda write: 1 request, 1 /s, 4 KiB/s",
        "  stage              count     mean      p50      p99      max  share",
        "  queue                  1     0 ns     0 ns     0 ns     0 ns   0.0%",
        "  device                 1  5.00 ms  5.00 ms  5.00 ms  5.00 ms 100.0%  ███████████████████",
        "  request                1  5.00 ms  5.00 ms  5.00 ms  5.00 ms 100.0%  ███████████████████",
        "lost: 3 x state_full: the table of requests in flight had no room",
        "noted: 2 x ring_full: the ring had no room for a record",
    ]


def test_figures_are_those_of_the_distribution() -> None:
    stages = cell([5 * MS] * 98 + [80 * MS] * 2, [0] * 100)
    found = stages["queue"]
    (line,) = (line for line in lines(report({SDA_READ: stages})) if line.startswith("  queue"))
    from wptrace.engine.units import duration

    shown = [duration(value) for value in (found.mean, found.percentile(50), found.percentile(99), found.max)]
    assert line.split()[1:10] == ["100", *" ".join(shown).split()]


def test_an_idle_interval_has_no_table() -> None:
    book = Accounting()
    assert lines(report({}, accounting=book)) == ["22:13:20  0 requests in 1.00 s, 0 B, 0 in flight"]
    assert lines(report({}, accounting=book), dates=True)[0].startswith("2023-11-14 22:13:20  0 requests")


def test_an_interval_without_length_has_no_rates() -> None:
    found = lines(report({SDA_READ: cell([1], [1])}, {SDA_READ: 512}, duration_ns=0))
    assert "sda read: 1 request" in found


def test_groups_without_device_add_the_bytes_of_all() -> None:
    merged = report({Group("", "read"): cell([1], [1])}, {SDA_READ: 1024, SDB_READ: 2048, SDA_WRITE: 9})
    assert "read: 1 request, 1 /s, 3 KiB/s" in lines(merged)


def test_nothing_lost_is_not_mentioned() -> None:
    book = Accounting.read(3, 3, {}, {})
    assert not any(line.startswith(("lost", "noted")) for line in lines(report({}, accounting=book)))


values = st.integers(0, (1 << 63) - 1)


@pytest.mark.parametrize("width", [80, 100, 160])
@given(
    values=st.lists(values, min_size=1, max_size=6),
    repeated=st.sampled_from([1, 10**3, 10**6, 10**9, 10**12]),
    stage=st.sampled_from(["queue", "unattributed"]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_line_of_a_table_is_wider_than_the_terminal(
    width: int, values: list[int], repeated: int, stage: str
) -> None:
    once = cell(values, values)
    many = {name: Distribution() for name in once}
    for name, found in once.items():
        many[name].add_counts(
            [count * repeated for count in found.buckets],
            found.count * repeated,
            found.sum * repeated,
            found.min,
            found.max,
            found.sumsq * repeated,
        )
    rows = [row._replace(stage=stage) for row in rows_of({SDA_READ: many}, TABLE)]
    shown = [line for line in lines(report({})._replace(rows=rows), width) if is_table(line)]
    assert len(shown) == 4
    assert all(len(line) <= width for line in shown), shown
    # Columns never run into each other: stage, count, four figures of a number and a unit, share, bar.
    assert all(len(line.split()) in (11, 12) for line in shown[1:]), shown


@pytest.mark.parametrize("width", [0, 20, 60])
def test_a_narrow_terminal_costs_the_bars_alone(width: int) -> None:
    wide = [line.rstrip("▏▎▍▌▋▊▉█ ") for line in lines(report({SDA_READ: cell([1], [2])}), 160)]
    assert lines(report({SDA_READ: cell([1], [2])}), width) == wide


def test_bars_do_not_grow_without_end() -> None:
    assert max(line.count("█") for line in lines(report({SDA_READ: cell([1], [2])}), 500)) == 30


# --- hostile names ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_shown_escaped(name: str) -> None:
    group = Group(name, "read")
    found = report({group: cell([1], [2])}, {group: 1})
    shown = [
        *lines(found),
        *text.introduction(start(dev=[name, "sda"], notes=[f"{name}: no stamps"], kernel=name)),
        *text.request(request(dev=name), TABLE, 80, False),
        text.verdict(found.rows, TABLE),
    ]
    assert all(line.isprintable() for line in shown)
    assert "\n".join(shown).count(text.printable(name)) == 6


# --- introduction, requests, cost ---------------------------------------------------------------------------


def test_introduction_says_what_is_traced_and_what_to_know() -> None:
    assert list(text.introduction(start(notes=["read this"]))) == [
        "Tracing io (level block) on all disks, Linux 6.12.9. Ctrl-C ends.",
        "note: read this",
    ]
    named = start(dev=["sda", "sdb1"])._replace(level="")
    assert list(text.introduction(named)) == ["Tracing io on sda, sdb1, Linux 6.12.9. Ctrl-C ends."]


def test_a_request_is_a_line_and_its_stages_one_bar() -> None:
    assert list(text.request(request(), TABLE, 80, False)) == [
        "22:13:20.000000  sda WS   sector 123456 +8  4.00 ms",
        "    queue 1.00 ms 25% ███▎  device 3.00 ms 75% █████████▊",
    ]
    failed, _ = text.request(request(error=5), TABLE, 80, True)
    assert failed == "2023-11-14 22:13:20.000000  sda WS   sector 123456 +8  4.00 ms  failed (EIO)"


def test_a_request_without_length_is_shown() -> None:
    _, stages = text.request(request(queue=0, device=0), TABLE, 80, False)
    assert stages == "    queue 0 ns 0%  device 0 ns 0%"


@pytest.mark.parametrize("width", [80, 160])
def test_many_stages_of_a_request_take_several_lines(width: int) -> None:
    points = [Point("X", str(number)) for number in range(9)]
    names = ("fs", "throttle", "queue", "driver", "device", "complete", "wakeup", "return")
    table = StageTable(
        Stage(name, points[i], points[i + 1], "", "") for i, name in enumerate(names)
    )  # fmt: skip
    one = request()._replace(total_ns=8 * 999 * MS, stages=dict.fromkeys(names, 999 * MS))
    shown = list(text.request(one, table, width, False))[1:]
    assert all(len(line) <= width for line in shown)
    assert all(line.startswith("    ") for line in shown)
    assert [word for line in shown for word in line.split() if word in names] == list(names)


def test_own_cost_names_what_it_knows() -> None:
    assert text.overhead(OVERHEAD, SECOND) == (
        "own cost: reader 25.0% of a CPU, BPF 1.40 us a run, 1,000 runs, 30 MiB resident, 3 MiB of maps, 17 records"
    )
    nothing = Overhead(0, 0, 0, 30 << 20, 0, 0)
    assert text.overhead(nothing, 0) == "own cost: 30 MiB resident, 0 B of maps"


# --- verdict ------------------------------------------------------------------------------------------------


def rows(cells: dict[Group, dict[str, Distribution]]) -> list[Row]:
    return rows_of(cells, TABLE)


def test_verdict_names_the_largest_stage_of_the_heaviest_group() -> None:
    cells = {
        SDA_READ: cell([9 * MS] * 10, [1 * MS] * 10),
        SDA_WRITE: cell([20 * MS], [70 * MS]),
        SDB_READ: cell([1], [1]),
    }
    assert text.verdict(rows(cells), TABLE) == (
        "verdict: queue takes 90% of the time of sda read requests (mean 9.00 ms, p99 9.00 ms):"
        " the scheduler holds requests back"
    )


def test_verdict_without_devices_names_the_operation() -> None:
    verdict = text.verdict(rows({Group("", "read"): cell([1 * MS], [3 * MS])}), TABLE)
    assert verdict.startswith("verdict: device takes 75% of the time of read requests (mean 3.00 ms, p99 3.00 ms)")


def test_verdict_of_nothing() -> None:
    assert text.verdict([], TABLE) == "verdict: no request finished"
    empty = {SDA_READ: cell([], [])}
    assert text.verdict(rows(empty), TABLE) == (
        "verdict: requests finished, but none of their stages could be measured"
    )
