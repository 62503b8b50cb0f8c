/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Tasks as the scheduler sees them, whatever the kernel. Needs `wptrace.h` first.
 *
 * The arguments of sched_switch are (bool preempt, prev, next) and of sched_wakeup and sched_wakeup_new (task), on
 * every kernel. All of them fire with the lock of the task's run queue held, or by the task itself: what happens to one
 * task happens in order, so state kept by task needs no atomics.
 */
#ifndef WPT_SCHED_H
#define WPT_SCHED_H

#define TASK_NAME 16 /* TASK_COMM_LEN */

/* include/linux/sched.h; macros, so no BTF has them. */
#define TASK_STATE_RUNNING 0
#define TASK_STATE_DEAD 0x80

/* Since commit 2f064a59a11f ("sched: Change task_struct::state", v5.14) it is __state and has 32 bits. */
struct task_struct___with_state {
	long state;
} __attribute__((preserve_access_index));

static __always_inline __u32 task_state(struct task_struct *task, bool trusted)
{
	struct task_struct___with_state *old = (void *)task;

	if (bpf_core_field_exists(old->state))
		return FIELD(trusted, old, state);
	return FIELD(trusted, task, __state);
}

/*
 * Whether a task wants a CPU. Of `prev` in sched_switch ask left_runnable(). A task that another CPU is just waking has
 * a state of its own. The fourth argument that sched_switch has since
 * commit fa2c3254d7cf ("sched/tracing: Don't re-read p->state when emitting sched_switch event", v5.18) says less:
 * it may be the state before a pending signal made the task runnable again.
 */
static __always_inline bool task_is_runnable(struct task_struct *task, bool trusted)
{
	return task_state(task, trusted) == TASK_STATE_RUNNING;
}

/*
 * Whether it has a CPU right now. Without SMP there is no such field; then it has one if it is the current task. The field
 * is 0 or 1 in four bytes, on 7.2 in one, which CO-RE does not bring together: so its first byte is read.
 */
static __always_inline bool task_is_on_cpu(struct task_struct *task)
{
	__u8 on_cpu = 0;

	if (!bpf_core_field_exists(task->on_cpu))
		return (__u64)task == bpf_get_current_task();
	bpf_probe_read_kernel(&on_cpu, sizeof(on_cpu), (char *)task + bpf_core_field_offset(task->on_cpu));
	return on_cpu;
}

/* Of `prev` in sched_switch: preempted, it stays in the queue, also if it was just about to sleep. */
static __always_inline bool left_runnable(bool preempt, struct task_struct *prev, bool trusted)
{
	return preempt || task_is_runnable(prev, trusted);
}

/* Of `prev` in sched_switch: this was the last time. */
static __always_inline bool left_for_good(struct task_struct *prev, bool trusted)
{
	return task_state(prev, trusted) == TASK_STATE_DEAD;
}

/* Whether it sleeps for I/O, as the scheduler counts. */
static __always_inline bool is_in_iowait(struct task_struct *task, bool trusted)
{
	return trusted ? BPF_CORE_READ_BITFIELD(task, in_iowait) : BPF_CORE_READ_BITFIELD_PROBED(task, in_iowait);
}

/* A task that another task's record names: who ran instead, who woke it. The idle task is tid 0. */
struct task_name {
	__u32 tid;
	__u32 tgid;
	char comm[TASK_NAME];
};

static __always_inline void name_task(struct task_name *name, struct task_struct *task, bool trusted)
{
	name->tid = FIELD(trusted, task, pid);
	name->tgid = FIELD(trusted, task, tgid);
	/* Always a copy: the verifier lets no plain load pass the end of one element of an array. */
	bpf_probe_read_kernel(name->comm, sizeof(name->comm), task->comm);
}

#endif
