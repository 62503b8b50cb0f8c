# SPDX-License-Identifier: Apache-2.0
"""All tests: style, units, objects, the running kernel, and every guest of the matrix, two guests at a time.

`python3 -m tests.run [NAME...]` runs only the named jobs: lint, unit, objects, running, 6.12, 6.12-icount, ...
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.lab.matrix import KERNELS, OTHER_MACHINES, find

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / "build" / "test-logs"
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
IN_GUEST = ("-m", "pytest", "-v", "-p", "no:cacheprovider")
DISKS = ("--disk", "nvme", "--disk", "virtio", "--disk", "scsi")
GUEST_LIMIT_S = 3600
GUESTS = "not icount and not here"
# So many tests of a guest that fail are run once more.
FEW = 3
# What the lab answers when the guest panics or QEMU ends.
GUEST_DIED = 125
# How large programs are (tests/kernel/verified.py).
_TOLD = re.compile(r"verifier on |  \w+/\w+ +\d+ +\d+$")
_OUTCOME = re.compile(r"^(\S+::.*?) (PASSED|SKIPPED|FAILED|ERROR)\b", re.MULTILINE)
_SUMMARY = re.compile(r"^=*\s*(?:\d+ \w+, )*\d+ (?:passed|failed|error).* in [\d.]+s", re.MULTILINE)


class Job(NamedTuple):
    name: str
    command: Sequence[str]
    what: Sequence[str] = ()
    """Which tests, where they run in a guest."""


class Result(NamedTuple):
    name: str
    code: int
    passed: int
    failed: int
    seconds: float
    again: Sequence[str] = ()
    """Tests that failed, and passed when they ran once more."""


def here() -> list[Job]:
    return [
        Job("lint", ("make", "lint")),
        Job("unit", (*PYTEST, "tests/unit")),
        Job("objects", (*PYTEST, "tests/objects")),
        Job("running", (*PYTEST, "tests/kernel", "-m", "not icount and not guest")),
    ]


def guests() -> list[Job]:
    jobs = []
    for kernel in KERNELS:
        if not kernel.running:
            jobs += _pair(kernel.name, sys.executable, ["tests/kernel"], ["tests/kernel"])
    for kernel in OTHER_MACHINES:
        # Python is the guest's own there. What depends on the machine is the objects, the binding and the counter of
        # cycles, which other machines' emulation has not.
        files = [f"tests/kernel/{file}" for file in ("test_load.py", "test_binding.py", "test_irqoff.py")]
        jobs += _pair(kernel.name, "python3", files, files[-1:])
    return jobs


def _pair(kernel: str, python: str, every: Sequence[str], timed: Sequence[str]) -> list[Job]:
    """A guest with real disks, and one whose clock counts instructions."""
    lab = (sys.executable, "-m", "tests.lab", "run", "--timeout", str(GUEST_LIMIT_S), "--kernel", kernel)
    pytest = ("--", python, *IN_GUEST)
    return [
        Job(kernel, (*lab, *DISKS, *pytest), (*every, "-m", GUESTS)),
        Job(f"{kernel}-icount", (*lab, "--icount=off", *pytest), (*timed, "-m", "icount")),
    ]


def run(job: Job) -> Result:
    start = time.monotonic()
    code, text = _into(job.name, (*job.command, *job.what))
    before, again = 0, []
    if code == GUEST_DIED:
        # QEMU's emulated CPUs now and then run code that another of them is just patching ("Oops: int3"), which real
        # ones do not. A fault of ours comes again.
        done = _named(text, "PASSED", "SKIPPED")
        before = len(_named(text, "PASSED"))
        print(f"== {job.name}: the guest died, another one for the rest\n{_tail(text, 40)}", flush=True)
        names = LOGS / f"{job.name}-done"
        names.write_text("\n".join(done))
        code, rest = _into(f"{job.name}-rest", (*job.command, *job.what), WPTRACE_TESTS_DONE=str(names))
        text += rest
    passed, failed = _counts(text)
    failing = _named(text, "FAILED", "ERROR")
    if job.what and code != GUEST_DIED and 0 < failed == len(failing) <= FEW:
        # The guest's CPUs are threads of a machine that others use as well: one may stand still for a second anywhere.
        # What fails by that passes in another guest; what fails by a fault of ours fails there as well.
        print(f"== {job.name}: {failed} failed, once more in another guest\n{_tail(text, 150)}", flush=True)
        code, rest = _into(f"{job.name}-again", (*job.command, *failing))
        text += rest
        if code == 0:
            passed, failed, again = passed + failed, 0, failing
    if code != 0 and not failed:
        failed = 1
    result = Result(job.name, code, before + passed, failed, time.monotonic() - start, again)
    print(_shown(result, text), flush=True)
    return result


def _counts(text: str) -> tuple[int, int]:
    """How many passed and failed, by the last line that says so."""
    found = _SUMMARY.findall(text)
    last = found[-1] if found else ""
    passed, failed = (sum(map(int, re.findall(rf"(\d+) {word}", last))) for word in ("passed", "(?:failed|errors?)"))
    return passed, failed


def _named(text: str, *outcomes: str) -> list[str]:
    """Tests with one of these outcomes at the end, as `pytest -v` tells it for each."""
    last = dict(_OUTCOME.findall(text))
    return [name for name, outcome in last.items() if outcome in outcomes]


def _into(name: str, command: Sequence[str], **variables: str) -> tuple[int, str]:
    """The exit code, and what is in the log of that name now."""
    log = LOGS / f"{name}.log"
    with log.open("wb") as out:
        environment = {**os.environ, **variables}
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT, check=False)
    return done.returncode, log.read_text(errors="replace")


def _tail(text: str, count: int) -> str:
    return "\n".join(text.splitlines()[-count:])


def _shown(result: Result, text: str) -> str:
    lines = [f"== {result.name}: {'ok' if result.code == 0 else 'FAILED'} in {result.seconds:.0f} s"]
    if result.code != 0:
        lines.append(_tail(text, 150))
    else:
        lines += [line for line in text.splitlines() if _SUMMARY.match(line) or _TOLD.match(line)]
    return "\n".join(lines)


def main(names: Sequence[str]) -> int:
    LOGS.mkdir(parents=True, exist_ok=True)
    first, rest = here(), guests()
    known = {job.name for job in first + rest}
    if set(names) - known:
        unknown = ", ".join(sorted(set(names) - known))
        print(f"run: no such job: {unknown} (there are {', '.join(sorted(known))})", file=sys.stderr)
        return 2
    wanted = set(names) or known
    results = [run(job) for job in first if job.name in wanted]
    boots = [job for job in rest if job.name in wanted]
    if boots:
        kernels = dict.fromkeys(job.name.removesuffix("-icount") for job in boots)
        lab = (sys.executable, "-m", "tests.lab")
        # Guests have no network: what their tests need is fetched here.
        subprocess.run([*lab, "fetch", *kernels], cwd=ROOT, check=True)
        subprocess.run([sys.executable, "-m", "tests.lab.peers"], cwd=ROOT, check=True)
        with_modules = [name for name in kernels if find(name).headers]
        if with_modules:
            subprocess.run([*lab, "modules", *with_modules], cwd=ROOT, check=True)
    with ThreadPoolExecutor(max_workers=2) as pool:
        results += pool.map(run, boots)
    print()
    for result in results:
        verdict = "ok" if result.code == 0 else "FAILED"
        print(f"{result.name:<14} {verdict:<7} {result.passed:>5} passed {result.seconds:>6.0f} s")
        for name in result.again:
            print(f"{'':<14} failed at first: {name}")
    failed = sum(result.failed for result in results)
    print(f"{sum(result.passed for result in results)} passed, {failed} failed")
    return 1 if any(result.code for result in results) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
