# SPDX-License-Identifier: Apache-2.0
"""Pages that tests/pages runs from top to bottom: how outputs are compared, and that the pages can be run."""

from __future__ import annotations

import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from tests.pages import earlier
from tests.pages import page as pages
from tests.pages.page import Step, differences, matching, only, renewed, run, steps, words
from tests.unit.docs.pages import DOCS
from wptrace.capture.reader import Capture

PAGE = """
```sh
one
```

Words between.

```sh
two
```

```
Summary
...
  device   10  1.5 ms  88.3%  ███▏
```
"""


def test_steps_are_scripts_with_what_they_write() -> None:
    assert steps(PAGE) == [Step("one\n", None), Step("two\n", "Summary\n...\n  device   10  1.5 ms  88.3%  ███▏\n")]


@pytest.mark.parametrize(
    ("shown", "written", "same"),
    [
        ("  device  4,553  2.01 ms 88.3%  ██▋", "  device  12  950 ns  7.0%  █", True),
        ("92% of its time, 1 other owner had the rest", "91% of its time, 3 other owners had the rest", True),
        ("read: 1 operation, 107 /s, 429 KiB/s", "read: 99 operations, 1.2 k/s, 4 MiB/s", True),
        ("verdict: device takes 88% of it on loop0", "verdict: device takes 99% of it on loop3", True),
        ("  device  1", "  throttle  1", False),
        ("verdict: device takes 88% of it", "verdict: queue takes 88% of it", False),
        ("+ 0 in flight + 0 lost", "+ 2 in flight + 0 lost", True),
        ("+ 0 lost", "+ 3 lost", False),
        ("  wakeup  102  -  -  -  -  -", "  wakeup  102  83 ns  0 ns  0 ns  8 us  0.0%", True),
        ("(p99 2 ms): 75% shorter waits, 21% journal commit", "(p99 3 ms): 91% shorter waits, 9% on the CPU", True),
        ("(p99 2 ms): 75% shorter waits, 21% journal commit", "(p99 2 ms): 75% journal commit", False),
        ("  total  458 us  2.02 ms  +1.56 ms  +341%", "  total  49.8 us  2.01 ms  +1.96 ms  40.4x", True),
        (
            "db[2] waited 30.0 ms for cpu0; hog[1] had it",
            "db[3] waited 9 ms for cpu0 after 1 us of sleep; hog[2] had it",
            True,
        ),
    ],
)
def test_figures_may_differ_and_words_may_not(shown: str, written: str, same: bool) -> None:
    assert (words(shown) == words(written)) is same


def test_lines_are_looked_for_in_their_order() -> None:
    assert matching("b 1\n...\nd 1", ["a 2", "b 2", "c 2", "d 2"]) == ["b 2", "...", "d 2"]
    assert matching("d 1\nb 1", ["b 2", "d 2"]) == ["d 2", None]


def test_what_is_not_written_is_a_difference() -> None:
    assert differences(PAGE, ["", "Summary\n  device   2  7 us  1%\n"]) == []
    (found,) = differences(PAGE, ["", "Summary\n  queue   2  7 us  1%\n"])
    assert "device" in found


def test_a_page_gets_the_lines_of_a_run() -> None:
    made = renewed(PAGE, ["", "Summary\nmore\n  device   2  7 us  1%  █\n"])
    assert "Summary\n...\n  device   2  7 us  1%  █\n```" in made
    assert made.count("```") == PAGE.count("```")
    assert "Words between." in made


@pytest.mark.parametrize("page", pages.RUN, ids=lambda path: path.name)
def test_scripts_of_pages_are_whole(page: Path) -> None:
    found = steps(page.read_text())
    assert [step for step in found if step.shown is not None]
    assert [step.script for step in found if step.shown == ""] == []
    script = "\n".join(step.script for step in found)
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_some_sections_of_a_page() -> None:
    page = "# Title\n\n## One\n\na\n\n### Inner\n\nb\n\n## Two\n\nc\n\n## Three\n\nd\n"
    assert only(page, "One", "Three") == "## One\n\na\n\n### Inner\n\nb\n\n## Three\n\nd\n"


def test_captures_that_a_page_links_to_are_there_when_it_runs(tmp_path: Path) -> None:
    page = "[one](captures/old-kernel.wpt)\n\n```sh\ncmp old-kernel.wpt " + f"{earlier.CAPTURE} && echo same\n```\n"
    assert run(page, tmp_path) == ["same\n"]


def test_the_old_kernel_of_the_recipe_is_that_of_its_capture() -> None:
    with closing(Capture(earlier.CAPTURE)) as capture:
        kernel = capture.head.start.kernel
    (line,) = [line for line in (DOCS / "recipes.md").read_text().splitlines() if line.startswith("A: old-kernel.wpt")]
    assert f"Linux {kernel}: " in line
