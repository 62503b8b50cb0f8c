# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.lab import cache, command, guest, matrix, qemu
from tests.lab.errors import GuestHungError, UsageError

HERE = guest.Guest(matrix.RUNNING)


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def guest_from(*words: str) -> guest.Guest:
    return command.guest_from(command.parser().parse_args(["run", *words, "--", "true"]))


def test_what_a_guest_is_without_options() -> None:
    made = guest_from("--kernel", "6.12")
    assert made.kernel.name == "6.12"
    assert made.machine == qemu.Machine(2, f"{2 << 20}K", "", "")
    assert (made.disks, made.disk_size, made.timeout, made.share) == ((), 256 << 20, 600.0, ())


def test_options(tmp_path: Path) -> None:
    made = guest_from(
        *("--kernel", "6.1", "--disk", "nvme=2", "--disk", "scsi", "--icount=off", "--timeout", "5s"),
        *("--silence", "60", "--append", "nokaslr", "--share", str(tmp_path), "--disk-size", "1G", "--memory", "512m"),
    )
    assert [disk.kind for disk in made.disks] == ["nvme", "nvme", "scsi"]
    assert made.machine == qemu.Machine(1, f"{512 << 10}K", "off", "nokaslr")
    assert (made.disk_size, made.timeout, made.silence, made.share) == (1 << 30, 5.0, 60.0, (tmp_path,))
    assert guest_from("--kernel", "6.1", "--icount").machine.icount == "on"


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--kernel", "6.12"],
        ["run", "--kernel", "1.0", "--", "true"],
        ["run", "--kernel", "6.12", "--disk", "tape", "--", "true"],
        ["run", "--kernel", "6.12", "--icount", "--cpus", "2", "--", "true"],
        ["run", "--kernel", "6.12", "--cpus", "0", "--", "true"],
        ["run", "--kernel", "6.12", "--memory", "much", "--", "true"],
        ["run", "--kernel", "6.12", "--timeout", "nan", "--", "true"],
        ["run", "--kernel", "6.12", "--share", "/no/such", "--", "true"],
        ["run", "--kernel", "6.12", "--console", "/no/such/file", "--", "true"],
        ["run", "--kernel", "running", "--disk", "nvme", "--", "true"],
        ["modules", "1.0"],
        ["modules", "running"],
        ["boot"],
        [],
    ],
)
def test_bad_input_is_one_sentence(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("lab: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5G", "2X"])
def test_sizes_that_make_no_sense(text: str) -> None:
    with pytest.raises(UsageError):
        command.size(text)


def test_kernels_lists_all(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WPTRACE_LAB_CACHE", str(tmp_path))
    known = (*matrix.KERNELS, *matrix.OTHER_MACHINES)
    assert command.main(["kernels"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [kernel.name for kernel in known]
    assert lines[1].endswith("no")


def test_the_running_kernel_runs_the_command_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WPTRACE_LAB_KERNEL", "6.12")
    out = bytearray()
    result = guest.run(HERE, ["sh", "-c", 'printf "here$WPTRACE_LAB_KERNEL"; exit 42'], out.extend)
    assert (result.code, result.output, bytes(out)) == (42, b"here", b"here")
    assert guest.run(HERE, ["sh", "-c", "kill -9 $$"]).code == 137
    assert guest.run(HERE, ["no-such-command"]).code == 127


def test_a_hung_command_is_ended_here() -> None:
    hung = guest.Guest(matrix.RUNNING, timeout=0.2)
    with pytest.raises(GuestHungError, match=r"0\.2 s") as caught:
        guest.run(hung, ["sh", "-c", "echo before; sleep 100"])
    assert caught.value.output == b"before\n"


def test_a_guest_that_prints_nothing_is_given_up(tmp_path: Path) -> None:
    silent = guest._Run(guest.Guest(matrix.find("6.12"), silence=0.1), cast("Any", None), Path("/"), tmp_path)
    ports = [SimpleNamespace(stream=SimpleNamespace(ended=False))]
    with selectors.DefaultSelector() as selector, pytest.raises(GuestHungError, match=r"printed nothing for 0\.1 s"):
        silent._relay(cast("Any", SimpleNamespace(poll=lambda: None)), selector, cast("Any", ports))


def test_the_command_gets_its_words_and_variables_as_they_are() -> None:
    words = [
        sys.executable,
        "-c",
        "import os, sys; print(sys.argv[1:], dict(os.environ)['X'])",
        "a b",
        "it's",
        "$X",
    ]
    script = guest.command_script(words, {"X": "'1\n2'"})
    shown = subprocess.run(["sh"], input=script, stdout=subprocess.PIPE, check=True).stdout
    assert shown == b"""['a b', "it's", '$X'] '1\n2'\n"""


def test_the_environment_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/venv/bin:relative::/usr/bin")
    monkeypatch.setenv("SECRET_TOKEN", "x")
    monkeypatch.setenv("WPTRACE_LIBBPF", "/lib/libbpf.so.1")
    variables = guest.environment(matrix.find("6.12"))
    assert variables["PATH"].startswith("/venv/bin:/usr/bin:/usr/local/sbin:")
    assert "SECRET_TOKEN" not in variables
    assert variables["WPTRACE_LIBBPF"] == "/lib/libbpf.so.1"
    assert variables["WPTRACE_LAB_KERNEL"] == "6.12"
    apart = guest.environment(matrix.find("6.12"), own_root=True)
    assert apart["PATH"].startswith("/usr/local/sbin:")
    assert "WPTRACE_LIBBPF" not in apart


def test_so_many_guests_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    class WaitedError(Exception):
        pass

    def waiting() -> None:
        raise WaitedError

    with ExitStack() as stack:
        slots = {stack.enter_context(cache.guest_slot(waiting)) for _ in range(cache.GUESTS_AT_ONCE)}
        assert slots == set(range(cache.GUESTS_AT_ONCE))
        with pytest.raises(WaitedError), cache.guest_slot(waiting):
            pass
    with cache.guest_slot(waiting) as again:
        assert again == 0
