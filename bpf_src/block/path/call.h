/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The system call that a task is in, for any hook. */
#ifndef WPT_PATH_CALL_H
#define WPT_PATH_CALL_H

#include "block/path/shared.h"

struct thread_info___x86 {
	__u32 status;
} __attribute__((preserve_access_index));

struct pt_regs___x86_call {
	__u64 orig_ax;
	__u16 cs;
} __attribute__((preserve_access_index));

struct pt_regs___arm64_call {
	__u64 pstate;
	__s32 syscallno;
} __attribute__((preserve_access_index));

#define TS_COMPAT 2 /* arch/x86/include/asm/thread_info.h */
#define PSR_MODE32_BIT 0x10 /* arch/arm64/include/uapi/asm/ptrace.h */

/* 32-bit programs have other numbers for their calls. */
static __always_inline bool is_foreign_call(struct task_struct *task, struct pt_regs *regs, bool typed)
{
	struct thread_info___x86 *info = (void *)__builtin_preserve_access_index(&task->thread_info);
	struct pt_regs___arm64_call *state = (void *)regs;

	if (bpf_core_field_exists(state->pstate))
		return FIELD(typed, state, pstate) & PSR_MODE32_BIT;
	return bpf_core_field_exists(info->status) && FIELD(typed, info, status) & TS_COMPAT;
}

/* Classes of calls other than native system calls. */
enum call_class {
	CALL_CLASS_SYSTEM_CALL, /* a native one, by its number */
	CALL_CLASS_FOREIGN, /* of a 32-bit program */
	CALL_CLASS_PAGEFAULT,
	CALL_CLASS_SWAPIN,
	CALL_CLASS_URING, /* a worker of io_uring */
	CALL_CLASS_KERNEL, /* a thread of the kernel */
	CALL_CLASS_NONE, /* a task outside of system calls */
};
EXPORT_ENUM(call_class);

#define CALL_OF(class, number) ((__u64)(class) << 32 | (__u32)(number))

/* include/linux/sched.h */
#define PF_IO_WORKER 0x00000010
#define PF_KTHREAD 0x00200000

#define CALL_NUMBERS 1024 /* more than there are */

/*
 * What the task had in its registers when it entered the kernel. Without the helper task_pt_regs they are looked up
 * where the kernel puts them: at the top of a stack of this size, except on debugging kernels.
 */
#define STACK_BYTES 16384

/* `typed`: the verifier knows the types of both, and fields are read by plain loads. */
static __always_inline __u64 call_in(struct task_struct *task, struct pt_regs *regs, bool typed)
{
	struct pt_regs___arm64_call *arm64 = (void *)regs;
	struct pt_regs___x86_call *x86 = (void *)regs;
	__s64 number;

	if (bpf_core_field_exists(arm64->syscallno)) {
		number = FIELD(typed, arm64, syscallno);
	} else {
		/* An exception leaves -1, and a kernel thread has no user registers. */
		number = (FIELD(typed, x86, cs) & 3) == 3 ? (__s64)FIELD(typed, x86, orig_ax) : -1;
	}
	if (number < 0 || number >= CALL_NUMBERS)
		return CALL_OF(CALL_CLASS_NONE, 0);
	return is_foreign_call(task, regs, typed) ? CALL_OF(CALL_CLASS_FOREIGN, 0)
						  : CALL_OF(CALL_CLASS_SYSTEM_CALL, number);
}

static __always_inline bool has_typed_registers(void)
{
	return HAS_HELPER(task_pt_regs);
}

/* Without the type of the task. */
static __always_inline __u64 call_of(struct task_struct *task)
{
	return call_in(task, BPF_CORE_READ(task, stack) + STACK_BYTES - bpf_core_type_size(struct pt_regs), false);
}

static __always_inline __u64 call_of_task(void)
{
	bool typed = has_typed_registers();
	struct task_struct *task = typed ? bpf_get_current_task_btf() : (void *)bpf_get_current_task();
	__u32 flags = typed ? task->flags : BPF_CORE_READ(task, flags);

	if (flags & PF_IO_WORKER)
		return CALL_OF(CALL_CLASS_URING, 0);
	if (flags & PF_KTHREAD)
		return CALL_OF(CALL_CLASS_KERNEL, 0);
	if (typed)
		return call_in(task, (void *)bpf_task_pt_regs(task), true);
	return call_of(task);
}

#endif
