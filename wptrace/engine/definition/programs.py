# SPDX-License-Identifier: Apache-2.0
"""The programs of a definition on this kernel: for each point the first attachment that the kernel accepts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from wptrace.bpf import trial
from wptrace.bpf.btf import Enum
from wptrace.bpf.generated import Generated, Target
from wptrace.bpf.kernel_btf import module_descriptor
from wptrace.bpf.object import BpfObject
from wptrace.bpf.perf import InFile
from wptrace.engine.definition import emit
from wptrace.engine.definition.body import StandIns
from wptrace.engine.definition.definition import (
    BEGIN,
    DROP,
    END,
    FIRST,
    FUNCTION,
    IN_PROGRAMS,
    OUTER,
    PASS,
    RESTART,
    RETURN,
    Definition,
    PointSpec,
)
from wptrace.engine.definition.kernel import RunningKernel
from wptrace.engine.definition.recipe import FENTRY, FEXIT, Attachment
from wptrace.engine.definition.resolution import resolve
from wptrace.engine.definition.resolved import Point, Resolution
from wptrace.engine.hooks import BOTH, START, Hook
from wptrace.engine.hooks import END as ENDS
from wptrace.engine.resolver import Attempts
from wptrace.errors import LibbpfError, NotPermittedError, UnsupportedError, WptraceError
from wptrace.kernel import binaries, privileges

_ASKING = {BEGIN: "begin_asking", PASS: "pass_asking"}
_HOOK_ROLES = {BEGIN: START, END: ENDS, DROP: ENDS, PASS: BOTH}
# Ends before starts, so that no end is missed.
_ORDER = (DROP, END, PASS, BEGIN)


class Bodies(NamedTuple):
    """The bodies of a loaded object, which front ends fall through into."""

    code: Mapping[str, bytes]
    flags: Mapping[str, int]
    """The bits of generic_flag."""
    shifts: Mapping[str, int]
    stand_ins: StandIns


def body_of(spec: PointSpec, asks: bool) -> str:
    """The name of its body; with `asks` the user filters by task."""
    if asks and (spec.role == BEGIN or spec.begins):
        return _ASKING[spec.role]
    return spec.role


def bodies(obj: BpfObject) -> Bodies:
    """The bodies of a loaded object."""
    found = declared(obj, {program.name: program.code for program in obj.progs.values() if program.autoload})
    args, slot = (obj.bss.map_place(name) for name in ("args_here", "first_object"))
    return found._replace(stand_ins=StandIns(found.stand_ins.marks, args, slot, obj.maps["objects"].fd))


def declared(obj: BpfObject, code: Mapping[str, bytes]) -> Bodies:
    """Bodies with the flag values of the object's sources."""
    flags = {name: number for number, name in enumerate(obj.enum("generic_flag"))}
    return Bodies(code, flags, _values(obj, "generic_shift"), StandIns(_values(obj, "generic_mark")))


def _values(obj: BpfObject, name: str) -> dict[str, int]:
    found = obj.btf.find(name, Enum)
    return {} if found is None else {one.name.rpartition("_")[2].lower(): one.value for one in found.values}


class Numbering:
    """The numbers of columns, outcomes and labels' words, by name."""

    def __init__(
        self,
        resolution: Resolution,
        labels: Mapping[str, int],
        slot_bits: int = 10,
        emits_records: bool = False,
        shedding: bool = False,
        exchanges: bool = True,
    ) -> None:
        """`labels` holds the first word of each wanted label."""
        definition = resolution.definition
        self._slot_bits = slot_bits
        self._exchanges = exchanges
        self._stages = len(definition.columns) if len(definition.columns) > 1 else 0
        self._kept = {
            "several": self._stages > 0,
            "valued": definition.value is not None,
            "marked": any(point.spec.mark is not None for point in resolution.points),
            "labelled": bool(labels),
            "emits_records": emits_records,
            "shedding": shedding,
        }
        self._definition = definition
        self._labels = labels
        self._words = {label.name: label.words for label in resolution.labels}
        self._columns = {name: number for number, name in enumerate(definition.columns)}
        # 0 is the plain end.
        self._outcomes = {name: number for number, name in enumerate(definition.outcomes, 1)}
        # The end of an object whose begin was filtered out is not a loss.
        self._quiet = any(
            one.filters
            for point in resolution.points
            if point.spec.role == BEGIN or point.spec.begins
            for one in point.attachments
        )

    def constants(self, spec: PointSpec, attachment: Attachment, bodies: Bodies) -> emit.Constants:
        flags = emit.flags_of(attachment, bodies.flags)
        named = {
            "quiet": spec.quiet or self._quiet,
            "first": spec.repeat == FIRST,
            "restart": spec.repeat == RESTART,
            "begins": spec.begins,
            "nest": self._definition.nest == OUTER,
            **self._kept,
        }
        flags |= sum(1 << bodies.flags[name] for name, on in named.items() if on)
        if spec.after:
            flags |= 1 << self._columns[spec.after] + bodies.shifts["after"]
        flags |= self._outcomes.get(spec.outcome, 0) << bodies.shifts["outcome"]
        wanted = [label.name in self._labels for label in spec.labels]
        words = [self._labels.get(label.name, 0) for label in spec.labels]
        for label, first, on in zip(spec.labels, words, wanted):
            if on:
                flags |= ((1 << self._words[label.name]) - 1) << first + bodies.shifts["labels"]
        # An end has the column after all others, at which no stage begins.
        column = self._columns.get(spec.name, len(self._columns))
        return emit.Constants(column, flags, self._slot_bits, self._stages, words, wanted, self._exchanges)


def hooks(definition: Definition, points: tuple[Point, ...]) -> tuple[Hook, ...]:
    """Hooks for notes and the doctor, by index of the point: points may share a name."""
    return tuple(
        Hook(
            str(number),
            f"point {point.spec.name}",
            tuple(names(point)) or (f"{point.spec.name} nowhere",),
            (point.spec.stage,) if point.spec.stage else (),
            f"{definition.nouns} are not seen at {point.spec.name}",
            _HOOK_ROLES[point.spec.role],
            not point.spec.optional,
        )
        for number, point in enumerate(points)
    )


def names(point: Point) -> list[str]:
    """The names of its programs: `D tp_btf block_rq_issue`, with ` by copies` for the second of a kind."""
    found: list[str] = []
    for one in point.attachments:
        name = f"{point.spec.name} {one.way} {one.target}"
        while name in found:
            name += " by copies"
        found.append(name)
    return found


class Programs:
    """The programs that are attached, in order of attachment."""

    def __init__(self, resolution: Resolution) -> None:
        self.attempts = Attempts(hooks(resolution.definition, resolution.points))
        self._points = resolution.points
        self._tracing_refused = ""
        self.loaded: dict[int, Generated] = {}
        """By index of the point."""

    def attach(self, numbering: Numbering, found: Bodies, asks: bool) -> None:
        """Attach each point by the first way that the kernel accepts; raise if a required point has none.

        Ends come first, so that nothing is followed before all later points are attached.
        """
        for role in _ORDER:
            for number, point in self._in_order(role):
                program = self._first(point, numbering, found, asks)
                if program is not None:
                    self.loaded[number] = program
                    ways = self.attempts.hooks[number].ways
                    self.attempts.chosen[str(number)] = next(one for one in ways if one.programs == (program.name,))
                elif not point.spec.optional:
                    raise self._none_left(number, point)

    def _in_order(self, role: str) -> list[tuple[int, Point]]:
        """The order of attachment by which, of several points at one hook, the first in the file runs first.

        A tracepoint runs programs in order of attachment. Trampolines of functions and probes at entries run them in
        reverse (bpf_trampoline_link_prog, register_kprobe); probes at returns do not. Those in programs always do
        (consumer_add in kernel/events/uprobes.c).
        """
        every = [(number, point) for number, point in enumerate(self._points) if point.spec.role == role]
        if len(every) < 2:
            return every
        returns = any(point.spec.targets[0].kind == RETURN for _, point in every)
        backwards = {FUNCTION, *IN_PROGRAMS, *((RETURN,) if returns and trial.functions() else ())}
        last_first = [one for one in every if one[1].spec.targets[0].kind in backwards]
        return [*(one for one in every if one not in last_first), *reversed(last_first)]

    def _first(self, point: Point, numbering: Numbering, found: Bodies, asks: bool) -> Generated | None:
        for name, attachment in zip(names(point), point.attachments):
            try:
                if attachment.way in (FENTRY, FEXIT) and self._tracing_refused:
                    raise UnsupportedError(self._tracing_refused)
                program = self._generated(name, point.spec, attachment, numbering, found, asks)
            except (LibbpfError, NotPermittedError, UnsupportedError) as error:
                self.attempts.refused[name] = trial.reason("refused at load", error)
                if attachment.way in (FENTRY, FEXIT) and not self._tracing_refused and not trial.functions():
                    self._tracing_refused = "this kernel takes no fentry and fexit programs"
                continue
            self.attempts.sections[name] = program.section
            try:
                program.attach()
            except (LibbpfError, NotPermittedError, UnsupportedError) as error:
                self.attempts.refused[name] = _reason(attachment, error)
                program.close()
                continue
            return program
        return None

    def _generated(
        self, name: str, spec: PointSpec, attachment: Attachment, numbering: Numbering, found: Bodies, asks: bool
    ) -> Generated:
        constants = numbering.constants(spec, attachment, found)
        code = emit.program(attachment, constants, found.code[body_of(spec, asks)], found.stand_ins, os.uname().machine)
        return generated(name, attachment, code)

    def _none_left(self, number: int, point: Point) -> WptraceError:
        hook = self.attempts.hooks[number]
        reason = (
            "; ".join(point.notes) if not point.attachments else "; ".join((self.attempts.reason(hook.id), *point.rest))
        )
        where = f"line {point.spec.at.line}: " if point.spec.at.line else ""
        return UnsupportedError(
            f"{where}this kernel offers no way to observe the point {point.spec.name}: {reason}",
            hint="wptrace flow --check shows what each point is here",
        )

    def notes(self) -> list[str]:
        return [note for point in self._points for note in point.notes] + self.attempts.notes()

    def detach(self) -> None:
        """Detach starts before ends, so that the end of everything that started is still seen."""
        for role in reversed(_ORDER):
            for number, point in enumerate(self._points):
                if point.spec.role == role and number in self.loaded:
                    self.loaded[number].detach()

    def close(self) -> None:
        self.detach()
        for program in self.loaded.values():
            program.close()


def _reason(attachment: Attachment, error: WptraceError) -> str:
    why = trial.reason("loads, but cannot be attached", error)
    # ba677dbe77af ("perf: Revert to requiring CAP_SYS_ADMIN for uprobes", 6.16): before it, CAP_PERFMON was enough.
    if attachment.spot is None or not isinstance(error, NotPermittedError) or "CAP_SYS_ADMIN" in privileges.effective():
        return why
    return f"{why}, because probes in programs need CAP_SYS_ADMIN, which is missing"


def generated(name: str, attachment: Attachment, code: bytes) -> Generated:
    """Load code for an attachment."""
    if attachment.spot is not None:
        spot = attachment.spot
        place = InFile(binaries.reopened(spot), spot.offset, spot.counter)
        try:
            return Generated(name, Target(attachment.way, attachment.target, place=place), code)
        except BaseException:
            os.close(place.fd)
            raise
    btf_fd = module_descriptor(attachment.module) if attachment.module and attachment.btf_id else 0
    target = Target(attachment.way, attachment.target, attachment.btf_id, btf_fd)
    try:
        return Generated(name, target, code)
    finally:
        if btf_fd:
            os.close(btf_fd)


def resolve_here(definition: Definition) -> Resolution:
    """Resolve on the running kernel. If it can only probe functions, keys that probes do not see are dropped."""
    several = any(len(point.keys) > 1 for point in definition.points)
    without = (FENTRY, FEXIT) if several and not trial.functions() else ()
    return resolve(definition, RunningKernel(), without)
