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
    """The stage whose histogram the summary draws."""
    top: int = 0
    """The number of rows, those with the most first; 0: all."""
    exact: bool = False
    title: str = ""
    """The name of the flow, if a command traces several."""
    intervals: bool = True
    """An interval that covers the whole trace is not shown."""
    buckets: bool = False
    """Whether filled buckets of distributions are exported, if the format has room for them."""
    verbose: bool = False
    """Whether stacks of waits are shown."""
    owners: tuple[str, ...] = ()
    """Kinds of owners that may have rows, for which a trace begins anew; the first one is the current one."""
    recorder: bool = False
    """There is a flight recorder, of which a key writes a dump."""
    unit: str = "us"
    """The unit of times in `--line`."""


def make(name: str, stream: TextIO, view: str, wanted: Wanted) -> Output:
    """`view` is how the flow wants to look where a format has several ways; others go without."""
    made: Output = importlib.import_module(f"wptrace.outputs.{name}").create(stream, view, wanted)
    return made
