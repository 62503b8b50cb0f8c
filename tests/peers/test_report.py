# SPDX-License-Identifier: Apache-2.0
"""The page of a report in a browser without a network: contents, keys, requests and complaints."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.outputs import path
from tests.unit.outputs.export.test_html import END, owned, page, singles, stacks, summary, summed, waited
from tests.unit.outputs.samples import HOSTILE, NOON, SECOND
from wptrace.analysis.waits import WAIT
from wptrace.flows.io.parts.owners import KINDS as BY
from wptrace.model import units
from wptrace.model.report import Event, Report, Resource, arranged

MS = 1_000_000
Open = Callable[..., Any]


@pytest.fixture
def opened(chromium: Any, tmp_path: Path) -> Iterator[Open]:
    """Open a page of these results. At the end there must be no complaint and no other request."""
    contexts, said, asked = [], [], []

    def make(*results: Any, width: int = 1280, scheme: str = "light", view: str = "stages") -> Any:
        page(tmp_path, *results, view=view)
        context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
        contexts.append(context)
        found = context.new_page()
        found.on("console", lambda message: said.append(message.text))
        found.on("pageerror", lambda error: said.append(str(error)))
        found.on("request", lambda request: asked.append(request.url))
        found.goto((tmp_path / "report.html").as_uri())
        return found

    yield make
    for context in contexts:
        context.close()
    assert said == []
    assert len(asked) == len(contexts)
    assert all(url.startswith("file:") for url in asked)


def trace(count: int = 6) -> list[Any]:
    """Make this many intervals of a second; the first one is ten times as slow as the others."""
    parts = [path.cells()] * count
    slow = {
        group: path.cell([name for name in found if name != "total"], 500, 10.0)
        for group, found in parts[0].items()
        if group.kind.stages
    }
    parts[0] = {**parts[0], **slow}
    cells: dict[Any, Any] = {}
    for part in parts:
        for group, found in part.items():
            into = cells.setdefault(group, {})
            for name, one in found.items():
                if name in into:
                    into[name].merge(one)
                else:
                    into[name] = one.copy()
    begin = NOON - count * SECOND
    reports = [path.report(part, ts_ns=begin + (at + 1) * SECOND) for at, part in enumerate(parts)]
    events = [
        path.operation(path=f"/srv/data/{at}", comm="one" if at % 3 else "three")._replace(end_ns=begin + at * 50 * MS)
        for at in range(count * 20)
    ]
    whole = summary(cells)._replace(duration_ns=count * SECOND, ts_ns=NOON)
    return [path.start(), *events, *reports, whole]


def row(found: Any, series: int, name: str) -> list[str]:
    """Return a row of a table of stages: count, mean, percentiles, maximum, share."""
    named = found.locator(f'td:text-is("{name}"), td summary:text-is("{name}")')
    line = found.locator(f'table[data-series="{series}"] tr', has=named).first
    return [cell.strip() for cell in line.locator("td.num").all_inner_texts()]


def test_it_shows_the_figures_of_the_report(opened: Open) -> None:
    results = trace()
    found = opened(*results)
    report: Report = results[-1]
    cells = report.cells[path.OPERATION.group("nvme0n1", "read")]
    for name, one in cells.items():
        if not one.sum:
            continue
        figures = [one.mean, *map(one.percentile, (50, 90, 99, 99.9)), one.max]
        shown = row(found, 0, name)
        assert shown[:7] == [f"{one.count:,}", *map(units.duration, figures)], name
        if name != "total":
            assert shown[7] == f"{100 * one.sum / cells['total'].sum:.1f}%"
    assert "704 started = 700 finished + 4 in flight + 0 lost" in found.inner_text("main")
    widths = found.evaluate(
        "[...document.querySelector('.strip.tall').children].map((one) => parseFloat(one.style.width))"
    )
    assert sum(widths) == pytest.approx(100, abs=0.01)


def test_a_range_has_figures_of_its_own(opened: Open) -> None:
    """Selected by keys, then by dragging with the pointer."""
    found = opened(*trace())
    whole = row(found, 0, "total")
    found.focus("#heat")
    found.keyboard.press("ArrowRight")
    assert re.match(r"22:13:14\.\d+ to 22:13:15\.\d+: 500 operations", found.inner_text("#told"))
    found.keyboard.press("Enter")
    slow = row(found, 0, "total")
    assert slow[0] == "500"
    assert slow != whole
    found.keyboard.press("Escape")
    assert row(found, 0, "total") == whole
    box = found.locator("#heat").bounding_box()
    found.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 50)
    found.mouse.down()
    found.mouse.move(box["x"] + box["width"] - 20, box["y"] + 80, steps=4)
    found.mouse.up()
    fast = row(found, 0, "total")
    assert fast[0] == "2,000"
    # Shares still add up to the sum of the stages.
    shares = [float(row(found, 0, name)[7].rstrip("%")) for name in path.NAMES if path.USUAL[name]]
    assert sum(shares) == pytest.approx(100, abs=0.5)
    found.click("#reset")
    assert row(found, 0, "total") == whole


def test_a_stage_has_what_it_was_made_of_in_the_whole(opened: Open) -> None:
    *others, whole = trace()
    more = waited()
    cells = {**whole.cells, **{group: found for group, found in more.cells.items() if group.kind is WAIT}}
    found = opened(*others, whole._replace(cells=cells, counters={**whole.counters, **more.counters}))
    (made,) = found.locator("p.made").all_inner_texts()
    assert re.fullmatch(r"of fs: [\d.]+% on the CPU, [\d.]+% lock of the file <b> \(1,234\)", made)
    found.focus("#heat")
    found.keyboard.press("ArrowRight")
    found.keyboard.press("Enter")
    assert found.locator("p.made").count() == 0


def test_a_range_of_events_is_finer_than_an_interval(opened: Open) -> None:
    """All of 300 operations are events; of their requests there are only intervals."""
    events = singles(300)
    whole = summed(events)
    requests = {path.REQUEST.group("nvme0n1", "read"): path.requests(300)}
    cells = arranged({**whole.cells, **requests}, (*path.KINDS, *BY["process"]))
    whole = whole._replace(cells=cells, duration_ns=3 * SECOND)
    start = path.start()._replace(filters={"by": "process"})
    found = opened(start, *events, whole._replace(kind="interval"), whole)
    assert (
        found.inner_text("#grain")
        == "Each column is 10.0 ms: all 300 operations are there one by one, where they ended."
    )
    found.focus("#heat")
    found.keyboard.press("End")
    # They end 7 ms apart, the last one at noon.
    ends = Counter((event.end_ns // (10 * MS)) for event in events)
    last = max(ends)
    assert f": {ends[last]} operation" in found.inner_text("#told")
    for _ in range(4):
        found.keyboard.press("Shift+ArrowLeft")
    found.keyboard.press("Enter")
    assert row(found, 0, "total")[0] == str(sum(ends[last - at] for at in range(5)))
    assert row(found, 1, "total")[0] == "300"
    found.keyboard.press("Escape")
    assert row(found, 0, "total")[0] == "300"
    found.select_option("#what", label="read block requests")
    assert found.inner_text("#grain").startswith("Each column is an interval")
    found.select_option("#what", label="read db[2] operations")
    assert "all 100 operations" in found.inner_text("#grain")


def test_a_range_has_no_neighbouring_columns(opened: Open) -> None:
    """An interval may begin before the previous one has ended, because two clocks are read one after the other."""
    first, *rest = trace()
    reports = [one for one in rest if isinstance(one, Report) and one.kind == "interval"]
    early = [one._replace(ts_ns=one.ts_ns + at % 2 * 370) for at, one in enumerate(reports)]
    found = opened(first, *early, rest[-1])
    for at, _ in enumerate(early):
        found.focus("#heat")
        for _ in range(at + 1):
            found.keyboard.press("ArrowRight")
        found.keyboard.press("Enter")
        assert row(found, 0, "total")[0] == "500", at
        found.keyboard.press("Escape")


def test_the_page_says_what_was_run_where_and_when(opened: Open) -> None:
    first, *rest = trace()
    filters = {"dev": ["nvme0n1"], "segments": True, "op": "read"}
    command = ("wptrace", "io", "-d", "nvme0n1", "--segments", "--op", "read")
    found = opened(first._replace(filters=filters, resource=Resource("db7", command=command)), *rest)
    head = found.inner_text("header")
    assert "on nvme0n1, only op read, with segments" in head
    assert "True" not in head
    assert "db7" in head
    assert re.search(r"\d\d:\d\d:\d\d [A-Z]{3,4}", head)
    assert "wptrace io -d nvme0n1 --segments --op read" in found.inner_text("main")


def test_a_stage_and_another_kind_over_time(opened: Open) -> None:
    found = opened(*trace())
    drawn = found.get_attribute("#heat .p99", "d")
    found.select_option("#stage", "device")
    assert found.get_attribute("#heat .p99", "d") != drawn
    found.select_option("#what", label="write page-cache hits")
    assert found.input_value("#stage") == "total"
    assert found.locator("#heat path").count() == 11


def test_the_slowest_are_searched_sorted_and_opened(opened: Open) -> None:
    found = opened(*trace())
    lines = found.locator("#slowest tbody tr")
    assert lines.count() == 25
    found.keyboard.press("/")
    found.keyboard.type("/srv/data/117")
    assert lines.count() == 1
    found.keyboard.press("Control+a")
    found.keyboard.type("THREE")
    assert "40 of 120" in found.inner_text("#slowest")
    found.fill("#search", "")
    found.click("#slowest th:first-child button")
    assert found.get_attribute("#slowest th:first-child", "aria-sort") == "ascending"
    found.focus("#slowest tbody button")
    found.keyboard.press("Enter")
    fall = found.locator("#slowest .fall i")
    assert fall.count() == sum(bool(ns) for ns in path.USUAL.values())
    sizes = fall.evaluate_all("(bars) => bars.map((bar) => [parseFloat(bar.style.left), parseFloat(bar.style.width)])")
    assert sizes[0][0] == 0
    for (left, width), (after, _) in zip(sizes, sizes[1:]):
        assert left + width == pytest.approx(after, abs=0.001)
    assert sum(sizes[-1]) == pytest.approx(100, abs=0.001)
    assert "postgresql.service" in found.inner_text("#slowest pre")
    found.keyboard.press("Enter")
    assert fall.count() == 0
    found.click("#slowest button.more")
    assert lines.count() == 120


def test_a_point_of_the_map_opens_its_line(opened: Open) -> None:
    found = opened(*trace())
    found.locator("#heat .dot").first.dispatch_event("click")
    assert found.locator("#slowest tr.open").count() == 1


def test_the_incident_of_a_dump_is_marked(opened: Open) -> None:
    *results, whole = trace()
    event = next(one for one in results if isinstance(one, Event) and one.fields["path"] == "/srv/data/70")
    found = opened(*results, whole._replace(incident=path.incident(event)))
    part = found.locator("#incident")
    assert "read operation of /srv/data/70 by one[4711/4715] took 3.69 ms" in part.inner_text()
    assert (
        "30 requests (30 MiB) were under way on nvme0n1, and 5 requests (4 MiB) came while it was" in part.inner_text()
    )
    lines = part.locator("tbody tr").all_inner_texts()
    assert [re.split(r"\t", line) for line in lines] == [
        ["backup[812]", "write", "30", "30 MiB", "12", "4", "4 MiB"],
        ["kworker/u8:1[71]", "write", "", "", "", "1", "4 KiB"],
    ]
    assert part.locator(".fall .lane").count() == sum(bool(ns) for ns in path.USUAL.values())
    circle, dots = found.locator("#heat .slow"), found.locator("#heat .dot")
    places = dots.evaluate_all("all => all.map((one) => [one.getAttribute('cx'), one.getAttribute('cy')])")
    assert [circle.get_attribute("cx"), circle.get_attribute("cy")] in places
    before, queued, own = (
        float(one)
        for one in (
            found.locator("#heat .since").get_attribute("x1"),
            found.locator("#heat .queued").get_attribute("x1"),
            circle.get_attribute("cx"),
        )
    )
    assert before < queued <= own
    found.click("#around")
    assert found.locator("#heat .since, #heat .queued, #heat .slow").count() == 3
    assert "of 6.00 s" in found.inner_text("#told")
    # Other figures have a time and no such point.
    found.click("#reset")
    found.select_option("#what", label="write page-cache hits")
    assert (found.locator("#heat .slow").count(), found.locator("#heat .queued").count()) == (0, 1)
    found.locator("#incident details summary").click()
    assert "postgresql.service" in found.inner_text("#incident pre")


def test_a_trace_without_one_has_no_incident(opened: Open) -> None:
    assert opened(*trace()).locator("#incident, #heat .upright").count() == 0


def levels(found: Any, chart: int) -> list[list[float]]:
    """Return the heights of the lines of a chart, from the zero line up, as shares of the highest."""
    paths = (
        found.locator(".rate").nth(chart).locator("path").evaluate_all("all => all.map((one) => one.getAttribute('d'))")
    )
    return [[(78 - float(y)) / 68 for y in re.findall(r"[ML][\d.]+ ([\d.]+)H", path)] for path in paths]


def test_rates_are_those_of_the_intervals(opened: Open) -> None:
    """Including the last fraction of a second, and bytes of a single interval."""
    *results, whole = trace()
    moved = {path.REQUEST.group("nvme0n1", "read"): Counter({"bytes": 3 << 20})}
    results = [one._replace(counters={}) if isinstance(one, Report) else one for one in results]
    results[-2] = results[-2]._replace(counters=moved)
    late = whole._replace(
        counters=moved, ts_ns=whole.ts_ns + SECOND // 20, duration_ns=whole.duration_ns + SECOND // 20
    )
    found = opened(*results, late)
    requests, size, each, depth = (levels(found, chart) for chart in range(4))
    # Reads are the most frequent of three operations, with as many in each second.
    assert [len(line) for line in requests] == [6, 6, 6]
    assert requests[0] == pytest.approx([1] * 6, abs=0.06)
    assert [line[1] for line in requests[1:]] == pytest.approx([150 / 520, 30 / 520], abs=0.03)
    assert [round(value) for value in size[0]] == [0, 0, 0, 0, 1, 0]
    assert each[0] == size[0]
    assert depth[0][0] == 1
    assert depth[0][1:] == pytest.approx([0.1] * 5, abs=0.02)
    assert "3 MiB/s" in found.locator(".rate").nth(1).text_content()


def test_places_are_those_of_the_events(opened: Open) -> None:
    start, *results = trace()
    events = [one._replace(fields={**one.fields, "sector": 1000 * at}) for at, one in enumerate(results[:120])]
    found = opened(start, *events, *results[120:])
    (drawn,) = found.locator("#map path").evaluate_all("all => all.map((one) => one.getAttribute('d'))")
    points = [(float(x), float(y)) for x, y in re.findall(r"M([\d.]+) ([\d.]+)h", drawn)]
    assert len(points) == 120
    assert points == sorted(points, key=lambda point: (point[0], -point[1]))


def test_one_owner_over_time(opened: Open) -> None:
    start = path.start()._replace(filters={"by": "process"})
    found = opened(start, owned(["db", "backup"])._replace(kind="interval"), owned(["db", "backup"]))
    found.select_option("#what", label="read backup[2] operations")
    found.focus("#heat")
    found.keyboard.press("ArrowRight")
    assert ": 1 operation, mean 2.00 ms" in found.inner_text("#told")


def test_owners_are_searched(opened: Open) -> None:
    found = opened(path.start()._replace(filters={"by": "process"}), owned([f"task{at}" for at in range(40)]))
    part = found.locator("section", has=found.locator("h2", has_text="by process"))
    assert part.locator("tbody tr").count() == 25
    part.locator("input").fill("task17")
    assert part.locator("tbody tr").count() == 1
    assert "Neighbours" in found.inner_text("main")


def test_a_flame_graph_is_walked_zoomed_and_searched(opened: Open) -> None:
    found = opened(*stacks([f"function_{at}" for at in range(8)]), view="stacks")
    fields = found.locator("#flame g")
    assert fields.count() == 3 + 8
    found.locator("#flame g[tabindex='0']").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight"):
        found.keyboard.press(key)
    assert re.match(r"function_\d: 1\.00 ms, 12\.5% of all", found.inner_text("#flamed"))
    found.keyboard.press("Enter")
    assert fields.count() == 4
    found.keyboard.press("Escape")
    assert fields.count() == 11
    found.fill("#frame", "function_3")
    assert found.inner_text("#flamed") == "12.5% of the time match"
    found.select_option("#weight", "count")
    assert "12.5% of the count match" in found.inner_text("#flamed")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_telephone_and_follows_the_scheme(opened: Open, scheme: str) -> None:
    found = opened(*trace(), width=400, scheme=scheme)
    assert found.evaluate("document.documentElement.scrollWidth") <= 400
    cut = "[...document.querySelectorAll('.wide')].filter((one) => one.scrollWidth > one.clientWidth).length"
    assert found.evaluate(cut) == 0
    # A touch works as well.
    found.locator("table[data-series='0'] summary", has_text="device").click()
    assert "where it is large" in found.inner_text("#stages")
    colour = found.evaluate("getComputedStyle(document.body).backgroundColor")
    assert colour == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(13, 17, 23)")
    # Print is on white.
    found.emulate_media(media="print")
    assert found.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_the_first_page_on_paper_is_the_summary(opened: Open, tmp_path: Path) -> None:
    found = opened(*trace())
    found.pdf(path=tmp_path / "page.pdf", format="A4")
    first, second = (
        subprocess.run(
            ["pdftotext", "-f", str(page), "-l", str(page), "-layout", str(tmp_path / "page.pdf"), "-"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for page in (1, 2)
    )
    for words in ("wptrace io", "Latency over time", "Where the time goes", "read operations", "flush block requests"):
        assert words in first
    assert "read operations: 3,000" not in first
    assert "read operations: 3,000" in second


def test_names_are_text(opened: Open) -> None:
    """The last of these names would show up as a dialog or an element."""
    for name in (*HOSTILE, END, "<img src=x onerror=alert(1)>"):
        start = path.start()._replace(notes=[name], kernel=name, filters={"dev": [name], "by": "process"})
        event = path.operation(comm=name, path=name)
        under_way = [one._replace(owner=name, op=name) for one in path.incident(event).under_way]
        incident = path.incident(event, dev=name, under_way=under_way)
        found = opened(start, event, owned([name])._replace(incident=incident))
        found.click("#slowest tbody button")
        assert found.locator("main script, main img").count() == 0
    assert "<img src=x onerror=alert(1)>[4711/4715]" in found.inner_text("#slowest")


def test_without_scripts_it_is_text(chromium: Any, tmp_path: Path) -> None:
    page(tmp_path, path.start(), summary())
    context = chromium.new_context(java_script_enabled=False, offline=True)
    found = context.new_page()
    found.goto((tmp_path / "report.html").as_uri())
    assert "read: 500 operations" in found.inner_text("body")
    context.close()


def test_the_rows_of_a_trace_of_nothing(opened: Open) -> None:
    found = opened(path.start(), summary({})._replace(cells=arranged({}, ())))
    assert "How it was measured" in found.inner_text("main")
