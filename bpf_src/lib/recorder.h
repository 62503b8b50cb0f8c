/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * A flight recorder: a record of each thing that ended of late, in the kernel's memory. Nobody reads them until
 * somebody asks (wptrace/engine/recorder.py).
 *
 * Each CPU has an area, in which the newest record overwrites the oldest one. A record is complete once its number is
 * set, after everything else in it: a reader skips records with another number, and those overwritten during the read.
 * A record begins with the time of its end.
 */
#ifndef WPT_RECORDER_H
#define WPT_RECORDER_H

#include "lib/place.h"

#ifdef RECORDING
CONSTANT(recording, true);
#else
OPTION(recording, false);
#endif

/* The last time that something took that long; read by the reader. */
__u64 recorder_slow_ns = ~0ULL;
__u64 recorder_slow_seen;

/* A cache line for each CPU. With more CPUs, some share one. */
#define RECORDER_HEADS 1024
struct recorder_head {
	__u64 number; /* of the next record */
	__u32 first; /* of the area */
	__u32 mask;
	__u64 unused[6];
};

struct recorder_head recorder_heads[RECORDER_HEADS] SEC(".bss.recorder");

/* Maps of one element, unless there is a recorder. */
#define RECORDER_MAP(name, type_) \
	struct { \
		__uint(type, BPF_MAP_TYPE_ARRAY); \
		__uint(map_flags, BPF_F_MMAPABLE); \
		__uint(max_entries, 1); \
		__type(key, __u32); \
		__type(value, struct type_); \
	} name SEC(".maps")

/* The next record of this CPU, and the number that publishes it. NULL, and counted, if an interrupt came in between. */
static __always_inline void *claim_record(void *map, __u32 *number, __u64 *unrecorded)
{
	__u32 cpu = bpf_get_smp_processor_id(), place;
	struct recorder_head *head;
	__u64 next;

	asm volatile("%0 &= %1" : "+w"(cpu) : "i"(RECORDER_HEADS - 1));
	head = &recorder_heads[cpu];
	next = *(volatile __u64 *)&head->number;
	if (!take_place(&head->number, next, next + 1)) {
		COUNT(*unrecorded);
		return NULL;
	}
	place = head->first + ((__u32)next & head->mask);
	*number = next + 1;
	return bpf_map_lookup_elem(map, &place);
}

/* The last store to a record, into its own number. */
static __always_inline void publish_record(__u32 *place, __u32 number)
{
	barrier();
	*place = number;
}

static __always_inline void note_slow(__u64 total, __u64 now)
{
	if (total >= recorder_slow_ns)
		recorder_slow_seen = now;
}

#endif
