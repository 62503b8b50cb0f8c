/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Since 7.0 (a46023d5616e) a task may be preempted in the program of a tracepoint, as in one of a function where the
 * kernel is preemptible, which Debian's are from then on. Until it goes on the kernel skips that program for all others
 * on the CPU: for a whole batch of requests.
 */
#ifndef WPT_PREEMPTION_H
#define WPT_PREEMPTION_H

extern int LINUX_KERNEL_VERSION __kconfig;
extern void bpf_preempt_disable(void) __ksym __weak;
extern void bpf_preempt_enable(void) __ksym __weak;

static __always_inline bool may_be_preempted(void)
{
	return LINUX_KERNEL_VERSION >= KERNEL_VERSION(7, 0, 0) && !!bpf_preempt_disable;
}

static __always_inline void begin_unpreempted(void)
{
	if (may_be_preempted())
		bpf_preempt_disable();
}

static __always_inline int end_unpreempted(int result)
{
	if (may_be_preempted())
		bpf_preempt_enable();
	return result;
}

/* Where a task gets to a tracepoint or a function that is not in an interrupt, nor under a spin lock. */
#define UNPREEMPTED(call) (begin_unpreempted(), end_unpreempted(call))

#endif
