# SPDX-License-Identifier: Apache-2.0
"""Single operations and requests of the path flow, from their records (bpf_src/block/path/shared.h, segments.h)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from wptrace.bpf.object import BpfObject
from wptrace.capture.records import Raw, Tail
from wptrace.flows.io.kinds import HIT, OPERATION, REQUEST, SPARSE, Events
from wptrace.flows.io.state import path
from wptrace.flows.io.wait_reasons import SEVERAL, WaitStack
from wptrace.kernel.blkstatus import to_errno
from wptrace.kernel.blockdev import maj_min
from wptrace.kernel.cgroup_names import CgroupNames
from wptrace.kernel.clock import wall_offset_ns
from wptrace.kernel.rwbs import rwbs
from wptrace.kernel.tasks import comm
from wptrace.model.kind import Comm, Label
from wptrace.model.report import Child, Event, Segment
from wptrace.model.rows import Number, Part, Row, Shape, items, numbered

if TYPE_CHECKING:
    from wptrace.bpf.layout import Structure
    from wptrace.capture.layout import Described

# The kernel's value.
NO_SECTOR = (1 << 64) - 1
_CHAIN = "cpus."
# Indexed by number (include/linux/interrupt.h), the same on all supported kernels.
_SOFTIRQS = ("HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU")
# Other names in stories.
_IN_STORIES = {"irq_delay": "irq_off"}
# The second name is that of earlier captures.
_INTERFERENCE = ("interference", "noise")
NO_STACK = WaitStack(SEVERAL, ())
_KINDS = {"operation": OPERATION, "hit": HIT, "request": REQUEST}

Record = Row

WHOLE = (*_INTERFERENCE, "before_wakeup", "commit", "events", "met", "trail", "waits")
"""Members that are decoded only if they are not empty."""
_RARE = (*WHOLE, "flush_before", "flush_behind", "held")
"""Members that few records use."""

# Numbers of ordinary records, which are shown unchanged.
_NUMBERS = (
    *("start_ns", "end_ns", "handed_ns", "seen_ns", "offset", "length", "inode", "sector", "bytes", "user_data"),
    *("requests", "readahead", "dirty_ns"),
)
# The fields, besides names, that decide how a record is shown.
_ALIKE = ("dev", "flags", "tgid", "tid", "kind", "op", "deleted", "interface", "request_op", "comm")

RECORDS = Raw(
    "io_record",
    enums=(
        *("op_stage", "request_stage", "op_kind", "block_op", "record_kind", "block_flag", "interface", "controller"),
        "interference_kind",
    ),
    constants=("NO_CPU", "SEGMENT_STAGE_BITS"),
    # Owners are in tables of the kernel, and statements and units are there if they were asked for.
    without=("met", "statement"),
    tail=Tail("path", "path_end"),
    cgroup="cgroup",
)


class OwnersOfRecords(NamedTuple):
    """Owners that are texts, by what records have of them."""

    label: Label
    of: Callable[[int], Any]
    """None for a program or a thread by its name."""
    lists: Callable[[], Mapping[str, list[dict[str, Any]]]] = dict
    """Their properties, as parts of a summary."""

    def fields(self, key: tuple[int, str]) -> dict[str, Any]:
        """The fields of an owner, as rows have them; the key has the name of the task as well."""
        word, name = key
        found = self.of(word)
        return self.label.fields(Comm(name) if found is None else found)


def as_asked(interference: bool, neighbours: bool, segments: bool = False, texts: bool = False) -> Raw:
    """The layout of records without the trailing members that are off: programs write only what is on."""
    end = "" if segments else "trail" if neighbours else "met" if interference else "interference"
    if texts:
        return RECORDS._replace(end=end, without=("met",), statement="statement")
    return RECORDS._replace(end="statement" if end == "interference" else end)


class Stories:
    """Makes events from records. Values that records share (tasks, paths, devices) are made once."""

    def __init__(
        self,
        obj: BpfObject | Described,
        names: Sequence[str],
        cgroups: CgroupNames | None = None,
        met: Callable[[Any], dict[str, Any]] | None = None,
        end: str = "",
        texts: OwnersOfRecords | None = None,
    ) -> None:
        """`cgroups` are those of this machine by default; `met` decodes who had the device; records end before the
        member `end`; `texts` are the labels of their owners."""
        whole: Structure = obj.struct("io_record")
        layout = whole.before(end)
        # Few records have interference, so its bytes are not decoded unless there is some.
        self.layout, self.fields = layout.packed(*WHOLE)
        self._at = {name: place for place, name in enumerate(self.fields)}
        self._interference_at = next((self._at[name] for name in _INTERFERENCE if name in layout.names), None)
        self._interferer = None if self._interference_at is None else layout.member("before_wakeup")
        self._interferences = [_IN_STORIES.get(name, name) for name in (*_interferences(obj), "before_wakeup")]
        self._commit = layout.member("commit")
        self._no_commit = bytes(self._commit.size)
        self._met, self._decode_neighbours = None if met is None else layout.member("met"), met
        self._waits = layout.member("waits") if "waits" in layout.names else None
        self._texts = texts
        self.stack_of: Callable[[int], tuple[str, Sequence[str]]] = lambda number: NO_STACK
        """The reason and the functions of a wait, by its number in records."""
        self._events = Events(layout.member("events"))
        self._silence = bytes(len(self._interferences) * (0 if self._interferer is None else self._interferer.size))
        self._chain = [field[len(_CHAIN) :] for field in self.fields if field.startswith(_CHAIN)]
        self._no_cpu = obj.constants["NO_CPU"]
        self.names = names
        self._stages = obj.enum("op_stage")[:-1]
        self._request_stages = obj.enum("request_stage")[:-1]
        self._ops = {OPERATION: obj.enum("op_kind"), HIT: obj.enum("op_kind"), REQUEST: obj.enum("block_op")}
        self._kinds = [_KINDS[name] for name in obj.enum("record_kind")]
        self._flags = obj.enum("block_flag")
        self._interfaces = obj.enum("interface")
        self._controllers = obj.enum("controller")
        self._trails = self._trails_of(obj, layout) if "trail" in layout.names else None
        self.cgroups = CgroupNames() if cgroups is None else cgroups
        self.wall_offset_ns: int | None = None
        """The offset from monotonic time to the time of day; None for the current one."""
        self.shape = self._shape()

    # --- Without an event for each (wptrace/model/rows.py) --------------------------------------------------------

    def _shape(self) -> Shape | None:
        at = self._at
        requests = [number for number, kind in enumerate(self._kinds) if kind is REQUEST]
        if self._trails is not None or len(requests) != 1 or not {*_NUMBERS, *_ALIKE} <= at.keys():
            return None
        first, empty = at["stages[0]"], self.layout.unpack(bytes(self.layout.size))
        rare = [place for name, place in at.items() if name.partition("[")[0] in _RARE]
        whole = {f"nothing_{place}": empty[place] for place in rare if isinstance(empty[place], bytes)}
        usual = [f"r[{name.rpartition('_')[2]}] == {name}" for name in whole]
        usual.append(f"not ({' or '.join(f'r[{place}]' for place in rare if not isinstance(empty[place], bytes))})")
        result, sector = f"r[{at['result']}]", f"r[{at['sector']}]"
        usual += [f"{result} >= 0", f"r[{at['offset']}] >= 0", f"{sector} != {NO_SECTOR}"]
        # For these it matters whether they took time, and for a request which error it has.
        times = [first + place for place, name in enumerate(self._stages) if name in SPARSE] + [at["dirty_ns"]]
        some = [f"r[{place}]" for place in times]
        key = [f"names[r[{at['slot']}]], cgroups[r[{at['cgroup']}]]", items(at[name] for name in _ALIKE)]
        key.append(f"({' or '.join(some)}) and ({', '.join(f'{one} > 0' for one in some)})")
        key.append(f"r[{at['kind']}] == {requests[0]} and {result}")
        if self._texts is not None:
            key.append(f"statements[r[{at['statement']}]]")
        chain, path_end = at[_CHAIN + self._chain[0]], f"r[{at['path_end']}]"
        return Shape(
            ("wall", "names", "cgroups", *(() if self._texts is None else ("statements",))),
            whole,
            " and ".join(usual),
            ", ".join(key),
            {
                "path": Part(
                    f"r[{at['path']}][:{path_end}], r[{at['path_cut']}]", lambda key: path(key[0], key[1] > 0)
                ),
                "cpus": Part(f"r[{chain}:{chain + len(self._chain)}]", self._cpus),
            },
        )

    def variables(self) -> tuple[Any, ...]:
        found = self._wall_ns(), self.names, Made(self.cgroups.of)
        return found if self._texts is None else (*found, Made(self._texts.of))

    def made(self, rows: Sequence[Record], variables: tuple[Any, ...]) -> Iterator[Event]:
        return self.decode(rows, variables[0])

    def numbered(self, row: Record, variables: tuple[Any, ...]) -> Event:
        at, first = self._at, self._at["stages[0]"]
        places = {at[name] for name in (*_NUMBERS, "result")} | set(range(first, first + len(self._stages)))
        (found,) = self.decode([numbered(row, frozenset(places))], Number.of(variables[0], "wall"))
        return found

    def meet(self, records: Sequence[Record]) -> None:
        """Look up names while their owners are likely to exist."""
        cgroup = self._at["cgroup"]
        for number in {record[cgroup] for record in records}:
            self.cgroups.of(number)

    def with_culprits(self, records: Sequence[Record]) -> list[Record]:
        """Return the records that name an interferer or a journal commit."""
        commit, nothing = self._at["commit"], self._no_commit
        interference, before, silence = self._interference_at, self._at.get("before_wakeup", 0), self._silence
        if interference is None:
            return [one for one in records if one[commit] != nothing]
        return [one for one in records if one[commit] != nothing or one[interference] + one[before] != silence]

    # --- An event for each ----------------------------------------------------------------------------------------

    def decode(self, records: Sequence[Record], wall_ns: int | None = None) -> Iterator[Event]:
        # Each position is looked up once for all records: a dictionary for each record would take most of the time.
        (
            start_ns, end_ns, offset, length, result, cgroup, inode, sector, size, dev, flags, tgid, tid, requests,
            readahead, slot, kind_at, op_at, path_end, deleted, path_cut, comm_at, path_at,
            interface, user_data, request_op, commit, flush_before, flush_behind, dirty_ns, held, events,
        ) = (
            self._at[name]
            for name in (
                "start_ns", "end_ns", "offset", "length", "result", "cgroup", "inode", "sector", "bytes", "dev",
                "flags", "tgid", "tid", "requests", "readahead", "slot", "kind", "op", "path_end", "deleted",
                "path_cut", "comm", "path", "interface", "user_data", "request_op", "commit",
                "flush_before", "flush_behind", "dirty_ns", "held[0]", "events",
            )
        )  # fmt: skip
        met, before_wakeup, waits, statement = (
            self._at.get(name, 0) for name in ("met", "before_wakeup", "waits", "statement")
        )
        interference, silence = self._interference_at, self._silence
        # Missing in captures of earlier versions.
        handed_ns, seen_ns, tag_queue = (self._at.get(name) for name in ("handed_ns", "seen_ns", "tag_queue"))
        trail, trails = self._at.get("trail", 0), self._trails
        first, chain = self._at["stages[0]"], self._at[_CHAIN + self._chain[0]]
        last, chain_end = first + len(self._stages), chain + len(self._chain)
        names, stage_names, kinds, ops = self.names, self._stages, self._kinds, self._ops
        block_ops = ops[REQUEST]
        interfaces = self._interfaces
        controllers = self._controllers
        held_end = held + len(controllers)
        comms, cgroups, paths = Made(comm), Made(self.cgroups.of), Made(lambda key: path(*key))
        groups = Made(lambda key: key[0].group(names[key[1]], ops[key[0]][key[2]]))
        letters, numbers, chains = Made(self._letters), Made(maj_min), Made(self._cpus)
        owners = None if self._texts is None else Made(self._texts.fields)
        wall = self._wall_ns() if wall_ns is None else wall_ns
        happened = self._events.fields
        for record in records:
            kind = kinds[record[kind_at]]
            group = groups[kind, record[slot], record[op_at]]
            stages = dict(zip(stage_names, record[first:last]))
            done = record[result]
            fields: dict[str, Any] = {
                "pid": record[tgid],
                "tid": record[tid],
                "comm": comms[record[comm_at]],
                "cgroup": cgroups[record[cgroup]],
            }
            if owners is not None:
                fields.update(owners[record[statement], comms[record[comm_at]]])
            if kind is REQUEST:
                stages = {name: stages[name] for name in self._request_stages}
                fields["error"] = to_errno(done)
                if record[dirty_ns]:
                    fields["dirty_ns"] = record[dirty_ns]
                    fields["path"] = paths[record[path_at][: record[path_end]], record[path_cut] != 0]
                    fields["deleted"] = record[deleted] != 0
                    fields["inode"] = record[inode]
                    fields["offset"] = record[offset]
            else:
                for name in SPARSE:
                    # Captures of earlier versions lack some of them.
                    if not stages.get(name, 1):
                        del stages[name]
                by = interfaces[record[interface]]
                if by != "call":
                    fields["interface"] = by
                    fields["user_data"] = record[user_data]
                place = record[offset]
                fields["path"] = paths[record[path_at][: record[path_end]], record[path_cut] != 0]
                fields["deleted"] = record[deleted] != 0
                fields["inode"] = record[inode]
                fields["offset"] = place if place >= 0 else None
                fields["length"] = record[length]
                fields["result"] = done
                fields["requests"] = record[requests]
                fields["readahead"] = record[readahead]
                fields["error"] = -done if -4096 < done < 0 else 0
            if record[flush_before] or record[flush_behind]:
                fields["flush"] = {"before_ns": record[flush_before], "behind_ns": record[flush_behind]}
            number = record[dev]
            if number:
                where = record[sector]
                # A flush has no sector.
                fields["sector"] = where if where != NO_SECTOR else 0
                fields["bytes"] = record[size]
                fields["rwbs"] = letters[block_ops[record[request_op]], record[flags]]
                fields["maj_min"] = numbers[number]
            fields.update(happened(record[events]))
            fields["cpus"] = chains[record[chain:chain_end]]
            if kind is not REQUEST:
                heard = silence if interference is None else record[interference] + record[before_wakeup]
                fields["interference"] = [] if heard == silence else list(self._interference(heard))
                if record[commit] != self._no_commit:
                    fields["commit"] = self._commit_fields(record[commit])
                if self._waits is not None and any(record[waits][:8]):
                    fields["waits"] = self._wait_fields(record[waits])
            if any(record[held:held_end]):
                fields["throttled_by"] = [
                    {"controller": name, "ns": ns} for name, ns in zip(controllers, record[held:held_end]) if ns
                ]
                if tag_queue is not None and record[tag_queue]:
                    fields["tag_queue"] = record[tag_queue] - 1
            if self._decode_neighbours is not None and self._met is not None and any(record[met][:8]):
                fields["neighbours"] = self._decode_neighbours(self._met.unpack(record[met], 0))
            end = record[end_ns]
            if handed_ns is not None and seen_ns is not None:
                clock = fields["clock"] = {"end_ns": end}
                if number:
                    clock["handed_ns"], clock["seen_ns"] = record[handed_ns], record[seen_ns]
            event = Event(group, end + wall, end - record[start_ns], stages, fields)
            if trails is None:
                yield event
            elif kind is REQUEST:
                yield event._replace(segments=of_request(stages))
            else:
                segments, more, children = trails.decode(record[trail], record[start_ns])
                yield event._replace(segments=segments, more=more, children=children)

    def _wall_ns(self) -> int:
        return wall_offset_ns() if self.wall_offset_ns is None else self.wall_offset_ns

    def decode_short(self, records: Sequence[Record]) -> Iterator[Event]:
        """Decode only what figures and filters need, in a fraction of the time."""
        at = self._at.__getitem__
        tgid, tid, name, cgroup, path_at, path_end, path_cut = map(
            at, ("tgid", "tid", "comm", "cgroup", "path", "path_end", "path_cut")
        )
        kind_at, slot, op, result, length, size, dirty_ns, requests, readahead = map(
            at, ("kind", "slot", "op", "result", "length", "bytes", "dirty_ns", "requests", "readahead")
        )
        start, end, first = at("start_ns"), at("end_ns"), at("stages[0]")
        last, names, kinds, ops = first + len(self._stages), self.names, self._kinds, self._ops
        comms, cgroups, paths = Made(comm), Made(self.cgroups.of), Made(lambda key: path(*key))
        groups = Made(lambda key: kinds[key[0]].group(names[key[1]], ops[kinds[key[0]]][key[2]]))
        owners, statement = None if self._texts is None else Made(self._texts.fields), self._at.get("statement", 0)
        wall = self._wall_ns()
        for record in records:
            group = groups[record[kind_at], record[slot], record[op]]
            stages: dict[str, int] = dict(zip(self._stages, record[first:last]))
            fields = {
                "pid": record[tgid],
                "tid": record[tid],
                "comm": comms[record[name]],
                "cgroup": cgroups[record[cgroup]],
                "cpus": None,
            }
            if owners is not None:
                fields.update(owners[record[statement], comms[record[name]]])
            done = record[result]
            if group.kind is REQUEST:
                stages = {name: stages[name] for name in self._request_stages}
                fields["error"], fields["bytes"] = done, record[size]
            else:
                fields["error"], fields["result"], fields["length"] = -4096 < done < 0, done, record[length]
                fields["requests"], fields["readahead"] = record[requests], record[readahead]
            if group.kind is not REQUEST or record[dirty_ns]:
                fields["path"] = paths[record[path_at][: record[path_end]], record[path_cut] != 0]
            yield Event(group, record[end] + wall, record[end] - record[start], stages, fields)

    def _trails_of(self, obj: BpfObject | Described, layout: Structure) -> Trails:
        ops = self._ops[REQUEST]
        return Trails(
            layout.member("trail"),
            obj.constants["SEGMENT_STAGE_BITS"],
            self._stages,
            lambda op, flags: self._letters((ops[op], flags)),
            maj_min,
        )

    def _letters(self, key: tuple[str, int]) -> str:
        op, bits = key
        return rwbs(op, [name for place, name in enumerate(self._flags) if bits >> place & 1])

    def _cpus(self, chain: tuple[int, ...]) -> dict[str, int | None]:
        return {name: cpu if cpu != self._no_cpu else None for name, cpu in zip(self._chain, chain)}

    def _commit_fields(self, data: bytes) -> dict[str, Any]:
        """Only the number, if nothing else is known."""
        one = self._commit.unpack(data, 0)
        if not one.pid:
            return {"transaction": one.transaction}
        most = {
            "pid": one.most_pid,
            "comm": comm(one.most_comm),
            "handles": one.most_handles,
            "blocks": one.most_blocks,
        }
        wrote = {"requests": one.requests, "bytes": one.bytes, "flush_ns": one.flush_ns}
        return {
            "transaction": one.transaction,
            "pid": one.pid,
            "comm": comm(one.comm),
            # Unknown if a filter left out its requests.
            **({} if one.filtered else wrote),
            "ns": one.ns,
            "handles": one.handles,
            "blocks": one.blocks,
            "most": most if one.most_pid else None,
        }

    def _wait_fields(self, data: bytes) -> list[dict[str, Any]]:
        found = []
        for one in () if self._waits is None else self._waits.unpack(data, 0):
            if one.stack:
                reason, functions = self.stack_of(one.stack)
                entry = {"stage": self._stages[one.stage], "reason": reason, "ns": one.ns, "count": one.count}
                found.append({**entry, "stack": list(functions)})
        return found

    def _interference(self, data: bytes) -> Iterator[dict[str, Any]]:
        interferer = self._interferer
        if interferer is None:
            return
        for place, kind in enumerate(self._interferences):
            one = interferer.unpack(data, place * interferer.size)
            if not one.count:
                continue
            yield {
                "kind": kind,
                "name": _SOFTIRQS[one.softirq % len(_SOFTIRQS)] if kind == "softirq" else comm(one.name),
                "pid": one.pid if kind not in ("hardirq", "softirq") else None,
                "cpu": one.cpu,
                "ns": one.ns,
                "count": one.count,
            }


class Made(dict[Any, Any]):
    """A cache of values made from parts of records: records with the same part share the value."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: Any) -> Any:
        made = self[key] = self._make(key)
        return made


def _interferences(obj: BpfObject | Described) -> list[str]:
    try:
        return obj.enum("interference_kind")
    except KeyError:
        return obj.enum("noise_stage")


# --- With --segments ------------------------------------------------------------------------------------------------


class Trails:
    """Decodes segments. `letters` and `numbers` name an operation with its flags, and a device."""

    def __init__(
        self,
        codec: Any,
        stage_bits: int,
        stages: Sequence[str],
        letters: Callable[[int, int], str],
        numbers: Callable[[int], str],
    ) -> None:
        if not 0 < stage_bits < 64:
            raise ValueError("a stage takes some bits of a word")
        self._codec = codec
        self._bits = stage_bits
        self._stages = stages
        self._letters, self._numbers = letters, numbers
        self._nothing = bytes(codec.size)

    def decode(self, data: bytes, start_ns: int) -> tuple[list[Segment], int, list[Child]]:
        """Return segments, how many more there were, and requests in the order in which they were queued.

        Raises ValueError if segments go back in time, which no program writes.
        """
        if data == self._nothing:
            return [], 0, []
        trail = self._codec.unpack(data)
        children = sorted(self._children(trail.children, start_ns), key=lambda one: one.times["queued"])
        return list(self._segments(trail.segments)), trail.more, children

    def _segments(self, words: Sequence[int]) -> Iterator[Segment]:
        begin, mask = 0, (1 << self._bits) - 1
        for word in words:
            if not word:
                return
            end = word >> self._bits
            if end <= begin:
                raise ValueError("a segment ends before it begins")
            yield Segment(self._stages[word & mask], begin, end)
            begin = end

    def _children(self, found: Sequence[Any], start_ns: int) -> Iterator[Child]:
        for one in found:
            if not one.times.queued:
                continue
            yield Child(
                {name: at - start_ns for name, at in vars(one.times).items()},
                {
                    "maj_min": self._numbers(one.dev),
                    # A flush has no sector.
                    "sector": int(one.sector) if one.bytes else 0,
                    "bytes": int(one.bytes),
                    "rwbs": self._letters(one.op, one.flags),
                    "readahead": one.readahead != 0,
                    "error": to_errno(int(one.error)),
                },
            )


def of_request(stages: Mapping[str, int]) -> list[Segment]:
    """The segments of a request, which passes its stages in order."""
    found, begin = [], 0
    for name, ns in stages.items():
        if ns:
            found.append(Segment(name, begin, begin + ns))
            begin += ns
    return found
