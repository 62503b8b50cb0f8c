# SPDX-License-Identifier: Apache-2.0
"""OTF2, read by its own tool."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

from tests.unit.outputs import path
from tests.unit.outputs.export.events import some, sums
from tests.unit.outputs.export.test_rows import written

_EVENT = re.compile(r'(ENTER|LEAVE) +(\d+) +(\d+) +Region: "([^"]+)"')


def test_otf2_print_has_our_counts_and_sums(tmp_path: Path) -> None:
    program = shutil.which("otf2-print")
    assert program, "otf2-print is not installed: tests/setup.sh"
    events = some(500)
    folder = written(tmp_path, "otf2", path.start(), *events, path.report(kind="summary"))
    reported = subprocess.run(
        [program, str(folder / "traces.otf2")], check=True, capture_output=True, text=True, errors="strict"
    ).stdout
    counts: Counter[str] = Counter()
    times: Counter[str] = Counter()
    open_regions: dict[str, list[int]] = {}
    for what, location, at, name in _EVENT.findall(reported):
        stack = open_regions.setdefault(location, [])
        if what == "ENTER":
            stack.append(int(at))
        else:
            counts[name] += 1
            times[name] += int(at) - stack.pop()
    assert not any(open_regions.values())
    expected = sums(events)
    assert {name: counts[name] for name in expected[0]} == expected[0]
    assert {name: times[name] for name in expected[1]} == expected[1]
    assert sum(counts.values()) == sum(expected[0].values()) + len(events)
