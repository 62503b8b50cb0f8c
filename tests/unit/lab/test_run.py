# SPDX-License-Identifier: Apache-2.0
"""What tests/run.py makes of a job whose tests fail."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import run
from tests.run import Job

# Fails in as many runs as it is told, with these tests, and with this exit code. Seven others pass.
SCRIPT = """
import os, pathlib, sys
folder, failing_runs, code, *what = sys.argv[1:]
count = pathlib.Path(folder, "count")
runs = int(count.read_text()) + 1 if count.exists() else 1
count.write_text(str(runs))
print("what:", what)
done = os.environ.get("WPTRACE_TESTS_DONE")
left_out = pathlib.Path(done).read_text().split("\\n") if done else []
tests = [name for name in what if "::" in name and name not in left_out]
passing = [f"tests/kernel/test_c.py::test_{number}" for number in range(7)] if what[0] == "all" else []
passing = [name for name in passing if name not in left_out]
for name in passing:
    print(name, "PASSED [ 1%]")
outcome = "PASSED" if runs > int(failing_runs) else "FAILED"
if outcome == "FAILED" and code == "125":
    print(tests[0], "")
    sys.exit(125)
for name in tests:
    print(name, outcome, "[ 9%]")
if outcome == "PASSED":
    print(f"=== {len(passing) + len(tests)} passed in 1.00s ===")
    sys.exit(0)
print(f"=== {len(tests)} failed, {len(passing)} passed in 1.00s (0:00:01) ===")
sys.exit(1)
"""
TESTS = ("tests/kernel/test_a.py::test_one[polled by the kernel]", "tests/kernel/test_b.py::test_two")


@pytest.fixture(autouse=True)
def _logs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run, "LOGS", tmp_path)


def job(folder: Path, failing_runs: int, *tests: str, code: int = 1) -> Job:
    command = (sys.executable, "-c", SCRIPT, str(folder), str(failing_runs), str(code))
    return Job("guest", command, ("all", *tests))


def runs(folder: Path) -> int:
    return int((folder / "count").read_text())


def test_what_passes_runs_once(tmp_path: Path) -> None:
    result = run.run(job(tmp_path, 0, *TESTS))
    assert (result.code, result.passed, result.failed, result.again) == (0, 9, 0, [])
    assert runs(tmp_path) == 1


def test_what_fails_once_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run.run(job(tmp_path, 1, *TESTS))
    assert (result.code, result.passed, result.failed, result.again) == (0, 9, 0, list(TESTS))
    # Only those, and why they failed is shown.
    assert (tmp_path / "guest-again.log").read_text().startswith(f"what: {list(TESTS)}")
    assert f"{TESTS[0]} FAILED" in capsys.readouterr().out


def test_what_fails_again_has_failed(tmp_path: Path) -> None:
    result = run.run(job(tmp_path, 2, *TESTS))
    assert (result.code, result.passed, result.failed, result.again) == (1, 7, 2, [])
    assert runs(tmp_path) == 2


def test_many_that_fail_have_failed(tmp_path: Path) -> None:
    many = [f"tests/kernel/test_a.py::test_{number}" for number in range(run.FEW + 1)]
    assert run.run(job(tmp_path, 1, *many)).failed == run.FEW + 1
    assert runs(tmp_path) == 1


def test_a_guest_that_died_leaves_the_rest_to_another(tmp_path: Path) -> None:
    result = run.run(job(tmp_path, 1, *TESTS, code=run.GUEST_DIED))
    assert (result.code, result.passed, result.failed, result.again) == (0, 9, 0, [])
    assert "2 passed" in (tmp_path / "guest-rest.log").read_text()


def test_a_guest_that_dies_twice_has_failed(tmp_path: Path) -> None:
    result = run.run(job(tmp_path, 2, *TESTS, code=run.GUEST_DIED))
    assert (result.code, result.passed, result.failed) == (run.GUEST_DIED, 7, 1)
    assert runs(tmp_path) == 2


def test_jobs_without_a_guest_run_once(tmp_path: Path) -> None:
    guest = job(tmp_path, 1, *TESTS)
    result = run.run(Job("lint", (*guest.command, *guest.what)))
    assert (result.code, result.failed) == (1, 2)
    assert runs(tmp_path) == 1
