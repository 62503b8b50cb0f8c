# SPDX-License-Identifier: Apache-2.0
"""A line for each record, in columns and as CSV."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from tests.unit.cli.command import FAKE, begun, ended, run
from tests.unit.outputs import path, samples
from tests.unit.outputs.samples import HOSTILE, MS, NOON, play
from wptrace.cli.main import main
from wptrace.errors import UsageError
from wptrace.model.kind import DEVICE, TASK_FIELDS, EventField, Kind, Label, Noun
from wptrace.model.report import Event, Start
from wptrace.outputs.registry import CSV, LINES, Wanted, make

PLAIN = Wanted()
FILE = path.operation().fields["path"]


def written(form: str, *results: Any, wanted: Wanted = PLAIN) -> str:
    stream = io.StringIO(newline="")
    play(make(form, stream, "stages", wanted), *results)
    return stream.getvalue()


def lines(*results: Any, wanted: Wanted = PLAIN) -> list[str]:
    return written(LINES, path.start(), *results, wanted=wanted).splitlines()


def table(*results: Any) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(written(CSV, *results), newline="")))


def test_a_line_for_each() -> None:
    who, what, took = zip(*(_parts(line) for line in lines(path.operation(), path.operation(path.HIT), path.request())))
    assert who == (
        "TIME            TASK                     ",
        "22:13:20.123456 postgres[4711/4715]      ",
        "22:13:20.123456 postgres[4711/4715]      ",
        "22:13:20.000000 kworker/u8:1[71]         ",
    )
    assert what == (
        "T DEV       OP        OFFSET/SECTOR    BYTES ",
        "O nvme0n1   read            1048576     8192 ",
        "H nvme0n1   read            1048576     8192 ",
        "R nvme0n1   write            123456     8192 ",
    )
    assert took == (
        " TOTAL(us) LARGEST       FILE",
        f"    3692.0 device 87%    {FILE}",
        f"    3692.0 page cache    {FILE}",
        "    3621.0 device 88%    -",
    )


def _parts(line: str) -> tuple[str, str, str]:
    return line[:41], line[41:86], line[86:]


def test_times_are_in_one_unit_and_sort() -> None:
    slow = path.operation()._replace(total_ns=12 * 60 * 10**9 + 345)
    for unit, times in (("us", ["3692.0", "720000000.3"]), ("ms", ["3.692", "720000.000"])):
        title, *found = lines(path.operation(), slow, wanted=Wanted(unit=unit))
        assert f" TOTAL({unit}) " in title
        assert [line.split()[7] for line in found] == times


def test_dates_where_they_are_wanted() -> None:
    title, line = lines(path.request(), wanted=Wanted(dates=True))
    assert line.startswith("2023-11-14 22:13:20.000000 kworker/u8:1[71] ")
    assert title.index("TASK") == line.index("kworker")


def test_what_has_no_place_no_task_and_no_time() -> None:
    event = path.operation(offset=None, pid=0, comm="", requests=0)
    nothing = event._replace(total_ns=0, stages=dict.fromkeys(event.stages, 0))
    assert lines(nothing)[1].split()[1:] == ["nobody", "O", "nvme0n1", "read", "-", "8192", "0.0", "-", FILE]


def test_what_failed_says_so_behind_the_columns() -> None:
    assert lines(path.operation(error=5, result=-5))[1].endswith(f"device 87%    {FILE}  failed (EIO)")


def test_a_wide_figure_makes_its_line_wider_and_is_not_cut() -> None:
    line = lines(path.operation(offset=1 << 62, length=1 << 40))[1]
    assert f" {1 << 62} {1 << 40} " in line


def test_requests_of_which_nobody_knows_whose_they_are() -> None:
    found = written(LINES, samples.start(), samples.request()).splitlines()
    assert found[1].split()[1:] == ["-", "R", "sda", "write", "123456", "4096", "4000.0", "device", "75%", "-"]


@pytest.mark.parametrize("form", [LINES, CSV])
def test_the_rest_is_said_elsewhere(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = written(form, path.start(), [path.waiting()], path.request(), path.report(), path.report(kind="summary"))
    assert len(found.splitlines()) == 2
    said = capsys.readouterr().err
    for words in ("Tracing io", "in flight at", "Summary", "read: 500 operations", "requests: 704 started"):
        assert words in said


@pytest.mark.parametrize("form", [LINES, CSV])
@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_names_can_do_nothing(form: str, name: str) -> None:
    found = written(form, path.start(), path.operation(comm=name, path=name, cgroup=name, dev=name))
    assert found.count("\n") == 2
    assert found.endswith("\n")
    assert found.replace("\n", "").isprintable()
    found.encode()


def test_csv_has_the_fields_of_json_and_every_stage() -> None:
    operation, hit, request = table(path.start(), path.operation(), path.operation(path.HIT), path.request())
    assert (operation["kind"], hit["kind"], request["kind"]) == ("operation", "hit", "request")
    assert operation["ts_ns"] == str(NOON + 123456000)
    assert operation["time"] == "2023-11-14 22:13:20.123456"
    fields = path.operation().fields
    for name in ("comm", "pid", "tid", "cgroup", "path", "offset", "length", "result", "sector", "bytes", "rwbs"):
        assert operation[name] == str(fields[name])
    assert {name: operation[f"{name}_ns"] for name in path.NAMES} == {name: str(ns) for name, ns in path.USUAL.items()}
    assert (operation["largest"], hit["largest"]) == ("device", "")
    assert operation["total_ns"] == str(sum(path.USUAL.values()))
    # Fields that a record lacks are empty.
    assert (request["path"], request["fs_ns"], operation["unattributed_ns"]) == ("", "", "")
    # There are no columns for stages of kinds without events.
    assert "dirty_ns" not in operation


def test_what_no_task_asked_for_is_of_nobody_in_every_form() -> None:
    flush = path.request(comm="", pid=0, tid=0)
    (row,) = table(path.start(), flush)
    assert row["comm"] == lines(flush)[1].split()[1] == "nobody"


def test_csv_quotes_what_has_a_comma_and_ends_lines_as_everything_else() -> None:
    (row,) = table(path.start(), path.operation(path='a,"b'))
    assert row["path"] == 'a,"b'
    assert "\r" not in written(CSV, path.start(), path.operation())


FIELDS = (*TASK_FIELDS, EventField("key", str))
PACKET = Kind("packet", Noun("packet"), (Label("comm", DEVICE), Label("dev", DEVICE)), nested=True, fields=FIELDS)
FLOW = Start("packets", "", "6.12", {}, [], (PACKET,), [])
DEFINED = Event(PACKET.group("eth0", 7), NOON, 2 * MS, {}, {"key": "0x1", "comm": "nc", "pid": 9, "tid": 9})


def test_a_flow_by_definition_has_its_labels() -> None:
    title, line = written(LINES, FLOW, DEFINED).splitlines()
    assert title.split() == ["TIME", "TASK", "TOTAL(us)", "LARGEST", "WHAT"]
    assert line.split() == ["22:13:20.000000", "nc[9]", "2000.0", "-", "eth0", "7"]
    (row,) = table(FLOW, DEFINED)
    assert (row["label:comm"], row["label:dev"], row["comm"], row["key"], row["total_ns"]) == (
        "eth0", "7", "nc", "0x1", "2000000",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (-22, "-22"),
        ("-22", "-22"),
        ("=1+1", "'=1+1"),
        ("-1+a!A1", "'-1+a!A1"),
        ("@sum", "'@sum"),
        ("+1", "'+1"),
    ],
)
def test_csv_takes_no_negative_number_for_a_formula(value: Any, cell: str) -> None:
    (row,) = table(FLOW, DEFINED._replace(group=PACKET.group("eth0", value)))
    assert row["label:dev"] == cell


# --- The command ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["io"], ["flow", "tcp"], ["replay", "/nowhere"]])
@pytest.mark.parametrize("form", ["--line", "--csv"])
def test_two_forms_are_one_too_many(command: list[str], form: str) -> None:
    with pytest.raises(UsageError, match=f"{form} and --json are two output formats"):
        main([*command, form, "--json"])


@pytest.mark.parametrize(
    ("words", "reported"), [(["--line"], True), (["--csv"], True), (["--line", "--slow", "1ms"], True), ([], False)]
)
def test_lines_tell_every_one_where_nothing_else_is_said(words: list[str], reported: bool) -> None:
    done = run(FAKE, "io", *words, "0.05", "2")
    assert done.returncode == 0
    assert ("123456" in done.stdout) is reported
    if words:
        assert len(done.stdout.splitlines()) == 2
        assert "Summary" in done.stderr
    else:
        assert done.stderr == ""


def test_sampled_ones_alone_where_they_are_asked_for() -> None:
    assert "123456" not in run(FAKE, "io", "--line", "--sample", "1/9", "0.05", "2").stdout


def test_a_pipe_that_nobody_reads_ends_it_well() -> None:
    process, _ = begun("io", "--line", "0.05")
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    code, _, said = ended(process)
    assert code == 0
    assert b"Summary" in said
    assert b"Traceback" not in said
