/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Reads or writes, and of how many bytes (wptrace/engine/filters/operation.py). Needs `wptrace.h` first. */
#ifndef WPT_FILTERS_OPERATION_H
#define WPT_FILTERS_OPERATION_H

/* Bits, by whether it is a write. */
enum directions {
	DIRECTIONS_READ = 1,
	DIRECTIONS_WRITE = 2,
	DIRECTIONS_BOTH = 3,
};

bool filter_operation; /* any of those below; all three are set then */
enum directions filter_directions;
__u64 filter_min_bytes;
__u64 filter_max_bytes;

static __always_inline bool operation_matches(bool write, __u64 bytes)
{
	if (!filter_operation)
		return true;
	return (filter_directions >> write & 1) && bytes >= filter_min_bytes && bytes <= filter_max_bytes;
}

#endif
