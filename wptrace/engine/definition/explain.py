# SPDX-License-Identifier: Apache-2.0
"""The programs of a definition on a kernel, as lines."""

from __future__ import annotations

import os
from collections.abc import Iterator

from wptrace.bpf.object import open_object
from wptrace.engine.definition import assembler, emit
from wptrace.engine.definition.body import key_register
from wptrace.engine.definition.programs import Numbering, body_of, declared, names
from wptrace.engine.definition.resolved import Resolution


def explain(resolution: Resolution) -> Iterator[str]:
    """With the front end of the best way of each point; what it falls through into is always the same."""
    first = {label.name: label.first for label in resolution.labels}
    numbering = Numbering(resolution, first)
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
