# SPDX-License-Identifier: Apache-2.0
"""Names of softirqs by number (include/linux/interrupt.h), the same on all supported kernels."""

SOFTIRQS = ("HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU")
