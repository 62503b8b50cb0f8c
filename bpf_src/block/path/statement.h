/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The statement that a database server executes (--by statement), read from the memory of its process when
 * an operation begins. A statement without I/O costs nothing, and one that began before the trace is seen. The unit of
 * work of any program (--by unit) is read the same way, or known from probes (unit.h).
 *
 * The memory is not trusted. It is only compared and copied, as far as there is room. Python
 * interprets the copy (wptrace/flows/io/parts/statements.py).
 */
#ifndef WPT_PATH_STATEMENT_H
#define WPT_PATH_STATEMENT_H

#include "block/path/state.h"
#include "block/path/text.h"
#include "block/path/unit.h"
#include "lib/comm.h"

/* Where the text is. */
enum text_place {
	TEXT_PLACE_POINTER, /* a variable points to it */
	TEXT_PLACE_ARRAY, /* a variable has it */
	TEXT_PLACE_NUMBER, /* a variable has a number instead */
	TEXT_PLACE_PROBES, /* the probes of units have copied it */
};
EXPORT_ENUM(text_place);

/*
 * A program whose statement pointer is known, identified by its file, since processes come and go. The
 * inode and the size identify the file: stat(2) gives another device than the kernel's on btrfs and overlayfs.
 */
struct server {
	__u64 inode; /* 0: none, also at later places */
	__u64 size;
	/* The rest: from the start of a process's code to a variable. */
	__u64 text; /* debug_query_string: the statement; the variable of a unit */
	__u64 aio; /* pgaio_ctl: handles of asynchronous I/O; 0: older than PostgreSQL 18 */
	__u64 share; /* io_max_concurrency: how many of them a process has */
	__u64 contexts; /* error_context_stack: what it is busy with */
	__u64 entry; /* MyBEEntry: its row of pg_stat_activity; 0: older than PostgreSQL 14 */
	__u64 number; /* MyProcNumber */
	__u64 text_size; /* pgstat_track_activity_query_size */
	__u64 database; /* MyDatabaseId; 0: unknown, as is what follows */
	__u64 pid; /* MyProcPid */
	__u64 application; /* application_name */
	__u64 query_id; /* PgBackendStatus.st_query_id, from the start of that row */
	__u32 place; /* text_place */
	__u32 bytes; /* of a number */
};

#define SERVERS 16
struct server servers[SERVERS];
/* A process has the name of a server, but its file is none of these; or an I/O worker lacks the texts of others. */
__u32 unknown_server;

/* For each place in `owners`; a single one without --by statement. */
struct statement_text {
	char text[STATEMENT_BYTES];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct statement_text);
} statement_texts SEC(".maps");

/* Whose statement it was when its text was kept. Python finds the names (wptrace/flows/io/parts/origins.py). */
struct statement_origin {
	__u64 query_id; /* 0: unknown, as is the rest */
	__u32 database, user; /* their numbers in catalogues, */
	__u32 postmaster; /* which this server has */
	__u32 known; /* origin_known */
	char application[64]; /* NAMEDATALEN */
	char title[192]; /* of the process, which has names */
};

const struct statement_origin *export_statement_origin __attribute__((unused));

/* From whom all but the query id is. */
enum origin_known {
	ORIGIN_UNKNOWN,
	ORIGIN_OF_OTHER, /* an I/O worker read it */
	ORIGIN_OF_PROCESS,
};

/* For each place in `owners`; a single one without --by statement. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct statement_origin);
} statement_origins SEC(".maps");

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

/*
 * 0: it cannot be read, as the page is not in memory. What lies behind the text is read with it, as it takes longer to
 * look for its end while copying; where that is not in memory, only the text is read.
 */
__noinline __u64 hash_text(__u64 text)
{
	/* One byte more for a NUL, also where a text is cut off. */
	__u64 words[STATEMENT_PIECE / sizeof(__u64) + 1], hash = 0;
	__u32 at, word;
	bool ended;

	for (at = 0; at < STATEMENT_BYTES; at += STATEMENT_PIECE) {
		if (bpf_probe_read_user(words, STATEMENT_PIECE, (void *)text + at) &&
		    bpf_probe_read_user_str(words, STATEMENT_PIECE + 1, (void *)text + at) < 0)
			return 0;
		if (at == STATEMENT_BYTES - STATEMENT_PIECE)
			words[STATEMENT_PIECE / sizeof(__u64) - 1] &= ~0ULL >> 8;
#pragma unroll
		for (word = 0; word < STATEMENT_PIECE / sizeof(__u64); word++) {
			if (may_end(words[word])) {
				__u64 letters = up_to_end(words[word], &ended);

				if (ended)
					return mix(hash, letters) | 1;
			}
			hash = mix(hash, words[word]);
		}
	}
	return hash | 1;
}

__noinline int keep_text(__u32 place, __u64 text)
{
	struct statement_text *kept = (void *)bpf_map_lookup_elem(&statement_texts, &place);

	/* Python compares it with its hash, which shows if it could not be read or has changed. */
	if (!kept)
		return 0;
	if (text == COPIED_TEXT)
		keep_copied_text(kept->text);
	else
		bpf_probe_read_user_str(kept->text, STATEMENT_BYTES, (void *)text);
	return 0;
}

/*
 * I/O workers, from PostgreSQL 18 on, read for other processes: for the owner of the handle that they work on. It is
 * the argument of their error context. A row of pg_stat_activity, which all processes share, has the text of the owner.
 *
 * Other processes have other error contexts, and other releases may have other structs. So a handle is only accepted if
 * its place among all handles is one of its owner's.
 */
CONSTANT(PG_CONTEXT_ARGUMENT, 16); /* ErrorContextCallback.arg */
CONSTANT(PG_AIO_COUNT, 40); /* PgAioCtl.io_handle_count */
CONSTANT(PG_AIO_HANDLES, 48); /* PgAioCtl.io_handles */
CONSTANT(PG_HANDLE_BYTES, 144); /* PgAioHandle */
CONSTANT(PG_HANDLE_OWNER, 16); /* PgAioHandle.owner_procno */
CONSTANT(PG_ENTRY_PID, 4); /* PgBackendStatus.st_procpid */
CONSTANT(PG_ENTRY_REPORTED, 40); /* PgBackendStatus.st_state_start_timestamp */
CONSTANT(PG_ENTRY_DATABASE, 48); /* PgBackendStatus.st_databaseid */
CONSTANT(PG_ENTRY_USER, 52); /* PgBackendStatus.st_userid */
CONSTANT(PG_ENTRY_STATE, 232); /* PgBackendStatus.st_state */
CONSTANT(PG_ENTRY_APPLICATION, 240); /* PgBackendStatus.st_appname */
CONSTANT(PG_ENTRY_TEXT, 248); /* PgBackendStatus.st_activity_raw */
CONSTANT(PG_RUNNING, 2); /* STATE_RUNNING; 3 since 18, which has STATE_STARTING */
CONSTANT(PG_ENTRY_BYTES, 440); /* PgBackendStatus of 18, the first with I/O workers */

/* 0 where it cannot be read. */
static __always_inline __u64 user_pointer(__u64 address)
{
	__u64 value = 0;

	bpf_probe_read_user(&value, sizeof(value), (void *)address);
	return value;
}

static __always_inline __u32 user_number(__u64 address)
{
	__u32 value = 0;

	bpf_probe_read_user(&value, sizeof(value), (void *)address);
	return value;
}

/* The number of the process that an I/O worker works for, plus one; 0: it is none. */
__noinline __u32 submitter_of_worker(__u64 code, __u32 place)
{
	__u64 context, handle, handles;
	__u32 share, number, owner;
	struct server *server;

	if (place >= SERVERS)
		return 0;
	server = &servers[place];
	if (!server->aio)
		return 0;
	context = user_pointer(code + server->contexts);
	handle = user_pointer(context + PG_CONTEXT_ARGUMENT);
	if (!context || !handle)
		return 0;
	handles = user_pointer(code + server->aio);
	number = user_number(handles + PG_AIO_COUNT);
	handles = user_pointer(handles + PG_AIO_HANDLES);
	share = user_number(code + server->share);
	owner = user_number(handle + PG_HANDLE_OWNER);
	handle -= handles;
	if (!share || handle % PG_HANDLE_BYTES || handle / PG_HANDLE_BYTES >= number ||
	    handle / PG_HANDLE_BYTES / share != owner)
		return 0;
	return owner + 1;
}

/* How far a process is from the current one in arrays of all processes. */
static __always_inline __s64 distance_to(__u64 code, struct server *server, __u32 submitter)
{
	return (__s64)submitter - 1 - user_number(code + server->number);
}

/* 0: it has no text. */
__noinline __u64 text_of_submitter(__u64 code, __u32 place, __u32 submitter)
{
	struct server *server;
	__u64 text;
	char first;

	if (place >= SERVERS || !submitter)
		return 0;
	server = &servers[place];
	text = user_pointer(code + server->entry);
	text = user_pointer(text + PG_ENTRY_TEXT);
	text += distance_to(code, server, submitter) * user_number(code + server->text_size);
	if (bpf_probe_read_user(&first, 1, (void *)text)) {
		/* Each process has its own page table, and no fault is handled here. */
		unknown_server = bpf_get_current_pid_tgid() >> 32;
		return 0;
	}
	return first ? text : 0;
}

/*
 * The text that the process itself shows in pg_stat_activity: that of a statement that is being committed, or the activity
 * of an autovacuum worker. 0: it has none.
 */
__noinline __u64 reported_text(__u64 code, __u32 place)
{
	struct {
		__u32 state;
		__u32 unused;
		__u64 application;
		__u64 text;
	} entry;
	struct server *server;
	char first = 0;
	__u64 row;

	if (place >= SERVERS)
		return 0;
	server = &servers[place];
	if (!server->query_id)
		return 0;
	row = user_pointer(code + server->entry);
	if (bpf_probe_read_user(&entry, sizeof(entry), (void *)row + PG_ENTRY_STATE) ||
	    entry.state != PG_RUNNING + !!server->aio)
		return 0;
	/* While a process starts, its row may be that of a process that ended while it was running. */
	if (user_number(row + PG_ENTRY_PID) != user_number(code + server->pid))
		return 0;
	bpf_probe_read_user(&first, 1, (void *)entry.text);
	return first ? entry.text : 0;
}

static __always_inline __u32 parent_of_current(void)
{
	struct task_struct *task = (void *)bpf_get_current_task();

	return BPF_CORE_READ(task, real_parent, tgid);
}

/*
 * Whose statement it is, once for each text: of the current process, or of the one that an I/O worker works for. False: it
 * has no query id yet, as it is not analysed.
 *
 * The row of pg_stat_activity is only believed if it has what is known otherwise: the pid and the database of this process,
 * or the text of the other one.
 */
__noinline int keep_origin(__u32 owner, __u32 place, __u64 code, __u32 submitter, __u32 is_statement)
{
	struct statement_origin *kept = (void *)bpf_map_lookup_elem(&statement_origins, &owner);
	__u32 known = submitter ? ORIGIN_OF_OTHER : ORIGIN_OF_PROCESS;
	__u64 entry = 0, application = 0;
	struct execution execution;
	struct server *server;
	__u32 database;

	if (place >= SERVERS || !kept)
		return true;
	server = &servers[place];
	if (server->query_id)
		entry = user_pointer(code + server->entry);
	if (submitter) {
		__u64 text = text_of_submitter(code, place, submitter);

		if (!entry)
			return true;
		entry += distance_to(code, server, submitter) * PG_ENTRY_BYTES;
		if (!text || user_pointer(entry + PG_ENTRY_TEXT) != text) {
			unknown_server = bpf_get_current_pid_tgid() >> 32;
			return false;
		}
		database = user_number(entry + PG_ENTRY_DATABASE);
		application = user_pointer(entry + PG_ENTRY_APPLICATION);
	} else {
		database = server->database ? user_number(code + server->database) : 0;
		if (server->application)
			application = user_pointer(code + server->application);
		if (entry && (user_number(entry + PG_ENTRY_PID) != user_number(code + server->pid) ||
			      user_number(entry + PG_ENTRY_DATABASE) != database)) {
			/* A process that connects has not filled it in. */
			if (is_statement)
				COUNT(loss[PATH_CAUSE_STATEMENT_ORIGIN]);
			entry = 0;
		}
	}
	if (kept->known < known) {
		kept->known = known;
		kept->database = database;
		kept->user = entry ? user_number(entry + PG_ENTRY_USER) : 0;
		kept->postmaster = parent_of_current();
		kept->title[0] = 0;
		if (bpf_probe_read_user_str(kept->application, sizeof(kept->application), (void *)application) < 0)
			kept->application[0] = 0;
		current_execution(&execution);
		if (!submitter)
			bpf_probe_read_user_str(kept->title, sizeof(kept->title), (void *)execution.title);
	}
	if (entry && !kept->query_id)
		kept->query_id = user_pointer(entry + server->query_id);
	return !entry || kept->query_id;
}

/* That of the owner that had the place before. */
static __always_inline void forget_origin(__u32 owner)
{
	struct statement_origin *kept = (void *)bpf_map_lookup_elem(&statement_origins, &owner);

	if (kept) {
		kept->known = ORIGIN_UNKNOWN;
		kept->query_id = 0;
	}
}

/* "postgres" and "postmast(er)". */
#define IS_SERVER_NAME(word) ((word) == 0x7365726774736f70ULL || (word) == 0x7473616d74736f70ULL)

/* Of a variable of units. */
static __always_inline void number_of_program(struct statement *statement, __u64 address, __u32 bytes)
{
	__u64 number = 0;

	if (bytes > sizeof(number))
		bytes = sizeof(number);
	if (bpf_probe_read_user(&number, bytes, (void *)address)) {
		statement->row = STATEMENT_ROW_UNREAD;
		return;
	}
	statement->row = STATEMENT_ROW_NUMBER;
	statement->hash = number << STATEMENT_ROW_BITS;
}

/*
 * The program of units, without one. Servers name threads that work for themselves: those have rows of their own, and their
 * hash is not 0.
 */
static __always_inline void idle_thread(struct statement *statement, __u64 *comm)
{
	struct task_struct *leader = (void *)bpf_get_current_task();
	__u64 name[2] = {};

	statement->row = STATEMENT_ROW_IDLE;
	leader = BPF_CORE_READ(leader, group_leader);
	bpf_probe_read_kernel_str(name, sizeof(name), leader->comm);
	current_comm(comm);
	if (comm[0] == name[0] && comm[1] == name[1])
		comm[0] = comm[1] = 0;
	else
		statement->hash = 1 << STATEMENT_ROW_BITS;
}

static __always_inline void statement_of_task(struct statement *statement, __u64 *comm, bool unit)
{
	struct program program = {};
	struct execution execution;
	__u32 place = SERVERS;
	__u64 text = 0;

	if (unit && unit_of_task(statement))
		return;
	current_program(&program);
	if (program.inode)
		place = find_server(program.inode, program.size);
	if (place >= SERVERS) {
		statement->row = STATEMENT_ROW_PROGRAM;
		current_comm(comm);
		if (IS_SERVER_NAME(comm[0]))
			unknown_server = bpf_get_current_pid_tgid() >> 32;
		return;
	}
	statement->code = program.code;
	statement->server = place;
	text = program.code + servers[place].text;
	if (unit && servers[place].place == TEXT_PLACE_PROBES) {
		idle_thread(statement, comm);
		return;
	}
	if (unit && servers[place].place == TEXT_PLACE_NUMBER) {
		number_of_program(statement, text, servers[place].bytes);
		return;
	}
	if (!unit || servers[place].place == TEXT_PLACE_POINTER)
		/* A process that has never written there may not have the page. */
		text = user_pointer(text);
	if (!text && !unit) {
		statement->submitter = submitter_of_worker(program.code, place);
		if (statement->submitter)
			text = text_of_submitter(program.code, place, statement->submitter);
		else
			text = reported_text(program.code, place);
	}
	if (!text && unit) {
		idle_thread(statement, comm);
		return;
	}
	statement->row = text ? STATEMENT_ROW_STATEMENT : STATEMENT_ROW_TITLE;
	if (!text) {
		statement->submitter = 0;
		current_execution(&execution);
		text = execution.title;
	}
	statement->text = text;
	statement->hash = hash_text(statement->text);
	if (!statement->hash) {
		statement->row = STATEMENT_ROW_UNREAD;
		statement->text = 0;
	}
}

#endif
