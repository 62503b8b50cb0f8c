# SPDX-License-Identifier: Apache-2.0
"""The programs that see operations, by the file systems in use and the kernel's support of asynchronous ones."""

from __future__ import annotations

import pytest

from wptrace.engine.hooks import END, Way
from wptrace.flows.io import hooks as io_hooks
from wptrace.flows.io import operations as io_operations
from wptrace.flows.io.operations import (
    BY_CALL,
    BY_FUNCTION,
    KNOWN,
    KNOWN_SYNCS,
    SYNCS_BY_FUNCTION,
    is_watched,
    notes,
    sync_ways,
    unseen,
    ways,
)
from wptrace.kernel import mounts
from wptrace.kernel.mounts import Place

AIO = ("aio_read", "aio_write", "aio_complete_rw")
OVERFLOWS = ("io_req_cqe_overflow", "io_alloc_ocqe")
OLD = {
    "io_uring_submit_sqe": ("void *", "io_kiocb *", "u8", "u64", "u32", "bool", "bool"),
    "io_uring_complete": ("void *", "u64", "long int", "unsigned int"),
}
MIDDLE = {
    "io_uring_submit_sqe": ("io_kiocb *", "bool"),
    "io_uring_complete": ("void *", "void *", "u64", "int", "unsigned int", "u64", "u64"),
}
NEW = {
    "io_uring_submit_req": ("io_kiocb *",),
    "io_uring_complete": ("io_ring_ctx *", "void *", "io_uring_cqe *"),
}


class Btf:
    def __init__(self, tracepoints: dict[str, tuple[str, ...]], functions: tuple[str, ...] = AIO) -> None:
        self._tracepoints, self._functions = tracepoints, functions

    def tracepoint(self, name: str) -> tuple[str, ...] | None:
        return self._tracepoints.get(name)

    def has_function(self, name: str) -> bool:
        return name in self._functions


def on(monkeypatch: pytest.MonkeyPatch, kernel: Btf) -> None:
    monkeypatch.setattr(io_operations, "vmlinux", lambda: kernel)


def test_only_file_systems_in_use_are_observed(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, Btf(NEW, (*AIO, *OVERFLOWS)))
    functions = io_operations._BY_FUNCTION_ALONE
    assert ways({"ext4", "xfs", "btrfs"}) == (KNOWN, BY_FUNCTION, functions, BY_CALL)
    narrow = ways({"ext3", "vfat"})[0]
    assert set(narrow.programs) < set(KNOWN.programs)
    assert {name.partition("_read_iter")[0] for name in narrow.programs if "_read_iter" in name} == {
        "blkdev",
        "ext4_file",
    }
    assert [name for name in ways(set())[0].programs if "_iter_" in name] == [
        name for name in KNOWN.programs if name.startswith("blkdev")
    ]


def test_ends_attach_before_begins() -> None:
    kinds = [
        "begin" if "_entry" in name or "_submit" in name or name in ("aio_read_fentry", "aio_write_fentry") else "end"
        for name in KNOWN.programs
    ]
    assert kinds == sorted(kinds, reverse=True)


def test_only_what_may_be_observed_is_prepared_for(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, Btf(NEW, ("xfs_file_read_iter",)))
    monkeypatch.setattr(io_operations, "module", {"btrfs": Btf(NEW, ("btrfs_file_read_iter",))}.get)
    assert io_operations.preparable({"ext4", "xfs", "btrfs", "tmpfs"}) == {"xfs", "btrfs"}


def test_another_file_system_takes_the_functions_of_all_files(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, Btf(NEW))
    functions = io_operations._BY_FUNCTION_ALONE
    assert ways({"ext4", "f2fs"}) == (BY_FUNCTION, functions, BY_CALL)
    on(monkeypatch, Btf(NEW, ("aio_read",)))
    assert ways({"ext4", "f2fs"}) == (functions, BY_CALL)
    assert unseen({"ext4", "f2fs", "vfat"}) == []
    assert unseen({"ext4", "vfat", "squashfs"}) == ["squashfs", "vfat"]


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (Btf(OLD), {"aio_read_fentry", "aio_write_fentry", "aio_complete_fentry"}),
        (Btf(MIDDLE, ()), {"uring_submit_old_raw_tp", "uring_complete_raw_tp"}),
        (Btf(NEW, ("aio_read",)), {"uring_submit_raw_tp", "uring_complete_raw_tp"}),
        (Btf(OLD, OVERFLOWS), set()),
        (
            Btf(NEW, OVERFLOWS[1:]),
            {"uring_submit_raw_tp", "uring_complete_raw_tp", "uring_overflow_new_fentry"},
        ),
        (Btf({}, ()), set()),
    ],
)
def test_asynchronous_ones_where_their_end_names_them(
    kernel: Btf, expected: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on(monkeypatch, kernel)
    assert {name for name in ways({"ext4"})[0].programs if "_iter_" not in name} == expected
    assert io_operations.hands_event() == ("io_uring_submit_req" in kernel._tracepoints)


def test_a_note_says_that_completions_without_room_are_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    note = "operations of io_uring whose completions find no room in the ring count as in flight"
    for kernel, expected in ((Btf(NEW), [note]), (Btf(NEW, (*AIO, OVERFLOWS[0])), []), (Btf({}), [])):
        on(monkeypatch, kernel)
        assert [one for one in notes(ways({"ext4"})[0], {"ext4"}) if one == note] == expected


def test_what_is_not_seen_is_said() -> None:
    functions = ways({"f2fs"})[-2]
    assert notes(KNOWN, {"ext4"}) == []
    assert notes(KNOWN, {"vfat"}) == [
        "reads and writes of files on vfat are seen as requests only: there are other file systems"
    ]
    # The cases: 5.10; raw disks; file systems that are modules; and functions of AIO that cannot be observed.
    without_uring = KNOWN._replace(ends=tuple(name for name in KNOWN.ends if "uring" not in name))
    for way, missing in (
        (without_uring, "io_uring"),
        (BY_FUNCTION, "io_uring"),
        (functions, "io_uring, AIO"),
        (BY_CALL, "io_uring, AIO"),
    ):
        first, *others = notes(way, {"ext4"})
        assert first == f"asynchronous operations ({missing}) are seen as requests only"
        assert len(others) == (way is BY_CALL) == any("32-bit programs" in one for one in others)


def test_syncs_are_observed_the_same_way() -> None:
    assert sync_ways({"ext3", "xfs", "btrfs"}) == (KNOWN_SYNCS, SYNCS_BY_FUNCTION, BY_CALL)
    assert sync_ways({"vfat"})[0].programs == ("blkdev_fsync_exit", "blkdev_fsync_entry")
    assert set(sync_ways({"xfs"})[0].programs) < set(KNOWN_SYNCS.programs)
    assert sync_ways({"f2fs"}) == (SYNCS_BY_FUNCTION, BY_CALL)
    for way in (KNOWN_SYNCS, SYNCS_BY_FUNCTION):
        assert [name.rpartition("_")[2] for name in way.programs] == ["exit"] * len(way.ends) + ["entry"] * len(
            way.ends
        )


def test_whose_skipped_end_costs_an_operation() -> None:
    """The end of an asynchronous operation shows later. The end of a wait does not end an operation."""
    hooks = {hook.id: hook for hook in io_hooks.HOOKS}
    ends = {name for hook in io_hooks.ENDING for way in hooks[hook].ways for name in way.of(END)}
    assert {"vfs_read_exit", "ext4_file_write_iter_exit", "sys_fsync_exit", "filemap_fault_exit"} < ends
    assert {"call_exit_raw_tp", "do_swap_page_exit", "sync_file_range_exit"} < ends
    assert all(name.endswith("_exit") or name == "call_exit_raw_tp" for name in ends)
    assert not any("journal" in name or "jbd2" in name or "log" in name for name in ends)


def test_what_is_mounted_later_may_be_of_another_kind() -> None:
    """Each kind of file system has functions of its own; the start has reported what is left out on purpose."""
    prepared = {"ext4", "vfat"}
    assert [kind for kind in ("ext3", "vfat", "xfs", "f2fs") if is_watched(kind, KNOWN, prepared)] == ["ext3", "vfat"]
    assert all(is_watched("f2fs", way, prepared) for way in (BY_FUNCTION, BY_CALL, SYNCS_BY_FUNCTION))


@pytest.mark.parametrize(
    ("way", "said"), [(io_operations.BY_FUNCTION, True), (io_operations.BY_CALL, True), (io_operations.KNOWN, False)]
)
def test_what_is_opened_through_an_overlay_is_not_found_below_it(
    monkeypatch: pytest.MonkeyPatch, way: Way, said: bool
) -> None:
    monkeypatch.setattr(mounts, "overlays_of", lambda path: {"/low/db": ["/merged"]}.get(path, []))
    places = [Place(path, 0, 0, 0, None) for path in ("/low/db", "/srv")]
    found = [note for note in notes(way, (), places) if "overlay" in note]
    note = "files opened through the overlay at /merged are not found by /low/db: give the path there"
    assert found == ([note] if said else [])
