# SPDX-License-Identifier: Apache-2.0
"""The source in docs/adding-a-flow.md compiles, and has the programs that its module names."""

from __future__ import annotations

import re
from pathlib import Path

from tests.objects.building import ROOT, built
from tests.objects.test_objects import copy_of_sources
from wptrace.bpf.btf import Btf, Func
from wptrace.bpf.elf import ObjectFile


def test_the_worked_example_compiles(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "adding-a-flow.md").read_text()
    (source,) = re.findall(r"^```c\n(.*?)^```", page, re.M | re.S)
    tree = tmp_path / "tree"
    copy_of_sources(tree, objects=False)
    (tree / "bpf_src" / "irq" / "irq.bpf.c").write_text(source)
    made = built(tmp_path, source=tree)
    types = Btf.parse(ObjectFile(made["x86_64/irq.bpf.o"]).content(".BTF"))
    functions = {entry.name for entry in types if isinstance(entry, Func)}
    assert {"enter_tp_btf", "enter_raw_tp", "leave_tp_btf", "leave_raw_tp"} <= functions
