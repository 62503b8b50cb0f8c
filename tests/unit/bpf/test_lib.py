# SPDX-License-Identifier: Apache-2.0
"""Callbacks of libbpf with its messages, which no exception may leave."""

from __future__ import annotations

from typing import Any

import pytest

from wptrace.bpf.lib import Libbpf, libbpf

_WARNING = 0


def reported(lib: Libbpf, error: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> int:
    """Return what the library gets back for a message."""

    def fail(*unused: Any) -> str:
        raise error

    monkeypatch.setattr(lib, "_format", fail)
    return int(lib._printer(_WARNING, lib.ffi.NULL, lib.ffi.NULL))


def test_an_interrupt_in_a_message_is_reported_when_libbpf_returns(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    lib = libbpf()
    assert reported(lib, KeyboardInterrupt, monkeypatch) == 0
    with pytest.raises(KeyboardInterrupt):
        lib.check(-1, "it failed")
    assert reported(lib, KeyboardInterrupt, monkeypatch) == 0
    with pytest.raises(KeyboardInterrupt):
        lib.pointer(lib.ffi.NULL, "it failed")
    assert lib.check(0, "it worked") == 0
    assert capfd.readouterr() == ("", "")


def test_another_error_in_a_message_is_reported_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    lib = libbpf()
    assert reported(lib, MemoryError, monkeypatch) == 0
    assert lib.check(0, "it worked") == 0
    assert "Traceback" not in capfd.readouterr().err
    assert [one.getMessage() for one in caplog.records] == ["a call from libbpf failed: MemoryError"]
