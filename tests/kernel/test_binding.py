# SPDX-License-Identifier: Apache-2.0
"""The binding to libbpf on a real kernel: globals, maps, programs, rings. A system call of these tests is the load."""

from __future__ import annotations

import ctypes
import os
import select
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.kernel.conftest import GUEST
from tests.kernel.trace import bpftool, wait_until
from wptrace.bpf import perf, targets
from wptrace.bpf.lib import libbpf
from wptrace.bpf.object import BpfObject
from wptrace.bpf.programs import run_statistics
from wptrace.bpf.ring import Reader, Ring
from wptrace.errors import LibbpfError, NotPermittedError, UsageError, VerifierError, WptraceError
from wptrace.model.distribution import Distribution, index

# getpgid(2) takes a number and does nothing with an invalid one; no other process calls it with that.
GETPGID = {"x86_64": 121, "aarch64": 155}[os.uname().machine]
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.argtypes = [ctypes.c_long, ctypes.c_long]

HARDENED = not GUEST


def call(argument: int = 0) -> None:
    _LIBC.syscall(GETPGID, argument)


@contextmanager
def attached(obj: BpfObject, *programs: str) -> Iterator[BpfObject]:
    for name in programs:
        obj.progs[name].autoload = True
    obj.bss.target_tgid = os.getpid()
    obj.bss.target_call = GETPGID
    obj.load()
    obj.attach()
    yield obj


@pytest.mark.one_kernel
def test_globals_hold_before_and_after_the_load(binding: BpfObject) -> None:
    assert binding.data.switched_on is True
    assert binding.data.tiny == -3
    binding.data.tiny = -100
    binding.bss.label = "x" * 15
    with attached(binding, "on_call"):
        assert binding.data.tiny == -100
        assert binding.bss.label == b"x" * 15
        for _ in range(7):
            call()
        assert binding.bss.calls == 7
        binding.data.switched_on = False
        call()
        assert binding.bss.calls == 7
        binding.data.switched_on = True
        binding.bss.target_tgid = 1
        call()
        assert binding.bss.calls == 7


@pytest.mark.one_kernel
def test_views_that_somebody_still_holds_do_not_keep_an_object_open(binding: BpfObject) -> None:
    """The traceback of a failed test holds such views."""
    before = binding.bss.view("label")
    with attached(binding, "on_call"):
        view = binding.view("calls")
        words = view.cast("Q")[::1]
        call()
        assert words[0] == 1
        binding.close()
    assert words[0] == 1, "its pages are still there"
    for gone in (before, view):
        with pytest.raises(ValueError, match="released"):
            gone.tobytes()
    for access in (lambda: binding.bss.calls, lambda: binding.view("calls"), lambda: setattr(binding.bss, "calls", 1)):
        with pytest.raises(WptraceError, match="calls cannot be accessed: its object is closed"):
            access()


@pytest.mark.one_kernel
def test_a_constant_holds_until_the_load(binding: BpfObject) -> None:
    binding.rodata.step = 5
    with attached(binding, "on_call"):
        call()
        assert binding.bss.calls == 5
        with pytest.raises(WptraceError, match="step is a constant of the loaded program") as caught:
            binding.rodata.step = 6
        assert caught.value.hint
        assert binding.rodata.step == 5


@pytest.mark.one_kernel
def test_values_are_checked_against_their_type(binding: BpfObject) -> None:
    with pytest.raises(UsageError, match="target_tgid"):
        binding.bss.target_tgid = -1
    with pytest.raises(UsageError, match="target_tgid"):
        binding.bss.target_tgid = 1 << 32
    with pytest.raises(UsageError, match="target_tgid"):
        binding.bss.target_tgid = "one"
    with pytest.raises(UsageError, match="tiny"):
        binding.data.tiny = 128
    with pytest.raises(AttributeError, match=r"has no global nonsense; it has .*target_tgid"):
        binding.bss.nonsense = 1
    with pytest.raises(UsageError, match="label"):
        binding.bss.label = "x" * 17


@pytest.mark.one_kernel
def test_a_struct_reads_as_clang_laid_it_out(binding: BpfObject) -> None:
    with attached(binding, "fill"):
        call()
        found = binding.bss.filled
    assert (found.flag, found.negative, found.wide) == (True, -7, 0xABCDEF0123)
    assert (found.colour, found.nested.low) == (2, -2)
    assert (found.nested.more.inner, found.nested.more.deep) == (200, 1 << 60)
    assert (found.bytes, found.name, found.numbers) == (b"\1\2\3\4", b"abc", (0, 0, 65535))
    assert binding.enum("colour") == ["red", "green", "blue"]


@pytest.mark.one_kernel
def test_a_struct_is_written_as_it_is_read(binding: BpfObject) -> None:
    with attached(binding, "fill"):
        call()
        binding.bss.given = binding.bss.filled
        assert binding.bss.given == binding.bss.filled


def test_hash_map(binding: BpfObject) -> None:
    with attached(binding, "on_call"):
        found = binding.maps["hash"]
        wanted = {key: {"low": -key, "more": {"inner": key % 256, "deep": key << 32}} for key in range(700)}
        for key, value in wanted.items():
            found[key] = value
        assert found[699].more.deep == 699 << 32
        assert sorted(found) == sorted(wanted)
        assert {key: value.low for key, value in found.items()} == {key: -key for key in wanted}
        del found[699]
        assert 699 not in found
        assert found.get(699) is None
        with pytest.raises(KeyError):
            found[699]
        with pytest.raises(KeyError):
            del found[699]
        assert len(list(found.items())) == 699


def test_array_map(binding: BpfObject) -> None:
    binding.maps["array"].max_entries = 650
    with attached(binding, "on_call"):
        found = binding.maps["array"]
        for key in range(650):
            found[key] = key * key
        assert dict(found.items()) == {key: key * key for key in range(650)}
        found[7] = 0
        assert list(found.used()) == [key * key for key in range(650) if key not in (0, 7)]
        with pytest.raises(UsageError, match="it ends at 649"):
            found[650] = 1
        with pytest.raises(UsageError):
            found[0] = -1


@pytest.mark.smp
def test_per_cpu_maps(binding: BpfObject) -> None:
    with attached(binding, "on_call"):
        for _ in range(10):
            call()
        values = binding.maps["per_cpu"][0]
        assert len(values) == libbpf().cpus
        assert sum(value.calls for value in values) == 10
        summed = binding.maps["per_cpu"].summed(0)
        assert (summed.calls, summed.pair) == (10, (0, 20))
        assert [key for key, _ in binding.maps["per_cpu"].items()] == [0, 1, 2]
        # 5.10 has no batches of such an array.
        assert binding.maps["per_cpu"].firsts(3) == (None if os.uname().release.startswith("5.10.") else [10, 0, 0])
        numbers = list(range(1, libbpf().cpus + 1))
        binding.maps["per_cpu_hash"][7] = numbers
        assert dict(binding.maps["per_cpu_hash"].items()) == {7: numbers}
        with pytest.raises(UsageError, match="one per CPU"):
            binding.maps["per_cpu_hash"][7] = [1] * (libbpf().cpus + 1)


@pytest.mark.one_kernel
def test_maps_are_not_there_before_the_load(binding: BpfObject) -> None:
    with pytest.raises(WptraceError, match="before its object is loaded"):
        binding.maps["hash"].get(1)
    with pytest.raises(KeyError, match=r"there are .*per_cpu"):
        binding.maps["nonsense"]


def test_every_record_arrives_in_order(binding: BpfObject) -> None:
    with attached(binding, "on_call"):
        ring = Ring.of(binding.maps["records"], binding.struct("record").struct)
        expected = 0
        # 4096 bytes hold 128 records of 24 and a header of 8, so this wraps many times.
        for round_ in range(60):
            for argument in range(100):
                call(argument)
            records = ring.read()
            assert [record[0] for record in records] == list(range(expected, expected + 100))
            assert [record[1] for record in records] == list(range(100))
            assert {record[2] for record in records} == {os.getpid()}
            expected += 100
            assert ring.records == expected, round_
        assert binding.bss.ring_full == 0
        ring.close()


@pytest.mark.one_kernel
def test_a_full_ring_counts_what_it_lost(binding: BpfObject) -> None:
    with attached(binding, "on_call"):
        ring = Ring.of(binding.maps["records"], binding.struct("record").struct)
        for _ in range(1000):
            call()
        received = len(ring.read())
        assert ring.fill > 0.9
        assert received + binding.bss.ring_full == 1000
        assert received == binding.bss.sequence > 0
        call()
        assert len(ring.read()) == 1
        ring.close()


@pytest.mark.one_kernel
def test_discarded_records_are_left_out(binding: BpfObject) -> None:
    binding.bss.discard_every = 3
    with attached(binding, "on_call"):
        ring = Ring.of(binding.maps["records"], binding.struct("record").struct)
        for _ in range(90):
            call()
        assert [record[0] for record in ring.read()] == [number for number in range(90) if number % 3]
        assert ring.discarded == 30
        ring.close()


@pytest.mark.one_kernel
def test_a_rare_event_wakes_the_reader(binding: BpfObject) -> None:
    import struct

    binding.bss.alarm_at = 5
    with attached(binding, "on_call"):
        common: list[object] = []
        rare: list[object] = []
        reader = Reader()
        reader.add(Ring.of(binding.maps["records"], binding.struct("record").struct), common.extend)
        alarms = Ring.of(binding.maps["alarms"], struct.Struct("<Q"))
        reader.add(alarms, rare.extend, rare=True)
        poll = select.poll()
        poll.register(alarms.fd, select.POLLIN)
        for _ in range(4):
            call()
        assert poll.poll(0) == []
        call()
        assert poll.poll(60_000) != []
        reader.wait(60)
        assert reader.drain() == 6
        assert (len(common), rare) == (5, [(5,)])


@pytest.mark.one_kernel
def test_the_histogram_is_the_engines(binding: BpfObject) -> None:
    """bpf_src/lib/hist.h and wptrace/model/distribution.py agree on every value."""
    values = {0, 1, 7, 8, 9, 15, 16, 1000, (1 << 32) - 1, 1 << 32, 1 << 41, (1 << 42) - 1, 1 << 42, (1 << 62) + 5}
    values |= {(1 << power) + offset for power in range(3, 60) for offset in (-1, 0, 1, (1 << power) // 2)}
    with attached(binding, "on_call"):
        made = Distribution()
        for value in sorted(values):
            before = list(binding.bss.hist.slots)
            call(value)
            after = binding.bss.hist.slots
            (slot,) = [place for place, (new, old) in enumerate(zip(after, before)) if new != old]
            assert slot == index(value), value
            made.add(value)
        found = binding.bss.hist
    assert (sum(found.slots), found.low ^ (1 << 64) - 1, found.max) == (made.count, made.min, made.max)
    assert found.sum == made.sum & (1 << 64) - 1


@pytest.mark.one_kernel
def test_the_faster_way_into_a_histogram_is_the_same(binding: BpfObject) -> None:
    """Values are at the bounds of its branches: 2 us, half a millisecond, and below 0 by the clocks of two CPUs."""
    edges = (1 << 11, 1 << 19, 1 << 27, 1 << 35, 1 << 42, 1 << 62)
    values = {0, 1, 8, *(edge + offset for edge in edges for offset in (-257, -256, -1, 0, 1, 255, 256, edge // 2))}
    with attached(binding, "on_call"):
        made = Distribution()
        for value in [*sorted(values), (1 << 63) + 5, (1 << 64) - 1]:
            before = [list(stage.slots) for stage in binding.bss.cell.stages]
            call(value)
            after = [stage.slots for stage in binding.bss.cell.stages]
            counted = value if value < 1 << 63 else 0
            for new, old in zip(after, before):
                assert [place for place, (one, other) in enumerate(zip(new, old)) if one != other] == [index(counted)]
            made.add(counted)
        for stage in binding.bss.cell.stages:
            assert (sum(stage.slots), stage.low ^ (1 << 64) - 1, stage.max) == (made.count, made.min, made.max)
            assert stage.sum == made.sum & (1 << 64) - 1


@pytest.mark.one_kernel
@pytest.mark.parametrize(
    ("values", "error"),
    [
        ([(1 << 32) - 1 - number for number in range(10)] + [123_456_789, 1], 0),
        ([(1 << power) + 12_345 for power in range(32, 47)], 1 / 30_000),
    ],
)
def test_the_sum_of_squares_has_128_bits(binding: BpfObject, values: list[int], error: float) -> None:
    with attached(binding, "on_call"):
        for value in values:
            call(value)
        found = binding.bss.hist
    exact = sum(value * value for value in values)
    assert found.squares_high > 0
    assert abs((found.squares_high << 64) + found.squares - exact) <= exact * error


def test_a_refused_program_says_why(binding: BpfObject) -> None:
    binding.progs["refused"].autoload = True
    with pytest.raises(VerifierError) as caught:
        binding.load()
    assert caught.value.program == "refused"
    assert "map_value_or_null" in caught.value.log
    assert len(caught.value.log.splitlines()) <= 12
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("program", ["on_tp_btf", "on_tracepoint", "on_fentry", "on_fexit"])
def test_program_types_attach_and_run(binding: BpfObject, program: str, tmp_path: Path) -> None:
    binding.bss.target_tgid = os.getpid()
    found = binding.progs[program]
    found.autoload = True
    if HARDENED and program in ("on_fentry", "on_fexit"):
        with pytest.raises(NotPermittedError) as caught:
            binding.load()
        assert caught.value.program == program
        assert caught.value.exit_code == 3
        return
    binding.load()
    with closing(found.attach()) as link, (tmp_path / "file").open("w") as file:
        assert link.where == found.section
        file.write("x")
        os.fsync(file.fileno())
        assert binding.bss.hits >= 1
    before = binding.bss.hits
    with (tmp_path / "file").open("w") as file:
        os.fsync(file.fileno())
    assert binding.bss.hits == before


def test_a_program_goes_where_it_is_aimed(binding: BpfObject) -> None:
    """The section says sys_enter and the target is sys_exit, which counts the same calls. libbpf resolves nothing."""
    aimed = binding.progs["on_tp_btf"]
    aimed.autoload = True
    aimed.target = targets.find("tp_btf/sys_exit", ())
    assert aimed.target is not None
    binding.load()
    lib = libbpf()
    reported = lib.ffi.new("struct bpf_prog_info *")
    size = lib.ffi.new("__u32 *", lib.ffi.sizeof("struct bpf_prog_info"))
    lib.check(lib.lib.bpf_obj_get_info_by_fd(aimed.fd, reported, size), "nothing is known of it")
    # Kernels before 5.17 do not report it.
    assert reported.attach_btf_id in (aimed.target.type_id, 0)
    with closing(aimed.attach()):
        binding.bss.target_tgid = os.getpid()
        for _ in range(10):
            call()
        binding.bss.target_tgid = 0
        assert binding.bss.hits >= 10


@pytest.mark.parametrize("program", ["on_kprobe", "on_kretprobe"])
def test_kprobes_attach_and_run(binding: BpfObject, program: str, tmp_path: Path) -> None:
    binding.progs[program].autoload = True
    binding.bss.target_tgid = os.getpid()
    binding.load()
    if HARDENED:
        with pytest.raises(LibbpfError, match=f"cannot be attached to {binding.progs[program].section}"):
            binding.progs[program].attach()
        return
    with closing(binding.progs[program].attach()), (tmp_path / "file").open("w") as file:
        os.fsync(file.fileno())
        # An fsync of an overlay calls another one below.
        assert binding.bss.hits > 0


def test_a_clock_event_runs_its_program(binding: BpfObject) -> None:
    binding.progs["on_perf_event"].autoload = True
    binding.load()
    fd = perf.open_event(perf.CPU_CLOCK, -1, 1_000_000, os.getpid())
    with closing(binding.progs["on_perf_event"].attach_perf_event(fd)):
        wait_until(lambda: sum(range(10_000)) and binding.bss.hits >= 3, "three overflows")


@pytest.mark.one_kernel
def test_attach_to_what_is_not_there(binding: BpfObject) -> None:
    binding.progs["on_nonsense"].autoload = True
    binding.load()
    with pytest.raises(LibbpfError, match="raw_tp/nonsense"):
        binding.progs["on_nonsense"].attach()


@pytest.mark.one_kernel
def test_autoload_is_settled_by_the_load(binding: BpfObject) -> None:
    with attached(binding, "on_call"), pytest.raises(LibbpfError, match="autoload of program on_call"):
        binding.progs["on_call"].autoload = False
    assert not binding.progs["fill"].autoload


def test_run_statistics_count_runs(binding: BpfObject) -> None:
    with attached(binding, "on_call"), run_statistics():
        before = binding.progs["on_call"].statistics()
        for _ in range(50):
            call()
        after = binding.progs["on_call"].statistics()
    # Every system call of the machine runs the program.
    assert after.run_count - before.run_count >= 50
    assert after.run_time_ns > before.run_time_ns
    assert after.translated_bytes > 0


@pytest.mark.one_kernel
def test_what_is_loaded_is_what_bpftool_sees(binding: BpfObject) -> None:
    with attached(binding, "on_call", "fill"):
        by_id = bpftool("prog")
        for name in ("on_call", "fill"):
            assert by_id[binding.progs[name].statistics().id]["name"] == name
        assert binding.maps["hash"].memory() > 0
    ours = {binding.progs[name].statistics().id for name in ("on_call", "fill")}
    binding.close()
    # The kernel frees programs a moment later (RCU).
    wait_until(lambda: not ours & bpftool("prog").keys(), "the programs to go")


@pytest.mark.one_kernel
def test_closing_twice_is_harmless(binding: BpfObject) -> None:
    with attached(binding, "on_call"):
        pass
    binding.close()
    binding.close()
