# SPDX-License-Identifier: Apache-2.0
"""The options of the path flow: a module for each, in the shape of wptrace/flows/io/parts/part.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wptrace.engine.filters.cgroup import IN_CGROUP
from wptrace.engine.filters.task import PID
from wptrace.errors import UsageError
from wptrace.flows.io.kinds import KINDS, REQUEST_KINDS
from wptrace.flows.io.options import CGROUP, DEVICE, STATEMENT, UNIT, Options
from wptrace.flows.io.parts.part import Part
from wptrace.kernel.cgroup_names import CgroupNames

if TYPE_CHECKING:
    from wptrace.engine.devices import Devices
    from wptrace.flows.io.parts.counts import Counts
    from wptrace.flows.io.parts.owners import Owners
    from wptrace.flows.io.parts.texts import Texts

OPTIONAL = ("emits_records", "interference", "following", "stacked", "watches_remote")
"""Options that parts turn on. The object has them on by default, so that a plain load verifies all of it."""


def chosen(options: Options, of: Devices, counts: Counts, operations: bool = True) -> list[Part]:
    """The wanted parts; others are not imported. A part follows those that it builds on.

    Without `operations`, the parts cover requests only.
    """
    found: list[Part] = []
    owners: Owners | None = None
    texts: Texts | None = None
    cgroups, neighbours, waits = CgroupNames(), None, None
    pid, layers = options.filter.get(PID.name), of.layers()
    if pid or options.children:
        from wptrace.flows.io.parts.tasks import Process

        found.append(Process(pid, options.children, options.command, watched=options.guest is None))
    if options.filter.get(IN_CGROUP.name):
        from wptrace.flows.io.parts.tasks import InCgroup

        found.append(InCgroup(options.filter[IN_CGROUP.name]))
    if options.interference:
        from wptrace.flows.io.parts.interference import Interference

        found.append(Interference(operations))
    if options.writeback:
        from wptrace.flows.io.parts.writeback import Writeback

        found.append(Writeback())
    if layers or options.spare:
        from wptrace.flows.io.parts.layers import Layers

        found.append(Layers(of, layers, options.spare))
    if options.by == DEVICE:
        from wptrace.flows.io.parts.owners import ByDevice

        found.append(ByDevice(options.top))
    elif options.by:
        if options.by == UNIT:
            from wptrace.flows.io.parts.units import Units

            if options.unit is None:
                raise UsageError("--by unit needs a definition of its units")
            owners = texts = Units(options.unit, options.statement_text, options.top, options.owner_rows)
        elif options.by == STATEMENT:
            from wptrace.flows.io.parts.statements import Statements

            owners = texts = Statements(options.statement_text, options.top, options.owner_rows)
        else:
            from wptrace.flows.io.parts.owners import Owners

            owners = Owners(options.by, cgroups, options.top, options.owner_rows)
        found.append(owners)
        if options.neighbours:
            from wptrace.flows.io.parts.neighbours import Neighbours

            neighbours = Neighbours(owners, options.top)
            found.append(neighbours)
    if options.waits_ns is not None:
        from wptrace.flows.io.parts.waits import Waits

        waits = Waits(options.waits_ns, counts if operations else None, owners, ticks=options.interference)
        found.append(waits)
    if options.recorder is not None:
        from wptrace.flows.io.parts.recorder import NamedRecorder, RecorderPart

        kinds = KINDS if operations else REQUEST_KINDS
        of_records = None if texts is None else texts.of_records
        recorder = NamedRecorder(options.recorder, options.recorder_slow_ns, kinds, cgroups, of_records)
        found.append(RecorderPart(recorder))
    if options.by == CGROUP or options.emits_records or options.recorder is not None:
        from wptrace.flows.io.parts.tasks import Cgroups

        found.append(Cgroups(cgroups))
    if options.emits_records:
        from wptrace.flows.io.parts.singles import Singles

        found.append(Singles(options, cgroups, neighbours, waits, texts))
    if options.guest is not None:
        from wptrace.flows.io.parts.images import Images

        found.append(Images(options.guest))
    if options.kicks:
        from wptrace.flows.io.parts.kicks import Kicks

        found.append(Kicks(options.ring_bytes))
    return found
