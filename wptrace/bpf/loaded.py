# SPDX-License-Identifier: Apache-2.0
"""All BPF in the kernel, from any process: programs, maps and links by their ids.

Anything that goes away while it is read is left out. A field that this kernel lacks is 0 or empty.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from wptrace.bpf.kernel_btf import module, vmlinux
from wptrace.bpf.lib import libbpf, memory_of
from wptrace.errors import LibbpfError, WptraceError

_NAME = 16
_PATH = 256

# enum bpf_link_type
_RAW_TRACEPOINT, _TRACING, _CGROUP, _ITER, _NETNS, _XDP, _PERF_EVENT = 1, 2, 3, 4, 5, 6, 7
_STRUCT_OPS, _TCX = 9, 11
# enum bpf_attach_type, by what sections call them
_TRACES = {23: "tp_btf", 24: "fentry", 25: "fexit", 26: "fmod_ret", 27: "lsm", 28: "iter", 0: "freplace"}
# enum bpf_perf_event_type, and enum bpf_task_fd_type
SOME_EVENT = "perf_event"
_EVENTS = {1: "uprobe", 2: "uretprobe", 3: "kprobe", 4: "kretprobe", 5: "tracepoint", 6: SOME_EVENT}
_FD_TYPES = ("raw_tp", "tracepoint", "kprobe", "kretprobe", "uprobe", "uretprobe")
_IN_FILES = ("uprobe", "uretprobe")
_DESCRIPTOR = re.compile(r"/proc/self/fd/\d+", re.ASCII)


class LoadedProgram(NamedTuple):
    id: int
    type: str
    name: str
    run_count: int
    run_time_ns: int
    memory: int
    map_ids: tuple[int, ...]


class LoadedMap(NamedTuple):
    id: int
    type: str
    name: str
    key_size: int
    value_size: int
    max_entries: int
    memory: int


class LoadedLink(NamedTuple):
    id: int
    program: int
    where: str
    """The place as a section names it: tp_btf/sched_switch."""


def programs() -> Iterator[LoadedProgram]:
    lib = libbpf()
    for number, fd in _each("prog"):
        info = _info(fd, "struct bpf_prog_info")
        maps = lib.ffi.new("__u32[]", max(info.nr_map_ids, 1))
        if info.nr_map_ids:
            info = _info(fd, "struct bpf_prog_info", nr_map_ids=info.nr_map_ids, map_ids=_address(maps))
        yield LoadedProgram(
            number,
            _word("prog", info.type),
            _full_name(fd, info),
            info.run_cnt,
            info.run_time_ns,
            memory_of(fd),
            tuple(maps[0 : info.nr_map_ids]),
        )


def maps() -> Iterator[LoadedMap]:
    for number, fd in _each("map"):
        info = _info(fd, "struct bpf_map_info")
        yield LoadedMap(
            number,
            _word("map", info.type),
            _text(info.name),
            info.key_size,
            info.value_size,
            info.max_entries,
            memory_of(fd),
        )


def links() -> Iterator[LoadedLink]:
    for number, fd in _each("link"):
        info = _info(fd, "struct bpf_link_info")
        yield LoadedLink(number, info.prog_id, _where(fd, info))


def of_perf_event(pid: int, fd: int) -> LoadedLink | None:
    """Programs on perf events without a link, as all are on kernels before 5.15."""
    lib = libbpf()
    name = lib.ffi.new("char[]", _PATH)
    size = lib.ffi.new("__u32 *", _PATH)
    program, kind = lib.ffi.new("__u32 *"), lib.ffi.new("__u32 *")
    places = lib.ffi.new("__u64[2]")
    if lib.lib.bpf_task_fd_query(pid, fd, 0, name, size, program, kind, places, places + 1) < 0:
        return None
    what = _FD_TYPES[kind[0]] if kind[0] < len(_FD_TYPES) else SOME_EVENT
    where = _text(name)
    if what in _IN_FILES:
        where = f"{_path(pid, where)}+{places[0]:#x}"
    return LoadedLink(0, program[0], f"{what}/{where}")


def _path(pid: int, name: str) -> str:
    """Return the path of a file that was named by a descriptor, which its owner keeps open for this purpose."""
    if not _DESCRIPTOR.fullmatch(name):
        return name
    try:
        return os.readlink(name.replace("self", str(pid), 1))  # noqa: PTH115
    except OSError:
        return name


# --- Ids and descriptors ----------------------------------------------------------------------------------------------


def _each(kind: str) -> Iterator[tuple[int, int]]:
    """Ids with a descriptor, which is closed again by and by."""
    lib = libbpf()
    following, open_it = getattr(lib.lib, f"bpf_{kind}_get_next_id"), getattr(lib.lib, f"bpf_{kind}_get_fd_by_id")
    number = lib.ffi.new("__u32 *", 0)
    while True:
        result = following(number[0], number)
        if result == -errno.ENOENT:
            return
        lib.check(result, f"the {kind}s in the kernel cannot be listed")
        with suppress(_GoneError), _opened(open_it(number[0]), f"{kind} {number[0]} cannot be looked at") as fd:
            yield number[0], fd


class _GoneError(WptraceError):
    """It was freed since its id was read, or is a link that is still being created."""


@contextmanager
def _opened(fd: int, what: str) -> Iterator[int]:
    if fd in (-errno.ENOENT, -errno.EAGAIN):
        raise _GoneError(what)
    libbpf().check(fd, what)
    try:
        yield fd
    finally:
        os.close(fd)


def _info(fd: int, kind: str, **given: int) -> Any:
    lib = libbpf()
    info = lib.ffi.new(f"{kind} *", given)
    size = lib.ffi.new("__u32 *", lib.ffi.sizeof(kind))
    lib.check(lib.lib.bpf_obj_get_info_by_fd(fd, info, size), f"the kernel says nothing about a {kind}")
    return info


def _address(buffer: Any) -> int:
    return int(libbpf().ffi.cast("uintptr_t", buffer))


# --- Names ------------------------------------------------------------------------------------------------------------


def _text(array: Any) -> str:
    return bytes(libbpf().ffi.string(array)).decode("utf-8", "backslashreplace")


def _word(kind: str, number: int) -> str:
    """Return libbpf's name of a type; a number where it is newer than libbpf."""
    lib = libbpf()
    found = getattr(lib.lib, f"libbpf_bpf_{kind}_type_str")(number)
    return f"{kind} type {number}" if found == lib.ffi.NULL else _text(found)


def _full_name(fd: int, info: Any) -> str:
    """The kernel keeps 15 characters of a name; the type information of a program has all of it."""
    name = _text(info.name)
    if len(name) < _NAME - 1 or not info.btf_id or not info.nr_func_info:
        return name
    lib = libbpf()
    functions = lib.ffi.new("__u32[]", info.func_info_rec_size // 4)
    first = _info(
        fd,
        "struct bpf_prog_info",
        nr_func_info=1,
        func_info_rec_size=info.func_info_rec_size,
        func_info=_address(functions),
    )
    btf = lib.lib.btf__load_from_kernel_by_id(info.btf_id)
    if btf == lib.ffi.NULL or not first.nr_func_info:
        return name
    try:
        function = lib.lib.btf__type_by_id(btf, functions[1])
        return name if function == lib.ffi.NULL else _text(lib.lib.btf__name_by_offset(btf, function.name_off))
    finally:
        lib.lib.btf__free(btf)


def _where(fd: int, info: Any) -> str:
    kind = _word("link", info.type)
    if info.type == _RAW_TRACEPOINT:
        return f"raw_tp/{_string(fd, 'raw_tracepoint', 'tp_name')}"
    if info.type == _TRACING:
        return _trace(info.tracing)
    if info.type == _CGROUP:
        return f"cgroup/{_word('attach', info.cgroup.attach_type)} {info.cgroup.cgroup_id}"
    if info.type == _ITER:
        return f"iter/{_string(fd, 'iter', 'target_name')}"
    if info.type in (_XDP, _TCX):
        return f"{kind}/{_interface(info.xdp.ifindex)}"
    if info.type == _NETNS:
        return f"netns/{_word('attach', info.netns.attach_type)} {info.netns.netns_ino}"
    if info.type == _STRUCT_OPS:
        return f"{kind}/map {info.struct_ops.map_id}"
    if info.type == _PERF_EVENT and info.perf_event.type:
        name = _string(fd, "perf_event", "name")
        what = _EVENTS.get(info.perf_event.type, kind)
        return f"{what}/{name}" if name else what
    return kind


def _string(fd: int, member: str, field: str) -> str:
    lib = libbpf()
    buffer = lib.ffi.new("char[]", _PATH)
    wanted: Any = {member: {field: _address(buffer), f"{field}_len": _PATH}}
    with suppress(LibbpfError):  # a name that is longer than the room for it, or none at all
        _info(fd, "struct bpf_link_info", **wanted)
    return _text(buffer)


def _trace(tracing: Any) -> str:
    """The target is a type of the kernel's BTF, or of a module's; unknown before 5.13."""
    kind = _TRACES.get(tracing.attach_type) or _word("attach", tracing.attach_type)
    if kind == "freplace":
        return f"{kind}/program {tracing.target_obj_id}"
    name = _target(tracing.target_obj_id, tracing.target_btf_id)
    name = name[len("btf_trace_") :] if kind == "tp_btf" else name
    return f"{kind}/{name}" if name else kind


def _target(btf_id: int, type_id: int) -> str:
    if not btf_id or not type_id:
        return ""
    lib = libbpf()
    buffer = lib.ffi.new("char[]", _PATH)
    try:
        with _opened(lib.lib.bpf_btf_get_fd_by_id(btf_id), "type information cannot be read") as fd:
            _info(fd, "struct bpf_btf_info", name=_address(buffer), name_len=_PATH)
        name = _text(buffer)
        known = vmlinux() if name == "vmlinux" else module(name)
        return known.type(type_id).name if known is not None else ""
    except WptraceError:
        return ""


def _interface(number: int) -> str:
    import socket

    try:
        return socket.if_indextoname(number)
    except OSError:  # in another network namespace
        return f"interface {number}"
