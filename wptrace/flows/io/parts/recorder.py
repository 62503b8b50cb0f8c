# SPDX-License-Identifier: Apache-2.0
"""`--recorder`: the latest operations and requests, with names of their tasks and files beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from wptrace.bpf.btf import Enum
from wptrace.bpf.kernel_btf import vmlinux
from wptrace.bpf.maps import Map
from wptrace.bpf.object import BpfObject
from wptrace.bpf.ring import HEADER as ENTRY
from wptrace.capture.records import Names
from wptrace.engine.recorder import HALF, WORD, Recorder, mapped
from wptrace.engine.recorder_size import RecorderSize
from wptrace.engine.resolver import Loaded
from wptrace.flows.io.kinds import OPERATION
from wptrace.flows.io.parts.part import Part, Tracing
from wptrace.flows.io.recorded import FLAGS, RECORDED
from wptrace.flows.io.records import OwnersOfRecords
from wptrace.flows.io.state import path_in, path_layout
from wptrace.kernel.cgroup_names import CgroupNames
from wptrace.kernel.tasks import comm
from wptrace.model.kind import Kind

# Names that were not used for this long may be replaced.
_NAMED_NS = 60_000_000_000
# Sizes of the name tables (recorder.h).
_TASKS, _FILES = 1 << 14, 1 << 12


class RecorderPart(Part):
    recorder: NamedRecorder

    def __init__(self, recorder: NamedRecorder) -> None:
        super().__init__()
        self.recorder = recorder

    def prepare(self, obj: BpfObject) -> None:
        self.recorder.prepare(obj)

    def start(self, tracing: Tracing) -> None:
        self.recorder.start(tracing.obj, tracing.slots)

    def notes(self, loaded: Loaded) -> list[str]:
        return self.recorder.notes()


class NamedRecorder(Recorder):
    """A recorder of operations and requests, with names of tasks and files, and with statements or units if asked."""

    def __init__(
        self,
        size: RecorderSize,
        slow_ns: int | None,
        kinds: Sequence[Kind],
        cgroups: CgroupNames,
        texts: OwnersOfRecords | None,
    ) -> None:
        operations = OPERATION in kinds
        what = "operations and requests" if operations else "requests"
        records = RECORDED._replace(more=_flags(), end="statement" if texts is None else "")
        named = () if texts is None else (texts.of, texts.lists)
        super().__init__(size, slow_ns, kinds, records, what, self._all_names, *named)
        self._cgroups = cgroups
        lacking = "page-cache hits of less than 1 ms" if operations else "waits of tasks"
        self._notes_of_dump = (f"{lacking} are not recorded",)

    def prepare(self, obj: BpfObject) -> None:
        super().prepare(obj)
        obj.rodata.recorder_window_ns = min(self._size.window_ns, _NAMED_NS)
        obj.maps["recorded_tasks"].max_entries = _TASKS
        obj.maps["recorded_files"].max_entries = obj.maps["recorded_paths"].max_entries = _FILES

    def _all_names(self) -> Names:
        return Names(dict(self._tasks()), dict(self._files()))

    def _tasks(self) -> Iterator[tuple[int, tuple[int, str, str]]]:
        layout = self._obj.struct("recorded_task")
        for values in _used(self._obj.maps["recorded_tasks"], layout, "tid"):
            yield values["tid"], (values["tgid"], self._cgroups.of(values["cgroup"]), comm(values["comm"]))

    def _files(self) -> Iterator[tuple[tuple[int, int], str]]:
        names = path_layout(self._obj)
        paths = self._obj.maps["recorded_paths"]
        for values in _used(self._obj.maps["recorded_files"], self._obj.struct("recorded_file"), "key"):
            memory = paths.raw(values["place"])
            # An even key marks an entry whose path is being written.
            if memory is None or not values["key"] & 1:
                continue
            yield (values["dev"], values["inode"]), path_in(names, memory)

    def _unnamed(self, entries: bytearray, names: Names) -> int:
        layout, tasks, files = self._record, names.tasks, names.files
        places = {one.name: one.offset for one in layout.places}
        step = (ENTRY + layout.size) // HALF
        words = memoryview(entries).cast("I")
        threads = words[(ENTRY + places["tid"]) // HALF :: step].tolist()
        lacking = {tid for tid in set(threads) if tid and tid not in tasks}
        devices = words[(ENTRY + places["file_dev"]) // HALF :: step].tolist()
        inodes = memoryview(entries).cast("Q")[(ENTRY + places["inode"]) // WORD :: step // 2].tolist()
        pairs = {one for one in set(zip(devices, inodes)) if one[1] and one not in files}
        if not lacking and not pairs:
            return 0
        return sum(tid in lacking or pair in pairs for tid, pair in zip(threads, zip(devices, inodes)))


def _used(table: Map, layout: Any, key: str) -> Iterator[dict[str, Any]]:
    with mapped(table) as shared:
        raw = shared[: table.max_entries * layout.size]
    for place, values in enumerate(layout.struct.iter_unpack(raw)):
        found = dict(zip(layout.fields, values))
        if found[key]:
            yield {**found, "place": place}


def _flags() -> dict[str, int]:
    """The flag bits of requests in this kernel."""
    found = vmlinux().find("req_flag_bits", Enum)
    bits = {} if found is None else {one.name: one.value for one in found.values}
    return {f"REQ_{name}": bits[f"__REQ_{name}"] for name in FLAGS if f"__REQ_{name}" in bits}
