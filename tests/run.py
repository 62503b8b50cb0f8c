# SPDX-License-Identifier: Apache-2.0
"""All tests: lint, unit, objects, the running kernel, and the guests of the matrix, three jobs at a time.

`python3 -m tests.run [--all] [NAME...]` runs only the named jobs: lint, unit, objects, running, 6.12, 6.12-icount, ...
Tests that depend on the kernel run on this one. Those that differ most between kernels also run on the oldest and the
newest, and those that need a guest on the newest. With `--all` each test runs on every kernel, and tests that may be
retried elsewhere have to pass 20 times in a row.
"""

from __future__ import annotations

import compileall
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.lab.matrix import KERNELS, OTHER_MACHINES, Kernel, find

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / "build" / "test-logs"
RETRIES = LOGS / "retries"
# hypothesis is slow to import, and tests in guests do not need it.
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
IN_GUEST = (
    "-m",
    "pytest",
    "-v",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:hypothesispytest",
    "--durations=0",
    "--durations-min=1",
)
DISKS = ("--disk", "nvme", "--disk", "virtio=2", "--disk", "scsi")
GUEST_LIMIT_S = 3600
# A guest that prints nothing for so long hangs: each test takes less than two minutes, and prints a line.
SILENCE_S = 420
CPUS = 2
# The limit of all jobs together, in seconds on a machine with this many CPUs.
LIMIT_S = 1800
ONE = "6.12"
"""The guest for tests of which one kernel is enough, but which need what only guests have."""
# Exit codes of the lab if the guest panics or QEMU ends, and if the guest hangs.
GUEST_DIED, GUEST_HUNG = 125, 124
# How often a guest of several CPUs boots that dies before its first test.
BOOTS = 3
# Lines about the sizes of programs (tests/kernel/verified.py).
_TOLD = re.compile(r"verifier on |  \w+/\w+ +\d+ +\d+$")
_OUTCOME = re.compile(r"^(\S+::.*?) (PASSED|SKIPPED|FAILED|ERROR)\b", re.MULTILINE)
_FAILURE = re.compile(r"^_{3,} (.+?) _{3,}$", re.MULTILINE)
# How many failed tests of a job, and how many changed files, are named at the end; with how many lines of errors.
_COMPLAINTS, _ERRORS = 20, 3
_SUMMARY = re.compile(r"^=*\s*(?:\d+ \w+, )*\d+ (?:passed|failed|error).* in [\d.]+s", re.MULTILINE)
_RETRIED = re.compile(r"^retried (.+)$", re.MULTILINE)
_STARTS = re.compile(r"^started the command (\d+) times, loaded (\d+) objects", re.MULTILINE)
_DURATION = re.compile(r"^ *(\d+\.\d+)s (?:call|setup|teardown) +(\S+::.+)$", re.MULTILINE)


class Job(NamedTuple):
    name: str
    command: Sequence[str]
    files: Sequence[str] = ()
    """Files of tests/kernel."""
    marks: str = ""
    """The tests of these files, as an expression of pytest's -m."""
    kernel: str = ""
    """The kernel of the guest, if there is one."""
    cpus: int = 1
    timed: bool = False
    """Its clock counts instructions, so that it does not mind who else runs."""
    fetched: bool = False
    """It needs the guests' kernels, but boots none."""


class Result(NamedTuple):
    job: Job
    code: int
    passed: int
    failed: int
    seconds: float
    cpu_s: float
    boots: int
    starts: int
    """Starts of the command."""
    loads: int
    """Loads of objects by tests themselves."""
    longest: Sequence[tuple[float, str]]
    retried: Sequence[str]
    complaints: Sequence[str] = ()
    """Name and first error of each failed test."""


# Approximate CPU seconds by job: the longest begin first, and jobs that take much longer are named if the whole run
# takes too long.
EXPECTED_S: dict[str, float] = {
    "7.2": 1234,
    "5.10": 292,
    "6.12": 982,
    "6.12-icount": 754,
    "running": 388,
    "unit": 340,
    "6.12-arm64": 187,
    "objects": 168,
    "lint": 40,
    "packages": 56,
    "peers": 42,
    "types": 14,
}


def here(every: bool = False) -> list[Job]:
    kernel, packages, peers = ("tests/kernel",), ("tests/packages",), ("tests/peers",)
    longer = [Job("roots", PYTEST, packages, "clean_root"), Job("npm", PYTEST, peers, "npm")] if every else []
    return [
        *longer,
        Job("packages", PYTEST, packages, "not clean_root"),
        Job("lint", ("make", "lint")),
        Job("unit", (*PYTEST, "-n", str(CPUS), "--dist", "worksteal", "tests/unit")),
        Job("objects", (*PYTEST, "tests/objects")),
        Job("peers", PYTEST, peers, "not npm"),
        Job("types", (*PYTEST, "tests/types"), fetched=True),
        Job("running", (*PYTEST, "--durations=0", "--durations-min=1"), kernel, "not icount and not guest"),
    ]


def guests(every: bool = False) -> list[Job]:
    jobs = []
    folder = ["tests/kernel"]
    kernels = [kernel for kernel in KERNELS if not kernel.running]
    # The marks and files of each part: only one of the guests runs the tests on the instruction clock.
    parts = {
        kernels[0].name: ("each_kernel and not one_kernel", _with("each_kernel", folder)),
        ONE: ("guest and one_kernel", folder),
        kernels[-1].name: ("(each_kernel or guest) and not one_kernel", folder),
    }
    for kernel in kernels:
        if every:
            jobs += _of_kernel(kernel, sys.executable, ("", ""), folder, every=True)
        elif kernel.name in parts:
            which, files = parts[kernel.name]
            found = _of_kernel(kernel, sys.executable, (which, "(guest or not one_kernel)"), files)
            jobs += [job for job in found if not job.timed or kernel.name == ONE]
    if every:
        lab = (sys.executable, "-m", "tests.lab", "run", "--timeout", str(GUEST_LIMIT_S), "--kernel", ONE)
        pytest = ("--", sys.executable, *IN_GUEST)
        jobs.append(Job("pages", (*lab, "--cpus", "1", "--icount=off", *pytest, "tests/pages"), kernel=ONE, timed=True))
    for kernel in OTHER_MACHINES:
        # Python is the guest's own. Only objects, the binding, 32-bit calls and the cycle counter depend on the
        # machine; the emulation of other machines has no such counter. These guests do not die with two CPUs.
        names = ("test_load.py", "test_binding.py", *(("test_irqoff.py", "test_compat.py") if every else ()))
        files = [f"tests/kernel/{name}" for name in names]
        found = _of_kernel(kernel, "python3", ("" if every else "not one_kernel", ""), files, 2, every)
        jobs += [job for job in found if not job.timed or every]
    return jobs


# Idle time is skipped, so minutes may pass while the host reads a file.
_LONG = ("/usr/bin/env", "WPTRACE_TESTS_PATIENCE=100000")


def _with(mark: str, files: Sequence[str]) -> list[str]:
    """Return the files with a test that has this mark, because importing the others takes a guest seconds."""
    folder = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests" / "kernel").glob("test_*.py"))]
    every = folder if list(files) == ["tests/kernel"] else files
    return [file for file in every if f"mark.{mark}" in (ROOT / file).read_text()]


def _of_kernel(
    kernel: Kernel, python: str, which: tuple[str, str], files: Sequence[str], cpus: int = 1, every: bool = False
) -> list[Job]:
    """Return the jobs of a kernel: a guest of two CPUs with real disks, and one whose clock counts instructions.

    `which` are the tests of each, by their marks; `cpus` is how many CPUs are online at first.
    """
    marks = [" and ".join(filter(None, both)) for both in zip(("not icount", "icount"), which)]
    # With `--all` a test may run 20 times before it prints a line.
    limits = ("--timeout", str(GUEST_LIMIT_S), *(() if every else ("--silence", str(SILENCE_S))))
    lab = (sys.executable, "-m", "tests.lab", "run", *limits, "--kernel", kernel.name)
    name, pytest = kernel.name, ("--", python, *IN_GUEST)
    begins = ("--cpus", "2", f"--append=maxcpus={cpus}")
    return [
        Job(name, (*lab, *DISKS, *begins, *pytest), files, marks[0], name, 2),
        Job(
            f"{name}-icount",
            (*lab, "--icount=off", "--", *_LONG, *pytest[1:]),
            _with("icount", files),
            marks[1],
            name,
            timed=True,
        ),
    ]


def run(job: Job, **variables: str) -> Result:
    start = time.monotonic()
    what = (*job.files, "-m", job.marks) if job.marks else ()
    code, text, cpu_s = _into(job, job.name, (*job.command, *what), variables)
    last, boots, retried = text, int(bool(job.kernel)), list(_RETRIED.findall(text))
    done: list[str] = []
    before = 0
    # Emulated CPUs sometimes run code that another one is patching ("Oops: int3"), mostly while the kernel boots, or
    # wait for each other forever. Real CPUs do neither. A fault of wptrace would come again.
    while code in (GUEST_DIED, GUEST_HUNG) and job.cpus > 1 and boots < BOOTS and not done:
        done = _named(last, "PASSED", "SKIPPED")
        before = len(_named(last, "PASSED"))
        how = "died" if code == GUEST_DIED else "hung"
        retried.append(f"{job.name}: the guest {how} after {len(done)} tests, its console is in {job.name}.console")
        names = LOGS / f"{job.name}-done"
        names.write_text("\n".join(done))
        again = {**variables, "WPTRACE_TESTS_DONE": str(names)}
        code, last, more_s = _into(job, f"{job.name}-{boots + 1}", (*job.command, *what), again)
        text, cpu_s, boots = text + last, cpu_s + more_s, boots + 1
        retried += _RETRIED.findall(last)
    passed, failed = _counts(text)
    if code != 0 and not failed:
        failed = 1
    starts, loads = (sum(map(int, found)) for found in zip(*(_STARTS.findall(text) or [(0, 0)])))
    longest = sorted(((float(seconds), test) for seconds, test in _DURATION.findall(text)), reverse=True)[:10]
    took = time.monotonic() - start
    short = [_short(one) for one in retried]
    passed += before
    result = Result(job, code, passed, failed, took, cpu_s, boots, starts, loads, longest, short, complaints(text))
    print(_shown(result, text), flush=True)
    return result


def _short(retried: str) -> str:
    return retried if len(retried) <= 400 else retried[:400] + "..."


def complaints(text: str) -> list[str]:
    """Return the names of failed tests, by pytest's headings, and their first lines of errors."""
    _, *parts = _FAILURE.split(text)
    found = []
    for name, part in zip(parts[::2], parts[1::2]):
        errors = [line[1:].strip() for line in part.splitlines() if line.startswith("E ")]
        found.append(_short(f"{name}: {' | '.join(errors[:_ERRORS])}"))
    return found[:_COMPLAINTS]


def _counts(text: str) -> tuple[int, int]:
    """Return how many tests passed and failed, by the last line with these counts."""
    found = _SUMMARY.findall(text)
    last = found[-1] if found else ""
    passed, failed = (sum(map(int, re.findall(rf"(\d+) {word}", last))) for word in ("passed", "(?:failed|errors?)"))
    return passed, failed


def _named(text: str, *outcomes: str) -> list[str]:
    """Return the tests with one of these final outcomes, from the output of `pytest -v`."""
    last = dict(_OUTCOME.findall(text))
    return [name for name, outcome in last.items() if outcome in outcomes]


def _into(job: Job, name: str, command: Sequence[str], variables: dict[str, str]) -> tuple[int, str, float]:
    """Run a command and return its exit code, the text of its log, and the CPU seconds of all its processes."""
    log = LOGS / f"{name}.log"
    if job.kernel:
        at = command.index("--")
        command = (*command[:at], "--console", str(LOGS / f"{name}.console"), *command[at:])
    with log.open("wb") as out, _temporary() as folder:
        environment = {**os.environ, "PYTEST_DEBUG_TEMPROOT": folder, **variables}
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, log.read_text(errors="replace"), usage.ru_utime + usage.ru_stime


@contextmanager
def _temporary() -> Iterator[str]:
    """A folder for temporary files of one job, which it shares with no other job or clone.

    A test that failed or was killed may have left file systems mounted there.
    """
    folder = tempfile.mkdtemp(prefix="wpt-")
    try:
        yield folder
    finally:
        points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        for point in reversed([point for point in points if point.startswith(f"{folder}/")]):
            subprocess.run(["umount", "--lazy", point], check=False)
        shutil.rmtree(folder, ignore_errors=True)


def _tail(text: str, count: int) -> str:
    return "\n".join(text.splitlines()[-count:])


def _shown(result: Result, text: str) -> str:
    lines = [f"== {result.job.name}: {'ok' if result.code == 0 else 'FAILED'} in {result.seconds:.0f} s"]
    if result.code != 0:
        lines.append(_tail(text, 150))
    else:
        lines += [line for line in text.splitlines() if _SUMMARY.match(line) or _TOLD.match(line)]
    return "\n".join(lines)


def _prepare(kernels: Sequence[str]) -> int:
    """Fetch and build what tests in guests need, because guests have no network. Other jobs run meanwhile."""
    lab = (sys.executable, "-m", "tests.lab")
    modules = [name for name in kernels if find(name).headers]
    commands = [(*lab, "fetch", *kernels), (sys.executable, "-m", "tests.lab.peers")]
    commands += [(*lab, "modules", *modules)] if modules else []
    # A guest without compiled modules compiles them at each boot, and its writes are lost.
    compileall.compile_dir(ROOT / "wptrace", quiet=1)
    compileall.compile_dir(ROOT / "tests", quiet=1)
    collect = (*PYTEST, "-p", "no:hypothesispytest", "--collect-only", "-q", "tests/kernel")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run(collect, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=False)
    for command in commands:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace")
        if done.returncode:
            print(f"== {' '.join(command[2:])}: FAILED\n{_tail(done.stdout + done.stderr, 50)}", flush=True)
            return done.returncode
    return 0


class Queue:
    """Two guests at a time, the longest first, and in parallel jobs that may be slowed down.

    Tests sleep now and then, so guests are idle for a fifth of their time. Jobs without a guest fill that, then guests
    on the instruction clock.
    """

    def __init__(self, jobs: Sequence[Job], variables: dict[str, str]) -> None:
        self._jobs = sorted(jobs, key=lambda job: (job.timed, not job.kernel, -EXPECTED_S.get(job.name, LIMIT_S)))
        self._kernels = list(dict.fromkeys(job.kernel for job in jobs if job.kernel))
        self._variables = variables
        self._free = threading.Condition()
        self._ready = not self._kernels
        self.results: list[Result] = []
        self.unprepared = 0

    def work(self) -> None:
        workers = [threading.Thread(target=self._work, args=(number,)) for number in range(CPUS + 1)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    def _work(self, number: int) -> None:
        if number == 0 and not self._ready:
            code = _prepare(self._kernels)
            with self._free:
                self.unprepared, self._ready = code, True
                if code:
                    self._jobs = [job for job in self._jobs if not job.kernel and not job.fetched]
                self._free.notify_all()
        patient = number == CPUS
        while True:
            with self._free:
                self._free.wait_for(lambda: self._next(patient) is not None or not self._coming(patient))
                job = self._next(patient)
                if job is None:
                    return
                self._jobs.remove(job)
            result = run(job, **self._variables)
            with self._free:
                self.results.append(result)
                self._free.notify_all()

    def _next(self, patient: bool) -> Job | None:
        """Return the next job, those without a guest first; the third worker takes no guests on the real clock."""
        found = [job for job in self._jobs if self._ready or not (job.kernel or job.fetched)]
        return next((job for job in found if not patient or job.timed or not job.kernel), None)

    def _coming(self, patient: bool) -> bool:
        """Tell whether there will be another job."""
        return any(not patient or job.timed or not job.kernel for job in self._jobs)


def table(results: Sequence[Result]) -> list[str]:
    """Return a line for each job, the longest tests, and the retries."""
    order = [job.name for job in (*here(every=True), *guests(every=True))]
    lines = [f"{'job':<18}{'':<7}{'passed':>7}{'seconds':>9}{'CPU s':>8}{'boots':>7}{'starts':>8}{'loads':>7}"]
    for result in sorted(results, key=lambda one: order.index(one.job.name)):
        verdict = "ok" if result.code == 0 else "FAILED"
        lines.append(
            f"{result.job.name:<18}{verdict:<7}{result.passed:>7}{result.seconds:>9.0f}{result.cpu_s:>8.0f}"
            f"{result.boots:>7}{result.starts:>8}{result.loads:>7}"
        )
    for result in results:
        if result.longest:
            lines += ["", f"longest of {result.job.name}"]
            lines += [f"{seconds:>8.1f} s  {test}" for seconds, test in result.longest]
    retried = [f"{result.job.name}: {one}" for result in results for one in result.retried]
    RETRIES.write_text("".join(f"{line}\n" for line in retried))
    lines += [
        "",
        f"{len(retried)} ran once more ({RETRIES.relative_to(ROOT) if RETRIES.is_relative_to(ROOT) else RETRIES})",
    ]
    lines += [f"  {line}" for line in retried]
    return lines


def too_long(results: Sequence[Result]) -> list[str]:
    """Return the jobs to blame if all of them together exceed the limit."""
    whole = sum(result.cpu_s for result in results) / CPUS
    if whole <= LIMIT_S:
        return []
    # A slower machine makes all jobs take longer by the same factor.
    pace = statistics.median(one.cpu_s / EXPECTED_S.get(one.job.name, one.cpu_s or 1) for one in results)
    grown = sorted(results, key=lambda one: pace * EXPECTED_S.get(one.job.name, 0) - one.cpu_s)
    longer = f"all jobs take {whole:.0f} s on {CPUS} CPUs, more than the {LIMIT_S} s that they may"
    return [f"{longer}, and half of them {pace:.1f} times what is expected or more:"] + [
        f"  {one.job.name}: {one.cpu_s:.0f} CPU seconds, expected are {EXPECTED_S.get(one.job.name, 0):.0f}"
        for one in grown[:3]
    ]


def sources() -> dict[str, str]:
    """Return what tests read all the time: the commit, and each file in git with the time of its last change."""
    if shutil.which("git") is None:
        return {}
    commit, listed = (
        subprocess.run(("git", *words), cwd=ROOT, capture_output=True, text=True, check=False).stdout
        for words in (("rev-parse", "HEAD"), ("ls-files", "-z"))
    )
    paths = {name: ROOT / name for name in listed.split("\0") if name}
    return {"HEAD": commit, **{name: str(path.stat().st_mtime_ns) for name, path in paths.items() if path.is_file()}}


def changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Return a line that names what somebody has changed meanwhile."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    shown = names[:_COMPLAINTS] + ["..."] * (len(names) > _COMPLAINTS)
    return [f"changed while the tests ran, which may be why some failed: {', '.join(shown)}"] if names else []


def main(words: Sequence[str]) -> int:
    every = "--all" in words
    names = [word for word in words if word != "--all"]
    known = {job.name: job for job in (*here(every), *guests(every))}
    if set(names) - set(known):
        unknown = ", ".join(sorted(set(names) - set(known)))
        print(f"run: no such job: {unknown} (there are {', '.join(sorted(known))})", file=sys.stderr)
        return 2
    LOGS.mkdir(parents=True, exist_ok=True)
    # SIGINT may be ignored if this was started in the background, and child processes would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    start, before = time.monotonic(), sources()
    queue = Queue([known[name] for name in names or known], {"WPTRACE_TESTS_ALL": "1"} if every else {})
    queue.work()
    results = queue.results
    print()
    print("\n".join((*table(results), "", *too_long(results), *changed(before, sources()))))
    for result in results:
        print("".join(f"FAILED {result.job.name}: {one}\n" for one in result.complaints), end="")
    failed = sum(result.failed for result in results) + bool(queue.unprepared)
    print(f"{time.monotonic() - start:.0f} s")
    print(f"{sum(result.passed for result in results)} passed, {failed} failed")
    return 1 if queue.unprepared or any(result.code for result in results) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
