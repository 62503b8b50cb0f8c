# SPDX-License-Identifier: Apache-2.0
"""Text for Prometheus, parsed by its own Python client; figures are computed from the values."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as classic

from tests.unit.outputs.samples import HOSTILE, KIND, NOON, OVERHEAD, cell, distribution, group, request, sized
from wptrace.analysis.load import BUSY_MS, LOAD, READS, STAMPED
from wptrace.flows.cpu import KINDS as TURNS
from wptrace.flows.io import kinds
from wptrace.flows.io.parts.owners import KINDS as OWNED
from wptrace.flows.size import REQUEST as SIZES
from wptrace.model.book import RING_FULL, STATE_FULL, Book
from wptrace.model.distribution import Distribution
from wptrace.model.kind import DEVICE, NUMBER, OTHERS, REQUESTS, CounterField, Kind, Label, Noun, Task
from wptrace.model.report import Snapshot
from wptrace.model.tally import Tally
from wptrace.outputs.metrics import Owners, Process, Source, label
from wptrace.outputs.prometheus import Metrics

PROCESS = Process(1.5, 30 << 20, 1_700_000_000.5, bpf_is_timed=True)
Key = tuple[str, frozenset[tuple[str, str]]]


def snapshot(cells: Mapping[Any, Mapping[str, Distribution]], counters: Mapping[Any, Any] | None = None) -> Snapshot:
    books = {REQUESTS: Book.read(20, 12, {STATE_FULL: 3}, {RING_FULL: 2}, 1)}
    return Snapshot(NOON, books, {group: dict(found) for group, found in cells.items()}, counters or {}, OVERHEAD)


def source(*of: Kind, name: str = "io", missing: Mapping[str, str] | None = None) -> Source:
    return Source(name, "path", of, missing or {})


def samples(families: Iterable[Any]) -> dict[Key, float]:
    """Return the samples; no sample is there twice."""
    found: dict[Key, float] = {}
    for family in families:
        for one in family.samples:
            key = one.name, frozenset(one.labels.items())
            assert key not in found
            found[key] = one.value
    return found


def of(metrics: Metrics, *snapshots: Snapshot) -> dict[Key, float]:
    """Return the samples, which are the same in both forms."""
    found = samples(classic(metrics.text(snapshots, PROCESS)))
    assert samples(openmetrics(metrics.text(snapshots, PROCESS, openmetrics=True))) == found
    return found


def key(name: str, **labels: str) -> Key:
    return name, frozenset(labels.items())


def by(label: str, name: str, found: Mapping[Key, float]) -> dict[str, float]:
    """Return the samples of one name by the values of a label."""
    return {dict(labels)[label]: count for (of, labels), count in found.items() if of == name}


READ = {"device": "sda", "operation": "read", "kind": "request"}


def test_a_histogram_has_the_values_below_each_power_of_two() -> None:
    rng = random.Random(7)  # noqa: S311
    values = [int(rng.lognormvariate(12, 4)) for _ in range(2000)]
    values += [0, 1023, 1024, 1025, (1 << 36) - 1, 1 << 36, 1 << 50]
    found = of(Metrics([source(KIND)]), snapshot({group("sda"): {"total": distribution(values)}}))
    for at in range(10, 37):
        edge = key("wptrace_io_duration_seconds_bucket", **READ, le=repr((1 << at) / 1e9))
        assert found[edge] == sum(value < 1 << at for value in values)
    assert found[key("wptrace_io_duration_seconds_bucket", **READ, le="+Inf")] == len(values)
    assert found[key("wptrace_io_duration_seconds_count", **READ)] == len(values)
    assert found[key("wptrace_io_duration_seconds_sum", **READ)] == pytest.approx(sum(values) / 1e9)
    assert sum(name.endswith("_bucket") for name, _ in found) == 28


def test_where_each_value_is_known_an_edge_has_its_own() -> None:
    """A request of 4 KiB is in the bucket of 4 KiB, because most requests have such a size."""
    cells = {SIZES.group("sda", "read"): {"total": Tally({512: 1, 4096: 5, 4608: 2, 1 << 30: 1})}}
    found = of(Metrics([source(SIZES, name="size")]), snapshot(cells, sized({SIZES.group("sda", "read"): 999})))
    counts = by("le", "wptrace_size_value_bytes_bucket", found)
    assert (counts["512.0"], counts["2048.0"], counts["4096.0"], counts["8192.0"]) == (1, 1, 6, 8)
    assert (counts["33554432.0"], counts["+Inf"]) == (8, 9)
    assert found[key("wptrace_size_bytes_total", **READ)] == 999


def test_stages_are_sums_and_counts_and_histograms_if_somebody_asks() -> None:
    cells = {group("sda"): cell([1000, 3000], [5000, 7000])}
    found = of(Metrics([source(KIND)]), snapshot(cells))
    assert found[key("wptrace_io_stage_seconds_sum", **READ, stage="queue")] == pytest.approx(4e-6)
    assert found[key("wptrace_io_stage_seconds_count", **READ, stage="device")] == 2
    assert not [name for name, labels in found if "stage_seconds_bucket" in name]
    more = of(Metrics([source(KIND)], stage_histograms=True), snapshot(cells))
    assert more[key("wptrace_io_stage_seconds_bucket", **READ, stage="queue", le="2.048e-06")] == 1
    assert more[key("wptrace_io_stage_seconds_sum", **READ, stage="queue")] == pytest.approx(4e-6)


def test_counters_books_and_losses() -> None:
    counters = {kinds.REQUEST.group("sda", "read"): {"bytes": 4096, "merged": 3, "requeues": 0}}
    found = of(Metrics([source(kinds.REQUEST)]), snapshot({}, counters))
    assert found[key("wptrace_io_bytes_total", **READ)] == 4096
    assert found[key("wptrace_io_merged_total", **READ)] == 3
    assert not [name for name, _ in found if "requeues" in name]
    wanted = {"finished_total": 12, "failed_total": 1, "lost_total": 3, "in_flight": 5}
    assert {name: found[key(f"wptrace_io_{name}", book="requests")] for name in wanted} == wanted
    assert found[key("wptrace_loss_total", flow="io", book="requests", cause="state_full")] == 3
    assert found[key("wptrace_loss_total", flow="io", book="requests", cause="ring_full")] == 2


def test_the_load_of_a_device_leaves_out_what_is_before_its_requests() -> None:
    loads = {LOAD.group("sda"): {READS: 5, STAMPED: 5, BUSY_MS: 1500}, LOAD.group("sdb"): {READS: 5}}
    cells = {
        kinds.REQUEST.group("sda", op): {"throttle": distribution([10**9]), "total": distribution([3 * 10**9])}
        for op in ("read", "write")
    }
    found = of(Metrics([source(kinds.REQUEST)]), snapshot(cells, loads))
    assert found[key("wptrace_io_busy_seconds_total", device="sda")] == 1.5
    assert found[key("wptrace_io_load_seconds_total", device="sda")] == 4
    assert key("wptrace_io_busy_seconds_total", device="sdb") not in found


def test_the_tracing_itself() -> None:
    missing = {"bio split in two": 'there is "no" tracepoint\n'}
    found = of(Metrics([source(KIND, missing=missing)]), snapshot({}))
    assert found[key("wptrace_degraded", flow="io")] == 1
    assert found[key("wptrace_hook_missing", flow="io", hook="bio split in two", why=missing["bio split in two"])] == 1
    assert found[key("wptrace_reader_cpu_seconds_total")] == 1.5
    assert found[key("wptrace_bpf_run_seconds_total", flow="io")] == pytest.approx(OVERHEAD.bpf_ns / 1e9)
    assert found[key("wptrace_start_time_seconds")] == 1_700_000_000.5
    untimed = samples(classic(Metrics([source(KIND)]).text([snapshot({})], PROCESS._replace(bpf_is_timed=False))))
    assert not [name for name, _ in untimed if "bpf" in name]


def test_owners_tasks_and_paths_are_no_labels() -> None:
    """Their rows are added up, or there are rows without them."""
    (turn, _), (owned, _, _) = TURNS["process"], OWNED["process"]
    cells = {turn.group(Task("fio", pid)): {"total": distribution([1000] * pid)} for pid in (1, 2, 3)}
    cells[owned.group("sda", "read", Task("fio", 1))] = {"total": distribution([1000])}
    found = of(Metrics([source(turn, owned, name="cpu")]), snapshot(cells))
    assert found[key("wptrace_cpu_duration_seconds_count", kind="request")] == 6
    assert not [labels for _, labels in found if "fio" in str(labels)]


def test_cpus_are_numbers_as_those_of_others() -> None:
    (turn, _) = TURNS["cpu"]
    found = of(Metrics([source(turn, name="cpu")]), snapshot({turn.group(3): {"total": distribution([5])}}))
    assert found[key("wptrace_cpu_duration_seconds_count", cpu="3", kind="request")] == 1


def test_labels_of_a_definition_may_have_any_names() -> None:
    labels = [Label(name, NUMBER) for name in ("kind", "le", "a-b", "a_b", "0x", "__state")] + [Label("disk", DEVICE)]
    kind = Kind("object", Noun("object"), [*labels, Label("device", NUMBER)], nested=True)
    found = of(Metrics([source(kind, name="x")]), snapshot({kind.group(*range(8)): {"total": distribution([5])}}))
    own = {"label_kind": "0", "label_le": "1", "a_b": "2", "label_a_b": "3", "label_0x": "4", "label___state": "5"}
    named = {"kind": "object", "device": "6", "label_device": "7", **own}
    assert found[key("wptrace_x_duration_seconds_count", **named)] == 1


@pytest.mark.parametrize("outcome", ["failed", "lost", "finished", "in-flight"])
def test_outcomes_of_a_definition_are_not_those_of_its_book(outcome: str) -> None:
    kind = Kind("object", Noun("object"), (), nested=True, counters=[CounterField(outcome, "of those")])
    found = of(Metrics([source(kind, name="mine")]), snapshot({}, {kind.group(): {outcome: 7}}))
    name = outcome.replace("-", "_")
    assert found[key(f"wptrace_mine_outcome_{name}_total", kind="object")] == 7
    assert [labels for metric, labels in found if metric.startswith(f"wptrace_mine_{name}")] == [
        frozenset({("book", "requests")})
    ]


@pytest.mark.parametrize("name", [*HOSTILE, 'a"b\\c\\n', "x" * 5000])
def test_names_may_have_anything_in_them(name: str) -> None:
    made = Metrics([source(KIND)]).text([snapshot({group(name): cell([1], [1])})], PROCESS)
    text = made.encode(errors="replace").decode()
    found = samples(classic(text))
    (device,) = {dict(labels)["device"] for _, labels in found if "device" in dict(labels)}
    assert device == label("device", name)[1].encode(errors="replace").decode()


def test_long_names_that_begin_alike_are_two_series() -> None:
    """A pod may have a name of 253 characters, and who makes it chooses it."""
    names = [f"{'x' * 200}{end}" for end in ("1", "2", "\ud800")]
    cells = {group(name): {"total": distribution([1000] * count)} for count, name in enumerate(names, 1)}
    found = of(Metrics([source(KIND)]), snapshot(cells))
    counts = by("device", "wptrace_io_duration_seconds_count", found)
    assert sorted(counts.values()) == [1, 2, 3]
    assert {len(name) for name in counts} == {128}


def test_names_of_other_bytes_are_other_series() -> None:
    """Labels of a definition may be names of threads, which may be any bytes."""
    kind = Kind("object", Noun("object"), [Label("task", "text")], nested=True)
    cells = {kind.group(name): {"total": distribution([1000])} for name in ("\udcff", "\udcfe", "\udcffx")}
    made = Metrics([source(kind)]).text([snapshot(cells)], PROCESS)
    found = samples(classic(made.encode(errors="replace").decode()))
    assert sorted(by("task", "wptrace_io_duration_seconds_count", found)) == [r"\xfe", r"\xff", r"\xffx"]


def test_there_is_an_end_to_the_number_of_series_and_none_is_lost() -> None:
    metrics = Metrics([source(KIND)])
    cells = {group(f"nbd{number}"): {"total": distribution([1000])} for number in range(20_000)}
    made = metrics.text([snapshot(cells)], PROCESS)
    assert made.count("_duration_seconds_count{") == 5001
    assert 'wptrace_io_duration_seconds_count{device="others",operation="others",kind="request"} 15000\n' in made
    # Groups that already have a series keep it.
    later = {group("new"): {"total": distribution([1])}, **cells}
    assert 'device="nbd7"' in (more := metrics.text([snapshot(later)], PROCESS))
    assert 'device="new"' not in more


def test_events_are_exemplars_of_their_buckets_where_the_form_has_them() -> None:
    metrics = Metrics([source(KIND)])
    event = request(queue=1_000_000, device=3_000_000)
    event = event._replace(fields={**event.fields, "comm": "a" * 100, "pid": 12})
    metrics.event(0, event)
    metrics.event(0, event._replace(total_ns=1 << 40))
    cells = {event.group: cell([1_000_000, 1 << 39], [3_000_000, 1 << 39])}
    found = {
        one.labels["le"]: one.exemplar
        for family in openmetrics(metrics.text([snapshot(cells)], PROCESS, openmetrics=True))
        for one in family.samples
        if one.exemplar
    }
    assert set(found) == {repr((1 << 22) / 1e9), "+Inf"}
    exemplar = found[repr((1 << 22) / 1e9)]
    assert exemplar.labels == {"comm": "a" * 32, "pid": "12", "sector": "123456"}
    assert (exemplar.value, float(exemplar.timestamp)) == (0.004, 1_700_000_000)
    samples(classic(metrics.text([snapshot(cells)], PROCESS)))


def test_two_flows_have_families_of_their_own() -> None:
    metrics = Metrics([source(KIND), source(SIZES, name="size-2")])
    found = of(metrics, snapshot({group("sda"): cell([1], [1])}), snapshot({}))
    assert found[key("wptrace_size_2_finished_total", book="requests")] == 12
    assert found[key("wptrace_flow_info", flow="size-2", level="path")] == 1


@pytest.mark.parametrize("labels", [("namespace",), ("namespace", "pod")])
def test_an_owner_called_others_is_one_of_them(labels: tuple[str, ...]) -> None:
    """Two samples of one series would be there, of which Prometheus drops one."""
    operation = OWNED["cgroup"][0]
    cells = {
        operation.group("sda", "read", owner): {"total": distribution([10**9] * count)}
        for count, owner in enumerate(("a", "others named", OTHERS), 1)
    }
    metrics = Metrics([source(operation)])
    metrics.own(Owners(labels, lambda owner: (owner.partition(" ")[0],) * len(labels), 9))
    for _ in range(2):
        found = of(metrics, snapshot(cells))
    assert by("namespace", "wptrace_io_owner_duration_seconds_count", found) == {"a": 1, "others": 5}


def test_owners_are_labels_by_choice() -> None:
    operation, _, of_request = OWNED["cgroup"]
    cells = {
        operation.group("sda", "read", '/a"b'): {"total": distribution([1_000_000_000, 2_000_000_000])},
        operation.group("sda", "read", "/c"): {"total": distribution([500_000_000])},
        of_request.group("sda", "read", '/a"b'): {
            "total": distribution([1_500_000_000]),
            "under_way": distribution([250_000_000]),
        },
    }
    current = snapshot(cells, {operation.group("sda", "read", '/a"b'): {"bytes": 8192}})
    metrics = Metrics([source(operation, of_request)])
    assert not any("owner" in name for name, _ in of(metrics, current))
    volumes = [("sda", "pvc-1", "ns", "/a"), ("sda", 'a"b', "ns", "/c")]
    metrics.own(Owners(("namespace", "pod"), lambda owner: ("ns", str(owner)), 1, lambda: volumes))
    for _ in range(2):
        found = of(metrics, current)
        one = {"device": "sda", "operation": "read", "kind": "operation", "namespace": "ns", "pod": '/a"b'}
        assert found[key("wptrace_io_owner_duration_seconds_sum", **one)] == 3
        assert found[key("wptrace_io_owner_duration_seconds_count", **one)] == 2
        assert found[key("wptrace_io_owner_bytes_total", **one)] == 8192
        assert found[key("wptrace_io_owner_under_way_seconds_total", **{**one, "kind": "request"})] == 0.25
        others = {**one, "namespace": "others", "pod": "others"}
        assert found[key("wptrace_io_owner_duration_seconds_sum", **others)] == 0.5
        for device, volume, namespace, pod in volumes:
            whose = {"namespace": namespace, "pod": pod}
            assert found[key("wptrace_volume_info", device=device, volume=volume, **whose)] == 1
    # More owners by the same labels: their series continue.
    metrics.own(Owners(("namespace", "pod"), lambda owner: ("ns", str(owner)), 5, lambda: volumes))
    assert of(metrics, current) == found
    metrics.stage_histograms = True
    assert of(metrics, current)[key("wptrace_io_owner_duration_seconds_bucket", **one, le="+Inf")] == 2
    metrics.own(None)
    assert not any("owner" in name for name, _ in of(metrics, current))
