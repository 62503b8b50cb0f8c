/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The name of the current task. Needs `wptrace.h` first. */
#ifndef WPT_COMM_H
#define WPT_COMM_H

/* Up to the first byte of 0: behind it, kernels before 5.17 may have what was there before. */
static __always_inline __u64 up_to_end(__u64 letters, bool *ended)
{
	__u64 end = (letters - 0x0101010101010101ULL) & ~letters & 0x8080808080808080ULL;

	*ended = end;
	return end ? letters & ((end & -end) - 1) >> 7 : letters;
}

/* A byte is 0, or it is above 0x80. */
static __always_inline bool may_end(__u64 letters)
{
	return (letters - 0x0101010101010101ULL) & 0x8080808080808080ULL;
}

/* The fields of such a task are read as they lie there. */
static __always_inline bool has_typed_task(void)
{
	return HAS_HELPER(get_current_task_btf);
}

/* Without a copy where there is a way: the helper's takes longer than all that is done with it. */
static __always_inline void current_comm(__u64 *into)
{
	struct task_struct *task;
	bool ended = false;
	__u64 *comm;

	if (!has_typed_task()) {
		bpf_get_current_comm(into, 2 * sizeof(*into));
		return;
	}
	task = bpf_get_current_task_btf();
	comm = (void *)__builtin_preserve_access_index(&task->comm);
	into[0] = up_to_end(comm[0], &ended);
	into[1] = ended ? 0 : up_to_end(comm[1], &ended);
}

#endif
