// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * An empty program for each way to observe the kernel that wptrace knows. `wptrace doctor` loads and
 * attaches them one by one: a kernel may have a feature that its policy does not permit.
 */
#include "lib/wptrace.h"

RING(ring);

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u64);
} storage SEC(".maps");

/* Hooks that fire seldom and are on every kernel. */

SEC("tp_btf/sched_process_exit")
int tp_btf(void *ctx)
{
	return 0;
}

SEC("raw_tp/sched_process_exit")
int raw_tp(void *ctx)
{
	return 0;
}

SEC("tracepoint/sched/sched_process_exit")
int tracepoint(void *ctx)
{
	return 0;
}

SEC("fentry/vfs_fsync_range")
int fentry(void *ctx)
{
	return 0;
}

SEC("fexit/vfs_fsync_range")
int fexit(void *ctx)
{
	return 0;
}

SEC("kprobe/vfs_fsync_range")
int kprobe(void *ctx)
{
	return 0;
}

SEC("kretprobe/vfs_fsync_range")
int kretprobe(void *ctx)
{
	return 0;
}

SEC("raw_tp/sched_process_exit")
int ring_buffer(void *ctx)
{
	__u64 zero = 0;

	bpf_ringbuf_output(&ring, &zero, sizeof(zero), BPF_RB_NO_WAKEUP);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int task_storage(void *ctx)
{
	bpf_task_storage_get(&storage, bpf_get_current_task_btf(), 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	return 0;
}

__u64 place;

SEC("raw_tp/sched_process_exit")
int exchange(void *ctx)
{
	return __sync_val_compare_and_swap(&place, 0, 1);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
