/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* This many records are shown per second. Needs `wptrace.h` first. */
#ifndef WPT_RATE_H
#define WPT_RATE_H

#define SECOND 1000000000ULL

__u32 record_limit; /* a second; 0: all */
__u64 window_ns; /* begin of the second for which the limit counts */
__u64 window_records;

/* The limit is shared by all CPUs without a lock: some more may pass when a second begins. */
static __always_inline bool within_limit(__u64 now)
{
	if (!record_limit)
		return true;
	if (now - window_ns > SECOND) {
		window_ns = now;
		window_records = 0;
	}
	if (window_records >= record_limit)
		return false;
	COUNT(window_records);
	return true;
}

#endif
