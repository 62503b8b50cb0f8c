/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What is done, and with how many bytes (wptrace/engine/filters/operation.py). Needs `wptrace.h` first. */
#ifndef WPT_FILTERS_OPERATION_H
#define WPT_FILTERS_OPERATION_H

/* Bits: by whether it is a write, and of what is more than that by op_kind. */
enum filter_ops {
	FILTER_OPS_READ = 1,
	FILTER_OPS_WRITE = 2,
	FILTER_OPS_BOTH = 3,
	FILTER_OPS_SYNC = 4,
	FILTER_OPS_PAGEFAULT = 8,
	FILTER_OPS_SWAPIN = 16,
};

bool filter_operation; /* any of those below; all three are set then */
enum filter_ops filter_ops;
__u64 filter_min_bytes;
__u64 filter_max_bytes;

static __always_inline bool operation_matches(__u32 what, __u64 bytes)
{
	if (!filter_operation)
		return true;
	return (filter_ops >> what & 1) && bytes >= filter_min_bytes && bytes <= filter_max_bytes;
}

#endif
