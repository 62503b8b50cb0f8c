# SPDX-License-Identifier: Apache-2.0
"""A guest of the lab traces itself while this kernel traces its QEMU; then both traces are joined.

One of these tests is in `make test`, the others are in `make test-all`.
"""

from __future__ import annotations

import json
import os
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.kernel import inside
from tests.kernel.disks import loop_device
from tests.kernel.loads import HOG, hog, mounted
from tests.kernel.patience import joined
from tests.kernel.test_golden import keeps
from tests.kernel.trace import IN_LAB, CpuTrace, HostTrace, Line, Trace, check, wait_until, wptrace
from tests.lab import guest as lab
from tests.lab import matrix, peers, qemu
from tests.thorough import only_all
from wptrace.flows.io.parts import kicks
from wptrace.kernel import guests

pytestmark = [
    pytest.mark.one_kernel,
    pytest.mark.skipif(IN_LAB, reason="it boots guests, for which an emulated machine is too slow"),
]

COUNT, SLOWED, FEW = 1000, 60, 200
BURST_NS = 8_000_000
# The parts that a kick shows of the hypervisor, before and after its own operation.
AROUND = ("host_pickup_ns", "host_prepare_ns", "host_give_back_ns")
# Reads of the slow disk that fit into a second; writes as well.
RATE = 20


class LiveTrace(Trace):
    """A live join, whose first line comes with the first joined requests."""

    command = "join"

    def wait_for(self, text: str, what: str = "", often: int = 1) -> None:
        if what != "the first line":
            super().wait_for(text, what, often)


class Seen(NamedTuple):
    """Results of both sides and of the join, and bounds of the clocks' offset that the files gave."""

    guest: list[Line]
    host: list[Line]
    both: list[Line]
    least: int
    most: int

    @property
    def summary(self) -> Line:
        return self.both[-1]

    def of(self, dev: str) -> list[Line]:
        return [line for line in self.both if line["kind"] == "joined" and line["dev"] == dev]


@contextmanager
def limited(pid: int, device: Path) -> Iterator[None]:
    """Limit the process to this many reads and writes of the device a second."""
    number = device.stat().st_rdev
    name = f"wptest-{os.getpid()}"
    old = Path("/sys/fs/cgroup/blkio")
    if old.is_dir():
        group = old / name
        limits = {f"blkio.throttle.{way}_iops_device": f"{RATE}" for way in ("read", "write")}
    else:
        group = Path("/sys/fs/cgroup", name)
        limits = {"io.max": f"riops={RATE} wiops={RATE}"}
    group.mkdir()
    try:
        for file, limit in limits.items():
            (group / file).write_text(f"{os.major(number)}:{os.minor(number)} {limit}")
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text(), "the end of QEMU")
        group.rmdir()


def qemu_of(image: Path) -> int:
    """Return the pid of the QEMU that has this image."""
    found = [pid for pid in guests.find() if any(one.path == str(image) for one in guests.read(pid).images)]
    return found[0] if len(found) == 1 else 0


def is_connected(socket: Path) -> bool:
    """Tell whether the socket has a connection."""
    every = (line.split() for line in Path("/proc/net/unix").read_text().splitlines())
    return any(line[5] == "03" and line[-1] == str(socket.absolute()) for line in every)


class Running:
    """A guest whose command reports when it is ready, and starts its load on request."""

    def __init__(
        self,
        folder: Path,
        kernel: str,
        images: Mapping[str, qemu.Image],
        loads: Mapping[str, int | str],
        ports: tuple[qemu.Port, ...] = (),
        options: Sequence[str] = (),
        vsock: Path | None = None,
    ) -> None:
        folder.mkdir()
        self._folder = folder
        words = [sys.executable, "-m", "tests.kernel.inside", str(folder)]
        words += [*(f"{disk}={count}" for disk, count in loads.items()), *options]
        self._machine = lab.Guest(
            kernel=matrix.find(kernel),
            machine=qemu.Machine(cpus=1),
            disks=tuple(qemu.Disk("virtio") for _ in images),
            images=tuple(images.values()),
            share=(folder,),
            timeout=inside.LONG_S + inside.PATIENCE_S,
            ports=ports,
            vsock=vsock,
        )
        self._words = words
        self._results: list[lab.Result] = []
        self._failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, name="the guest")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._results.append(lab.run(self._machine, self._words))
        except BaseException as error:
            self._failures.append(error)

    def until(self, there: Callable[[], object]) -> None:
        """Wait for a condition while the guest runs. It may wait for other guests, and has a time limit of its own."""
        while self._thread.is_alive() and not there():
            self._thread.join(0.05)
        assert not self._failures, self._failures
        assert self._thread.is_alive(), self._results[0].text

    def until_ready(self, host_listens: Callable[[], object] | None = None) -> None:
        """Wait until the guest traces; with a channel it begins once the host listens there."""
        if host_listens is not None:
            self.until(host_listens)
            (self._folder / "listens").touch()
        self.until((self._folder / "ready").exists)

    def work(self) -> int:
        """Start the load, wait for the end of the guest and return an upper bound of its clock's offset."""
        (self._folder / "go").touch()
        most: list[int] = []
        while self._thread.is_alive() and len(most) < inside.READS:
            inside.report_time(self._folder, inside.HOSTS)
            there, _files = inside.reported(self._folder, inside.GUESTS)
            if there:
                most.append(time.monotonic_ns() - there)
        joined(self._thread)
        assert not self._failures, self._failures
        assert self._results[0].code == 0, self._results[0].text
        return min(most)

    def end(self) -> None:
        """End the guest, however far it came."""
        (self._folder / "go").touch()
        self._thread.join()

    @property
    def least(self) -> int:
        """Return a lower bound of the offset, which the guest found."""
        return int(self._results[0].text.split()[-1])


def traced(
    folder: Path,
    kernel: str,
    images: Mapping[str, qemu.Image],
    loads: Mapping[str, int | str],
    during: Callable[[int], AbstractContextManager[object]] = lambda pid: nullcontext(),
    meet: Callable[[], object] = lambda: None,
    ours: Sequence[str] = (),
    theirs: Sequence[str] = (),
) -> Seen:
    """Run a guest; trace it on the host once it is ready, and join both traces.

    `during` takes the pid of QEMU and spans the host's trace. Several guests `meet` before they work. `ours` and
    `theirs` are more options of the guest's and of the host's trace.
    """
    running = Running(folder, kernel, images, loads, options=ours)
    running.until_ready()
    pid = qemu_of(next(iter(images.values())).path)
    assert pid, "QEMU is not found by its image"
    guests_own, hosts_own = folder / "guest.wpt", folder / "host.wpt"
    with during(pid), HostTrace("--pid", str(pid), "--each", *theirs, "--capture", str(hosts_own)):
        meet()
        most = running.work()
    both = lines("join", str(guests_own), str(hosts_own), "--each", "--json", "--capture", str(folder / "both.wpt"))
    reported = [line for line in both if line["kind"] == "joined"]
    assert [
        line for line in lines("replay", str(folder / "both.wpt"), "--json") if line["kind"] == "joined"
    ] == reported
    guest, host = (lines("replay", str(file), "--json") for file in (guests_own, hosts_own))
    return Seen(guest, host, both, running.least, most)


def lines(*words: str) -> list[Line]:
    done = wptrace(*words)
    assert (done.returncode, done.stderr) == (0, "")
    found: list[Line] = [json.loads(line) for line in done.stdout.splitlines()]
    for line in found:
        check(line)
    return found


def joined_as_it_was(seen: Seen, loads: Mapping[str, int]) -> None:
    """Stages of each request add up to its time, and the host's part equals the host's own report."""
    reported = {(line["dev"], line["ts_ns"]): line for line in seen.guest if line["kind"] == "operation"}
    assert len(reported) == sum(loads.values())
    host = {(line["tid"], line["clock"]["end_ns"]): line for line in seen.host if "image" in line}
    assert seen.summary["requests"]["finished"] == sum(loads.values()), seen.summary["loss"]
    # Where no function can be observed, a request that a limit held back belongs to a worker, as if there were none.
    assert not seen.summary["loss"].keys() - {"cached"}
    for dev, count in loads.items():
        assert len(seen.of(dev)) == count
    for line in (line for line in seen.both if line["kind"] == "joined"):
        own = reported.pop((line["dev"], line["ts_ns"]))
        assert sum(line["stages"].values()) == line["total_ns"] == own["total_ns"]
        for stage in ("fs_ns", "throttle_ns", "queue_ns", "driver_ns", "complete_ns", "wakeup_ns", "return_ns"):
            assert line["stages"].get(stage, 0) == own["stages"][stage]
        there = line["host"]
        assert there["offset"] == own["sector"] * 512
        of_host = {
            name[len("host_") : -len("_ns")]: ns
            for name, ns in line["stages"].items()
            if name.startswith("host_") and name not in AROUND
        }
        assert sum(of_host.values()) == there["total_ns"]
        same = host.pop((there["tid"], there["end_ns"]))
        assert of_host == {name.removesuffix("_ns"): ns for name, ns in same["stages"].items() if ns}
    assert not reported


def clocks_hold(seen: Seen, least: int = COUNT // 2) -> None:
    """The offset of the clocks is also bounded by the files of both sides, and both ranges overlap."""
    (clocks,) = seen.summary["clocks"]
    assert seen.least <= seen.most
    assert clocks["first"]["least_ns"] <= seen.most
    assert seen.least <= clocks["first"]["most_ns"]
    assert clocks["bounds"] >= least


def host_ns(line: Line) -> int:
    return sum(ns for name, ns in line["stages"].items() if name.startswith("host_"))


def test_a_guest_and_its_host(tmp_path: Path) -> None:
    """One of the guest's disks is slow on the host; only the host's stages of that one are slow."""
    with loop_device(tmp_path / "fast", "128M") as fast, loop_device(tmp_path / "slow", "128M") as slow:
        images = {
            name: qemu.Image(Path("/dev", disk.name), "cache=none") for name, disk in (("vda", fast), ("vdb", slow))
        }
        loads = {"vda": COUNT, "vdb": SLOWED}
        seen = traced(tmp_path / "shared", "6.12", images, loads, lambda pid: limited(pid, Path("/dev", slow.name)))
    joined_as_it_was(seen, loads)
    clocks_hold(seen)
    assert seen.summary["disks"] == [{"dev": name, "image": str(image.path)} for name, image in images.items()]
    waited = sum(map(host_ns, seen.of("vdb")))
    # A limit holds only on average, and begins with some credit.
    assert waited >= SLOWED / 2 / RATE * 1e9 / 2
    assert statistics.median(line["total_ns"] - host_ns(line) for line in seen.of("vdb")) < 1e9 / RATE
    assert statistics.median(map(host_ns, seen.of("vda"))) < 1e9 / RATE
    keeps("join", seen.both, {fast.name: "DISK", slow.name: "DISK"})


def qcow2(path: Path, size: int) -> Path:
    """Make an empty image: header, refcount table, refcounts of the first four clusters, L1 table."""
    bits = 16
    cluster = 1 << bits
    header = struct.pack(">4sIQIIQIIQQIIQ", b"QFI\xfb", 2, 0, 0, bits, size, 0, 1, 3 * cluster, cluster, 1, 0, 0)
    parts = (header, struct.pack(">Q", 2 * cluster), struct.pack(">4H", 1, 1, 1, 1), b"")
    path.write_bytes(b"".join(part.ljust(cluster, b"\0") for part in parts))
    return path


@only_all
@pytest.mark.parametrize("kernel", ["5.10", "6.12", "7.2"])
def test_flushes(kernel: str, tmp_path: Path) -> None:
    """An operation and its flush are one. The hypervisor passes on flushes that have something to flush, or none."""
    syncs, writes = 20, 40
    with loop_device(tmp_path / "safe", "128M") as safe, loop_device(tmp_path / "unsafe", "128M") as unsafe:
        images = {
            disk: qemu.Image(Path("/dev", loop.name), f"cache={cache}")
            for disk, loop, cache in (("vda", safe, "none"), ("vdb", unsafe, "unsafe"))
        }
        before = [flushes(loop.name) for loop in (safe, unsafe)]
        seen = traced(tmp_path / "shared", kernel, images, dict.fromkeys(images, f"{writes}+{syncs}"))
        after = [flushes(loop.name) for loop in (safe, unsafe)]
    passed_on = [there - here for here, there in zip(before, after)]
    assert passed_on == [syncs, 0]
    joined_ones = [line["op"] for line in seen.of("vda")]
    assert joined_ones.count("sync") == syncs, seen.summary["loss"]
    assert len(joined_ones) == writes + 2 * syncs
    assert [line["op"] for line in seen.of("vdb")].count("sync") == 0
    # All flushes of the unsafe disk, and every second one of the other.
    assert seen.summary["loss"].pop("unforwarded") == 3 * syncs
    # The host's page cache reads ahead.
    assert not seen.summary["loss"].keys() - {"cached", "unasked"}
    assert seen.summary["requests"]["lost"] == 0
    assert seen.summary["requests"]["finished"] == 2 * (writes + syncs) + syncs


def flushes(disk: str) -> int:
    """Return how many flushes the kernel has counted."""
    return int(Path("/sys/block", disk, "stat").read_text().split()[15])


@only_all
@pytest.mark.parametrize("kernel", ["5.10", "6.12", "7.2"])
def test_each_way_of_qemu(kernel: str, tmp_path: Path) -> None:
    """Threads, Linux AIO, io_uring, and a format whose offsets are not the guest's."""
    with ExitStack() as stack:
        disks = [
            stack.enter_context(loop_device(tmp_path / name, "128M")) for name in ("threads", "native", "io_uring")
        ]
        images = {
            f"vd{letter}": qemu.Image(Path("/dev", disk.name), f"cache=none,aio={aio}")
            for letter, disk, aio in zip("abc", disks, ("threads", "native", "io_uring"))
        }
        other = qcow2(tmp_path / "other", 128 << 20)
        loads = dict.fromkeys(images, FEW)
        every = {**images, "vdd": qemu.Image(other, "format=qcow2,cache=none")}
        seen = traced(tmp_path / "shared", kernel, every, {**loads, "vdd": SLOWED})
    assert seen.summary["loss"]["unserved"] == SLOWED
    assert seen.of("vdd") == []
    assert any(f"{other} is of format qcow2" in note for note in seen.both[0]["notes"])
    own = [line for line in seen.guest if line["kind"] != "operation" or line["dev"] != "vdd"]
    seen.summary["loss"].pop("unserved")
    joined_as_it_was(seen._replace(guest=own), loads)
    clocks_hold(seen, FEW)
    assert seen.summary["disks"] == [
        {"dev": name, "image": str(images[name].path) if name in images else ""} for name in every
    ]


def uses(begin: str, rest: str) -> tuple[str, int, Line]:
    """Trace a process while it does `rest`. Return what `begin` printed, the pid and the summary."""
    code = f"import os\n{begin}\ninput()\n{rest}\nprint()\ninput()"
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as one:
        assert one.stdin is not None
        assert one.stdout is not None
        said = one.stdout.readline()
        with HostTrace("--pid", str(one.pid), "--kicks") as trace:
            print(file=one.stdin)
            one.stdout.readline()
            reported = trace.stop()
        print(file=one.stdin)
    return said, one.pid, reported[-1]


def test_uses_of_eventfds_are_counted() -> None:
    """Reads and writes of other files do not count, nor does a read that finds the eventfd empty."""
    begin = """
fd, (read, write) = os.eventfd(0, os.EFD_NONBLOCK), os.pipe()
print(fd, flush=True)"""
    rest = f"""
for _ in range({FEW}):
    os.write(fd, bytes([1] + [0] * 7)), os.read(fd, 512)
    os.write(write, bytes(8)), os.read(read, 8)
    try:
        os.read(fd, 8)
    except BlockingIOError:
        pass"""
    said, pid, summary = uses(begin, rest)
    found = {(use["fd"], use["way"]): (use["tid"], use["count"]) for use in summary["eventfds"]}
    assert found == {(int(said), "written"): (pid, FEW), (int(said), "read"): (pid, FEW)}
    assert "signal_full" not in summary["loss"]


def test_uses_for_which_there_is_no_room_are_said() -> None:
    many = kicks._KEYS + FEW
    begin = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({many + 99},) * 2)
fds = [os.eventfd(0) for _ in range({many})]
print(flush=True)"""
    _, _, summary = uses(begin, "for fd in fds: os.write(fd, bytes([1] + [0] * 7))")
    assert sum(use["count"] for use in summary["eventfds"]) == kicks._KEYS
    assert summary["loss"]["signal_full"] == FEW


@only_all
def test_kicks(tmp_path: Path) -> None:
    """Requests come one at a time: the kick of each is seen, and the eventfd that signals its completion."""
    loads = dict.fromkeys(("vda", "vdb", "vdc"), FEW)
    with ExitStack() as stack:
        disks = [stack.enter_context(loop_device(tmp_path / name, "128M")) for name in loads]
        images = {
            name: qemu.Image(Path("/dev", disk.name), f"cache=none,aio={aio}")
            for name, disk, aio in zip(loads, disks, ("threads", "native", "io_uring"))
        }
        seen = traced(tmp_path / "shared", "6.12", images, loads, ours=["--segments"], theirs=["--kicks", "--segments"])
    joined_as_it_was(seen, loads)
    clocks_hold(seen, FEW)
    counted = {(one["fd"], one["way"], one["tid"]): one["count"] for one in seen.host[-1]["eventfds"]}
    for found, image in zip(seen.summary["kicks"], images.values()):
        assert found["image"] == str(image.path)
        assert (found["kicks"], found["alone"], found["given_back"]) == (FEW, FEW, FEW)
        # Only that thread reads its eventfd; the one that signals completions is only written.
        assert sum(count == FEW and key[1:] == ("read", found["tid"]) for key, count in counted.items()) >= len(loads)
    for line in (line for name in loads for line in seen.of(name)):
        kick, stages = line["host"]["kick"], line["stages"]
        end, begin = line["host"]["end_ns"], line["host"]["end_ns"] - line["host"]["total_ns"]
        assert kick["kicked_ns"] < kick["picked_ns"] < begin < end < kick["given_ns"]
        around = [kick["picked_ns"] - kick["kicked_ns"], begin - kick["picked_ns"], kick["given_ns"] - end]
        assert [stages[name] for name in AROUND] == around
        order = [one["stage"] for one in line["segments"]]
        assert order.index("to_host") + 1 == order.index("host_pickup") == order.index("host_prepare") - 1
        assert order.index("back") - 1 == order.index("host_give_back")


@only_all
def test_two_guests_at_once(tmp_path: Path) -> None:
    """Each guest has two disks, and both read the same offsets."""
    together = threading.Barrier(2, timeout=inside.LONG_S)
    loads = {"vda": FEW, "vdb": FEW}

    def one(name: str) -> tuple[Seen, dict[str, str]]:
        with loop_device(tmp_path / f"{name}a", "128M") as first, loop_device(tmp_path / f"{name}b", "128M") as second:
            images = {disk: Path("/dev", loop.name) for disk, loop in (("vda", first), ("vdb", second))}
            options = {disk: qemu.Image(path, "cache=none") for disk, path in images.items()}
            seen = traced(tmp_path / name, "6.12", options, loads, meet=together.wait)
            return seen, {disk: str(path) for disk, path in images.items()}

    with ThreadPoolExecutor(2) as pool:
        for seen, images in pool.map(one, ("first", "second")):
            joined_as_it_was(seen, loads)
            clocks_hold(seen, FEW)
            assert {one["dev"]: one["image"] for one in seen.summary["disks"]} == images
            assert {line["host"]["image"] for line in seen.of("vda")} == {images["vda"]}


@only_all
@pytest.mark.parametrize("kernel", ["5.10", "6.12"])
def test_live_through_a_port(kernel: str, tmp_path: Path) -> None:
    """A virtio-serial port is the only way out of the guest. All requests arrive, and both traces end together."""
    loads = {"vda": COUNT, "vdb": FEW}
    socket = Path(os.path.relpath(tmp_path / "port.sock"))
    both = tmp_path / "both.wpt"
    with loop_device(tmp_path / "first", "128M") as first, loop_device(tmp_path / "second", "128M") as second:
        paths = {disk: Path("/dev", loop.name) for disk, loop in (("vda", first), ("vdb", second))}
        images = {disk: qemu.Image(path, "cache=none") for disk, path in paths.items()}
        running = Running(
            tmp_path / "shared", kernel, images, loads, (qemu.Port(inside.PORT, socket.absolute(), serves=True),)
        )
        running.until(lambda: socket.exists() and qemu_of(paths["vda"]))
        words = ["--live", str(socket), "--pid", str(qemu_of(paths["vda"])), "--each", "--capture", str(both), "1"]
        with LiveTrace(*words) as trace:
            running.until_ready(lambda: is_connected(socket))
            most = running.work()
            reported = trace.wait()
    live_as_it_was(reported, loads, paths)
    clocks_hold(Seen([], [], reported, running.least, most), FEW)
    assert [line for line in lines("replay", str(both), "--json") if line["kind"] == "joined"] == [
        line for line in reported if line["kind"] == "joined"
    ]


def live_as_it_was(reported: Sequence[Line], loads: Mapping[str, int], paths: Mapping[str, Path]) -> None:
    events = [line for line in reported if line["kind"] == "joined"]
    assert {disk: sum(line["dev"] == disk for line in events) for disk in loads} == loads
    assert all(sum(line["stages"].values()) == line["total_ns"] for line in events)
    assert all(line["host"]["image"] == str(paths[line["dev"]]) for line in events)
    summary = reported[-1]
    assert summary["requests"]["finished"] == sum(loads.values())
    assert summary["clocks"][0]["bounds"] <= sum(loads.values())
    assert not summary["loss"].keys() - {"cached"}
    assert sum(line["requests"]["finished"] for line in reported if line["kind"] == "interval") <= sum(loads.values())


@contextmanager
def vsock_device(folder: Path) -> Iterator[tuple[Path, Path]]:
    """The socket by which the device talks to QEMU, and the prefix of the sockets that the guest connects to."""
    # Socket paths have to be short.
    socket, guests_own = (Path(os.path.relpath(folder / name)) for name in ("vhost", "vsock"))
    words = ["--guest-cid", "4", "--socket", str(socket), "--uds-path", str(guests_own)]
    device = subprocess.Popen(peers.command("vhost-device-vsock", *words, recipe=peers.VSOCK))
    try:
        wait_until(socket.exists, "vhost-device-vsock")
        yield socket, guests_own
    finally:
        device.terminate()
        device.wait()


@only_all
def test_live_through_vsock(tmp_path: Path) -> None:
    loads = {"vda": FEW}
    with loop_device(tmp_path / "disk", "128M") as disk, vsock_device(tmp_path) as (device, name):
        paths = {"vda": Path("/dev", disk.name)}
        images = {"vda": qemu.Image(paths["vda"], "cache=none")}
        running = Running(tmp_path / "shared", "6.12", images, loads, vsock=device.absolute())
        running.until(lambda: qemu_of(paths["vda"]))
        channel = Path(f"{name}_{inside.VSOCK}")
        with LiveTrace("--live", str(channel), "--pid", str(qemu_of(paths["vda"])), "--each") as trace:
            running.until_ready(channel.exists)
            most = running.work()
            reported = trace.wait()
    live_as_it_was(reported, loads, paths)
    clocks_hold(Seen([], [], reported, running.least, most), FEW // 2)


@only_all
def test_live_with_another_guest_beside(tmp_path: Path) -> None:
    """Both guests have images on one file system of the host; only requests of the first one are joined."""
    loads = {"vda": COUNT}
    socket = Path(os.path.relpath(tmp_path / "port.sock"))
    with ExitStack() as stack:
        disk = stack.enter_context(loop_device(tmp_path / "disk", "192M"))
        top = stack.enter_context(mounted(disk, "ext4", tmp_path / "top"))
        images = [top / name for name in ("second", "first")]
        for image in images:
            # A block that was never written needs no request.
            image.write_bytes(b"x" * (64 << 20))
        os.sync()
        running = []
        # The second one may have to wait for other guests, but a guest with a port does not wait for it.
        for image, ports in zip(images, ((), (qemu.Port(inside.PORT, socket.absolute(), serves=True),))):
            one = Running(tmp_path / image.name, "6.12", {"vda": qemu.Image(image, "cache=none")}, loads, ports)
            # A running guest would keep the file system below in use.
            stack.callback(one.end)
            one.until(partial(qemu_of, image))
            running.append(one)
        second, first = running
        first.until(socket.exists)
        pids = [str(qemu_of(image)) for image in images]
        words = ["--live", str(socket), "--pid", pids[1], "--beside", pids[0], "--each"]
        with LiveTrace(*words) as trace:
            first.until_ready(lambda: is_connected(socket))
            second.until_ready()
            with ThreadPoolExecutor(1) as pool:
                other = pool.submit(second.work)
                first.work()
                other.result()
            reported = trace.wait()
    live_as_it_was(reported, loads, {"vda": images[1]})


class Hogged:
    """A hog that competes for the CPU of a vCPU, and a trace that shows who ran instead."""

    def __init__(self) -> None:
        self.vcpu = 0
        self.bursts: list[tuple[int, int]] = []
        self.waits: list[Line] = []

    @contextmanager
    def __call__(self, pid: int) -> Iterator[None]:
        # The vCPU has used the most CPU time: QEMU's other threads have had little to do so far.
        tasks = {int(task.name): task for task in Path(f"/proc/{pid}/task").iterdir()}
        self.vcpu = max(tasks, key=lambda tid: sum(map(int, (tasks[tid] / "stat").read_text().split()[13:15])))
        mine, others = sorted(os.sched_getaffinity(0))[:2]
        for tid in tasks:
            os.sched_setaffinity(tid, {mine if tid == self.vcpu else others})
        with hog(BURST_NS // 1000, 5 * BURST_NS // 1000) as found, CpuTrace("-p", str(pid), "--slow", "1ms") as trace:
            os.sched_setaffinity(found.process.pid, {mine})
            found.begin()
            yield
            found.end()
            self.bursts = [(one.start_ns, one.end_ns) for one in found.bursts]
            self.waits = [line for line in trace.stop() if line["kind"] == "wait"]


def overlap(one: tuple[int, int], other: tuple[int, int]) -> int:
    return min(one[1], other[1]) - max(one[0], other[0])


@only_all
def test_who_has_the_cpu_of_the_guest_is_in_back(tmp_path: Path) -> None:
    """The cpu flow says who ran instead, and the hog's own clock says when it ran."""
    hogged = Hogged()
    with loop_device(tmp_path / "disk", "128M") as disk:
        images = {"vda": qemu.Image(Path("/dev", disk.name), "cache=none")}
        seen = traced(tmp_path / "shared", "6.12", images, {"vda": COUNT}, hogged)
    joined_as_it_was(seen, {"vda": COUNT})
    clocks_hold(seen)
    matched = []
    for line in seen.of("vda"):
        done, back = line["host"]["end_ns"], line["stages"].get("back_ns", 0)
        found = [burst for burst in hogged.bursts if overlap((done, done + back), burst) > BURST_NS // 2]
        matched += [(burst, line) for burst in found]
    assert matched
    # Convert the times of waits with the clocks that the host's lines have.
    host = next(line for line in seen.host if "clock" in line)
    offset = host["ts_ns"] - host["clock"]["end_ns"]
    waits = [
        (line["ts_ns"] - offset - line["stages"]["wait_ns"], line["ts_ns"] - offset)
        for line in hogged.waits
        if line["tid"] == hogged.vcpu and line.get("instead", {}).get("comm") == HOG
    ]
    assert any(overlap(wait, burst) > BURST_NS // 2 for wait in waits for burst, _ in matched)
