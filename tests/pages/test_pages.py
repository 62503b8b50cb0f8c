# SPDX-License-Identifier: Apache-2.0
"""The commands of a page write what it shows, in a guest with the kernel that it names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.pages.page import RUN, differences, run


@pytest.mark.parametrize("page", RUN, ids=lambda path: path.name)
def test_the_outputs_of_a_page_are_those_of_its_commands(page: Path, tmp_path: Path) -> None:
    if "WPTRACE_LAB_KERNEL" not in os.environ:
        pytest.skip("it makes cgroups, devices of dm and limits, which only a guest may: tests.run --all pages")
    text = page.read_text()
    found = differences(text, run(text, tmp_path))
    if found:
        # The list is shown whole: an assertion would cut the output.
        pytest.fail("\n".join(found), pytrace=False)
