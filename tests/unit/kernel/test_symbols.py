# SPDX-License-Identifier: Apache-2.0
"""Kernel symbols from files like /proc/kallsyms and /proc/modules."""

from __future__ import annotations

from pathlib import Path

import pytest

from wptrace.kernel import symbols as module
from wptrace.kernel.symbols import UNKNOWN, KernelSymbols, code, shown

# The lines are not sorted, because modules follow the kernel; there is data between the functions.
KALLSYMS = """\
ffffffff81000000 T _text
ffffffff81000100 t read_it
ffffffff81000200 D some_data
ffffffff81000300 W weak_one
ffffffff81000300 T other_name
ffffffffc0200000 t ext4_read\t[ext4]
ffffffffc0100000 t nvme_irq\t[nvme]
ffffffffc0100040 b nvme_data\t[nvme]
"""
MODULE = "ext4 1000 {} - Live 0xffffffffc0200000\n"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "kallsyms").write_text(KALLSYMS)
    (tmp_path / "modules").write_text(MODULE.format(1))
    return tmp_path


def symbols(proc: Path) -> KernelSymbols:
    return KernelSymbols(proc / "kallsyms", proc / "modules")


@pytest.mark.parametrize(
    ("address", "name"),
    [
        (0xFFFFFFFF81000000, "_text"),
        (0xFFFFFFFF810000FF, "_text"),
        (0xFFFFFFFF81000100, "read_it"),
        (0xFFFFFFFF81000210, "read_it"),  # data is no function
        (0xFFFFFFFF81000300, "weak_one"),
        (0xFFFFFFFFC0100050, "nvme_irq"),
        (0xFFFFFFFFC0200001, "ext4_read"),
        (0xFFFFFFFF80FFFFFF, UNKNOWN),
        (0xFFFFFFFFA0000000, UNKNOWN),  # far after the last one
        (0, UNKNOWN),
    ],
)
def test_an_address_lies_in_the_function_before_it(proc: Path, address: int, name: str) -> None:
    assert symbols(proc).name(address) == name


def test_with_the_place_in_the_function(proc: Path) -> None:
    found = symbols(proc)
    assert found.resolve(0xFFFFFFFFC0200012) == "ext4_read+0x12 [ext4]"
    assert found.resolve(0xFFFFFFFF81000100) == "read_it+0x0"
    assert found.resolve(0x1234) == "0x1234"


def test_a_kernel_that_hides_addresses(proc: Path) -> None:
    (proc / "kallsyms").write_text("0000000000000000 T _text\n0000000000000000 t read_it\n")
    assert not symbols(proc).known
    assert symbols(proc).name(0xFFFFFFFF81000100) == UNKNOWN
    (proc / "kallsyms").unlink()
    assert not symbols(proc).known


def test_symbols_are_read_anew_when_a_module_came(proc: Path) -> None:
    found = symbols(proc)
    (proc / "kallsyms").write_text("ffffffff81000000 T changed\n")
    (proc / "modules").write_text(MODULE.format(7))  # only the use count has changed
    found.refresh()
    assert found.name(0xFFFFFFFF81000000) == "_text"
    (proc / "modules").write_text(MODULE.format(7) + "xfs 1 0 - Live 0xffffffffc0300000\n")
    found.refresh()
    assert found.name(0xFFFFFFFF81000000) == "changed"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (KALLSYMS, True),
        ("0000000000000000 A fixed_percpu_data\n0000000000001000 A cpu_debug_store\n" + KALLSYMS, True),
        ("0000000000001000 A cpu_debug_store\n0000000000000000 T _text\n", False),
        ("", False),
    ],
)
def test_whether_functions_have_addresses_is_known_by_the_first_of_them(
    tmp_path: Path, text: str, expected: bool
) -> None:
    (tmp_path / "kallsyms").write_text(text)
    assert shown(tmp_path / "kallsyms") is expected
    assert not shown(tmp_path / "none")


def test_functions_of_modules_lie_anywhere_in_the_list(tmp_path: Path) -> None:
    (tmp_path / "kallsyms").write_text(
        "ffffffff81000000 T commit_in_kernel\n"
        "ffffffff81000000 T another_name_of_it\n"
        "ffffffff81000040 t next_one\n"
        "ffffffffc0002000 t wait_commit\t[jbd2]\n"
        "ffffffffc0001000 t before\t[jbd2]\n"
        "ffffffffc0002010 t of_another\t[xfs]\n"
        "ffffffffc0002080 t behind\t[jbd2]\n"
        "ffffffffc0003000 t not_wait_commit\t[jbd2]\n"
    )
    assert code({"wait_commit": "jbd2", "commit_in_kernel": "", "missing": ""}, tmp_path / "kallsyms") == {
        "commit_in_kernel": (0xFFFFFFFF81000000, 0x40),
        "wait_commit": (0xFFFFFFFFC0002000, 0x80),
    }
    (tmp_path / "kallsyms").write_text("0000000000000000 t wait_commit\t[jbd2]\n0000000000000000 t behind\t[jbd2]\n")
    assert code({"wait_commit": "jbd2"}, tmp_path / "kallsyms") == {}


@pytest.mark.parametrize("piece", [1, 7, 64, 1 << 20])
def test_a_list_is_read_until_all_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(module, "_PIECE", piece)
    monkeypatch.setattr(module, "_LINES", 32)
    kernel = "".join(f"ffffffff81000{at:03x} t function_{at}\n" for at in range(0, 256, 16))
    # The next function in memory may stand first.
    modules = "".join(
        f"ffffffffc000{number}0{at}0 t {name}\t[{module}]\n"
        for number, module in enumerate(("scsi_mod", "jbd2", "xfs", "ext4"))
        for at, name in ((5, f"{module}_behind"), (1, f"{module}_late"), (2, f"{module}_own"), (7, f"{module}_last"))
    )
    (tmp_path / "kallsyms").write_text(kernel + modules)
    found = {"function_16": (0xFFFFFFFF81000010, 0x10)}
    assert code({"function_16": ""}, tmp_path / "kallsyms") == found
    assert code({"function_16": "", "missing": ""}, tmp_path / "kallsyms") == found
    found |= {
        "jbd2_late": (0xFFFFFFFFC0001010, 0x10),
        "xfs_own": (0xFFFFFFFFC0002020, 0x30),
        "xfs_last": (0xFFFFFFFFC0002070, 0),
        "ext4_own": (0xFFFFFFFFC0003020, 0x30),
    }
    assert code({name: name.partition("_")[0] for name in (*found, "function")}, tmp_path / "kallsyms") == found
