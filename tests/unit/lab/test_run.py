# SPDX-License-Identifier: Apache-2.0
"""What tests/run.py makes of a job whose tests fail."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import run
from tests.run import Job

# Fails in as many runs as it is told, with these tests.
SCRIPT = """
import pathlib, sys
count = pathlib.Path(sys.argv[1])
runs = int(count.read_text()) + 1 if count.exists() else 1
count.write_text(str(runs))
print("what:", sys.argv[3:])
failing = sys.argv[4:] if sys.argv[3:4] == ["all"] else sys.argv[3:]
if runs > int(sys.argv[2]):
    print(f"{len(failing)} passed in 1.00s")
else:
    for test in failing:
        print(f"FAILED {test} - assert 1 == 2")
    print(f"{len(failing)} failed, 7 passed in 1.00s")
    sys.exit(1)
"""
TESTS = ("tests/kernel/test_a.py::test_one[polled by the kernel]", "tests/kernel/test_b.py::test_two")


@pytest.fixture(autouse=True)
def _logs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run, "LOGS", tmp_path)


def job(folder: Path, failing_runs: int, *tests: str) -> Job:
    command = (sys.executable, "-c", SCRIPT, str(folder / "count"), str(failing_runs))
    return Job("guest", command, ("all", *tests))


def runs(folder: Path) -> int:
    return int((folder / "count").read_text())


def test_what_passes_runs_once(tmp_path: Path) -> None:
    result = run.run(job(tmp_path, 0, *TESTS))
    assert (result.code, result.passed, result.failed, result.again) == (0, 2, 0, [])
    assert runs(tmp_path) == 1


def test_what_fails_once_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run.run(job(tmp_path, 1, *TESTS))
    assert (result.code, result.passed, result.failed, result.again) == (0, 9, 0, list(TESTS))
    # Only those, and why they failed is shown.
    assert (tmp_path / "guest-again.log").read_text().startswith(f"what: {list(TESTS)}")
    assert "assert 1 == 2" in capsys.readouterr().out


def test_what_fails_again_has_failed(tmp_path: Path) -> None:
    result = run.run(job(tmp_path, 2, *TESTS))
    assert (result.code, result.passed, result.failed, result.again) == (1, 7, 2, [])
    assert runs(tmp_path) == 2


def test_many_that_fail_have_failed(tmp_path: Path) -> None:
    many = [f"tests/kernel/test_a.py::test_{number}" for number in range(run.FEW + 1)]
    assert run.run(job(tmp_path, 1, *many)).failed == run.FEW + 1
    assert runs(tmp_path) == 1


def test_jobs_without_a_guest_run_once(tmp_path: Path) -> None:
    guest = job(tmp_path, 1, *TESTS)
    result = run.run(Job("lint", (*guest.command, *guest.what)))
    assert (result.code, result.failed) == (1, 2)
    assert runs(tmp_path) == 1
