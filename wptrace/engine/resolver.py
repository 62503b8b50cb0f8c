# SPDX-License-Identifier: Apache-2.0
"""Choice of the way by which each hook is observed on this kernel, and why the better ones failed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Callable, NamedTuple

from wptrace.bpf import targets, trial
from wptrace.bpf.kernel_btf import free_types
from wptrace.bpf.lib import libbpf
from wptrace.bpf.object import BpfObject
from wptrace.bpf.programs import Program, Statistics
from wptrace.bpf.targets import Target
from wptrace.engine.hooks import Hook, Way
from wptrace.errors import LibbpfError, NotPermittedError, UnsupportedError, VerifierError, WptraceError
from wptrace.model.diagnosis import Attempt

OF_MODULES = "whose functions can be observed only with CAP_SYS_ADMIN"
_KPROBES = Path("/sys/bus/event_source/devices/kprobe")


class Attempts:
    """Results of trying the ways of each hook; notes and `wptrace doctor` read the same."""

    def __init__(self, hooks: Iterable[Hook]) -> None:
        self.hooks = tuple(hook for hook in hooks if hook.applies)
        self.sections: dict[str, str] = {}
        """Sections by program; empty if the object could not be opened."""
        self.refused: dict[str, str] = {}
        """Reasons of refusals by program."""
        self.targets: dict[str, Target] = {}
        """Targets by program, for targets that are given by a type."""
        self.chosen: dict[str, Way] = {}
        """The chosen way by id of the hook, once all are attached; hooks that cannot be observed are missing."""

    def left(self, hook: Hook) -> list[Way]:
        """The ways that were not refused, best first."""
        return [way for way in hook.ways if not any(program in self.refused for program in way.programs)]

    def reason(self, hook: str) -> str:
        """Why the last way of the hook with this id does not work."""
        last = next(one.ways[-1] for one in self.hooks if one.id == hook)
        return next((self.refused[program] for program in last.programs if program in self.refused), "")

    @property
    def missing(self) -> dict[str, str]:
        """The reasons why hooks cannot be observed here, by name."""
        return {hook.name: self.reason(hook.id) for hook in self.hooks if hook.noted and not self.left(hook)}

    def of(self, hook: Hook) -> list[Attempt]:
        way = self.chosen.get(hook.id, Way()).programs
        return [
            Attempt(
                program,
                self.sections[program],
                True if program in way else False if program in self.refused else None,
                self.refused.get(program, ""),
            )
            for offered in hook.ways
            for program in offered.programs
        ]

    def notes(self, *others: str) -> list[str]:
        """Return what the result lacks, with the reason; the flow has its own notes for hooks with these ids."""
        missing = [hook for hook in self.hooks if not self.left(hook) and hook.id not in others and hook.noted]
        return [f"{hook.without} ({hook.name} cannot be observed here: {self.reason(hook.id)})" for hook in missing]


class Loaded(NamedTuple):
    obj: BpfObject
    attempts: Attempts

    @property
    def programs(self) -> list[Program]:
        """All attached programs, in order of attachment."""
        return self._of(self.attempts.chosen)

    def _of(self, hooks: Collection[str]) -> list[Program]:
        ways = (way for hook, way in self.attempts.chosen.items() if hook in hooks)
        return [self.obj.progs[name] for name in dict.fromkeys(name for way in ways for name in way.programs)]

    def way(self, hook: str) -> Way:
        """The way of a hook; an empty one if it is not observed."""
        return self.attempts.chosen.get(hook, Way())

    def sections(self, *hooks: str) -> str:
        """The sections of the programs that observe these hooks; empty if none does."""
        found = (", ".join(program.section for program in self._of([hook])) for hook in hooks)
        return ", ".join(filter(None, found))

    def serving(self, stage: str) -> str:
        """The sections of the programs that serve a stage."""
        return self.sections(*(hook.id for hook in self.attempts.hooks if stage in hook.serves))

    def statistics(self) -> dict[str, Statistics]:
        return {program.name: program.statistics() for program in self.programs}

    def misses(self, ran: Mapping[str, Statistics], role: str, hooks: Collection[str] | None = None) -> int:
        """Skipped runs of programs with this role; a program of several hooks counts once."""
        ways = [way for hook, way in self.attempts.chosen.items() if hooks is None or hook in hooks]
        return sum(ran[name].recursion_misses for name in {name for way in ways for name in way.of(role)})

    def drop(self, hook: str) -> None:
        """Stop observing a hook."""
        self.detach_all_but(self.attempts.chosen.keys() - {hook})
        self.attempts.chosen.pop(hook, None)

    def detach(self) -> None:
        """Detach starts before ends, so that the end of everything that started is still seen."""
        self.detach_all_but(())

    def detach_all_but(self, hooks: Collection[str]) -> None:
        """Detach all programs but those of these hooks, even if they serve others as well."""
        kept = {program.name for program in self._of(hooks)}
        for program in reversed(self.programs):
            if program.name not in kept:
                program.close()

    def attach_again(self, hooks: Collection[str]) -> None:
        """Attach the detached programs of these hooks again. If one fails, all of them stay off."""
        attached: list[Program] = []
        try:
            for program in self._of(hooks):
                if not program.links:
                    attached.append(program)
                    program.attach()
        except WptraceError:
            for program in reversed(attached):
                program.close()
            raise


def load(name: str, hooks: Iterable[Hook], prepare: Callable[[BpfObject], None]) -> Loaded:
    """Load and attach an object with the best way for each hook that this kernel accepts."""
    return resolve(name, Attempts(hooks), prepare)


def resolve(name: str, attempts: Attempts, prepare: Callable[[BpfObject], None]) -> Loaded:
    """Load and attach, with the results in `attempts` even on failure.

    The first choice works almost everywhere, so nothing is tried beforehand: if a program is refused, the next way is
    chosen and the object is opened again, as libbpf cannot load part of an object. Programs at functions are the
    exception: some kernels refuse all of them, but only after the verifier has spent a long time on the others.
    """
    refused = attempts.refused
    while True:
        obj = trial.open_here(name)
        attempts.sections = {program.name: program.section for program in obj.progs.values()}
        try:
            # Set before the targets are looked up.
            offered = {program for hook in attempts.hooks for way in hook.ways for program in way.programs}
            if any(_of_function(attempts.sections[program]) for program in offered) and not trial.functions():
                _refuse_functions(attempts)
            chosen = _choose(attempts)
            wanted = _programs(chosen)
            for program in obj.progs.values():
                program.autoload = program.name in wanted
                program.target = attempts.targets.get(program.name)
            prepare(obj)
            obj.load()
            for one in wanted:
                _attach(obj, one)
            attempts.chosen = chosen
            free_types()
            return Loaded(obj, attempts)
        except (VerifierError, NotPermittedError) as error:
            obj.close()
            program_name = getattr(error, "program", "")
            if not program_name or program_name in refused:
                raise
            refused[program_name] = _said(error)
            # A kernel without trampolines, or with a policy against them, refuses every fentry and fexit program.
            if _of_function(attempts.sections[program_name]) and not trial.attempt("fentry").works:
                _refuse_functions(attempts)
            _check(attempts, error)
        except BaseException:
            obj.close()
            raise


def _programs(chosen: Mapping[str, Way]) -> list[str]:
    return list(dict.fromkeys(program for way in chosen.values() for program in way.programs))


def _attach(obj: BpfObject, program: str) -> None:
    try:
        obj.progs[program].attach()
    except (LibbpfError, NotPermittedError) as error:
        raise VerifierError(program, "", error.hint) from error


def _said(error: WptraceError) -> str:
    if isinstance(error.__cause__, WptraceError):
        return trial.reason("loads, but cannot be attached", error.__cause__)
    return trial.reason("refused at load", error)


def _choose(attempts: Attempts) -> dict[str, Way]:
    """The best remaining way for each hook; ways that this kernel does not have are refused without a trial."""
    chosen = {}
    for hook in attempts.hooks:
        # By name: why there is no such tracepoint. A raw program needs no type, but a module may have no types at all.
        lacking: dict[str, str] = {}
        for way in hook.ways:
            for program in way.programs:
                if program in attempts.refused or program in attempts.targets:
                    continue
                section = attempts.sections[program]
                kind, _, name = section.partition("/")
                target, absent = find_target(section, hook.module, *hook.modules)
                if kind == "tp_btf" and not (hook.module or hook.modules):
                    lacking[name] = absent
                elif kind == "raw_tp":
                    absent = lacking.get(name, "")
                if absent:
                    attempts.refused[program] = absent
                elif target is not None:
                    attempts.targets[program] = target
            if not any(program in attempts.refused for program in way.programs):
                chosen[hook.id] = way
                break
    _check(attempts, None)
    return chosen


def find_target(section: str, *modules: str) -> tuple[Target | None, str]:
    """Return the target of a program of this section, if it has one by type, and why it cannot work; empty if it may.

    Loading would show it as well, but only for one program at a time, and each attempt has to open the object again.
    """
    kind, _, target = section.partition("/")
    if kind in ("kprobe", "kretprobe"):
        return None, "" if _KPROBES.is_dir() else "this kernel has no kprobes"
    if kind not in targets.KINDS:
        return None, ""
    found = targets.find(section, modules)
    noun = "tracepoint" if kind == "tp_btf" else "function"
    if found is None:
        return None, f"there is no {noun} {target} in the kernel's BTF"
    if found.module and not libbpf().sees_modules:
        return None, f"the {noun} {target} is a module's, {OF_MODULES}"
    return found, ""


def _of_function(section: str) -> bool:
    return section.partition("/")[0] in ("fentry", "fexit")


def _refuse_functions(attempts: Attempts) -> None:
    for program, section in attempts.sections.items():
        if _of_function(section):
            attempts.refused.setdefault(program, "this kernel takes no fentry and fexit programs")


def _check(attempts: Attempts, last: WptraceError | None) -> None:
    for hook in attempts.hooks:
        if hook.required and not attempts.left(hook):
            if isinstance(last, NotPermittedError):
                raise last
            raise UnsupportedError(
                f"this kernel offers no way to observe {hook.name}: {attempts.reason(hook.id)}",
                hint="wptrace doctor says what this kernel allows",
            ) from last
