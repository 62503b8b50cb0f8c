# SPDX-License-Identifier: Apache-2.0
"""Stacked devices, one of them slow, in guests whose clock counts instructions: which one gets the time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.kernel.disks import Disk, fio, fio_jobs
from tests.kernel.stacks import array, delayed, linear
from tests.kernel.test_layers import (
    disks_in_memory,
    mirror,
    same_as_counted,
    sends_by_name,
    waited_for_mirror,
    watched,
)
from tests.kernel.trace import Line, findings
from tests.kernel.window import Running, path_of

pytestmark = [pytest.mark.guest, pytest.mark.icount]

# The timer of dm-delay counts ticks, and the first one may be almost over.
TICK_NS = 4_000_000
LEVELS = 3


class Stacks(NamedTuple):
    delay: list[Disk]
    """The disk and the device on it, as in the following lists."""
    chains: list[list[Disk]]
    """Three levels on a disk each: the first level of the first chain is slow, the second of the second, and so on."""
    arrays: dict[str, list[Disk]]
    """Disks, the array of them and a delay on that, by level."""
    mirror: tuple[Disk, Disk, Path]
    legs: list[Disk]


@pytest.fixture(scope="module")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    with ExitStack() as stack:

        def nulls(name: str, number: int) -> list[Disk]:
            return stack.enter_context(disks_in_memory(name, number))

        (disk,) = nulls("d", 1)
        delay = [disk, stack.enter_context(delayed(disk, 20, 40))]
        chains = []
        for slow, disk in enumerate(nulls("c", LEVELS)):
            chain = [disk]
            for level in range(LEVELS):
                below = chain[-1]
                chain.append(stack.enter_context(delayed(below, 40, 40) if level == slow else linear(below)))
            chains.append(chain)
        arrays = {}
        for kind in ("raid0", "raid1"):
            disks = nulls(kind, 2)
            below = stack.enter_context(array(kind, *disks))
            arrays[kind] = [*disks, below, stack.enter_context(delayed(below, 40, 40))]
        legs = prompt, late = nulls("m", 2)
        mirrored = stack.enter_context(mirror(prompt, late, tmp_path_factory.mktemp("mirror") / "fs"))
        yield Stacks(delay, chains, arrays, mirrored, legs)


@pytest.fixture(scope="module")
def flow(stacks: Stacks) -> Iterator[Running]:
    tops = (stacks.delay[-1], *(chain[-1] for chain in (*stacks.chains, *stacks.arrays.values())), stacks.mirror[0])
    with path_of(*tops) as made:
        yield made


def of(disk: Disk, operations: list[Line]) -> list[Line]:
    return [one for one in operations if one["path"] == disk.path]


def test_a_delay_takes_as_long_as_set(stacks: Stacks, flow: Running) -> None:
    disk, top = stacks.delay
    with watched(top, [top, disk], flow) as found:
        fio(top.path, rw="randrw", number_ios=40)
    assert len(found.mine()) == 40
    for one in found.mine():
        delay = {"read": 20_000_000, "write": 40_000_000}[one["op"]]
        assert delay - TICK_NS <= one["stages"]["layers_ns"] <= delay + 2 * TICK_NS, one
        assert one["stages"]["layers_ns"] > 0.9 * one["total_ns"], one
    # The disk below is as fast as before, so it is not named.
    largest = findings(found.summary)["largest"]
    assert (largest["stage"], largest["who"]) == ("layers", top.name)


@pytest.mark.parametrize("levels", [*(pytest.param(few, marks=pytest.mark.one_kernel) for few in (1, 2)), LEVELS])
def test_a_delay_at_any_level_is_the_layers(stacks: Stacks, flow: Running, levels: int) -> None:
    """Whichever device holds a bio back, the time is in `layers` and not in `fs`."""
    # With fewer levels, the chains that are slow higher up are left out.
    chains = [chain[: levels + 1] for chain in stacks.chains[:levels]]
    with watched(chains[0][-1], [disk for chain in chains for disk in chain], flow) as found:
        fio_jobs(*({"filename": chain[-1].path, "rw": "randrw", "number_ios": 10, "stonewall": 1} for chain in chains))
    assert len(found.mine()) == 10 * levels
    for slow, (disk, *layers) in enumerate(chains):
        same_as_counted(found, layers, [disk])
        mine = of(layers[-1], found.mine())
        assert len(mine) == 10
        for one in mine:
            stages = one["stages"]
            assert stages["layers_ns"] > 30_000_000, (slow, one)
            assert stages["fs_ns"] < 10_000_000, (slow, one)


def test_an_array_below_a_delay(stacks: Stacks, flow: Running) -> None:
    """Asynchronous writes. raid0 remaps the bio that it got, raid1 makes several."""
    tops = {level: every[-1] for level, every in stacks.arrays.items()}
    options = {"rw": "randwrite", "number_ios": 10, "ioengine": "io_uring", "iodepth": 2, "stonewall": 1}
    every = [disk for disks in stacks.arrays.values() for disk in (*disks[:2], disks[-1])]
    with watched(every[-1], every, flow) as found:
        fio_jobs(*({"filename": top.path, **options} for top in tops.values()))
    # There are none if asynchronous operations are not seen.
    assert len(found.mine()) in (0, 20)
    for level, top in tops.items():
        assert len(of(top, found.mine())) == len(found.mine()) / 2
        for one in of(top, found.mine()):
            assert one["stages"]["layers_ns"] > 30_000_000, (level, one)
            assert one["stages"]["fs_ns"] < 10_000_000, (level, one)


def test_the_slower_leg_of_a_mirror(stacks: Stacks, flow: Running) -> None:
    """The operation waits for that leg."""
    (top, late, file), (prompt, slow) = stacks.mirror, stacks.legs
    with watched(top, [top, late, prompt, slow], flow) as found:
        fio(str(file), rw="randwrite", number_ios=30, size="4M", overwrite=1)
    mine = waited_for_mirror(found, late, prompt, slow, 30)
    assert {one["dev"] for one in mine} == {(slow if sends_by_name() else prompt).name}
    assert min(one["stages"]["layers_ns"] for one in mine) >= 20_000_000 - TICK_NS
