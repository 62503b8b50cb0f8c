/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Neighbours (--neighbours): who had the device while a request waited for it.
 *
 * A device has a few columns, one for each owner that currently uses it, and a last one for all others. A column is a
 * word: the sum of (end - begin) of the owner's requests, and how many of them are in flight. The word and a
 * time give the owner's use of the device up to then, so that the difference of two reads is exactly the use in between.
 * A waiting request reads it when it is queued and when it is issued; no lock is needed, and an event is one addition.
 *
 * All of it is behind a constant, so that the verifier drops it unless it is asked for.
 */
#ifndef WPT_PATH_NEIGHBOURS_H
#define WPT_PATH_NEIGHBOURS_H

#include "block/path/hidden.h"
#include "block/path/owner.h"

#ifdef ROWS
const volatile bool neighbours;
#else
OPTION(neighbours, false);
#endif

/* Shorter waits do not count and are not reported. */
CONSTANT(NEIGHBOUR_WAIT_NS, 10000);
#define NEIGHBOUR_RECORD_NS 100000

/* --- Columns ------------------------------------------------------------------------------------------------------ */

#define OTHERS_COLUMN (NEIGHBOUR_COLUMNS - 1)
#define OCCUPANCIES 256 /* places in the table of devices */

struct occupancy {
	__u64 words[NEIGHBOUR_COLUMNS]; /* nanoseconds << 16 | under way */
	__u64 owners[NEIGHBOUR_COLUMNS]; /* numbers; 0: free */
	__u64 since[NEIGHBOUR_COLUMNS]; /* when the column became this owner's */
	__u64 first[NEIGHBOUR_COLUMNS]; /* its word then */
	__u8 used[NEIGHBOUR_COLUMNS]; /* since the last search for a column to reuse */
	__u32 hand;
	__u32 unused;
};

#define WORDS (sizeof(struct occupancy) / sizeof(__u64))
_Static_assert(OCCUPANCIES *WORDS <= 1 << 16, "the number of a word is short");

struct occupancy occupancies[OCCUPANCIES] SEC(".bss.occupancies");

static __always_inline struct occupancy *occupancy_at(__u32 slot)
{
	asm volatile("%0 &= %1" : "+w"(slot) : "i"(OCCUPANCIES - 1));
	return COMPUTED(&occupancies[slot]);
}

static __always_inline __u32 column_at(__u32 column)
{
	asm volatile("%0 &= %1" : "+w"(column) : "i"(NEIGHBOUR_COLUMNS - 1));
	return column;
}

#define UNDER_WAY(word) ((word) & 0xffff)
/* The use of the device by an owner up to then, in nanoseconds times requests; the low 48 bits. */
#define HAD_BY(word, at) (((word) >> 16) + UNDER_WAY(word) * (at))

/* The difference of two reads; a write of another CPU with a skewed clock may make it slightly negative. */
static __always_inline __u64 had_between(__u64 first, __u64 begin, __u64 second, __u64 end)
{
	__u64 had = (HAD_BY(second, end) - HAD_BY(first, begin)) << 16;

	return (__s64)had < 0 ? 0 : had >> 16;
}

/* A free column, or one that its owner does not use: each search takes one chance from those that were used. */
__noinline __u32 claim_column(__u32 slot, __u32 owner)
{
	struct occupancy *of = occupancy_at(slot);
	__u32 hand = of->hand, step;

	for (step = 0; step < OTHERS_COLUMN; step++) {
		__u32 column = column_at((hand + step) % OTHERS_COLUMN);
		__u64 before = of->owners[column];

		if (before && of->used[column]) {
			of->used[column] = 0;
			continue;
		}
		if (UNDER_WAY(of->words[column]))
			continue;
		/* Before the owner: a CPU that reads meanwhile does not attribute the old owner's use to the new one. */
		of->first[column] = of->words[column];
		of->since[column] = bpf_ktime_get_ns();
		barrier();
		if (!take_place(&of->owners[column], before, owner))
			continue;
		of->used[column] = 1;
		of->hand = column + 1;
		return column;
	}
	return OTHERS_COLUMN;
}

__noinline __u32 column_of(__u32 slot, __u32 owner)
{
	struct occupancy *of = occupancy_at(slot);
	__u32 column;

	if (!owner || owner >= OWNER_OTHERS)
		return OTHERS_COLUMN;
	for (column = 0; column < OTHERS_COLUMN; column++) {
		if (of->owners[column] == owner) {
			of->used[column] = 1;
			return column;
		}
	}
	return claim_column(slot, owner);
}

/* Of an owner that is there. Usually it has the same column as before. */
static __always_inline __u32 last_column(struct occupancy *of, __u32 slot, struct owner *known, __u32 owner)
{
	__u32 column;

	column = column_at(known->column);
	if (of->owners[column] == owner) {
		of->used[column] = 1;
		return column;
	}
	column = column_of(slot, owner);
	known->column = column;
	return column;
}

/* --- Rows --------------------------------------------------------------------------------------------------------- */

#define NEIGHBOUR_ROWS 2048
#define NEIGHBOUR_PROBES 8

/* Kinds of rows: the waits of an owner, the use by another one meanwhile, and the whole use of an owner by block_op. */
enum neighbour_row {
	NEIGHBOUR_ROW_WAITED,
	NEIGHBOUR_ROW_MET,
	NEIGHBOUR_ROW_HAD,
};
EXPORT_ENUM(neighbour_row);
/* A power of two. */
CONSTANT(NEIGHBOUR_KINDS, 16);

struct neighbour_cell {
	__u64 count;
	__u64 ns;
	__u64 bytes;
};

/* First a cell for each row, then one for all others of each device and kind of row. */
CELLS(neighbour_cells, neighbour_cell);

/* Keys of rows: kind << 48 | who waits << 32 | who had it << 16 | slot << 8 | 1; 0: free. */
__u64 neighbour_rows[NEIGHBOUR_ROWS] SEC(".bss.nb_rows");

static __always_inline __u32 neighbour_place(__u32 place)
{
	asm volatile("%0 &= %1" : "+w"(place) : "i"(NEIGHBOUR_ROWS - 1));
	return place;
}

__noinline __u32 claim_neighbour_row(__u64 key, __u32 home)
{
	__u32 probe;

	for (probe = 0; probe < NEIGHBOUR_PROBES; probe++) {
		__u32 at = neighbour_place(home + probe);

		if (neighbour_rows[at] == key || (!neighbour_rows[at] && take_place(&neighbour_rows[at], 0, key)))
			return at;
	}
	COUNT(loss[PATH_CAUSE_OWNER_FULL]);
	return NEIGHBOUR_ROWS + (key >> 8 & 0xff) * NEIGHBOUR_KINDS + (key >> 48 & NEIGHBOUR_KINDS - 1);
}

static __always_inline void add_to_neighbour(__u64 key, __u64 ns, __u32 bytes)
{
	__u32 place = neighbour_place(key * 0x9e3779b97f4a7c15ULL >> 40);
	struct neighbour_cell *cell;

	if (neighbour_rows[place] != key)
		place = claim_neighbour_row(key, place);
	cell = cell_at(&neighbour_cells, place);
	if (!cell)
		return;
	COUNT_MORE(cell->ns, ns);
	COUNT_MORE(cell->bytes, bytes);
	COUNT(cell->count);
}

/* For places where this is rarely called. */
__noinline int count_neighbour(__u64 key, __u64 ns, __u32 bytes)
{
	add_to_neighbour(key, ns, bytes);
	return 0;
}

static __always_inline __u64 neighbour_key(__u32 what, __u32 waiter, __u32 holder, __u32 slot)
{
	return (__u64)what << 48 | (__u64)waiter << 32 | holder << 16 | slot << 8 | 1;
}

/* --- Requests in flight ------------------------------------------------------------------------------------------- */

#define OCCUPANT_BITS 13
#define OCCUPANTS (1 << OCCUPANT_BITS)
#define OCCUPANT_PROBES 8

/* A request with the device. If its end is not seen, it is removed when its memory is reused. */
struct occupant {
	__u64 rq; /* 0: free */
	__u64 since;
	__u32 bytes;
	__u16 owner;
	__u16 word; /* of its column, in `occupancies` */
	__u8 slot;
	__u8 op;
	bool crowded; /* another one belongs here, and had to take one of the next slots */
	bool inside; /* it has entered the device and not left it */
	__u8 unused[4];
};

struct occupant occupants[OCCUPANTS] SEC(".bss.occupants");

static __always_inline struct occupant *occupant_at(__u32 place)
{
	asm volatile("%0 &= %1" : "+w"(place) : "i"(OCCUPANTS - 1));
	return &occupants[place];
}

PLAIN_TABLE(occupant, struct occupant, rq, OCCUPANT_BITS, OCCUPANT_PROBES)

static __always_inline void leave_column(struct occupant *one, __u64 now)
{
	__u64 word = one->word;

	if (word < OCCUPANCIES * WORDS)
		COUNT_MORE(((__u64 *)occupancies)[word], (now << 16) - 1);
}

/* At the end, or when it is requeued. */
static __always_inline void leave(__u64 rq, __u64 now, bool ended)
{
	struct occupant *one = find_occupant(rq);

	if (!one)
		return;
	leave_column(one, now);
	if (ended)
		add_to_neighbour(neighbour_key(NEIGHBOUR_ROW_HAD + one->op, 0, one->owner, one->slot),
				 minus(now, one->since), one->bytes);
	one->inside = false;
	barrier();
	one->rq = 0;
}

/* For places where this is rarely called. */
__noinline int leave_device(__u64 rq, bool ended)
{
	leave(rq, bpf_ktime_get_ns(), ended);
	return 0;
}

/* The arguments packed into a scalar: a function takes at most five. */
#define ASKED(bytes, op) ((__u64)(op) << 32 | (__u32)(bytes))

static __always_inline void enter_device(__u64 rq, __u32 slot, __u32 owner, __u64 now, __u64 asked)
{
	struct occupancy *of;
	struct occupant *one;
	struct owner *known;
	__u32 column, place;

	one = claim_occupant(rq, &place);
	if (!one) {
		COUNT(loss[PATH_CAUSE_NEIGHBOUR_FULL]);
		return;
	}
	/* It is issued again, or its end was not seen. */
	if (one->inside)
		leave_column(one, now);
	of = occupancy_at(slot);
	column = OTHERS_COLUMN;
	if (owner && owner < OWNER_OTHERS) {
		known = COMPUTED(owner_at(owner - 1));
		known->last_bytes = asked;
		known->last_op = asked >> 32;
		column = last_column(of, slot, known, owner);
	}
	one->since = now;
	one->bytes = asked;
	one->owner = owner;
	one->slot = slot;
	one->op = asked >> 32;
	one->word = slot * WORDS + column;
	COUNT_MORE(of->words[column_at(column)], 1 - (now << 16));
	one->inside = true;
}

/* --- Neighbours of a request -------------------------------------------------------------------------------------- */

/* For each slot of `bios`: the words at Q and D, and after the end the use of each column in between. */
struct watch {
	__u64 queued; /* of the request that made these reads */
	__u64 issued;
	__u64 wait[NEIGHBOUR_COLUMNS];
	__u64 device[NEIGHBOUR_COLUMNS];
	__u16 owners[NEIGHBOUR_COLUMNS];
	__u64 met; /* the results are complete */
};

#define WATCHES(name) \
	struct { \
		__uint(type, BPF_MAP_TYPE_ARRAY); \
		__uint(max_entries, 1); \
		__type(key, __u32); \
		__type(value, struct watch); \
	} name SEC(".maps")

WATCHES(watches);
/* For each slot of `ops`: the neighbours of the last request, if it had several. */
WATCHES(op_watches);

static __always_inline struct watch *watch_of(struct bio_state *state)
{
	__u32 place = state->place;

	return bpf_map_lookup_elem(&watches, &place);
}

/* Not copied in one piece: the words change meanwhile. */
#define LOOK_AT(words, into) \
	do { \
		const __u64 *__words = words; \
		__u64 *__into = into; \
\
		__into[0] = __words[0]; \
		__into[1] = __words[1]; \
		__into[2] = __words[2]; \
		__into[3] = __words[3]; \
		__into[4] = __words[4]; \
		__into[5] = __words[5]; \
		__into[6] = __words[6]; \
		__into[7] = __words[7]; \
		_Static_assert(NEIGHBOUR_COLUMNS == 8, "each is copied"); \
	} while (0)

static __always_inline bool has_waited(struct times *times)
{
	return times->issued - times->queued >= NEIGHBOUR_WAIT_NS;
}

/* At Q. */
static __always_inline void look_when_queued(struct bio_state *state)
{
	struct watch *watch = watch_of(state);

	if (!watch)
		return;
	watch->met = false;
	watch->queued = state->done.times.queued;
	LOOK_AT(occupancy_at(state->done.slot)->words, watch->wait);
}

/* At D, before it is in flight itself. Who had the device is only told of those that waited, and of records. */
static __always_inline void look_when_issued(struct request *rq, struct bio_state *state, bool trusted)
{
	__u64 asked = ASKED(FIELD(trusted, rq, __data_len), request_op(FIELD(trusted, rq, cmd_flags)));
	struct watch *watch;

	if (has_waited(&state->done.times) || keeps_records()) {
		watch = watch_of(state);
		if (!watch)
			return;
		watch->met = false;
		watch->issued = state->done.times.issued;
		LOOK_AT(occupancy_at(state->done.slot)->words, watch->device);
	}
	enter_device((__u64)rq, state->done.slot, state->owner, state->done.times.issued, asked);
}

/* Another bio represents the request; its own wait began elsewhere. */
static __noinline int succeed_watch(struct bio_state *next, struct bio_state *head)
{
	struct watch *watch, *from;

	if (!next || !head)
		return 0;
	watch = watch_of(next);
	from = watch_of(head);
	if (!watch || !from)
		return 0;
	watch->issued = from->issued;
	LOOK_AT(from->device, watch->device);
	return 0;
}

static __noinline int copy_watch(struct watch *watch, struct bio_state *from)
{
	struct watch *other;

	if (!watch || !from)
		return 0;
	other = watch_of(from);
	if (other)
		__builtin_memcpy(watch, other, sizeof(*watch));
	return 0;
}

static __always_inline void split_watch(struct bio_state *front, struct bio_state *rest)
{
	copy_watch(watch_of(front), rest);
}

static __always_inline void deliver_watch(struct op_state *op, struct bio_state *head)
{
	__u32 place = op->place;

	copy_watch(bpf_map_lookup_elem(&op_watches, &place), head);
}

/* Use of a column before it was given to its owner belongs to the others. */
static __always_inline __u64 part_of_owner(struct occupancy *of, __u32 column, __u64 had, __u64 begin, __u64 second,
					   __u64 end)
{
	__u64 since = of->since[column], part;

	if (since <= begin)
		return had;
	if (since >= end)
		return 0;
	part = had_between(of->first[column], since, second, end);
	return part < had ? part : had;
}

/* Process one column; that of the others goes first, as more is added to it. */
__noinline int meet_column(__u32 place, __u32 column)
{
	struct bio_state *state = bio_at(place);
	struct occupancy *of = occupancy_at(state->done.slot);
	struct times *times = &state->done.times;
	struct watch *watch = watch_of(state);
	__u64 wait, device, issue, now, part;
	__u32 owner;

	column = column_at(column);
	if (!watch)
		return 0;
	issue = watch->device[column];
	now = of->words[column];
	owner = of->owners[column];
	wait = had_between(watch->wait[column], times->queued, issue, times->issued);
	device = had_between(issue, times->issued, now, times->completed);
	if (column == OTHERS_COLUMN || !owner) {
		owner = OWNER_OTHERS;
	} else {
		part = part_of_owner(of, column, wait, times->queued, issue, times->issued);
		watch->wait[OTHERS_COLUMN] += wait - part;
		wait = part;
		part = part_of_owner(of, column, device, times->issued, now, times->completed);
		watch->device[OTHERS_COLUMN] += device - part;
		device = part;
	}
	/* Itself. */
	if (owner == state->owner)
		device = minus(device, times->completed - times->issued);
	watch->wait[column] = wait;
	watch->device[column] = device;
	watch->owners[column] = owner;
	return 0;
}

/* The use of each during the wait. */
__noinline int count_met(__u32 place)
{
	struct bio_state *state = bio_at(place);
	struct watch *watch = watch_of(state);
	__u32 own = state->owner, slot = state->done.slot, column;

	if (!watch)
		return 0;
	for (column = 0; column < NEIGHBOUR_COLUMNS; column++) {
		if (watch->wait[column])
			count_neighbour(neighbour_key(NEIGHBOUR_ROW_MET, own, watch->owners[column], slot),
					watch->wait[column], 0);
	}
	count_neighbour(neighbour_key(NEIGHBOUR_ROW_WAITED, own, 0, slot),
			state->done.times.issued - state->done.times.queued, 0);
	return 0;
}

__noinline int meet_columns(__u32 place)
{
	struct bio_state *state = bio_at(place);
	struct times *times = &state->done.times;
	struct watch *watch = watch_of(state);
	__u32 column;

	if (!watch)
		return 0;
	if (watch->queued != times->queued || watch->issued != times->issued || watch->met)
		return 0;
	for (column = NEIGHBOUR_COLUMNS; column--;)
		meet_column(place, column);
	watch->met = true;
	if (has_waited(times))
		count_met(place);
	return 0;
}

/* At C, before it has left the device. */
static __always_inline void meet_neighbours(struct bio_state *state)
{
	struct times *times = &state->done.times;

	if (has_waited(times) || (keeps_records() && times->completed - times->queued >= NEIGHBOUR_RECORD_NS))
		meet_columns(state->place);
}

/* The task that represents a cgroup or file: updated now and then, as many tasks share that owner. */
#define SEEN_EVERY 16

static __always_inline __u32 note_seen(__u32 number)
{
	enum owner_by by = owner_by;
	struct owner *owner;

	if (!neighbours || BY_NAME(by) || !number || number >= OWNER_OTHERS)
		return number;
	owner = owner_at(number - 1);
	if (!(owner->asked++ % SEEN_EVERY))
		current_comm(owner->seen);
	return number;
}

/* --- Requests that a filter leaves out ---------------------------------------------------------------------------- */

#define STRANGER_BITS 12
#define STRANGERS (1 << STRANGER_BITS)

#define STRANGER_PROBES 8

/*
 * A bio that is not traced, from Q to D. A merged one never gets to D, and stays until its slot is needed; a bio that
 * finds no free slot replaces another one, which then counts among the others.
 */
struct stranger {
	__u64 bio; /* 0: free */
	__u64 owner;
};

struct stranger strangers[STRANGERS] SEC(".bss.strangers");

static __always_inline struct stranger *stranger_at(__u32 place)
{
	asm volatile("%0 &= %1" : "+w"(place) : "i"(STRANGERS - 1));
	return &strangers[place];
}

/* The place of a key; with the key 0, a free place; otherwise STRANGERS. */
__noinline __u32 stranger_place(__u64 bio, __u64 key)
{
	__u32 home = home_of(bio, STRANGER_BITS), probe;

	for (probe = 0; probe < STRANGER_PROBES; probe++) {
		if (stranger_at(home + probe)->bio == key)
			return home + probe & (STRANGERS - 1);
	}
	return STRANGERS;
}

/* Its memory may have belonged to a merged one. */
__noinline int note_stranger(__u64 bio, __u32 owner)
{
	__u32 place = stranger_place(bio, bio);

	if (place >= STRANGERS)
		place = stranger_place(bio, 0);
	if (place >= STRANGERS || (!stranger_at(place)->bio && !take_place(&stranger_at(place)->bio, 0, bio)))
		place = home_of(bio, STRANGER_BITS);
	stranger_at(place)->owner = owner;
	barrier();
	stranger_at(place)->bio = bio;
	return 0;
}

__noinline __u32 forget_stranger(__u64 bio)
{
	__u32 place = stranger_place(bio, bio), owner;

	if (place >= STRANGERS)
		return OWNER_OTHERS;
	owner = stranger_at(place)->owner;
	barrier();
	stranger_at(place)->bio = 0;
	return owner;
}

static __noinline int issue_stranger(struct request *rq)
{
	__u32 dev = request_disk(rq, false);
	struct bio *bio = BPF_CORE_READ(rq, bio);
	struct device_match match = find_any_device(rq, dev, BPF_CORE_READ(rq, __sector), !bio);
	__u32 owner;

	if (!match.found)
		return 0;
	/* The flush machinery has none. */
	owner = bio ? forget_stranger((__u64)bio) : OWNER_OTHERS;
	enter_device(number_of((__u64)rq), match.slot, owner, bpf_ktime_get_ns(),
		     ASKED(BPF_CORE_READ(rq, __data_len), request_op(BPF_CORE_READ(rq, cmd_flags))));
	return 0;
}

#endif
