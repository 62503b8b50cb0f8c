/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Which requests the user wants: each predicate has its globals and its test in a header of its own, and here they are
 * joined by what they are asked of. Python sets the globals, also while programs run (wptrace/engine/filters/). What
 * was asked for has to hold all together. Each of the three (the task, the file, the operation) has one switch, so a
 * filter that is off costs one branch. Needs `wptrace.h` first.
 */
#ifndef WPT_FILTER_H
#define WPT_FILTER_H

bool filtering; /* anything of what follows */

#include "filters/task.h"
#include "filters/cgroup.h"
#include "filters/file.h"
#include "filters/operation.h"

/* Only where `current` is who asked for the request, so not in interrupts. */
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
