# SPDX-License-Identifier: Apache-2.0
"""build/bench.json: the last results of each part, with the machine and the versions."""

from __future__ import annotations

import gzip
import json
import os
import platform
import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from tests.lab import peers
from tests.lab.errors import LabError
from wptrace import __version__
from wptrace.bpf.lib import libbpf

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "build" / "bench.json"
_one_at_a_time = Lock()

Found = dict[str, Any]


def read() -> Found:
    try:
        found: Found = json.loads(FILE.read_text())
    except FileNotFoundError:
        return {}
    return found


def keep(part: str, words: Sequence[str], results: Any) -> None:
    """Keep the results of a part next to those of the others."""
    at = time.strftime("%Y-%m-%d %H:%M:%S%z")
    one = {"command": f"python3 -m bench {' '.join(words)}", "at": at, "on": _here(), "results": results}
    with _one_at_a_time:
        found = read()
        found[part] = one
        FILE.parent.mkdir(parents=True, exist_ok=True)
        FILE.write_text(json.dumps(found, indent=1))


def _here() -> Found:
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {
        "wptrace": __version__,
        "commit": _said("git", "-C", str(ROOT), "describe", "--always", "--dirty"),
        "kernel": os.uname().release,
        "machine": os.uname().machine,
        "processor": model[1] if model else "",
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "libbpf": ".".join(map(str, libbpf().version)),
        "fio": _said("fio", "--version"),
        "qemu": _said("qemu-system-x86_64", "--version").partition("\n")[0],
        "peers": _peers(),
    }


def _said(*words: str) -> str:
    try:
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return ""


def _peers() -> Found:
    """Return the versions of the packages, from their change logs."""
    found = {}
    try:
        documents = peers.fetch(peers.ALL) / "usr" / "share" / "doc"
    except LabError:
        return {}
    for package in ("libbpf-tools", "bpftrace", "blktrace"):
        for file in (documents / package).glob("changelog.Debian*.gz"):
            version = re.search(rb"\((.*?)\)", gzip.decompress(file.read_bytes()))
            found[package] = version[1].decode() if version else ""
    return found
