# SPDX-License-Identifier: Apache-2.0
"""Stacks by name, from made-up maps and symbols."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from wptrace.bpf.object import open_object
from wptrace.flows import stacks
from wptrace.flows.stacks import Frames
from wptrace.kernel import privileges
from wptrace.kernel.symbols import UNKNOWN
from wptrace.model.stack import Stack

if TYPE_CHECKING:
    from wptrace.bpf.object import BpfObject

SECOND_CHANCE = 1 << 30
NAMES = ("bpf_prog_1", "bpf_trace_run1", "blk_mq_submit_bio", "vfs_read", "entry", "bpf_late")


class Symbols:
    """A function for each name, 0x10 bytes long, from 0x1000 on."""

    def __init__(self, *unused: Any) -> None:
        self.known = True
        self.read = 0

    def refresh(self) -> None:
        self.read += 1

    def name(self, address: int) -> str:
        place = (address - 0x1000) // 0x10
        return NAMES[place] if 0 <= place < len(NAMES) else UNKNOWN


class FakeMap:
    def __init__(self, stacks: dict[int, list[int]]) -> None:
        self._stacks = {key.to_bytes(4, "little"): stack for key, stack in stacks.items()}

    def raw(self, key: bytes) -> memoryview | None:
        found = self._stacks.get(key)
        return None if found is None else memoryview(struct.pack("<8Q", *found, *[0] * (8 - len(found))))


def address(name: str) -> int:
    """Return the return address of a call in a function."""
    return 0x1008 + 0x10 * NAMES.index(name)


def made(
    monkeypatch: pytest.MonkeyPatch, first: dict[int, list[int]], more: dict[int, list[int]] | None = None
) -> Frames:
    monkeypatch.setattr(stacks, "KernelSymbols", Symbols)
    monkeypatch.setattr(stacks, "ProcessSymbols", Symbols)
    monkeypatch.setattr(stacks, "name_of", lambda tgid: "living" if tgid == 44 else "")
    monkeypatch.setattr(stacks, "namespace", lambda: 0)
    maps = {"stacks": FakeMap(first), "more_stacks": FakeMap(more or {})}
    return Frames(cast("BpfObject", SimpleNamespace(maps=maps, constants={"SECOND_CHANCE": SECOND_CHANCE})))


def stack(*names: str) -> list[int]:
    return [address(name) for name in names]


def test_what_takes_the_stack_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    found = made(
        monkeypatch,
        {
            0: stack("bpf_prog_1", "bpf_trace_run1", "blk_mq_submit_bio", "vfs_read", "entry"),
            1: [0x9999, *stack("bpf_trace_run1", "blk_mq_submit_bio", "entry")],  # the program has no name
            2: stack("blk_mq_submit_bio", *["vfs_read"] * 5, "bpf_late", "entry"),  # here it is a traced function
        },
    )
    assert found.stack(0, -1, 0) == Stack(("blk_mq_submit_bio", "vfs_read", "entry"))
    assert found.stack(1, -1, 0) == Stack(("blk_mq_submit_bio", "entry"))
    assert found.stack(2, -1, 0).kernel[-2:] == ("bpf_late", "entry")


def test_an_address_is_behind_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that never returns may end a function, and the innermost address is no return address."""
    found = made(monkeypatch, {0: [0x1020, 0x1040]})
    assert found.stack(0, -1, 0) == Stack(("blk_mq_submit_bio", "vfs_read"))


def test_a_stack_of_the_second_map(monkeypatch: pytest.MonkeyPatch) -> None:
    found = made(monkeypatch, {5: stack("entry")}, {5: stack("vfs_read")})
    assert found.stack(5, -1, 0) == Stack(("entry",))
    assert found.stack(5 | SECOND_CHANCE, -1, 0) == Stack(("vfs_read",))
    with open_object("stacks") as obj:
        assert obj.constants["SECOND_CHANCE"] == SECOND_CHANCE


@pytest.mark.parametrize("stack_id", [-17, -14, 7])
def test_no_stack(monkeypatch: pytest.MonkeyPatch, stack_id: int) -> None:
    assert made(monkeypatch, {}).stack(stack_id, -1, 0) == Stack(("[no stack]",))


def test_a_process_has_a_stack_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    found = made(monkeypatch, {0: stack("entry"), 1: [*stack("vfs_read"), 5, 6, 7, *stack("blk_mq_submit_bio"), 8]})
    found.add_process(42, b"dd\0rest")
    assert found.stack(0, 1, 42) == Stack(("entry",), ("vfs_read", UNKNOWN, "blk_mq_submit_bio", UNKNOWN), "dd[42]")
    # Processes that the programs had no room to report.
    assert found.stack(0, -1, 43) == Stack(("entry",), (), "?[43]")
    assert found.stack(0, -1, 44) == Stack(("entry",), (), "living[44]")


def test_another_pid_namespace_has_other_processes_by_these_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    found = made(monkeypatch, {0: stack("entry"), 1: stack("vfs_read")})
    monkeypatch.setattr(stacks, "namespace", lambda: 4711)
    found.add_process(42, b"dd")
    assert found.stack(0, 1, 42) == Stack(("entry",), (UNKNOWN,), "dd[42]")
    assert "ids of this pid namespace" in found.notes(user=True)[1]


def test_a_stack_keeps_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two snapshots are subtracted by name, so names must not change between them."""
    found = made(monkeypatch, {0: stack("entry")})
    before = found.stack(0, -1, 0)
    monkeypatch.setattr(Symbols, "name", lambda *_: "other")
    assert found.stack(0, -1, 0) is before


def test_what_the_reader_must_know(monkeypatch: pytest.MonkeyPatch) -> None:
    found = made(monkeypatch, {})
    assert found.notes(user=False) == []
    monkeypatch.setattr(privileges, "effective", lambda: {"CAP_SYS_PTRACE"})
    assert ["frame pointers" in note for note in found.notes(user=True)] == [True]
    monkeypatch.setattr(privileges, "effective", lambda: {"CAP_SYS_ADMIN"})
    assert "CAP_SYS_PTRACE, which is missing" in found.notes(user=True)[1]
    monkeypatch.setattr(Symbols, "known", False, raising=False)
    hidden = made(monkeypatch, {})
    hidden._kernel.__dict__["known"] = False
    assert "CAP_SYSLOG, which is missing" in hidden.notes(user=False)[0]
