# SPDX-License-Identifier: Apache-2.0
"""Jobs of tests/run.py: their tests, their retries, and the reports about them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

from tests import run
from tests.lab.matrix import KERNELS
from tests.run import Job, Queue, Result

# Fails or dies in the first runs, with these tests and this exit code. Seven other tests pass.
SCRIPT = """
import os, pathlib, sys
folder, failing_runs, code, *what = sys.argv[1:]
what = [word for word in what if word not in ("--", "-m") and "console" not in word]
count = pathlib.Path(folder, "count")
runs = int(count.read_text()) + 1 if count.exists() else 1
count.write_text(str(runs))
done = os.environ.get("WPTRACE_TESTS_DONE")
left_out = pathlib.Path(done).read_text().split("\\n") if done else []
tests = [name for name in what if "::" in name and name not in left_out]
passing = [f"tests/kernel/test_c.py::test_{number}" for number in range(7)]
passing = [name for name in passing if name not in left_out]
if not tests and runs <= int(failing_runs):
    sys.exit(int(code))
for name in passing:
    print(name, "PASSED [ 1%]")
outcome = "PASSED" if runs > int(failing_runs) else "FAILED"
if outcome == "FAILED" and code != "1":
    print(tests[0], "")
    sys.exit(int(code))
for name in tests:
    print(name, outcome, "[ 9%]")
print("retried tests/kernel/test_a.py::test_one: SkippedByKernel: 3 runs")
print("started the command 12 times, loaded 5 objects in tests")
print("12.34s call     tests/kernel/test_a.py::test_one[polled by the kernel]")
if outcome == "PASSED":
    print(f"=== {len(passing) + len(tests)} passed in 1.00s ===")
    sys.exit(0)
print(f"=== {len(tests)} failed, {len(passing)} passed in 1.00s (0:00:01) ===")
sys.exit(1)
"""
TESTS = ("tests/kernel/test_a.py::test_one[polled by the kernel]", "tests/kernel/test_b.py::test_two")
DEAD = run.GUEST_DIED


@pytest.fixture(autouse=True)
def _logs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run, "LOGS", tmp_path)
    monkeypatch.setattr(run, "RETRIES", tmp_path / "retries")


def job(folder: Path, failing_runs: int, *tests: str, code: int = 1, cpus: int = 1) -> Job:
    command = (sys.executable, "-c", SCRIPT, str(folder), str(failing_runs), str(code), "--")
    return Job("6.12", command, tests, "not icount", "6.12", cpus)


def runs(folder: Path) -> int:
    return int((folder / "count").read_text())


def test_what_passes_runs_once_and_tells_what_it_took(tmp_path: Path) -> None:
    result = run.run(job(tmp_path, 0, *TESTS))
    assert (result.code, result.passed, result.failed, result.boots) == (0, 9, 0, 1)
    assert (result.starts, result.loads, result.longest) == (12, 5, [(12.34, TESTS[0])])
    assert 0 < result.cpu_s < 60
    assert runs(tmp_path) == 1


def test_what_fails_has_failed(tmp_path: Path) -> None:
    """A retry might pass, because a race passes now and then."""
    result = run.run(job(tmp_path, 1, *TESTS))
    assert (result.code, result.passed, result.failed) == (1, 7, 2)
    assert runs(tmp_path) == 1


def test_each_retry_is_reported(tmp_path: Path) -> None:
    result = run.run(job(tmp_path, 0, *TESTS))
    assert result.retried == ["tests/kernel/test_a.py::test_one: SkippedByKernel: 3 runs"]
    reported = run.table([result])
    assert "1 ran once more" in "\n".join(reported)
    assert run.RETRIES.read_text() == f"6.12: {result.retried[0]}\n"


@pytest.mark.parametrize(("code", "how"), [(DEAD, "died"), (run.GUEST_HUNG, "hung")])
def test_a_guest_of_several_cpus_that_died_leaves_the_rest_to_another(tmp_path: Path, code: int, how: str) -> None:
    result = run.run(job(tmp_path, 1, *TESTS, code=code, cpus=2))
    assert (result.code, result.passed, result.failed, result.boots) == (0, 9, 0, 2)
    assert result.retried[0].startswith(f"6.12: the guest {how} after 7 tests")


def test_a_guest_that_dies_twice_has_failed(tmp_path: Path) -> None:
    result = run.run(job(tmp_path, 2, *TESTS, code=DEAD, cpus=2))
    assert (result.code, result.passed, result.failed) == (DEAD, 7, 1)
    assert runs(tmp_path) == 2


def test_a_guest_that_dies_as_it_boots_boots_again(tmp_path: Path) -> None:
    for deaths, code in ((run.BOOTS - 1, 0), (run.BOOTS, DEAD)):
        folder = tmp_path / str(deaths)
        folder.mkdir()
        result = run.run(job(folder, deaths, code=DEAD, cpus=2))
        assert (result.code, result.boots, runs(folder)) == (code, run.BOOTS, run.BOOTS)


def test_a_guest_of_one_cpu_that_died_has_failed(tmp_path: Path) -> None:
    result = run.run(job(tmp_path, 1, *TESTS, code=DEAD))
    assert (result.code, result.failed) == (DEAD, 1)
    assert runs(tmp_path) == 1


def test_jobs_share_no_temporary_folder(tmp_path: Path) -> None:
    """A file that a job leaves is in no other job's way, and is removed."""
    script = "import os, pathlib, sys; folder = pathlib.Path(os.environ['PYTEST_DEBUG_TEMPROOT']); " + (
        "left = list(folder.iterdir()); (folder / 'left').mkdir(); open(sys.argv[1], 'a').write(f'{folder} {left}\\n')"
    )
    for name in ("one", "other"):
        run.run(Job(name, (sys.executable, "-c", script, str(tmp_path / "seen"))))
    one, other = [line.split(" ", 1) for line in (tmp_path / "seen").read_text().splitlines()]
    assert one[1] == other[1] == "[]"
    assert one[0] != other[0]
    assert not Path(one[0]).exists()


def result_of(name: str, cpu_s: float) -> Result:
    return Result(Job(name, ()), 0, 1, 0, cpu_s, cpu_s, 0, 0, 0, (), ())


def test_who_makes_it_too_long_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "EXPECTED_S", {"unit": 100, "6.12": 900, "7.2": 800})
    assert run.too_long([result_of("unit", 150), result_of("6.12", 900), result_of("7.2", 2500)]) == []
    reported = run.too_long([result_of("unit", 150), result_of("6.12", 900), result_of("7.2", 2600)])
    assert reported[0].startswith("all jobs take 1825 s on 2 CPUs")
    assert reported[1] == "  7.2: 2600 CPU seconds, expected are 800"


def test_a_slow_machine_is_not_taken_for_a_job_that_grew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "EXPECTED_S", {"unit": 100, "6.12": 900, "7.2": 800, "5.10": 700})
    reported = run.too_long(
        [result_of("unit", 900), *(result_of(name, 2 * run.EXPECTED_S[name]) for name in ("6.12", "7.2", "5.10"))]
    )
    assert "half of them 2.0 times" in reported[0]
    assert reported[1] == "  unit: 900 CPU seconds, expected are 100"


def test_guests_wait_for_what_they_need_and_the_longest_is_first(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(run, "CPUS", 1)
    monkeypatch.setattr(run, "EXPECTED_S", {"5.10": 10, "6.12": 20, "lint": 5})

    def prepare(kernels: object) -> int:
        order.append(f"prepare {kernels}")
        return 0

    def run_job(job: Job) -> object:
        order.append(job.name)
        return result_of(job.name, 1)

    monkeypatch.setattr(run, "_prepare", prepare)
    monkeypatch.setattr(run, "run", run_job)
    queue = Queue([Job("lint", ()), Job("5.10", (), kernel="5.10"), Job("6.12", (), kernel="6.12")], {})
    queue.work()
    # Jobs without a guest do not wait.
    assert [name for name in order if name != "lint"] == ["prepare ['5.10', '6.12']", "6.12", "5.10"]
    assert order.count("lint") == 1


def test_beside_the_guests_runs_what_does_not_mind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each CPU has at most one guest on the real clock."""
    jobs = [Job(name, (), kernel="6.12") for name in ("a", "b", "c")]
    jobs += [Job(f"{name}-icount", (), kernel="6.12", timed=True) for name in "ab"] + [Job("lint", ())]
    together: list[set[str]] = []
    under_way: set[str] = set()
    lock = threading.Lock()
    everyone = threading.Event()

    def took(job: Job) -> Result:
        with lock:
            under_way.add(job.name)
            together.append(set(under_way))
            if len(under_way) > run.CPUS:
                everyone.set()
        # None ends before each worker has one: they start when the scheduler lets them.
        everyone.wait(30)
        time.sleep(0.05)
        with lock:
            under_way.remove(job.name)
        return result_of(job.name, 1)

    monkeypatch.setattr(run, "_prepare", lambda kernels: 0)
    monkeypatch.setattr(run, "run", took)
    queue = Queue(jobs, {})
    queue.work()
    assert sorted(one.job.name for one in queue.results) == sorted(job.name for job in jobs)
    assert max(len(found & {"a", "b", "c"}) for found in together) == run.CPUS
    assert any(len(found & {"a", "b", "c"}) == run.CPUS and len(found) > run.CPUS for found in together)


def test_without_kernels_no_guest_boots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_prepare", lambda kernels: 3)
    monkeypatch.setattr(run, "run", lambda job: result_of(job.name, 1))
    queue = Queue([Job("lint", ()), Job("6.12", (), kernel="6.12")], {})
    queue.work()
    assert ([one.job.name for one in queue.results], queue.unprepared) == (["lint"], 3)


# --- Which tests are in which job -------------------------------------------------------------------------------------

COLLECT = """
import json, sys, pytest
class Collected:
    def pytest_collection_finish(self, session):
        found = {item.nodeid: [mark.name for mark in item.iter_markers()] for item in session.items}
        sys.stderr.write(json.dumps(found))
# No test runs, so its assertions need no words; and to end with those of hypothesis takes an import of all of it.
quick = ["--assert=plain", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
code = pytest.main(["--collect-only", "-qq", *quick, "tests/kernel"], plugins=[Collected()])
sys.exit(int(code))
"""


def collected(kernel: str) -> dict[str, list[str]]:
    """Collect the marks of tests on a kernel."""
    environment = {name: value for name, value in os.environ.items() if name != "WPTRACE_LAB_KERNEL"}
    environment.update({"WPTRACE_LAB_KERNEL": kernel} if kernel else {})
    command = [sys.executable, "-c", COLLECT]
    done = subprocess.run(command, cwd=run.ROOT, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, list[str]] = json.loads(done.stderr[done.stderr.index("{") :])
    return found


def takes(job: Job, test: str, marks: list[str]) -> bool:
    inside = any(test.startswith(file) for file in job.files)
    return inside and Expression.compile(job.marks).evaluate(lambda name, /, **_: name in marks)


@pytest.fixture(scope="module")
def tests() -> Mapping[str, dict[str, list[str]]]:
    """Tests by kernel. Kernels of guests collect the same tests."""
    return {kernel: collected(kernel) for kernel in ("", run.ONE)}


def test_each_test_is_in_a_job(tests: Mapping[str, dict[str, list[str]]]) -> None:
    (here,) = (job for job in run.here() if job.name == "running")
    assert len(tests[run.ONE]) > 300
    every = run.guests()
    one = [job for job in every if job.kernel == run.ONE]
    oldest, *_, newest = (kernel for kernel in KERNELS if not kernel.running)
    wanted = {oldest: {"each_kernel"}, newest: {"each_kernel", "guest"}}
    for test, marks in tests[""].items():
        assert takes(here, test, marks) or any(takes(job, test, marks) for job in every), test
    for test, marks in tests[run.ONE].items():
        # Each test is in some job, whatever its marks.
        assert takes(here, test, marks) or any(takes(job, test, marks) for job in every), test
        assert sum(takes(job, test, marks) for job in one) == ("icount" in marks or {"guest", "one_kernel"} <= {*marks})
        for kernel, some in wanted.items():
            count = sum(takes(job, test, marks) for job in every if job.kernel == kernel.name)
            assert count == (bool(some & {*marks}) and not {"one_kernel", "icount"} & {*marks}), test


def test_with_all_each_test_runs_on_every_kernel(tests: Mapping[str, dict[str, list[str]]]) -> None:
    for kernel in (kernel for kernel in KERNELS if not kernel.running):
        jobs = [job for job in run.guests(every=True) if job.kernel == kernel.name]
        for test, marks in tests[run.ONE].items():
            assert sum(takes(job, test, marks) for job in jobs) == 1, test


def test_the_table_of_jobs_in_the_docs_has_each_with_what_is_expected_of_it() -> None:
    page = (run.ROOT / "docs" / "testing.md").read_text()
    reported = {
        name: float(seconds) for name, seconds in re.findall(r"^\| `([\w.-]+)` \|[^|]*\| (\d+) \|", page, re.MULTILINE)
    }
    assert set(reported) == {job.name for job in (*run.here(), *run.guests())}
    assert reported == run.EXPECTED_S


FAILURES = """
=================================== FAILURES ===================================
_____________________________ test_the_first[some] _____________________________

    def test_the_first(some) -> None:
>       assert some == 1
E       AssertionError: assert 2 == 1
E         more
E         and more
E         that nobody needs

tests/kernel/test_some.py:7: AssertionError
______________________ ERROR at setup of test_the_second _______________________
_ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _
E   FileExistsError: [Errno 17] File exists
=========================== short test summary info ============================
"""


def test_the_end_of_a_run_says_which_tests_failed_and_why() -> None:
    assert run.complaints(FAILURES) == [
        "test_the_first[some]: AssertionError: assert 2 == 1 | more | and more",
        "ERROR at setup of test_the_second: FileExistsError: [Errno 17] File exists",
    ]
    assert run.complaints("5 passed in 1.00s\n") == []


def test_the_end_of_a_run_says_what_was_changed_meanwhile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two builds before and after a commit to the tree differ, and the build is not to blame."""

    def git(*words: str) -> None:
        named = ("-c", "user.name=x", "-c", "user.email=x@x.invalid")
        subprocess.run(("git", "-C", str(tmp_path), *named, *words), check=True)

    monkeypatch.setattr(run, "ROOT", tmp_path)
    git("init", "--quiet")
    for name in ("edited", "gone", "stays"):
        (tmp_path / name).write_text(name)
    git("add", ".")
    git("commit", "--quiet", "--message", "one")
    before = run.sources()
    assert run.changed(before, run.sources()) == []
    (tmp_path / "not in git").write_text("of a test")
    assert run.changed(before, run.sources()) == []
    os.utime(tmp_path / "edited", ns=(1, 1))
    (tmp_path / "gone").unlink()
    (tmp_path / "new").touch()
    git("add", "new")
    told = "changed while the tests ran, which may be why some failed: "
    assert run.changed(before, run.sources()) == [f"{told}edited, gone, new"]
    git("commit", "--quiet", "--all", "--message", "two")
    assert run.changed(before, run.sources()) == [f"{told}HEAD, edited, gone, new"]
    many = {f"file{number}": "" for number in range(30)}
    assert run.changed(many, {})[0].endswith("file18, file19, ...")


def test_a_tree_without_git_is_not_said_to_be_changed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run, "ROOT", tmp_path)
    assert run.changed(run.sources(), run.sources()) == []
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run.sources() == {}
