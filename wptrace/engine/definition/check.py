# SPDX-License-Identifier: Apache-2.0
"""Check a definition against a kernel without attaching anything, and show its programs."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from typing import NamedTuple

from wptrace.bpf.object import open_object
from wptrace.engine.definition import assembler, emit
from wptrace.engine.definition.body import key_register
from wptrace.engine.definition.definition import Definition
from wptrace.engine.definition.faults import Fault
from wptrace.engine.definition.kernel import Kernel
from wptrace.engine.definition.programs import Numbering, body_of, declared, names
from wptrace.engine.definition.recipe import Attachment, Recipe
from wptrace.engine.definition.resolution import attempt
from wptrace.engine.definition.resolved import Point, Resolution, first_words


class PointReport(NamedTuple):
    name: str
    role: str
    wanted: tuple[str, ...]
    """Targets as the definition names them."""
    ways: tuple[str, ...]
    """Best first: the kernel uses the first one that it accepts; empty if the point does not exist."""
    why: tuple[str, ...]
    """Reasons why better ways do not work."""


class Report(NamedTuple):
    name: str
    kernel: str
    points: tuple[PointReport, ...]
    faults: tuple[Fault, ...]

    @property
    def works(self) -> bool:
        return not self.faults


def check(definition: Definition, kernel: Kernel, without: Collection[str] = ()) -> Report:
    found = attempt(definition, kernel, without, thorough=True)
    points = tuple(_point(point) for point in found.resolution.points)
    return Report(definition.name, kernel.name, points, found.faults)


def _point(point: Point) -> PointReport:
    spec = point.spec
    ways = tuple(dict.fromkeys(_way(one) for one in point.attachments))
    return PointReport(spec.name, spec.role, tuple(map(str, spec.targets)), ways, (*point.notes, *point.rest))


def _way(attachment: Attachment) -> str:
    way = f"{attachment.way} {attachment.target}"
    if attachment.module:
        way += f" [{attachment.module}]"
    return f"{way} (probe reads)" if attachment.btf_id and any(map(_probed, _recipes(attachment))) else way


def _recipes(attachment: Attachment) -> list[Recipe]:
    found = [*attachment.keys, *attachment.labels, *(test.left for test in attachment.filters)]
    found += [one for one in (attachment.becomes, attachment.value, attachment.mark, attachment.reached) if one]
    return found


def _probed(recipe: Recipe) -> bool:
    # A text is always copied.
    loads = recipe.loads[:-1] if recipe.text else recipe.loads
    return any(not load.direct for load in loads)


def lines(report: Report) -> list[str]:
    """The report as text."""
    width = max((len(point.name) for point in report.points), default=0)
    can = "can be traced" if report.works else "cannot be traced"
    found = [f"{report.name} on {report.kernel}: {can}"]
    for point in report.points:
        first, *others = point.ways or ("not there",)
        found.append(f"  {point.name:<{width}}  {point.role:<5}  {first}")
        found += [f"  {'':<{width}}         else {other}" for other in others]
        found += [f"  {'':<{width}}         {why}" for why in point.why]
    return [*found, *(str(fault) for fault in report.faults)]


def explain(resolution: Resolution) -> Iterator[str]:
    """List each point's front end for its best way; the body that follows is always the same."""
    numbering = Numbering(resolution, first_words(resolution.labels))
    with open_object("generic") as obj:
        found = declared(obj, {program.name: program.code for program in obj.progs.values()})
        for point in resolution.points:
            if not point.attachments:
                continue
            attachment, body = point.attachments[0], found.code[body_of(point.spec, False)]
            constants = numbering.constants(point.spec, attachment, found)
            key = key_register(body, found.stand_ins.marks)
            code = emit.front(attachment, constants, assembler.stack(body), os.uname().machine, key)
            yield ""
            yield f"{names(point)[0]}:"
            yield from assembler.listing(code)
            yield f"       the body `{body_of(point.spec, False)}`, {len(body) // assembler.SIZE} instructions"
