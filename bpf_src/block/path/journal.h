/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Commits of ext4's journals: who commits, with which requests, and who contributed most. An operation that waited
 * for one reports it. Only scalar arguments of hooks are used, since 5.10 does not have the types of modules.
 */
#ifndef WPT_PATH_JOURNAL_H
#define WPT_PATH_JOURNAL_H

#include "block/path/state.h"
#include "block/path/flush.h"
#include "lib/filter.h"

#define JOURNALS 16
#define COMMITS 4 /* to keep of each journal: an operation that waited for one may be reported later */
#define WRITERS 4

struct writer {
	__u32 pid; /* 0: free */
	__u32 handles;
	__u32 blocks;
	__u32 rank; /* its contribution, plus that of the entry it replaced: so the largest one keeps a slot */
	char comm[NAME_BYTES];
};

/* The contributors of a transaction while it is open. */
struct transaction {
	__u32 number;
	__u32 handles;
	__u32 blocks;
	__u32 unused;
	struct writer writers[WRITERS];
};

/* By device of the file system. One transaction is open while the previous one commits. */
struct filling {
	__u32 dev; /* 0: free */
	__u32 used; /* when last, in about milliseconds */
	struct transaction transactions[2];
};

struct journal_state {
	__u64 journal; /* the kernel's own; 0: free */
	__u64 start_ns;
	__u64 written_ns; /* when the data of its last request with FUA was, and where */
	__u32 dev;
	__u32 unused;
	struct commit now; /* the pid is 0 while nobody commits */
	struct commit done[COMMITS];
};

struct filling fillings[JOURNALS];
struct journal_state journals[JOURNALS];
__u32 committing; /* how many are committing */

static __always_inline struct journal_state *journal_at(__u32 place)
{
	asm volatile("%0 &= %1" : "+w"(place) : "i"(JOURNALS - 1));
	return &journals[place];
}

/* Global functions, as in state.h: their loops are verified once. */
__noinline __u32 journal_place(__u64 journal)
{
	__u32 place;

	for (place = 0; place < JOURNALS; place++) {
		if (journal_at(place)->journal == journal)
			break;
	}
	return place;
}

__noinline __u32 committer_place(__u32 pid)
{
	__u32 place;

	for (place = 0; place < JOURNALS; place++) {
		if (journal_at(place)->now.pid == pid)
			break;
	}
	return place;
}

static __always_inline struct filling *filling_at(__u32 place)
{
	asm volatile("%0 &= %1" : "+w"(place) : "i"(JOURNALS - 1));
	return &fillings[place];
}

/* The slot of this device, or a free one, or that of the device with the least recent change. */
__noinline __u32 filling_place(__u32 dev)
{
	__u32 now = bpf_ktime_get_ns() >> 20;
	__u64 oldest = 0;
	__u32 place;

	for (place = 0; place < JOURNALS; place++) {
		struct filling *filling = filling_at(place);
		__u64 age = now - filling->used;

		if (!filling->dev || filling->dev == dev)
			break;
		oldest = greater(oldest, age << 32 | place);
	}
	if (place == JOURNALS) {
		place = oldest;
		filling_at(place)->transactions[0].number = filling_at(place)->transactions[1].number = 0;
	}
	filling_at(place)->dev = dev;
	filling_at(place)->used = now;
	return place;
}

static __always_inline struct transaction *transaction_of(__u32 dev, __u32 number)
{
	__u32 place = filling_place(dev);
	struct filling *filling;

	if (place >= JOURNALS)
		return NULL;
	filling = filling_at(place);
	return number & 1 ? &filling->transactions[1] : &filling->transactions[0];
}

/* A free one, or that of the journal with the least recent commit; JOURNALS if all are committing. */
__noinline __u32 free_journal(void)
{
	__u32 place, oldest = JOURNALS;
	__u64 since = NEVER;

	for (place = 0; place < JOURNALS; place++) {
		struct journal_state *state = journal_at(place);

		if (!state->journal)
			return place;
		if (!state->now.pid && state->start_ns < since) {
			since = state->start_ns;
			oldest = place;
		}
	}
	return oldest;
}

/* A task that waits for its commit may get here before the commit begins. */
static __always_inline __u32 claim_journal(__u64 journal)
{
	__u32 place = journal_place(journal);
	struct journal_state *state;
	int commit;

	if (place < JOURNALS)
		return place;
	place = free_journal();
	if (place >= JOURNALS)
		return place;
	state = journal_at(place);
	if (!take_place(&state->journal, state->journal, journal))
		return JOURNALS;
	state->start_ns = bpf_ktime_get_ns();
	state->now.transaction = 0;
	for (commit = 0; commit < COMMITS; commit++)
		state->done[commit].transaction = 0;
	return place;
}

static __always_inline int on_commit_start(__u64 journal)
{
	struct journal_state *state;
	__u32 place;

	if (!tracing)
		return 0;
	place = claim_journal(journal);
	if (place >= JOURNALS)
		return 0;
	state = journal_at(place);
	__builtin_memset(&state->now, 0, sizeof(state->now));
	bpf_get_current_comm(state->now.comm, sizeof(state->now.comm));
	state->start_ns = bpf_ktime_get_ns();
	state->written_ns = 0;
	state->now.filtered = filtering;
	state->now.pid = bpf_get_current_pid_tgid();
	COUNT(committing);
	return 0;
}

/* In the committing task, once everything is written: which transaction it was, and its contents. */
static __always_inline int on_commit_written(__u32 dev, __u32 number)
{
	struct transaction *transaction;
	struct journal_state *state;
	struct commit *commit;
	__u32 place, rank = 0;
	int writer;

	place = committer_place(bpf_get_current_pid_tgid());
	if (place >= JOURNALS)
		return 0;
	state = journal_at(place);
	commit = &state->now;
	commit->transaction = number;
	if (state->written_ns) {
		__u64 from = state->written_ns;

		commit->flush_ns += flushed(state->dev, from, bpf_ktime_get_ns());
	}
	transaction = transaction_of(dev, number);
	if (!transaction || transaction->number != number)
		return 0;
	commit->handles = transaction->handles;
	commit->blocks = transaction->blocks;
	for (writer = 0; writer < WRITERS; writer++) {
		struct writer *by = &transaction->writers[writer];

		if (by->rank <= rank)
			continue;
		rank = by->rank;
		commit->most_pid = by->pid;
		commit->most_handles = by->handles;
		commit->most_blocks = by->blocks;
		__builtin_memcpy(commit->most_comm, by->comm, sizeof(by->comm));
	}
	return 0;
}

static __always_inline int on_commit_end(__u64 journal)
{
	__u32 place = journal_place(journal);
	struct journal_state *state;

	if (place >= JOURNALS)
		return 0;
	state = journal_at(place);
	if (!state->now.pid)
		return 0; /* it began before tracing did */
	state->now.ns = bpf_ktime_get_ns() - state->start_ns;
	place = state->now.transaction & (COMMITS - 1);
	asm volatile("%0 &= %1" : "+w"(place) : "i"(COMMITS - 1));
	__builtin_memcpy(&state->done[place], &state->now, sizeof(state->now));
	state->now.pid = 0;
	__sync_fetch_and_add(&committing, -1);
	return 0;
}

/* A request without an operation has completed: is it part of a commit? */
static __noinline int count_for_commit(struct bio_state *state)
{
	struct journal_state *journal;
	struct commit *commit;
	__u32 place, flags;

	if (!state || !state->tid)
		return 0;
	place = committer_place(state->tid);
	if (place >= JOURNALS)
		return 0;
	journal = journal_at(place);
	commit = &journal->now;
	COUNT(commit->requests);
	__sync_fetch_and_add(&commit->bytes, state->done.bytes);
	flags = portable_flags(state->done.flags);
	if (flags & (1 << BLOCK_FLAG_PREFLUSH)) {
		__u64 from = state->done.times.got, to = state->done.times.issued;

		__sync_fetch_and_add(&commit->flush_ns, flushed(state->done.dev, from, to));
	}
	if (flags & (1 << BLOCK_FLAG_FUA)) {
		journal->written_ns = state->done.times.completed;
		journal->dev = state->done.dev;
	}
	return 0;
}

/* A handle is stopped: its changes are part of the transaction. */
static __always_inline int on_handle_stop(__u32 dev, __u32 number, __u32 blocks)
{
	struct transaction *transaction = transaction_of(dev, number);
	__u32 pid = bpf_get_current_pid_tgid() >> 32;
	struct writer *by;
	int place;

	if (!tracing || !transaction)
		return 0;
	if (transaction->number != number) {
		__builtin_memset(transaction, 0, sizeof(*transaction));
		transaction->number = number;
	}
	COUNT(transaction->handles);
	__sync_fetch_and_add(&transaction->blocks, blocks);
	by = &transaction->writers[0];
	for (place = 0; place < WRITERS; place++) {
		struct writer *other = &transaction->writers[place];

		if (other->pid == pid) {
			by = other;
			break;
		}
		if (other->rank < by->rank)
			by = other;
	}
	if (by->pid != pid) {
		by->pid = pid;
		by->handles = by->blocks = 0;
		bpf_get_current_comm(by->comm, sizeof(by->comm));
	}
	by->handles++;
	by->blocks += blocks;
	by->rank += 1 + blocks;
	return 0;
}

/* The commit that an operation waited for, as far as it is known. */
static __always_inline void fill_commit(struct commit *into, struct op_state *op)
{
	struct journal_state *state;
	struct commit *commit;
	__u32 place;

	__builtin_memset(into, 0, sizeof(*into));
	into->transaction = op->transaction;
	if (!op->journal || !op->transaction)
		return;
	place = op->transaction;
	asm volatile("%0 &= %1" : "+w"(place) : "i"(COMMITS - 1));
	state = journal_at(op->journal - 1);
	commit = &state->now;
	/* A task that checks once everything is written need not wait for the end, and may get here before it. */
	if (!commit->pid || commit->transaction != op->transaction)
		commit = &state->done[place];
	if (commit->transaction != op->transaction)
		return;
	__builtin_memcpy(into, commit, sizeof(*into));
	if (!into->ns)
		into->ns = bpf_ktime_get_ns() - state->start_ns;
}

#endif
