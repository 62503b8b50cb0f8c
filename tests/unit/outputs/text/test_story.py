# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.outputs import path
from tests.unit.outputs.samples import HOSTILE
from tests.unit.outputs.samples import request as request_of_block
from wptrace.model.report import Event
from wptrace.outputs.text import story
from wptrace.outputs.text import words as text

LONG = "/var/lib/postgresql/15/main/base/16384/pg_internal/" + "d" * 60 + "/a_file_whose_name_is_rather_long.dat"


def full(one: Event, width: int = 80, whole: bool = False, dates: bool = False) -> list[str]:
    return list(story.full(one, width, dates, whole))


def test_the_story_of_a_slow_read() -> None:
    one = path.operation(
        interference=[
            path.interference("preempted", 1_200_000),
            path.interference("irq_off", 20_000_000, "kworker/1:2", None, 1),
        ]
    )
    assert full(one) == [
        "22:13:20.123456  read 3.69 ms  postgres[4711/4715]",
        "    /var/lib/postgresql/15/main/base/16384/2619  offset 1048576 +8192",
        "    nvme0n1 sector 123456 +16 R  cpu 0 -> 1 -> 1 -> 0",
        "    cgroup /system.slice/postgresql.service",
        "    |queue--|device-----------------------------------------------------------w|",
        "    queue      410 us  11% █████▌",
        "    device    3.20 ms  87% ███████████████████████████████████████████▍",
        "    fs 9.00 us 0%, throttle 0 ns 0%, driver 4.00 us 0%, complete 7.00 us 0%,",
        "    wakeup 60.0 us 2%, return 2.00 us 0%",
        "    preempted 1.20 ms by hog[812] on cpu 0",
        "    irq_off 20.0 ms on cpu 1: kworker/1:2 kept interrupts off",
    ]
    assert full(one, dates=True)[0].startswith("2023-11-14 22:13:20.123456  read")


def test_waits_name_the_functions_in_which_a_task_slept() -> None:
    stack = ["ext4_buffered_write_iter", "ext4_file_write_iter", "vfs_write", "ksys_write", "outermost"]
    reported = {"stage": "fs", "reason": "lock of the file", "ns": 39_200_000, "count": 3, "stack": stack}
    known = {"stage": "dirty_limit", "reason": "dirty limit", "ns": 1_000_000, "count": 1, "stack": []}
    one = path.operation(waits=[reported, known])
    assert full(one, 200)[-2:] == [
        "    slept 39.2 ms in fs, lock of the file, 3 times: ext4_buffered_write_iter <- ext4_file_write_iter <-"
        " vfs_write <- ksys_write",
        "    slept 1.00 ms in dirty_limit, dirty limit",
    ]
    assert list(story.full(one, 200, False, False, verbose=True))[-2].endswith(" <- ksys_write <- outermost")


def test_a_request_that_nobody_waits_for() -> None:
    assert full(path.request())[:3] == [
        "22:13:20.000000  write request 3.62 ms  kworker/u8:1[71]",
        "    nvme0n1 sector 123456 +16 W  cpu 0 -> 1 -> 1 -> 0",
        "    |queue--|device------------------------------------------------------------|",
    ]
    assert full(path.request(error=5))[0].startswith("22:13:20.000000  write request 3.62 ms failed (EIO)")


def test_a_sync_behind_the_commit_of_another() -> None:
    commit = {
        "transaction": 12,
        "pid": 203,
        "comm": "jbd2/sda1-8",
        "requests": 37,
        "bytes": 16 << 20,
        "ns": 1_200_000_000,
        "flush_ns": 5_000_000,
        "handles": 260,
        "blocks": 14,
        "most": {"pid": 812, "comm": "cp", "handles": 258, "blocks": 12},
    }
    one = path.operation(commit=commit, offset=None, length=0, result=0, interference=[])._replace(
        group=path.OPERATION.group("nvme0n1", "sync")
    )
    reported = full(one)
    assert reported[1] == "    /var/lib/postgresql/15/main/base/16384/2619"
    assert reported[-3:] == [
        "    waited for commit 12 of jbd2/sda1-8[203];",
        "    it wrote 16 MiB in 37 requests and took 1.20 s (5.00 ms for flushes of the device's cache);",
        "    most of it by cp[812]: 258 of 260 changes, 12 of 14 blocks",
    ]
    assert list(story.short(one, 200))[1].endswith("; commit filled by cp[812]")
    own = {**commit, "most": {**commit["most"], "pid": one.fields["pid"]}}  # type: ignore[dict-item]
    assert "filled" not in list(story.short(path.operation(commit=own), 200))[1]
    assert full(path.operation(commit={"transaction": 12}))[-1] == "    waited for commit 12"


def test_a_write_that_waited_for_flushes() -> None:
    one = path.operation(flush={"before_ns": 5_000_000, "behind_ns": 0}, interference=[])
    assert full(one)[-1] == "    flush of the device's cache before the data 5.00 ms"
    both = path.operation(flush={"before_ns": 5_000_000, "behind_ns": 70_000}, interference=[])
    assert full(both)[-1].endswith("before the data 5.00 ms, flush of the device's cache behind the data 70.0 us")


def test_a_swap_in_is_of_no_file() -> None:
    assert full(path.operation(path="", inode=0))[1].strip().startswith("nvme0n1 sector")


def test_what_is_written_back_names_who_wrote_it_and_what_held_it() -> None:
    throttled = [{"controller": "io_max", "ns": 300_000_000}, {"controller": "tag", "ns": 2_000}]
    one = path.request(
        comm="postgres",
        pid=4711,
        tid=4711,
        dirty_ns=4_200_000_000,
        path="/srv/data",
        deleted=False,
        inode=131,
        offset=8192,
        throttled_by=throttled,
    )
    lines = full(one)
    assert lines[:3] == [
        "22:13:20.000000  write request 3.62 ms  postgres[4711]",
        "    /srv/data  offset 8192",
        "    nvme0n1 sector 123456 +16 W  cpu 0 -> 1 -> 1 -> 0  dirty 4.20 s",
    ]
    assert lines[-2:] == ["    held 300 ms by io.max of its cgroup", "    held 2.00 us by nobody: no tag was free"]


def test_a_flush_has_neither_a_sector_nor_somebody_who_made_it() -> None:
    flush = path.request(pid=0, tid=0, comm="", rwbs="F", bytes=0, sector=(1 << 64) - 1)
    flush = flush._replace(group=path.REQUEST.group("nvme0n1", "flush"))
    assert full(flush)[:2] == ["22:13:20.000000  flush request 3.62 ms  nobody", "    nvme0n1 F  cpu 0 -> 1 -> 1 -> 0"]
    assert next(story.short(flush, 80)) == "  22:13:20.000  flush request 3.62 ms  nobody"


@pytest.mark.parametrize(
    ("changes", "line", "reported"),
    [
        ({"result": -28}, 0, "read 3.69 ms failed (ENOSPC)"),
        ({"error": 5}, 0, "read 3.69 ms failed (EIO)"),
        ({"result": 4096}, 1, "+8192 (4096 done)"),
        ({"offset": None}, 1, "2619  +8192"),
        ({"deleted": True}, 1, "2619  (deleted)  offset 1048576 +8192"),
        ({"path": ""}, 1, "    inode 131  offset 1048576 +8192"),
        ({"requests": 3, "readahead": 1}, 2, "3 requests, 1 read ahead"),
        ({"requests": 1, "readahead": 1}, 2, "1 request, 1 read ahead"),
        ({"requests": 0}, 2, "    nvme0n1  cpu 0"),
        ({"cgroup": "/"}, 3, "    |"),
        ({"cpus": {"submit": 0, "issue": 2, "irq": None, "complete": 3, "wake": None}}, 2, "cpu 2 -> ? -> 3"),
    ],
)
def test_what_a_story_tells(changes: dict[str, Any], line: int, reported: str) -> None:
    assert reported in full(path.operation(**changes))[line]


def test_without_a_cpu_there_is_no_chain() -> None:
    none = {"submit": 1, "issue": None, "irq": None, "complete": None, "wake": None}
    shown = full(path.operation(path.HIT, requests=0, cpus=none, cgroup="/"))
    assert shown[0].startswith("22:13:20.123456  read hit 3.69 ms")
    assert shown[2] == "    nvme0n1"


@pytest.mark.parametrize(
    ("item", "reported"),
    [
        (path.interference("preempted", 1000, count=3), "preempted 1.00 us by hog[812] on cpu 0, 3 times"),
        (path.interference("hardirq", 1000, "nvme0q1", None, 2), "hardirq 1.00 us on cpu 2: nvme0q1"),
        (path.interference("softirq", 1000, "net_rx", None, None, 2), "softirq 1.00 us: net_rx, 2 times"),
        (path.interference("irq_off", 1000), "irq_off 1.00 us on cpu 0: hog[812] kept interrupts off"),
        (path.interference("before_wakeup", 1000), "waited 1.00 us to run on cpu 0: hog[812] ran there"),
        (path.interference("preempted", 1000, "", None, None), "preempted 1.00 us by somebody"),
        (path.interference("new_kind", 1000), "new_kind 1.00 us on cpu 0: hog[812]"),
    ],
)
def test_interference_in_words(item: dict[str, Any], reported: str) -> None:
    assert full(path.operation(interference=[item]))[-1] == f"    {reported}"
    assert reported[:30] in list(story.short(path.operation(interference=[item]), 120))[1]


def test_a_long_path_loses_folders_but_never_its_name() -> None:
    narrow, wide = full(path.operation(path=LONG))[1], full(path.operation(path=LONG), 250)[1]
    assert narrow == "    /var/.../a_file_whose_name_is_rather_long.dat  offset 1048576 +8192"
    assert LONG in wide
    name = "n" * 255
    assert name in full(path.operation(path=f"/x/{name}"))[1]
    assert LONG in full(path.operation(path=LONG), whole=True)[1]


paths = st.lists(st.text(min_size=1, max_size=30).filter(lambda name: "/" not in name), min_size=1, max_size=9)
times = st.lists(st.integers(0, 10**13), min_size=len(path.NAMES), max_size=len(path.NAMES))


@given(folders=paths, width=st.integers(60, 200), stages=times)
def test_every_line_fits_the_terminal(folders: list[str], width: int, stages: list[int]) -> None:
    one = path.operation(path="/" + "/".join(folders))._replace(
        stages=dict(zip(path.NAMES, stages)), total_ns=sum(stages)
    )
    name = text.printable(folders[-1])
    for line in full(one, width):
        assert line.isprintable()
        assert text.columns(line) <= width or name in line
    short = list(story.short(one, width))
    assert len(short) == 2
    assert all(text.columns(line) <= width for line in short)


# Each of five is rounded up, and none of them is large enough to make up for it.
@example(stages=[0, 0, 0, 1, 1, 1, 1, 1], width=4)
@given(stages=times, width=st.integers(1, 200))
def test_the_strip_has_the_width_and_all_that_is_large_enough(stages: list[int], width: int) -> None:
    whole = sum(stages) or 1
    parts = [story.Part(name, ns, ns / whole) for name, ns in zip(path.NAMES, stages)]
    line = story.strip(parts, width)
    assert len(line) in (width, 0)
    assert line or not any(round(part.share * (width - 1)) for part in parts)
    for part in parts:
        # The largest part makes up for rounding.
        if part.share * (width - 1) >= len(part.stage) + 6:
            assert f"|{part.stage}" in line
    assert line.isascii()


def test_the_strip_shares_its_width() -> None:
    parts = [story.Part("fs", 1, 0.25), story.Part("device", 2, 0.5), story.Part("return", 1, 0.25)]
    assert story.strip(parts, 41) == "|fs-------|device-------------|return---|"
    assert story.strip(parts, 5) == "f|dr|"


def test_the_short_form_tells_the_largest_stages_and_the_worst_interference() -> None:
    one = path.operation(
        interference=[path.interference("preempted", 10), path.interference("preempted", 2_000_000, "worst")]
    )
    assert list(story.short(one, 80)) == [
        "  22:13:20.123  read 3.69 ms  postgres[4711/4715]  /var/.../2619 at 1048576",
        "    nvme0n1: device 3.20 ms 87%, queue 410 us 11%; preempted 2.00 ms by worst...",
    ]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_shown_escaped(name: str) -> None:
    one = path.operation(
        dev=name,
        comm=name,
        path=f"/{name}/{name}",
        cgroup=f"/{name}",
        interference=[path.interference(kind, 10, name) for kind in ("preempted", name)],
    )
    shown = [*full(one, 400), *story.short(one, 400), *full(path.request(comm=name))]
    assert all(line.isprintable() for line in shown)
    assert "\n".join(shown).count(text.printable(name)) >= 10


def test_requests_of_the_level_block_have_no_story() -> None:
    assert not story.is_one(request_of_block())
    assert story.is_one(path.request())


def test_stretches_stand_in_the_order_of_time() -> None:
    lines = list(story.full(path.in_time(), 100, False, False))
    (strip,) = [line for line in lines if line.lstrip().startswith("|") or "|device" in line]
    assert strip.count("|device") == 2
    requests = [line for line in lines if " Q " in line]
    assert [line.split()[0] for line in requests] == ["259:0", "259:0"]
    assert not [line for line in lines if "in order of stages" in line]


def test_sums_of_several_waits_say_so() -> None:
    assert "    in order of stages, not of time" in list(story.full(path.operation(requests=2), 100, False, False))
    assert not [line for line in story.full(path.operation(), 100, False, False) if "in order of stages" in line]
