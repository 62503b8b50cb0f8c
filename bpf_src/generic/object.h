/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What is on its way: a slot computed from its key. Needs `args.h` first. */
#ifndef WPT_GENERIC_OBJECT_H
#define WPT_GENERIC_OBJECT_H

/* So many slots are tried, where the first one had to be shared once. */
#define PROBES 8
#define NOWHERE ~0U

/* In one word, that programs read and write as a whole. */
struct state {
	__u8 chosen; /* bits: see below */
	__u8 seen; /* bits of points; each but the end has a stage of its own */
	__u8 last; /* point */
	__u8 unused;
	__u16 depth; /* how often it began inside itself */
	__u16 unused_too;
};

/* Places in that word. */
#define STATE_TOLD 1 /* whatever it takes */
#define STATE_UNTIMED 2 /* counted alone */
#define STATE_SEEN 8
#define STATE_LAST 16
#define WORD(life) (*(__u64 *)&(life)->state)

struct life {
	__u64 start_ns; /* 0: the slot is just being filled or freed */
	__u64 last_ns; /* up to here its time is charged */
	struct state state;
	__u64 value;
	__u64 mark;
	__u64 labels[LABELS];
	__u64 spent[POINTS]; /* after each point, until the next one that was seen */
	/* From here on 0 unless any is reported. */
	__u32 cpu; /* on which it began */
	__u32 tgid; /* of the task in which it began */
	__u32 tid;
	__u32 unused;
	char comm[NAME_BYTES];
};

struct object {
	__u64 key; /* 0: free */
	__u64 begun; /* in this slot, ever; never written but by addition */
	__u32 crowded; /* another one belongs here, and had to take one of the next slots */
	__u32 row; /* of the last one here: mostly that of the next one as well */
	struct life life;
};

const struct object *export_object __attribute__((unused));

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct object);
} objects SEC(".maps");

/* A power of two of slots, less one. */
const volatile __u32 slot_mask = 1023;

static __always_inline struct object *object_at(__u32 place)
{
	return bpf_map_lookup_elem(&objects, &place);
}

static __always_inline struct object *object_behind(__u32 place, __u32 by)
{
	return object_at((place + by) & slot_mask);
}

static __noinline __u32 displaced(__u64 key, __u32 home)
{
	__u32 probe;

	for (probe = 1; probe < PROBES; probe++) {
		struct object *object = object_behind(home, probe);

		if (object && object->key == key)
			return (home + probe) & slot_mask;
	}
	return NOWHERE;
}

static __always_inline struct object *find(__u64 key, __u32 place)
{
	struct object *object = object_at(place);

	if (!object || object->key == key)
		return object;
	if (!object->crowded)
		return NULL;
	place = displaced(key, place);
	return place == NOWHERE ? NULL : object_at(place);
}

#define FRESH (1U << 31)

/* Where it is, or a slot that was free, which has the bit FRESH. */
static __noinline __u32 slot_of(__u64 key, __u32 home)
{
	struct object *first = object_at(home);
	__u32 probe;

	if (!first)
		return NOWHERE;
	if (first->crowded) {
		__u32 place = displaced(key, home);

		if (place != NOWHERE)
			return place;
	}
	first->crowded = 1;
	/* Once more from the first one on: it may be free again by now. */
	for (probe = 0; probe < PROBES; probe++) {
		struct object *object = object_behind(home, probe);

		if (object && !object->key && take_place(&object->key, 0, key))
			return ((home + probe) & slot_mask) | FRESH;
	}
	return NOWHERE;
}

/* Its first slot, which was free, as mostly; none where there is more to do. */
static __always_inline struct object *claim(__u64 key, __u32 place)
{
	struct object *object = object_at(place);
	__u64 before;

	if (!object || without_exchange || object->crowded)
		return NULL;
	before = __sync_val_compare_and_swap(&object->key, 0, key);
	/* Or the compiler makes a truth value of it first. */
	asm volatile("" : "+r"(before));
	return before ? NULL : object;
}

/* After that: the slot that it has, or else one that was free; none where there is no room. */
static __always_inline struct object *find_or_claim(__u64 key, __u32 place, bool *fresh)
{
	struct object *object = object_at(place);

	*fresh = false;
	if (!object || object->key == key)
		return object;
	if (without_exchange && !object->crowded && !object->key && take_place(&object->key, 0, key)) {
		*fresh = true;
		return object;
	}
	place = slot_of(key, place);
	if (place == NOWHERE)
		return NULL;
	*fresh = place & FRESH;
	return object_at(place & ~FRESH);
}

static __always_inline void free_slot(struct object *object)
{
	object->life.start_ns = 0;
	barrier();
	object->key = 0;
}

#endif
