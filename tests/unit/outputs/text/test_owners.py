# SPDX-License-Identifier: Apache-2.0
"""Tables of owners: they fit the terminal, and hostile names are escaped."""

from __future__ import annotations

import pytest

from tests.unit.outputs.samples import HOSTILE, MS, distribution, report
from wptrace.flows.io.options import CGROUP, PROCESS
from wptrace.flows.io.parts.owners import KINDS
from wptrace.model.kind import NOBODY, OTHERS, Group, Task
from wptrace.model.report import Report
from wptrace.outputs.text.owners import lines
from wptrace.outputs.text.tables import Style
from wptrace.outputs.text.words import columns

OPERATIONS, _, REQUESTS = KINDS[PROCESS]
POD = "/kubepods.slice/kubepods-pod0f1e2d3c_4b5a_6978_8796_a5b4c3d2e1f0.slice"


def of(*groups: Group) -> Report:
    cells = {
        group: {"under_way": distribution([MS]), "total": distribution([2 * MS, MS * (at + 1)])}
        for at, group in enumerate(groups)
    }
    return report(cells, dict.fromkeys(groups, 8192)).everywhere()


def test_requests_have_their_share_of_the_device() -> None:
    shown = of(*(REQUESTS.group("sda", "read", who) for who in (Task("dd", 7), Task("fio", 8), NOBODY, OTHERS)))
    title, *rows = lines(shown, REQUESTS, Style(80, False), "process")
    assert title.split() == ["block", "requests", "by", "process", "op", "count", "bytes", "mean", "p99", "device"]
    # Owners with the most time come first, those without a row last.
    assert [row.split()[0] for row in rows] == ["nobody", "fio[8]", "dd[7]", "others"]
    assert {row.split()[-1] for row in rows} == {"25.0%"}
    assert rows[0].split()[1:5] == ["read", "2", "8", "KiB"]


@pytest.mark.parametrize("width", [80, 120, 200])
def test_lines_fit(width: int) -> None:
    owners = [*(Task(name * 3, 4_194_304, 4_194_303) for name in HOSTILE), OTHERS]
    every = of(*(OPERATIONS.group("nvme0n1", "pagefault", who) for who in owners))
    cells = {OPERATIONS.group("nvme0n1p128", "pagefault", who): {"total": distribution([MS])} for who in owners}
    for shown in (every, report(cells)):
        found = list(lines(shown, OPERATIONS, Style(width, False), "thread"))
        assert len(found) == len(owners) + 1
        for line in found:
            assert line.isprintable()
            assert columns(line) <= width


@pytest.mark.parametrize("count", [9_999_999, 10_000_000, 2_345_678_901])
def test_lines_of_a_long_trace_fit(count: int) -> None:
    groups = [OPERATIONS.group("nvme0n1", "read", Task("fio" * 9, number)) for number in (7, 8)]
    cells = {group: {"total": distribution([MS]).scaled(many)} for group, many in zip(groups, (count, 1))}
    for width in (80, 120):
        found = list(lines(report(cells), OPERATIONS, Style(width, False), "process"))
        assert {columns(line) for line in found} == {width}
        assert found[1].index(f"{count:,}") + len(f"{count:,}") == found[0].index("count") + len("count")


def test_a_cgroup_has_its_path_where_there_is_room() -> None:
    operations = KINDS[CGROUP][0]
    shown = of(operations.group("sda", "read", POD), operations.group("sda", "read", "/app"))
    narrow = list(lines(shown, operations, Style(80, False), CGROUP))
    assert [line.split()[0] for line in narrow[1:]] == ["app", "pod"]
    service = of(operations.group("sda", "read", "/system.slice/db.service"))
    assert "db /system.slice/db.service " in list(lines(service, operations, Style(120, False), CGROUP))[1]


def test_each_device_has_its_lines() -> None:
    one = OPERATIONS.group("sda", "read", Task("dd", 7))
    cells = {one: {"total": distribution([MS])}}
    (title, line) = lines(report(cells), OPERATIONS, Style(100, False), "process")
    assert "dev" in title.split()
    assert line.split()[1] == "sda"
