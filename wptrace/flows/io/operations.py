# SPDX-License-Identifier: Apache-2.0
"""The programs at begins and ends of operations: at functions of the file systems in use, at functions common to all
files, or at system calls."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from wptrace.bpf.kernel_btf import module, vmlinux
from wptrace.engine.hooks import Way
from wptrace.kernel import mounts, system_calls
from wptrace.kernel.mounts import Place
from wptrace.model.kind import NOBODY

# Prefixes of the functions that read and write, for block devices and for each file system; its name is also that of
# its module.
_PREFIXES = {"": "blkdev", "ext4": "ext4_file", "xfs": "xfs_file", "btrfs": "btrfs_file"}
MODULES = tuple(kind for kind in _PREFIXES if kind)
_SAME = {"ext2": "ext4", "ext3": "ext4"}
# File systems to boot or unpack from do not justify programs that run for pipes and sockets as well.
_ASIDE = {"vfat", "squashfs", "iso9660"}

_URING, _AIO = "uring_complete_raw_tp", "aio_complete_fentry"
URING, AIO = "io_uring", "AIO"
_INTERFACES = {URING: _URING, AIO: _AIO}
# Where an operation of io_uring ends whose completion finds no room in the ring, by function; one of them is enough.
_OVERFLOWS = {"io_req_cqe_overflow": "uring_overflow_fentry", "io_alloc_ocqe": "uring_overflow_new_fentry"}
_BEGINS: Mapping[str, tuple[str, ...]] = {
    _URING: ("uring_submit_raw_tp",),
    **dict.fromkeys(_OVERFLOWS.values(), ()),
    _AIO: ("aio_read_fentry", "aio_write_fentry"),
}


# The ways to observe operations.
FILES, FUNCTIONS, CALLS = "files", "functions", "calls"


def _programs(kinds: Collection[str], asynchronous: Mapping[str, tuple[str, ...]]) -> Way:
    """Asynchronous ends that the kernel skips are found later (OP_UNENDED of wptrace/flows/io/causes.py)."""
    names = {_SAME.get(kind, kind) for kind in ("", *kinds)}
    functions = [f"{prefix}_{way}_iter" for kind, prefix in _PREFIXES.items() if kind in names for way in _WAYS]
    ends = (*(f"{function}_exit" for function in functions), *asynchronous)
    begins = (*(f"{function}_entry" for function in functions), *sum(asynchronous.values(), ()), *asynchronous)
    return Way(ends, begins, FILES)


_WAYS = ("read", "write")
KNOWN = _programs(MODULES, _BEGINS)


def _both(functions: Iterable[str], name: str) -> Way:
    names = tuple(functions)
    return Way(tuple(f"{one}_exit" for one in names), tuple(f"{one}_entry" for one in names), name)


_BY_FUNCTION_ALONE = _both(("vfs_read", "vfs_write", "vfs_readv", "vfs_writev"), FUNCTIONS)
# AIO has functions of its own, whatever the file system.
_WHOLE = (_AIO, *(f"aio_{way}_whole_fexit" for way in _WAYS))
BY_FUNCTION = Way(
    (*_WHOLE, *_BY_FUNCTION_ALONE.ends),
    (*(f"aio_{way}_whole_fentry" for way in _WAYS), *_BY_FUNCTION_ALONE.starts, *_WHOLE),
    FUNCTIONS,
)
BY_CALL = Way(("call_exit_raw_tp",), ("call_enter_raw_tp",), CALLS)


# The sync functions of file systems; xfs has its own for directories.
_SYNCS = {
    "": ("blkdev_fsync",),
    "ext4": ("ext4_sync_file",),
    "xfs": ("xfs_file_fsync", "xfs_dir_fsync"),
    "btrfs": ("btrfs_sync_file",),
}


def _syncs(kinds: Collection[str]) -> Way:
    names = {_SAME.get(kind, kind) for kind in ("", *kinds)}
    return _both((function for kind, functions in _SYNCS.items() if kind in names for function in functions), FILES)


KNOWN_SYNCS = _syncs(MODULES)
# Each function calls the one before it, unless the compiler inlined that.
SYNCS_BY_FUNCTION = _both(("vfs_fsync_range", "vfs_fsync", "sys_fsync", "sys_fdatasync"), FUNCTIONS)


def sync_ways(kinds: Collection[str]) -> tuple[Way, ...]:
    """The ways to observe syncs, best first."""
    narrow = (_syncs(kinds),) if _are_known(kinds) else ()
    return (*narrow, SYNCS_BY_FUNCTION, BY_CALL)


def ways(kinds: Collection[str]) -> tuple[Way, ...]:
    """The ways to observe operations on these kinds of file systems, best first."""
    asynchronous = _asynchronous()
    narrow = (_programs(kinds, asynchronous),) if _are_known(kinds) else ()
    broad = (BY_FUNCTION,) if _AIO in asynchronous else ()
    return (*narrow, *broad, _BY_FUNCTION_ALONE, BY_CALL)


def unseen(kinds: Collection[str]) -> list[str]:
    """Kinds of file systems that are not observed."""
    return sorted(_ASIDE & set(kinds)) if _are_known(kinds) else []


def is_watched(kind: str, way: Way, prepared: Collection[str]) -> bool:
    """Whether operations of a file system are observed by this way, which was chosen for these kinds."""
    return way.name != FILES or _SAME.get(kind, kind) in {_SAME.get(one, one) for one in prepared}


def notes(way: Way, kinds: Collection[str], wanted: Sequence[Place] = ()) -> list[str]:
    """Return the notes on a way, given the wanted files or directories."""
    missing = unseen_interfaces(way)
    found = [f"asynchronous operations ({', '.join(missing)}) are seen as requests only"] if missing else []
    if _URING in way.ends and not {*_OVERFLOWS.values()} & {*way.ends}:
        found.append("operations of io_uring whose completions find no room in the ring count as in flight")
    if way.name == CALLS:
        found.append("reads and writes of 32-bit programs are seen as requests only: their calls have other numbers")
    if way.name != FILES:
        # Only functions of file systems see the lower file of an overlay.
        found += [
            f"files opened through the overlay at {point} are not found by {place.path}: give the path there"
            for place in wanted
            for point in mounts.overlays_of(place.path)
        ]
    if way.name == FILES:
        found += [
            f"reads and writes of files on {kind} are seen as requests only: there are other file systems"
            for kind in unseen(kinds)
        ]
    return found


def unseen_interfaces(way: Way) -> list[str]:
    """Asynchronous interfaces that a way does not see."""
    return [name for name, end in _INTERFACES.items() if end not in way.ends]


def preparable(kinds: Iterable[str]) -> set[str]:
    """Kinds whose functions can be observed, even if they are not mounted yet."""

    def is_there(kind: str) -> bool:
        places = (vmlinux(), module(kind))
        return any(place is not None and place.has_function(f"{_PREFIXES[kind]}_read_iter") for place in places)

    return set(filter(is_there, set(MODULES) & set(kinds)))


def _are_known(kinds: Iterable[str]) -> bool:
    return {_SAME.get(kind, kind) for kind in kinds} <= {*_PREFIXES, *_ASIDE}


def _asynchronous() -> dict[str, tuple[str, ...]]:
    """Programs at the begin of asynchronous operations, by the one at the end, if the end identifies the operation."""
    found: dict[str, tuple[str, ...]] = {}
    kernel = vmlinux()
    begin = next((name for tracepoint, name in _SUBMITS.items() if _takes_kiocb(kernel.tracepoint(tracepoint))), "")
    # Before 6.0 a completion has only the submitter's user_data.
    if begin and (kernel.tracepoint("io_uring_complete") or ())[1:2] == ("void *",):
        found[_URING] = (begin,)
        found.update((program, ()) for name, program in _OVERFLOWS.items() if kernel.has_function(name))
    if all(kernel.has_function(name) for name in ("aio_read", "aio_write", "aio_complete_rw")):
        found[_AIO] = _BEGINS[_AIO]
    return found


_SUBMITS = {"io_uring_submit_req": "uring_submit_raw_tp", "io_uring_submit_sqe": "uring_submit_old_raw_tp"}


def _takes_kiocb(arguments: tuple[str, ...] | None) -> bool:
    return (arguments or ())[:1] == ("io_kiocb *",)


def hands_event() -> bool:
    """Whether the completion tracepoint passes the event itself, not its fields."""
    return (vmlinux().tracepoint("io_uring_complete") or ())[2:3] == ("io_uring_cqe *",)


# --- System calls ---------------------------------------------------------------------------------------------------

# The system calls of each kind that the program knows.
_KINDS = {
    "read": ("read",),
    "write": ("write",),
    "pread": ("pread64",),
    "pwrite": ("pwrite64",),
    "readv": ("readv",),
    "writev": ("writev",),
    "preadv": ("preadv", "preadv2"),
    "pwritev": ("pwritev", "pwritev2"),
    "fsync": ("fsync", "fdatasync"),
    "syncfs": ("syncfs",),
    "sync_file_range": ("sync_file_range",),
    "sync": ("sync",),
    "msync": ("msync",),
    "events": ("io_getevents", "io_pgetevents", "io_uring_enter"),
}

SYNCS = ("fsync", "syncfs", "sync_file_range", "sync", "msync")


def calls(
    count: int, kinds: Sequence[str], plain: bool, syncs: bool, machine: str | None = None, events: bool = False
) -> bytes:
    """The kind of each system call as the program knows it; 0 for calls that do something else or are not wanted."""
    table, known = bytearray(count), system_calls.numbers(machine or "")
    for kind, every in _KINDS.items():
        if not (syncs if kind in SYNCS else events if kind == "events" else plain):
            continue
        for name in every:
            if name in known:
                table[known[name]] = kinds.index(kind)
    return bytes(table)


# The usual names of calls: those of functions, and of the interface that runs a submitted operation.
_CALLED = {
    "pread64": "pread",
    "pwrite64": "pwrite",
    "fadvise64": "fadvise",
    "umount2": "umount",
    "io_uring_enter": "io_uring",
    "io_submit": "aio",
}
SYSTEM_CALL = "system_call"
# Calls other than native system calls (call_class of bpf_src/block/path/call.h).
_CLASSES = {
    "foreign": "32-bit call",
    "pagefault": "page fault",
    "swapin": "swap-in",
    "uring": "io_uring",
    "kernel": "kernel thread",
    "none": NOBODY,
}


def call(kind: str, number: int, machine: str | None = None) -> str:
    """Return the usual name of a call, by its class and the number of a system call."""
    if kind != SYSTEM_CALL:
        return _CLASSES[kind]
    name = system_calls.names(machine or "").get(number)
    return f"call {number}" if name is None else _CALLED.get(name, name)
