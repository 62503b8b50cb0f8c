# SPDX-License-Identifier: Apache-2.0
"""Causes of loss in the path flow, and of missing details (`path_cause` of bpf_src/block/path/shared.h)."""

from __future__ import annotations

from wptrace.model.book import (
    EARLIER,
    EXITED,
    FOREIGN,
    INCONSISTENT,
    MISTAKEN_STACK,
    OVERWRITTEN,
    RECURSION,
    REMOVED,
    RING_FULL,
    TORN,
    UNMATCHED_END,
    UNMATCHED_START,
    UNNAMED,
    UNRECORDED,
    Cause,
)

OP_FULL = Cause("op_full", "the table of operations had no room")
OP_UNENDED = Cause("op_unended", "the end of an asynchronous operation went unseen")
BIO_FULL = Cause("bio_full", "the table of requests in flight had no room")
DIRTY_FULL = Cause("dirty_full", "the table of dirty pages had no room: who wrote them is not known")
SUBMIT_FULL = Cause("submit_full", "the table of submissions of io_uring and AIO had no room: seen as requests only")
UNENTERED = Cause("unentered", "an asynchronous operation of a file system that is not watched: not counted")
UNWATCHED = Cause("unwatched", "a file system was mounted whose kind is not watched: seen as requests only")
STALE = Cause("ghost", "the end of a request went unseen, and the device no longer has it")
LAYER_FULL = Cause("layer_full", "the table of requests had no room for a bio of a stacked device, or a flush")
RATE_LIMITED = Cause("rate_limited", "more slow ones than --limit a second: counted, but not shown")
NO_CELL = Cause("no_cell", "something had no row to count in")
SHED = Cause("shed", "the budget switched operations off while it was in flight")
OWNER_FULL = Cause("owner_full", "there was no row left for an owner: it counts in the row others")
NEIGHBOUR_FULL = Cause("neighbour_full", "more requests were under way at once than are tracked for neighbours")
SIGNAL_FULL = Cause("signal_full", "no room for a use of an eventfd: it is not counted, or not in the capture")
CHILD_FULL = Cause("child_full", "there were more children at once than are tracked: what this one does may be missing")
SILENT = Cause(
    "silent", "a read or write of io_uring that posts no completion (CQE_SKIP_SUCCESS): seen as requests only"
)
WAIT_FULL = Cause("wait_full", "there were more different waits than are tracked: the time of one is in no reason")
UNNAMED_FILE = Cause("unnamed_file", "the recorder knows no path of a file: it had records of too many at once")
SLEEP_FULL = Cause("sleep_full", "more tasks slept for requests at once than are tracked: a wait is not counted")
STATEMENT_ORIGIN = Cause(
    "statement_origin",
    "the row of pg_stat_activity of a server is laid out differently than in PostgreSQL 14 to 18: a statement has no"
    " query id",
)
MANY_BIOS = Cause("many_bios", "a request was made of more bios than are looked at: the ends of some are missing")
NEIGHBOUR_UNKNOWN = Cause(
    "neighbour_unknown", "of an exact overlap: a request has no times of its own in the records, so it is not in it"
)
NEIGHBOUR_LATE = Cause("neighbour_late", "of an exact overlap: a request was reported too late to be in it as a whole")
UNSEEN_START = Cause(
    "unseen_start", "the kernel skipped the program at the start of a request: counted by the kernel's own stamps"
)
UNSEEN = Cause("unseen", "the kernel skipped the programs that see a request: the disk has counted it")

_LOST = (OP_FULL, BIO_FULL, UNMATCHED_START, OP_UNENDED)
NOTED = (
    RING_FULL,
    RATE_LIMITED,
    LAYER_FULL,
    SUBMIT_FULL,
    UNENTERED,
    NO_CELL,
    UNMATCHED_END,
    UNSEEN_START,
    OWNER_FULL,
    NEIGHBOUR_FULL,
    SIGNAL_FULL,
    CHILD_FULL,
    SILENT,
    UNRECORDED,
    UNNAMED_FILE,
    SLEEP_FULL,
    STATEMENT_ORIGIN,
    MANY_BIOS,
    DIRTY_FULL,
    WAIT_FULL,
)
"""Causes that cost neither an operation nor a request."""
COUNTED = (*_LOST, *NOTED)
"""Causes counted by the programs."""
CAUSES = {
    cause.name: cause
    for cause in (
        *(*COUNTED, UNWATCHED, STALE, UNSEEN, MISTAKEN_STACK, RECURSION, SHED, FOREIGN, INCONSISTENT, EXITED, REMOVED),
        *(OVERWRITTEN, TORN, EARLIER, UNNAMED),
    )
}
