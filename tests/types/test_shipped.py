# SPDX-License-Identifier: Apache-2.0
"""The shipped definitions against the BTF of each kernel of the lab, without booting it."""

from __future__ import annotations

import gc
import os
from functools import cache
from pathlib import Path

import pytest

from tests.lab import fetch, types
from tests.lab.matrix import KERNELS
from wptrace.bpf.btf import Btf, Struct
from wptrace.bpf.kernel_btf import KERNEL_BTF
from wptrace.engine.definition import shipped
from wptrace.engine.definition.kernel import Kernel, RunningKernel, from_file
from wptrace.engine.definition.reading import parse
from wptrace.engine.definition.resolution import Attempt, attempt
from wptrace.errors import UsageError
from wptrace.model.diagnosis import DEGRADED, MISSING, OK
from wptrace.tools import doctor

_BOOTABLE = [kernel.name for kernel in KERNELS if kernel.arch == "amd64" and not kernel.running]
_RUNNING = "running"

_NO_FUSE = ("5.10", "6.1")
# The features that a kernel lacks, and the message about it. All others have everything.
_LACKS = {
    # Types of modules need CONFIG_DEBUG_INFO_BTF_MODULES, which came with 5.11.
    ("rpc", "5.10"): [
        f"there is no tracepoint rpc_task_{name} on 5.10: nothing is known of the module sunrpc"
        for name in ("begin", "end")
    ],
    ("nbd", "5.10"): [
        f"there is no tracepoint nbd_{name} on 5.10: nothing is known of the module nbd"
        for name in ("send_request", "payload_sent", "header_received", "payload_received")
    ],
    # FUSE got tracepoints between 6.1 and 6.12.
    **{
        ("fuse", name): [
            f"there is no tracepoint fuse_request_{at} on {name}: nothing is known of the module fuse"
            for at in ("send", "end")
        ]
        for name in _NO_FUSE
    },
}
# Tracepoints of modules, which a running kernel may not have loaded.
_OF_MODULES = {"rpc": "rpc_task", "nbd": "nbd_"}
# Points in servers, so they do not depend on the kernel.
_OF_SERVERS = {"nginx", "postgres", "python", "redis"}
# Optional labels and points that some kernels lack: dropped packets have a reason since 5.17.
_NO_REASON = {"5.10"}


@cache
def _kernel(name: str) -> Kernel:
    if name == _RUNNING:
        if not KERNEL_BTF.exists():
            pytest.skip("this kernel has no BTF")
        return RunningKernel()
    wanted = next(kernel for kernel in KERNELS if kernel.name == name)
    installed = fetch.fetch(wanted)
    # Half a million permanent objects, which take the collector longer than reading them.
    gc.disable()
    base = Btf.parse(types.of(installed))
    modules = {module: types.of(installed, module) for module in ("sunrpc", "nbd")}
    kernel = Kernel(name, base, {module: Btf.parse(found, base) for module, found in modules.items() if found})
    base.find("", Struct)
    gc.freeze()
    gc.enable()
    kernel.machine = "x86_64"
    return kernel


@pytest.fixture(params=[_RUNNING, *_BOOTABLE])
def kernel(request: pytest.FixtureRequest) -> Kernel:
    return _kernel(str(request.param))


def _resolved(name: str, kernel: Kernel) -> Attempt:
    return attempt(shipped.find(name), kernel)


def test_there_are_definitions() -> None:
    assert {"block", "irq", "softirq", "runqueue", "netrx", "nettx", "tcp", "reclaim"} <= set(shipped.names())


@pytest.mark.parametrize("name", shipped.names())
def test_a_definition_has_the_name_of_its_file_and_tells_what_it_is(name: str) -> None:
    found = shipped.find(name)
    assert found.name == name
    assert found.about
    assert found.noun != "object"
    # A stage is described once, where its point is first named.
    described = {point.name for point in found.points if point.description and point.meaning}
    assert described == set(found.columns)


@pytest.mark.parametrize("name", sorted(set(shipped.names()) - _OF_SERVERS))
def test_a_definition_fits_the_kernel(name: str, kernel: Kernel) -> None:
    found = _resolved(name, kernel)
    reported = [fault.message for fault in found.faults]
    if kernel.runs and name in _OF_MODULES:
        assert all(_OF_MODULES[name] in message for message in reported)
        return
    assert reported == _LACKS.get((name, kernel.name), [])
    if not reported:
        missing = {point.spec.name for point in found.resolution.points if not point.attachments}
        assert missing == set()


@pytest.mark.parametrize("name", shipped.names())
def test_all_points_have_a_way_without_functions_of_their_own_where_they_are_tracepoints(
    name: str, kernel: Kernel
) -> None:
    for point in _resolved(name, kernel).resolution.points:
        ways = [one.way for one in point.attachments]
        if ways and str(point.spec.targets[0]).startswith("tp:"):
            assert ways[-1] == "raw_tp"


def test_what_is_issued_is_read_where_each_kernel_has_it(kernel: Kernel) -> None:
    issued = _resolved("block", kernel).resolution.points[1].attachments[0]
    assert (issued.way, issued.target) == ("tp_btf", "block_rq_issue")
    # The queue preceded the request until a54895fa057c ("block: remove the request_queue to argument request based
    # tracepoints", 5.11); the resolver finds the request by its type.
    assert issued.becomes is not None
    assert [issued.becomes.pointer, issued.labels[0].text, issued.labels[1].bits] == [True, True, 8]
    # Through the queue since 5.17, when the disk moved there.
    assert len(issued.labels[0].loads) == (2 if kernel.name == "5.10" else 3)


def test_why_a_packet_was_dropped_is_reported_where_the_kernel_knows(kernel: Kernel) -> None:
    labels = {label.name: label for label in _resolved("netrx", kernel).resolution.labels}
    assert bool(labels["reason"].names) == (kernel.name not in _NO_REASON)


def test_who_was_preempted_is_reported_by_the_old_name_and_the_new_one(kernel: Kernel) -> None:
    preempted = _resolved("runqueue", kernel).resolution.points[2].attachments[0]
    # 2f064a59a11f ("sched: Change task_struct::state", 5.14) renamed the field and made it 32 bits wide.
    assert preempted.filters[0].left.size == (8 if kernel.name == "5.10" else 4)


def test_a_definition_is_asked_for_by_name_or_file(tmp_path: Path) -> None:
    copy = tmp_path / "mine.toml"
    copy.write_bytes((Path(shipped.__file__).parents[2] / "flows" / "irq.toml").read_bytes())
    assert shipped.find(str(copy)).points == shipped.find("irq").points
    with pytest.raises(UsageError, match="there is no flow 'blokc'; did you mean block"):
        shipped.find("blokc")


def test_a_tracepoint_that_is_spelled_wrong_is_near_a_right_one(kernel: Kernel) -> None:
    text = (Path(shipped.__file__).parents[2] / "flows" / "irq.toml").read_text()
    found = attempt(parse(text.replace("irq_handler_exit", "irq_handler_exti"), "x.toml"), kernel)
    (fault,) = found.faults
    assert fault.message.endswith("; did you mean irq_handler_exit?")


def test_the_types_of_another_kernel_come_from_a_file(tmp_path: Path) -> None:
    installed = fetch.fetch(next(kernel for kernel in KERNELS if kernel.name == "6.1"))
    file = tmp_path / "btf-6.1"
    file.write_bytes(types.of(installed))
    found = attempt(shipped.find("irq"), from_file(file))
    assert (found.resolution.kernel, found.faults) == ("btf-6.1", ())
    file.write_bytes(b"no BTF")
    with pytest.raises(UsageError, match="this is not BTF"):
        from_file(file)
    with pytest.raises(UsageError, match="cannot be read"):
        from_file(tmp_path / "none")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="is not a file"):
        from_file(tmp_path / "pipe")


def test_what_the_doctor_says_without_functions(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hardened kernel has only tracepoints."""
    monkeypatch.setattr(doctor, "RunningKernel", lambda: kernel)
    refused = {"fentry", "fexit", "kprobe", "kretprobe"}
    found = {check.name: (check.state, check.detail) for check in doctor._definitions(refused)}
    assert sorted(found) == shipped.names()
    assert found["netrx"] == (DEGRADED, "without ip, l4, socket, merged, freed")
    assert found["tcp"] == (MISSING, "ret:tcp_sendmsg can be observed by no way that this kernel allows")
    assert found["irq"] == (OK, "handlers of interrupts")
    # Its trial events are refused as well.
    everything = {*refused, "tp_btf", "raw_tp", "tracepoint", "uprobe", "uretprobe"}
    assert {check.state for check in doctor._definitions(everything)} == {MISSING}
