/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Shared state of the io_path programs: settings, operations by task, requests by bio. */
#ifndef WPT_PATH_STATE_H
#define WPT_PATH_STATE_H

#include "block/path/shared.h"
#include "lib/table.h"
#include "lib/sample.h"

#define NEVER ~0ULL

/* --- Settings ----------------------------------------------------------------------------------------------------- */

/*
 * Whether new operations and requests are traced. It is set when all programs are attached, and cleared before the first
 * one is detached, so that whatever is seen to begin is seen in full.
 */
bool tracing;
bool operating; /* the same of operations, which a budget may turn off */
__u64 since_ns; /* when that was set */
__u64 settled_ns; /* requests made from then on were queued after that */
__u64 elsewhere; /* requests on traced devices that are not ours, but that the disks count */

/* Those that took at least this long are shown one by one; the default is never. */
__u64 slow_ns = NEVER;
__u32 sample; /* one in so many is reported as well, 0 for none */
bool interference_on; /* interference is traced; a budget may turn it off, and the figures so far are kept */
__u32 request_sample; /* one in so many requests is timed, the others are counted alone; 0: all are timed */
__u64 tick_ns; /* how often a CPU without its interrupts off would tick; 0: nobody ticks */
bool seen_by_handler; /* only the running interrupt handler shows when the completion was seen */

/* Rows of files, by the device of the superblock, or of a special file. */
#define FILE_DEVICES 1024
struct file_device {
	__u32 dev; /* 0: free */
	__u16 slot;
	bool remote; /* no device serves it */
};
struct file_device file_devices[FILE_DEVICES];

__u64 loss[PATH_CAUSES];

/* Kernel 5.10's tracepoints hand over the queue first; Python asks BTF. */
const volatile bool request_is_second;
const volatile bool bio_is_second;
const volatile __u32 page_shift = 12;

OPTION(emits_records, true); /* operations and requests one by one, while `records_on` */
OPTION(interference, true);
OPTION(following, true); /* writeback, with the task that dirtied the pages */
OPTION(stacked, true); /* devices with rows of their own */
OPTION(watches_remote, true); /* file systems that other machines or processes serve */
OPTION(segmented, false); /* each period of a stage is kept, and each request */
/* No operations: no hook sees them begin and end. The object for these alone has no code for operations either. */
#ifdef REQUESTS_ALONE
enum { requests_alone = true, has_operations = false };
#else
OPTION(requests_alone, false);
enum { has_operations = true };
#endif

/* Whether anything but readahead asks for the file and the length of an operation. */
#if defined(PLAIN) && !defined(ROWS) && !defined(RECORDING)
enum { asks_for_file = false };
#else
enum { asks_for_file = true };
#endif

static __always_inline bool watches_interference(void)
{
	return interference && interference_on;
}

/*
 * Data for records is kept once they are on, which may happen at any time. So an operation that began before has no
 * record: its slot may hold data of another one.
 */
bool records_on;
__u64 records_since_ns = NEVER;

static __always_inline bool keeps_records(void)
{
	return emits_records && records_on;
}

static __always_inline bool keeps_segments(void)
{
	return segmented && records_on;
}

/* --- State -------------------------------------------------------------------------------------------------------- */

#define OP_BITS 13
#define OPS (1 << OP_BITS)
#define OP_PROBES 16
#define BIO_BITS 14
#define BIOS (1 << BIO_BITS)
#define BIO_PROBES 16
#define DONE 4 /* completed requests that an operation keeps: the last one counts */

struct done {
	struct times times;
	__u64 sector;
	__u32 dev;
	__u32 bytes;
	__s32 error;
	__u32 flags;
	__u64 irq_delay;
	__u32 irq_pid;
	char irq_name[NAME_BYTES];
	struct cpu_chain cpus;
	__u16 slot;
	struct events events; /* eight bytes at a place of eight: cleared at once */
};

enum op_state_kind {
	OP_NONE,
	OP_TRACED,
	OP_IGNORED, /* filtered out, and so are its requests */
	OP_SUBMITTED, /* an asynchronous one that no file system has seen yet */
	OP_STAND_IN, /* no operation: this task works on an asynchronous one */
	OP_AWAY, /* no operation, at levels without them: this task left its CPU with a bio in hand */
};
EXPORT_ENUM(op_state_kind);

/* Whose names the recorder has refreshed for an operation, mostly those that the next one in its slot has, too. */
struct recorded_names {
	__u64 inode;
	__u64 file_ns;
	__u64 task_ns;
	__u32 dev; /* of the inode */
	__u32 tid;
};

struct op_state {
	__u64 task; /* or the kiocb of an asynchronous one; 0: free */
	__u64 begun; /* operations in this slot so far; Python expects it second */
	__u64 start_ns;
	struct file *file; /* NULL: that of its kiocb, which has the position */
	loff_t *position; /* the kernel's own, which it moves at the end; NULL: not known */
	__s64 offset; /* -1: not looked up yet */
	__u64 length; /* without a file: the address of its iov_iter */
	__u32 place; /* its own, by which requests find it */
	__u16 crowded; /* another one belongs here, and had to take one of the next slots */
	__u16 owner; /* with --by: the number of its owner */
	__u16 wake_cpu;
	__u8 kind;
	__u8 op_kind;
	/*
	 * 1 + slot of the bio that was the only one when it completed, 0: none. Kept until that is released:
	 * drop_only().
	 */
	__u32 only;

	/* Set before they are read, or an earlier operation's, which is in the past. */
	__u64 stands_for; /* of a stand-in: the key of the operation */
	__u64 issued_ns; /* when a file system got the asynchronous one */
	__u64 above_ns; /* Q of `above` */
	__u64 held_until; /* when its task last ran again while that bio had no request */
	__u64 above_done_ns; /* C of the last bio that a stacked device completed */
	struct recorded_names named;

	/* From here to the charges everything begins as 0. */
	__u32 tid; /* 0 until it sleeps */
	__u32 transaction; /* of a journal, that it waited for */
	__u64 slept_ns; /* since when its task sleeps; 0: it runs */
	__u64 woken_ns; /* when its task ran again after its only request, which is not charged yet; 0: it did not */
	__u64 preempted_ns;
	__u64 above; /* the bio that it sent to a stacked device, which has no request yet; 0: none */
	__u32 made; /* bios */
	__u32 readahead; /* how many of them are readahead */
	__u32 ended; /* how many of the others completed */
	__u16 slot; /* of the last request */
	__u16 target; /* of a stand-in: the slot of the operation */
	/* Eight bytes at a place of eight: all 0 while nothing has happened but its begin, see is_untouched(). */
	__u8 last; /* 1 + slot in done of what completed last, 0: nothing since the last look */
	__u8 waited_for; /* what `last` was when it was charged last */
	__u8 interface;
	bool waited; /* a request was charged */
	bool charged; /* anything was */
	bool blocked; /* slept for any I/O, sent it to a stacked device, or went on without its task */
	bool lost; /* a bio had no slot */
	bool in_iowait;
	bool in_journal; /* where it may wait for one */
	bool whole; /* a sync of file systems: it writes all dirty pages, whoever dirtied them */
	__u8 depth; /* how many syncs and faults are under way inside of it */
	__u8 journal; /* 1 + slot in journals of what it waited for, 0: none */
	__s32 result; /* of the last sync or fault inside of it */
	bool in_dirty_limit; /* its task is about to sleep in it */
	bool limited; /* it slept in it */
	bool remote; /* another machine or process serves its file */
	bool frozen; /* it waits for its file system to thaw, and its file is not known yet */
	__u8 waits; /* how many op_waits it has used */
	__u8 works; /* how many works */
	bool disturbed; /* there is interference */
	bool carries; /* its task left its CPU with a bio in hand */

	__u64 charges[OP_CHARGES]; /* meaningless until charged */
	__u64 asleep_ns; /* of FS; meaningless until charged */
	__u64 journal_asleep_ns;
	__u64 cursor_ns; /* up to here time is charged */
	__u64 end_ns;
};

/* In `last`: it is not in done, but still in its bio's slot. */
#define LAST_IS_ONLY (DONE + 1)

const struct op_state *export_op_state __attribute__((unused));

/*
 * Variables and not maps: a slot is computed, not looked up. Python maps and reads them in place all the same. Each has
 * a section of its own, since 5.10 takes only 4 MiB in one piece.
 */
struct op_state ops[OPS] SEC(".bss.ops");

/* Of each slot of `ops`; apart, as 5.10 would not take both in one piece. */
struct done dones[OPS][DONE] SEC(".bss.dones");

/* A bio that has no request yet. */
struct in_hand {
	__u64 since; /* Q */
	__u32 place; /* 1 + its slot in bios; 0: none */
	__u32 unused;
};

/*
 * Of each slot of `ops`, with --interference: what took its time. Most operations have nothing of it, so it is not cleared
 * when one begins: each part has the start of the operation that it is of.
 */
struct interference_state {
	__u64 since[INTERFERENCE_KINDS];
	__u64 wakeup_since;
	struct interference kinds[INTERFERENCE_KINDS];
	struct interference before_wakeup;
	__u32 preemptor_pid;
	__u32 unused;
	char preemptor[NAME_BYTES];
	struct in_hand in_hand; /* while its task does not run */
};

struct interference_state interferences[OPS] SEC(".bss.interferences");

static __always_inline struct interference_state *interference_of(struct op_state *op)
{
	__u32 place = op->place;

	asm volatile("%0 &= %1" : "+w"(place) : "i"(OPS - 1));
	return &interferences[place];
}

static __always_inline struct op_state *op_at(__u32 place)
{
	asm volatile("%0 &= %1" : "+w"(place) : "i"(OPS - 1));
	return &ops[place];
}

static __always_inline struct done *done_of(struct op_state *op, __u32 number)
{
	__u32 place = op->place;

	asm volatile("%0 &= %1" : "+w"(place) : "i"(OPS - 1));
	asm volatile("%0 &= %1" : "+w"(number) : "i"(DONE - 1));
	return &dones[place][number];
}

enum bio_kind {
	BIO_KIND_QUEUED,
	BIO_KIND_HEAD, /* the first one of an issued request, which it represents */
	BIO_KIND_HELD, /* by a cgroup's limit: a worker sends it on */
	BIO_KIND_ABOVE, /* sent to a stacked device, which may send on this one or others */
	BIO_KIND_LINKED, /* made by such a device from another one, and not yet queued */
};

struct bio_state {
	__u64 bio; /* 0: free */
	__u64 begun; /* requests issued in this slot so far; Python expects it second */
	__u32 place; /* its own */
	__u16 crowded; /* another one belongs here, and had to take one of the next slots */
	__u16 owner; /* with --by: the number of its owner */
	__u64 task; /* of its operation, 0: none */
	__u32 op; /* the slot of its operation */
	__u32 made;
	__u64 cgroup;
	__u32 tgid;
	__u32 tid; /* of requests without an operation, or with a record */
	__u8 kind; /* bio_kind */
	__u8 op_kind; /* block_op */
	bool untimed; /* counted alone */
	bool unused;
	/* Four bytes at a place of four: cleared at once, and all 0 for most requests of an operation, see is_ordinary(). */
	__u8 apart; /* from other requests of its operation: bio_apart */
	bool set_up; /* by nvme_setup_cmd, which comes before the issue */
	bool layer; /* of a stacked device that has a row */
	bool empty; /* a flush that a bio asks for: the flush itself is a request of its own */
	char comm[NAME_BYTES];
	__u64 above_ns; /* Q of the bio that it was made from, if events.below is set */
	__u64 top_ns; /* Q of the topmost bio that it was made from, if events.below is set */
	__u32 above; /* the slot of the bio that it was made from, if events.below is set */
	__u32 layer_slot; /* of the device that sent on this bio itself, if events.below is set */
	struct done done;
};

enum bio_apart {
	BIO_APART_READAHEAD = 1, /* for pages that its operation did not ask for */
	BIO_APART_BELOW = 2, /* made by a device above of a bio of its operation */
	BIO_APART_LATE = 4, /* its issue went unseen */
};

/* In place of a bio: it has completed, and its operation has not processed it yet. */
CONSTANT(DELIVERED, 1);

const struct bio_state *export_bio_state __attribute__((unused));
EXPORT_ENUM(bio_kind);

struct bio_state bios[BIOS] SEC(".bss.bios");

static __always_inline struct bio_state *bio_at(__u32 place)
{
	asm volatile("%0 &= %1" : "+w"(place) : "i"(BIOS - 1));
	return &bios[place];
}

/* Of asynchronous operations, whose end may be reported in any context. */
struct submitter {
	__u64 cgroup;
	__u64 user_data;
	__u32 tgid;
	__u32 tid;
	char comm[NAME_BYTES];
};

struct submitter submitters[OPS] SEC(".bss.submitters");

static __always_inline struct submitter *submitter_at(__u32 place)
{
	asm volatile("%0 &= %1" : "+w"(place) : "i"(OPS - 1));
	return &submitters[place];
}

bool holding; /* a cgroup's limit has held a bio */

#define CELLS(name, type_) EACH_CPU(name, struct type_, 1)

CELLS(op_counters, op_counts);

RING(records);

/*
 * Many stages are empty: they are not counted, and the reader infers them. Inline, and only for values
 * that were just read from memory: before
 * commit fde2a3882bd0 ("bpf: support precision propagation in the presence of subprogs", v6.5)
 * the verifier tracks the index of a bucket back to the begin of its function, and when it gets there distinguishes
 * all of its values, in each of hundreds of thousands of states.
 */
static __always_inline void add(struct hist *hist, __u64 value)
{
	if (value)
		hist_add_plain(hist, value);
}

static __always_inline void *cell_at(void *cells, __u32 key)
{
	void *cell = bpf_map_lookup_elem(cells, &key);

	if (!cell)
		COUNT(loss[PATH_CAUSE_NO_CELL]);
	return cell;
}

/* One in request_sample. */
static __always_inline bool is_timed(void)
{
	struct op_counts *counts = cell_at(&op_counters, 0);

	if (!counts)
		return false;
	if (counts->untimed) {
		counts->untimed--;
		return false;
	}
	counts->untimed = left_out(&request_sample);
	return true;
}

static __always_inline __u64 minus(__u64 later, __u64 earlier)
{
	__s64 between = later - earlier;

	/* Clocks of two CPUs may differ by some cycles. */
	return between < 0 ? 0 : between;
}

static __always_inline __u32 hash(__u64 pointer)
{
	return lower_half(pointer) * 0x9e3779b1u >> 8;
}

/* --- Operations by task ------------------------------------------------------------------------------------------- */

static __always_inline bool take_op(struct op_state *op, __u64 task)
{
	if (op->task || !take_place(&op->task, 0, task))
		return false;
	op->kind = OP_NONE;
	return true;
}

TABLE(op, struct op_state, task, OP_BITS, OP_PROBES)

static __always_inline struct op_state *find_op_in_loop(__u64 task)
{
	__u32 place = op_place(task);

	return place < OPS ? op_at(place) : NULL;
}

/* The operation of a task: its own, or the asynchronous one that it stands in for. */
static __always_inline struct op_state *op_of(__u64 task)
{
	/* Without operations, a slot is of a task that sleeps. */
	struct op_state *op = has_operations ? find_op(task) : NULL;

	if (op && op->kind == OP_STAND_IN) {
		__u64 key = op->stands_for;

		op = op_at(op->target);
		if (op->task != key)
			return NULL; /* it is over, and this task does not know yet */
	}
	return op;
}

/* Nothing belongs to the next operation in this slot before it has set its start. */
static __always_inline void free_op(struct op_state *op)
{
	op->start_ns = NEVER;
	barrier();
	op->task = 0;
}

/* The slot of this task: the one that it has, or one that was free; its kind says which. */
static __always_inline struct op_state *op_for(__u64 task)
{
	__u32 place;
	struct op_state *op = claim_op(task, &place);

	if (op)
		op->place = place;
	return op;
}

/* --- Requests by bio ---------------------------------------------------------------------------------------------- */

static __always_inline bool take_bio(struct bio_state *state, __u64 bio)
{
	if (state->bio || !take_place(&state->bio, 0, bio))
		return false;
	state->kind = BIO_KIND_QUEUED;
	return true;
}

/* A bio that was sent to a stacked device may never end, so it may be replaced. */
static __always_inline bool take_above(struct bio_state *state, __u64 bio)
{
	__u64 before = state->bio;
	bool above = state->kind == BIO_KIND_ABOVE || state->kind == BIO_KIND_LINKED;

	if (!above || before == DELIVERED || !take_place(&state->bio, before, bio))
		return false;
	if (state->layer)
		COUNT(loss[PATH_CAUSE_LAYER_FULL]);
	state->kind = BIO_KIND_QUEUED;
	return true;
}

TABLE(bio, struct bio_state, bio, BIO_BITS, BIO_PROBES)

__noinline __u32 claim_above(__u64 bio)
{
	__u32 home = home_of(bio, BIO_BITS), probe;

	for (probe = 0; probe < BIO_PROBES; probe++) {
		if (take_above(bio_at(home + probe), bio))
			return home + probe & (BIOS - 1);
	}
	return BIOS;
}

/* The slot of this bio: the one that it has, or one that was free, of the kind BIO_KIND_QUEUED. */
static __always_inline struct bio_state *bio_for(__u64 bio)
{
	__u32 place;
	struct bio_state *state = claim_bio(bio, &place);

	if (!state) {
		place = claim_above(number_of(bio));
		if (place >= BIOS)
			return NULL;
		state = bio_at(place);
	}
	state->place = place;
	return state;
}

static __always_inline struct bio_state *find_bio_in_loop(struct bio *bio)
{
	__u32 place = bio_place((__u64)bio);

	return place < BIOS ? bio_at(place) : NULL;
}

/* The completed request, by the value of `last`. */
static __always_inline struct done *done_at(struct op_state *op, __u32 last)
{
	if (!last)
		return NULL;
	if (last != LAST_IS_ONLY)
		return done_of(op, last - 1);
	return &bio_at(op->only - 1)->done;
}

/* A front merge puts other bios before the one that represents the request. */
#define FRONT_MERGES 8

/* Before its issue no bio represents a request: the first known one will. */
static __noinline struct bio_state *behind(struct bio *bio, bool issued)
{
	int place;

	for (place = 0; place < FRONT_MERGES; place++) {
		struct bio_state *state;

		bio = BPF_CORE_READ(bio, bi_next);
		if (!bio)
			break;
		state = find_bio_in_loop(bio);
		if (state && (!issued || state->kind == BIO_KIND_HEAD))
			return state;
	}
	return NULL;
}

static __always_inline struct bio_state *first_of(struct request *rq, struct bio *bio, bool issued, bool trusted)
{
	struct bio_state *state;

	/* The flush machinery has a request of its own, without a bio. */
	state = find_bio(bio ? (__u64)bio : (__u64)rq);
	if (state && (!issued || state->kind == BIO_KIND_HEAD || state->empty))
		return state;
	return bio && FIELD(trusted, bio, bi_next) ? behind(bio, issued) : NULL;
}

/* The bio that represents an issued request. */
static __always_inline struct bio_state *state_of(struct request *rq, bool trusted)
{
	return first_of(rq, FIELD(trusted, rq, bio), true, trusted);
}

#endif
