/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Rows by owner (--by): whose an operation or request is, decided when it is submitted, and what is counted of it.
 *
 * An owner has a number, its place in a table. Whoever finds no place there, or no row, counts in a row of all others:
 * nothing is counted nowhere. All of it is behind a constant, so that the verifier drops it unless it is asked for.
 */
#ifndef WPT_PATH_OWNER_H
#define WPT_PATH_OWNER_H

#include "block/path/state.h"
#include "block/path/call.h"

enum owner_by {
	OWNER_BY_NOBODY,
	OWNER_BY_PROCESS,
	OWNER_BY_THREAD,
	OWNER_BY_COMM,
	OWNER_BY_CGROUP,
	OWNER_BY_CALL,
	OWNER_BY_FILE,
	OWNER_BY_DIR,
};
EXPORT_ENUM(owner_by);
const volatile enum owner_by owner_by;

#define BY_FILE (owner_by >= OWNER_BY_FILE)

/* --- Owners ------------------------------------------------------------------------------------------------------- */

#define OWNER_BITS 12
#define OWNERS (1 << OWNER_BITS)
#define OWNER_PROBES 16

/* Numbers: 0 is nobody's, the others are places and one more. */
CONSTANT(OWNER_OTHERS, OWNERS + 1);

struct owner_key {
	__u64 id; /* tgid << 32 | tid, the id of a cgroup, call_class << 32 | number, the number of an inode */
	__u64 more; /* the device of that inode */
	__u64 comm[2];
};

struct owner {
	__u64 taken; /* by what has this hash; 0: free. Of so few owners no two have the same one */
	__u64 known; /* the key is there */
	struct owner_key key;
	__u64 asked; /* with --neighbours: how often */
	__u64 seen[2]; /* the name of one of its tasks, of late */
	__u32 last_bytes; /* of the request that was issued last, and its block_op */
	__u32 last_op;
};

const struct owner *export_owner __attribute__((unused));

struct owner owners[OWNERS] SEC(".bss.owners");

/* Of each slot of `ops` and `bios`: the number. */
__u32 op_owners[OPS] SEC(".bss.op_owners");
__u32 bio_owners[BIOS] SEC(".bss.bio_owners");

static __always_inline struct owner *owner_at(__u32 place)
{
	asm volatile("%0 &= %1" : "+r"(place) : "i"(OWNERS - 1));
	return &owners[place];
}

static __always_inline __u32 *op_owner(__u32 place)
{
	asm volatile("%0 &= %1" : "+r"(place) : "i"(OPS - 1));
	return &op_owners[place];
}

static __always_inline __u32 *bio_owner(struct bio_state *state)
{
	__u32 place = state->place;

	asm volatile("%0 &= %1" : "+r"(place) : "i"(BIOS - 1));
	return &bio_owners[place];
}

#define OWNED_BY_NAME (owner_by < OWNER_BY_CGROUP)

/* Of what such keys have in them. */
static __always_inline __u64 owner_hash(struct owner_key *key)
{
	__u64 hash = key->id * 0x9e3779b97f4a7c15ULL;

	if (BY_FILE)
		hash = (hash ^ hash >> 32 ^ key->more) * 0xff51afd7ed558ccdULL;
	if (OWNED_BY_NAME) {
		hash = (hash ^ hash >> 32 ^ key->comm[0]) * 0xc4ceb9fe1a85ec53ULL;
		hash = (hash ^ hash >> 32 ^ key->comm[1]) * 0x9e3779b97f4a7c15ULL;
	}
	return hash | 1;
}

__noinline __u32 claim_owner(__u64 hash)
{
	__u32 home = hash >> (64 - OWNER_BITS), probe;

	/* None is ever given back, so what has a place stands before the first one that is free. */
	for (probe = 0; probe < OWNER_PROBES; probe++) {
		struct owner *owner = owner_at(home + probe);

		if (owner->taken == hash || (!owner->taken && take_place(&owner->taken, 0, hash)))
			return home + probe & (OWNERS - 1);
	}
	return OWNERS;
}

static __always_inline __u32 owner_number(struct owner_key *key)
{
	__u64 hash = owner_hash(key);
	__u32 place = hash >> (64 - OWNER_BITS);
	struct owner *owner = owner_at(place);

	if (owner->taken != hash) {
		place = claim_owner(hash);
		if (place >= OWNERS)
			return OWNER_OTHERS;
		owner = owner_at(place);
	}
	if (!owner->known) {
		owner->key = *key;
		barrier();
		owner->known = true;
	}
	return place + 1;
}

/* Up to the first byte of 0: behind it, kernels before 5.17 may have what was there before. */
static __always_inline __u64 up_to_end(__u64 letters, bool *ended)
{
	__u64 end = (letters - 0x0101010101010101ULL) & ~letters & 0x8080808080808080ULL;

	*ended = end;
	return end ? letters & ((end & -end) - 1) >> 7 : letters;
}

/*
 * Since commit 3ca1032ab7ab ("bpf: Implement get_current_task_btf and RET_PTR_TO_BTF_ID", v5.11): a task whose fields are
 * read as they lie there.
 */
enum bpf_func_id___typed {
	BPF_FUNC_get_current_task_btf___typed = 158,
};

static __always_inline bool has_typed_task(void)
{
	return bpf_core_enum_value_exists(enum bpf_func_id___typed, BPF_FUNC_get_current_task_btf___typed);
}

/* Without a copy where there is a way: the helper's takes longer than all that is done with it. */
static __always_inline void current_comm(struct owner_key *key)
{
	struct task_struct *task;
	__u64 *comm;
	bool ended;

	if (!has_typed_task()) {
		bpf_get_current_comm(key->comm, sizeof(key->comm));
		return;
	}
	task = bpf_get_current_task_btf();
	comm = (void *)__builtin_preserve_access_index(&task->comm);
	key->comm[0] = up_to_end(comm[0], &ended);
	if (!ended)
		key->comm[1] = up_to_end(comm[1], &ended);
}

/* A process has the name of its first thread, which may not be the one that asks. */
static __always_inline void leader_comm(struct owner_key *key, __u64 ids)
{
	struct task_struct *task = (void *)bpf_get_current_task();

	if (ids >> 32 == (__u32)ids) {
		current_comm(key);
		return;
	}
	task = BPF_CORE_READ(task, group_leader);
	bpf_probe_read_kernel_str(key->comm, sizeof(key->comm), task->comm);
}

/* The current task, or what it belongs to. */
static __noinline __u32 owner_of_task(void)
{
	struct owner_key key = {};
	__u64 ids;

	if (owner_by == OWNER_BY_CGROUP) {
		key.id = bpf_get_current_cgroup_id();
	} else if (owner_by == OWNER_BY_CALL) {
		key.id = call_of_task();
	} else if (owner_by == OWNER_BY_PROCESS) {
		ids = bpf_get_current_pid_tgid();
		key.id = ids >> 32 << 32;
		leader_comm(&key, ids);
	} else {
		if (owner_by == OWNER_BY_THREAD)
			key.id = bpf_get_current_pid_tgid();
		current_comm(&key);
	}
	return owner_number(&key);
}

static __noinline __u32 owner_of_class(enum call_class class)
{
	struct owner_key key = {.id = CALL_OF(class, 0)};

	return owner_number(&key);
}

static __always_inline void disown(struct bio_state *state)
{
	if (owner_by)
		*bio_owner(state) = 0;
}

static __always_inline void inherit(struct bio_state *state, struct bio_state *from)
{
	if (owner_by)
		*bio_owner(state) = *bio_owner(from);
}

/* --- Rows --------------------------------------------------------------------------------------------------------- */

/* The most; Python makes it fewer where there are many CPUs. */
#define OWNER_ROWS 4096
#define ROW_PROBES 8
/* A power of two less 1. */
const volatile __u32 owner_row_mask;

/* What a row is of: op_kind, the same of what the page cache served, block_op. */
CONSTANT(OWNED_HIT, 8);
CONSTANT(OWNED_KINDS, 16);

struct owned_op_cell {
	__u64 finished;
	__u64 failed;
	__u64 bytes;
	struct hist stages[1];
};

enum owned_request_stage {
	OWNED_REQUEST_STAGE_UNDER_WAY, /* D to C: the device, or its driver, has it */
	OWNED_REQUEST_STAGE_TOTAL,
	OWNED_REQUEST_STAGES,
};
EXPORT_ENUM(owned_request_stage);

struct owned_request_cell {
	__u64 finished;
	__u64 failed;
	__u64 bytes;
	__u64 untimed; /* of the finished: in no distribution */
	struct hist stages[OWNED_REQUEST_STAGES];
};

/* First a cell for each row, then one of the others for each device and what a row is of. */
CELLS(owned_op_cells, owned_op_cell);
CELLS(owned_request_cells, owned_request_cell);

/*
 * What has a row: owner << 32 | slot << 16 | what << 8 | 1; 0: free. One has a cell of operations and one of requests: an
 * operation and its only request are of the same row.
 */
__u64 owned_rows[OWNER_ROWS] SEC(".bss.owned_rows");

static __always_inline __u32 owned_place(__u32 place)
{
	asm volatile("%0 &= %1" : "+r"(place) : "i"(OWNER_ROWS - 1));
	return place;
}

__noinline __u32 claim_owned_row(__u64 key, __u32 home)
{
	__u32 probe;

	for (probe = 0; probe < ROW_PROBES; probe++) {
		__u32 row = home + probe & owner_row_mask;
		__u64 *at = &owned_rows[owned_place(row)];

		if (*at == key || (!*at && take_place(at, 0, key)))
			return row;
	}
	return OWNER_ROWS;
}

static __always_inline __u32 owned_row(__u32 owner, __u32 slot, __u32 what)
{
	__u64 key = (__u64)owner << 32 | slot << 16 | what << 8 | 1;
	__u32 row = (key * 0x9e3779b97f4a7c15ULL >> 40) & owner_row_mask;

	if (owner != OWNER_OTHERS) {
		if (owned_rows[owned_place(row)] == key)
			return row;
		row = claim_owned_row(key, row);
		if (row < OWNER_ROWS)
			return row;
	}
	COUNT(loss[PATH_CAUSE_OWNER_FULL]);
	return owner_row_mask + 1 + slot * OWNED_KINDS + what;
}

/* --- Counting ----------------------------------------------------------------------------------------------------- */

static __always_inline void add_owned_request(__u32 row, struct bio_state *state)
{
	struct owned_request_cell *cell = cell_at(&owned_request_cells, row);
	struct times *times;

	if (!cell)
		return;
	COUNT_MORE(cell->bytes, state->done.bytes);
	if (state->done.error)
		COUNT(cell->failed);
	if (state->untimed) {
		COUNT(cell->untimed);
	} else {
		times = &state->done.times;
		add(&cell->stages[OWNED_REQUEST_STAGE_UNDER_WAY], times->completed - times->issued);
		hist_add_counted(&cell->stages[OWNED_REQUEST_STAGE_TOTAL], times->completed - times->queued);
	}
	COUNT(cell->finished);
}

static __always_inline void add_owned_op(__u32 row, __u64 took, __s64 result)
{
	struct owned_op_cell *cell = cell_at(&owned_op_cells, row);

	if (!cell)
		return;
	hist_add_counted(&cell->stages[0], took);
	if (result < 0)
		COUNT(cell->failed);
	else
		COUNT_MORE(cell->bytes, result);
	COUNT(cell->finished);
}

static __noinline int count_owned_request(struct bio_state *state)
{
	__u32 owner;

	if (!state)
		return 0;
	/* The flush machinery's own request has no owner. */
	owner = state->op_kind == BLOCK_OP_FLUSH ? 0 : *bio_owner(state);
	add_owned_request(owned_row(owner, state->done.slot, state->op_kind), state);
	return 0;
}

static __noinline int count_owned_op(struct op_state *op, __u32 slot, bool hit, __u64 end, __s64 result)
{
	__u32 row;

	if (!op)
		return 0;
	row = owned_row(*op_owner(op->place), slot, op->op_kind + (hit ? OWNED_HIT : 0));
	add_owned_op(row, minus(end, op->start_ns), result);
	return 0;
}

/* An operation and its only request, which is of the same owner and kind. */
static __noinline int count_owned_both(struct op_state *op, struct bio_state *state, __u64 end, __s64 result)
{
	__u32 row;

	if (!op || !state)
		return 0;
	row = owned_row(*op_owner(op->place), state->done.slot, op->op_kind);
	add_owned_request(row, state);
	add_owned_op(row, minus(end, op->start_ns), result);
	return 0;
}

#endif
