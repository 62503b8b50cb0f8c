# SPDX-License-Identifier: Apache-2.0
"""Modes of wptrace and other tools, and what each of them shows for its cost."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

from tests.lab import peers

# Memory: a disk of the guest would be traced itself.
OUTPUT, CAPTURE = "/dev/shm/bench-output", "/dev/shm/bench-capture"  # noqa: S108


ALL_LOADS = ("inline", "late", "hit", "none")


class Tool(NamedTuple):
    name: str
    shows: str
    arguments: tuple[str, ...]
    peer: str = ""
    """The other tool's program; empty for wptrace."""
    streams: bool = False
    """It reports each event, so the cost of its reader counts."""
    programs: int = 1
    """So many programs are loaded at least when it is ready; 0 for one that loads none."""
    loads: tuple[str, ...] = ALL_LOADS
    per_line: str = ""
    """A text in each line about one of fio's requests; empty where it does not print such lines."""

    @property
    def captures(self) -> bool:
        """It writes no lines about requests; its last one says how many there would be."""
        return "--capture" in self.arguments

    @property
    def waits(self) -> bool:
        """It loses nothing while it is stopped. So it is stopped while the load runs, whose time is the programs' then;
        what its reader takes is seen afterwards."""
        return not self.streams or not self.peer

    def command(self, disks: Sequence[str]) -> list[str]:
        """Return the command line for these disks. Peers that can name only one disk see all of them."""
        if self.peer:
            words = [word for argument in self.arguments for word in _per_disk(argument, disks)]
            return peers.command(self.peer, *words, recipe=peers.ALL)
        words = [word for argument in self.arguments for word in _per_disk(argument, disks)]
        return [sys.executable, "-m", "wptrace", *words, "--json"]


def _per_disk(word: str, disks: Sequence[str]) -> list[str]:
    if word == "DISKS":
        return [option for disk in disks for option in ("--dev", disk)]
    if word == "DEVICES":
        return [option for disk in disks for option in ("-d", f"/dev/{disk}")]
    return [word]


def _io(name: str, shows: str, *arguments: str, streams: bool = False, loads: tuple[str, ...] = ()) -> Tool:
    loads = loads or ALL_LOADS
    # Records of the block layer do not say whose they are.
    mark = '"kind":"request"' if "block" in arguments else '"comm":"fio"'
    return Tool(name, shows, ("io", "DISKS", *arguments), streams=streams, loads=loads, per_line=mark)


_BLOCK = ("inline", "late")
# Room for all records of a run.
_ROOM = ("--ring-size", "32M")

KERNEL_STAMPS, OWN_TIMES = "io --level block --times kernel", "io --level block --times own"


def _flow(name: str, shows: str, *options: str) -> Tool:
    arguments = ("flow", f"bench/flows/{name}.toml", *options)
    return Tool(" ".join(("flow", name, *options[:1])), shows, arguments, loads=("inline",), programs=2)


FLOWS = (
    _flow("two", "a definition: issue to completion"),
    _flow("row", "the same, with bytes and a row for each disk"),
    _flow("three", "a definition: bio to request to completion, percentiles of both stages"),
    _flow("three", "the same, and a record of each of the last ones", "--recorder", "16M"),
    _flow("six", "a definition: six points, two of them functions"),
    _flow("none", "a definition whose two points filter everything out"),
)

WPTRACE = (
    _io(
        KERNEL_STAMPS,
        "requests: 2 stages, percentiles",
        *("--level", "block", "--times", "kernel"),
    ),
    _io(
        OWN_TIMES,
        "requests: 2 stages, percentiles, exact times",
        *("--level", "block", "--times", "own"),
    ),
    _io(
        "io --level block --each",
        "every request with its stages, to a file",
        *("--level", "block", "--times", "kernel", "--each", *_ROOM),
        streams=True,
        loads=_BLOCK,
    ),
    _io(
        "io --level block --recorder",
        "2 stages, percentiles, and a record of each of the last ones",
        *("--level", "block", "--times", "kernel", "--recorder", "16M"),
    ),
    _io("io --level request", "requests: 5 stages, percentiles, and who sleeps for them", "--level", "request"),
    _io("io", "system calls and requests: 8 stages, percentiles, page-cache hits"),
    _io("io --interference", "the same, and who took the CPU", "--interference"),
    _io("io --by process", "the same, and a row for each process", "--by", "process"),
    _io("io --by cgroup", "and for each cgroup", "--by", "cgroup"),
    _io("io --by call", "and for each system call", "--by", "call"),
    _io("io --by file", "and for each file", "--by", "file"),
    _io("io --by cgroup --neighbours", "and who had the device meanwhile", "--neighbours"),
    _io("io --slow 1s", "the same as io, and the story of each slow one (here: none)", "--slow", "1s"),
    _io("io --recorder", "the same as io, and a record of each of the last ones", "--recorder", "16M"),
    _io("io --each", "the story of every one: stages, file, CPUs; to a file", "--each", *_ROOM, streams=True),
    _io(
        "io --each --capture",
        "the same, to a file for wptrace replay",
        *("--each", "--capture", CAPTURE, *_ROOM),
        streams=True,
    ),
    Tool("size", "sizes, sequential or not", ("size", "DISKS"), loads=_BLOCK),
    Tool("stacks", "kernel stacks that start I/O, with latency", ("stacks", "DISKS"), loads=_BLOCK),
    Tool("cpu", "wait for a CPU, run time, who ran instead", ("cpu",)),
    Tool("irqoff", "periods with interrupts off, their owner's stack", ("irqoff", "--counter", "none")),
    *FLOWS,
)


def _bpftrace(name: str, shows: str, text: str, *, loads: tuple[str, ...], programs: int = 2) -> Tool:
    return Tool(f"bpftrace {name}", shows, ("-e", text), peer="bpftrace", loads=loads, programs=programs)


_RQ = "@start[args.dev, args.sector]"


def _passing(at: str, key: str, stage: str) -> str:
    """A point of an object in a script: its time since the point before, and the time of this one."""
    return f" {at} {{ $k = (uint64){key}; if (@at[$k]) {{ @{stage} = hist(nsecs - @at[$k]); @at[$k] = nsecs; }} }}"


def _beginning(at: str, key: str) -> str:
    return f"{at} {{ @start[(uint64){key}] = nsecs; @at[(uint64){key}] = nsecs; }}"


def _becoming(at: str, old: str, new: str, stage: str) -> str:
    """It is found by another key from there on."""
    return (
        f" {at} {{ $k = (uint64){old}; $n = (uint64){new}; if (@at[$k]) {{ @{stage} = hist(nsecs - @at[$k]);"
        f" @start[$n] = @start[$k]; @at[$n] = nsecs; delete(@start[$k]); delete(@at[$k]); }} }}"
    )


def _ending(at: str, key: str, stage: str, more: str = "") -> str:
    return (
        f" {at} {{ $k = (uint64){key}; if (@at[$k]) {{ @{stage} = hist(nsecs - @at[$k]);"
        f" @total = hist(nsecs - @start[$k]);{more} delete(@start[$k]); delete(@at[$k]); }} }}"
    )


_BIO, _REQUEST = "((struct request *)arg0)->bio", "arg0"
_ISSUED = _becoming("rawtracepoint:block_rq_issue", _BIO, _REQUEST, "queued")
_COMPLETED = "rawtracepoint:block_rq_complete"

PEERS = (
    Tool("biolatency", "one histogram: issue to completion", (), "biolatency-libbpf", programs=2, loads=_BLOCK),
    Tool(
        "biolatency -Q", "one histogram: insert to completion", ("-Q",), "biolatency-libbpf", programs=2, loads=_BLOCK
    ),
    Tool("biosnoop", "a line a request: latency, comm, disk", (), "biosnoop-libbpf", True, 3, _BLOCK, "fio"),
    Tool(
        "biostacks", "kernel stacks that start I/O, a histogram each", (), "biostacks-libbpf", programs=2, loads=_BLOCK
    ),
    Tool("bitesize", "one histogram of sizes by comm", (), "bitesize-libbpf", loads=_BLOCK),
    Tool(
        "ext4slower",
        "a line an operation above 10 ms (here: none)",
        ("-t", "ext4"),
        "fsslower-libbpf",
        loads=("hit", "none"),
    ),
    Tool(
        *("ext4slower -m 0", "a line an operation: latency, file, comm", ("-t", "ext4", "-m", "0"), "fsslower-libbpf"),
        streams=True,
        loads=("hit", "none"),
        per_line="fio",
    ),
    Tool("runqlat", "one histogram: wait for a CPU", (), "runqlat-libbpf", programs=3),
    _bpftrace(
        "biolatency",
        "one histogram: issue to completion",
        f"tracepoint:block:block_rq_issue {{ {_RQ} = nsecs; }}"
        f" tracepoint:block:block_rq_complete /{_RQ}/ {{ @ns = hist(nsecs - {_RQ}); delete({_RQ}); }}",
        loads=_BLOCK,
    ),
    _bpftrace(
        "three",
        "what flow three tells, without percentiles",
        _beginning("rawtracepoint:block_getrq", "arg0") + _ISSUED + _ending(_COMPLETED, _REQUEST, "device"),
        loads=("inline",),
        programs=3,
    ),
    _bpftrace(
        "six",
        "what flow six tells, without percentiles",
        _beginning("fentry:submit_bio_noacct_nocheck", "args.bio")
        + _passing("rawtracepoint:block_bio_queue", "arg0", "submit")
        + _passing("rawtracepoint:block_getrq", "arg0", "queue")
        + _ISSUED
        + _passing("fentry:blk_mq_end_request", "args.rq", "device")
        + _ending(_COMPLETED, _REQUEST, "ending"),
        loads=("inline",),
        programs=6,
    ),
    _bpftrace(
        "vfs_read",
        "one histogram: time in vfs_read",
        "fentry:vfs_read { @start[tid] = nsecs; } fexit:vfs_read /@start[tid]/"
        " { @ns = hist(nsecs - @start[tid]); delete(@start[tid]); }",
        loads=ALL_LOADS,
    ),
    _bpftrace(
        "bitesize",
        "one histogram of sizes",
        "tracepoint:block:block_rq_issue { @bytes = hist(args.bytes); }",
        loads=_BLOCK,
        programs=1,
    ),
    Tool(
        "blktrace",
        "every event of the block layer, binary, to files",
        ("DEVICES", "-D", "/dev/shm"),  # noqa: S108
        "blktrace",
        streams=True,
        programs=0,
        loads=_BLOCK,
    ),
)

_SKB = "args.skbaddr"
PACKETS = (
    Tool("flow netrx", "received packets: stages, device, reason of a drop", ("flow", "netrx"), programs=8),
    _bpftrace(
        "netrx",
        "the same for datagrams, without percentiles and rows",
        _beginning("tracepoint:net:netif_receive_skb", _SKB)
        + _passing("fentry:ip_rcv_core", "args.skb", "receive")
        + _passing("fentry:udp_rcv", "args.skb", "ip")
        + _passing("tracepoint:skb:skb_copy_datagram_iovec", _SKB, "l4")
        + _ending("tracepoint:skb:kfree_skb", _SKB, "l4", " @reasons[args.reason] = count();")
        + _ending("tracepoint:skb:consume_skb", _SKB, "user")
        + _ending("fentry:skb_release_head_state", "args.skb", "freed"),
        loads=(),
        programs=7,
    ),
)
"""Of packets, which have a load of their own."""

TOOLS = (*WPTRACE, *PEERS)


def chosen(words: Sequence[str]) -> list[Tool]:
    """Those whose name is one of the words, or has it in it where none is called so; all without words."""
    names = {tool.name for tool in TOOLS}
    return [
        tool
        for tool in TOOLS
        if not words or any(word == tool.name if word in names else word in tool.name for word in words)
    ]
