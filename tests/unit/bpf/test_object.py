# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from wptrace.bpf import object as objects


def test_objects_are_looked_for_in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The environment, the package, the build folder, then the library folder beside the Python of the package."""
    package = tmp_path / "local" / "lib" / "python3.12" / "site-packages" / "wptrace"
    monkeypatch.setattr(objects, "__file__", str(package / "bpf" / "object.py"))
    monkeypatch.setenv("WPTRACE_BPF_DIR", str(tmp_path / "named"))
    machine = objects.machine()
    assert objects.folders()[:4] == [
        tmp_path / "named",
        package / "objects" / machine,
        package.parent / "build" / machine,
        tmp_path / "local" / "lib" / "wptrace" / machine,
    ]
    assert Path("/usr/lib64/wptrace") / machine in objects.folders()
    monkeypatch.delenv("WPTRACE_BPF_DIR")
    assert objects.folders()[0] == package / "objects" / machine


def test_the_first_that_has_it_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    monkeypatch.setattr(objects, "folders", lambda: [first, second])
    second.mkdir()
    (second / "flow.bpf.o").write_bytes(b"")
    assert objects.find("flow") == second / "flow.bpf.o"
    first.mkdir()
    (first / "flow.bpf.o").write_bytes(b"")
    assert objects.find("flow") == first / "flow.bpf.o"
