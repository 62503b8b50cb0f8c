/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * With `wptrace host --kicks`: writes to the process's eventfds and reads from them, by system calls. A hypervisor
 * is kicked through one by its guest, and signals completions through another.
 */
#ifndef WPT_PATH_SIGNALS_H
#define WPT_PATH_SIGNALS_H

#include "block/path/call.h"
#include "block/path/inner.h"
#include "block/path/state.h"

#define EVENTFD_BYTES 8
/* All eventfds share an inode: their name distinguishes them from other files. */
const char eventfd_name[16] __attribute__((aligned(8))) = "[eventfd]";

struct signal_key {
	__u32 tid;
	__s32 fd;
	__u32 read;
};

struct signal_count {
	__u64 count;
	char comm[NAME_BYTES]; /* of the thread when it was first seen: it may have exited by the time of a read */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct signal_key);
	__type(value, struct signal_count);
} signal_counts SEC(".maps");

RING(signals);

__u16 signal_read, signal_write; /* numbers of the system calls */

static __always_inline bool is_eventfd(__u32 fd)
{
	const __u64 *wanted = (void *)eventfd_name;
	struct file *file = file_of(fd);
	__u64 name[2] = {};

	if (!file)
		return false;
	bpf_probe_read_kernel_str(name, sizeof(name), BPF_CORE_READ(file, f_path.dentry, d_name.name));
	return name[0] == wanted[0] && name[1] == wanted[1];
}

static __always_inline int record_signal(__u32 fd, bool read)
{
	struct signal_key key = {.tid = current_ids(), .fd = fd, .read = read};
	struct signal_count first = {.count = 1}, *count;
	__u64 now = bpf_ktime_get_ns();
	struct signal *signal;

	count = bpf_map_lookup_elem(&signal_counts, &key);
	if (count) {
		/* The key includes the thread: no other one counts here. */
		count->count++;
	} else {
		bpf_get_current_comm(first.comm, sizeof(first.comm));
		if (bpf_map_update_elem(&signal_counts, &key, &first, BPF_NOEXIST))
			COUNT(loss[PATH_CAUSE_SIGNAL_FULL]);
	}
	if (!emits_records)
		return 0;
	signal = bpf_ringbuf_reserve(&signals, sizeof(*signal), 0);
	if (!signal) {
		COUNT(loss[PATH_CAUSE_SIGNAL_FULL]);
		return 0;
	}
	signal->ns = now;
	signal->tid = key.tid;
	signal->fd = fd;
	signal->read = read;
	signal->unused = 0;
	bpf_ringbuf_submit(signal, BPF_RB_NO_WAKEUP);
	return 0;
}

/* At its begin: the task that it wakes may run before its end. */
static __always_inline int on_signal_write(struct pt_regs *regs, __u64 number)
{
	if (number != signal_write || !tracing || !ids_match() ||
	    is_foreign_call((void *)bpf_get_current_task(), regs, false))
		return 0;
	if (PT_REGS_PARM3_CORE_SYSCALL(regs) != EVENTFD_BYTES || !is_eventfd(PT_REGS_PARM1_CORE_SYSCALL(regs)))
		return 0;
	return record_signal(PT_REGS_PARM1_CORE_SYSCALL(regs), false);
}

static __always_inline int on_signal_read(struct pt_regs *regs, __s64 result)
{
	struct task_struct *task = (void *)bpf_get_current_task();

	if (result != EVENTFD_BYTES || !tracing || !ids_match() ||
	    call_in(task, regs, false) != CALL_OF(CALL_CLASS_SYSTEM_CALL, signal_read))
		return 0;
	return is_eventfd(PT_REGS_PARM1_CORE_SYSCALL(regs)) ? record_signal(PT_REGS_PARM1_CORE_SYSCALL(regs), true) : 0;
}

#endif
