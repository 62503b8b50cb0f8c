# SPDX-License-Identifier: Apache-2.0
"""With `wptrace host --kicks`: which threads write and read which eventfd."""

from __future__ import annotations

from collections.abc import Iterator

from wptrace.model.report import Report
from wptrace.outputs.text.words import printable


def lines(report: Report) -> Iterator[str]:
    found = report.lists.get("eventfds")
    if not found:
        return
    yield f"  {'eventfd':>7} {'':<7} {'times':>9}  thread"
    for one in found:
        yield f"  {one['fd']:>7} {one['way']:<7} {one['count']:>9,}  {printable(one['comm'])} {one['tid']}"
