# SPDX-License-Identifier: Apache-2.0
"""Load in a guest whose host is traced too: `python -m tests.kernel.inside FOLDER DISK=COUNT[+SYNCS]... [OPTION...]`

FOLDER is shared with the host. This traces the disks into `guest.wpt` there or, once the host says that it `listens`,
into a port of virtio-serial or vsock, with more options of `wptrace io`. It reports that it is `ready`, waits for `go`,
compares its clock with the host's, and makes COUNT reads and writes on each disk.
"""

from __future__ import annotations

import mmap
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

BLOCK = 4096
PATIENCE_S = 300
# The host may have to wait until other guests end and there is room for a second one.
LONG_S = 3000
# How often each side reads the clock of the other.
READS = 40
PORT = "wptrace"
VSOCK = 1234
HOSTS, GUESTS = "host-", "guest-"


def wait_for(condition: Callable[[], object], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.01)


def report_time(folder: Path, prefix: str) -> None:
    """Report the time in the name of a file, because the other side does not cache names."""
    new = folder / f"{prefix}{time.monotonic_ns()}"
    for old in reported(folder, prefix)[1]:
        old.rename(new)
        return
    new.touch()


def reported(folder: Path, prefix: str) -> tuple[int, list[Path]]:
    """Return the time that the other side reported, which is not later than now, and its file; 0 for none."""
    found = [path for path in folder.iterdir() if path.name.startswith(prefix)]
    return max((int(path.name[len(prefix) :]) for path in found), default=0), found


def work(disk: str, count: int, syncs: int) -> None:
    """Read and write directly, each time at another place; then write and flush twice, as often as `syncs` says.

    The second flush of each pair has nothing to do.
    """
    fd = os.open(f"/dev/{disk}", os.O_RDWR | os.O_DIRECT)
    chance = random.Random(disk)  # noqa: S311 - the same each time
    room = os.lseek(fd, 0, os.SEEK_END) // BLOCK // 4
    places = chance.sample(range(room), count)
    with mmap.mmap(-1, 4 * BLOCK) as buffer:
        for place in places:
            part = memoryview(buffer)[: BLOCK * chance.choice((1, 2, 4))]
            do = chance.choice((os.preadv, os.pwritev))
            do(fd, [part], place * 4 * BLOCK)
            part.release()
        for place in range(syncs):
            os.pwritev(fd, [memoryview(buffer)], place * 4 * BLOCK)
            os.fsync(fd)
            os.fsync(fd)
    os.close(fd)


def port() -> Path | None:
    """Return the port of virtio-serial for this, by the names in sysfs: nothing here makes links to them."""
    for name in Path("/sys/class/virtio-ports").glob("*/name"):
        if name.read_text().strip() == PORT:
            return Path("/dev", name.parent.name)
    return None


def vsock() -> str | None:
    """Return the address of the host by vsock, if the guest has it."""
    if subprocess.run(["modprobe", "--quiet", "vmw_vsock_virtio_transport"], check=False).returncode:
        return None
    if not any(Path("/sys/bus/virtio/drivers/vmw_vsock_virtio_transport").glob("virtio*")):
        return None
    return f"vsock:2:{VSOCK}"


def main(folder: Path, loads: dict[str, tuple[int, int]], options: list[str]) -> None:
    disks = [word for disk in loads for word in ("-d", disk)]
    # The two sides do not always see the same contents of a shared file.
    channel = port() or vsock()
    if channel:
        # A busy machine takes longer to start a trace than a guest waits for its host.
        wait_for((folder / "listens").exists, LONG_S)
    capture = channel or Path("/tmp/guest.wpt")  # noqa: S108 - no one else uses this guest
    command = [sys.executable, "-m", "wptrace", "io", *disks, "--each", "--json", *options]
    command += ["--capture", str(capture)]
    trace = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert trace.stdout is not None
    if b'"kind":"start"' not in trace.stdout.readline():
        raise SystemExit(trace.wait())
    (folder / "ready").touch()
    wait_for((folder / "go").exists, LONG_S)
    least = []
    for _ in range(READS):
        report_time(folder, GUESTS)
        there, _files = reported(folder, HOSTS)
        if there:
            least.append(there - time.monotonic_ns())
    for disk, (count, syncs) in loads.items():
        work(disk, count, syncs)
    trace.send_signal(signal.SIGINT)
    trace.communicate(timeout=PATIENCE_S)
    if trace.returncode:
        raise SystemExit(trace.returncode)
    if channel is None:
        shutil.copy(capture, folder)
    print(max(least), flush=True)


def load(words: str) -> tuple[int, int]:
    count, _, syncs = words.partition("+")
    return int(count), int(syncs or "0")


if __name__ == "__main__":
    wanted = [word.split("=") for word in sys.argv[2:] if not word.startswith("-")]
    more = [word for word in sys.argv[2:] if word.startswith("-")]
    main(Path(sys.argv[1]), {disk: load(words) for disk, words in wanted}, more)
