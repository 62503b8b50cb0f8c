/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The filter: each predicate has its globals and its test in a header of its own, and here they are
 * grouped by what they test. Python sets the globals, also while programs run (wptrace/engine/filters/). All
 * wanted predicates have to match. Each of the three groups (task, file, operation) has one switch, so a
 * filter that is off costs one branch. Needs `wptrace.h` first.
 */
#ifndef WPT_FILTER_H
#define WPT_FILTER_H

#ifdef PLAIN
enum { filtering = false };
#else
bool filtering; /* anything of what follows */
#endif

#include "filters/task.h"
#include "filters/cgroup.h"
#include "filters/file.h"
#include "filters/operation.h"

/* Only where `current` is the submitter, so not in interrupts. */
static __always_inline bool task_matches(void)
{
	if (!filter_task)
		return true;
	if (!ids_match())
		return false;
	if (filter_by_comm && !comm_matches())
		return false;
	return !filter_cgroup || in_cgroup();
}

#endif
