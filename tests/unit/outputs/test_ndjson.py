# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gc
import io
import json
from typing import Any, Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.memory import traced
from tests.unit.outputs import path
from tests.unit.outputs.samples import HOSTILE, MS, NOON, PLAIN, SECOND, book, cell, group, play, report, request, start
from wptrace import __version__
from wptrace.model.book import CAUSES, Book
from wptrace.model.report import Finding, Verdict
from wptrace.outputs.ndjson import NdjsonOutput

SDA_READ = group("sda")


def written(*results: Any) -> list[dict[str, Any]]:
    """Return the output, each line parsed by itself."""
    stream = io.StringIO()
    play(NdjsonOutput(stream, PLAIN), *results)
    text = stream.getvalue()
    assert text.isascii()
    assert text.endswith("\n")
    lines = text[:-1].split("\n")
    assert all(line.isprintable() for line in lines)
    return [json.loads(line, parse_constant=pytest.fail) for line in lines]


def test_start_says_what_is_traced_and_how() -> None:
    (line,) = written(start(dev=["sda"], notes=["read this"]))
    assert line == {
        "kind": "start",
        "version": __version__,
        "kernel": "6.12.9",
        "flow": "io",
        "level": "block",
        "filters": {"dev": ["sda"]},
        "stages": [
            {"stage": "queue", "how": "tp_btf/block_rq_complete"},
            {"stage": "device", "how": "tp_btf/block_rq_complete"},
        ],
        "notes": ["read this"],
    }


def test_a_request_has_its_stages_in_nanoseconds() -> None:
    (line,) = written(request())
    assert line == {
        "kind": "request",
        "ts_ns": NOON,
        "dev": "sda",
        "op": "write",
        "total_ns": 4 * MS,
        "stages": {"queue_ns": MS, "device_ns": 3 * MS},
        "rwbs": "WS",
        "sector": 123456,
        "bytes": 4096,
        "cpu": 1,
        "error": 0,
    }


@pytest.mark.parametrize("kind", ["interval", "summary"])
def test_a_report_has_all_figures(kind: str) -> None:
    found = report({SDA_READ: cell([MS], [3 * MS])}, {SDA_READ: 4096, group("sdb"): 512}, kind, failed=2)
    (line,) = written(found)
    rows = line.pop("rows")
    assert line == {
        "kind": kind,
        "ts_ns": NOON,
        "duration_ns": SECOND,
        "requests": {"started": 20, "finished": 12, "in_flight": 5, "lost": 3, "carried": 0, "failed": 2},
        "loss": {"state_full": 3, "ring_full": 2},
        "bytes": 4608,
        "overhead": {
            "bpf_ns": 1_400_000,
            "bpf_runs": 1000,
            "reader_cpu_ns": 250_000_000,
            "rss_bytes": 30 << 20,
            "map_bytes": 3 << 20,
            "records": 17,
        },
    }
    assert [row["stage"] for row in rows] == ["queue", "device", "total"]
    assert rows[1] == {
        "kind": "request",
        "dev": "sda",
        "op": "read",
        "stage": "device",
        "count": 1,
        "sum_ns": 3 * MS,
        "min_ns": 3 * MS,
        "max_ns": 3 * MS,
        "mean_ns": 3 * MS,
        "stddev_ns": 0,
        "p50_ns": 3 * MS,
        "p90_ns": 3 * MS,
        "p99_ns": 3 * MS,
        "p999_ns": 3 * MS,
        "share": 0.75,
    }


def test_operations_have_their_own_law_kinds_and_verdict() -> None:
    found = Verdict((Finding("idle", {"in_flight": 1}),), "it")
    report = path.report(kind="summary", lost=5, verdict=found)
    (line,) = written(report)
    assert line["operations"] == {
        "started": 5528, "finished": 5520, "in_flight": 3, "lost": 5, "carried": 0, "failed": 3,
    }  # fmt: skip
    assert line["requests"] == {"started": 709, "finished": 700, "in_flight": 4, "lost": 5, "carried": 0, "failed": 1}
    assert line["loss"] == {"recursion": 10, "ring_full": 2}
    assert line["bytes"] == 700 * 4096
    kinds = {(row["kind"], row["op"]) for row in line["rows"]}
    assert kinds == {(group.kind.name, group.label("op")) for group in path.cells()}
    assert [row["stage"] for row in line["rows"] if row["kind"] == "hit"] == ["total"] * 2
    assert line["verdict"]["findings"] == [{"rule": "idle", "stage": "", "in_flight": 1}]
    assert "verdict" not in written(path.report())[0]


def test_a_single_one_tells_its_kind_and_all_of_its_fields() -> None:
    interference = [path.interference("irq_off", 5)]
    ones = [path.operation(interference=interference), path.operation(path.HIT), path.request()]
    for one, line in zip(ones, written(*ones)):
        assert line.pop("kind") == one.group.kind.name
        assert {name: line.pop(name) for name in one.fields} == one.fields
        assert line.pop("stages") == {f"{name}_ns": value for name, value in one.stages.items()}
        assert line == {"ts_ns": one.end_ns, **one.group.fields, "total_ns": one.total_ns}


def test_what_is_in_flight_is_one_line() -> None:
    (line,) = written([path.waiting(), path.waiting(5, path.REQUEST)])
    assert (line["kind"], line["ts_ns"], len(line["found"])) == ("in_flight", NOON, 2)
    assert [one["kind"] for one in line["found"]] == ["operation", "request"]
    assert [one["age_ns"] for one in line["found"]] == [12 * SECOND, 5]
    assert line["found"][0]["path"] == path.operation().fields["path"]


def test_percentiles_are_those_of_the_distribution() -> None:
    stages = cell([number * 1000 for number in range(2000)], [0] * 2000)
    (line,) = written(report({SDA_READ: stages}))
    for key, percent in {"p50_ns": 50, "p90_ns": 90, "p99_ns": 99, "p999_ns": 99.9}.items():
        assert line["rows"][0][key] == stages["queue"].percentile(percent)


counts = st.dictionaries(st.sampled_from(CAUSES), st.integers(0, 50))
figures = st.lists(st.tuples(st.integers(0, 1 << 50), st.integers(0, 1 << 50)), max_size=8)


def books() -> st.SearchStrategy[Book]:
    return st.builds(Book.read, st.integers(0, 1 << 40), st.integers(0, 1 << 40), counts, counts)


def numbers(value: Any, key: str = "") -> list[tuple[str, Any]]:
    """Return all numbers of a line with their keys."""
    if isinstance(value, dict):
        return [found for name, item in value.items() for found in numbers(item, name)]
    if isinstance(value, list):
        return [found for item in value for found in numbers(item, key)]
    return [(key, value)] if isinstance(value, (int, float)) else []


@given(now=books(), pairs=figures, dev=st.text(), duration=st.integers(0, 1 << 60))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_report_obeys_the_law_and_is_whole_numbers(
    now: Book, pairs: list[tuple[int, int]], dev: str, duration: int
) -> None:
    cells = {group(dev): cell([a for a, _ in pairs], [b for _, b in pairs])}
    (line,) = written(report(cells, accounting=now, duration_ns=duration))
    requests = line["requests"]
    assert requests["started"] == requests["finished"] + requests["in_flight"] + requests["lost"]
    assert requests["in_flight"] >= 0
    for key, value in numbers(line):
        if key == "share":
            assert 0 <= value <= 1
        else:
            assert type(value) is int, key
    for key in (key for row in line["rows"] for key in row):
        assert key.endswith("_ns") or key in {"kind", "dev", "op", "stage", "count", "share"}


def test_a_cause_that_is_lost_and_noted_keeps_both() -> None:
    cause = CAUSES[0]
    both = Book.read(9, 1, {cause: 3}, {cause: 2})
    (line,) = written(report({}, accounting=both))
    assert line["loss"] == {cause.name: 5}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_come_through(name: str) -> None:
    lines = written(start(dev=[name], notes=[name]), request(dev=name), report({group(name): cell([1], [2])}))
    # Invalid UTF-8 is escaped, because parsers may refuse the surrogates that Python has for it.
    reported = r"\xff\x80" if name == "\udcff\udc80" else name
    assert lines[0]["filters"]["dev"] == lines[0]["notes"] == [reported]
    assert lines[1]["dev"] == lines[2]["rows"][0]["dev"] == reported


class Unbuffered(io.StringIO):
    """A stream that knows how many characters have reached the reader of the pipe."""

    arrived = 0

    def flush(self) -> None:
        self.arrived = self.tell()


def test_every_line_leaves_at_once_but_requests_in_batches() -> None:
    stream = Unbuffered()
    output = NdjsonOutput(stream, PLAIN)

    def batch() -> None:
        before = stream.arrived
        for _ in range(3):
            output.event(request())
        assert stream.arrived == before
        output.flush()

    every: list[Callable[[], None]] = [
        lambda: output.start(start()),
        batch,
        lambda: output.interval(report({})),
        lambda: output.in_flight([path.waiting()], NOON),
        lambda: output.summary(report({}, accounting=book())),
    ]
    for send in every:
        before = stream.arrived
        send()
        assert stream.arrived == stream.tell() > before


def test_names_without_end_take_no_more_memory() -> None:
    """Threads come and go all day."""

    class Null(io.StringIO):
        def write(self, text: str) -> int:
            return len(text)

    output = NdjsonOutput(Null(), PLAIN)

    def hour(first: int) -> int:
        for number in range(first, first + 3000):
            output.event(request(dev=f"disk{number}"))
        gc.collect()
        return memory.now

    with traced() as memory:
        before = hour(0)
        assert hour(3000) - before < 64 << 10
