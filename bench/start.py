# SPDX-License-Identifier: Apache-2.0
"""How long `wptrace io` takes from its start until its programs are attached, and how much memory it holds then.

sudo .venv/bin/python bench/start.py DEVICE [RUNS]
"""

from __future__ import annotations

import re
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path


def once(device: str, options: tuple[str, ...]) -> tuple[float, int]:
    begin = time.monotonic()
    command = [sys.executable, "-m", "wptrace", "io", "--json", "--dev", device, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # the first line comes when everything is attached
        seconds = time.monotonic() - begin
        status = Path(f"/proc/{process.pid}/status").read_text()
        process.send_signal(signal.SIGINT)
        process.stdout.read()
    found = re.search(r"VmRSS:\s+(\d+)", status)
    return seconds, int(found[1]) if found else 0


def main() -> None:
    device, runs = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10
    for options in ((), ("--interference",), ("--level=block", "--times=kernel"), ("--level=block", "--times=own")):
        results = [once(device, options) for _ in range(runs)]
        seconds = [result[0] for result in results]
        resident = max(result[1] for result in results)
        print(
            f"io {' '.join(options)}: {statistics.median(seconds):.3f} s to attached"
            f" (worst of {runs}: {max(seconds):.3f} s), {resident / 1024:.1f} MiB resident"
        )


if __name__ == "__main__":
    main()
