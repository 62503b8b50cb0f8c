/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What a write with PREFLUSH or FUA waited for besides its data: flushes of the device's cache, which the block layer
 * makes as requests of their own, for all writes that just wait for one. They are found by their device and time.
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

/* Global: of what it returns the verifier knows nothing, so a loop has one way and not one for each slot. */
__noinline __u64 greater(__u64 one, __u64 other)
{
	return one > other ? one : other;
}

/* How much of a time this one took; 0 for that of another device, and for one that was not waited for. */
__noinline __u64 flush_within(__u32 place, __u32 dev, __u64 begin, __u64 end)
{
	struct flush *flush = flush_at(place);
	__u64 from = flush->issued, to = flush->completed;

	if (from < begin)
		from = begin;
	return flush->dev == dev && to <= end && to > from ? to - from : 0;
}

/* How much of a time one of them took; a global function, which takes numbers only. */
__noinline __u64 flushed(__u32 dev, __u64 begin, __u64 end)
{
	__u64 most = 0;
	__u32 place;

	for (place = 0; place < FLUSHES; place++)
		most = greater(most, flush_within(place, dev, begin, end));
	return most;
}

/* Before the data between G and D, behind it between C and the end, which is unknown for a lone request. */
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
