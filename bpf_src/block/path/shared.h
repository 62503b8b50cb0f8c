/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The stages, causes, cells and records that the io_path object shares with Python. */
#ifndef WPT_PATH_SHARED_H
#define WPT_PATH_SHARED_H

#include "lib/wptrace.h"
#include "lib/hist.h"
#include "lib/block.h"

/* The points of a request of the block layer, in order: Q, G, D, H, S and C. */
#define EACH_REQUEST_POINT(POINT) \
	POINT(QUEUED, queued) \
	POINT(GOT, got) \
	POINT(ISSUED, issued) \
	POINT(HANDED, handed) \
	POINT(SEEN, seen) \
	POINT(COMPLETED, completed)

/* Its stages, in order, from one of these to the next. */
#define EACH_REQUEST_STAGE(STAGE) \
	STAGE(THROTTLE, queued, got) \
	STAGE(QUEUE, got, issued) \
	STAGE(DRIVER, issued, handed) \
	STAGE(DEVICE, handed, seen) \
	STAGE(COMPLETE, seen, completed)

#define TIME_OF(name, member) __u64 member;
#define RECORDED_TIME_OF(name, member) RECORDED_TIME_##name,
#define OP_STAGE_OF(name, from, to) OP_STAGE_##name,
#define REQUEST_STAGE_OF(name, from, to) REQUEST_STAGE_##name,
#define ONLY_STAGE_OF(name, from, to) ONLY_STAGE_##name,

/* The stages of an operation, in order; each of its nanoseconds is charged to one of them. */
enum op_stage {
	OP_STAGE_SUBMIT,
	OP_STAGE_FS,
	OP_STAGE_JOURNAL,
	OP_STAGE_DIRTY_LIMIT,
	OP_STAGE_LAYERS,
	EACH_REQUEST_STAGE(OP_STAGE_OF) /* it waits for a request */
	OP_STAGE_WAKEUP,
	OP_STAGE_RETURN,
	OP_STAGE_UNATTRIBUTED,
	OP_STAGE_TOTAL,
	OP_STAGES,
};
EXPORT_ENUM(op_stage);
#define OP_CHARGES OP_STAGE_TOTAL

enum request_stage {
	EACH_REQUEST_STAGE(REQUEST_STAGE_OF) /* from Q to C */
	REQUEST_STAGE_TOTAL,
	REQUEST_STAGES,
};
EXPORT_ENUM(request_stage);

/* The stages of writeback: for each bio with data of a file. */
enum writeback_stage {
	WRITEBACK_STAGE_DIRTY,
	WRITEBACK_STAGE_WRITEBACK,
	WRITEBACK_STAGE_TOTAL,
	WRITEBACK_STAGES,
};
EXPORT_ENUM(writeback_stage);

/* Kinds of interference: they took an operation's time inside its stages. */
enum interference_kind {
	INTERFERENCE_KIND_PREEMPTED,
	INTERFERENCE_KIND_HARDIRQ,
	INTERFERENCE_KIND_SOFTIRQ,
	INTERFERENCE_KIND_IRQ_DELAY,
	INTERFERENCE_KINDS,
};
EXPORT_ENUM(interference_kind);

/* Controllers that hold bios before they get a request. */
enum controller {
	CONTROLLER_IO_MAX,
	CONTROLLER_IO_COST,
	CONTROLLER_IO_LATENCY,
	CONTROLLER_WBT, /* writeback throttling */
	CONTROLLER_TAG, /* no tag was free */
	CONTROLLER_ZONE, /* another write to the same zone of a zoned device has to be done first */
	CONTROLLER_UNKNOWN,
	CONTROLLERS,
};
EXPORT_ENUM(controller);

enum path_cause {
	PATH_CAUSE_OP_FULL,
	PATH_CAUSE_BIO_FULL,
	PATH_CAUSE_LAYER_FULL,
	PATH_CAUSE_RING_FULL,
	PATH_CAUSE_RATE_LIMITED,
	PATH_CAUSE_NO_CELL,
	PATH_CAUSE_UNMATCHED_START,
	PATH_CAUSE_UNMATCHED_END,
	PATH_CAUSE_UNSEEN_START,
	PATH_CAUSE_OP_UNENDED,
	PATH_CAUSE_UNENTERED,
	PATH_CAUSE_DIRTY_FULL,
	PATH_CAUSE_SUBMIT_FULL,
	PATH_CAUSE_OWNER_FULL,
	PATH_CAUSE_NEIGHBOUR_FULL,
	PATH_CAUSE_SIGNAL_FULL,
	PATH_CAUSE_CHILD_FULL,
	PATH_CAUSE_SILENT,
	PATH_CAUSE_WAIT_FULL,
	PATH_CAUSE_UNRECORDED,
	PATH_CAUSE_UNNAMED_FILE,
	PATH_CAUSE_SLEEP_FULL,
	PATH_CAUSE_STATEMENT_ORIGIN,
	PATH_CAUSE_MANY_BIOS,
	PATH_CAUSES,
};
EXPORT_ENUM(path_cause);
EXPORT_ENUM(block_op);
EXPORT_ENUM(block_flag);

enum op_kind {
	OP_KIND_READ,
	OP_KIND_WRITE,
	OP_KIND_SYNC,
	OP_KIND_PAGEFAULT,
	OP_KIND_SWAPIN,
	OP_KINDS,
};
#define PLAIN_KINDS OP_KIND_SYNC /* of these there are so many that each may have an account with its only request */
EXPORT_ENUM(op_kind);

/* The interface of an operation, which determines how its end is reported. */
enum interface {
	INTERFACE_CALL, /* by a system call that returns at the end */
	INTERFACE_URING,
	INTERFACE_AIO,
};
EXPORT_ENUM(interface);

/* Totals of operations, per CPU: the device and kind of one are only known at its end. */
struct op_counts {
	__u64 discarded; /* which were not on a traced device */
	__u64 unsampled; /* since the last sample */
	__u64 untimed; /* requests until the next one that is timed */
};

/* The CPUs that a request passed, by what happened there. */
struct cpu_chain {
	__u16 submit;
	__u16 issue;
	__u16 irq;
	__u16 complete;
	__u16 wake;
};
CONSTANT(NO_CPU, 0xffff);

#define NAME_BYTES 16

/* The worst of one kind of interference. */
struct interference {
	__u64 ns; /* of all of the kind */
	__u64 worst_ns;
	__u32 count;
	__u32 pid; /* 0: an interrupt */
	__u16 cpu;
	__u16 softirq; /* number of the softirq */
	char name[NAME_BYTES];
};

/*
 * A path is read name by name, leaf first, each terminated by NUL; names near the root are left out if there is no
 * room.
 */
#define PATH_BYTES 256
#define PATH_NAME 256

enum record_kind {
	RECORD_KIND_OPERATION,
	RECORD_KIND_HIT,
	RECORD_KIND_REQUEST,
};
EXPORT_ENUM(record_kind);

/* A commit of a journal, and its largest contributor. */
struct commit {
	__u32 transaction; /* the journal's own number; 0: none */
	__u32 requests; /* of the task that commits */
	__u64 bytes;
	__u64 ns;
	__u64 flush_ns; /* flushes of the device's cache that those requests waited for */
	__u32 handles; /* handles in the transaction, and the blocks that they dirtied first */
	__u32 blocks;
	__u32 most_pid; /* 0: not known */
	__u32 most_handles;
	__u32 most_blocks;
	__u32 pid; /* that commits */
	__u32 filtered; /* its requests may not be traced */
	__u32 unused;
	char comm[NAME_BYTES];
	char most_comm[NAME_BYTES];
};

/* Who had the device while a request waited for it, and while the device had it: nanoseconds times requests. */
#define NEIGHBOUR_COLUMNS 8
struct met {
	__u64 known; /* otherwise the rest is stale */
	__u64 waited; /* Q to D */
	__u64 under_way; /* D to C */
	__u64 wait[NEIGHBOUR_COLUMNS];
	__u64 device[NEIGHBOUR_COLUMNS];
	__u16 owners[NEIGHBOUR_COLUMNS];
};

/* The time that an operation slept with one stack, in one stage. */
struct op_wait {
	__u64 ns;
	__u16 stack; /* 1 + its place in wait_stacks and the generation, or one of those below; 0: none */
	__u16 stage; /* op_stage */
	__u32 count;
};

CONSTANT(OP_WAITS, 4);
CONSTANT(WAIT_OTHER, 0xfffe); /* of several stacks, or of one without a place */
CONSTANT(WAIT_DIRTY_LIMIT, 0xffff); /* known without a stack */

/* Until a request completes, 0 if not seen. */
struct times {
	EACH_REQUEST_POINT(TIME_OF)
};

/*
 * With --segments: the periods of an operation, without gaps. So a period is its
 * stage, in the lowest byte, and its end, in nanoseconds from the start of the operation; 0: none.
 */
CONSTANT(SEGMENTS, 64);
CONSTANT(SEGMENT_STAGE_BITS, 8);

/* A request that completed during its operation; all 0: none. */
struct child {
	struct times times;
	__u64 sector;
	__u32 dev;
	__u32 bytes;
	__u32 flags;
	__s32 error;
	__u8 op; /* block_op */
	__u8 readahead; /* its operation did not ask for it */
	__u8 unused[6];
};
/* The first one was started by another operation. */
CONSTANT(CHILDREN, 16);

struct trail {
	__u64 segments[SEGMENTS];
	__u32 more; /* periods after the last of them */
	__u32 unused;
	struct child children[CHILDREN];
};

struct io_record {
	__u64 start_ns;
	__u64 end_ns;
	__u64 handed_ns; /* of the last request that it waited for: H, S; 0: it waited for none of its own */
	__u64 seen_ns;
	__u64 stages[OP_CHARGES];
	__s64 offset; /* -1: not known */
	__u64 length;
	__s64 result; /* bytes done or a negative errno; of a request its error */
	__u64 cgroup;
	__u64 inode;
	__u64 sector;
	__u64 user_data; /* of an asynchronous one: what its submitter knows it by */
	__u64 dirty_ns; /* of a request: how long what it writes was dirty; 0: it writes no dirty pages */
	__u32 bytes; /* of the request */
	__u32 dev;
	__u32 flags;
	__u32 tgid;
	__u32 tid;
	__u32 requests;
	__u16 readahead; /* or this many and more */
	__u16 tag_queue; /* 1 + the hardware queue in which no tag was free, 0: not known */
	__u16 slot;
	__u8 kind;
	__u8 op; /* op_kind, of a request block_op */
	struct cpu_chain cpus;
	__u16 path_end; /* how much of path is used */
	__u8 deleted;
	__u8 path_cut;
	__u8 interface;
	__u8 request_op; /* block_op of the request */
	struct events events; /* of the last request that it waited for */
	char comm[NAME_BYTES];
	struct commit commit; /* the last one that it waited for */
	__u64 flush_before; /* of the device's cache, that the request waited for before its data, and behind it */
	__u64 flush_behind;
	__u64 held[CONTROLLERS];
	char path[PATH_BYTES + PATH_NAME];
	struct op_wait waits[OP_WAITS];
	/* From here on only members that are on: record_bytes. */
	__u64 statement; /* with --by statement: its statement_row, and above that the hash of its text */
	struct interference interference[INTERFERENCE_KINDS];
	struct interference before_wakeup; /* who ran on the waiter's CPU just before it */
	struct met met;
	struct trail trail;
};
/* With the ring's header, whole lines of 64 bytes, which a capture compares at once. */
_Static_assert((8 + __builtin_offsetof(struct io_record, statement)) % 64 == 0, "records are not of whole lines");

const struct io_record *export_io_record __attribute__((unused));

/* A record of the flight recorder; fields that its kind does not have are 0. */
enum recorded_kind {
	RECORDED_KIND_BOTH, /* an operation and the only request that it made and waited for */
	RECORDED_KIND_OPERATION, /* its requests have records of their own */
	RECORDED_KIND_HIT,
	RECORDED_KIND_REQUEST, /* one that is not part of a record of the first kind */
};
EXPORT_ENUM(recorded_kind);

/* The times of the first and the last kind: lower halves. A point that was not seen repeats the previous one. */
enum recorded_time {
	RECORDED_TIME_START,
	RECORDED_TIME_ISSUED_TO_FS, /* of an asynchronous one; else when its task ran again */
	EACH_REQUEST_POINT(RECORDED_TIME_OF) /* of the request */
	RECORDED_TIMES,
};
EXPORT_ENUM(recorded_time);

struct recorded {
	__u64 end_ns;
	/* For an operation only, from here on: the time of each of its stages that took any, in order. */
	__u32 times[RECORDED_TIMES];
	__u64 sector;
	__u32 dev; /* of the request's disk */
	__u32 unused;
	__u64 inode;
	__s64 offset; /* -1: not known */
	__u32 file_dev; /* of its superblock */
	__u32 tid;
	__u32 bytes; /* of the request; of an operation without one how many it made */
	__s32 result; /* bytes done or a negative errno; of a request its error */
	__u32 length;
	__u16 slot;
	__u16 stages; /* of an operation without a request: a bit for each op_stage with a time; else 0 if none is known */
	__u16 flags; /* of the request, without its operation: the kernel's own */
	__u8 kind; /* recorded_kind, and the bits below */
	__u8 op; /* op_kind, of a request block_op */
	__u32 number; /* its number in its area, from 1; written last */
	/* With --by statement or --by unit, as in struct io_record; otherwise records end here. */
	__u64 statement;
};
CONSTANT(RECORDED_CHARGES, 12); /* four more words behind the times */
CONSTANT(RECORDED_KIND_BITS, 2);
CONSTANT(RECORDED_INTERFACE_SHIFT, 2);
CONSTANT(RECORDED_COARSE, 0x80); /* times in units of 1,024 ns: it took longer than a lower half can hold */
CONSTANT(RECORDED_COARSE_SHIFT, 10);
CONSTANT(RECORDED_FLAGS_SHIFT, 8);

const struct recorded *export_recorded __attribute__((unused));

/* An eventfd of the process was written or read. */
struct signal {
	__u64 ns;
	__u32 tid;
	__s32 fd;
	__u32 read; /* 0: written */
	__u32 unused;
};

const struct signal *export_signal __attribute__((unused));

#endif
