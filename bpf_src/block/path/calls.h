/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* System calls by their numbers, for where functions cannot be observed. */
#ifndef WPT_PATH_CALLS_H
#define WPT_PATH_CALLS_H

#include "lib/wptrace.h"

/* Set by Python for each call. */
enum call_kind {
	CALL_KIND_NONE,
	CALL_KIND_READ,
	CALL_KIND_WRITE,
	CALL_KIND_READV,
	CALL_KIND_WRITEV,
	CALL_KIND_PREAD,
	CALL_KIND_PWRITE,
	CALL_KIND_PREADV,
	CALL_KIND_PWRITEV,
	CALL_KIND_FSYNC,
	CALL_KIND_SYNCFS,
	CALL_KIND_SYNC_FILE_RANGE,
	CALL_KIND_SYNC,
	CALL_KIND_MSYNC,
	CALL_KIND_EVENTS, /* waits for ends of asynchronous ones */
};
EXPORT_ENUM(call_kind);

#define CALLS 512
__u8 calls[CALLS];

#endif
