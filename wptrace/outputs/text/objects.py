# SPDX-License-Identifier: Apache-2.0
"""Flows by definition as text: a table for each row of labels, and lines for what is in flight."""

from __future__ import annotations

from collections.abc import Iterator

from wptrace.kernel.clock import clock_time
from wptrace.model import units
from wptrace.model.report import InFlight, Report
from wptrace.outputs.text import words
from wptrace.outputs.text.stages import StagesView
from wptrace.outputs.text.words import head, printable


class ObjectsView(StagesView):
    def _as_wanted(self, report: Report) -> Report:
        """Keep the report: its labels were chosen when the flow was made."""
        return report

    def in_flight(self, found: list[InFlight], at_ns: int, width: int, most: int) -> list[str]:
        return list(_in_flight(found, at_ns, width, self.wanted.dates, most))


def _in_flight(found: list[InFlight], at_ns: int, width: int, dates: bool, most: int) -> Iterator[str]:
    yield f"in flight at {clock_time(at_ns, dates).partition('.')[0]}: {len(found):,}" + (
        f", the oldest for {units.duration(found[0].age_ns)}" if found else ""
    )
    for one in found[:most]:
        fields = " ".join(printable(f"{name} {value}") for name, value in one.fields.items())
        line = f"  {units.duration(one.age_ns):>8}  {one.stage:<12} {words.group(one.group)}"
        yield head(f"{line.rstrip()}  {fields}", width)
    if len(found) > most:
        yield f"  and {len(found) - most:,} more"


VIEW = ObjectsView
