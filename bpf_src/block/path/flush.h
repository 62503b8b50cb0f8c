/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Flushes of the device's cache that a write with PREFLUSH or FUA waits for besides its data. The block layer
 * sends them as separate requests, for all writes that wait at the time. They are found by device and time.
 */
#ifndef WPT_PATH_FLUSH_H
#define WPT_PATH_FLUSH_H

#include "block/path/state.h"

#define FLUSHES 64

struct flush {
	__u64 issued;
	__u64 completed; /* 0: free */
	__u32 dev;
	__u32 unused;
};

struct flush flushes[FLUSHES];
__u32 next_flush; /* two that end at the same moment may take the same slot: then one of them is not reported */

static __always_inline struct flush *flush_at(__u32 place)
{
	asm volatile("%0 &= %1" : "+w"(place) : "i"(FLUSHES - 1));
	return &flushes[place];
}

static __always_inline void note_flush(struct done *done)
{
	struct flush *flush = flush_at(next_flush++);

	flush->completed = 0;
	flush->dev = done->dev;
	flush->issued = done->times.issued;
	flush->completed = done->times.completed;
}

/* Global: its result is unknown to the verifier, so a loop has one path, not one for each slot. */
__noinline __u64 greater(__u64 one, __u64 other)
{
	return one > other ? one : other;
}

/* The overlap of this flush with a time; 0 if it is on another device, or was not waited for. */
__noinline __u64 flush_within(__u32 place, __u32 dev, __u64 begin, __u64 end)
{
	struct flush *flush = flush_at(place);
	__u64 from = flush->issued, to = flush->completed;

	if (from < begin)
		from = begin;
	return flush->dev == dev && to <= end && to > from ? to - from : 0;
}

/* The overlap of any of them with a time; global, with scalar arguments. */
__noinline __u64 flushed(__u32 dev, __u64 begin, __u64 end)
{
	__u64 most = 0;
	__u32 place;

	for (place = 0; place < FLUSHES; place++)
		most = greater(most, flush_within(place, dev, begin, end));
	return most;
}

/* A preflush lies between G and D, a postflush between C and the end, which is unknown for a lone request. */
static __always_inline void fill_flushes(struct io_record *record, struct done *done, __u64 now)
{
	__u64 from, to;
	__u32 dev = done->dev;

	if (!(record->flags & (1 << BLOCK_FLAG_PREFLUSH | 1 << BLOCK_FLAG_FUA)) || !done->bytes)
		return;
	from = done->times.got;
	to = done->times.issued;
	record->flush_before = flushed(dev, from, to);
	from = done->times.completed;
	record->flush_behind = flushed(dev, from, now);
}

#endif
