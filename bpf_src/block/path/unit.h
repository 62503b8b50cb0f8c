/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The unit of work of a task (--by unit), from a probe where it begins to one where it ends. The text is copied where it
 * begins, as the program may reuse the memory meanwhile, and hashed when an operation begins: units without I/O are not.
 */
#ifndef WPT_PATH_UNIT_H
#define WPT_PATH_UNIT_H

#include "block/path/text.h"

/* An argument of a probe, as Python found it (wptrace/engine/definition/unit.py). */
struct operand {
	__u64 number; /* a constant, or the distance from what the register has */
	__u16 place; /* of the register in struct pt_regs */
	__u8 known;
	__u8 in_register; /* otherwise it is a constant */
	__u8 in_memory; /* where the register points to */
	__u8 size; /* there */
	__u8 bits; /* that count */
	__u8 unused;
};

const volatile struct operand unit_label, unit_length, unit_choice, unit_later_label, unit_later_length;
const volatile bool unit_is_text;
/* With `unit_choice`: other values of it are a number, not a text. */
const volatile __u64 unit_chosen;

struct unit {
	__u64 title; /* of its program: another one has other arguments */
	__u64 started; /* the task */
	__u64 number;
	__u32 row; /* statement_row; STATEMENT_ROW_NONE: it is in no unit */
	__u32 length;
	char text[STATEMENT_BYTES]; /* zeros behind it */
};

/* By thread id. If there are more tasks, the one that has been without a unit or I/O for longest loses its own. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct unit);
} units SEC(".maps");

/* To begin with: one on the stack would be too large. */
struct unit no_unit SEC(".bss.no_unit");

static __always_inline bool read_operand(void *regs, const volatile struct operand *operand, __u64 *value)
{
	__u64 found = operand->number;
	__u32 size = operand->size;

	if (operand->in_register) {
		bpf_probe_read_kernel(&found, sizeof(found), regs + operand->place);
		if (operand->in_memory) {
			__u64 address = found + operand->number;

			found = 0;
			if (size > sizeof(found) || bpf_probe_read_user(&found, size, (void *)address))
				return false;
		}
	}
	if (operand->bits < 64)
		found &= (1ULL << (operand->bits & 63)) - 1;
	*value = found;
	return true;
}

/* Without the length, it ends with a NUL. */
static __always_inline void copy_unit_text(void *regs, struct unit *unit, __u64 address,
					   const volatile struct operand *size)
{
	__u64 room = STATEMENT_BYTES - 1;
	long length;

	unit->row = STATEMENT_ROW_UNREAD;
	if (size->known && !read_operand(regs, size, &room))
		return;
	if (room > STATEMENT_BYTES - 1)
		room = STATEMENT_BYTES - 1;
	__builtin_memset(unit->text, 0, sizeof(unit->text));
	length = bpf_probe_read_user_str(unit->text, room + 1, (void *)address);
	if (length <= 0)
		return;
	unit->length = length - 1;
	unit->row = STATEMENT_ROW_STATEMENT;
}

static __always_inline int on_unit_begin(void *regs)
{
	__u32 tid = bpf_get_current_pid_tgid();
	struct execution execution;
	struct unit *unit;
	__u64 value;

	unit = bpf_map_lookup_elem(&units, &tid);
	if (!unit) {
		bpf_map_update_elem(&units, &tid, &no_unit, BPF_ANY);
		unit = bpf_map_lookup_elem(&units, &tid);
		if (!unit)
			return 0;
	}
	current_execution(&execution);
	unit->title = execution.title;
	unit->started = execution.started;
	unit->row = STATEMENT_ROW_UNREAD;
	if (unit_choice.known) {
		if (!read_operand(regs, &unit_choice, &value))
			return 0;
		if (value != unit_chosen) {
			unit->number = value;
			unit->row = STATEMENT_ROW_NUMBER;
			return 0;
		}
	}
	if (!read_operand(regs, &unit_label, &value))
		return 0;
	if (unit_is_text) {
		copy_unit_text(regs, unit, value, &unit_length);
	} else {
		unit->number = value;
		unit->row = STATEMENT_ROW_NUMBER;
	}
	return 0;
}

/* The text of a unit that had a number instead where it began. One that has a text keeps it: this may be a part of it. */
static __always_inline int on_unit_named_later(void *regs)
{
	__u32 tid = bpf_get_current_pid_tgid();
	struct unit *unit = bpf_map_lookup_elem(&units, &tid);
	struct execution execution;
	__u64 value;

	if (!unit || unit->row != STATEMENT_ROW_NUMBER)
		return 0;
	current_execution(&execution);
	if (unit->title != execution.title || unit->started != execution.started)
		return 0;
	if (read_operand(regs, &unit_later_label, &value))
		copy_unit_text(regs, unit, value, &unit_later_length);
	return 0;
}

static __always_inline int on_unit_end(void)
{
	__u32 tid = bpf_get_current_pid_tgid();
	struct unit *unit = bpf_map_lookup_elem(&units, &tid);

	if (unit)
		unit->row = STATEMENT_ROW_NONE;
	return 0;
}

#define UNIT_PIECE 64 /* hashed at a time */

static __noinline __u64 hash_copied_text(struct unit *unit)
{
	__u64 hash = 0, *words;
	__u32 at, left, word;

	if (!unit)
		return 0;
	left = unit->length;
	for (at = 0; at < STATEMENT_BYTES; at += UNIT_PIECE) {
		words = (void *)unit->text + at;
		if (left < UNIT_PIECE)
			break;
		left -= UNIT_PIECE;
#pragma unroll
		for (word = 0; word < UNIT_PIECE / sizeof(__u64); word++)
			hash = mix(hash, words[word]);
	}
	/* It ends in one of these. */
#pragma unroll
	for (word = 0; word < UNIT_PIECE / sizeof(__u64); word++) {
		hash = mix(hash, words[word]);
		if (left < (word + 1) * sizeof(__u64))
			break;
	}
	return hash | 1;
}

static __always_inline bool unit_of_task(struct statement *statement)
{
	__u32 tid = bpf_get_current_pid_tgid();
	struct unit *unit = bpf_map_lookup_elem(&units, &tid);
	struct execution execution;

	if (!unit || !unit->row)
		return false;
	current_execution(&execution);
	if (unit->title != execution.title || unit->started != execution.started)
		return false;
	statement->row = unit->row;
	if (unit->row == STATEMENT_ROW_NUMBER) {
		statement->hash = unit->number << STATEMENT_ROW_BITS;
	} else if (unit->row == STATEMENT_ROW_STATEMENT) {
		statement->hash = hash_copied_text(unit);
		statement->text = COPIED_TEXT;
	}
	return true;
}

static __always_inline void keep_copied_text(char *kept)
{
	__u32 tid = bpf_get_current_pid_tgid();
	struct unit *unit = bpf_map_lookup_elem(&units, &tid);

	if (unit)
		bpf_probe_read_kernel(kept, STATEMENT_BYTES, unit->text);
}

#endif
