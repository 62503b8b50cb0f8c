# SPDX-License-Identifier: Apache-2.0
"""Options that narrow what is traced: what they mean, and a sentence for each invalid one."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest

from wptrace.cli import options as common
from wptrace.cli.main import Parser
from wptrace.engine import filters
from wptrace.engine.filters import Filter
from wptrace.engine.filters.cgroup import IN_CGROUP
from wptrace.engine.flow import Flow
from wptrace.errors import UsageError
from wptrace.flows import discover
from wptrace.flows.io.path import PathFlow
from wptrace.flows.iopf import IopfFlow
from wptrace.flows.irqoff import IrqoffFlow
from wptrace.kernel import cgroups, mounts
from wptrace.kernel.cgroups import Cgroup

US = str(os.getpid())
K, M, G = 1 << 10, 1 << 20, 1 << 30


def read(*words: str, flow: type[Flow] = PathFlow) -> Filter:
    parser = Parser(prog=f"wptrace {flow.name}")
    common.add_filters(parser.add_argument_group("what to trace"), flow.filters)
    return filters.parse(vars(parser.parse_args(common.joined(words))), flow.filters)


@pytest.mark.parametrize("flow", discover(), ids=lambda flow: flow.object)
def test_a_command_has_the_options_of_what_its_flow_lists(flow: type[Flow]) -> None:
    parser = Parser(prog=f"wptrace {flow.name}")
    importlib.import_module(f"wptrace.cli.{flow.name}").add_arguments(parser)
    options = {flag: action for action in parser._actions for flag in action.option_strings}
    for one in flow.filters:
        assert options[f"--{one.name}"].help
        assert not one.short or options[f"-{one.short}"] is options[f"--{one.name}"]


def test_tasks() -> None:
    assert read() == Filter()
    assert read("-p", US) == read("--pid", US) == Filter(pid=os.getpid())
    assert read("--tid", US) == Filter(tid=os.getpid())
    assert read("--comm", "fio") == Filter(comm="fio")
    assert read("--comm", "longer than the kernel keeps")["comm"] == "longer than the kernel keeps"


def test_what_may_be_named_again() -> None:
    assert read(flow=IopfFlow) == Filter()
    assert read("--pasid", "6", "--pasid", "1048575", flow=IopfFlow) == Filter(pasid=(6, (1 << 20) - 1))
    assert read("-d", "system", "--dev", "virtual", flow=IopfFlow) == Filter(dev=("system", "virtual"))
    with pytest.raises(UsageError, match="there is no device nonesuch"):
        read("-d", "system", "-d", "nonesuch", flow=IopfFlow)
    for bad in ("1048576", "-1", "0x5", "", "٣"):
        with pytest.raises(UsageError, match="is not a PASID: it is a number below 1048576"):
            read(f"--pasid={bad}", flow=IopfFlow)


def test_cpus() -> None:
    assert read("--cpu", "0-3,8,2", flow=IrqoffFlow) == Filter(cpu=(0, 1, 2, 3, 8))
    assert filters.describe(read("--cpu", "1", flow=IrqoffFlow), IrqoffFlow.filters) == {"cpus": [1]}
    for bad in ("", "x", "2-1", "0,99999999"):
        with pytest.raises(UsageError, match="is not a list of CPUs such as 0-3,8"):
            read(f"--cpu={bad}", flow=IrqoffFlow)


def test_cgroups(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Cgroup("/sys/fs/cgroup/x", 7, 1, None)
    assert IN_CGROUP.parse is cgroups.resolve
    named = IN_CGROUP._replace(parse={"x.slice": found}.__getitem__)
    monkeypatch.setattr(PathFlow, "filters", (named,))
    assert read("--cgroup", "x.slice") == Filter(cgroup=found)


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    assert read("--file", str(path)) == Filter(file=mounts.find(str(path)))
    assert read("--dir", str(tmp_path)) == Filter(dir=mounts.find(str(tmp_path)))


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ("4K-64K", 4 * K, 64 * K),
        ("4k-1m", 4 * K, M),
        ("4K-", 4 * K, None),
        ("-1M", None, M),
        ("0-1M", 0, M),
        ("64K", 64 * K, 64 * K),
        ("512-512", 512, 512),
        ("1G-2g", G, 2 * G),
        ("0", 0, 0),
        ("-0", None, 0),
    ],
)
def test_sizes(text: str, least: int | None, most: int | None) -> None:
    wanted = Filter(size=(least, most))
    assert read("--size", text) == read(f"--size={text}") == wanted
    assert read("--size", text, "--op", "read") == Filter(**wanted, op="read")


def test_all_together(tmp_path: Path) -> None:
    found = read("-p", US, "--comm", "x", "--dir", str(tmp_path), "--op", "write", "--size", "-1M")
    assert found == Filter(pid=os.getpid(), comm="x", dir=mounts.find(str(tmp_path)), op="write", size=(None, M))


@pytest.mark.parametrize(
    ("words", "joined"),
    [
        (["--size", "-1M", "5"], ["--size=-1M", "5"]),
        (["--size", "--op", "read"], ["--size", "--op", "read"]),
        (["--size", "-d", "sda"], ["--size", "-d", "sda"]),
        (["--size", "-"], ["--size", "-"]),
        (["io", "-1"], ["io", "-1"]),
        (["--size"], ["--size"]),
        ([], []),
    ],
)
def test_only_a_size_may_begin_with_a_dash(words: list[str], joined: list[str]) -> None:
    assert common.joined(words) == joined


NO_RANGE = "is not a range of sizes such as 4K-64K, 4K- or -1M"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--pid", "x"], "'x' is not a process id"),
        (["--pid", "4194305"], "there is no process 4194305"),
        (["--tid", "-1"], "'-1' is not a thread id"),
        (["--tid", "4194305"], "there is no thread 4194305"),
        (["--comm", ""], "--comm needs a name of at least one letter"),
        (["--comm"], "io: argument --comm: expected one argument"),
        (["--cgroup", "/none/at/all"], "there is no cgroup /none/at/all"),
        (["--file", "/none"], "/none cannot be found: No such file or directory"),
        (["--file", "/proc"], "/proc is a directory"),
        (["--dir", "/none"], "/none cannot be found: No such file or directory"),
        (["--dir", "/proc/version"], "/proc/version is not a directory"),
        (["--op", "read", "--op=write"], "--op takes one value, not both read and write"),
        (["-p", "1", "--pid", "2"], "--pid takes one value, not both 1 and 2"),
        (["--op", "flush"], "io: argument --op: invalid choice: 'flush'"),
        (["--size", ""], f"'' {NO_RANGE}"),
        (["--size", "-"], f"'-' {NO_RANGE}"),
        (["--size", "K"], f"'K' {NO_RANGE}"),
        (["--size", "4K-K"], f"'4K-K' {NO_RANGE}"),
        (["--size", "4K-8K-16K"], f"'4K-8K-16K' {NO_RANGE}"),
        (["--size", "4KB"], f"'4KB' {NO_RANGE}"),
        (["--size", "1.5K-"], f"'1.5K-' {NO_RANGE}"),
        (["--size", "--1"], "io: argument --size: expected one argument"),
        (["--size", " 4K"], f"' 4K' {NO_RANGE}"),
        (["--size", "\u0664K"], f"'\u0664K' {NO_RANGE}"),
        (["--size", "8K-4K"], "no size is in the range 8K-4K: 8K is more than 4K"),
        (["--size", "9999999999G-"], "no request is as large as 9999999999G-"),
        (["--size", f"1-{9 * 10**17}G"], f"no request is as large as 1-{9 * 10**17}G"),
        (["--size", "9" * 5000], NO_RANGE),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else "",
)
def test_what_cannot_be_meant(words: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(*words)
    assert caught.value.exit_code == 2
    assert message in caught.value.message
