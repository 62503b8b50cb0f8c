# SPDX-License-Identifier: Apache-2.0
"""The function that a handler interrupted, by stacks as kernels make them."""

from __future__ import annotations

import pytest

from wptrace.kernel.symbols import interrupted

HANDLER = ["bpf_prog_0123_expire_tp_btf+0x12 [bpf]", "hrtimer_interrupt+0x100", "__sysvec_apic_timer_interrupt+0x55"]


@pytest.mark.parametrize(
    "entry",
    [
        ["sysvec_apic_timer_interrupt+0x6e", "asm_sysvec_apic_timer_interrupt+0x1a"],
        ["asm_call_irq_on_stack+0xf", "sysvec_apic_timer_interrupt+0x6e", "asm_sysvec_apic_timer_interrupt+0x12"],
        ["asm_sysvec_hyperv_stimer0+0x1a"],
        ["asm_fred_entrypoint_kernel+0x45"],
        [
            "gic_handle_irq+0x4c",
            "call_on_irq_stack+0x24",
            "el1_interrupt+0x34",
            "el1h_64_irq_handler+0x18",
            "el1h_64_irq+0x6c",
        ],
        ["el1_irq+0xb8"],
    ],
    ids=lambda entry: entry[-1],
)
def test_the_handler_is_left_out(entry: list[str]) -> None:
    assert interrupted([*HANDLER, *entry, "hold+0x20 [driver]", "kthread+0x1"]) == ["hold+0x20 [driver]", "kthread+0x1"]


def test_of_nested_interrupts_the_inner_one_is_left_out() -> None:
    """A softirq at the end of an interrupt was running when the timer came."""
    stack = [
        *HANDLER,
        "asm_sysvec_apic_timer_interrupt+0x1a",
        "net_rx_action+0x1",
        "asm_sysvec_apic_timer_interrupt+0x1a",
    ]
    assert interrupted([*stack, "work+0x1"]) == [
        "net_rx_action+0x1",
        "asm_sysvec_apic_timer_interrupt+0x1a",
        "work+0x1",
    ]


def test_nothing_is_left_of_a_stack_that_came_from_user_space() -> None:
    assert interrupted([*HANDLER, "el0t_64_irq_handler+0x10", "el0t_64_irq+0x190"]) == []
    assert interrupted([]) == []


def test_a_stack_that_was_not_taken_in_a_handler_stays() -> None:
    assert interrupted(["hold+0x20", "kthread+0x1"]) == ["hold+0x20", "kthread+0x1"]
