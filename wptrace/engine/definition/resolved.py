# SPDX-License-Identifier: Apache-2.0
"""A definition on one kernel: what each point will be, and why not better."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from wptrace.engine.definition.definition import Definition, PointSpec
from wptrace.engine.definition.recipe import Attachment


class Label(NamedTuple):
    """All that the points know of a label of one name."""

    name: str
    type: str
    """Never AUTO."""
    words: int
    """Of 64 bits: 2 for text."""
    first: int
    """Its first word among those of all labels."""
    names: Mapping[int, str] = {}
    """With ENUM: what the values are called on this kernel."""


class Point(NamedTuple):
    spec: PointSpec
    attachments: tuple[Attachment, ...]
    """Best first: the first that the kernel takes is used. Empty: an optional point that this kernel lacks."""
    notes: tuple[str, ...] = ()
    """Why it is not what stands first in the definition, or not the best way; a sentence each."""
    rest: tuple[str, ...] = ()
    """Why there is no other way behind the last one."""


class Resolution(NamedTuple):
    definition: Definition
    kernel: str
    """Of what kernel the types are."""
    points: tuple[Point, ...]
    labels: tuple[Label, ...]
    key: tuple[str, ...]
    """The key as it stands at the first point, in parts."""
    notes: tuple[str, ...] = ()
