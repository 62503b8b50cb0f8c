/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What statements and units have in common: texts that a program works on, by their hash, and whose program it is. */
#ifndef WPT_PATH_TEXT_H
#define WPT_PATH_TEXT_H

#include "block/path/shared.h"
#include "lib/comm.h"

/* The length of text that is compared and kept, with a NUL: that of pg_stat_activity by default. */
CONSTANT(STATEMENT_BYTES, 1024);
/* Read at a time: on the stack, which is private but small on older kernels. */
CONSTANT(STATEMENT_PIECE, 64);

/* Kinds of rows by statement. */
enum statement_row {
	STATEMENT_ROW_NONE,
	STATEMENT_ROW_PROGRAM, /* not a server: by its name */
	STATEMENT_ROW_STATEMENT,
	STATEMENT_ROW_TITLE, /* the process title of a server without a statement */
	STATEMENT_ROW_UNREAD, /* the text was not in memory, or there is none where there should be */
	STATEMENT_ROW_OTHERS, /* of records: the table of owners had no place for it */
	STATEMENT_ROW_NUMBER, /* a unit that is a number: the key has it instead of a hash */
	STATEMENT_ROW_IDLE, /* the program of units, without one; unless the hash is 0: a thread with a name of its own */
};
EXPORT_ENUM(statement_row);
/* The bits of a record's `statement` that have its row. */
CONSTANT(STATEMENT_ROW_BITS, 3);

struct statement {
	__u64 hash; /* of its text; of a number itself, above STATEMENT_ROW_BITS */
	__u64 text; /* where it is; 0: nowhere */
	__u64 code; /* where the code of its process begins, */
	__u32 server; /* which executes this program */
	__u32 submitter; /* of an I/O worker: the number of the process that it works for, plus one */
	enum statement_row row;
};

/* In the place of the address of a text: the one that the probes have copied for the current task. */
#define COPIED_TEXT 1

/* The program of a process, by its file, and where its code begins. */
struct program {
	__u64 inode;
	__u64 size;
	__u64 code;
};

/* A kernel thread has none. */
static __always_inline void program_of(struct task_struct *task, struct program *found, bool typed)
{
	struct mm_struct *memory = FIELD(typed, task, mm);
	struct inode *inode;
	struct file *file;

	if (!memory)
		return;
	file = FIELD(typed, memory, exe_file);
	if (!file)
		return;
	inode = FIELD(typed, file, f_inode);
	found->inode = FIELD(typed, inode, i_ino);
	found->size = FIELD(typed, inode, i_size);
	found->code = FIELD(typed, memory, start_code);
}

static __always_inline void current_program(struct program *found)
{
	if (has_typed_task())
		program_of(bpf_get_current_task_btf(), found, true);
	else
		program_of((void *)bpf_get_current_task(), found, false);
}

/* Where the title of a process is, and when the task started, as its id may be reused. */
struct execution {
	__u64 title;
	__u64 started;
};

static __always_inline void execution_of(struct task_struct *task, struct execution *found, bool typed)
{
	struct mm_struct *memory = FIELD(typed, task, mm);

	found->title = memory ? FIELD(typed, memory, arg_start) : 0;
	found->started = FIELD(typed, task, start_time);
}

static __always_inline void current_execution(struct execution *found)
{
	if (has_typed_task())
		execution_of(bpf_get_current_task_btf(), found, true);
	else
		execution_of((void *)bpf_get_current_task(), found, false);
}

/* A text is hashed by its words, up to the one with its end, where zeros follow. */
static __always_inline __u64 mix(__u64 hash, __u64 word)
{
	hash = (hash ^ word) * 0x9e3779b97f4a7c15ULL;
	return hash ^ hash >> 32;
}

#endif
