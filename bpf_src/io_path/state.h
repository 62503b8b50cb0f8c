/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What the io_path programs share: what Python sets, operations by task, requests by bio. */
#ifndef WPT_IO_PATH_STATE_H
#define WPT_IO_PATH_STATE_H

#define NEVER ~0ULL

/* --- What Python sets --------------------------------------------------------------------------------------------- */

/*
 * Whether new operations and requests are taken. It is set when all programs are attached, and cleared before the first
 * one is detached, so that whatever was seen to begin is seen whole.
 */
bool tracing;

/* Those that took at least this long are told one by one; the default is never. */
__u64 slow_ns = NEVER;
__u32 sample; /* one in so many is told as well, 0 for none */
__u32 tell_limit; /* a second, 0 for all */
bool telling; /* any of those: names are kept for them */
bool noisy; /* interference is watched */
__u64 tick_ns; /* how often a CPU without its interrupts off would tick; 0: nobody ticks */
bool seen_by_handler; /* nothing else tells when the completion was seen than the interrupt handler that runs */

/* Rows of files: the device of a superblock, or that of a special file. */
#define FILE_DEVICES 1024
struct file_device {
	__u32 dev; /* 0: free */
	__u32 slot;
};
struct file_device file_devices[FILE_DEVICES];

__u64 loss[PATH_CAUSES];

/* Kernel 5.10's tracepoints hand over the queue first; Python asks BTF. */
const volatile bool request_is_second;
const volatile bool bio_is_second;
const volatile bool merged_bio_is_third;

/* --- State -------------------------------------------------------------------------------------------------------- */

#define OPS 8192
#define OP_PROBES 4
#define BIOS 16384
#define BIO_PROBES 8
#define DONE 4 /* completed requests that an operation keeps: the last of them counts */

/* What a request passed, and when; 0: not seen. */
struct times {
	__u64 queued; /* Q */
	__u64 got; /* G */
	__u64 issued; /* D */
	__u64 handed; /* H */
	__u64 seen; /* S */
	__u64 completed; /* C */
};

struct done {
	struct times times;
	__u64 sector;
	__u32 dev;
	__u32 bytes;
	__u32 flags;
	__u16 slot;
	bool inline_; /* completed by its own task while that made it */
	struct cpu_chain cpus;
	__u64 irq_delay;
	__u32 irq_pid;
	char irq_name[NAME_BYTES];
};

enum op_state_kind {
	OP_NONE, /* only a bio on its way from Q to G */
	OP_TRACED,
	OP_IGNORED, /* filtered out, and so are its requests */
};

struct op_state {
	__u64 task; /* 0: free */
	__u64 start_ns;
	__u64 cursor_ns; /* up to here time is charged */
	__u64 slept_ns; /* since when its task sleeps; 0: it runs */
	__u64 preempted_ns;
	__u64 charges[OP_CHARGES];
	struct file *file;
	loff_t *position; /* the kernel's own, which it moves at the end; NULL: not known */
	__s64 offset; /* -1: not looked at yet */
	__u64 length;
	__u64 bio_ns; /* Q of the bio that is on its way to its request */
	__u64 bio; /* 0: none is */
	__u64 held_until; /* when its task last ran again while that bio had no request; 0: it did not */
	__u64 bio_task; /* whose bio it is, and in which place; a throttled one is sent by a worker */
	__u32 bio_op;
	__u32 place; /* its own, by which requests find it */
	__u32 tid;
	__u32 made; /* bios */
	__u32 readahead; /* how many of them are for pages beyond what was asked for */
	__u32 ended; /* how many of the others completed */
	__u32 lost; /* bios that had no place */
	__u32 last; /* 1 + place in done of what completed last, 0: nothing since the last look */
	__u32 waited_for; /* 1 + place in done of what was charged last */
	__u16 slot; /* of the last request */
	__u16 wake_cpu;
	__u8 kind;
	__u8 write;
	bool waited; /* a request was charged */
	bool blocked; /* slept for I/O, of whomever */
	bool in_iowait;
	struct noise noise[NOISE_STAGES];
	struct noise before_wakeup;
	__u32 preemptor_pid;
	char preemptor[NAME_BYTES];
	struct done done[DONE];
};

const struct op_state *export_op_state __attribute__((unused));

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, OPS);
	__type(key, __u32);
	__type(value, struct op_state);
} ops SEC(".maps");

struct bio_state {
	__u64 bio; /* 0: free */
	struct times times;
	__u32 place; /* its own */
	__u32 op; /* the place of its operation */
	__u64 task; /* of that, 0: none */
	__u32 made;
	__u64 cgroup;
	__u32 tgid;
	__u32 tid;
	__u32 dev;
	__u16 slot;
	__u8 op_kind; /* block_op */
	bool counted; /* stands for a request, not for a bio merged into one */
	bool empty; /* a flush that a bio asks for: the flush itself is a request of its own */
	bool readahead; /* for pages that its operation did not ask for */
	bool set_up; /* by nvme_setup_cmd, which comes before the issue */
	struct cpu_chain cpus;
	char comm[NAME_BYTES];
	__u64 irq_delay;
	__u32 irq_pid;
	char irq_name[NAME_BYTES];
};

const struct bio_state *export_bio_state __attribute__((unused));

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, BIOS);
	__type(key, __u32);
	__type(value, struct bio_state);
} bios SEC(".maps");

/* Bios that a cgroup's limit may hold back: a worker sends them on. */
struct throttled {
	__u64 since;
	__u64 task;
	__u32 op;
	__u32 padding;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct throttled);
} throttled SEC(".maps");
bool throttling; /* there was one */

#define CELLS(name, type_) \
	struct { \
		__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY); \
		__uint(max_entries, 1); \
		__type(key, __u32); \
		__type(value, struct type_); \
	} name SEC(".maps")

CELLS(op_cells, op_cell);
CELLS(hit_cells, hit_cell);
CELLS(noise_cells, noise_cell);
CELLS(request_cells, request_cell);
CELLS(op_counters, op_counts);

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} records SEC(".maps");

static __noinline void add(struct hist *hist, __u64 value)
{
	if (hist)
		hist_add(hist, value);
}

static __always_inline void *cell_at(void *cells, __u32 key)
{
	void *cell = bpf_map_lookup_elem(cells, &key);

	if (!cell)
		COUNT(loss[PATH_CAUSE_NO_CELL]);
	return cell;
}

static __always_inline __u64 minus(__u64 later, __u64 earlier)
{
	/* Clocks of two CPUs may differ by some cycles. */
	return later > earlier ? later - earlier : 0;
}

/* --- Operations by task ------------------------------------------------------------------------------------------- */

static __always_inline struct op_state *find_op(__u64 task, __u32 tid)
{
	__u32 probe;

	for (probe = 0; probe < OP_PROBES; probe++) {
		__u32 at = (tid + probe) & (OPS - 1);
		struct op_state *op = bpf_map_lookup_elem(&ops, &at);

		if (op && op->task == task)
			return op;
	}
	return NULL;
}

/* The place of this task: the one that it has, or a free one, or one that only a bio holds. */
static __always_inline struct op_state *claim_op(__u64 task, __u32 tid)
{
	__u32 free = OPS, idle = OPS; /* places, as the verifier combines no pointers */
	struct op_state *found;
	__u32 probe;

	for (probe = 0; probe < OP_PROBES; probe++) {
		__u32 at = (tid + probe) & (OPS - 1);
		struct op_state *op = bpf_map_lookup_elem(&ops, &at);

		if (!op)
			continue;
		if (op->task == task)
			return op;
		if (!op->task)
			free = at;
		else if (op->kind == OP_NONE)
			idle = at;
	}
	if (free == OPS)
		free = idle;
	found = bpf_map_lookup_elem(&ops, &free);
	if (found)
		found->place = free;
	return found;
}

/* --- Requests by bio ---------------------------------------------------------------------------------------------- */

/* The verifier lets nobody compute with a pointer that it knows, but its lower half is a number like others. */
static __always_inline __u32 bio_hash(__u64 bio)
{
	__u32 half;

	asm volatile("%0 = %1" : "=w"(half) : "w"((__u32)bio));
	return half * 0x9e3779b1u >> 8;
}

static __always_inline struct bio_state *find_bio(__u64 bio)
{
	__u32 start = bio_hash(bio);
	__u32 probe;

	for (probe = 0; probe < BIO_PROBES; probe++) {
		__u32 at = (start + probe) & (BIOS - 1);
		struct bio_state *state = bpf_map_lookup_elem(&bios, &at);

		if (state && state->bio == bio)
			return state;
	}
	return NULL;
}

static __always_inline struct bio_state *claim_bio(__u64 bio)
{
	__u32 start = bio_hash(bio);
	__u32 free = BIOS, merged = BIOS;
	struct bio_state *found;
	__u32 probe;

	for (probe = 0; probe < BIO_PROBES; probe++) {
		__u32 at = (start + probe) & (BIOS - 1);
		struct bio_state *state = bpf_map_lookup_elem(&bios, &at);

		if (!state)
			continue;
		if (state->bio == bio)
			return state;
		/* Two CPUs that take the same place at once lose one of the two, which shows as an end without a start. */
		if (!state->bio)
			free = at;
		else if (!state->counted)
			merged = at;
	}
	if (free == BIOS)
		free = merged;
	found = bpf_map_lookup_elem(&bios, &free);
	if (found)
		found->place = free;
	return found;
}

/* The same search for loops: a global function, which is verified once and not for each round. */
__noinline __u32 bio_place(__u64 bio)
{
	struct bio_state *state = find_bio(bio);

	return state ? state->place : BIOS;
}

static __always_inline struct bio_state *find_bio_in_loop(struct bio *bio)
{
	__u32 place = bio_place((__u64)bio);

	return bpf_map_lookup_elem(&bios, &place);
}

/* A front merge puts other bios before the one that stands for the request. */
#define FRONT_MERGES 8

static __noinline struct bio_state *behind(struct bio *bio)
{
	int place;

	for (place = 0; place < FRONT_MERGES; place++) {
		struct bio_state *state;

		bio = BPF_CORE_READ(bio, bi_next);
		if (!bio)
			break;
		state = find_bio_in_loop(bio);
		if (state && state->counted)
			return state;
	}
	return NULL;
}

static __always_inline struct bio_state *state_of(struct request *rq, bool direct)
{
	struct bio *bio = FIELD(direct, rq, bio);
	struct bio_state *state;

	/* The flush machinery has a request of its own, without a bio. */
	state = find_bio(bio ? (__u64)bio : (__u64)rq);
	if (state && state->counted)
		return state;
	return bio && FIELD(direct, bio, bi_next) ? behind(bio) : NULL;
}

#endif
