/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The statement that a database server executes (--by statement), read from the memory of its process when
 * an operation begins. A statement without I/O costs nothing, and one that began before the trace is seen.
 *
 * The memory is not trusted. It is only compared and copied, as far as there is room. Python
 * interprets the copy (wptrace/flows/io/parts/statements.py).
 */
#ifndef WPT_PATH_STATEMENT_H
#define WPT_PATH_STATEMENT_H

#include "block/path/shared.h"
#include "lib/comm.h"

/*
 * A program whose statement pointer is known, identified by its file, since processes come and go. The
 * inode and the size identify the file: stat(2) gives another device than the kernel's on btrfs and overlayfs.
 */
struct server {
	__u64 inode; /* 0: none, also at later places */
	__u64 size;
	__u64 text; /* from the start of a process's code to its statement pointer */
};

#define SERVERS 16
struct server servers[SERVERS];
/* A process has the name of a server, but its file is none of these. */
__u32 unknown_server;

/* The length of text that is compared and kept. */
CONSTANT(STATEMENT_BYTES, 1024);
/* The piece to read at a time: on the stack, which is private but small on older kernels. */
CONSTANT(STATEMENT_PIECE, 64);

/* For each place in `owners`; a single one without --by statement. */
struct statement_text {
	char text[STATEMENT_BYTES + 8];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct statement_text);
} statement_texts SEC(".maps");

/* Kinds of rows by statement. */
enum statement_row {
	STATEMENT_ROW_NONE,
	STATEMENT_ROW_PROGRAM, /* not a server: by its name */
	STATEMENT_ROW_STATEMENT,
	STATEMENT_ROW_TITLE, /* the process title of a server without a statement */
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

/* 0: it cannot be read, as the page is not in memory. */
__noinline __u64 hash_text(__u64 text)
{
	__u64 words[STATEMENT_PIECE / sizeof(__u64) + 1], hash = 0;
	__u32 at, word;
	long length;

	for (at = 0; at < STATEMENT_BYTES; at += STATEMENT_PIECE) {
		__builtin_memset(words, 0, sizeof(words));
		/* With the terminating NUL. */
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

	/* Python compares it with its hash, which shows if it could not be read or has changed. */
	if (kept)
		bpf_probe_read_user_str(kept->text, STATEMENT_BYTES + 1, (void *)text);
	return 0;
}

/* "postgres" and "postmast(er)". */
#define IS_SERVER_NAME(word) ((word) == 0x7365726774736f70ULL || (word) == 0x7473616d74736f70ULL)

/* The program of a process, and the addresses of its code and title. */
struct program {
	__u64 inode;
	__u64 size;
	__u64 code;
	__u64 title;
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
