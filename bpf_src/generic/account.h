/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Counting: rows of labels, cells, losses, and records. Needs `object.h` first. */
#ifndef WPT_GENERIC_ACCOUNT_H
#define WPT_GENERIC_ACCOUNT_H

#define NEVER ~0ULL

enum generic_cause {
	GENERIC_CAUSE_STATE_FULL, /* at its begin */
	GENERIC_CAUSE_MOVED_FULL, /* when it was handed over */
	GENERIC_CAUSE_REPLACED, /* another one was handed over to its key */
	GENERIC_CAUSE_UNSEEN_END, /* its key began again */
	GENERIC_CAUSE_RESTARTED, /* the same, and the definition expects it */
	GENERIC_CAUSE_NO_CELL,
	GENERIC_CAUSE_UNMATCHED,
	GENERIC_CAUSE_ROWS_FULL,
	GENERIC_CAUSE_RING_FULL,
	GENERIC_CAUSE_RATE_LIMITED,
	GENERIC_CAUSE_UNRECORDED, /* an interrupt came while its record was begun */
	GENERIC_CAUSES,
};
EXPORT_ENUM(generic_cause);

__u64 loss[GENERIC_CAUSES];
__u64 dropped[OUTCOMES]; /* no losses: points of the role `drop` took them out */

/* --- Settings ----------------------------------------------------------------------------------------------------- */

const volatile __u32 label_words = LABELS;
const volatile __u32 row_count = 64; /* besides the one of the rest */

__u64 slow_ns = NEVER; /* those that took at least this long are reported one by one */
__u32 sample; /* one in so many is reported as well; 0: none */
__u32 time_one_in; /* of so many one is timed, the others are counted alone; 0: all are timed */

/* --- Rows --------------------------------------------------------------------------------------------------------- */

struct row {
	__u64 labels[LABELS];
	__u64 used;
};

/* By number; 0 is that of the rest, or the only one. Written once, before anybody finds it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65);
	__type(key, __u32);
	__type(value, struct row);
} rows SEC(".maps");

struct labels {
	__u64 words[LABELS];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, struct labels);
	__type(value, __u32);
} row_numbers SEC(".maps");

/* Numbers in use. Every kernel can insert one atomically. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u32);
} taken SEC(".maps");

__u32 next_row = 1; /* the least that may be free */
#define ROW_TRIES 8

static __noinline __u32 row_of(struct object *object)
{
	__u32 number = 0, probe, *found;
	struct row *row;

	if (!object)
		return 0;
	found = bpf_map_lookup_elem(&row_numbers, &object->life.labels);
	if (found)
		return *found;
	for (probe = 0; probe < ROW_TRIES; probe++) {
		__u32 next = *(volatile __u32 *)&next_row;

		/* All numbers below it are taken, and so are those that were tried. */
		number = number < next ? next : number + 1;
		if (number > row_count)
			return 0;
		if (bpf_map_update_elem(&taken, &number, &number, BPF_NOEXIST))
			continue;
		/* Not set: a CPU that was held up in between would take it back to a number long in use. */
		COUNT(next_row);
		row = bpf_map_lookup_elem(&rows, &number);
		if (!row)
			return 0;
		__builtin_memcpy(row->labels, object->life.labels, sizeof(row->labels));
		barrier();
		row->used = 1;
		if (!bpf_map_update_elem(&row_numbers, &object->life.labels, &number, BPF_NOEXIST))
			return number;
		/* Another CPU was faster, and this number stays without anything in it; or there is no room. */
		row->used = 0;
		found = bpf_map_lookup_elem(&row_numbers, &object->life.labels);
		return found ? *found : 0;
	}
	return 0;
}

static __always_inline bool same_labels(struct row *row, struct life *life)
{
	__u32 word;

#pragma unroll
	for (word = 0; word < LABELS; word++) {
		if (word < label_words && row->labels[word] != life->labels[word])
			return false;
	}
	return true;
}

/* A slot is mostly used again by what has the same labels. */
static __always_inline __u32 find_row(struct object *object)
{
	__u32 number = object->row;
	struct row *row;

	if (number) {
		row = bpf_map_lookup_elem(&rows, &number);
		if (row && same_labels(row, &object->life))
			return number;
	}
	number = row_of(object);
	object->row = number;
	if (!number)
		COUNT(loss[GENERIC_CAUSE_ROWS_FULL]);
	return number;
}

/* --- Cells -------------------------------------------------------------------------------------------------------- */

/* Counts are added atomically: what interrupts a program may count in the same cell. */
struct cell {
	__u64 finished;
	__u64 failed;
	__u64 untimed; /* of the finished: counted alone */
	__u64 value;
	__u64 outcomes[OUTCOMES];
	struct hist stages[POINTS]; /* the total, and as many as there are: Python sets the size of the map */
};

const struct cell *export_cell __attribute__((unused));

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct cell));
} cells SEC(".maps");

static __always_inline __u64 minus(__u64 later, __u64 earlier)
{
	__s64 difference = later - earlier;

	/* Clocks of two CPUs may differ by some cycles. Else the compiler makes more of it than a test of the sign. */
	asm volatile("" : "+r"(difference));
	if (difference < 0)
		difference = 0;
	return difference;
}

/* --- What is reported one by one ---------------------------------------------------------------------------------- */

struct generic_record {
	__u64 end_ns;
	__u64 total_ns;
	__u64 key;
	__u64 value;
	__u64 labels[LABELS];
	__u64 spent[POINTS];
	__u32 seen; /* bits of points, as in struct state */
	__u32 outcome;
	__u32 failed;
	__u32 begin_cpu;
	__u32 end_cpu;
	__u32 tgid;
	__u32 tid;
	__u32 unused;
	char comm[NAME_BYTES];
};

const struct generic_record *export_generic_record __attribute__((unused));

RING(records);

static __noinline int emit_record(struct object *object, __u64 now, __u64 total, __u32 outcome, __u32 failed)
{
	struct generic_record *record;
	struct life *life;
	__u32 stage;

	if (!object)
		return 0;
	if (!within_limit(now)) {
		COUNT(loss[GENERIC_CAUSE_RATE_LIMITED]);
		return 0;
	}
	record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);
	if (!record) {
		COUNT(loss[GENERIC_CAUSE_RING_FULL]);
		return 0;
	}
	life = &object->life;
	record->end_ns = now;
	record->total_ns = total;
	record->key = object->key;
	record->value = life->value;
	__builtin_memcpy(record->labels, life->labels, sizeof(record->labels));
#pragma unroll
	for (stage = 0; stage < POINTS; stage++)
		record->spent[stage] = minus(life->spent[stage], 0);
	record->seen = life->state.seen;
	record->outcome = outcome;
	record->failed = failed;
	record->begin_cpu = life->cpu;
	record->end_cpu = bpf_get_smp_processor_id();
	record->tgid = life->tgid;
	record->tid = life->tid;
	record->unused = 0;
	__builtin_memcpy(record->comm, life->comm, sizeof(record->comm));
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
	return 0;
}

/* --- The flight recorder ------------------------------------------------------------------------------------------ */

struct recorded_object {
	__u64 end_ns;
	__u64 total_ns;
	__u64 key;
	__u64 value;
	__u32 number;
	__u32 row;
	__u32 tgid;
	__u32 tid;
	__u16 begin_cpu;
	__u16 end_cpu;
	__u8 seen; /* as in struct generic_record */
	__u8 outcome;
	__u8 failed;
	__u8 unused;
	char comm[NAME_BYTES];
	__u64 spent[POINTS - 1]; /* as many as there are: Python sets the size of the map */
};

const struct recorded_object *export_recorded_object __attribute__((unused));

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct recorded_object));
} recorded SEC(".maps");

#define RECORD_SPENT(stage) \
	if (!LACKS(stage)) \
		record->spent[stage] = minus(life->spent[stage], 0);

static __always_inline void record_object(struct object *object, __u32 row, __u64 now, __u64 total)
{
	struct life *life = &object->life;
	struct recorded_object *record;
	__u32 number;

	note_slow(total, now);
	record = claim_record(&recorded, &number, &loss[GENERIC_CAUSE_UNRECORDED]);
	if (!record)
		return;
	record->end_ns = now;
	record->total_ns = total;
	record->key = object->key;
	if (HAS(VALUED))
		record->value = life->value;
	record->row = row;
	record->tgid = life->tgid;
	record->tid = life->tid;
	record->begin_cpu = life->cpu;
	record->end_cpu = bpf_get_smp_processor_id();
	record->seen = life->state.seen;
	record->outcome = OUTCOME() & (OUTCOMES - 1);
	record->failed = HAS(FAILED) && ARG(failed);
	__builtin_memcpy(record->comm, life->comm, sizeof(record->comm));
	EACH_STAGE(RECORD_SPENT)
	publish_record(&record->number, number);
}

#endif
