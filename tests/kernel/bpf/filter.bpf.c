// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Counts the preads and pwrites of the test and its children, and those that pass the filters. */
#include "lib/wptrace.h"
#include "lib/filter.h"

/* Set around the calls that the test makes on purpose. */
bool counting;
__u32 target_tgid;
__u64 target_read;
__u64 target_write;
__u64 calls;
__u64 hits;

/* Filters must not be what keeps other processes of the machine out of the test. */
static __always_inline bool is_ours(void)
{
	struct task_struct *task = (void *)bpf_get_current_task();

	if (!counting)
		return false;
	return bpf_get_current_pid_tgid() >> 32 == target_tgid ||
	       BPF_CORE_READ(task, real_parent, tgid) == (pid_t)target_tgid;
}

static __always_inline int judge(struct file *file, bool direct, bool write, __u64 bytes)
{
	COUNT(calls);
	if (task_matches() && file_matches(file, direct) && operation_matches(write, bytes))
		COUNT(hits);
	return 0;
}

static __always_inline int enter(__u64 *ctx)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct pt_regs *registers = (void *)ctx[0];
	__u64 call = ctx[1];
	struct file **files, *file = NULL;

	if ((call != target_read && call != target_write) || !is_ours())
		return 0;
	files = BPF_CORE_READ(task, files, fdt, fd);
	bpf_probe_read_kernel(&file, sizeof(file), files + PT_REGS_PARM1_CORE_SYSCALL(registers));
	return judge(file, false, call == target_write, PT_REGS_PARM3_CORE_SYSCALL(registers));
}

SEC("raw_tp/sys_enter")
int on_raw_tp(__u64 *ctx)
{
	return enter(ctx);
}

SEC("tp_btf/sys_enter")
int on_tp_btf(__u64 *ctx)
{
	return enter(ctx);
}

SEC("fentry/vfs_read")
int on_fentry_read(__u64 *ctx)
{
	return is_ours() ? judge((void *)ctx[0], true, false, ctx[2]) : 0;
}

SEC("fentry/vfs_write")
int on_fentry_write(__u64 *ctx)
{
	return is_ours() ? judge((void *)ctx[0], true, true, ctx[2]) : 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
