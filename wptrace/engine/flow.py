# SPDX-License-Identifier: Apache-2.0
"""What a flow is: stages, the hooks that observe them, and how its object is loaded on this kernel."""

from __future__ import annotations

import os
import resource
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Callable, ClassVar, NamedTuple, Protocol

from wptrace.bpf import trial
from wptrace.bpf.kernel_btf import KernelBtf, module, vmlinux
from wptrace.bpf.lib import libbpf
from wptrace.bpf.object import BpfObject
from wptrace.bpf.programs import Program, Statistics
from wptrace.bpf.ring import Reader
from wptrace.engine.filters import Predicates
from wptrace.errors import LibbpfError, NotPermittedError, UnsupportedError, VerifierError, WptraceError
from wptrace.model.budget import Step
from wptrace.model.diagnosis import Check
from wptrace.model.distribution import Distribution
from wptrace.model.results import Group, InFlight, Overhead, Request, Snapshot, Start
from wptrace.model.stages import StageTable

OF_MODULES = "whose functions are observed with CAP_SYS_ADMIN alone"
_KPROBES = Path("/sys/bus/event_source/devices/kprobe")


class Hook(NamedTuple):
    """A moment that a flow observes, with the programs that can observe it, best first."""

    name: str
    programs: tuple[str | tuple[str, ...], ...]
    """Where several programs observe it together, they are a tuple of their own."""
    serves: tuple[str, ...]
    """The stages that need it."""
    without: str
    """What the result lacks where none of the programs works."""
    required: bool = True
    module: str = ""
    """The module whose functions or tracepoints it needs; where that is not there, nor is what it would observe."""
    modules: tuple[str, ...] = ()
    """More of them, whose functions may be among its programs' targets."""

    @property
    def ways(self) -> tuple[tuple[str, ...], ...]:
        return tuple((way,) if isinstance(way, str) else way for way in self.programs)

    @property
    def applies(self) -> bool:
        return not self.module or os.path.isdir(f"/sys/module/{self.module}")  # noqa: PTH112


class Field(NamedTuple):
    """A fact of the kernel that a program reads: one of these fields ("request.part") must be there."""

    names: tuple[str, ...]
    without: str


class Shedder(Protocol):
    """What a flow does less of when it costs too much."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """In the order in which they are shed."""

    def programs(self) -> list[Program]: ...
    def shed(self, step: Step) -> None: ...
    def restore(self, step: Step) -> None:
        """Raises where the kernel does not let it come back; then it is shed as before."""


class Flow:
    """One traced path. A subclass is all that a module in flows/ has to hold; it is found by itself."""

    name: ClassVar[str]
    level: ClassVar[str] = ""
    object: ClassVar[str]
    stages: ClassVar[StageTable]
    hooks: ClassVar[tuple[Hook, ...]]
    """In the order in which they attach: ends before starts, so that no end is missed."""

    filters: ClassVar[Predicates] = ()
    """What can be asked for, in the order of --help."""
    fields: ClassVar[tuple[Field, ...]] = ()

    @classmethod
    def hooks_here(cls) -> tuple[Hook, ...]:
        """Those that a start without options has on this machine as it is now."""
        return cls.hooks

    @staticmethod
    def configure(obj: BpfObject) -> None:
        """Sets what the programs must know of this kernel before they load; `wptrace doctor` calls it as well."""

    @staticmethod
    def checks() -> list[Check]:
        """What else `wptrace doctor` should say of this machine."""
        return []

    def start(self, reader: Reader) -> Start:
        """Loads, attaches, and adds its rings to the reader."""
        raise NotImplementedError

    def snapshot(self) -> Snapshot:
        raise NotImplementedError

    def look(self) -> dict[Group, dict[str, Distribution]]:
        """The cells of a snapshot, where they can be had without the rest of it."""
        return self.snapshot().cells

    def requests(self) -> list[Request]:
        """The single requests that came since the last call."""
        raise NotImplementedError

    def in_flight(self, at_least_ns: int) -> list[InFlight]:
        """What is in flight for at least so long, oldest first; a flow that keeps no state of single ones has none."""
        return []

    def shedder(self) -> Shedder | None:
        """After the start: what a budget may take off this flow; None where it has nothing of the kind."""
        return None

    def stop(self) -> None:
        """Detaches; a snapshot is still possible."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class Loaded(NamedTuple):
    obj: BpfObject
    chosen: dict[str, tuple[str, ...]]
    """By hook: the programs that observe it; hooks that nothing can observe are not in it."""
    refused: dict[str, str]
    """By program: why not."""

    @property
    def programs(self) -> list[Program]:
        """All that are attached, in that order."""
        return [self.obj.progs[name] for name in dict.fromkeys(name for way in self.chosen.values() for name in way)]

    def sections(self, hook: str) -> str:
        """By what a hook is observed; empty where it is not."""
        return ", ".join(self.obj.progs[name].section for name in self.chosen.get(hook, ()))

    def detach(self) -> None:
        """Starts before ends, so that what was seen to start can still be seen to end."""
        for program in reversed(self.programs):
            program.close()

    def detach_all_but(self, hooks: Collection[str]) -> None:
        """A program that one of these hooks needs stays, whatever else it serves."""
        kept = {name for hook in hooks for name in self.chosen.get(hook, ())}
        for program in reversed(self.programs):
            if program.name not in kept:
                program.close()

    def attach_again(self, hooks: Collection[str]) -> None:
        """Those of the programs of these hooks that were detached. If one cannot, all of them stay off."""
        wanted = {name for hook in hooks for name in self.chosen.get(hook, ())}
        attached: list[Program] = []
        try:
            for program in self.programs:
                if program.name in wanted and not program.links:
                    attached.append(program)
                    program.attach()
        except WptraceError:
            for program in reversed(attached):
                program.close()
            raise


def load(
    name: str, hooks: tuple[Hook, ...], prepare: Callable[[BpfObject], None], refused: dict[str, str] | None = None
) -> Loaded:
    """Loads and attaches an object with the best program that this kernel takes for each hook.

    The first choice works almost everywhere, so it is not tried beforehand: a program that is refused makes room for
    the next one, and the object is opened anew, since libbpf cannot load an object in part. But functions are asked
    for: all those programs are refused together, after a long time in which the others were verified in vain.

    In `refused` the reasons are left where no way remains.
    """
    hooks = tuple(hook for hook in hooks if hook.applies)
    refused = {} if refused is None else refused
    asked = False
    while True:
        obj = trial.open_here(name)
        try:
            chosen = _choose(hooks, refused, obj)
            sections = [obj.progs[program].section for way in chosen.values() for program in way]
            if not asked and any(map(_of_function, sections)):
                asked = True
                if not trial.attempt("features", "fentry", _alone, attach=False).works:
                    _refuse_functions(obj, refused)
                    chosen = _choose(hooks, refused, obj)
            wanted = {program for way in chosen.values() for program in way}
            for program in obj.progs.values():
                program.autoload = program.name in wanted
            prepare(obj)
            obj.load()
            loaded = Loaded(obj, chosen, refused)
            for program in loaded.programs:
                _attach(obj, program.name)
            return loaded
        except (VerifierError, NotPermittedError) as error:
            obj.close()
            program_name = getattr(error, "program", "")
            if not program_name or program_name in refused:
                raise
            refused[program_name] = _said(error)
            _refuse_alike(obj.progs[program_name].section, obj, refused)
            _check(hooks, refused, error)
        except BaseException:
            obj.close()
            raise


def overhead(programs: Iterable[Statistics], map_bytes: int, records: int) -> Overhead:
    """What a flow cost so far: its programs as the kernel counted them, and this process."""
    ran = list(programs)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return Overhead(
        bpf_ns=sum(program.run_time_ns for program in ran),
        bpf_runs=sum(program.run_count for program in ran),
        reader_cpu_ns=int((usage.ru_utime + usage.ru_stime) * 1e9),
        rss_bytes=usage.ru_maxrss * 1024,
        map_bytes=map_bytes,
        records=records,
    )


def _attach(obj: BpfObject, program: str) -> None:
    try:
        obj.progs[program].attach()
    except (LibbpfError, NotPermittedError) as error:
        raise VerifierError(program, "", error.hint) from error


def _said(error: WptraceError) -> str:
    if isinstance(error.__cause__, WptraceError):
        return trial.reason("loads, but cannot be attached", error.__cause__)
    return trial.reason("refused at load", error)


def _choose(hooks: tuple[Hook, ...], refused: dict[str, str], obj: BpfObject) -> dict[str, tuple[str, ...]]:
    """The best way for each hook that is left; what this kernel does not have is refused without a trial."""
    chosen = {}
    for hook in hooks:
        for way in hook.ways:
            for program in way:
                absent = program not in refused and missing_target(
                    obj.progs[program].section, hook.module, *hook.modules
                )
                if absent:
                    refused[program] = absent
            if not any(program in refused for program in way):
                chosen[hook.name] = way
                break
    _check(hooks, refused, None)
    return chosen


def missing_target(section: str, *modules: str) -> str:
    """Why a program of this section cannot work, as far as BTF tells; empty where it may.

    Loading would tell as well, but only one program at a time, and each of them takes opening the object anew.
    """
    kind, _, target = section.partition("/")
    if kind in ("kprobe", "kretprobe"):
        return "" if _KPROBES.is_dir() else "this kernel has no kprobes"
    if kind not in ("fentry", "fexit", "tp_btf"):
        return ""
    noun = "tracepoint" if kind == "tp_btf" else "function"

    def is_in(place: KernelBtf | None) -> bool:
        return place is not None and bool(
            place.tracepoint(target) is not None if noun == "tracepoint" else place.has_function(target)
        )

    if is_in(vmlinux()):
        return ""
    if not any(is_in(module(name)) for name in modules if name):
        return f"there is no {noun} {target} in the kernel's BTF"
    return "" if libbpf().sees_modules else f"the {noun} {target} is a module's, {OF_MODULES}"


def _refuse_alike(section: str, obj: BpfObject, refused: dict[str, str]) -> None:
    """A kernel without trampolines, or with a policy against them, refuses every fentry and fexit program."""
    if _of_function(section) and not trial.attempt("features", "fentry", _alone).works:
        _refuse_functions(obj, refused)


def _of_function(section: str) -> bool:
    return section.partition("/")[0] in ("fentry", "fexit")


def _refuse_functions(obj: BpfObject, refused: dict[str, str]) -> None:
    for program in obj.progs.values():
        if _of_function(program.section):
            refused.setdefault(program.name, "this kernel takes no fentry and fexit programs")


def _alone(features: BpfObject) -> None:
    for unused in features.maps.values():
        unused.disable()


def _check(hooks: tuple[Hook, ...], refused: dict[str, str], last: WptraceError | None) -> None:
    for hook in hooks:
        if hook.required and all(any(program in refused for program in way) for way in hook.ways):
            if isinstance(last, NotPermittedError):
                raise last
            why = next(refused[program] for program in hook.ways[-1] if program in refused)
            raise UnsupportedError(
                f"this kernel offers no way to observe {hook.name}: {why}",
                hint="wptrace doctor tells what this kernel allows",
            ) from last
