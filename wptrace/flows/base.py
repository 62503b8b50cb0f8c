# SPDX-License-Identifier: Apache-2.0
"""What a flow is: stages, the hooks that observe them, and how its object is loaded on this kernel."""

from __future__ import annotations

import importlib
import pkgutil
import resource
from collections.abc import Iterable, Iterator
from typing import Callable, ClassVar, NamedTuple

from wptrace.bpf.object import BpfObject, open_object
from wptrace.bpf.programs import Statistics
from wptrace.bpf.ring import Reader
from wptrace.engine.diagnosis import Check
from wptrace.engine.results import Overhead, Request, Snapshot, Start
from wptrace.engine.stages import StageTable
from wptrace.errors import LibbpfError, NotPermittedError, UnsupportedError, VerifierError, WptraceError


class Hook(NamedTuple):
    """A moment that a flow observes, with the programs that can observe it, best first."""

    name: str
    programs: tuple[str, ...]
    serves: tuple[str, ...]
    """The stages that need it."""
    without: str
    """What the result lacks where none of the programs works."""
    required: bool = True


class Field(NamedTuple):
    """A fact of the kernel that a program reads: one of these fields ("request.part") must be there."""

    names: tuple[str, ...]
    without: str


class Flow:
    """One traced path. A subclass is all that a module in flows/ has to hold; it is found by itself."""

    name: ClassVar[str]
    level: ClassVar[str] = ""
    object: ClassVar[str]
    stages: ClassVar[StageTable]
    hooks: ClassVar[tuple[Hook, ...]]
    """In the order in which they attach: ends before starts, so that no end is missed."""
    fields: ClassVar[tuple[Field, ...]] = ()

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

    def requests(self) -> list[Request]:
        """The single requests that came since the last call."""
        raise NotImplementedError

    def stop(self) -> None:
        """Detaches; a snapshot is still possible."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


def discover() -> list[type[Flow]]:
    """All flows of the package."""
    import wptrace.flows

    found = []
    for module in pkgutil.iter_modules(wptrace.flows.__path__):
        loaded = importlib.import_module(f"wptrace.flows.{module.name}")
        found += [
            kind
            for kind in vars(loaded).values()
            if isinstance(kind, type) and issubclass(kind, Flow) and kind.__module__ == loaded.__name__ != __name__
        ]
    return found


class Loaded(NamedTuple):
    obj: BpfObject
    chosen: dict[str, str]
    """By hook: the program that observes it; hooks that nothing can observe are not in it."""
    refused: dict[str, str]
    """By program: why not."""

    def detach(self) -> None:
        """Starts before ends, so that what was seen to start can still be seen to end."""
        for program in reversed(list(self.chosen.values())):
            self.obj.progs[program].close()


def load(name: str, hooks: tuple[Hook, ...], prepare: Callable[[BpfObject], None]) -> Loaded:
    """Loads and attaches an object with the best program that this kernel takes for each hook.

    The first choice works almost everywhere, so nothing is tried beforehand: a program that is refused makes room
    for the next one, and the object is opened anew, since libbpf cannot load an object in part.
    """
    refused: dict[str, str] = {}
    while True:
        chosen = dict(_choose(hooks, refused))
        obj = open_object(name)
        try:
            wanted = set(chosen.values())
            for program in obj.progs.values():
                program.autoload = program.name in wanted
            prepare(obj)
            obj.load()
            for hook in hooks:
                if hook.name in chosen:
                    _attach(obj, chosen[hook.name])
            return Loaded(obj, chosen, refused)
        except (VerifierError, NotPermittedError) as error:
            obj.close()
            program_name = getattr(error, "program", "")
            if not program_name or program_name in refused:
                raise
            refused[program_name] = error.message
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


def _choose(hooks: tuple[Hook, ...], refused: dict[str, str]) -> Iterator[tuple[str, str]]:
    for hook in hooks:
        for program in hook.programs:
            if program not in refused:
                yield hook.name, program
                break


def _check(hooks: tuple[Hook, ...], refused: dict[str, str], last: WptraceError) -> None:
    for hook in hooks:
        if hook.required and all(program in refused for program in hook.programs):
            if isinstance(last, NotPermittedError):
                raise last
            raise UnsupportedError(
                f"this kernel offers no way to observe {hook.name}: {refused[hook.programs[-1]]}",
                hint="wptrace doctor tells what this kernel allows",
            ) from last
