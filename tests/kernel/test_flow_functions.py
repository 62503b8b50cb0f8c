# SPDX-License-Identifier: Apache-2.0
"""Points at functions and at events, observed in each way, against a known number of calls."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import closing
from pathlib import Path

import pytest

from tests.kernel.disks import Disk, fio, opened
from tests.kernel.flows import defined
from wptrace.bpf.ring import Reader
from wptrace.engine.definition.recipe import FENTRY, FEXIT
from wptrace.model.kind import REQUESTS, TOTAL
from wptrace.model.report import Snapshot

# The running kernel takes no programs at functions.
pytestmark = pytest.mark.guest

# fsync() on tmpfs calls it by a pointer, so it is never inlined. A kretprobe has no argument to find the file by.
SYNCS = """
name = "syncs"
keys = ["file", "task"]
[[point]]
name = "begun"
at = "fn:noop_fsync"
filter = "task.tgid == PID"
labels = ["datasync"]
[[point]]
name = "done"
at = "ret:noop_fsync"
failed = "ret != 0"
"""
# The name follows the record, at an offset that the record has.
HANDLERS = """
name = "handlers"
key = "irq"
[[point]]
name = "entry"
at = "event:irq/irq_handler_entry"
labels = ["name"]
[[point]]
name = "exit"
at = "event:irq/irq_handler_exit"
"""


def _counts(found: Snapshot) -> dict[object, int]:
    return {group.values[0]: stages[TOTAL].count for group, stages in found.cells.items() if stages[TOTAL].count}


@pytest.mark.parametrize(("without", "way"), [((), "fentry"), ((FENTRY, FEXIT), "kprobe")])
def test_functions(without: Collection[str], way: str) -> None:
    with closing(defined(SYNCS.replace("PID", str(os.getpid())), without)) as flow:
        assert [source.how for source in flow.start(Reader()).sources] == [f"{way}/noop_fsync"]
        with opened("/dev/shm", os.O_RDWR | os.O_TMPFILE) as fd:  # noqa: S108
            for _ in range(25):
                os.fsync(fd)
            for _ in range(10):
                os.fdatasync(fd)
        flow.stop()
        found = flow.snapshot()
    book = found.books[REQUESTS]
    assert (book.started, book.finished, book.failed, book.lost, book.noted) == (35, 35, 0, {}, {})
    assert _counts(found) == {0: 25, 1: 10}


@pytest.mark.one_kernel
def test_a_text_that_lies_behind_the_record(disk: Disk) -> None:
    with closing(defined(HANDLERS)) as flow:
        assert [source.how for source in flow.start(Reader()).sources] == ["tracepoint/irq/irq_handler_entry"]
        fio(disk.path, rw="randread", number_ios=100)
        flow.stop()
        found = flow.snapshot()
    known = set(Path("/proc/interrupts").read_text().replace(",", " ").split())
    names = _counts(found)
    assert names
    assert set(names) <= {name[:15] for name in known}
    assert sum(names.values()) == found.books[REQUESTS].finished
