# SPDX-License-Identifier: Apache-2.0
"""Generated parts of a page, between `<!-- NAME -->` and `<!-- end -->`."""

from __future__ import annotations

import re

END = "<!-- end -->"


def filled(page: str, name: str, block: str) -> str:
    """Return the page with `block` between the marks of that name; unchanged if there are none."""
    before, mark, rest = page.partition(f"<!-- {name} -->\n")
    if not mark:
        return page
    if END not in rest:
        raise ValueError(f"nothing ends <!-- {name} -->")
    return f"{before}{mark}\n{block}\n\n{END}{rest.partition(END)[2]}"


def between(page: str, name: str) -> str:
    return page.partition(f"<!-- {name} -->")[2].partition(END)[0]


def named(page: str, kind: str) -> list[str]:
    """Return the names of marks `<!-- KIND: NAME -->`, in the order of the page."""
    return re.findall(rf"^<!-- {kind}: (\w+) -->$", page, re.M)
