// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * The rate of system calls that do no I/O. Where functions cannot be observed, operations are found by the tracepoints
 * of all system calls, and these pay for that as well. The programs do for them what those of io_path do.
 */
#include "lib/wptrace.h"
#include "lib/arguments.h"
#include "block/path/call.h"
#include "block/path/calls.h"
#include "block/path/stored.h"

/* The kind of object that a call is about. */
enum call_about {
	CALL_ABOUT_OTHER,
	CALL_ABOUT_NOT_STORED, /* a pipe, socket or terminal, which only the file tells */
	CALL_ABOUT_STORED,
	CALL_ABOUTS,
};
EXPORT_ENUM(call_about);

struct call_counts {
	__u64 counts[CALL_ABOUTS];
};

EACH_CPU(counted, struct call_counts, 1);

static __always_inline enum call_about about(struct pt_regs *regs, __u64 number)
{
	struct file *file;

	if (number >= CALLS || !calls[number] || is_foreign_call((void *)bpf_get_current_task(), regs, false))
		return CALL_ABOUT_OTHER;
	file = file_of(PT_REGS_PARM1_CORE_SYSCALL(regs));
	return file && is_stored(file, OP_KIND_READ, false) ? CALL_ABOUT_STORED : CALL_ABOUT_NOT_STORED;
}

SEC("raw_tp/sys_enter")
int enter_raw_tp(__u64 *ctx)
{
	__u32 zero = 0;
	struct call_counts *found = bpf_map_lookup_elem(&counted, &zero);

	if (found)
		COUNT(found->counts[about((void *)ctx[0], ctx[1])]);
	return 0;
}

SEC("raw_tp/sys_exit")
int exit_raw_tp(__u64 *ctx)
{
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
