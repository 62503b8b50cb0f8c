# SPDX-License-Identifier: Apache-2.0
"""Where the kernel is entered by an interrupt, as stacks show it."""

from __future__ import annotations

from collections.abc import Sequence

# x86: by the vector, from Xen, and by FRED (6.9). arm64: 5.12 split up what were el1_irq and el0_irq.
_ENTRIES = (
    "asm_sysvec_",
    "asm_common_interrupt",
    "asm_exc_xen_",
    "asm_fred_entrypoint_",
    "el1h_64_irq",
    "el1h_64_fiq",
    "el0t_64_irq",
    "el0t_64_fiq",
    "el0t_32_irq",
    "el1_irq",
    "el0_irq",
)


def interrupted(stack: Sequence[str]) -> list[str]:
    """What was running when the handler that a stack begins with took over; empty for user space.

    A stack that was not taken in a handler is that by itself.
    """
    entries = [place for place, frame in enumerate(stack) if frame.startswith(_ENTRIES)]
    if not entries:
        return list(stack)
    # Two entry functions of arm64 lie on each other.
    first = entries[0]
    while first + 1 in entries:
        first += 1
    return list(stack[first + 1 :])
