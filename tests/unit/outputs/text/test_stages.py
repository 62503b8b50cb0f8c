# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.outputs import path
from tests.unit.outputs.path import HIT, OPERATION, REQUEST, WRITEBACK
from tests.unit.outputs.samples import HOSTILE, MS, NOON, cell, distribution, group, report, start
from wptrace.model.book import Book
from wptrace.model.distribution import Distribution
from wptrace.model.kind import OPERATIONS, REQUESTS, Group
from wptrace.model.report import Report, Start, arranged
from wptrace.model.units import duration
from wptrace.outputs.registry import Wanted
from wptrace.outputs.text import header
from wptrace.outputs.text import words as text
from wptrace.outputs.text.stages import StagesView
from wptrace.outputs.text.view import Forms

BLOCK = start()
SDA_READ, SDA_WRITE, SDB_READ = group("sda"), group("sda", "write"), group("sdb")


def view(of: Start, per_device: bool = True, dates: bool = False) -> StagesView:
    made = StagesView(Wanted(per_device=per_device, dates=dates))
    list(made.begin(of))
    return made


def lines(found: Report, width: int = 80, dates: bool = False, of: Start = BLOCK, apart: bool = True) -> list[str]:
    shown = view(of, apart, dates)
    return [*shown.report(found, width), *header.losses(found)]


def of_path(found: Report, width: int = 80, apart: bool = True) -> list[str]:
    return lines(found, width, of=path.start(), apart=apart)


def sections(found: Report, of: Start) -> Mapping[str, Forms]:
    return view(of).sections(found, [], 80)


def is_table(line: str) -> bool:
    return line.startswith("  ")


# --- The block level ----------------------------------------------------------------------------------------


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
        "  total                  2  4.00 ms  3.00 ms  5.00 ms  5.00 ms 100.0%  ███████████████████",
        "",
        "sda write: 1 request, 1 /s, 4 KiB/s",
        "  stage              count     mean      p50      p99      max  share",
        "  queue                  1     0 ns     0 ns     0 ns     0 ns   0.0%",
        "  device                 1  5.00 ms  5.00 ms  5.00 ms  5.00 ms 100.0%  ███████████████████",
        "  total                  1  5.00 ms  5.00 ms  5.00 ms  5.00 ms 100.0%  ███████████████████",
        "lost: 3 x state_full: the table of what is in flight had no room",
        "noted: 2 x ring_full: the ring had no room for a record",
    ]


def test_figures_are_those_of_the_distribution() -> None:
    stages = cell([5 * MS] * 98 + [80 * MS] * 2, [0] * 100)
    found = stages["queue"]
    (line,) = (line for line in lines(report({SDA_READ: stages})) if line.startswith("  queue"))
    shown = [duration(value) for value in (found.mean, found.percentile(50), found.percentile(99), found.max)]
    assert line.split()[1:10] == ["100", *" ".join(shown).split()]


def test_an_idle_interval_has_no_table() -> None:
    book = Book()
    assert lines(report({}, accounting=book)) == ["22:13:20  0 requests in 1.00 s, 0 B, 0 in flight"]
    assert lines(report({}, accounting=book), dates=True)[0].startswith("2023-11-14 22:13:20  0 requests")


def test_an_interval_without_length_has_no_rates() -> None:
    found = lines(report({SDA_READ: cell([1], [1])}, {SDA_READ: 512}, duration_ns=0))
    assert "sda read: 1 request" in found


def test_groups_without_device_add_the_bytes_of_all() -> None:
    found = report({SDA_READ: cell([1], [1])}, {SDA_READ: 1024, SDB_READ: 2048, SDA_WRITE: 9})
    assert "read: 1 request, 1 /s, 3 KiB/s" in lines(found, apart=False)


def test_nothing_lost_is_not_mentioned() -> None:
    book = Book.read(3, 3, {}, {})
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
    cells = arranged({SDA_READ: {**many, stage: many["queue"]}}, [SDA_READ.kind])
    shown = [line for line in lines(report({})._replace(cells=cells), width) if is_table(line)]
    assert len(shown) == (5 if stage == "unattributed" and any(values) else 4)
    assert all(len(line) <= width for line in shown), shown
    # Columns never touch: stage, count, four figures of a number and a unit, share, bar.
    assert all(len(line.split()) in (11, 12) for line in shown[1:]), shown


@pytest.mark.parametrize("width", [0, 20, 60])
def test_a_narrow_terminal_costs_the_bars_alone(width: int) -> None:
    wide = [line.rstrip("▏▎▍▌▋▊▉█ ") for line in lines(report({SDA_READ: cell([1], [2])}), 160)]
    assert lines(report({SDA_READ: cell([1], [2])}), width) == wide


def test_bars_do_not_grow_without_end() -> None:
    assert max(line.count("█") for line in lines(report({SDA_READ: cell([1], [2])}), 500)) == 30


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_shown_escaped(name: str) -> None:
    shown = lines(report({group(name): cell([1], [2])}))
    assert all(line.isprintable() for line in shown)
    assert "\n".join(shown).count(text.printable(name)) == 1


# --- Whole operations ---------------------------------------------------------------------------------------


def test_only_requests_count_for_the_bytes_of_all() -> None:
    found = path.report({HIT.group("sda", "read"): path.hits(1 << 10), REQUEST.group("sda", "read"): path.requests(4)})
    assert found.bytes == 4 * 4096
    assert of_path(found)[0].endswith("0 operations (3 in flight, 3 failed),")
    assert of_path(found)[1].endswith("1,024 page-cache hits, 700 requests (4 in flight, 1 failed), 16 KiB")


def test_what_was_only_asked_for_has_no_figures() -> None:
    """Flushes that the disk did together with a write."""
    flush = REQUEST.group("sda", "flush")
    found = path.report({flush: {name: Distribution() for name in (*path.BLOCK, "total")}})
    shown = of_path(found._replace(counters={flush: {"asked": 369}}))
    assert "sda flush: 0 block requests, 0 /s, 0 B/s; asked 369" in shown
    assert not [line for line in shown if line.startswith("  stage")]


def test_time_that_no_stage_covers_has_a_row_where_there_is_some() -> None:
    cells = path.operations(5)
    shown = of_path(path.report({OPERATION.group("sda", "read"): {**cells, "unattributed": cells["fs"]}}))
    names = [line.split()[0] for line in shown if is_table(line)]
    assert names[names.index("return") :][:3] == ["return", "unattributed", "total"]


def test_a_wide_terminal_has_two_tables_beside_each_other() -> None:
    narrow, wide = of_path(path.report(), 157), of_path(path.report(), 160)
    (line,) = (line for line in wide if " operations," in line)
    assert line.split("  ")[0].startswith("nvme0n1 read: 500 operations")
    assert line.split("  ")[-1].startswith(" nvme0n1 write: 120 operations")
    assert len(wide) < len(narrow)
    assert max(map(len, wide)) <= 160
    assert all(line.count(" device ") == 2 for line in wide[3:15] if " device " in line)
    names = {*path.NAMES, "total"}
    in_narrow, in_wide = (
        sorted(word for line in shown for word in line.split() if word in names) for shown in (narrow, wide)
    )
    assert in_narrow == in_wide


def test_a_terminal_of_some_width_has_more_percentiles() -> None:
    (narrow, *_), (wide, *_) = (
        [line for line in of_path(path.report(), width) if line.startswith("  stage")] for width in (109, 110)
    )
    assert narrow.split() == ["stage", "count", "mean", "p50", "p99", "max", "share"]
    assert wide.split() == ["stage", "count", "mean", "p50", "p90", "p99", "p99.9", "max", "share"]
    found = path.operations(500)["device"]
    (row, *_) = (line for line in of_path(path.report(), 110) if line.startswith("  device"))
    expected = [found.mean, *map(found.percentile, (50, 90, 99, 99.9)), found.max]
    assert " ".join(row.split()[2:14]) == " ".join(map(duration, expected))


@pytest.mark.parametrize("width", [80, 110, 160])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e3, 1e9])
def test_everything_fits_whatever_the_figures(width: int, scale: float) -> None:
    cells = {group: path.cell(stages_of(group), 3, scale, interferences_of(group)) for group in path.cells()}
    shown = of_path(path.report(cells), width)[:-2]
    assert max(map(text.columns, shown)) <= width, shown


def stages_of(group: Group) -> tuple[str, ...]:
    return path.BLOCK if group.kind is REQUEST else path.NAMES


def interferences_of(group: Group) -> tuple[str, ...]:
    return path.INTERFERENCES if group.kind is OPERATION else ()


def test_an_idle_interval_of_operations_is_short() -> None:
    idle = path.report({})._replace(books={OPERATIONS: Book(), REQUESTS: Book()})
    assert of_path(idle) == [
        "22:13:20  in 1.00 s: 0 operations (0 in flight), 0 page-cache hits,",
        "          0 requests (0 in flight), 0 B",
        "",
        "operations: 0 started = 0 finished + 0 in flight + 0 lost",
        "requests: 0 started = 0 finished + 0 in flight + 0 lost",
    ]
    assert of_path(path.report()._replace(duration_ns=0))[3] == "nvme0n1 read: 500 operations"
    assert idle.ts_ns == NOON


# --- Sections of a screen -----------------------------------------------------------------------------------


def test_each_form_of_a_section_is_shorter_than_the_one_before() -> None:
    found = sections(path.report(lost=1), path.start())
    assert set(found) == {"time", "operations", "page-cache hits", "block requests", "accounting", "losses"}
    for name, forms in found.items():
        heights = list(map(len, forms))
        assert heights == sorted(heights, reverse=True), name
        assert name in ("time", "operations") or not heights[-1]
    assert len(found["operations"]) == 4
    assert [line for line in found["operations"][3] if "read" in line or "write" in line] == found["operations"][3][1:]
    assert sum(" device " in line for line in found["operations"][1]) == 1


def test_the_group_that_took_the_most_time_keeps_its_table() -> None:
    cells = {OPERATION.group("sda", "read"): path.operations(5), OPERATION.group("sda", "write"): path.operations(50)}
    forms = sections(path.report(cells), path.start())["operations"]
    assert forms[1][0].startswith("sda write: 50 operations")
    assert forms[1][-1].startswith("  sda read ")


def test_the_level_block_has_its_tables_alone() -> None:
    found = sections(report({SDA_READ: cell([1], [2])}), BLOCK)
    assert set(found) == {"time", "block requests", "losses"}
    assert found["block requests"][0][0] == "sda read: 1 request, 1 /s, 0 B/s"


def test_writeback_has_a_table_of_its_own_and_shares_out_its_own_total() -> None:
    written = {name: distribution([ms * MS]) for name, ms in (("dirty", 3), ("writeback", 1), ("total", 4))}
    found = path.report({**path.cells(), WRITEBACK.group("nvme0n1", "write"): written})
    shown = of_path(found)
    at = shown.index("nvme0n1 write: 1 writeback bio, 1 /s, 4 KiB/s")
    assert [line.split()[0] for line in shown[at + 2 : at + 5]] == ["dirty", "writeback", "total"]
    assert ["75.0%" in shown[at + 2], "25.0%" in shown[at + 3]] == [True, True]
    assert shown[at + 5] == ""
