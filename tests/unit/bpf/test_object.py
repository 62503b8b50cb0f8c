# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from wptrace.bpf import object as objects


def test_objects_are_looked_for_in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The environment, then the package, and nothing else: an object under another prefix is of another version."""
    package = tmp_path / "lib" / "wptrace"
    monkeypatch.setattr(objects, "__file__", str(package / "bpf" / "object.py"))
    monkeypatch.setenv("WPTRACE_BPF_DIR", str(tmp_path / "named"))
    (tmp_path / "named").mkdir()
    own = package / "objects" / objects.machine()
    assert objects.folders() == [tmp_path / "named", own]
    monkeypatch.delenv("WPTRACE_BPF_DIR")
    assert objects.folders() == [own]


def test_the_first_that_has_it_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    monkeypatch.setattr(objects, "folders", lambda: [first, second])
    second.mkdir()
    (second / "flow.bpf.o").write_bytes(b"")
    assert objects.find("flow") == second / "flow.bpf.o"
    first.mkdir()
    (first / "flow.bpf.o").write_bytes(b"")
    assert objects.find("flow") == first / "flow.bpf.o"
