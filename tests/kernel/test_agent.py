# SPDX-License-Identifier: Apache-2.0
"""`wptrace agent` on a real kernel: it counts what fio counts, and ends with a summary."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tarfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.collector import Collector, collecting, nobody, points, silent
from tests.kernel import fuse
from tests.kernel.disks import Disk, fio, fio_jobs, loop_device, loop_on, total
from tests.kernel.loads import mounted
from tests.kernel.test_capture import replayed
from tests.kernel.test_fuse import served
from tests.kernel.trace import PATIENCE, ROOT, BlockTrace, commands, count, metrics, unskipped, wait_until, wptrace
from tests.lab import peers
from tests.peers.pcp import pcp
from tests.peers.victoria import victoria
from tests.thorough import only_all
from tests.unit.docs.pages import blocks, section

CONFIG = """
[agent]
budget = "100%"
[always.io]
level = "block"
dev = "{dev}"
"""


class Agent:
    """A running agent that has reported that it is ready."""

    def __init__(self, folder: Path, text: str, output: str = "agent.out") -> None:
        commands.append("agent")
        self._file = folder / "agent.toml"
        self._file.write_text(text)
        self._systemd = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._systemd.bind(str(folder / "notify"))
        self._systemd.settimeout(PATIENCE)
        command = [
            "env",
            f"NOTIFY_SOCKET={folder / 'notify'}",
            sys.executable,
            "-m",
            "wptrace",
            "agent",
            "-c",
            str(self._file),
        ]
        # Into a file: a pipe that nobody reads would hold the agent up once it is full of stories.
        self._output = folder / output
        with self._output.open("w") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        try:
            self.ready = self._systemd.recv(4096).decode()
        except TimeoutError:
            self.kill()
            raise

    def reload(self, text: str) -> str:
        """Reload the configuration and return the status afterwards."""
        self._file.write_text(text)
        self.process.send_signal(signal.SIGHUP)
        while True:
            heard = self._systemd.recv(4096).decode()
            if heard.startswith("RELOADING=1"):
                assert re.fullmatch(r"RELOADING=1\nMONOTONIC_USEC=\d+", heard)
                ready = self._systemd.recv(4096).decode()
                assert ready.startswith("READY=1\nSTATUS=")
                return ready.partition("STATUS=")[2]

    def stop(self) -> tuple[str, str]:
        """Stop the agent and return its standard output and standard error."""
        self.process.send_signal(signal.SIGTERM)
        _, said = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0, said
        return self._output.read_text(), said

    def kill(self) -> None:
        self._systemd.close()
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


@contextmanager
def running(folder: Path, text: str, output: str = "agent.out") -> Iterator[Agent]:
    agent = Agent(folder, text, output)
    try:
        yield agent
    finally:
        agent.kill()


@pytest.mark.one_kernel
def test_it_traces_what_the_file_says_until_it_is_ended(disk: Disk, tmp_path: Path) -> None:
    """Two flows run at once. Each counts all requests of its device and none of other devices."""
    text = f'{CONFIG.format(dev=disk.name)}\n[always.size]\ndev = ["{disk.name}"]\n'
    with running(tmp_path, text) as agent:
        made = total(fio(disk.path, rw="randread", number_ios=200))
        written, said = agent.stop()
    assert agent.ready.startswith("READY=1\nSTATUS=tracing io (level block), size")
    assert "wptrace: tracing io (level block), size\n" in said
    of_io, of_size = re.split(r"^Summary of ", written, flags=re.M)[1:]
    for summary in (of_io, of_size):
        (finished,) = re.findall(r"  (\d+) requests in ", summary)
        assert int(finished) == made
    assert re.search(rf"^  4 KiB +{made} +100", of_size, re.M)


@pytest.mark.one_kernel
def test_it_goes_on_if_nobody_takes_its_output(disk: Disk, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with running(tmp_path, CONFIG.format(dev=disk.name), "pipe") as agent:
        os.close(reader)
        for _ in range(3):
            agent.process.send_signal(signal.SIGUSR1)
            assert agent.reload(CONFIG.format(dev=disk.name)).endswith("nothing changed")


# --- Reloads ----------------------------------------------------------------------------------------------------------


def metrics_address(status: str) -> str:
    (found,) = re.findall(r"metrics at http://(\S+?)/metrics", status)
    return str(found)


def scraped(status: str, disk: Disk) -> tuple[float, dict[str, float]]:
    """Return how many reads of a disk the metrics count, and how many they say are lost, by cause."""
    text = metrics(metrics_address(status))
    lost = re.findall(r'^wptrace_loss_total\{.*cause="(\w+)"\} (.+)$', text, re.M)
    name = f'wptrace_io_duration_seconds_count{{device="{disk.name}",operation="read",kind="request"}} '
    finished = sum(float(line.removeprefix(name)) for line in text.splitlines() if line.startswith(name))
    return finished, {cause: float(count) for cause, count in lost}


def scrape(status: str, disk: Disk, made: int = 0) -> float:
    """Return how many reads of a disk the metrics count, without loss; `made` is how many fio has made."""
    finished, loss = scraped(status, disk)
    unskipped({"loss": loss, "requests": {"finished": finished}}, made, stamped=True)
    assert not loss
    return finished


@pytest.mark.one_kernel
def test_reloads_lose_nothing(disk: Disk, tmp_path: Path) -> None:
    """Reload everything that can change while a disk is read.

    In the end its totals are fio's. Those of a second disk begin with the reload that names it.
    """
    history = tmp_path / "history"
    with (
        running(tmp_path, f'{CONFIG.format(dev=disk.name)}[prometheus]\nlisten = "127.0.0.1:0"\n') as agent,
        loop_device(tmp_path / "other.img") as other,
        ThreadPoolExecutor() as pool,
    ):
        job = pool.submit(fio, disk.path, rw="randread", number_ios=3000, rate_iops=500)
        seen: list[float] = []
        status = agent.ready
        wait_until(lambda: scrape(status, disk) > 0, "the first requests")
        variants = [
            f'{CONFIG.format(dev=disk.name)}[prometheus]\nlisten = "localhost:0"\nstages = "histogram"\n',
            f'{CONFIG.format(dev=disk.name)}[prometheus]\nlisten = "localhost:0"\n'
            '[trigger.never]\nwhen = "io.read.total.p99 > 1h"\n',
            f'{CONFIG.format(dev=disk.name)}[prometheus]\nlisten = "127.0.0.1:0"\n'
            f'[history]\ndir = "{history}"\ninterval = "1s"\n',
        ]
        while not job.done():
            status = agent.reload(variants[len(seen) % 3])
            assert "agent.toml again: " in status
            seen.append(scrape(status, disk))
            # What it says of each has to fit into its pipe, which nobody reads.
            time.sleep(0.05)
        made = total(job.result())
        assert len(seen) >= 5
        assert seen == sorted(seen)
        wrong = agent.reload("\n[always.io]\nlevel = 'blok'\n")
        assert "the configuration stays as it was: " in wrong
        assert "agent.toml: line 3, column 10: io: argument --level: invalid choice" in wrong
        of_prometheus = '[prometheus]\nlisten = "127.0.0.1:0"\n'
        of_both = CONFIG.replace('"{dev}"', json.dumps([disk.name, other.name]))
        status = agent.reload(of_both + of_prometheus)
        more = fio(other.path, rw="randread", number_ios=70)
        assert scrape(status, disk, made) == made == 3000
        assert scrape(status, other, 70) == total(more) == 70
        deeper = agent.reload(CONFIG.format(dev=disk.name).replace("block", "path") + "[always.size]\n")
        assert "a restart is needed for level of [always.io], dev of [always.io], [always.size]" in deeper
        written, said = agent.stop()
    assert f"  {made + 70:,} requests in " in written
    assert len(re.findall(r"agent\.toml again: ", said)) == len(seen) + 2


# --- Prometheus -------------------------------------------------------------------------------------------------------


@contextmanager
def prometheus(folder: Path, target: str, more: str = "") -> Iterator[Callable[..., Any]]:
    """A Prometheus that scrapes the target twice a second, as a function that queries its API."""
    address = peers.free_address()
    file = folder / "prometheus.yml"
    file.write_text(
        "global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}\n"
        f"scrape_configs: [{{job_name: wptrace, static_configs: [{{targets: ['{target}']}}]}}]\n"
        f"{more}"
    )
    words = [f"--config.file={file}", f"--storage.tsdb.path={folder / 'tsdb'}", f"--web.listen-address={address}"]
    command = peers.command(
        "prometheus", *words, "--enable-feature=exemplar-storage", "--log.level=warn", recipe=peers.PROMETHEUS
    )
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder)

    def ask(path: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"http://{address}/api/v1/{path}?{query}", timeout=PATIENCE) as answer:
            return json.load(answer)["data"]

    try:
        yield ask
    finally:
        # As in a crash.
        process.kill()
        process.wait(PATIENCE)


def value(ask: Callable[..., Any], query: str) -> float:
    """Return the value of the only series; -1 until there is one."""
    try:
        found = ask("query", query=query)["result"]
    except OSError:
        return -1
    return float(found[0]["value"][1]) if len(found) == 1 else -1


@pytest.mark.one_kernel
def test_prometheus_has_what_fio_did(disk: Disk, tmp_path: Path) -> None:
    text = f'{CONFIG.format(dev=disk.name)}slow = "0s"\n[prometheus]\nlisten = "127.0.0.1:0"\n'
    read = f'{{device="{disk.name}",operation="read",kind="request"}}'
    with running(tmp_path, text) as agent:
        target = metrics_address(agent.ready)
        with prometheus(tmp_path, target) as ask:
            wait_until(lambda: value(ask, "wptrace_degraded") == 0, "the first scrape")
            before = busy_ms(disk)
            (job,) = fio_jobs({"filename": disk.path, "rw": "randread", "number_ios": 300})
            made, busy = total(job), busy_ms(disk) - before
            wait_until(lambda: value(ask, f"wptrace_io_duration_seconds_count{read}") >= made, "all requests")
            assert value(ask, f"wptrace_io_duration_seconds_count{read}") == made == 300
            assert value(ask, 'wptrace_io_finished_total{book="requests"}') == made
            assert value(ask, f"wptrace_io_bytes_total{read}") == job["read"]["io_bytes"]
            assert value(ask, f'wptrace_io_duration_seconds_bucket{read[:-1]},le="+Inf"}}') == made
            whole = value(ask, f"wptrace_io_duration_seconds_sum{read}")
            # One request at a time: each is part of the time that fio measures, and the kernel counts in ticks.
            assert 0 < whole <= job["read"]["clat_ns"]["mean"] * made / 1e9
            assert value(ask, f'wptrace_io_busy_seconds_total{{device="{disk.name}"}}') == pytest.approx(
                busy / 1e3, abs=0.02
            )
            assert value(ask, f'wptrace_io_load_seconds_total{{device="{disk.name}"}}') == pytest.approx(whole)
            parts = f"sum(wptrace_io_stage_seconds_sum{read})"
            assert value(ask, parts) == pytest.approx(whole)
            found = ask(
                "query_exemplars", query=f"wptrace_io_duration_seconds_bucket{read}", start="0", end="9999999999"
            )
            assert found
            assert {name for series in found for one in series["exemplars"] for name in one["labels"]} == {"sector"}
            for query in blocks(section("agent.md", "## Prometheus"), "promql")[0].splitlines():
                wait_until(lambda query=query: ask("query", query=query)["result"], query)
            assert ask("targets")["activeTargets"][0]["lastError"] == ""
        check = peers.command("promtool", "check", "metrics", recipe=peers.PROMETHEUS)
        checked = subprocess.run(check, input=metrics(target).encode(), capture_output=True)
        rules = tmp_path / "rules.yml"
        rules.write_text(blocks(section("agent.md", "## From nothing to the first alert"), "yaml")[0])
        subprocess.run(peers.command("promtool", "check", "rules", str(rules), recipe=peers.PROMETHEUS), check=True)
        config = tmp_path / "page.yml"
        config.write_text(blocks(section("agent.md", "## Prometheus"), "yaml")[0])
        subprocess.run(peers.command("promtool", "check", "config", str(config), recipe=peers.PROMETHEUS), check=True)
        assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
        written, _ = agent.stop()
    assert f"  {made} requests in " in written


@only_all
@pytest.mark.one_kernel
def test_performance_co_pilot_has_what_fio_did(disk: Disk, tmp_path: Path) -> None:
    text = f'{CONFIG.format(dev=disk.name)}[prometheus]\nlisten = "127.0.0.1:0"\n'
    read = f"device:{disk.name} kind:request operation:read"
    with running(tmp_path, text) as agent:
        target = metrics_address(agent.ready)
        with pcp(tmp_path, target) as server:
            wait_until(lambda: "flow:io" in server.values("wptrace_degraded"), "the first scrape")
            (job,) = fio_jobs({"filename": disk.path, "rw": "randread", "number_ios": 300})
            counted = "wptrace_io_duration_seconds_count"
            wait_until(lambda: server.values(counted).get(read, 0) >= 300, "all requests")
            assert server.values(counted)[read] == total(job) == 300
            assert server.values("wptrace_io_bytes_total")[read] == job["read"]["io_bytes"]
            whole = server.values("wptrace_io_duration_seconds_sum")[read]
            assert 0 < whole <= job["read"]["clat_ns"]["mean"] * 300 / 1e9
        agent.stop()


@contextmanager
def alertmanager(folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """A running Alertmanager: its address, and a function that returns its alerts."""
    address = peers.free_address()
    file = folder / "alertmanager.yml"
    file.write_text("route: {receiver: nobody}\nreceivers: [{name: nobody}]\n")
    words = [f"--config.file={file}", f"--storage.path={folder / 'alerts'}", f"--web.listen-address={address}"]
    command = peers.command("prometheus-alertmanager", *words, "--cluster.listen-address=", recipe=peers.ALERTMANAGER)
    # Its templates are in a folder that no option can set.
    share = peers.fetch(peers.ALERTMANAGER) / "usr" / "share"
    enter = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /usr/share && exec "$@"', str(share))
    process = subprocess.Popen((*enter, *command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder)

    def alerts() -> Any:
        with urllib.request.urlopen(f"http://{address}/api/v2/alerts", timeout=PATIENCE) as answer:
            return json.load(answer)

    try:
        wait_until(lambda: answers(alerts), "Alertmanager")
        yield address, alerts
    finally:
        process.terminate()
        process.wait(PATIENCE)


def answers(ask: Callable[[], Any]) -> bool:
    try:
        ask()
    except OSError:
        return False
    return True


@contextmanager
def slow_disk(folder: Path, delay_s: float) -> Iterator[Disk]:
    """A loop device on a file of a slow FUSE server."""
    with (
        served(folder / "fuse", folder / "below", 16 << 20, delay_s),
        loop_on(folder / "fuse" / os.fsdecode(fuse.NAME), "--direct-io=on") as disk,
    ):
        yield disk


@pytest.mark.one_kernel
def test_a_delay_arrives_at_alertmanager(tmp_path: Path) -> None:
    """The rules of `contrib/` raise the alert, with windows of seconds instead of minutes."""
    rules = (ROOT / "contrib" / "prometheus" / "rules.yml").read_text()
    (tmp_path / "rules.yml").write_text(re.sub(r"\[5m\]", "[20s]", re.sub(r"for: \d+m", "for: 1s", rules)))
    with slow_disk(tmp_path, 0.1) as disk, alertmanager(tmp_path) as (address, alerts):
        text = f'{CONFIG.format(dev=disk.name)}[prometheus]\nlisten = "127.0.0.1:0"\n'
        more = f"rule_files: [{tmp_path / 'rules.yml'}]\n"
        more += f"alerting: {{alertmanagers: [{{static_configs: [{{targets: ['{address}']}}]}}]}}\n"
        with running(tmp_path, text) as agent:
            target = metrics_address(agent.ready)
            with prometheus(tmp_path, target, more):

                def arrived() -> list[Any]:
                    fio(disk.path, rw="randread", number_ios=5)
                    return [one for one in alerts() if one["labels"]["alertname"] == "WptraceSlowReads"]

                wait_until(arrived, "the alert")
                (found,) = arrived()
        assert (found["labels"]["instance"], found["labels"]["device"]) == (target, disk.name)
        assert found["annotations"]["summary"].startswith(f"{target}: p99 of reads of {disk.name} is ")


# Panels that show nothing unless something is wrong.
QUIET = {"Loss", "Missing hooks"}


@pytest.mark.one_kernel
def test_each_panel_of_the_dashboard_has_data(disk: Disk, tmp_path: Path) -> None:
    """The variables of the dashboard stand for all hosts and devices."""
    dashboard = json.loads((ROOT / "contrib" / "grafana" / "hosts.json").read_text())
    text = f'{CONFIG.format(dev=disk.name).replace("block", "path")}by = "cgroup"\n'
    text += '[prometheus]\nlisten = "127.0.0.1:0"\nowners = "pod"\n'
    with running(tmp_path, text) as agent:
        target = metrics_address(agent.ready)
        with prometheus(tmp_path, target) as ask:
            wait_until(lambda: value(ask, "wptrace_degraded") >= 0, "the first scrape")

            def shows(query: str, least: float) -> bool:
                """Make requests, and tell whether a series has at least this value."""
                fio(disk.path, rw="randrw", number_ios=100)
                found = ask("query", query=query)["result"]
                return any(float(one["value"][1]) >= least for one in found)

            asked = 0
            for panel in dashboard["panels"]:
                for one in panel["targets"]:
                    query = one["expr"].replace("$host", ".*").replace("$device", ".*")
                    query = query.replace("$__rate_interval", "30s")
                    assert "$" not in query
                    least = 0 if panel["title"] in QUIET else 1e-9
                    wait_until(lambda query=query, least=least: shows(query, least), f"data of {query}")
                    # Each series has the labels of its legend; Prometheus drops empty ones.
                    named = set(re.findall(r"{{(\w+)}}", one["legendFormat"]))
                    for series in ask("query", query=query)["result"]:
                        assert named <= {*series["metric"], "namespace", "pod"}, query
                    asked += 1
            assert asked >= len(dashboard["panels"]) > 0
            for variable in dashboard["templating"]["list"]:
                if variable["type"] == "query":
                    (name, label) = re.findall(r"label_values\((.*), (\w+)\)", variable["query"]["query"])[0]
                    found = ask("query", query=name.replace("$host", ".*"))["result"]
                    assert {one["metric"][label] for one in found} == {target if label == "instance" else disk.name}
        agent.stop()


class Scraped(BlockTrace):
    says = r"wptrace: metrics at http://\S+/metrics\n"


@pytest.mark.one_kernel
def test_a_run_answers_a_scraper_beside_its_output(disk: Disk, tmp_path: Path) -> None:
    address = peers.free_address()
    with Scraped("--dev", disk.name, "--prometheus", address) as trace:
        made = total(fio(disk.path, rw="randread", number_ios=150))
        assert scrape(f"metrics at http://{address}/metrics", disk, made) == made
    assert count(trace.summary, op="read", dev=disk.name) == made == 150
    for wrong, said in (("9435", "--prometheus takes an address such as"), ("192.0.2.1:1", "cannot listen at")):
        refused = wptrace("io", "--level", "block", "--dev", disk.name, "--prometheus", wrong)
        assert said in refused.stderr
        assert refused.returncode in (1, 2)


POD = "{}f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"


@pytest.mark.one_kernel
def test_owners_are_labels_by_the_paths_of_their_cgroups(disk: Disk, tmp_path: Path, v2: Path) -> None:
    """Two of three pods have labels and fio's counts, the third is among the others.

    A pod without a log is named by its uid. The volume of the first one is on the disk.
    """
    text = f'{CONFIG.format(dev=disk.name).replace("block", "path")}by = "cgroup"\n'
    text += '[prometheus]\nlisten = "127.0.0.1:0"\nowners = "pod"\ntop = 2\n'
    made = {1: 300, 2: 200, 3: 10}
    volume = tmp_path / "pods" / POD.format(1) / "volumes" / "kubernetes.io~csi" / "pvc-1" / "mount"
    volume.parent.mkdir(parents=True)
    with mounted(disk, "ext4", volume), running(tmp_path, text) as agent:
        address = metrics_address(agent.ready)
        top = v2 / "kubepods.slice"
        try:
            for number, count in made.items():
                group = top / f"pod{POD.format(number)}" / (str(number) * 64)
                group.mkdir(parents=True)
                job = f"fio --name=x --filename={disk.path} --rw=randread --bs=4k --direct=1 --size=32M"
                words = f"echo $$ > {group}/cgroup.procs; exec {job} --number_ios={count} --output={tmp_path / 'fio'}"
                subprocess.run(["sh", "-c", words], check=True)
            scraped = metrics(address)
        finally:
            for folder in sorted(top.rglob("*/"), reverse=True):
                folder.rmdir()
            top.rmdir()
        agent.stop()
    named = {"device": disk.name, "volume": "pvc-1", "namespace": "", "pod": POD.format(1)[:13]}
    labels = ",".join(f'{name}="{value}"' for name, value in named.items())
    assert f"\nwptrace_volume_info{{{labels}}} 1\n" in scraped
    counted = dict(re.findall(r'^wptrace_io_owner_bytes_total{.*kind="operation".*pod="(.*)"} (\d+)$', scraped, re.M))
    every = {POD.format(number)[:13]: count * 4096 for number, count in made.items()}
    # The machine decides which two took the most time. One may be the host, whose journal makes no operations.
    others = int(counted.pop("others"))
    shown = set(re.findall(r'^wptrace_io_owner_.*pod="(.*?)"', scraped, re.M)) - {"others"}
    assert len(shown) == 2
    assert set(counted) == shown & set(every)
    assert {pod: every[pod] for pod in counted} == {pod: int(count) for pod, count in counted.items()}
    assert others == sum(count for pod, count in every.items() if pod not in counted)


def busy_ms(disk: Disk) -> int:
    """Return the busy time of a disk by the kernel's count."""
    return int(Path(f"/sys/block/{disk.name}/stat").read_text().split()[9])


# --- OTLP -------------------------------------------------------------------------------------------------------------


def sending(disk: Disk, endpoint: str, more: str = "") -> str:
    file = f'{CONFIG.format(dev=disk.name)}slow = "0s"\n[otlp]\nendpoint = "{endpoint}"\ninterval = "1s"\n'
    return file + more


def reads(collector: Collector, disk: Disk, name: str = "wptrace.io.duration") -> list[Any]:
    """Return the points of the reads of a disk so far."""
    labels = {"device": disk.name, "operation": "read", "kind": "request"}
    messages = [one.message for one in collector.requests if one.path == "/v1/metrics" and one.code == 200]
    return [point for found, point in points(messages, name) if found == labels]


def spans(collector: Collector) -> list[Any]:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    messages = [one.message for one in collector.requests if one.path == "/v1/traces"]
    resources = [one for message in messages for one in ExportTraceServiceRequest.FromString(message).resource_spans]
    return [span for one in resources for scope in one.scope_spans for span in scope.spans]


@pytest.mark.one_kernel
def test_a_collector_gets_what_fio_did(disk: Disk, tmp_path: Path) -> None:
    """All totals arrive, and each request as a span whose stages add up to its time."""
    with collecting() as collector, running(tmp_path, sending(disk, collector.url)) as agent:
        (job,) = fio_jobs({"filename": disk.path, "rw": "randread", "number_ios": 300})
        made = total(job)
        wait_until(lambda: any(point.count == made for point in reads(collector, disk)), "all requests")
        agent.stop()
    assert f"; sent to {collector.url}/v1/metrics and {collector.url}/v1/traces" in agent.ready
    last = reads(collector, disk)[-1]
    assert last.count == last.zero_count + sum(last.positive.bucket_counts) == made == 300
    assert (last.scale, last.positive.offset, len(last.positive.bucket_counts)) == (3, -240, 344)
    # One request at a time, each part of the time that fio measures.
    assert 0 < last.sum <= job["read"]["clat_ns"]["mean"] * made / 1e9
    assert reads(collector, disk, "wptrace.io.bytes")[-1].as_int == job["read"]["io_bytes"]
    seen = spans(collector)
    whole = {span.span_id: span for span in seen if not span.parent_span_id}
    assert len(whole) == made
    took = {key: span.end_time_unix_nano - span.start_time_unix_nano for key, span in whole.items()}
    assert sum(took.values()) / 1e9 == pytest.approx(last.sum)
    parts = dict.fromkeys(whole, 0)
    for span in seen:
        if span.parent_span_id:
            parts[span.parent_span_id] += span.end_time_unix_nano - span.start_time_unix_nano
    assert parts == took


@pytest.mark.one_kernel
def test_victoria_metrics_has_what_fio_did(disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """VictoriaMetrics itself, which takes no spans."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "disks")
    read = f'{{device="{disk.name}",operation="read",kind="request",service_name="disks"}}'
    page = '[prometheus]\nlisten = "127.0.0.1:0"\n'
    with victoria(tmp_path) as server, running(tmp_path, sending(disk, server.otlp, page)) as agent:
        # Spread over several intervals, for rates.
        (job,) = fio_jobs({"filename": disk.path, "rw": "randread", "number_ios": 300, "rate_iops": 60})
        made = total(job)
        assert scrape(agent.ready, disk, made) == made == 300
        wait_until(lambda: server.value(f"wptrace_io_duration_seconds_count{read}") >= made, "all requests")
        assert server.value(f"wptrace_io_duration_seconds_count{read}") == made
        assert server.value('wptrace_io_finished_total{book="requests"}') == made
        assert server.value(f"wptrace_io_bytes_total{read}") == job["read"]["io_bytes"]
        whole = server.value(f"wptrace_io_duration_seconds_sum{read}")
        assert 0 < whole <= job["read"]["clat_ns"]["mean"] * made / 1e9
        assert server.value(f"sum(wptrace_io_stage_seconds_sum{read})") == pytest.approx(whole)
        for query in blocks(section("agent.md", "## OTLP"), "promql")[0].splitlines():
            wait_until(lambda query=query: bool(server.ask(query)), query)
        _, said = agent.stop()
    # Nothing was refused or delayed.
    assert server.otlp not in said.replace(f"; sent to {server.otlp}/v1/metrics\n", "")


@only_all
@pytest.mark.one_kernel
def test_peers_that_crash_under_load_have_all_of_it_later(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """VictoriaMetrics and Prometheus are killed twice while fio reads; in the end both have every request."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    address = peers.free_address()
    text = sending(disk, f"http://{address}/opentelemetry", '[prometheus]\nlisten = "127.0.0.1:0"\n')
    count = f'wptrace_io_duration_seconds_count{{device="{disk.name}",operation="read",kind="request"}}'
    with running(tmp_path, text) as agent, ThreadPoolExecutor() as pool:
        target = metrics_address(agent.ready)
        load = pool.submit(fio_jobs, {"filename": disk.path, "rw": "randread", "number_ios": 600, "rate_iops": 60})
        for _ in range(2):
            with victoria(tmp_path, address) as server, prometheus(tmp_path, target) as ask:
                wait_until(lambda: server.value(count) > 0 and value(ask, count) > 0, "some requests")
        (job,) = load.result()
        made = total(job)
        assert scrape(agent.ready, disk, made) == made == 600
        with victoria(tmp_path, address) as server, prometheus(tmp_path, target) as ask:
            wait_until(lambda: server.value(count) >= made, "all requests at VictoriaMetrics")
            wait_until(lambda: value(ask, count) >= made, "all requests at Prometheus")
            assert server.value(count) == value(ask, count) == made
        agent.stop()


@pytest.mark.one_kernel
def test_a_collector_that_takes_nothing_costs_nothing_and_another_one_gets_it_all(disk: Disk, tmp_path: Path) -> None:
    """Neither a collector that is gone nor one that never answers delays the tracing; a reload leaves no gap."""
    of_prometheus = '[prometheus]\nlisten = "127.0.0.1:0"\n'
    with (
        silent() as (hangs, _),
        collecting() as collector,
        running(tmp_path, sending(disk, nobody(), of_prometheus)) as agent,
    ):
        made = total(fio(disk.path, rw="randread", number_ios=100))
        assert scrape(agent.ready, disk, made) == made

        def queued() -> bool:
            text = metrics(metrics_address(status))
            found = re.findall(r'^wptrace_otlp_queue_bytes{signal="\w+"} (\d+)$', text, re.M)
            return len(found) == 2 and all(int(one) > 0 for one in found)

        status = agent.ready
        wait_until(queued, "messages that wait")
        status = agent.reload(sending(disk, hangs, of_prometheus))
        assert "[otlp] changed" in status
        made += total(fio(disk.path, rw="randread", number_ios=50))
        assert scrape(status, disk, made) == made
        assert queued()
        agent.reload(sending(disk, collector.url, of_prometheus))
        wait_until(lambda: any(point.count == made for point in reads(collector, disk)), "all requests")
        _, said = agent.stop()
    counts = [point.count for point in reads(collector, disk)]
    # Totals that could not be sent come first.
    assert counts[0] < made
    assert counts == sorted(counts)
    assert len({point.start_time_unix_nano for point in reads(collector, disk)}) == 1
    assert len([span for span in spans(collector) if not span.parent_span_id]) == made == 150
    assert re.search(
        r"^wptrace: http://\S+/v1/metrics does not accept metrics: connection refused; they are queued$", said, re.M
    )


# --- Triggers ---------------------------------------------------------------------------------------------------------


@pytest.mark.one_kernel
def test_a_trigger_writes_down_what_happened(disk: Disk, tmp_path: Path) -> None:
    """The dump has the operations before the trigger; a trigger by hand writes another one."""
    written = tmp_path / "told"
    text = f"""
[agent]
budget = "100%"
folder = "{tmp_path}"
[always.io]
dev = "{disk.name}"
recorder = "4M"
[trigger.any]
when = "io.request.read.total.max > 1ns for 2s"
after = "1s"
command = ["{sys.executable}", "-c", "import sys; open('{written}', 'w').write(' '.join(sys.argv[1:]))"]
[trigger.never]
when = "io.write.total.p99 > 1h"
after = "0s"
[trigger.waits]
when = "pressure.io.some > 0.1%"
cooldown = "1h"
after = "1h"
"""
    with running(tmp_path, text) as agent:
        # Enough of them that waits of the whole machine are noticed.
        job = {"filename": disk.path, "rw": "randread", "rate_iops": 500, "number_ios": 2000}
        made = total(fio_jobs(job)[0])
        wait_until(lambda: written.exists() and written.read_text(), "the command")
        dump = Path(written.read_text())
        assert [path.name for path in tmp_path.glob("*.html")] == [dump.with_suffix(".html").name]
        asked = wptrace("dump", str(agent.process.pid))
        assert (
            asked.stdout
            == f"process {agent.process.pid} writes its recorder to a file in the folder of its configuration\n"
        )
        wait_until(lambda: len(list(tmp_path.glob("*.wpt"))) == 2, "the dump by hand")
        wrong = wptrace("agent", "--trigger", "nver", "--pid", str(agent.process.pid))
        assert (wrong.returncode, wrong.stderr) == (
            1,
            "wptrace: there is no trigger nver; did you mean never?; there is any, never, waits, hand\n",
        )
        pulled = wptrace("agent", "--trigger", "never", "--pid", str(agent.process.pid))
        assert pulled.stdout == "trigger never has fired\n"
        wait_until(lambda: len(list(tmp_path.glob("*.wpt"))) == 3, "the dump of a trigger by hand")
        _, said = agent.stop()
    found = re.findall(r"^wptrace: trigger .*$", said, re.M)
    (waits,) = [one for one in found if "trigger waits" in one]
    # The kernel woke the agent, so it did not look once a second.
    assert "once a second" not in waits
    assert re.match(r"wptrace: trigger waits: pressure.io.some > 0.1%, it is [0-9.]+%; verdict: ", waits)
    line, by_hand = [one for one in found if one is not waits]
    assert by_hand.startswith("wptrace: trigger never: by hand; verdict: ")
    assert line.startswith(f"wptrace: trigger any: io.request.read.total.max > 1ns for 2s on {disk.name}, it is ")
    assert "; verdict: " in line
    seen = [line for line in replayed(dump, "--slow", "0s") if line["kind"] == "operation"]
    # The operations of the last seconds, but not of the whole run.
    assert 100 <= len(seen) < made
    last = replayed(sorted(tmp_path.glob("*.wpt"))[2], "--slow", "0s")
    assert sum(line["kind"] == "operation" for line in last) == made


# --- History ----------------------------------------------------------------------------------------------------------


def wait_for_intervals(history: Path, wanted: int) -> None:
    """Wait until the file has grown by this many intervals."""
    sizes: set[int] = set()

    def grown() -> bool:
        sizes.add(sum(file.stat().st_size for file in history.glob("io/*.wpt")))
        return len(sizes) > wanted + 1

    wait_until(grown, "intervals")


@pytest.mark.one_kernel
def test_a_history_survives_a_kill(disk: Disk, tmp_path: Path) -> None:
    """A killed agent loses at most its last second, and the next one goes on in the same folder."""
    history = tmp_path / "history"
    text = f'{CONFIG.format(dev=disk.name)}[history]\ndir = "{history}"\ninterval = "1s"\n'
    for end in ("kill", "stop"):
        (tmp_path / end).mkdir()
        with running(tmp_path / end, text) as agent:
            assert total(fio(disk.path, rw="randread", number_ios=200)) == 200
            if end == "kill":
                wait_for_intervals(history, 2)
                agent.kill()
            else:
                agent.stop()
    lines = replayed(history / "io")
    assert lines[-1]["kind"] == "summary"
    assert lines[-1]["requests"]["finished"] == count(lines[-1], op="read", dev=disk.name) == 400
    assert any("2 traces" in note for note in lines[0]["notes"])
    compared = wptrace("diff", str(history / "io"), "--against=0s-1h", "--at=0s-1h").stdout
    assert "read: 400 -> 400 requests" in compared
    # A support bundle has the newest file.
    bundle = tmp_path / "bundle.tar.gz"
    wptrace("support", "-c", str(tmp_path / "stop" / "agent.toml"), "-o", str(bundle))
    with tarfile.open(bundle) as archive:
        file = archive.extractfile("bundle/history-io.json")
        assert file is not None
        last = json.loads(file.read().splitlines()[-1])
    assert last["requests"]["finished"] == count(last, op="read", dev=disk.name) in (200, 400)


@pytest.mark.one_kernel
def test_a_file_system_that_does_not_answer_holds_up_only_its_files(disk: Disk, tmp_path: Path) -> None:
    """A frozen one lets whoever writes wait, and nothing ends the wait before it is thawed."""
    with loop_device(tmp_path / "image") as other, mounted(other, "ext4", tmp_path / "files") as files:
        text = f"""
[agent]
budget = "100%"
folder = "{files}"
[always.io]
level = "block"
dev = "{disk.name}"
recorder = "4M"
[prometheus]
listen = "127.0.0.1:0"
[history]
dir = "{files}/history"
interval = "1s"
[trigger.never]
when = "io.read.total.p99 > 1h"
"""
        # Its other files are elsewhere.
        with running(tmp_path, text) as agent:
            target = metrics_address(agent.ready)

            def waits() -> list[float]:
                return [
                    float(found) for found in re.findall(r"^wptrace_disk_wait_seconds.* (.*)$", metrics(target), re.M)
                ]

            assert total(fio(disk.path, rw="randread", number_ios=100)) == 100
            wait_for_intervals(files / "history", 2)
            assert waits() == [0, 0]
            subprocess.run(["fsfreeze", "--freeze", str(files)], check=True)
            try:
                asked = wptrace("agent", "--trigger", "hand", "--pid", str(agent.process.pid))
                said = f"wptrace: the disk of {files} does not answer: the log will say when it is written\n"
                assert (asked.returncode, asked.stderr) == (1, said)
                wait_until(lambda: all(waits()), "both kinds of files")
                assert total(fio(disk.path, rw="randread", number_ios=100)) == 100
                read = f'{{device="{disk.name}",operation="read",kind="request"}}'
                assert f"wptrace_io_duration_seconds_count{read} 200\n" in metrics(target)
                # It is not waited for a second time.
                again = wptrace("agent", "--trigger", "hand", "--pid", str(agent.process.pid))
                assert again.stderr == "wptrace: nothing is written: another dump is being written\n"
            finally:
                subprocess.run(["fsfreeze", "--unfreeze", str(files)], check=True)
            wait_until(lambda: waits() == [0, 0], "the files")
            agent.stop()
        lines = replayed(files / "history" / "io")
        assert lines[-1]["requests"]["finished"] == 200
        (dump,) = files.glob("*.wpt")
        assert replayed(dump)[-1]["requests"]["finished"] == 100
