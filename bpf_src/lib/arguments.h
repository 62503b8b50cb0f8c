/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Arguments of tracepoints that moved between kernels. Needs `wptrace.h` first. */
#ifndef WPT_ARGUMENTS_H
#define WPT_ARGUMENTS_H

/*
 * Before 5.11 (a54895fa057c, e8a676d61c07) tracepoints of the block layer hand over the queue first. Stable kernels
 * took one of the two changes back to 5.10, so nobody may ask for the version: Python asks BTF, for each tracepoint.
 */

/* The pointer to the first argument or to another one; the verifier forbids to compute the place. */
#define FIRST_OR(ctx, place, other) \
	({ \
		void *__argument; \
		if (other) { \
			__argument = (void *)(ctx)[place]; \
			barrier_var(__argument); \
		} else { \
			__argument = (void *)(ctx)[0]; \
			barrier_var(__argument); \
		} \
		__argument; \
	})

#define FIRST_OR_SECOND(ctx, second) FIRST_OR(ctx, 1, second)
#define FIRST_OR_THIRD(ctx, third) FIRST_OR(ctx, 2, third)

#endif
