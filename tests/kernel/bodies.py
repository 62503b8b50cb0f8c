# SPDX-License-Identifier: Apache-2.0
"""Programs that are attached to nothing: the kernel runs each once, on arguments that a test chose."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from tests.kernel.byhand import Run
from wptrace.bpf import trial
from wptrace.bpf.generated import Generated, Target
from wptrace.engine.definition import emit
from wptrace.engine.definition.flow import Slots
from wptrace.engine.definition.programs import bodies
from wptrace.engine.definition.recipe import ARGUMENT, RAW_TP, Attachment, Recipe

POINTS = 8


class Bodies:
    """The object of flows by definition, and programs with key, other key, value, label, mark and failure."""

    def __init__(
        self,
        slots: int = 1024,
        rows: int = 64,
        asks: bool = False,
        kept: Mapping[str, bool] | None = None,
        **globals_: Any,
    ) -> None:
        kept = kept or {}
        self.obj = trial.open_here("generic")
        obj = self.obj
        for program in obj.progs.values():
            program.autoload = program.name.endswith("_asking") == asks or program.name in ("end", "drop")
        Slots.reserve(obj, slots)
        obj.maps["rows"].max_entries = obj.maps["cells"].max_entries = rows + 1
        obj.maps["row_numbers"].max_entries = obj.maps["taken"].max_entries = rows
        obj.rodata.without_exchange = not trial.exchanges()
        self._kept = {name: bool(kept.get(name)) for name in ("valued", "marked", "emits_records", "shedding")}
        self._kept |= {"several": "stage_count" in globals_, "labelled": "label_words" in globals_}
        self._slot_bits = slots.bit_length() - 1
        obj.rodata.row_count = rows
        self._stages = globals_.pop("stage_count", POINTS - 1)
        for name, value in globals_.items():
            section = next(one for one in (obj.rodata, obj.data, obj.bss) if name in dir(one))
            setattr(section, name, value)
        obj.load()
        self.found = bodies(obj)
        self.slots = Slots(obj)
        self.made: list[Generated] = []

    def make(self, body: str, point: int = 0, outcome: int = 0, after: int = 0, labels: int = 0, **flags: bool) -> Run:
        """Generate a program, with flags as in args.h.

        It runs on a key, the other key, the value and the labels; the mark is at place 5.
        """
        given = {**self._kept, **flags}
        bits = sum(1 << self.found.flags[name] for name, on in given.items() if on)
        bits |= after << self.found.shifts["after"] | outcome << self.found.shifts["outcome"]
        bits |= ((1 << labels) - 1) << self.found.shifts["labels"]
        number = Recipe(ARGUMENT, 5)
        marked = flags.get("mark"), flags.get("reached")
        attachment = Attachment(
            RAW_TP,
            "test",
            0,
            "",
            (Recipe(ARGUMENT, 0, pointer=True),),
            Recipe(ARGUMENT, 1, pointer=True) if flags.get("other") else None,
            Recipe(ARGUMENT, 2) if flags.get("value") else None,
            tuple(Recipe(ARGUMENT, 3 + at) for at in range(labels)),
            (),
            number if marked[0] else None,
            number if marked[1] else None,
            None,
        )
        constants = emit.Constants(
            point, bits, self._slot_bits, self._stages, tuple(range(labels)), (), not self.obj.rodata.without_exchange
        )
        code = emit.program(attachment, constants, self.found.code[body], self.found.stand_ins, os.uname().machine)
        self.made.append(Generated(body, Target(RAW_TP, "test"), code))
        return Run(self.made[-1].fd)

    @property
    def losses(self) -> dict[str, int]:
        found = dict(zip(self.obj.enum("generic_cause"), self.obj.bss.loss))
        return {name: count for name, count in found.items() if count}

    def cell(self, row: int = 0) -> Mapping[str, int]:
        """Return the fields of a row, summed over all CPUs, and the number of values in each distribution."""
        codec = self.obj.struct("cell")
        memory = self.obj.maps["cells"].raw(row.to_bytes(4, "little"))
        assert memory is not None
        found: dict[str, int] = {}
        for cpu in range(len(memory) // codec.size):
            fields = dict(zip(codec.fields, codec.struct.unpack_from(memory, cpu * codec.size)))
            for name, value in fields.items():
                stage, slot, _ = name.partition(".slots[")
                if name.startswith("stages[") and not slot:
                    continue
                found[stage] = found.get(stage, 0) + value
        return {name: count for name, count in found.items() if count}

    def __enter__(self) -> Bodies:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.slots.close()
        for program in self.made:
            program.close()
        self.obj.close()
