# SPDX-License-Identifier: Apache-2.0
"""The programs that are loaded for a flow's hooks, on kernels made of Python."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable

import pytest

from wptrace.bpf import targets, trial
from wptrace.engine import resolver as base
from wptrace.engine.flow import Flow
from wptrace.engine.hooks import BOTH, END, START, Hook, Way, probe
from wptrace.engine.resolver import Attempts, Loaded, find_target, load, resolve
from wptrace.errors import NotPermittedError, UnsupportedError, VerifierError
from wptrace.model.kind import CPU, Kind, Label, Noun, Point, Stage
from wptrace.tools import doctor


class Btf:
    """Types by name, numbered in order; those of a module follow the kernel's."""

    def __init__(
        self, functions: tuple[str, ...] = (), tracepoints: tuple[str, ...] = (), base: Btf | None = None
    ) -> None:
        self.base = base
        self.first: int = len(base) if base else 1
        self.functions, self.tracepoints = functions, tracepoints

    def __len__(self) -> int:
        return self.first + len(self.functions) + len(self.tracepoints)

    def function(self, name: str) -> int:
        found = self.base.function(name) if self.base else 0
        return found or (self.first + self.functions.index(name) if name in self.functions else 0)

    def tracepoint_type(self, name: str) -> int:
        found = self.base.tracepoint_type(name) if self.base else 0
        place = self.tracepoints.index(name) if name in self.tracepoints else -1
        return found or (self.first + len(self.functions) + place if place >= 0 else 0)

    def tracepoint(self, name: str) -> tuple[str, ...] | None:
        return ("request *",) if name in self.tracepoints else None


class Program:
    def __init__(self, kernel: Kernel, name: str) -> None:
        self.kernel, self.name = kernel, name
        self.section = kernel.sections[name]
        self.autoload = True
        self.links: list[str] = []

    def attach(self) -> None:
        self.kernel.attached.append(self.name)
        if self.name in self.kernel.unattachable:
            raise NotPermittedError("not here")

    def close(self) -> None:
        self.kernel.attached.remove(self.name)


class Kernel:
    """A kernel that refuses some programs, and counts what becomes of the objects that are opened."""

    def __init__(self, **sections: str) -> None:
        self.sections = sections
        self.refused: set[str] = set()
        self.unattachable: set[str] = set()
        self.permitted = True
        self.opened = self.closed = 0
        self.loaded: list[list[str]] = []
        self.attached: list[str] = []

    def open(self, name: str) -> Any:
        self.opened += 1
        self.attached.clear()
        progs = {program: Program(self, program) for program in self.sections}
        return SimpleNamespace(progs=progs, load=lambda: self.load(progs), close=self.close)

    def load(self, progs: dict[str, Program]) -> None:
        wanted = [program.name for program in progs.values() if program.autoload]
        self.loaded.append(wanted)
        if not self.permitted:
            raise NotPermittedError("BPF is not permitted")
        for program in wanted:
            if program in self.refused:
                raise VerifierError(program, "")

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(
        kernel: Kernel, functions: tuple[str, ...] = (), fentry: Callable[[bool], bool] = lambda attach: True
    ) -> Kernel:
        tracepoints = tuple(section.partition("/")[2] for section in kernel.sections.values())
        monkeypatch.setattr(trial, "open_here", kernel.open)
        monkeypatch.setattr(targets, "vmlinux", lambda: Btf(functions, tracepoints))
        monkeypatch.setattr(targets, "module", lambda name: None)
        monkeypatch.setattr(trial, "functions", lambda: fentry(False))
        monkeypatch.setattr(trial, "attempt", lambda *_, attach=True: SimpleNamespace(works=fentry(attach)))
        return kernel

    return make


LAST = probe("end", "the end", "end", ("a",), "no end", END)
FUNCTION, CALL = Way(("out_fexit",), ("in_fentry",)), Way(("leave_raw_tp",), ("enter_raw_tp",), "call")
PAIR = Hook("pair", "both ends", (FUNCTION, CALL), ("a",), "no pair")
MORE = Hook("more", "what is rare", ("more_fentry",), ("b",), "less", required=False)
SECTIONS = {
    "end_tp_btf": "tp_btf/end",
    "end_raw_tp": "raw_tp/end",
    "out_fexit": "fexit/function",
    "in_fentry": "fentry/function",
    "leave_raw_tp": "raw_tp/leave",
    "enter_raw_tp": "raw_tp/enter",
    "more_fentry": "fentry/more",
}
BOTH_FUNCTIONS = ("function", "more")


def loaded(*hooks: Hook) -> Loaded:
    return load("object", hooks, lambda obj: None)


def ways(found: Loaded) -> dict[str, tuple[str, ...]]:
    return {hook: way.programs for hook, way in found.attempts.chosen.items()}


def test_the_best_programs_are_loaded_at_once(machine: Any) -> None:
    kernel = machine(Kernel(**SECTIONS), BOTH_FUNCTIONS)
    found = loaded(LAST, PAIR, MORE)
    assert ways(found) == {"end": ("end_tp_btf",), "pair": ("out_fexit", "in_fentry"), "more": ("more_fentry",)}
    assert found.attempts.refused == {}
    assert found.attempts.notes() == []
    assert kernel.opened == 1
    assert kernel.attached == ["end_tp_btf", "out_fexit", "in_fentry", "more_fentry"]
    assert [program.name for program in found.programs] == kernel.attached
    assert found.sections("pair") == "fexit/function, fentry/function"
    assert found.sections("none") == ""
    assert found.serving("a") == "tp_btf/end, fexit/function, fentry/function"
    assert found.serving("b") == "fentry/more"


def test_starts_detach_before_ends(machine: Any) -> None:
    kernel = machine(Kernel(**SECTIONS), BOTH_FUNCTIONS)
    found = loaded(LAST, PAIR)
    order: list[str] = []
    kernel.attached = SimpleNamespace(remove=order.append)
    found.detach()
    assert order == ["in_fentry", "out_fexit", "end_tp_btf"]


def test_a_refused_program_makes_room_for_the_next(machine: Any) -> None:
    kernel = machine(Kernel(**SECTIONS), BOTH_FUNCTIONS)
    kernel.refused = {"end_tp_btf"}
    found = loaded(LAST, PAIR)
    assert found.way("end").programs == ("end_raw_tp",)
    assert set(found.attempts.refused) == {"end_tp_btf"}
    assert (kernel.opened, kernel.closed) == (2, 1)


def test_attempts_tell_of_every_program_what_became_of_it(machine: Any) -> None:
    kernel = machine(Kernel(**SECTIONS), BOTH_FUNCTIONS)
    kernel.refused = {"in_fentry", "more_fentry"}
    found = loaded(LAST, PAIR, MORE).attempts
    assert [tuple(one) for one in found.of(LAST)] == [
        ("end_tp_btf", "tp_btf/end", True, ""),
        ("end_raw_tp", "raw_tp/end", None, ""),
    ]
    why = "refused at load: the kernel refused the program in_fentry"
    assert [tuple(one) for one in found.of(PAIR)] == [
        ("out_fexit", "fexit/function", None, ""),
        ("in_fentry", "fentry/function", False, why),
        ("leave_raw_tp", "raw_tp/leave", True, ""),
        ("enter_raw_tp", "raw_tp/enter", True, ""),
    ]
    assert [way.name for way in found.left(PAIR)] == ["call"]
    assert found.left(MORE) == []


def test_a_note_tells_the_reason_of_the_kernel(machine: Any) -> None:
    kernel = machine(Kernel(**SECTIONS), BOTH_FUNCTIONS)
    kernel.refused = {"more_fentry"}
    found = loaded(LAST, PAIR, MORE).attempts
    why = "refused at load: the kernel refused the program more_fentry"
    assert found.notes() == [f"less (what is rare cannot be observed here: {why})"]
    assert found.notes("more") == []
    assert loaded(LAST, MORE._replace(module="no_such_module")).attempts.notes() == []


def test_attempts_outlive_a_start_that_failed(machine: Any) -> None:
    kernel = machine(Kernel(**SECTIONS), BOTH_FUNCTIONS)
    kernel.refused = {"end_tp_btf", "end_raw_tp"}
    found = Attempts((LAST, PAIR))
    with pytest.raises(UnsupportedError):
        resolve("object", found, lambda obj: None)
    assert [one.works for one in found.of(LAST)] == [False, False]
    assert [one.works for one in found.of(PAIR)] == [None] * 4


def test_what_a_skipped_program_costs(machine: Any) -> None:
    machine(Kernel(**SECTIONS), BOTH_FUNCTIONS)
    again = PAIR._replace(id="again")
    found = loaded(LAST, PAIR, again, MORE)
    ran: Any = {
        name: SimpleNamespace(recursion_misses=count)
        for name, count in (("end_tp_btf", 1), ("out_fexit", 20), ("in_fentry", 300), ("more_fentry", 4000))
    }
    assert [found.misses(ran, role) for role in (END, START, BOTH)] == [21, 300, 4000]
    assert [found.misses(ran, END, hooks) for hooks in (("pair", "again"), ("end",), ("none",))] == [20, 1, 0]


def test_a_hook_that_is_dropped_takes_only_its_own_programs_along(machine: Any) -> None:
    kernel = machine(Kernel(**SECTIONS), BOTH_FUNCTIONS)
    found = loaded(LAST, PAIR, PAIR._replace(id="again"), MORE)
    found.drop("again")
    found.drop("more")
    assert kernel.attached == ["end_tp_btf", "out_fexit", "in_fentry"]
    assert set(ways(found)) == {"end", "pair"}
    assert found.way("more") == Way()


def test_programs_that_belong_together_go_together(machine: Any) -> None:
    kernel = machine(Kernel(**SECTIONS), BOTH_FUNCTIONS)
    kernel.refused = {"in_fentry"}
    assert loaded(LAST, PAIR).way("pair").name == "call"
    assert kernel.loaded[-1] == ["end_tp_btf", "leave_raw_tp", "enter_raw_tp"]


def test_a_tracepoint_without_a_type_is_not_tried_raw(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = machine(Kernel(**SECTIONS), BOTH_FUNCTIONS)
    monkeypatch.setattr(targets, "vmlinux", lambda: Btf(BOTH_FUNCTIONS, ()))
    end = LAST._replace(required=False)
    attempts = loaded(end, PAIR).attempts
    assert kernel.opened == 1
    reason = "there is no tracepoint end in the kernel's BTF"
    assert attempts.refused == {"end_tp_btf": reason, "end_raw_tp": reason}
    # One of a module may be there nevertheless.
    assert loaded(end._replace(modules=("driver",)), PAIR).way("end").programs == ("end_raw_tp",)


def test_what_btf_does_not_know_is_not_tried(machine: Any) -> None:
    kernel = machine(Kernel(**SECTIONS))
    found = loaded(LAST, PAIR, MORE)
    assert ways(found) == {"end": ("end_tp_btf",), "pair": ("leave_raw_tp", "enter_raw_tp")}
    assert found.attempts.refused["out_fexit"] == "there is no function function in the kernel's BTF"
    assert kernel.opened == 1


@pytest.mark.parametrize("at", ["load", "attach"])
def test_where_no_function_can_be_observed_all_of_them_are_given_up_at_once(machine: Any, at: str) -> None:
    kernel = machine(Kernel(**SECTIONS), BOTH_FUNCTIONS, lambda attach: at == "attach" and not attach)
    every = {"out_fexit", "in_fentry", "more_fentry"}
    kernel.refused, kernel.unattachable = (every, set()) if at == "load" else (set(), every)
    found = loaded(LAST, PAIR, MORE)
    assert ways(found) == {"end": ("end_tp_btf",), "pair": ("leave_raw_tp", "enter_raw_tp")}
    assert set(found.attempts.refused) == every
    assert found.attempts.refused["more_fentry"] == "this kernel takes no fentry and fexit programs"
    # If the load refused one already, the others are not tried.
    assert kernel.opened == (1 if at == "load" else 2)


def test_one_refused_function_does_not_cost_the_others(machine: Any) -> None:
    kernel = machine(Kernel(**SECTIONS), BOTH_FUNCTIONS)
    kernel.refused = {"more_fentry"}
    assert ways(loaded(LAST, PAIR, MORE)) == {"end": ("end_tp_btf",), "pair": ("out_fexit", "in_fentry")}


def test_a_hook_that_nothing_observes_ends_the_command_if_it_is_required(machine: Any) -> None:
    kernel = machine(Kernel(**SECTIONS), BOTH_FUNCTIONS)
    kernel.refused = {"end_tp_btf", "end_raw_tp"}
    with pytest.raises(UnsupportedError, match=r"^this kernel offers no way to observe the end: "):
        loaded(LAST, PAIR)
    assert kernel.opened == kernel.closed


def test_without_a_privilege_nothing_else_is_tried(machine: Any) -> None:
    kernel = machine(Kernel(**SECTIONS), BOTH_FUNCTIONS)
    kernel.permitted = False
    with pytest.raises(NotPermittedError):
        loaded(LAST, PAIR)
    assert kernel.opened == kernel.closed == 1


def test_a_driver_that_is_not_there_needs_no_hook(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = machine(Kernel(**SECTIONS), BOTH_FUNCTIONS)
    driver = MORE._replace(required=True, module="driver")
    monkeypatch.setattr(os.path, "isdir", lambda path: False)
    assert not driver.applies
    assert set(ways(loaded(LAST, driver))) == {"end"}
    monkeypatch.setattr(os.path, "isdir", {"/sys/module/driver": True}.__getitem__)
    assert driver.applies
    assert set(ways(loaded(LAST, driver))) == {"end", "more"}
    assert kernel.opened == 2


@pytest.mark.parametrize(
    ("section", "found"),
    [
        ("fentry/there", True),
        ("fexit/there", True),
        ("fentry/in_module", True),
        ("fentry/nowhere", False),
        ("tp_btf/there_too", True),
        ("tp_btf/nowhere", False),
        ("tp_btf/there", False),
        ("raw_tp/nowhere", True),
        ("kprobe/nowhere", True),
        ("perf_event", True),
    ],
)
def test_what_btf_tells_of_a_target(section: str, found: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(base, "_KPROBES", tmp_path)
    kernel = Btf(("there",), ("there_too",))
    monkeypatch.setattr(targets, "vmlinux", lambda: kernel)
    monkeypatch.setattr(targets, "module", {"driver": Btf(("in_module",), base=kernel)}.get)
    monkeypatch.setattr(base, "libbpf", lambda: SimpleNamespace(sees_modules=True))
    kind, _, target = section.partition("/")
    what = "tracepoint" if kind == "tp_btf" else "function"
    expected = "" if found else f"there is no {what} {target} in the kernel's BTF"
    assert find_target(section, "driver")[1] == expected
    aimed = find_target(section, "driver")[0]
    assert (None if aimed is None else aimed.module) == {"there": "", "there_too": "", "in_module": "driver"}.get(
        target if expected == "" else ""
    )
    if target == "in_module":
        assert find_target(section, "")[1] != ""
        assert find_target(section, "other")[1] != ""


def test_functions_of_modules_take_more_than_the_kernels_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """libbpf is not allowed to look for them, so a trial of the whole object would fail."""
    kernel = Btf(("there",), ())
    monkeypatch.setattr(targets, "vmlinux", lambda: kernel)
    monkeypatch.setattr(targets, "module", {"driver": Btf(("in_driver",), ("of_driver",), kernel)}.get)
    monkeypatch.setattr(base, "libbpf", lambda: SimpleNamespace(sees_modules=False))
    assert find_target("fentry/there", "driver")[1] == ""
    why = "is a module's, whose functions can be observed only with CAP_SYS_ADMIN"
    assert find_target("fentry/in_driver", "driver")[1] == f"the function in_driver {why}"
    assert find_target("tp_btf/of_driver", "driver")[1] == f"the tracepoint of_driver {why}"
    assert find_target("fentry/nowhere", "driver")[1] == "there is no function nowhere in the kernel's BTF"


def test_a_kernel_without_kprobes_needs_no_trial_of_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(base, "_KPROBES", tmp_path / "none")
    assert find_target("kprobe/anything", "")[1] == "this kernel has no kprobes"


class Observing(Flow):
    name = object = "object"
    hooks = (LAST, PAIR, MORE)
    kinds = (
        Kind(
            "request",
            Noun("one"),
            (Label("cpu", CPU),),
            (Stage(name, Point("A", "a"), Point("B", "b"), name, name) for name in ("a", "b")),
        ),
    )


@pytest.mark.parametrize("works", [True, False])
def test_doctor_reads_the_attempts_of_a_start_and_opens_nothing_more(
    machine: Any, monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    kernel = machine(Kernel(**SECTIONS), BOTH_FUNCTIONS)
    kernel.refused = {"end_tp_btf", "more_fentry"} | (set() if works else {"end_raw_tp"})
    monkeypatch.setattr(doctor, "vmlinux", lambda: Btf())
    found = doctor._flow(Observing)
    assert found.works == works
    assert kernel.opened == len(kernel.loaded) == kernel.closed
    assert [(hook.hook, hook.state) for hook in found.hooks[:2]] == [
        ("the end", "degraded" if works else "missing"),
        ("both ends", "ok"),
    ]
    assert [way.works for way in found.hooks[0].ways] == [False, works]
    if works:
        assert [stage.how for stage in found.stages] == ["raw_tp/end, fexit/function, fentry/function", ""]
        assert [stage.lacks for stage in found.stages] == [[], ["less"]]
    else:
        assert "no way to observe the end: refused at load" in found.reason
