/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Ids of processes and threads as the pid namespace of the tracer has them. Needs `wptrace.h` first. */
#ifndef WPT_PID_NAMESPACE_H
#define WPT_PID_NAMESPACE_H

/* The inode number of the namespace that ids are of; 0: the first one, of whose ids tasks have copies. */
__u32 pid_namespace;

#define PID_LEVELS 32 /* MAX_PID_NS_LEVEL */

struct pid_namespace___known {
	struct {
		__u32 inum;
	} ns;
} __attribute__((preserve_access_index));

/*
 * The id of a task in that namespace, or 0 if it has none. Global, with a scalar argument: the loop is verified
 * once.
 */
__noinline __u32 number_within(__u64 address)
{
	struct pid *pid = (void *)address;
	__u32 level = BPF_CORE_READ(pid, level), step;
	struct upid *numbers = &pid->numbers[0];

	for (step = 0; step <= PID_LEVELS && step <= level; step++) {
		struct upid *upid = (void *)numbers + step * bpf_core_type_size(struct upid);
		struct pid_namespace___known *ns = (void *)BPF_CORE_READ(upid, ns);

		if (BPF_CORE_READ(ns, ns.inum) == pid_namespace)
			return BPF_CORE_READ(upid, nr);
	}
	return 0;
}

/* As bpf_get_current_pid_tgid, of any task; likewise global. */
__noinline __u64 ids_within(__u64 address)
{
	struct task_struct *task = (void *)address;

	return (__u64)number_within((__u64)BPF_CORE_READ(task, group_leader, thread_pid)) << 32 |
	       number_within((__u64)BPF_CORE_READ(task, thread_pid));
}

static __always_inline __u64 current_ids(void)
{
	return pid_namespace ? ids_within(number_of(bpf_get_current_task())) : bpf_get_current_pid_tgid();
}

#endif
