/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Arguments of tracepoints that moved between kernels. Needs `wptrace.h` first. */
#ifndef WPT_ARGUMENTS_H
#define WPT_ARGUMENTS_H

/*
 * Tracepoints of the block layer hand over the queue first, before
 * commit a54895fa057c ("block: remove the request_queue to argument request based tracepoints", v5.11) and
 * commit e8a676d61c07 ("block: simplify and extend the block_bio_merge tracepoint class", v5.11).
 * Stable kernels took one of the two back to 5.10, so the version says nothing: Python asks BTF, for each tracepoint.
 */

/* One argument or another one; the verifier forbids to compute the place. */
#define EITHER(ctx, first, second, other) \
	({ \
		void *__argument; \
		if (other) { \
			__argument = (void *)(ctx)[second]; \
			barrier_var(__argument); \
		} else { \
			__argument = (void *)(ctx)[first]; \
			barrier_var(__argument); \
		} \
		__argument; \
	})

#define FIRST_OR(ctx, place, other) EITHER(ctx, 0, place, other)
#define FIRST_OR_SECOND(ctx, second) FIRST_OR(ctx, 1, second)
#define FIRST_OR_THIRD(ctx, third) FIRST_OR(ctx, 2, third)

#endif
