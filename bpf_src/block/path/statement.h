/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Which statement a server of databases works on (--by statement): what its process has in its own memory, read when
 * an operation begins. Nothing is run for a statement without I/O, and one that has begun before the trace is seen.
 *
 * The memory is another's, and may say anything. It is only compared and copied, as much as there is room for. Python
 * looks at the copy (wptrace/flows/io/parts/statements.py).
 */
#ifndef WPT_PATH_STATEMENT_H
#define WPT_PATH_STATEMENT_H

#include "block/path/shared.h"
#include "lib/comm.h"

/*
 * A program of which it is known where it keeps the statement; found by its file, since processes come and go. The
 * inode and the size stand for the file: stat(2) names another device than the kernel's on btrfs and overlayfs.
 */
struct server {
	__u64 inode; /* 0: none, and none behind it */
	__u64 size;
	__u64 text; /* from the begin of a process' code to the pointer to its statement */
};

#define SERVERS 16
struct server servers[SERVERS];
/* A process has the name of a server, and its file is none of these. */
__u32 unknown_server;

/* What of a text tells it from others, and is kept. */
CONSTANT(STATEMENT_BYTES, 1024);
/* So much of it at a time: on the stack, which no other task shares, and of which older kernels give little. */
CONSTANT(STATEMENT_PIECE, 64);

/* Of each place in `owners`; no more than one without --by statement. */
struct statement_text {
	char text[STATEMENT_BYTES + 8];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct statement_text);
} statement_texts SEC(".maps");

/* What a row of such owners is of. */
enum statement_row {
	STATEMENT_ROW_NONE,
	STATEMENT_ROW_PROGRAM, /* which is no server: by its name */
	STATEMENT_ROW_STATEMENT,
	STATEMENT_ROW_TITLE, /* what a server without a statement calls itself in lists of processes */
	STATEMENT_ROW_UNREAD, /* the text was not in memory, or there is none where there should be */
};
EXPORT_ENUM(statement_row);

struct statement {
	__u64 hash; /* of its text */
	__u64 text; /* where it is; 0: nowhere */
	enum statement_row row;
};

__noinline __u32 find_server(__u64 inode, __u64 size)
{
	__u32 place;

	for (place = 0; place < SERVERS; place++) {
		if (!servers[place].inode)
			break;
		if (servers[place].inode == inode && servers[place].size == size)
			return place;
	}
	return SERVERS;
}

/* 0: it cannot be read, which takes a page that is in memory. */
__noinline __u64 hash_text(__u64 text)
{
	__u64 words[STATEMENT_PIECE / sizeof(__u64) + 1], hash = 0;
	__u32 at, word;
	long length;

	for (at = 0; at < STATEMENT_BYTES; at += STATEMENT_PIECE) {
		__builtin_memset(words, 0, sizeof(words));
		/* With the 0 behind it. */
		length = bpf_probe_read_user_str(words, STATEMENT_PIECE + 1, (void *)text + at);
		if (length < 0)
			return 0;
#pragma unroll
		for (word = 0; word < STATEMENT_PIECE / sizeof(__u64); word++) {
			hash = (hash ^ words[word]) * 0x9e3779b97f4a7c15ULL;
			hash ^= hash >> 32;
		}
		if (length <= STATEMENT_PIECE)
			break;
	}
	return hash | 1;
}

__noinline int keep_text(__u32 place, __u64 text)
{
	struct statement_text *kept = (void *)bpf_map_lookup_elem(&statement_texts, &place);

	/* Python compares it with its hash: where it was not read, or has become another one, it shows. */
	if (kept)
		bpf_probe_read_user_str(kept->text, STATEMENT_BYTES + 1, (void *)text);
	return 0;
}

/* "postgres" and "postmast(er)". */
#define IS_SERVER_NAME(word) ((word) == 0x7365726774736f70ULL || (word) == 0x7473616d74736f70ULL)

/* The program of a process, and where its code and its title are. */
struct program {
	__u64 inode;
	__u64 size;
	__u64 code;
	__u64 title;
};

/* Nothing of a thread of the kernel. */
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
	found->title = FIELD(typed, memory, arg_start);
}

static __always_inline void statement_of_task(struct statement *statement, __u64 *comm)
{
	struct program program = {};
	__u32 place = SERVERS;
	__u64 text = 0;

	if (has_typed_task())
		program_of(bpf_get_current_task_btf(), &program, true);
	else
		program_of((void *)bpf_get_current_task(), &program, false);
	if (program.inode)
		place = find_server(program.inode, program.size);
	if (place >= SERVERS) {
		statement->row = STATEMENT_ROW_PROGRAM;
		current_comm(comm);
		if (IS_SERVER_NAME(comm[0]))
			unknown_server = bpf_get_current_pid_tgid() >> 32;
		return;
	}
	/* A process that has never written there may not have the page. */
	bpf_probe_read_user(&text, sizeof(text), (void *)(program.code + servers[place].text));
	statement->row = text ? STATEMENT_ROW_STATEMENT : STATEMENT_ROW_TITLE;
	statement->text = text ? text : program.title;
	statement->hash = hash_text(statement->text);
	if (!statement->hash) {
		statement->row = STATEMENT_ROW_UNREAD;
		statement->text = 0;
	}
}

#endif
