# SPDX-License-Identifier: Apache-2.0
"""docs/kernels.md lists the kernels that tests run on."""

from __future__ import annotations

from tests.lab.matrix import KERNELS, OTHER_MACHINES
from tests.unit.docs.pages import section, tables


def test_the_kernels_are_those_of_the_matrix() -> None:
    (rows,) = tables(section("kernels.md", "## Tested"))
    assert rows == [
        [
            kernel.name,
            ", ".join(kernel.suites),
            ", ".join(kernel.package_names("*")),
            "" if kernel.running else kernel.arch,
        ]
        for kernel in (*KERNELS, *OTHER_MACHINES)
    ]


def test_the_hooks_of_each_kernel_are_reported() -> None:
    expected = [kernel.name for kernel in KERNELS if not kernel.running]
    arguments, *_ = found = tables(section("stages.md", "### By kernel"))
    assert [row[0] for row in arguments] == expected
    assert len(found) == 2
