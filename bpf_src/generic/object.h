/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Objects in flight: a slot is computed from the key. Needs `args.h` first. */
#ifndef WPT_GENERIC_OBJECT_H
#define WPT_GENERIC_OBJECT_H

/* The number of slots to try, if the first one ever collided. */
#define PROBES 8
#define NOWHERE ~0U

/* In one word, that programs read and write as a whole. */
struct state {
	__u8 last; /* point, as the place of its time in `spent` */
	__u8 seen; /* bits of points; each but the end has a stage of its own */
	__u8 chosen; /* bits: see below */
	__u8 unused;
	__u16 depth; /* how often it began inside itself */
	__u16 unused_too;
};

#define CHOSEN_FOR_RECORD 1 /* whatever it takes */
#define CHOSEN_UNTIMED 2 /* counted alone */
/* Places in that word. */
#define STATE_LAST ((POINTS - 1) << 3)
#define STATE_SEEN 8
#define WORD(life) (*(__u64 *)&(life)->state)

struct life {
	__u64 start_ns; /* 0: the slot is just being filled or freed */
	__u64 last_ns; /* up to here its time is charged */
	struct state state;
	__u64 value;
	__u64 mark;
	__u64 labels[LABELS];
	__s64 spent
		[POINTS]; /* after each point, until the next one that was seen; by the clocks of two CPUs even less than 0 */
	/* From here on 0 unless any is reported. */
	__u32 cpu; /* on which it began */
	__u32 tgid; /* of the task in which it began */
	__u32 tid;
	__u32 unused;
	char comm[NAME_BYTES];
};

struct object {
	__u64 key; /* 0: free */
	__u64 begun; /* in this slot so far; only ever incremented */
	__u32 crowded; /* another one belongs here, and had to take one of the next slots */
	__u32 row; /* of the last one here: mostly that of the next one as well */
	struct life life;
};

const struct object *export_object __attribute__((unused));

/* All slots are one value, whose address is in the instructions: Python sets its size. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct object));
} objects SEC(".maps");

struct object first_object; /* stands for the first one in there */

static __always_inline struct object *object_at(__u32 place)
{
	char *first;

	asm volatile("%0 = %1 ll" : "=r"(first) : "i"(&first_object));
	/* Of 64 bits: of a product of 32 the verifier knows nothing once a factor may have more than 16. */
	return (struct object *)(first + (__u64)place * sizeof(struct object));
}

/* A slot is found by the highest bits of the product with the key's lower half, which depend on all of that. */
static __always_inline __u32 home_of(__u64 key)
{
	__u32 half;
	__u64 place;

	/* The verifier forbids arithmetic with a pointer it knows, but its lower half is a plain number. */
	asm volatile("%0 = %1" : "=w"(half) : "w"((__u32)key));
	place = half * 0x9e3779b1u;
	CHANGED(GENERIC_MARK_HOME, place);
	return place;
}

static __always_inline __u32 place_behind(__u32 place, __u32 by)
{
	return (place + by) & (__u32)REPLACED(GENERIC_MARK_SLOTS, 0);
}

static __noinline __u32 displaced(__u64 key)
{
	__u32 home = home_of(key), probe;

	for (probe = 1; probe < PROBES; probe++) {
		__u32 place = place_behind(home, probe);

		if (object_at(place)->key == key)
			return place;
	}
	return NOWHERE;
}

/* The result of a subprogram: the verifier does not know that it is a place. */
static __always_inline struct object *object_found(__u32 place)
{
	return object_at(place_behind(place, 0));
}

/* Unlikely: keeps the rare code out of the common path, which the compiler does not do by itself. */
static __always_inline bool DIFFER(__u64 one, __u64 other)
{
	asm goto("if %0 != %1 goto %l[yes]" : : "r"(one), "r"(other) : : yes);
	return false;
yes:
	return true;
}

static __always_inline struct object *find_displaced(struct object *home, __u64 key)
{
	__u32 place;

	if (!home->crowded)
		return NULL;
	place = displaced(key);
	return place == NOWHERE ? NULL : object_found(place);
}

#define FRESH (1U << 31)

/* Where it is, or a slot that was free, which has the bit FRESH. */
static __noinline __u32 slot_of(__u64 key)
{
	__u32 home = home_of(key), probe;
	struct object *first = object_at(home);

	if (first->crowded) {
		__u32 place = displaced(key);

		if (place != NOWHERE)
			return place;
	}
	first->crowded = 1;
	/* Once more from the first one on: it may be free again by now. */
	for (probe = 0; probe < PROBES; probe++) {
		__u32 place = place_behind(home, probe);
		struct object *object = object_at(place);

		if (!object->key && take_place(&object->key, 0, key))
			return place | FRESH;
	}
	return NOWHERE;
}

/* Its first slot, which was free, as mostly; none where there is more to do. */
static __always_inline struct object *claim(__u64 key)
{
	struct object *object = object_at(home_of(key));
	__u64 before;

	if (!EXCHANGES() || object->crowded)
		return NULL;
	before = __sync_val_compare_and_swap(&object->key, 0, key);
	/* Or the compiler makes a truth value of it first. */
	asm volatile("" : "+r"(before));
	return before ? NULL : object;
}

/* After that: the slot that it has, or else one that was free; none where there is no room. */
static __always_inline struct object *find_or_claim(__u64 key, bool *fresh)
{
	struct object *object = object_at(home_of(key));
	__u32 place;

	*fresh = false;
	if (object->key == key)
		return object;
	if (without_exchange && !object->crowded && !object->key && take_place(&object->key, 0, key)) {
		*fresh = true;
		return object;
	}
	place = slot_of(key);
	if (place == NOWHERE)
		return NULL;
	*fresh = place & FRESH;
	return object_found(place);
}

static __always_inline void free_slot(struct object *object)
{
	object->life.start_ns = 0;
	barrier();
	object->key = 0;
}

#endif
