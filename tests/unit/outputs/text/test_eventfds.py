# SPDX-License-Identifier: Apache-2.0
"""The table of `wptrace host --kicks`."""

from __future__ import annotations

from tests.unit.capture.made import report
from wptrace.outputs.text.stages import eventfds


def test_each_thread_of_each_eventfd_has_a_line() -> None:
    found = [
        {"fd": 87, "way": "written", "tid": 2634, "comm": "CPU 0/TCG", "count": 1200},
        {"fd": 87, "way": "read", "tid": 2632, "comm": "a\x1b[31mb", "count": 7},
    ]
    reported = report("summary", range(1), 10**9)
    title, *lines = eventfds(reported._replace(lists={"eventfds": found}))
    assert title.split() == ["eventfd", "times", "thread"]
    assert lines == [
        "       87 written     1,200  CPU 0/TCG 2634",
        "       87 read            7  a\\x1b[31mb 2632",
    ]
    assert list(eventfds(reported)) == []
