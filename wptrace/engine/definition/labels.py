# SPDX-License-Identifier: Apache-2.0
"""Names for the values of labels."""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from wptrace.engine.definition import definition as spec
from wptrace.engine.definition.resolved import Label
from wptrace.kernel import tasks
from wptrace.kernel.blockdev import maj_min
from wptrace.model import kind as model

if TYPE_CHECKING:
    from wptrace.kernel.cgroup_names import CgroupNames
    from wptrace.kernel.symbols import KernelSymbols

REST = "(rest)"
"""The value for all objects that found no row of their own."""


class Names:
    """Decodes labels as the programs store them."""

    @cached_property
    def _cgroups(self) -> CgroupNames:
        from wptrace.kernel.cgroup_names import CgroupNames

        return CgroupNames()

    @cached_property
    def _symbols(self) -> KernelSymbols:
        from wptrace.kernel.symbols import KernelSymbols

        return KernelSymbols()

    def of(self, label: Label, words: Sequence[int]) -> Hashable:
        """Decode a label from its words."""
        if label.type == spec.TEXT:
            return tasks.comm(b"".join(word.to_bytes(8, "little") for word in words))
        return self._known.get(label.type, self._number)(label, words[0])

    @cached_property
    def _known(self) -> dict[str, Callable[[Label, int], Hashable]]:
        return {
            spec.HEX: lambda _, value: f"{value:#x}",
            spec.SYMBOL: lambda _, value: self._symbol(value),
            spec.CGROUP: lambda _, value: self._cgroups.of(value),
            spec.ENUM: lambda label, value: label.names.get(value & 0xFFFFFFFF, label.names.get(value, str(value))),
            spec.SYSCALL: lambda label, value: label.names.get(value, f"call {value}"),
            spec.DEVICE: lambda _, value: maj_min(value),
            spec.ADDRESS: lambda _, value: ".".join(map(str, struct.pack("=I", value & 0xFFFFFFFF))),
            spec.CPU: lambda _, value: value,
        }

    @staticmethod
    def _number(_: Label, value: int) -> Hashable:
        return value - (1 << 64) if value >> 63 else value

    def _symbol(self, address: int) -> str:
        self._symbols.refresh()
        return self._symbols.resolve(address)


def of_kind(label: Label) -> model.Label:
    types = {spec.CPU: model.CPU, spec.CGROUP: model.CGROUP, spec.DEVICE: model.DEVICE}
    return model.Label(label.name, types.get(label.type, label.type))
