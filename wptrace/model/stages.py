# SPDX-License-Identifier: Apache-2.0
"""The stages of a flow: defined once here, read by tables, JSON, exports, the man page and the docs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

TOTAL = "total"
UNATTRIBUTED = "unattributed"


class Point(NamedTuple):
    """A moment in the life of a request, such as D, issued."""

    letter: str
    name: str


class Stage(NamedTuple):
    """The time between two points.

    `partition` says that the stage is one of those that share out the total; the others, such as
    interrupts, lie inside them and are not added to the sum.
    """

    name: str
    start: Point
    end: Point
    description: str
    meaning: str
    """What a large value means."""
    partition: bool = True
    unit: str = "ns"
    rare: bool = False
    """It has a row only where it took some time."""
    apart: bool = False
    """It is one of those that share out the total of rows of another kind, such as writeback."""
    outside: bool = False
    """It lies outside the total, as the sleep between two turns of a task does: no share, no interference."""

    @property
    def key(self) -> str:
        """The name in JSON, where the unit is part of the key."""
        return f"{self.name}_{self.unit}"


class StageTable:
    """The stages of one flow, in the order in which a request passes them.

    Iteration and `names` give the flow's own stages; look-up also knows the total and the unattributed rest.
    """

    __slots__ = ("_by_name", "partition", "stages", "total", "unattributed")

    def __init__(self, stages: Iterable[Stage]) -> None:
        self.stages = tuple(stages)
        self.partition = tuple(stage for stage in self.stages if stage.partition)
        if not self.partition:
            raise ValueError("a stage table needs a stage that is part of the total")
        start, end = self.partition[0].start, self.partition[-1].end
        self.total = Stage(
            TOTAL,
            start,
            end,
            f"the whole, from {start.name} to {end.name}",
            "it was slow: its largest stage says why",
            partition=False,
            unit=self.partition[0].unit,
        )
        self.unattributed = Stage(
            UNATTRIBUTED,
            start,
            end,
            "time of the request that no stage covers",
            "a hook is missing here or a path is not known: see wptrace doctor",
            partition=False,
            rare=True,
            unit=self.partition[0].unit,
        )
        self._by_name: dict[str, Stage] = {}
        for stage in self.rows:
            if stage.name in self._by_name:
                raise ValueError(f"two stages have the name {stage.name!r}")
            self._by_name[stage.name] = stage

    @property
    def rows(self) -> tuple[Stage, ...]:
        """Every line of a complete table: the stages, the unattributed rest, the total."""
        return (*self.stages, self.unattributed, self.total)

    @property
    def inside(self) -> tuple[Stage, ...]:
        """Those that lie inside the others, such as interrupts."""
        return tuple(stage for stage in self.stages if not (stage.partition or stage.apart or stage.outside))

    @property
    def timed(self) -> bool:
        """Whether its stages are times: a flow may also count something else."""
        return all(stage.unit == "ns" for stage in self.partition)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(stage.name for stage in self.stages)

    def __iter__(self) -> Iterator[Stage]:
        return iter(self.stages)

    def __len__(self) -> int:
        return len(self.stages)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> Stage:
        return self._by_name[name]

    def remainder(self, total: int, parts: Mapping[str, int]) -> int:
        """What `parts`, by stage name, leave of `total`; stages outside the partition do not count.

        Negative when the parts were not read from the kernel at the same moment as the total.
        """
        return total - sum(parts.get(stage.name, 0) for stage in self.partition)
