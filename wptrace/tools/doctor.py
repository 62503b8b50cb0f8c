# SPDX-License-Identifier: Apache-2.0
"""Find by trying which hooks of each flow work on this kernel, and what an administrator can do about the rest."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Callable

from wptrace.bpf import trial
from wptrace.bpf.generated import EVENTS
from wptrace.bpf.kernel_btf import vmlinux
from wptrace.bpf.lib import libbpf
from wptrace.engine.definition import shipped
from wptrace.engine.definition.check import Report, check
from wptrace.engine.definition.kernel import RunningKernel
from wptrace.engine.definition.recipe import EVENT, UPROBE, URETPROBE
from wptrace.engine.flow import Flow
from wptrace.engine.hooks import Field, Hook
from wptrace.engine.resolver import Attempts, resolve
from wptrace.errors import UnsupportedError, WptraceError
from wptrace.flows import discover
from wptrace.kernel import privileges
from wptrace.model.diagnosis import (
    DEGRADED,
    MISSING,
    OK,
    Check,
    Diagnosis,
    FlowFinding,
    HookFinding,
    Seen,
    StageFinding,
)
from wptrace.model.kind import names
from wptrace.tools.watching import watch

_BTF = Path("/sys/kernel/btf/vmlinux")
# The purpose of each way of observing, for when it is missing.
_FEATURES = {
    "tp_btf": "the cheapest probes of tracepoints",
    "raw_tp": "probes of tracepoints, also of modules without type information",
    "tracepoint": "classic probes of tracepoints",
    "fentry": "probes of file system and page cache functions",
    "fexit": "probes of the ends of functions",
    "kprobe": "probes of functions where fentry is not possible",
    "kretprobe": "probes of the ends of functions where fexit is not possible",
    "uprobe": "probes of functions of programs, and of their static probes (USDT)",
    "uretprobe": "probes of the ends of functions of programs",
    "ring_buffer": "records of single requests",
    "task_storage": "cheap state of a task",
    "exchange": "places that no two CPUs take at once",
}
_IN_PROGRAMS = (UPROBE, URETPROBE)
_ADVICE = {
    "tracepoint": "mount tracefs: mount -t tracefs tracefs /sys/kernel/tracing",
    "fentry": "needs CONFIG_FUNCTION_TRACER with direct calls, and a policy that permits it (lockdown, an LSM)",
    "fexit": "needs CONFIG_FUNCTION_TRACER with direct calls, and a policy that permits it (lockdown, an LSM)",
    "kprobe": "needs CONFIG_KPROBES and CONFIG_KPROBE_EVENTS",
    "kretprobe": "needs CONFIG_KPROBES and CONFIG_KPROBE_EVENTS",
    "uprobe": "needs CONFIG_UPROBE_EVENTS",
    "uretprobe": "needs CONFIG_UPROBE_EVENTS",
    "task_storage": "needs Linux 5.11",
    "exchange": "needs Linux 5.12, on arm64 5.18: without it, a place takes two steps to claim, which costs more",
}


def diagnose(progress: Callable[[str], None] = lambda doing: None, watch_s: float = 0.0) -> Diagnosis:
    """`progress` hears what is being tried; for `watch_s` the points of definitions are watched."""
    held = privileges.effective()
    permitted = privileges.may_trace(held)
    system = [_btf(), _libbpf(), _capabilities(held, permitted), _lockdown(), _memlock(), _tracefs()]
    usable = permitted and all(check.state != MISSING for check in system[:2])
    features: list[Check] = []
    flows: list[FlowFinding] = []
    if usable:
        progress("ways to observe")
        features = [_feature(name) for name in _FEATURES]
    for kind in discover() if usable else ():
        progress(f"wptrace {kind.name}")
        flows.append(_flow(kind))
    definitions: list[Check] = []
    if usable:
        progress("flows by definition")
        definitions = _definitions({check.name for check in features if check.state == MISSING})
    seen: list[Seen] = []
    if watch_s and any(check.state != MISSING for check in definitions):
        progress("what is passed")
        seen = watch(watch_s)
    name = os.uname()
    return Diagnosis(name.release, name.machine, permitted, system, features, flows, definitions, seen, watch_s)


def _btf() -> Check:
    if not _BTF.exists():
        return Check("BTF", MISSING, f"there is no {_BTF}", "boot a kernel built with CONFIG_DEBUG_INFO_BTF=y")
    modules = sum(1 for path in _BTF.parent.iterdir() if path != _BTF)
    detail = f"{_BTF}, {_BTF.stat().st_size >> 10} KiB"
    # A kernel without modules needs none of theirs.
    if modules or not Path("/proc/modules").exists() or not Path("/proc/modules").read_text():
        return Check("BTF", OK, f"{detail}, {modules} modules")
    return Check(
        "BTF", DEGRADED, f"{detail}, none of modules", "drivers and file systems in modules offer only tracepoints"
    )


def _libbpf() -> Check:
    try:
        found = libbpf()
    except WptraceError as error:
        return Check("libbpf", MISSING, error.message, error.hint or "")
    maps = os.fsdecode(Path("/proc/self/maps").read_bytes())
    paths = re.findall(r"/.*libbpf.*\.so.*", maps)
    return Check("libbpf", OK, f"{found.version[0]}.{found.version[1]} ({paths[0] if paths else found.path})")


def _capabilities(held: set[str], permitted: bool) -> Check:
    detail = ", ".join(sorted(held)) or "none that matter"
    if not permitted:
        return Check("capabilities", MISSING, detail, "run it as root, or with CAP_BPF and CAP_PERFMON")
    if "CAP_SYS_ADMIN" not in held:
        lacks = "functions of modules, --stats, the run times of --budget and wptrace progs need CAP_SYS_ADMIN"
        return Check("capabilities", DEGRADED, detail, lacks)
    return Check("capabilities", OK, detail)


def _lockdown() -> Check:
    mode = privileges.lockdown()
    if mode == "confidentiality":
        advice = "BPF cannot read kernel memory in this mode: boot with lockdown=integrity"
        return Check("lockdown", MISSING, mode, advice)
    return Check("lockdown", OK, mode or "not shown by this kernel")


def _memlock() -> Check:
    limit = privileges.memlock()
    detail = "unlimited" if limit < 0 else f"{limit >> 10} KiB"
    return Check("memlock", OK, f"{detail} (only kernels before 5.11 charge BPF to it; libbpf raises it there)")


def _tracefs() -> Check:
    # Its folder may be closed to others than root, which is_dir would not survive.
    if any(os.path.isdir(path) for path in EVENTS):  # noqa: PTH112
        return Check("tracefs", OK, "mounted")
    if any(os.path.ismount(path.parent) for path in EVENTS):
        return Check(
            "tracefs",
            DEGRADED,
            "closed to this user: no classic tracepoints",
            "open it: mount -o remount,gid=GROUP,mode=750 /sys/kernel/tracing",
        )
    return Check("tracefs", DEGRADED, "not mounted: no classic tracepoints", _ADVICE["tracepoint"])


def _feature(name: str) -> Check:
    if name in _IN_PROGRAMS:
        found = trial.attempt_in_program(name)
    else:
        found = trial.attempt(name, {"ring_buffer": "ring", "task_storage": "storage"}.get(name, ""))
    if found.works:
        return Check(name, OK, found.section)
    return Check(name, MISSING, f"{_FEATURES[name]}: {found.reason}", _ADVICE.get(name, ""))


def _flow(kind: type[Flow]) -> FlowFinding:
    """Start the flow, and try the rest only if that is refused."""
    attempts = Attempts(kind.hooks_here())
    works, why = True, ""
    try:
        resolve(kind.object, attempts, kind.configure).obj.close()
    except WptraceError as error:
        if not attempts.sections:
            raise
        works, why = False, error.message
    hooks = {hook: _hook(hook, attempts) for hook in attempts.hooks}
    return FlowFinding(
        kind.name,
        kind.level,
        works,
        why,
        [_stage(stage, hooks, works) for stage in names(kind.kinds)],
        list(hooks.values()),
        [_field(field) for field in kind.fields],
        kind.checks(attempts.chosen if works else {}),
    )


def _hook(hook: Hook, attempts: Attempts) -> HookFinding:
    ways, left = attempts.of(hook), attempts.left(hook)
    state = MISSING if not left else OK if left[0] == hook.ways[0] else DEGRADED
    return HookFinding(hook.name, state, vmlinux().tracepoint(ways[0].section.rpartition("/")[2]), ways)


def _definitions(refused: set[str]) -> list[Check]:
    """Check by this kernel's types and the ways that it supports; loading all of them would take too long."""
    kernel = RunningKernel()
    without = {EVENT if way == "tracepoint" else way for way in refused}
    try:
        definitions = [shipped.find(name) for name in shipped.names()]
    except UnsupportedError as error:
        # This Python reads no TOML: everything else works.
        return [Check("definitions", MISSING, error.message, error.hint or "")]
    return [_definition(one.about, check(one, kernel, without)) for one in definitions]


def _definition(about: str, found: Report) -> Check:
    if found.faults:
        return Check(found.name, MISSING, found.faults[0].message)
    # Points with the same name are branches, of which one is enough.
    seen = {point.name for point in found.points if point.ways}
    lacks = dict.fromkeys(point.name for point in found.points if point.name not in seen)
    return Check(found.name, DEGRADED, f"without {', '.join(lacks)}") if lacks else Check(found.name, OK, about)


def _field(field: Field) -> Check:
    present = [name for name in field.names if vmlinux().has_field(*name.split(".", 1))]
    label = " or ".join(field.names)
    return Check(label, OK, present[0]) if present else Check(label, MISSING, field.without)


def _stage(name: str, hooks: dict[Hook, HookFinding], works: bool) -> StageFinding:
    serving = {hook: found for hook, found in hooks.items() if name in hook.serves}
    missing = [hook for hook, found in serving.items() if found.state == MISSING and hook.noted]
    lacks = sorted({hook.without for hook in missing}) if works else []
    sections = [way.section for found in serving.values() for way in found.ways if way.works]
    state = MISSING if not works else DEGRADED if lacks else OK
    return StageFinding(name, state, ", ".join(dict.fromkeys(sections)), lacks)
