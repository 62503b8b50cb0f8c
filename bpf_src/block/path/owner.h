/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Rows by owner (--by): the owner of an operation or request, decided at its submission, and its counters.
 *
 * An owner has a number, its place in a table. Without a free place or row it counts in a row of all others: nothing is
 * lost. Python frees idle owners (wptrace/flows/io/parts/owners.py). All of it depends on a constant, so that the
 * verifier drops it if it is off.
 */
#ifndef WPT_PATH_OWNER_H
#define WPT_PATH_OWNER_H

#include "block/path/state.h"
#include "block/path/call.h"
#include "block/path/statement.h"
#include "lib/comm.h"

enum owner_by {
	OWNER_BY_NOBODY,
	OWNER_BY_PROCESS,
	OWNER_BY_THREAD,
	OWNER_BY_COMM,
	OWNER_BY_CGROUP,
	OWNER_BY_CALL,
	OWNER_BY_FILE,
	OWNER_BY_DIR,
	OWNER_BY_STATEMENT,
	OWNER_BY_UNIT,
};
EXPORT_ENUM(owner_by);
const volatile enum owner_by owner_by;

/* --- Owners ------------------------------------------------------------------------------------------------------- */

#define OWNER_BITS 12
#define OWNERS (1 << OWNER_BITS)
#define OWNER_PROBES 16

/* Numbers: 0 for none, otherwise the place plus one. */
CONSTANT(OWNER_OTHERS, OWNERS + 1);

struct owner_key {
	/* tgid << 32 | tid, the id of a cgroup, call_class << 32 | number, the number of an inode, the hash of a text */
	__u64 id;
	/* The device of that inode; the statement_row; the start time of a task, as its id may be reused. */
	__u64 more;
	__u64 comm[2];
};

enum owner_known {
	OWNER_UNKNOWN,
	OWNER_KNOWN, /* the key is there */
	OWNER_BEING_NAMED,
	OWNER_NAMED, /* and the path of a file or a directory, or the text of a statement or unit */
	OWNER_BEING_DESCRIBED,
	OWNER_DESCRIBED, /* and whose statement it is, as far as that can be known */
};

/* How often whose statement it is may be looked for. A server reads catalogues before a statement has a query id. */
#define ORIGIN_TRIES 64

struct owner {
	__u64 taken; /* the hash of the owner, always odd; 0: free. So few owners have no collisions */
	__u64 known; /* owner_known */
	struct owner_key key;
	__u64 asked; /* with --neighbours: how often */
	__u64 seen[2]; /* the name of one of its recent tasks */
	__u32 last_bytes; /* of the request that was issued last, and its block_op */
	__u32 last_op;
	__u32 column; /* with --neighbours: the last column that it had, on any device */
	__u32 tries; /* of a statement: how often it was looked for whose it is */
};

const struct owner *export_owner __attribute__((unused));

struct owner owners[OWNERS] SEC(".bss.owners");

static __always_inline struct owner *owner_at(__u32 place)
{
	asm volatile("%0 &= %1" : "+w"(place) : "i"(OWNERS - 1));
	return &owners[place];
}

/*
 * Reads the kind of owner once: each read takes two instructions, even if the verifier knows the value. Files and
 * statements take more code than all others together, so the object without options lacks them, unless it is for such ROWS.
 */
#if defined(PLAIN) && !defined(ROWS)
#define BY_FILE(by) false
#define BY_STATEMENT(by) false
#else
#define BY_FILE(by) ((by) == OWNER_BY_FILE || (by) == OWNER_BY_DIR)
#define BY_STATEMENT(by) ((by) >= OWNER_BY_STATEMENT) /* or by unit */
#endif
#define BY_NAME(by) ((by) == OWNER_BY_PROCESS || (by) == OWNER_BY_THREAD || (by) == OWNER_BY_COMM || BY_STATEMENT(by))

static __always_inline __u64 id_hash(__u64 id)
{
	return id * 0x9e3779b97f4a7c15ULL;
}

/* The parts of such keys. */
static __always_inline __u64 owner_hash(struct owner_key *key, enum owner_by by)
{
	__u64 hash = id_hash(key->id);

	if (BY_FILE(by))
		hash = (hash ^ hash >> 32 ^ key->more) * 0xff51afd7ed558ccdULL;
	if (BY_NAME(by)) {
		hash = (hash ^ hash >> 32 ^ key->comm[0]) * 0xc4ceb9fe1a85ec53ULL;
		hash = (hash ^ hash >> 32 ^ key->comm[1] ^ key->more) * 0x9e3779b97f4a7c15ULL;
	}
	return hash | 1;
}

__noinline __u32 claim_owner(__u64 hash)
{
	__u32 home = hash >> (64 - OWNER_BITS), probe;

	/* Python frees idle ones, so an entry may follow a free place. */
	for (probe = 0; probe < OWNER_PROBES; probe++) {
		if (owner_at(home + probe)->taken == hash)
			return home + probe & (OWNERS - 1);
	}
	for (probe = 0; probe < OWNER_PROBES; probe++) {
		struct owner *owner = owner_at(home + probe);

		if (owner->taken == hash || (!owner->taken && take_place(&owner->taken, 0, hash)))
			return home + probe & (OWNERS - 1);
	}
	return OWNERS;
}

static __always_inline __u32 owner_number(struct owner_key *key, enum owner_by by)
{
	__u64 hash = owner_hash(key, by);
	__u32 place = hash >> (64 - OWNER_BITS);
	struct owner *owner;

	/* The task that took the place fills it in. */
	if (owner_at(place)->taken == hash)
		return place + 1;
	place = claim_owner(hash);
	if (place >= OWNERS)
		return OWNER_OTHERS;
	owner = owner_at(place);
	if (!owner->known) {
		owner->key = *key;
		barrier();
		owner->known = OWNER_KNOWN;
	}
	return place + 1;
}

/* A process has the name of its first thread, which may not be the current one. */
static __always_inline void leader_comm(struct owner_key *key, __u64 ids)
{
	struct task_struct *task;

	if (ids >> 32 == (__u32)ids) {
		current_comm(key->comm);
		return;
	}
	task = (void *)bpf_get_current_task();
	task = BPF_CORE_READ(task, group_leader);
	bpf_probe_read_kernel_str(key->comm, sizeof(key->comm), task->comm);
}

/* Of the current task or its process, in milliseconds. */
static __always_inline __u32 started(enum owner_by by)
{
	struct task_struct *task;
	__u64 ns;

	if (has_typed_task()) {
		task = bpf_get_current_task_btf();
		if (by == OWNER_BY_PROCESS)
			task = task->group_leader;
		ns = task->start_time;
	} else {
		task = (void *)bpf_get_current_task();
		if (by == OWNER_BY_PROCESS)
			task = BPF_CORE_READ(task, group_leader);
		ns = BPF_CORE_READ(task, start_time);
	}
	return ns >> 20;
}

/* What is to be known of a statement once. A reader that finds the owner named must not find half of a text. */
static __always_inline void know_statement(struct owner *owner, __u32 place, struct statement *statement)
{
	bool described, is_statement = statement->row == STATEMENT_ROW_STATEMENT;

	if (owner->known == OWNER_KNOWN && take_place(&owner->known, OWNER_KNOWN, OWNER_BEING_NAMED)) {
		owner->tries = 0;
		forget_origin(place);
		/* The text may be gone already. */
		if (statement->text)
			keep_text(place, statement->text);
		barrier();
		owner->known = OWNER_NAMED;
	}
	if (owner->known == OWNER_NAMED && take_place(&owner->known, OWNER_NAMED, OWNER_BEING_DESCRIBED)) {
		described = !statement->code || owner_by != OWNER_BY_STATEMENT;
		if (!described)
			described = keep_origin(place, statement->server, statement->code, statement->submitter,
						is_statement);
		described |= !is_statement || ++owner->tries >= ORIGIN_TRIES;
		barrier();
		owner->known = described ? OWNER_DESCRIBED : OWNER_NAMED;
	}
}

static __always_inline __u32 owner_by_statement(struct owner_key *key, struct statement *statement)
{
	__u32 number = owner_number(key, OWNER_BY_STATEMENT);
	struct owner *owner;

	if (number == OWNER_OTHERS)
		return number;
	owner = owner_at(number - 1);
	if (owner->known != OWNER_DESCRIBED)
		know_statement(owner, number - 1, statement);
	return number;
}

/* For a record. Numbers of owners are reused, so it has the text's hash. */
static __always_inline __u64 statement_of_owner(__u32 number)
{
	struct owner *owner;

	if (!number)
		return STATEMENT_ROW_NONE;
	if (number == OWNER_OTHERS)
		return STATEMENT_ROW_OTHERS;
	owner = owner_at(number - 1);
	return owner->key.id >> STATEMENT_ROW_BITS << STATEMENT_ROW_BITS | owner->key.more;
}

/*
 * Of each slot of `ops`: the process of the operation that had a statement there last. PostgreSQL writes each statement
 * that begins and ends into the process's row of pg_stat_activity, with the time in microseconds: while that is the same,
 * so is the statement.
 */
struct last_statement {
	__u64 started; /* the task, */
	__u64 memory; /* and since it executes this program */
	__u64 entry; /* its row; 0: it has none that can be checked */
	__u64 reported; /* then; 0: the server does not track activities */
	__u64 taken; /* of the owner: Python frees idle ones, and others get their numbers */
	__u64 number; /* of the owner; 0: not known */
};

#if !defined(PLAIN) || defined(ROWS)
struct last_statement last_statements[OPS] SEC(".bss.last_statements");

static __always_inline struct last_statement *last_statement_at(__u32 place)
{
	asm volatile("%0 &= %1" : "+w"(place) : "i"(OPS - 1));
	return &last_statements[place];
}

/* Rows of other releases may have other members. */
static __noinline bool entry_is_of(__u64 entry, struct server *server, __u64 code)
{
	return user_number(entry + PG_ENTRY_PID) == user_number(code + server->pid) &&
	       user_number(entry + PG_ENTRY_DATABASE) == user_number(code + server->database);
}

static __always_inline void remember_statement(struct last_statement *last, struct statement *statement, __u32 number)
{
	struct server *server = &servers[statement->server & (SERVERS - 1)];
	struct task_struct *task = bpf_get_current_task_btf();
	struct owner *owner = owner_at(number - 1);

	if (last->started != task->start_time || last->memory != (__u64)task->mm) {
		last->started = task->start_time;
		last->memory = (__u64)task->mm;
		last->entry = server->query_id ? user_pointer(statement->code + server->entry) : 0;
		if (!entry_is_of(last->entry, server, statement->code))
			last->entry = 0;
		last->reported = user_pointer(last->entry + PG_ENTRY_REPORTED);
	}
	last->taken = owner->taken;
	last->number = last->reported && owner->known == OWNER_DESCRIBED ? number : 0;
}
#endif

/* The current task's unit of work. With the place of its operation, it is remembered. */
__noinline __u32 owner_of_statement(__u32 place)
{
	struct statement statement = {};
	struct owner_key key = {};
	__u32 number;

	if (!BY_STATEMENT(owner_by))
		return 0;
	statement_of_task(&statement, key.comm, owner_by == OWNER_BY_UNIT);
	key.id = statement.hash;
	key.more = statement.row;
	number = owner_by_statement(&key, &statement);
#if !defined(PLAIN) || defined(ROWS)
	if (has_typed_task() && place < OPS && statement.row == STATEMENT_ROW_STATEMENT && !statement.submitter &&
	    number != OWNER_OTHERS)
		remember_statement(last_statement_at(place), &statement, number);
#endif
	return number;
}

/*
 * The current task, or its cgroup or call. Not inlined: the programs have it several times, and loading takes longer the
 * larger they are.
 */
static __noinline __u32 owner_of_task(void)
{
	enum owner_by by = owner_by;
	struct owner_key key = {};
	__u64 ids;

	if (by == OWNER_BY_CGROUP) {
		key.id = bpf_get_current_cgroup_id();
	} else if (by == OWNER_BY_CALL) {
		key.id = call_of_task();
	} else if (by == OWNER_BY_PROCESS) {
		ids = bpf_get_current_pid_tgid();
		key.id = ids >> 32 << 32;
		key.more = started(by);
		leader_comm(&key, ids);
	} else {
		if (by == OWNER_BY_THREAD) {
			key.id = bpf_get_current_pid_tgid();
			key.more = started(by);
		}
		current_comm(key.comm);
	}
	return owner_number(&key, by);
}

/* The current task, or what it belongs to. Inlined: all frames of a chain of calls have 512 bytes of stack together. */
static __always_inline __u32 owner_of_current(void)
{
	return BY_STATEMENT(owner_by) ? owner_of_statement(OPS) : owner_of_task();
}

/* Of each slot of `ops`: the process of the operation that had an owner there last, and that owner. */
struct last_owner {
	__u64 started;
	__u64 comm[2]; /* as they lie there */
	__u64 taken; /* of the owner: Python frees idle ones, and others get their numbers */
	__s32 tgid;
	__u32 number; /* 0: none yet */
};

struct last_owner last_owners[OPS] SEC(".bss.last_owners");

/* Usually the process of the task's previous operation, with the same name: then there is nothing to hash. */
static __always_inline __u32 owner_of_process(__u32 place)
{
	struct task_struct *leader;
	struct last_owner *last;
	const __u64 *comm;
	__u32 number;

	if (!has_typed_task())
		return owner_of_current();
	asm volatile("%0 &= %1" : "+w"(place) : "i"(OPS - 1));
	last = COMPUTED(&last_owners[place]);
	leader = bpf_get_current_task_btf()->group_leader;
	comm = (void *)__builtin_preserve_access_index(&leader->comm);
	number = last->number;
	if (number && last->started == leader->start_time && last->tgid == leader->pid && last->comm[0] == comm[0] &&
	    last->comm[1] == comm[1] && last->taken == owner_at(number - 1)->taken)
		return number;
	last->number = 0;
	number = owner_of_current();
	if (number == OWNER_OTHERS)
		return number;
	last->started = leader->start_time;
	last->tgid = leader->pid;
	last->comm[0] = comm[0];
	last->comm[1] = comm[1];
	last->taken = owner_at(number - 1)->taken;
	last->number = number;
	return number;
}

#if !defined(PLAIN) || defined(ROWS)
/* Usually the statement of the task's previous operation: then its text is not read. */
static __always_inline __u32 owner_of_same_statement(__u32 place)
{
	struct last_statement *last = COMPUTED(last_statement_at(place));
	struct task_struct *task;
	__u64 reported;

	if (!has_typed_task())
		return owner_of_statement(OPS);
	task = bpf_get_current_task_btf();
	if (last->started == task->start_time && last->memory == (__u64)task->mm && last->entry) {
		reported = user_pointer(last->entry + PG_ENTRY_REPORTED);
		if (reported == last->reported && last->number && owner_at(last->number - 1)->taken == last->taken)
			return last->number;
		last->reported = reported;
		last->number = 0;
	}
	return owner_of_statement(place);
}
#else
#define owner_of_same_statement(place) 0
#endif

static __always_inline __u32 owner_of_cgroup(void)
{
	__u64 hash = id_hash(bpf_get_current_cgroup_id()) | 1;
	__u32 place = hash >> (64 - OWNER_BITS);

	return owner_at(place)->taken == hash ? place + 1 : owner_of_current();
}

static __noinline __u32 owner_of_class(enum call_class class)
{
	struct owner_key key = {.id = CALL_OF(class, 0)};

	return owner_number(&key, owner_by);
}

static __always_inline void disown(struct bio_state *state)
{
	if (owner_by)
		state->owner = 0;
}

static __always_inline void inherit(struct bio_state *state, struct bio_state *from)
{
	if (owner_by)
		state->owner = from->owner;
}

/* --- Rows --------------------------------------------------------------------------------------------------------- */

/* The maximum; Python reduces it if there are many CPUs. */
#define OWNER_ROWS 4096
#define ROW_PROBES 8
/* A power of two less 1. */
const volatile __u32 owner_row_mask;

/* Kinds of rows: op_kind, the same for page-cache hits, block_op. */
CONSTANT(OWNED_HIT, 8);
CONSTANT(OWNED_KINDS, 16);

struct owned_op_cell {
	__u64 finished;
	__u64 failed;
	__u64 bytes;
	struct hist stages[1];
};

enum owned_request_stage {
	OWNED_REQUEST_STAGE_UNDER_WAY, /* D to C: with the device or its driver */
	OWNED_REQUEST_STAGE_TOTAL,
	OWNED_REQUEST_STAGES,
};
EXPORT_ENUM(owned_request_stage);

struct owned_request_cell {
	__u64 finished;
	__u64 failed;
	__u64 bytes;
	__u64 untimed; /* of the finished: only counted */
	struct hist stages[OWNED_REQUEST_STAGES];
};

/* First a cell for each row, then one for all others of each device and kind of row. */
CELLS(owned_op_cells, owned_op_cell);
CELLS(owned_request_cells, owned_request_cell);

/*
 * Keys of rows: owner << 32 | slot << 16 | kind << 8 | 1; 0: free. A row has a cell of operations and one of requests: an
 * operation and its only request share a row.
 */
__u64 owned_rows[OWNER_ROWS] SEC(".bss.owned_rows");

static __always_inline __u32 owned_place(__u32 place)
{
	asm volatile("%0 &= %1" : "+w"(place) : "i"(OWNER_ROWS - 1));
	return place;
}

__noinline __u32 claim_owned_row(__u64 key, __u32 home)
{
	__u32 probe;

	for (probe = 0; probe < ROW_PROBES; probe++) {
		__u32 row = home + probe & owner_row_mask;

		if (owned_rows[owned_place(row)] == key)
			return row;
	}
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

/* NULL where nobody asked for it. */
static __always_inline struct owned_op_cell *owned_op(struct op_state *op, __u32 what)
{
	return owner_by ? cell_at(&owned_op_cells, owned_row(op->owner, op->slot, what)) : NULL;
}

/* Behind its times. */
static __always_inline void count_request_result(struct owned_request_cell *cell, struct done *done)
{
	COUNT_MORE(cell->bytes, done->bytes);
	if (done->error)
		COUNT(cell->failed);
	COUNT(cell->finished);
}

/* The flush machinery's own request has none. */
static __always_inline __u32 owner_of_request(struct bio_state *state)
{
	return state->op_kind == BLOCK_OP_FLUSH ? 0 : state->owner;
}

static __noinline int count_owned_request(struct bio_state *state)
{
	struct owned_request_cell *cell;
	struct times *times;

	if (!state)
		return 0;
	cell = cell_at(&owned_request_cells, owned_row(owner_of_request(state), state->done.slot, state->op_kind));
	if (!cell)
		return 0;
	if (state->untimed) {
		COUNT(cell->untimed);
	} else {
		times = &state->done.times;
		if (!(state->done.events.below & EVENT_UNDIVIDED))
			add(&cell->stages[OWNED_REQUEST_STAGE_UNDER_WAY], times->completed - times->issued);
		hist_add_counted(&cell->stages[OWNED_REQUEST_STAGE_TOTAL], times->completed - times->queued);
	}
	count_request_result(cell, &state->done);
	return 0;
}

#endif
