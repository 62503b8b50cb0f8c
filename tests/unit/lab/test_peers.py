# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import peers, roots
from tests.lab.errors import LabError


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for path in ("usr/sbin/biolatency-libbpf", "usr/lib64/ld-linux-x86-64.so.2", "usr/lib/x86_64-linux-gnu/libc.so.6"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()

    def fetched(recipe: roots.Recipe, arch: str) -> Path:
        assert recipe is peers.RECIPE
        return tmp_path

    monkeypatch.setattr(roots, "fetch", fetched)
    return tmp_path


def test_a_tool_runs_with_its_own_libraries(root: Path) -> None:
    command = peers.command("biolatency-libbpf", "-D")
    assert command[0] == str(root / "usr/lib64/ld-linux-x86-64.so.2")
    assert command[1] == "--library-path"
    assert command[3:] == [str(root / "usr/sbin/biolatency-libbpf"), "-D"]


def test_a_tool_that_is_not_there(root: Path) -> None:
    with pytest.raises(LabError, match="libbpf-tools have no nonsense"):
        peers.command("nonsense")
