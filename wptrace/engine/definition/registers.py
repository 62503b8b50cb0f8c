# SPDX-License-Identifier: Apache-2.0
"""Offsets of saved registers in the context of a kprobe or uprobe program: struct pt_regs, struct user_pt_regs."""

from __future__ import annotations

_X86 = ("r15", "r14", "r13", "r12", "bp", "bx", "r11", "r10", "r9", "r8", "ax", "cx", "dx", "si", "di")
OFFSETS: dict[str, dict[str, int]] = {
    "x86_64": {**{name: 8 * number for number, name in enumerate(_X86)}, "sp": 152},
    "aarch64": {**{f"x{number}": 8 * number for number in range(31)}, "sp": 248},
}
ARGUMENTS: dict[str, tuple[int, ...]] = {
    "x86_64": tuple(OFFSETS["x86_64"][name] for name in ("di", "si", "dx", "cx", "r8", "r9")),
    "aarch64": tuple(8 * number for number in range(8)),
}
RESULT = {"x86_64": OFFSETS["x86_64"]["ax"], "aarch64": 0}
