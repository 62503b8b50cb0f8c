# SPDX-License-Identifier: Apache-2.0
"""Flows against their objects, which `make objects` has to build first."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from wptrace.bpf.btf import Btf, Enum, Func, Struct
from wptrace.bpf.elf import ObjectFile
from wptrace.engine.flow import Flow
from wptrace.engine.hooks import BOTH, END, START, Hook
from wptrace.flows import discover
from wptrace.flows.io.block import _CAUSES, BlockFlow
from wptrace.flows.io.causes import COUNTED
from wptrace.flows.io.kinds import (
    CONTROLLERS,
    INTERFERENCES,
    LAYER,
    OPERATION,
    REQUEST,
    REQUEST_STAGES,
    SPARSE,
    WRITEBACK,
    WRITEBACK_STAGES,
)
from wptrace.flows.io.records import _KINDS
from wptrace.model.distribution import SLOTS
from wptrace.model.kind import TOTAL, UNATTRIBUTED, names
from wptrace.tools.doctor import _FEATURES, _IN_PROGRAMS

OBJECTS = Path(__file__).resolve().parents[3] / "wptrace/objects"
ARCHES = ("x86_64", "arm64")
HOOKS = [(flow, hook) for flow in discover() for hook in flow.hooks]


@cache
def parsed(name: str, arch: str) -> tuple[ObjectFile, Btf]:
    file = ObjectFile(OBJECTS / arch / f"{name}.bpf.o")
    return file, Btf.parse(file.content(".BTF"))


def test_flows_are_found_by_themselves() -> None:
    found = discover()
    assert BlockFlow in found
    assert Flow not in found
    assert len(found) == len(set(found))
    assert len({(flow.name, flow.level) for flow in found}) == len(found)


@pytest.mark.parametrize("flow", discover())
def test_a_flow_is_complete(flow: type[Flow]) -> None:
    assert flow.name
    assert flow.object
    assert flow.hooks
    stages = set(names(flow.kinds))
    for hook in flow.hooks:
        assert hook.programs
        assert hook.role in (START, END, BOTH)
        assert re.fullmatch(r"[a-z_]+(\.[a-z0-9_]+)?", hook.id)
        assert set(hook.serves) <= stages
        assert hook.without
    assert len({hook.id for hook in flow.hooks}) == len(flow.hooks)
    assert any(hook.required for hook in flow.hooks)
    served = {stage for hook in flow.hooks for stage in hook.serves}
    assert served == stages, "a stage that no hook serves can never be seen"
    assert all(stage.description and stage.meaning for kind in flow.kinds for stage in kind.measured)
    assert all("." in name for field in flow.fields for name in field.names)


# How programs attach, by the suffix of their names.
ENDINGS = {
    "_tp_btf": "tp_btf",
    "_raw_tp": "raw_tp",
    "_fentry": "fentry",
    "_fexit": "fexit",
    "_kprobe": "kprobe",
    "_kretprobe": "kretprobe",
    "_perf": "perf_event",
    "_perf_event": "perf_event",
    "_entry": "fentry",
    "_exit": "fexit",
}


def kind_of(program: str) -> str:
    return next(kind for ending, kind in ENDINGS.items() if program.endswith(ending))


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize(("flow", "hook"), HOOKS, ids=[f"{flow.object}-{hook.id}" for flow, hook in HOOKS])
def test_every_program_of_a_hook_is_in_the_object(flow: type[Flow], hook: Hook, arch: str) -> None:
    file, btf = parsed(flow.object, arch)
    kinds = {section.partition("/")[0] for section in file.sections}
    for program in (program for way in hook.ways for program in way.programs):
        assert btf.find(program, Func) is not None, f"{flow.object}.bpf.o has no program {program}"
        kind = kind_of(program)
        assert kind in kinds, f"nothing in {flow.object}.bpf.o attaches by {kind}"


@pytest.mark.parametrize("arch", ARCHES)
def test_doctor_tries_programs_that_there_are(arch: str) -> None:
    _, btf = parsed("features", arch)
    # Programs for probes in programs are generated.
    assert all(btf.find(name, Func) is not None for name in set(_FEATURES) - set(_IN_PROGRAMS))


def enum_names(btf: Btf, enum: str) -> list[str]:
    found = btf.find(enum, Enum)
    assert found is not None
    prefix = f"{enum.upper()}_"
    return [value.name[len(prefix) :].lower() for value in found.values if value.name.startswith(prefix)]


@pytest.mark.parametrize("arch", ARCHES)
def test_names_that_python_uses_are_those_of_the_object(arch: str) -> None:
    file, btf = parsed("io_block", arch)

    assert enum_names(btf, "block_stage") == [*names(BlockFlow.kinds), TOTAL, "at_once"]
    assert set(enum_names(btf, "block_cause")) <= set(_CAUSES)
    assert enum_names(btf, "block_op")[:4] == ["read", "write", "flush", "discard"]
    assert set(enum_names(btf, "block_flag")) == {"sync", "meta", "fua", "preflush", "rahead"}
    hist = btf.find("hist", Struct)
    assert hist is not None
    assert btf.size(hist.id) == 5 * 8 + SLOTS * 4
    assert b"GPL" in file.content("license")


@pytest.mark.parametrize("arch", ARCHES)
def test_names_are_those_of_the_path_object(arch: str) -> None:
    file, btf = parsed("io_path", arch)
    partition = [stage.name for stage in OPERATION.stages]
    assert enum_names(btf, "op_stage") == [*partition, UNATTRIBUTED, TOTAL]
    assert (
        enum_names(btf, "request_stage")
        == [*REQUEST_STAGES, TOTAL]
        == [*(stage.name for stage in REQUEST.stages), TOTAL]
    )
    assert set(SPARSE) | set(REQUEST_STAGES) < {*partition, UNATTRIBUTED}
    assert enum_names(btf, "interface") == ["call", "uring", "aio"]
    assert enum_names(btf, "interference_kind") == list(INTERFERENCES)
    assert enum_names(btf, "controller") == list(CONTROLLERS)
    assert [*INTERFERENCES, *CONTROLLERS] == [metric.name for metric in OPERATION.interference]
    assert enum_names(btf, "writeback_stage") == [*WRITEBACK_STAGES, TOTAL]
    assert [stage.name for stage in WRITEBACK.stages] == list(WRITEBACK_STAGES)
    assert enum_names(btf, "layer_stage") == [*(stage.name for stage in LAYER.stages), TOTAL]
    assert set(enum_names(btf, "path_cause")) == {cause.name for cause in COUNTED}
    assert enum_names(btf, "op_kind") == ["read", "write", "sync", "pagefault", "swapin"]
    assert enum_names(btf, "record_kind") == list(_KINDS)
    assert b"GPL" in file.content("license")
