/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Tables of what is in flight, by address: a slot is computed, not looked up. Needs `wptrace.h` first. */
#ifndef WPT_TABLE_H
#define WPT_TABLE_H

#include "lib/place.h"

/*
 * Where what has this address belongs, in a table of so many bits. The highest bits of the product depend on all of the
 * address's lower half, the others on fewer: tasks lie in slabs of 32 KiB, so the low 15 bits of theirs are all alike.
 */
static __always_inline __u32 home_of(__u64 pointer, __u32 bits)
{
	return lower_half(pointer) * 0x9e3779b1u >> (32 - bits);
}

/*
 * Of slots of a type, whose `member` is the key, or 0 where it is free; `crowded` says that another one belongs there and
 * had to take one of the next slots, so that these are searched as well. `name_at(place)` gives a slot, or NULL where the
 * table has none; `take_name(slot, key)` claims one, if it is free.
 *
 * The slots after the home are searched by global functions, which are verified once, and not for each path through
 * them. A place that is 1 << bits is none.
 */
#define TABLE(name, type, member, bits, probes) \
	__noinline __u32 displaced_##name(__u64 key, __u32 home) \
	{ \
		__u32 probe; \
\
		for (probe = 1; probe < (probes); probe++) { \
			type *slot = name##_at(home + probe); \
\
			if (slot && slot->member == key) \
				return home + probe & (1 << (bits)) - 1; \
		} \
		return 1 << (bits); \
	} \
\
	static __always_inline __attribute__((unused)) type *find_##name(__u64 key) \
	{ \
		__u32 place = home_of(key, bits); \
		type *slot = name##_at(place); \
\
		if (!slot) \
			return NULL; \
		slot = COMPUTED_KNOWN(slot); \
		if (slot->member == key) \
			return slot; \
		if (!slot->crowded) \
			return NULL; \
		place = displaced_##name(number_of(key), place); \
		return place < 1 << (bits) ? name##_at(place) : NULL; \
	} \
\
	/* The same search for loops: verified once and not for each round. */ \
	__noinline __u32 name##_place(__u64 key) \
	{ \
		__u32 home = home_of(key, bits); \
		type *slot = name##_at(home); \
\
		if (slot && slot->member == key) \
			return home; \
		return slot && slot->crowded ? displaced_##name(key, home) : 1 << (bits); \
	} \
\
	__noinline __u32 claim_displaced_##name(__u64 key, __u32 home) \
	{ \
		__u32 probe, place = name##_place(key); \
		type *first = name##_at(home); \
\
		if (place < 1 << (bits)) \
			return place; \
		if (first) \
			first->crowded = true; \
		for (probe = 0; probe < (probes); probe++) { \
			type *slot = name##_at(home + probe); \
\
			if (slot && take_##name(slot, key)) \
				return home + probe & (1 << (bits)) - 1; \
		} \
		return 1 << (bits); \
	} \
\
	/* The one that it has, or one that was free. */ \
	static __always_inline type *claim_##name(__u64 key, __u32 *place) \
	{ \
		type *slot; \
\
		*place = home_of(key, bits); \
		slot = name##_at(*place); \
		if (!slot) \
			return NULL; \
		slot = COMPUTED_KNOWN(slot); \
		if (slot->member == key || (!slot->crowded && take_##name(slot, key))) \
			return slot; \
		*place = claim_displaced_##name(number_of(key), *place); \
		return *place < 1 << (bits) ? name##_at(*place) : NULL; \
	}

/* The same for slots whose claim needs nothing else. */
#define PLAIN_TABLE(name, type, member, bits, probes) \
	static __always_inline bool take_##name(type *slot, __u64 key) \
	{ \
		return !slot->member && take_place(&slot->member, 0, key); \
	} \
\
	TABLE(name, type, member, bits, probes)

#endif
