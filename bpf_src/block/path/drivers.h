/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Requests in the driver: passed to the device (H) and seen to complete (S). Tracepoints of drivers are in modules, whose
 * types 5.10 does not have, and 6.12 hands such arguments over as pointers that may be NULL; copying works everywhere.
 */
#ifndef WPT_PATH_DRIVERS_H
#define WPT_PATH_DRIVERS_H

#include "block/path/request.h"
#include "block/path/interference.h"

/* nvme sets up its command before the block layer reports the issue, and then passes it on at once. */
static __always_inline int on_request_setup(struct request *rq, bool trusted)
{
	struct bio_state *state = begin_issue(rq, trusted);

	if (!state || state->untimed)
		return 0;
	state->set_up = true;
	state->done.times.handed = 0;
	state->done.times.seen = 0;
	state->done.times.issued = bpf_ktime_get_ns();
	return 0;
}

static __always_inline int on_request_handed(struct request *rq, bool trusted)
{
	struct bio_state *state = state_of(rq, trusted);

	if (state)
		state->done.times.handed = bpf_ktime_get_ns();
	return 0;
}

static __always_inline int on_request_seen(struct request *rq, bool trusted)
{
	struct bio_state *state = state_of(rq, trusted);

	if (!state || state->done.times.seen)
		return 0;
	state->done.times.seen = bpf_ktime_get_ns();
	state->done.cpus.irq = bpf_get_smp_processor_id();
	if (interference && tick_ns)
		find_irq_delay(state);
	return 0;
}

/* Drivers keep what they need for a request right behind it. */
static __always_inline struct request *before_payload(__u64 payload)
{
	return (void *)(payload - bpf_core_type_size(struct request));
}

#endif
