/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* CPUs that come and go (cpuhp_enter). Needs `wptrace.h` first. */
#ifndef WPT_CPUHP_H
#define WPT_CPUHP_H

/* The steps that a CPU takes when it comes and goes have other numbers in each kernel. */
enum cpuhp_state {
	CPUHP_BRINGUP_CPU = 1,
	CPUHP_TEARDOWN_CPU = 2,
};

static __always_inline bool comes_or_goes(__s32 step)
{
	return step == (__s32)bpf_core_enum_value(enum cpuhp_state, CPUHP_BRINGUP_CPU) ||
	       step == (__s32)bpf_core_enum_value(enum cpuhp_state, CPUHP_TEARDOWN_CPU);
}

#endif
