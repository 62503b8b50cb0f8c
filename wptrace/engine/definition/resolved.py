# SPDX-License-Identifier: Apache-2.0
"""A resolved definition: how each point is observed on one kernel, and why not in a better way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from wptrace.engine.definition.definition import Definition, PointSpec
from wptrace.engine.definition.recipe import Attachment


class Label(NamedTuple):
    """Everything that the points know of labels with this name."""

    name: str
    type: str
    """One of the types other than AUTO."""
    words: int
    """The number of 64-bit words: 2 for text."""
    names: Mapping[int, str] = {}
    """With ENUM: the names of the values on this kernel."""


def first_words(labels: Sequence[Label]) -> dict[str, int]:
    """The index of each label's first word among those of all of them, by name."""
    firsts = accumulate((label.words for label in labels), initial=0)
    return {label.name: first for label, first in zip(labels, firsts)}


class Point(NamedTuple):
    spec: PointSpec
    attachments: tuple[Attachment, ...]
    """Best first: the first that the kernel accepts is used. Empty: an optional point that this kernel lacks."""
    notes: tuple[str, ...] = ()
    """Reasons why it is not the definition's first target, or not the best way; a sentence each."""
    rest: tuple[str, ...] = ()
    """Reasons why there is no further way after the last one."""


class Resolution(NamedTuple):
    definition: Definition
    kernel: str
    """The kernel that the types are from."""
    points: tuple[Point, ...]
    labels: tuple[Label, ...]
