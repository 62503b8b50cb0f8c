/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The reason of a sleep in an operation that none of its requests explains. When the task is switched in again, its
 * stack is still the one that it slept with. Python gives each stack a reason (wptrace/flows/io/wait_reasons.py).
 */
#ifndef WPT_PATH_WAITS_H
#define WPT_PATH_WAITS_H

#include "block/path/account.h"
#include "lib/arguments.h"
#include "lib/known_stack.h"

/* Shorter waits have no reason; what operations wait for in the dirty limit is always known. */
__u64 wait_ns = NEVER;

/* The kernel leaves out the functions of the scheduler and its locks, which are innermost. */
#define WAIT_FRAMES 16

struct wait_stack {
	__u64 key; /* of the frames; 0: free */
	__u64 frames[WAIT_FRAMES];
	__u16 crowded; /* another one belongs here, and had to take one of the next slots */
	bool known; /* the frames are there */
	__u8 generation; /* how often the place was given to another stack */
};

/*
 * In a number of 16 bits, which is 1 + the place and the generation: there are 63, as the last numbers mean something
 * else.
 */
#define WAIT_STACK_BITS 10
#define WAIT_STACK_PROBES 16
struct wait_stack wait_stacks[1 << WAIT_STACK_BITS] SEC(".bss.waits");

static __always_inline struct wait_stack *wait_stack_at(__u32 place)
{
	asm volatile("%0 &= %1" : "+w"(place) : "i"((1 << WAIT_STACK_BITS) - 1));
	return &wait_stacks[place];
}

PLAIN_TABLE(wait_stack, struct wait_stack, key, WAIT_STACK_BITS, WAIT_STACK_PROBES)

/* The stacks of its running task, sampled by ticks. */
struct op_work {
	__u16 stack; /* as that of a wait */
	__u16 stage; /* op_stage */
	__u32 ticks;
};

#define OP_WORKS 16

/* Of each slot of `ops`. */
struct op_waits {
	struct op_wait waits[OP_WAITS];
	struct op_work works[OP_WORKS];
	__u64 limit; /* of all of its waits in the dirty limit: wait_cell */
	__u64 rate;
	__u64 limit_now; /* of the one that its task is about to enter */
	__u64 rate_now;
};

struct op_waits op_waits[OPS] SEC(".bss.op_waits");

static __always_inline struct op_waits *waits_of(struct op_state *op)
{
	__u32 place = op->place;

	asm volatile("%0 &= %1" : "+w"(place) : "i"(OPS - 1));
	return &op_waits[place];
}

static __always_inline struct op_wait *wait_at(struct op_waits *waits, __u32 at)
{
	asm volatile("%0 &= %1" : "+w"(at) : "i"(OP_WAITS - 1));
	return &waits->waits[at];
}

static __always_inline struct op_work *work_at(struct op_waits *waits, __u32 at)
{
	asm volatile("%0 &= %1" : "+w"(at) : "i"(OP_WORKS - 1));
	return &waits->works[at];
}

/* Slot, op_kind, stage, owner and the number of a stack, packed into one. */
#define WAIT_ROWS 2048
#define WAIT_ROW_PROBES 16
__u64 wait_rows[WAIT_ROWS] SEC(".bss.wait_rows");

static __always_inline __u64 *wait_row_at(__u32 place)
{
	asm volatile("%0 &= %1" : "+w"(place) : "i"(WAIT_ROWS - 1));
	return &wait_rows[place];
}

/* One for all CPUs: waits are few. */
/* Waits of operations: one for each row, stage and stack. Figures of limits are sums over the waits. */
struct wait_cell {
	__u64 finished; /* operations */
	__u64 waits;
	__u64 limit; /* dirty pages that there may be */
	__u64 rate; /* pages that the task may make dirty in a second */
	struct hist stages[1];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WAIT_ROWS);
	__type(key, __u32);
	__type(value, struct wait_cell);
} wait_cells SEC(".maps");

/* In a stage: the row is for work. */
CONSTANT(WAIT_RUNS, 0x80);

/* --- A wait ------------------------------------------------------------------------------------------------------- */

/* Which of the kernel's functions wait for a journal, where they cannot be observed themselves; 0: they can. */
#define JOURNAL_FUNCTIONS 8
__u64 journal_begin[JOURNAL_FUNCTIONS];
__u64 journal_bytes[JOURNAL_FUNCTIONS];
bool journal_by_stack;

/* Global: its loop is verified once. */
__noinline bool is_in_journal(__u64 address)
{
	int number;

	for (number = 0; number < JOURNAL_FUNCTIONS; number++) {
		if (address - journal_begin[number] < journal_bytes[number])
			return true;
	}
	return false;
}

__noinline bool waits_for_journal(__u32 stack)
{
	struct wait_stack *found = wait_stack_at(stack);
	int frame;

	for (frame = 0; frame < WAIT_FRAMES; frame++) {
		if (is_in_journal(found->frames[frame]))
			return true;
	}
	return false;
}

#ifdef __TARGET_ARCH_arm64
struct thread_struct___sleeping {
	struct {
		unsigned long sp;
	} cpu_context;
} __attribute__((preserve_access_index));
#define SAVED_SP cpu_context.sp
#else
struct thread_struct___sleeping {
	unsigned long sp;
} __attribute__((preserve_access_index));
#define SAVED_SP sp
#endif

struct task_struct___sleeping {
	struct thread_struct___sleeping thread;
} __attribute__((preserve_access_index));

/* The end of the stack of a task that does not run. */
static __always_inline __u64 end_of_stack(struct task_struct *task)
{
	return ((struct task_struct___sleeping *)task)->thread.SAVED_SP;
}

/* The number of a stack by its key. */
static __always_inline __u32 number_of_stack(__u64 key, __u64 *frames)
{
	struct wait_stack *found;
	__u32 place;

	key ^= key >> 32;
	found = claim_wait_stack(key, &place);
	if (!found)
		return WAIT_OTHER;
	if (!found->known) {
		__builtin_memcpy(found->frames, frames, WAIT_FRAMES * sizeof(*frames));
		barrier();
		found->known = true;
	}
	return 1 + (place | (__u32)found->generation << WAIT_STACK_BITS);
}

#define WITH_FRAME(key, frame) (((key) ^ (frame)) * 0x9e3779b97f4a7c15ULL)

/* The number of the stack that a task sleeps with, by walking it; the frames are left in `new`. */
static __noinline __u32 walked_wait_stack(struct task_struct *task, struct learning *new)
{
	__u64 frames[WAIT_FRAMES] = {};
	__u64 key = 0;
	long size;
	int frame;

	if (!new)
		return WAIT_OTHER;
	size = bpf_get_task_stack(task, frames, sizeof(frames), 0);
	if (size <= 0)
		return WAIT_OTHER;
	new->depth = size / sizeof(__u64);
#pragma unroll
	for (frame = 0; frame < WAIT_FRAMES; frame++) {
		key = WITH_FRAME(key, frames[frame]);
		new->calls[frame] = frames[frame];
	}
	return number_of_stack(key, frames);
}

/* In place of its key (wptrace/flows/io/parts/waits.py): it is being removed, and the next walk finds another place. */
#define WAIT_STACK_GONE (1ULL << 63)

/* Whether its place has not been given to another one, nor is about to be. */
static __always_inline bool is_current(__u32 stack)
{
	struct wait_stack *found = wait_stack_at(stack - 1);

	return found->generation == (stack - 1) >> WAIT_STACK_BITS && found->key != WAIT_STACK_GONE;
}

/* The same, usually without walking it. Operations of a kind sleep in few places. */
static __noinline __u32 wait_stack_of(struct task_struct *task, __u32 hint)
{
	__u32 zero = 0, set_number = hint & (KNOWN_SETS - 1), way, id;
	struct learning *new = bpf_map_lookup_elem(&learning, &zero);
	struct known_set *set = bpf_map_lookup_elem(&known_stacks, &set_number);
	struct known_stack *known;
	bool current;

	if (!set || !new)
		return WAIT_OTHER;
	new->arguments = end_of_stack(task);
	barrier();
	way = find_known_stack(new->arguments, set_number);
	if (way < KNOWN_WAYS) {
		known = &set->ways[way];
		current = is_current(known->id);
		if (current && ++known->hits % KNOWN_CHECK)
			return known->id;
		id = walked_wait_stack(task, new);
		if (!current) {
			known->id = id;
		} else if (id != (__u32)known->id) {
			known->depth = 0;
			COUNT(mistaken_stacks);
		}
		return id;
	}
	id = walked_wait_stack(task, new);
	way = way_to_learn(set);
	if (id == WAIT_OTHER || way >= KNOWN_WAYS)
		return id;
	new->at = 0;
	if (learn_stack(set_number, way) && way < KNOWN_WAYS)
		set->ways[way].id = id;
	return id;
}

static __always_inline void add_wait(struct op_wait *wait, __u64 ns, __u32 count)
{
	wait->ns += ns;
	wait->count += count;
}

static __always_inline void begin_wait(struct op_wait *wait, __u32 stage, __u32 stack)
{
	wait->ns = wait->count = 0;
	wait->stack = stack;
	wait->stage = stage;
}

/* Of two places of a stage, the one that is of several stacks already: there is one of those at most. */
static __always_inline __u32 better_place(struct op_waits *waits, __u32 before, __u32 at)
{
	return before == OP_WAITS || wait_at(waits, at)->stack == WAIT_OTHER ? at : before;
}

/* There are fewer stages with waits than places, so two of them are of one stage: they become one of several stacks. */
__noinline __u32 place_of_two(__u32 place)
{
	struct op_waits *waits = waits_of(op_at(place));
	__u32 last, at, found;

	for (last = OP_WAITS - 1; last > 0; last--) {
		struct op_wait *wait = wait_at(waits, last);

		found = OP_WAITS;
		for (at = 0; at < last; at++) {
			if (wait_at(waits, at)->stage == wait->stage)
				found = better_place(waits, found, at);
		}
		if (found == OP_WAITS)
			continue;
		add_wait(wait_at(waits, found), wait->ns, wait->count);
		wait_at(waits, found)->stack = WAIT_OTHER;
		return last;
	}
	return 0;
}

/* Global, with scalar arguments. If a stage has more stacks than there is room for, the rest is one of several stacks. */
__noinline int keep_wait(__u32 place, __u64 ns, __u32 stage, __u32 stack)
{
	struct op_state *op = op_at(place);
	struct op_waits *waits = waits_of(op);
	__u32 at, of_stage = OP_WAITS;
	struct op_wait *wait;

	op->blocked = true;
	for (at = 0; at < OP_WAITS; at++) {
		wait = wait_at(waits, at);
		if (at >= op->waits) {
			begin_wait(wait, stage, stack);
			op->waits = at + 1;
			break;
		}
		if (wait->stage == stage) {
			if (wait->stack == stack)
				break;
			of_stage = better_place(waits, of_stage, at);
		}
	}
	if (at == OP_WAITS && of_stage < OP_WAITS) {
		at = of_stage;
		wait_at(waits, at)->stack = WAIT_OTHER;
	} else if (at == OP_WAITS) {
		at = place_of_two(place);
		begin_wait(wait_at(waits, at), stage, stack);
	}
	add_wait(wait_at(waits, at), ns, 1);
	return 0;
}

/* A task whose stacked device is done waits for a journal, as on_journal_wait() knows. */
static __noinline int leave_above(struct op_state *op, struct task_struct *task)
{
	__u32 stack;

	if (!op || op->op_kind != OP_KIND_SYNC)
		return 0;
	stack = wait_stack_of(task, op->op_kind << 1 | op->in_iowait);
	if (stack < WAIT_OTHER && waits_for_journal(stack - 1)) {
		charge_above(op);
		op->above = 0;
	}
	return 0;
}

/* The start of the sleep, without the time that is charged already. */
static __always_inline __u64 asleep_since(struct op_state *op)
{
	return op->slept_ns > op->cursor_ns ? op->slept_ns : op->cursor_ns;
}

/* It slept for something other than its own request. */
static __always_inline void charge_wait(struct op_state *op, struct task_struct *task, __u64 now, bool trusted)
{
	enum op_stage stage = own_stage(op);
	__u64 since = asleep_since(op);
	__u64 ns = minus(now, since);
	bool asks = journal_by_stack && op->op_kind == OP_KIND_SYNC;
	__u32 stack = 0;

	if (trusted && (ns >= wait_ns || asks)) {
		stack = wait_stack_of(task, op->op_kind << 1 | op->in_iowait);
		if (journal_by_stack && stack < WAIT_OTHER && waits_for_journal(stack - 1)) {
			advance(op, OP_STAGE_FS, since);
			stage = OP_STAGE_JOURNAL;
		}
	}
	if (stage == OP_STAGE_FS)
		op->asleep_ns += ns;
	else
		op->journal_asleep_ns += ns;
	advance(op, stage, now);
	if (stack || ns >= wait_ns)
		keep_wait(op->place, ns, stage, stack ? stack : WAIT_OTHER);
}

/* --- The limit of dirty pages ------------------------------------------------------------------------------------- */

struct dirty_throttle_control___known {
	unsigned long thresh;
} __attribute__((preserve_access_index));

/* The tracepoint has its arguments in one, since 6.17. */
const volatile bool dirty_limit_is_object;

/* Its pause in jiffies; what is below 1 is none. */
static __always_inline int on_dirty_pause(__u64 *ctx)
{
	struct op_state *op = op_of(bpf_get_current_task());
	__s64 pause = (__s64)EITHER(ctx, 10, 6, dirty_limit_is_object);
	struct dirty_throttle_control___known *control = (void *)ctx[1];
	struct op_waits *waits;

	if (pause <= 0 || !op || op->kind != OP_TRACED)
		return 0;
	settle(op);
	open_account(op);
	advance(op, OP_STAGE_FS, bpf_ktime_get_ns());
	op->in_dirty_limit = true;
	waits = waits_of(op);
	waits->limit_now = dirty_limit_is_object ? BPF_CORE_READ(control, thresh) : (__u64)control;
	waits->rate_now = (__u64)EITHER(ctx, 7, 3, dirty_limit_is_object);
	return 0;
}

static __always_inline void charge_dirty_limit(struct op_state *op, __u64 now)
{
	__u64 since = asleep_since(op);
	struct op_waits *waits = waits_of(op);

	op->in_dirty_limit = false;
	if (!op->limited)
		waits->limit = waits->rate = 0;
	op->limited = true;
	waits->limit += waits->limit_now;
	waits->rate += waits->rate_now;
	advance(op, OP_STAGE_FS, since);
	advance(op, OP_STAGE_DIRTY_LIMIT, now);
	keep_wait(op->place, minus(now, since), OP_STAGE_DIRTY_LIMIT, WAIT_DIRTY_LIMIT);
}

/* --- The end of an operation -------------------------------------------------------------------------------------- */

/* The slot, kind, stage and owner of a row, and the stack. */
#define WAIT_KEY(slot, op_kind, stage, owner, stack) \
	((__u64)(slot) << 48 | (__u64)(op_kind) << 40 | (__u64)(stage) << 32 | (__u64)(owner) << 16 | (stack))

/*
 * The row of this key: the one that it has, or one that was free. Each key has a step of its own, so that a table that is
 * half full has a free row for it. Global: verified once.
 */
__noinline __u32 claim_wait_row(__u64 key)
{
	__u32 at = (key * 0x9e3779b97f4a7c15ULL) >> 32, step = at >> 16 | 1, probe;

	for (probe = 0; probe < WAIT_ROW_PROBES; probe++, at += step) {
		__u64 *row = wait_row_at(at);

		if (*row == key || (!*row && take_place(row, 0, key)))
			return at & (WAIT_ROWS - 1);
	}
	return WAIT_ROWS;
}

static __always_inline struct wait_cell *wait_cell_of(__u64 key)
{
	__u32 row = claim_wait_row(key);

	if (row < WAIT_ROWS)
		return cell_at(&wait_cells, row);
	COUNT(loss[PATH_CAUSE_WAIT_FULL]);
	return NULL;
}

__noinline int count_wait(__u32 place, __u32 number)
{
	struct op_state *op = op_at(place);
	struct op_waits *waits = waits_of(op);
	struct wait_cell *cell;
	struct op_wait *wait;

	wait = wait_at(waits, number);
	cell = wait_cell_of(WAIT_KEY(op->slot, op->op_kind, wait->stage, owner_by ? op->owner : 0, wait->stack));
	if (!cell)
		return 0;
	COUNT_MORE(cell->waits, wait->count);
	if (wait->stack == WAIT_DIRTY_LIMIT) {
		COUNT_MORE(cell->limit, waits->limit);
		COUNT_MORE(cell->rate, waits->rate);
	}
	hist_add_shared(&cell->stages[0], wait->ns);
	COUNT(cell->finished);
	return 0;
}

__noinline int count_waits(__u32 place)
{
	__u32 number;

	for (number = 0; number < OP_WAITS; number++) {
		if (number < op_at(place)->waits)
			count_wait(place, number);
	}
	return 0;
}

/* --- Work --------------------------------------------------------------------------------------------------------- */

/* The stack that a tick interrupts. The address within its innermost function does not matter. */
static __noinline __u32 interrupted_stack(void *ctx)
{
	__u64 frames[WAIT_FRAMES] = {};
	__u64 key = 0;
	int frame;

	if (bpf_get_stack(ctx, frames, sizeof(frames), 0) <= 0)
		return WAIT_OTHER;
#pragma unroll
	for (frame = 1; frame < WAIT_FRAMES; frame++)
		key = WITH_FRAME(key, frames[frame]);
	return number_of_stack(key, frames);
}

/* Those without a place count as one of several. */
static __noinline int keep_work(struct op_state *op, __u32 stage, __u32 stack)
{
	struct op_waits *waits;
	struct op_work *work;
	__u32 at;

	if (!op)
		return 0;
	waits = waits_of(op);
	for (at = 0; at < OP_WORKS; at++) {
		work = work_at(waits, at);
		if (at >= op->works) {
			work->stack = at < OP_WORKS - 1 ? stack : WAIT_OTHER;
			work->stage = stage;
			work->ticks = 1;
			op->works = at + 1;
			return 0;
		}
		if (work->stack == stack && work->stage == stage)
			break;
	}
	work_at(waits, at < OP_WORKS ? at : OP_WORKS - 1)->ticks++;
	return 0;
}

static __always_inline int on_tick_of_work(void *ctx)
{
	struct op_state *op = op_of(bpf_get_current_task());

	/* Reasons are off, or its task is about to sleep. */
	if (wait_ns == NEVER || !op || op->kind != OP_TRACED || op->slept_ns)
		return 0;
	/* It may wait again, or return. */
	return keep_work(op, own_stage(op), interrupted_stack(ctx));
}

__noinline int count_work(__u32 place, __u32 number)
{
	struct op_state *op = op_at(place);
	struct op_work *work = work_at(waits_of(op), number);
	struct wait_cell *cell;

	cell = wait_cell_of(WAIT_KEY(op->slot, op->op_kind, work->stage | WAIT_RUNS, 0, work->stack));
	if (!cell)
		return 0;
	COUNT_MORE(cell->waits, work->ticks);
	hist_add_shared(&cell->stages[0], work->ticks * tick_ns);
	COUNT(cell->finished);
	return 0;
}

__noinline int count_works(__u32 place)
{
	__u32 number;

	for (number = 0; number < OP_WORKS; number++) {
		if (number < op_at(place)->works)
			count_work(place, number);
	}
	return 0;
}

static __noinline int fill_waits(struct op_wait *into, struct op_state *op)
{
	struct op_waits *waits;
	__u32 number;

	if (!into || !op)
		return 0;
	waits = waits_of(op);
	for (number = 0; number < OP_WAITS; number++) {
		barrier();
		if (number < op->waits)
			into[number] = *wait_at(waits, number);
		else
			__builtin_memset(&into[number], 0, sizeof(into[number]));
	}
	return 0;
}

#endif
