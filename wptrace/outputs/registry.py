# SPDX-License-Identifier: Apache-2.0
"""The formats of results: each is a module or package here with a function `create`, found by its name."""

from __future__ import annotations

import importlib
from typing import NamedTuple, TextIO

from wptrace.model.report import Output

TEXT, NDJSON, LINES, CSV = "text", "ndjson", "lines", "csv_lines"


class Wanted(NamedTuple):
    """Parts that the user wants to see."""

    live: bool = False
    dates: bool = False
    statistics: bool = False
    per_device: bool = False
    """A table for each place, and not for all of them together."""
    hist: str = ""
    """Whose histogram the summary draws."""
    top: int = 0
    """So many rows, those with the most first; 0: all of them."""
    exact: bool = False
    title: str = ""
    """Which flow it is, where one command traces several."""
    intervals: bool = True
    """An interval that covers the whole trace is not shown."""
    buckets: bool = False
    """With the filled buckets of each distribution, where a format has room for them."""
    verbose: bool = False
    """With the stacks of waits."""
    owners: tuple[str, ...] = ()
    """By whom there may be rows, in a trace that begins anew for them; the first one is as it is."""
    recorder: bool = False
    """There is a flight recorder, of which a key writes a dump."""
    unit: str = "us"
    """Of the times of `--line`."""


def make(name: str, stream: TextIO, view: str, wanted: Wanted) -> Output:
    """`view` is how the flow wants to look where a format has several ways; others go without."""
    made: Output = importlib.import_module(f"wptrace.outputs.{name}").create(stream, view, wanted)
    return made
